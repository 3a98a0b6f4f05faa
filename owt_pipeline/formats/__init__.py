"""What several stages read or write: token ids, canonical URLs, WARC files."""
