"""Shipped to users: what tests of streaming programs need."""
