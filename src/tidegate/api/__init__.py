"""What user code imports: environment, streams, functions, the source and sink contracts."""
