"""Secure aggregation for either kind of work: keys, masked updates, and their sum."""
