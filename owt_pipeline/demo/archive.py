"""The demo's web as a WARC file, for those who want its pages without the server."""

from __future__ import annotations

from pathlib import Path

from owt_pipeline.demo.answers import Behaviour
from owt_pipeline.demo.site import Site
from owt_pipeline.fetch.warc import response_record

ARCHIVE_NAME = "demo.warc.gz"
_DATE = 1577836800  # 2020-01-01


def write_archive(site: Site, path: Path) -> int:
    """Write what `site` answers plainly, whatever the status, to the WARC file `path`; returns the number of pages."""
    pages = [
        (f"http://{host}{target}", answer)
        for (host, target), answer in sorted(site.answers.items())
        if target != "/robots.txt" and answer.behaviour is Behaviour.PLAIN
    ]
    with open(path, "wb") as file:
        for url, answer in pages:
            headers = [("Content-Type", answer.content_type)] + [("Location", answer.location)] * bool(answer.location)
            file.write(response_record(url, _DATE, f"HTTP/1.1 {answer.status} Answer", headers, answer.body))
    return len(pages)
