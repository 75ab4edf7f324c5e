"""Receivers: processes that share the sessions of one run's clients between them."""
