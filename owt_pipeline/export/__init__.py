"""The finished corpus: clean documents without those that decisions remove."""
