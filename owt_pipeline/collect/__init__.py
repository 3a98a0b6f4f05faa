"""From Reddit dumps, Reddit's API, URL lists and WARC files to one row a canonical URL: pure functions, no Beam."""
