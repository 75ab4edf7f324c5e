"""Tools of the developers: what makes files of the package."""
