"""The command line and the live display of a job."""
