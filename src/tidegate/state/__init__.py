"""Keyed and operator state: backends with one contract, serializers, time to live."""
