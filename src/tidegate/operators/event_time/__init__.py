"""Event time where it begins: timestamps of records, watermarks of splits."""
