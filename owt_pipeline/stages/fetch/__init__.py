"""The page of each URL, from the web or from archives, kept in WARC files."""
