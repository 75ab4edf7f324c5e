"""Processes: a supervisor that ends what they start, the memory and cores they may use, their folders."""
