"""What happens after a failure: restart strategies (pure) and the sequence of attempts."""
