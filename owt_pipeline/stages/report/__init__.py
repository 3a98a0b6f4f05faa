"""The statistics of a run as a web page and as JSON."""
