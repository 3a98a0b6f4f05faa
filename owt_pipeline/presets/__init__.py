"""Known recipes as settings; every value names where it comes from."""
