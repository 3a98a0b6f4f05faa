"""Makes the demo's dump and its pages: `python -m tests.demo_web FOLDER`.

The texts are those of the running Python's library, so other versions of Python make other pages. What `owt demo` ships
was made once, by Python 3.11; `tests/owt_pipeline/demo/expected.tsv` says what happens to each link.
"""

import sys
from pathlib import Path

from tests.demo_web.inputs import ARCHIVE_NAME, DUMP_NAME, write_archive, write_dump
from tests.demo_web.site import build_site

folder, site = Path(sys.argv[1]), build_site()
print(f"{write_dump(site, folder / DUMP_NAME)} submissions, {write_archive(site, folder / ARCHIVE_NAME)} pages")
