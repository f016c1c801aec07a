"""What a running job measures: counters and times in the slots, snapshots of them for the driver."""
