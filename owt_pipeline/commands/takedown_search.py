"""Find the documents that a request to forget removes: those that it names, and their copies.

1. Find the named documents by their ids and URLs.
2. Add the documents that deduplication found to repeat them.
3. Take the fingerprints of their texts from the first folder that still has them.
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

TEXTS_IN = ("clean", "corpus", "documents")
"""Datasets that may still have a document's text, in the order in which they are tried."""


@dataclass(frozen=True)
class Resolved:
    """The result of looking up a request in a run.

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


def with_resolution(workdir: Storage, listed: Takedowns, resolved: Resolved) -> Takedowns:
    """Return the list of takedowns with the results of a search.

    Returns the same list if the search found nothing new. Writes the fingerprints of the texts.
    """
    stale = _stale_ids(workdir, listed)
    number = len(listed.resolutions)
    new_ids = {
        key: msgspec.structs.replace(entry, resolution=number)
        for key, entry in resolved.takedowns.ids.items()
        if key not in listed.ids or key in stale
    }
    unresolved_domains = resolved.takedowns.domains.keys() - listed.resolved_domains.keys()
    new_domains = dict.fromkeys(unresolved_domains, number)
    if not new_ids and not new_domains:
        return listed
    new_texts = {key: text for key, text in resolved.fingerprint_by_id.items() if key in new_ids}
    texts_path = write_forgotten(workdir, new_texts)
    sha256 = ""
    if texts_path:
        sha256 = hashlib.sha256(workdir.read(texts_path)).hexdigest()
    scans = list(listed.scans)
    # Resolutions that searched the same files share one list of digests.
    if resolved.scanned not in scans:
        scans.append(resolved.scanned)
    resolutions = []
    for resolution in listed.resolutions:
        if _has_outdated_texts(workdir, resolution):
            # Its documents were searched again, and belong to the new resolution.
            resolution = msgspec.structs.replace(resolution, texts="", sha256="")
        resolutions.append(resolution)
    resolutions.append(Resolution(scans.index(resolved.scanned), texts_path, sha256))
    return Takedowns(
        {**listed.ids, **new_ids},
        {**resolved.takedowns.domains, **listed.domains},
        {**new_domains, **listed.resolved_domains},
        resolutions,
        scans,
    )


def _stale_ids(workdir: Storage, takedowns: Takedowns) -> set[int]:
    """Return the documents of the list that no resolution of this release has searched for."""
    outdated = {
        number
        for number, resolution in enumerate(takedowns.resolutions)
        if _has_outdated_texts(workdir, resolution)
    }
    return {
        key
        for key, entry in takedowns.ids.items()
        if entry.resolution is None or entry.resolution in outdated
    }


def _has_outdated_texts(workdir: Storage, resolution: Resolution) -> bool:
    """Return whether an earlier release wrote a resolution's fingerprints in another way."""
    return bool(resolution.texts) and is_outdated(workdir, resolution.texts)


class _Document(NamedTuple):
    """A document of the run: its URL and its shard."""

    url: str | None
    shard: int


def resolve(
    request: Takedowns,
    listed: Takedowns,
    workdir: Storage,
    readers: Mapping[str, DatasetReader],
    workers: int = 1,
) -> Resolved:
    """Return the documents that `request` removes from a run, with their copies.

    A copy is a document that deduplication found to repeat a named one, or any text of `clean/`
    that repeats one. Where `clean/` is lost, `corpus/` is searched. Were a copy left off the list,
    other options could bring the text back under its URL.

    Entries of the run's list `listed` without a resolution are looked up with the request, and so
    are new documents of its domains.
    """
    stale = {key: listed.ids[key] for key in _stale_ids(workdir, listed)}
    requested = Takedowns({**stale, **request.ids}, {**listed.domains, **request.domains})
    named = _documents(readers, requested)
    duplicates = _duplicates(readers, named, requested.ids)
    entries = _entries(requested, named)
    for key, original in duplicates.original_by_id.items():
        entries[key] = Takedown(None, _repeats(original, named))
    located = _documents(readers, Takedowns(entries))
    for key, document in located.items():
        entry = entries[key]
        entries[key] = msgspec.structs.replace(
            entry, url=entry.url or document.url, shard=document.shard
        )

    fingerprint_by_id = _fingerprints_of(readers, entries)
    scan = _scan(readers, fingerprint_by_id, set(entries), workers)
    removed = _removed(readers, [copy.url_id for copy in scan.copies])
    stay = set(duplicates.stay)
    for copy in scan.copies:
        originals = []
        for original in copy.originals:
            if original in requested.ids or original in duplicates.original_by_id:
                originals.append(original)
        if originals:
            detail = _repeats(originals[0], located)
            entries[copy.url_id] = Takedown(copy.url, detail, copy.shard)
            continue
        # This document may be the original, and the one of the domain its copy.
        if copy.url_id not in removed:
            stay.add(copy.url_id)
        # By the fingerprint, later runs would reject this document, too.
        for original in copy.originals:
            fingerprint_by_id.pop(original, None)
    stay -= entries.keys()

    takedowns = Takedowns(entries, requested.domains)
    # Documents on the list are still in a corpus that was built before they were listed.
    in_corpus = _documents_of(readers, "corpus", takedowns)
    # A requested id without a document is on the list too, and is no copy.
    copies = entries.keys() - named.keys() - requested.ids.keys()
    copies_outside_corpus = copies - in_corpus.keys()
    without_text = []
    for key in named:
        if key in entries and key not in scan.known_ids:
            without_text.append(entries[key].url or str(key))
    return Resolved(
        takedowns=takedowns,
        fingerprint_by_id=fingerprint_by_id,
        scanned=scan.scanned,
        in_corpus=len(in_corpus),
        copies=len(copies_outside_corpus),
        unknown=_unknown_entries(request, requested, named),
        stay=[str(key) for key in sorted(stay)],
        without_text=without_text,
    )


