"""Keys: their stable hashes, their key groups by column, and dense ids for what operators index by key."""
