"""In the driver: the job's state machine, its control server, its source enumerators, and the user's handle on it."""
