"""fedgc."""