def _unknown_entries(
    request: Takedowns, requested: Takedowns, named: Mapping[int, _Document]
) -> list[str]:
    """Return the URLs, ids and domains of a request that name no document of the run."""
    domains = {requested.domain_of(document.url) for document in named.values() if document.url}
    unknown = [entry.url or str(key) for key, entry in request.ids.items() if key not in named]
    unknown += [domain for domain in request.domains if domain not in domains]
    return unknown


def _entries(requested: Takedowns, named: Mapping[int, _Document]) -> dict[int, Takedown]:
    """Return the entries of the requested ids, and of the documents of the requested domains."""
    entries = {key: Takedown(entry.url, entry.detail) for key, entry in requested.ids.items()}
    for key, document in named.items():
        if key in entries or document.url is None:
            continue
        domain = requested.domain_of(document.url)
        if domain is not None:
            detail = domain_detail(domain, requested.domains[domain])
            entries[key] = Takedown(document.url, detail)
    return entries


def _repeats(key: int, documents: Mapping[int, _Document]) -> str:
    """Return the detail of a takedown for a copy of the document `key`."""
    url = documents[key].url if key in documents else None
    return f"repeats {url or key}, which was taken down"


def _fingerprints_of(
    readers: Mapping[str, DatasetReader], entries: Mapping[int, Takedown]
) -> dict[int, Any]:
    """Return the fingerprints of the documents on a list, from the first dataset with the text."""
    fingerprint_by_id: dict[int, Any] = {}
    for name in TEXTS_IN:
        missing = np.array(sorted(entries.keys() - fingerprint_by_id.keys()), np.uint64)
        if name not in readers or not len(missing):
            continue
        shards = {entries[int(key)].shard for key in missing}
        for shard in range(readers[name].num_shards):
            # An entry without a shard may be in any.
            if None not in shards and shard not in shards:
                continue
            for batch in _batches(readers[name], shard, ["url_id", "text"]):
                is_missing = np.isin(batch["url_id"].to_numpy(), missing)
                rows = batch.filter(pa.array(is_missing))
                ids = rows["url_id"].to_pylist()
                fingerprint_by_id.update(zip(ids, fingerprints(rows["text"]), strict=True))
    return fingerprint_by_id


class _Copy(NamedTuple):
    """A document whose text repeats the texts of the listed documents `originals`."""

    url_id: int
    url: str | None
    shard: int
    originals: list[int]


@dataclass(frozen=True)
class _Scan:
    """The result of a search of all texts.

    Attributes:
      copies: the documents that repeat a listed one, in the order of the shards.
      scanned: digest of each file of clean/ that was searched, by shard.
      known_ids: ids of the listed documents whose texts were known.
    """

    copies: list[_Copy]
    scanned: dict[int, str]
    known_ids: set[int]


def _scan(
    readers: Mapping[str, DatasetReader],
    fingerprint_by_id: Mapping[int, Any],
    listed_ids: Collection[int],
    workers: int,
) -> _Scan:
    """Search the texts of the run for copies of forgotten texts, shard by shard.

    Where the file of clean/ is lost, corpus/ is searched. It lacks the documents that deduplication
    removed, so the shard does not count as searched.
    """
    texts = ForgottenTexts.of(dict(fingerprint_by_id))
    sorted_ids = np.array(sorted(listed_ids), np.uint64)
    clean = readers.get("clean")
    corpus = readers.get("corpus")
    num_shards = max((reader.num_shards for reader in (clean, corpus) if reader), default=0)
    scanned = {} if clean is None else _digests_of_complete_shards(clean)

    def search(shard: int) -> list[_Copy]:
        reader = clean if shard in scanned else corpus
        if reader is None:
            return []
        copies = []
        for batch in _batches(reader, shard, ["url_id", "url", "text"]):
            # Listed documents are removed by their ids, so only the others are compared.
            is_listed = np.isin(batch["url_id"].to_numpy(), sorted_ids)
            unlisted = batch.filter(pa.array(~is_listed))
            for match in texts.matches(unlisted["text"]):
                url_id = unlisted["url_id"][match.row].as_py()
                url = unlisted["url"][match.row].as_py()
                copies.append(_Copy(url_id, url, shard, match.url_ids))
            progress.advance(batch.num_rows)
        progress.shard_done()
        return copies

    copies: list[_Copy] = []
    with (
        progress.step("forget", shards=num_shards),
        ThreadPoolExecutor(max(workers, 1)) as threads,
    ):
        for copies_of_shard in threads.map(search, range(num_shards)):
            copies += copies_of_shard
    return _Scan(copies, scanned, set(fingerprint_by_id))


