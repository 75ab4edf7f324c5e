"""Developer tools that generate files of the package."""
