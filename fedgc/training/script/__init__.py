"""A client's side of a training script: its process, the local socket, and the loop of the engine."""
