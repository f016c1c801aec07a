"""Keys: stable hashes, key groups of whole columns, and dense ids by which operators index their arrays."""
