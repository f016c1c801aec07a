"""What a checkpoint is: handles, the manifest, and who gets what when it is restored. Values only."""
