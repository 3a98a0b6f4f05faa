"""pywb: its CDX server and its replay, over WARC files."""

from __future__ import annotations

import contextlib
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path

from tests.servers.process import free_port, program, serving


@contextlib.contextmanager
def pywb(folder: Path, collections: Mapping[str, Path]) -> Iterator[str]:
    """Serve a collection of each WARC file by pywb; yields its URL.

    Skips the test where pywb is not installed.
    """
    wayback = program("wayback")
    for name, file in collections.items():
        place = folder / "collections" / name
        (place / "archive").mkdir(parents=True)
        (place / "indexes").mkdir()
        shutil.copy(file, place / "archive")
        index = [program("cdx-indexer"), "-j", "-s", "-o", place / "indexes" / "index.cdxj", file]
        subprocess.run(index, check=True, capture_output=True)
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    with serving(
        [wayback, "-b", "127.0.0.1", "-p", str(port), "-d", folder], f"{url}/collinfo.json"
    ):
        yield url
