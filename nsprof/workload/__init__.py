"""Traffic generators: one module each runs it and parses what it says."""
