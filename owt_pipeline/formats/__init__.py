"""What several stages read or write: canonical URLs, lines of compressed files, HTTP messages,
WARC files, tokens."""
