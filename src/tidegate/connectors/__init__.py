"""Sources and sinks for systems outside the job; independent siblings that never import each other."""
