"""Syntax trees: cut pieces out of files, walk them, follow a function for given values."""
