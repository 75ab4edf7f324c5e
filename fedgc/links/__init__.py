"""How server and clients are connected: frames, vectors in pieces, identities."""
