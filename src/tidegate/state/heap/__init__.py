"""State in Python dicts and numpy arrays: fast, as large as memory; increments by changed keys."""
