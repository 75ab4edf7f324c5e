"""The message link: the same commands and vectors inside Flower messages."""
