"""What a takedown request names, looked up in a run."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from owt_pipeline.collect.urls import BadURL, canonicalize, url_id
from owt_pipeline.engine.dataset import DatasetReader
from owt_pipeline.engine.errors import UserError
from owt_pipeline.forget.takedowns import Takedown, Takedowns

_NO_IDS = np.zeros(0, np.uint64)


@dataclass(frozen=True)
class Resolved:
    """A request, looked up.

    Attributes:
      takedowns: what is to be on the list: what was asked for, and the duplicates of it.
      in_corpus: documents that leave the corpus.
      copies: duplicates of those, which are forgotten with them.
      unknown: URLs and ids that no document has.
    """

    takedowns: Takedowns
    in_corpus: int
    copies: int
    unknown: list[str]


def parse_request(lines: Iterable[str], where: str, detail: str) -> Takedowns:
    """URLs, ids and domains, one a line; blank lines and those that begin with `#` are none.

    Raises UserError, with the line's number, for one that is none of them.
    """
    ids: dict[int, Takedown] = {}
    domains: dict[str, str] = {}
    for number, line in enumerate(lines, start=1):
        text = line.strip()
        if not text or text.startswith("#"):
            continue
        if text.isdecimal() and len(text) <= 20 and int(text) < 1 << 64:
            ids[int(text)] = Takedown(None, detail)
            continue
        try:
            url, host = canonicalize(text if "://" in text else f"https://{text}")
        except BadURL as error:
            raise UserError(f"{where}:{number}: {text[:80]!r} is no URL, id or domain: {error}") from error
        if "://" not in text and "/" not in text:
            domains[host] = detail
        else:
            ids[url_id(url)] = Takedown(url, detail)
    return Takedowns(ids, domains)


def resolve(request: Takedowns, readers: Mapping[str, DatasetReader]) -> Resolved:
    """What `request` comes to in a run: with the duplicates of what it names, since their text is the same.

    Were a duplicate left off the list, deduplication with other options could bring the text back under its URL.
    """
    named: dict[int, str | None] = {}
    if "clean" in readers:
        for batch in readers["clean"].batches(columns=["url_id", "url"], rows=1 << 16):
            rows = [row for row, _ in request.of(batch["url_id"].to_numpy(), batch["url"])]
            named |= _urls(batch, rows)
    copy_of = _copies(readers["duplicates"], named) if "duplicates" in readers else {}
    urls: dict[int, str | None] = {}
    if copy_of:
        copies = np.fromiter(copy_of, np.uint64, len(copy_of))
        for batch in readers["clean"].batches(columns=["url_id", "url"], rows=1 << 16):
            urls |= _urls(batch, np.flatnonzero(np.isin(batch["url_id"].to_numpy(), copies)).tolist())
    with_urls = {key: Takedown(t.url or named.get(key), t.detail) for key, t in request.ids.items()}
    repeats = {
        key: Takedown(urls.get(key), f"repeats {named[kept] or kept}, which was taken down")
        for key, kept in copy_of.items()
    }
    in_corpus = 0
    if "corpus" in readers:
        for batch in readers["corpus"].batches(columns=["url_id", "url"], rows=1 << 16):
            in_corpus += len((request | Takedowns(repeats)).of(batch["url_id"].to_numpy(), batch["url"]))
    unknown = [t.url or str(key) for key, t in request.ids.items() if key not in named]
    takedowns = Takedowns(with_urls, request.domains) | Takedowns(repeats)
    return Resolved(takedowns, in_corpus, len(set(repeats) - set(request.ids)), unknown)


def _copies(decisions: DatasetReader, named: Mapping[int, str | None]) -> dict[int, int]:
    """The duplicates that were removed in favour of documents of `named`, with the document that stayed."""
    kept = np.fromiter(named, np.uint64, len(named)) if named else _NO_IDS
    found: dict[int, int] = {}
    for batch in decisions.batches(columns=["url_id", "kept_url_id"], rows=1 << 16):
        mine = batch.filter(pa.array(np.isin(batch["kept_url_id"].to_numpy(), kept)))
        found |= dict(zip(mine["url_id"].to_pylist(), mine["kept_url_id"].to_pylist(), strict=True))
    return {key: stays for key, stays in found.items() if key not in named}


def _urls(batch: pa.RecordBatch, rows: list[int]) -> dict[int, str | None]:
    return {batch["url_id"][row].as_py(): batch["url"][row].as_py() for row in rows}
