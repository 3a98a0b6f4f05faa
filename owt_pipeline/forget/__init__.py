"""Documents taken down: the list of them, and what it names."""
