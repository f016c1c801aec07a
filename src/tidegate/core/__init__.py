"""Values and decisions that everything else stands on: ids, errors, clocks, options, key groups."""
