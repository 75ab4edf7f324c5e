"""One file per step, named after what it does. A released step is never edited."""
