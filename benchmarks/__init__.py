"""Benchmarks: tidegate beside its peers, on the same data and the same machine."""
