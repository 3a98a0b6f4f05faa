"""Reddit dumps, Reddit's API, URL lists and WARC files become one row per canonical URL: pure functions, no Beam."""
