"""Reddit dumps, Reddit's API, tables of links and WARC files become one row per canonical URL."""
