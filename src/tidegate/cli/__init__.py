"""The command line: what a person sees and types."""
