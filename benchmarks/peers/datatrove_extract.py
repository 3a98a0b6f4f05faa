"""Print the texts that datatrove extracts from a WARC file, as a list in JSON.

    .venv-peers/bin/python benchmarks/peers/datatrove_extract.py PAGES.warc.gz

`clean.py` judges them, so that our filters and their peers also meet texts that we did not extract.
This is datatrove's Trafilatura step in its sandbox with its defaults (precision, deduplicating),
except that a page has 20 seconds. With the default of one second of wall clock, a busy machine
would lose pages.
"""

import json
import sys
from pathlib import Path

from datatrove.pipeline.extractors import Trafilatura
from datatrove.pipeline.readers import WarcReader


def main() -> None:
    """Extract the pages of the WARC file that the command line names."""
    warc = Path(sys.argv[1]).resolve()
    reader = WarcReader(str(warc.parent), glob_pattern=warc.name)
    extractor = Trafilatura(timeout=20)
    documents = extractor.run(reader.run())
    print(json.dumps([document.text for document in documents]))


if __name__ == "__main__":
    main()
