"""Connections between the server and its clients: frames, vectors in pieces, identities."""
