"""The state machine of a run: consecutive rounds."""
