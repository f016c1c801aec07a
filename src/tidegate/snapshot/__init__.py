"""What a checkpoint is: handles, the manifest, and the assignment of state in a restore. Values only."""
