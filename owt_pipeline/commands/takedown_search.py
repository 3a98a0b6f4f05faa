"""What a request to forget concerns: the documents that it names, copies of their texts, and what
the list of takedowns keeps of each.

1. Find the named documents by their ids and URLs.
2. Add what deduplication found to repeat them.
3. Take the fingerprints of their texts from whichever folder still has them.
4. Search all texts for further copies, and record which files were searched.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Container, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, NamedTuple

import msgspec
import numpy as np
import pyarrow as pa

from owt_pipeline import progress
from owt_pipeline.formats.fingerprint import fingerprints
from owt_pipeline.formats.forgotten_texts import (
    ForgottenTexts,
    is_outdated,
    write_forgotten,
)
from owt_pipeline.formats.takedowns import (
    Resolution,
    Takedown,
    Takedowns,
    digest_of_shard,
    domain_detail,
)
from owt_pipeline.ledger.dataset import DatasetReader
from owt_pipeline.storage.folder import Storage
from schemas.manifest import ShardFile


@dataclass(frozen=True)
class Resolved:
    """A request, looked up.

    Attributes:
      takedowns: the entries for the list: the request, the documents of its domains, and copies.
      fingerprint_by_id: fingerprints of the texts that are to be recognised.
      scanned: digest of each file of clean/ that was searched for copies, by shard.
      in_corpus: number of documents that leave the corpus.
      copies: number of duplicates that are not in the corpus, and are forgotten with them.
      unknown: entries that name no document.
      stay: ids of documents with the same text that are not removed.
      without_text: documents whose text is in no folder any more.
    """

    takedowns: Takedowns
    fingerprint_by_id: dict[int, Any]
    scanned: dict[int, str]
    in_corpus: int
    copies: int
    unknown: list[str]
    stay: list[str]
    without_text: list[str]


def with_resolution(workdir: Storage, before: Takedowns, resolved: Resolved) -> Takedowns:
    """Return the list with what a search has found; the same list if it found nothing new.

    Writes the fingerprints of the texts.
    """
    stale = _stale_ids(workdir, before)
    number = len(before.resolutions)
    new_ids = {
        key: msgspec.structs.replace(entry, resolution=number)
        for key, entry in resolved.takedowns.ids.items()
        if key not in before.ids or key in stale
    }
    resolved_domains = before.resolved_domains.keys()
    new_domains = dict.fromkeys(resolved.takedowns.domains.keys() - resolved_domains, number)
    if not new_ids and not new_domains:
        return before
    new_texts = {key: text for key, text in resolved.fingerprint_by_id.items() if key in new_ids}
    texts = write_forgotten(workdir, new_texts)
    sha256 = hashlib.sha256(workdir.read(texts)).hexdigest() if texts else ""
    scans = list(before.scans)
    if resolved.scanned not in scans:
        scans.append(resolved.scanned)
    # Documents whose fingerprints are outdated were searched anew.
    resolutions = [
        resolution
        if not resolution.texts or not is_outdated(workdir, resolution.texts)
        else msgspec.structs.replace(resolution, texts="", sha256="")
        for resolution in before.resolutions
    ]
    resolution = Resolution(scans.index(resolved.scanned), texts, sha256)
    return Takedowns(
        {**before.ids, **new_ids},
        {**resolved.takedowns.domains, **before.domains},
        {**new_domains, **before.resolved_domains},
        [*resolutions, resolution],
        scans,
    )


def _stale_ids(workdir: Storage, takedowns: Takedowns) -> set[int]:
    """Return the documents of the list that no resolution of this release has searched for."""
    outdated = {
        number
        for number, resolution in enumerate(takedowns.resolutions)
        if resolution.texts and is_outdated(workdir, resolution.texts)
    }
    return {
        key
        for key, entry in takedowns.ids.items()
        if entry.resolution is None or entry.resolution in outdated
    }


TEXTS_IN = ("clean", "corpus", "documents")


class _Document(NamedTuple):
    """A document of the run: its URL and its shard."""

    url: str | None
    shard: int


def resolve(
    request: Takedowns,
    before: Takedowns,
    workdir: Storage,
    readers: Mapping[str, DatasetReader],
    workers: int = 1,
) -> Resolved:
    """Return what `request` removes from a run, with the copies of what it names.

    Copies are what deduplication found, and every text of `clean/`, or else `corpus/`, that repeats
    a named one. Were one left off the list, other options could bring the text back under its URL.
    Entries of the list `before` without a resolution, and new documents of its domains, are looked
    up with them.
    """
    stale = {key: before.ids[key] for key in _stale_ids(workdir, before)}
    wanted = Takedowns({**stale, **request.ids}, {**before.domains, **request.domains})
    named = _documents(readers, wanted)
    copies = _copies(readers, named, wanted.ids)
    entries = _entries(wanted, named)
    for key, other in copies.of.items():
        entries[key] = Takedown(None, _repeats(other, named))
    urls = _documents(readers, Takedowns(entries))
    for key, document in urls.items():
        entries[key] = msgspec.structs.replace(
            entries[key], url=entries[key].url or document.url, shard=document.shard
        )
    found_texts = _texts(readers, entries)
    stay = set(copies.stay)
    scan = _scan(readers, found_texts, set(entries), workers)
    removed = _removed(readers, [copy.url_id for copy in scan.copies])
    for copy in scan.copies:
        others = [other for other in copy.of if other in wanted.ids or other in copies.of]
        if others:
            detail = _repeats(others[0], urls)
            entries[copy.url_id] = Takedown(copy.url, detail, copy.shard)
            continue
        # It may be the original of which the domain had a copy.
        if copy.url_id not in removed:
            stay.add(copy.url_id)
        for other in copy.of:
            found_texts.pop(other, None)
    stay -= entries.keys()
    takedowns = Takedowns(entries, wanted.domains)
    # What the list has already forgotten is in the corpus only if it was not made again since.
    in_corpus = _held(readers, "corpus", takedowns)
    hosts = {wanted.domain_of(document.url) for document in named.values() if document.url}
    unknown = [entry.url or str(key) for key, entry in request.ids.items() if key not in named]
    unknown += [domain for domain in request.domains if domain not in hosts]
    num_copies = len((entries.keys() - named.keys()) - in_corpus.keys())
    without_text = [
        entries[key].url or str(key) for key in named if key in entries and key not in scan.texts
    ]
    return Resolved(
        takedowns,
        found_texts,
        scan.scanned,
        len(in_corpus),
        num_copies,
        unknown,
        [str(key) for key in sorted(stay)],
        without_text,
    )


def _entries(wanted: Takedowns, named: Mapping[int, _Document]) -> dict[int, Takedown]:
    """Return the entries of the ids that are wanted, and of the documents of its domains."""
    entries = {key: Takedown(entry.url, entry.detail) for key, entry in wanted.ids.items()}
    for key, document in named.items():
        if key in entries or document.url is None:
            continue
        domain = wanted.domain_of(document.url)
        if domain is not None:
            detail = domain_detail(domain, wanted.domains[domain])
            entries[key] = Takedown(document.url, detail)
    return entries


def _repeats(key: int, documents: Mapping[int, _Document]) -> str:
    """Return the detail of a takedown for a copy of the document `key`."""
    url = documents[key].url if key in documents else None
    return f"repeats {url or key}, which was taken down"


def _texts(readers: Mapping[str, DatasetReader], entries: Mapping[int, Takedown]) -> dict[int, Any]:
    """Return the fingerprints of the documents on a list, wherever their texts are left."""
    found: dict[int, Any] = {}
    for name in TEXTS_IN:
        missing = np.array(sorted(entries.keys() - found.keys()), np.uint64)
        if name not in readers or not len(missing):
            continue
        shards = {entries[int(key)].shard for key in missing}
        for shard in range(readers[name].num_shards):
            if None not in shards and shard not in shards:
                continue
            for batch in _batches(readers[name], shard, ["url_id", "text"]):
                wanted = np.isin(batch["url_id"].to_numpy(), missing)
                rows = batch.filter(pa.array(wanted))
                pairs = zip(rows["url_id"].to_pylist(), fingerprints(rows["text"]), strict=True)
                found.update(pairs)
    return found


class _Copy(NamedTuple):
    """A document whose text repeats those of the listed documents `of`."""

    url_id: int
    url: str | None
    shard: int
    of: list[int]


class _Scan(NamedTuple):
    """What a search of all texts has found, the files that it has searched (as in `Resolved`),
    and the documents whose texts were known."""

    copies: list[_Copy]
    scanned: dict[int, str]
    texts: set[int]


def _scan(
    readers: Mapping[str, DatasetReader],
    fingerprint_by_id: Mapping[int, Any],
    listed: Collection[int],
    workers: int,
) -> _Scan:
    """Search the texts of the run for copies of forgotten ones, shard by shard.

    Where the file of clean/ is lost, corpus/ is searched; since that lacks what deduplication
    removed, the shard does not count as searched.
    """
    texts = ForgottenTexts.of(dict(fingerprint_by_id))
    known = np.array(sorted(listed), np.uint64)
    clean, corpus = readers.get("clean"), readers.get("corpus")
    num_shards = max((reader.num_shards for reader in (clean, corpus) if reader), default=0)

    scanned = {}
    if clean is not None:
        listed_files = DatasetReader(clean.workdir, clean.manifest)
        for shard in range(clean.num_shards):
            if len(_files(clean, shard)) == len(listed_files.files("data", shard)) > 0:
                scanned[shard] = digest_of_shard(listed_files, shard)

    def search(shard: int) -> list[_Copy]:
        reader = clean if shard in scanned else corpus
        if reader is None:
            return []
        copies = []
        for batch in _batches(reader, shard, ["url_id", "url", "text"]):
            others = batch.filter(pa.array(~np.isin(batch["url_id"].to_numpy(), known)))
            for match in texts.matches(others["text"]):
                key, url = others["url_id"][match.row].as_py(), others["url"][match.row].as_py()
                copies.append(_Copy(key, url, shard, match.url_ids))
            progress.advance(batch.num_rows)
        progress.shard_done()
        return copies

    with (
        progress.step("forget", shards=num_shards),
        ThreadPoolExecutor(max(workers, 1)) as threads,
    ):
        copies = [copy for found in threads.map(search, range(num_shards)) for copy in found]
    return _Scan(copies, scanned, set(fingerprint_by_id))


class _Copies(NamedTuple):
    """Documents of the run with the text of a named one, which is the value; and those that
    stay."""

    of: dict[int, int]
    stay: set[int]


def _copies(
    readers: Mapping[str, DatasetReader], named: Collection[int], ids: Container[int]
) -> _Copies:
    """Return the documents that deduplication found to have the text of one of `named`.

    What it kept in place of one goes with it if that one is named by its URL or id (`ids`). For a
    domain it stays: it may be the original of which the domain had a copy.
    """
    if "duplicates" not in readers or not named:
        return _Copies({}, set())
    decisions = readers["duplicates"]
    kept = {key: key for key in named}
    stay: set[int] = set()
    for row in _decisions(decisions, "url_id", named):
        key = row["kept_url_id"]
        if key in named:
            continue
        if row["url_id"] in ids:
            kept[key] = min(row["url_id"], kept.get(key, row["url_id"]))
        else:
            stay.add(key)
    same_text = dict(kept)
    for row in _decisions(decisions, "kept_url_id", kept):
        same_text[row["url_id"]] = kept[row["kept_url_id"]]
    of = {key: other for key, other in same_text.items() if key not in named}
    return _Copies(of, stay - same_text.keys())


def _removed(readers: Mapping[str, DatasetReader], ids: Collection[int]) -> set[int]:
    """Return those of some documents that deduplication removed."""
    if "duplicates" not in readers or not ids:
        return set()
    return {row["url_id"] for row in _decisions(readers["duplicates"], "url_id", ids)}


def _decisions(
    decisions: DatasetReader, column: str, ids: Iterable[int]
) -> Iterator[dict[str, Any]]:
    """Yield the decisions that have one of `ids` in `column`."""
    wanted = np.fromiter(ids, np.uint64)
    for batch in decisions.batches(columns=["url_id", "kept_url_id", "kept_shard"], rows=1 << 16):
        yield from batch.filter(pa.array(np.isin(batch[column].to_numpy(), wanted))).to_pylist()


def _files(reader: DatasetReader, shard: int | None, kind: str = "data") -> list[ShardFile]:
    """Return the files of a shard, or of all, that are left, even if others are lost."""
    files = reader.table_of_files.of_kind(kind, shard)
    return [file for file in files if file.path not in reader.lost]


def _batches(reader: DatasetReader, shard: int, columns: list[str]) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a shard's files that are left."""
    for file in _files(reader, shard):
        yield from reader.batches_of(file, columns=columns, rows=1024)


def _documents(readers: Mapping[str, DatasetReader], wanted: Takedowns) -> dict[int, _Document]:
    """Return the documents on a list, from clean/ or else corpus/ and its rejects, which have
    them, too."""
    found = _held(readers, "clean", wanted)
    for kind in ("rejects", "data"):
        found = {**_held(readers, "corpus", wanted, kind), **found}
    return found


def _held(
    readers: Mapping[str, DatasetReader], dataset: str, wanted: Takedowns, kind: str = "data"
) -> dict[int, _Document]:
    """Return the documents of a dataset that are on a list."""
    found: dict[int, _Document] = {}
    if dataset not in readers:
        return found
    reader = readers[dataset]
    for file in _files(reader, None, kind):
        for batch in reader.batches_of(file, columns=["url_id", "url"], rows=1 << 16):
            for row, _ in wanted.of(batch["url_id"].to_numpy(), batch["url"]):
                document = _Document(batch["url"][row].as_py(), file.shard)
                found[batch["url_id"][row].as_py()] = document
    return found
