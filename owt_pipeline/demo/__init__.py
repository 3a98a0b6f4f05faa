"""A small web and the dump of links to it, as files: `owt demo` serves the one and reads the other.

`demo.warc.gz` holds 254 answers of 25 hosts below `demo.test`, as good and as bad as the real web:
eight layouts, three character sets, copies, near-copies, redirects, errors. `RS_demo.zst` is a
month of 442 submissions that link to them. Both are sources: no program makes them.
"""
