"""Coded work: gradient coding with replicated chunks and an exact sum."""
