"""The three labelled sets of pages on which the model is fitted and validated.

Each labels different pages in a different way, so an extractor that fits one by chance fails on
another:

    wcxb          1,308 pages of seven types with their main text
                  wcxb-dev.warc.gz, wcxb-dev.truth.jsonl.gz
    trafilatura     519 pages with snippets that must, or must not, be in the text
                  trafilatura-eval-dev.jsonl.gz
    readability     130 articles with their content as clean HTML       readability-pages.jsonl.gz
"""

from __future__ import annotations

import gzip
import hashlib
import json
import re
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from fastwarc.warc import ArchiveIterator, WarcRecordType
from lxml import etree, html

from owt_pipeline.stages.extract.charset import decode
from owt_pipeline.stages.extract.html.names import INLINE

SETS = ("wcxb", "trafilatura", "readability")
FILES = {
    "wcxb": ("wcxb-dev.warc.gz", "wcxb-dev.truth.jsonl.gz"),
    "trafilatura": ("trafilatura-eval-dev.jsonl.gz",),
    "readability": ("readability-pages.jsonl.gz",),
}
# Some pages are named HOST-WORDS.html instead of having a URL.
_FILE_OF_HOST = re.compile(r"(?<=\.[a-z]{2})-.*|(?<=\.[a-z]{3})-.*")


@dataclass(frozen=True)
class LabelledPage:
    """A page and its main text.

    Attributes:
      set: one of SETS.
      url: its URL; for `readability`, with a name instead of a host.
      html: the page, decoded.
      kind: its type if the set has types, else the set's name.
      truth: the main text; None if only snippets are known.
      wanted, unwanted: snippets that the main text contains, and does not contain.
    """

    set: str
    url: str
    html: str
    kind: str
    truth: str | None = None
    wanted: tuple[str, ...] = ()
    unwanted: tuple[str, ...] = ()

    @property
    def host(self) -> str:
        """The site of a page, which decides its fold, since pages of a site share their markup."""
        # Pages of Readability have a name with a number.
        if self.set == "readability":
            return self.url.rstrip("-0123456789")
        host = urlsplit(self.url).hostname or self.url.partition("/")[0]
        return _FILE_OF_HOST.sub("", host.removeprefix("www."))

    def fold(self, folds: int, seed: int = 0) -> int:
        """Return the fold of the page's host, from 0 to `folds` - 1."""
        return zlib.crc32(f"{seed} {self.host}".encode()) % folds


def groups_of(pages: Sequence[LabelledPage]) -> dict[str, list[int]]:
    """Return the indexes of the pages of each set and of each kind, as in `wcxb article`."""
    groups: dict[str, list[int]] = {}
    for index, page in enumerate(pages):
        groups.setdefault(page.set, []).append(index)
        if page.kind != page.set:
            groups.setdefault(f"{page.set} {page.kind}", []).append(index)
    return groups


def read_labelled(folder: Path, sets: tuple[str, ...] = SETS) -> list[LabelledPage]:
    """Return the pages of `sets` in `folder`, which holds FILES; raises FileNotFoundError."""
    readers: dict[str, Callable[..., Iterator[LabelledPage]]]
    readers = {"wcxb": _wcxb, "trafilatura": _trafilatura, "readability": _readability}
    pages: list[LabelledPage] = []
    for name in sets:
        paths = [folder / file for file in FILES[name]]
        pages += readers[name](*paths)
    return pages


def digests(folder: Path) -> dict[str, str]:
    """Return the SHA-256 of each of FILES in `folder`."""
    digest_by_name = {}
    for names in FILES.values():
        for name in names:
            data = (folder / name).read_bytes()
            digest_by_name[name] = hashlib.sha256(data).hexdigest()
    return digest_by_name


def _wcxb(warc: Path, truth: Path) -> Iterator[LabelledPage]:
    body_by_url = {}
    with open(warc, "rb") as file:
        for record in ArchiveIterator(file, record_types=WarcRecordType.response):
            body_by_url[record.headers["WARC-Target-URI"]] = record.reader.read()
    for row in _rows(truth):
        markup, *_ = decode(body_by_url[row["url"]], "utf-8")
        yield LabelledPage(
            set="wcxb",
            url=row["url"],
            html=markup,
            kind=row["page_type"],
            truth=row["main_content"],
            wanted=tuple(row["with"]),
            unwanted=tuple(row["without"]),
        )


def _trafilatura(path: Path) -> Iterator[LabelledPage]:
    for row in _rows(path):
        # Some URLs have the name of a file and two colons before them.
        url = row["url"].partition("::")[2] or row["url"]
        yield LabelledPage(
            set="trafilatura",
            url=url,
            html=row["html"],
            kind="trafilatura",
            wanted=tuple(row["with"]),
            unwanted=tuple(row["without"]),
        )


def _readability(path: Path) -> Iterator[LabelledPage]:
    for row in _rows(path):
        yield LabelledPage(
            set="readability",
            url=row["name"],
            html=row["html"],
            kind="readability",
            truth=_text(row["expected_html"]),
        )


def _text(markup: str) -> str:
    """Return all text of clean HTML, with a space where a block-level element begins or ends."""
    pieces: list[str] = []

    def walk(element: etree._Element) -> None:
        apart = "" if element.tag in INLINE else " "
        pieces.append(apart)
        if element.tag not in ("script", "style") and isinstance(element.tag, str):
            pieces.append(element.text or "")
            for child in element:
                walk(child)
        pieces.append(apart)
        pieces.append(element.tail or "")

    walk(html.document_fromstring(markup))
    return " ".join("".join(pieces).split())


def _rows(path: Path) -> Iterator[dict[str, Any]]:
    with gzip.open(path, "rt", encoding="utf-8") as lines:
        yield from map(json.loads, lines)
