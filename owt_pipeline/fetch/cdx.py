"""CDX indexes of web archives: what they are asked, and what their answers say.

An index answers `API?url=URL&output=json` with a capture a line, as JSON: the CDX server API of pywb, which Common
Crawl runs too (https://pywb.readthedocs.io/en/latest/manual/cdxserver_api.html). It compares URLs by their SURT
form, which ignores more than canonical URLs do, such as case; so what it finds is compared once more.
"""

from __future__ import annotations

import calendar
import json
import time
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import Any

from yarl import URL

from owt_pipeline.collect.urls import BadURL, canonical_url
from owt_pipeline.fetch.acceptance import is_html

_EVER = (0, 1 << 40)


class BadIndex(ValueError):
    """An answer that is none of a CDX index; the message says what it is instead."""


@dataclass(frozen=True)
class Collection:
    """One index of captures.

    Attributes:
      name: what messages call it.
      api: where it is asked.
      begins: time of its first capture, seconds since 1970 in UTC.
      ends: time of its last one.
    """

    name: str
    api: str
    begins: int = _EVER[0]
    ends: int = _EVER[1]

    def distance(self, moment: int) -> int:
        """Seconds from `moment` to the nearest capture that it can have."""
        return max(self.begins - moment, moment - self.ends, 0)


@dataclass(frozen=True)
class IndexedCapture:
    """A capture that an index knows: when, and the range of bytes of its record in an archive file."""

    date: int
    file: str
    offset: int
    length: int


def is_list_of_collections(url: str) -> bool:
    """Whether a URL is that of a list of collections (`collinfo.json`), and not of one index."""
    return URL(url).path.endswith(".json")


def single_collection(api: str) -> Collection:
    """The index at `api`, of which nothing else is known."""
    return Collection(URL(api).path.strip("/") or api, api)


def parse_collections(body: bytes) -> tuple[Collection, ...]:
    """The collections of a `collinfo.json`; raises BadIndex where it is none, or has none."""
    try:
        entries = json.loads(body)
        found = tuple(_collection(entry) for entry in entries)
    except (ValueError, TypeError, KeyError) as error:
        raise BadIndex(f"no list of collections with id, cdx-api, from and to: {_problem(error)}") from error
    if not found:
        raise BadIndex("an empty list of collections")
    return found


def query(api: str, url: str) -> URL:
    """What to ask for the successful captures of `url`."""
    return URL(api).update_query({"url": url, "output": "json", "filter": "=status:200"})


def parse_captures(body: bytes, canonical: str) -> list[IndexedCapture]:
    """The captures of an index' answer that are HTML pages of the URL whose canonical form is `canonical`.

    A last line that is cut off is none; raises BadIndex where no line is a capture.
    """
    lines = [line for line in body.split(b"\n") if line.strip()]
    rows = list(_rows(lines))
    if lines and not rows:
        raise BadIndex(f"no captures as JSON but {lines[0][:100]!r}")
    return sorted({capture for row in rows for capture in _captures(row, canonical)}, key=lambda c: (c.date, c.file))


def says_no_captures(body: bytes) -> bool:
    """Whether the body of a 404 says that the index, which is there, has nothing (Common Crawl's way to say so)."""
    return b"no captures found" in body[:1000].lower()


def _collection(entry: dict[str, Any]) -> Collection:
    begins, ends = (_iso_time(entry[key]) if entry.get(key) else _EVER[i] for i, key in enumerate(("from", "to")))
    return Collection(str(entry["id"]), str(URL(entry["cdx-api"])), begins, ends)


def _iso_time(text: str) -> int:
    moment = datetime.fromisoformat(text.replace("Z", "+00:00"))  # which Python 3.10 does not know
    return int((moment if moment.tzinfo else moment.replace(tzinfo=timezone.utc)).timestamp())


def _rows(lines: list[bytes]) -> Iterator[dict[str, Any]]:
    for line in lines:
        try:
            row = json.loads(line)
        except ValueError:
            continue
        if isinstance(row, dict) and "filename" in row:
            yield row


def _captures(row: dict[str, Any], canonical: str) -> Iterator[IndexedCapture]:
    """The capture of a row; none where it is another URL's, no page, or incomplete."""
    try:
        if row["status"] != "200" or canonical_url(row["url"]) != canonical:
            return
        if not any(is_html(row[name]) for name in ("mime", "mime-detected") if row.get(name)):
            return
        date = calendar.timegm(time.strptime(row["timestamp"], "%Y%m%d%H%M%S"))
        capture = IndexedCapture(date, str(row["filename"]), int(row["offset"]), int(row["length"]))
        if capture.offset >= 0 and capture.length > 0:
            yield capture
    except (KeyError, TypeError, ValueError, AttributeError, BadURL):
        return


def _problem(error: Exception) -> str:
    return f"{error} is missing" if isinstance(error, KeyError) else str(error)[:200]
