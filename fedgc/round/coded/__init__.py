"""Coded work: chunks, their replicas, and the exact sum by a gradient code."""