def _digests_of_complete_shards(clean: DatasetReader) -> dict[int, str]:
    """Return the digest of each shard of clean/ that has all its files."""
    listed_files = DatasetReader(clean.workdir, clean.manifest)
    digests = {}
    for shard in range(clean.num_shards):
        num_listed = len(listed_files.files("data", shard))
        if len(_surviving_files(clean, shard)) == num_listed > 0:
            digests[shard] = digest_of_shard(listed_files, shard)
    return digests


@dataclass(frozen=True)
class _Duplicates:
    """Documents that deduplication found to have the text of a named one.

    Attributes:
      original_by_id: the named document that each one repeats.
      stay: ids of documents that are not removed.
    """

    original_by_id: dict[int, int]
    stay: set[int]


def _duplicates(
    readers: Mapping[str, DatasetReader], named: Collection[int], ids: Container[int]
) -> _Duplicates:
    """Return the documents that deduplication found to have the text of one of `named`.

    The document that it kept in place of a named one is removed if that one is named by its URL or
    id (`ids`). If a domain names it, the kept document stays: the domain may have copied it.
    """
    if "duplicates" not in readers or not named:
        return _Duplicates({}, set())
    decisions = readers["duplicates"]
    original_by_kept = {key: key for key in named}
    stay: set[int] = set()
    for decision in _decisions(decisions, "url_id", named):
        kept = decision["kept_url_id"]
        if kept in named:
            continue
        if decision["url_id"] in ids:
            original = original_by_kept.get(kept, decision["url_id"])
            original_by_kept[kept] = min(decision["url_id"], original)
        else:
            stay.add(kept)
    same_text = dict(original_by_kept)
    for decision in _decisions(decisions, "kept_url_id", original_by_kept):
        same_text[decision["url_id"]] = original_by_kept[decision["kept_url_id"]]
    original_by_id = {key: original for key, original in same_text.items() if key not in named}
    return _Duplicates(original_by_id, stay - same_text.keys())


def _removed(readers: Mapping[str, DatasetReader], ids: Collection[int]) -> set[int]:
    """Return the documents among `ids` that deduplication removed."""
    if "duplicates" not in readers or not ids:
        return set()
    return {decision["url_id"] for decision in _decisions(readers["duplicates"], "url_id", ids)}


def _decisions(
    decisions: DatasetReader, column: str, ids: Iterable[int]
) -> Iterator[dict[str, Any]]:
    """Yield the decisions that have one of `ids` in `column`."""
    id_array = np.fromiter(ids, np.uint64)
    for batch in decisions.batches(columns=["url_id", "kept_url_id", "kept_shard"], rows=1 << 16):
        has_id = np.isin(batch[column].to_numpy(), id_array)
        yield from batch.filter(pa.array(has_id)).to_pylist()


def _surviving_files(
    reader: DatasetReader, shard: int | None, kind: str = "data"
) -> list[ShardFile]:
    """Return the files of a shard, or of all shards, that are not lost.

    Unlike `DatasetReader.files`, this returns some files of a dataset that has lost others.
    """
    files = reader.table_of_files.of_kind(kind, shard)
    return [file for file in files if file.path not in reader.lost]


def _batches(reader: DatasetReader, shard: int, columns: list[str]) -> Iterator[pa.RecordBatch]:
    """Yield the rows of the files of a shard that are not lost."""
    for file in _surviving_files(reader, shard):
        yield from reader.batches_of(file, columns=columns, rows=1024)


def _documents(readers: Mapping[str, DatasetReader], takedowns: Takedowns) -> dict[int, _Document]:
    """Return the documents on a list, from clean/ and from corpus/ and its rejects.

    A document that export left out, such as one that was forgotten before, is in the rejects.
    """
    documents = _documents_of(readers, "clean", takedowns)
    for kind in ("rejects", "data"):
        documents = {**_documents_of(readers, "corpus", takedowns, kind), **documents}
    return documents


def _documents_of(
    readers: Mapping[str, DatasetReader], dataset: str, takedowns: Takedowns, kind: str = "data"
) -> dict[int, _Document]:
    """Return the documents of a dataset that are on a list."""
    documents: dict[int, _Document] = {}
    if dataset not in readers:
        return documents
    reader = readers[dataset]
    for file in _surviving_files(reader, None, kind):
        for batch in reader.batches_of(file, columns=["url_id", "url"], rows=1 << 16):
            for row, _ in takedowns.rows_to_forget(batch["url_id"].to_numpy(), batch["url"]):
                url_id = batch["url_id"][row].as_py()
                documents[url_id] = _Document(batch["url"][row].as_py(), file.shard)
    return documents
