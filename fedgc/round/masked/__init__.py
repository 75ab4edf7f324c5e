"""Secure aggregation around either kind of work: keys, masked updates, and their sum."""
