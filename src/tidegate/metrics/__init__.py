"""The metrics of a running job: counters and times in the slots, and snapshots of them for the driver."""
