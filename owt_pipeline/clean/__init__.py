"""A document's text repaired, and judged: pure functions over one document at a time."""
