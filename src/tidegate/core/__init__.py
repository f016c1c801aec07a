"""The values at the bottom of the import order: ids, errors, clocks, options, key groups."""
