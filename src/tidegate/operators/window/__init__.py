"""Windows: records gathered by key and time, and emitted when event time has passed their end."""
