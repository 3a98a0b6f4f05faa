"""The answers of a CDX index of archived pages.

An index answers with a URL's captures as JSON: an array of arrays, the first of which names the fields (the Wayback
Machine), or one object per line (pywb; https://pywb.readthedocs.io/en/latest/manual/cdxserver_api.html). It compares
URLs by their SURT form, which ignores more than canonical URLs do, such as case; so the canonical forms of what it
finds are compared again.
"""

from __future__ import annotations

import calendar
import contextlib
import json
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

from owt_pipeline.formats.messages import REDIRECTS, is_html
from owt_pipeline.formats.urls import BadURL, canonical_url
from owt_pipeline.stages.fetch.answers import NoPage
from schemas import Reason

_REVISIT = "warc/revisit"


class BadIndex(ValueError):
    """An answer that is not a CDX index'; the message says what it is."""


@dataclass(frozen=True)
class Capture:
    """A capture of a URL, as the index describes it.

    Attributes:
      date: when it was made, seconds since 1970 in UTC.
      url: the URL as archived.
      status: the status of the response: 200, or that of a redirect.
      file: the archive file; "" if unknown.
      offset: first byte of its record there.
    """

    date: int
    url: str
    status: int = 200
    file: str = ""
    offset: int = 0


@dataclass
class Found:
    """The captures of a URL.

    Attributes:
      captures: those that may be pages, and redirects.
      others: counts of the other captures, by kind.
    """

    captures: list[Capture] = field(default_factory=list)
    others: Counter[str] = field(default_factory=Counter)

    def add(self, found: Found) -> None:
        self.captures += found.captures
        self.others += found.others

    @property
    def pages(self) -> list[Capture]:
        return [capture for capture in self.captures if capture.status == 200]

    def nothing(self) -> NoPage:
        """The outcome of the URL if no capture can be a page."""
        others = ", ".join(f"{count} of {about}" for about, count in sorted(self.others.items()))
        return NoPage(Reason.NOT_ARCHIVED, "no capture of a page in the Wayback Machine" + (others and f": {others}"))


def parse_captures(body: bytes, canonical: str) -> Found:
    """The captures of the URL `canonical` in an index' answer. A revisit is another date of the page with its digest.

    Captures of unknown content type may be pages, too. Malformed rows, such as a last line that is cut off, are
    skipped; an answer that is not a CDX index' raises BadIndex.
    """
    pages: dict[Capture, str] = {}  # with their digests
    revisits: set[tuple[str, int]] = set()
    found = Found()
    for row in _rows(body):
        with contextlib.suppress(KeyError, TypeError, ValueError, AttributeError, BadURL):
            url = row.get("original") or row["url"]
            if canonical_url(url) != canonical:
                continue
            types = {row[name] for name in ("mimetype", "mime", "mime-detected") if row.get(name)} - {"unk"}
            status, date = str(row.get("statuscode") or row["status"]), seconds_of(row["timestamp"])
            digest = str(row.get("digest") or "")
            file = str(row.get("filename") or "")
            offset = int(row["offset"]) if file else 0
            if _REVISIT in types or status == "304":
                revisits.add((digest, date))
            elif status.isdecimal() and int(status) in REDIRECTS:
                found.captures.append(Capture(date, url, int(status), file, offset))
            elif status == "200" and (not types or any(map(is_html, types))):
                pages[Capture(date, url, 200, file, offset)] = digest
            else:
                found.others[f"status {status}" if status != "200" else ", ".join(sorted(types)) or "no type"] += 1
    found.captures += pages
    for capture, digest in pages.items() if revisits else ():
        found.captures += [replace(capture, date=date) for same, date in sorted(revisits) if digest == same != ""]
    if revisits and not pages:
        found.others[_REVISIT] += len(revisits)
    return found


def seconds_of(timestamp: str) -> int:
    """A time as archives write it, YYYYMMDDhhmmss in UTC, in seconds since 1970; raises ValueError."""
    return calendar.timegm(time.strptime(timestamp, "%Y%m%d%H%M%S"))


def _rows(body: bytes) -> Iterator[dict[str, Any]]:
    text, problem = body.strip(), ""
    rows: list[Any] = []
    if text.startswith(b"["):
        try:
            names, *values = json.loads(text) or [[]]
            yield from (dict(zip(names, row, strict=True)) for row in values)
            return
        except (ValueError, TypeError) as error:
            problem = f" ({error})"
    for line in [] if problem else text.split(b"\n"):
        with contextlib.suppress(ValueError):
            rows.append(json.loads(line))
    rows = [row for row in rows if isinstance(row, dict) and "timestamp" in row]
    if text and not rows:
        raise BadIndex(f"no captures as JSON{problem} but {text[:100]!r}")
    yield from rows
