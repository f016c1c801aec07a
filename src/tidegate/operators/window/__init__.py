"""Windows: rows gathered by key and time, given out when event time has passed their end."""
