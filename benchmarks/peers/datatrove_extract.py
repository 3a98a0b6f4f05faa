"""datatrove's reader and extractor over a WARC file: texts that `clean.py` judges too, as a list
in JSON.

    .venv-peers/bin/python benchmarks/peers/datatrove_extract.py PAGES.warc.gz

Its Trafilatura step with its defaults (precision, deduplicating), in its sandbox, but with 20
seconds per page: its one second of wall clock would lose pages on a busy machine.
"""

import json
import sys
from pathlib import Path

from datatrove.pipeline.extractors import Trafilatura
from datatrove.pipeline.readers import WarcReader

if __name__ == "__main__":
    warc = Path(sys.argv[1]).resolve()
    pages = WarcReader(str(warc.parent), glob_pattern=warc.name).run()
    print(json.dumps([document.text for document in Trafilatura(timeout=20).run(pages)]))
