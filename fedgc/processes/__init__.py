"""Processes and what they start: a supervisor that ends them all."""
