"""One file per step, named for what it does. A step that has been released is never edited."""
