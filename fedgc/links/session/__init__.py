"""The session link: one TLS stream for each client."""
