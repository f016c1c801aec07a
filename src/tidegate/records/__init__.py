"""What flows: record types, batches and the other stream elements, their codecs and the wire form."""
