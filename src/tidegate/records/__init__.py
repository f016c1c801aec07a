"""What flows: record types, batches and the other stream elements, keys and their hashes, the wire form."""
