"""The kinds of entries on the heap of the virtual clock."""

CHUNK_ENDS, SAYS, HEARS, DIES, GRACE_ENDS, RETURNS, ARRIVES = range(7)
