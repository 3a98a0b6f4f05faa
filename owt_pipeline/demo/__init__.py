"""A small web and the dump of links to it, as files: `owt demo` serves the one and reads the other.

`python -m tests.demo_web` has made `RS_demo.zst` and `demo.warc.gz`.
"""
