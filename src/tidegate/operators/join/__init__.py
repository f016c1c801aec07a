"""Joins of two keyed streams by time."""
