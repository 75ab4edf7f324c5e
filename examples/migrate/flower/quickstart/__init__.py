"""A stock Flower app: digits, as in the quickstart for PyTorch."""
