"""datatrove's reader and extractor over a WARC file: the texts that `clean.py` judges too.

    .venv-peers/bin/python benchmarks/peers/datatrove_extract.py PAGES.warc.gz

Its Trafilatura step with its defaults (precision, deduplicating), in its sandbox, but with 20 seconds per page: its one
second of wall clock would lose pages on a busy machine. Prints one JSON object: texts by URL, pages, CPU seconds.
"""

from __future__ import annotations

import json
import resource
import sys
from pathlib import Path

from datatrove.pipeline.extractors import Trafilatura
from datatrove.pipeline.readers import WarcReader


def main() -> None:
    warc = Path(sys.argv[1]).resolve()
    reader = WarcReader(str(warc.parent), glob_pattern=warc.name)
    extractor = Trafilatura(timeout=20)
    texts = {document.metadata["url"]: document.text for document in extractor.run(reader.run())}
    print(json.dumps({"texts": texts, "pages": extractor.stats["total"].total, "cpu_seconds": cpu_seconds()}))


def cpu_seconds() -> float:
    """Of this process and its sandboxes, which have ended."""
    spent = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(usage.ru_utime + usage.ru_stime for usage in spent)


if __name__ == "__main__":
    main()
