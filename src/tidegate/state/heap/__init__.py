"""State in Python dicts and numpy arrays: fast, limited by memory; increments contain the changed keys."""
