"""A run as a state machine: rounds one after the other."""
