"""The user's own Python per record: one or two inputs, with timers, with broadcast state, with async requests."""
