"""Find the documents that a request to forget removes: those that it names, and their duplicates.

1. Find the named documents by their ids, URLs and domains.
2. Add the documents that deduplication found to have the same text.
3. Take the fingerprints of their texts from the first folder that still has them.
4. Compare the documents of corpus/ with these texts, to count the copies that export will remove,
   and to keep documents of other sites that a named domain has copied.
"""

from __future__ import annotations

from collections.abc import Collection, Container, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from owt_pipeline import progress
from owt_pipeline.engine.takedowns import (
    Fingerprint,
    Takedown,
    Takedowns,
    domain_detail,
    fingerprints,
)
from owt_pipeline.ledger.dataset import DatasetReader
from owt_pipeline.stages.export.forgotten_texts import ForgottenTexts
from schemas.manifest import ShardFile

TEXTS_IN = ("clean", "corpus", "documents")
"""Datasets that may still have a document's text, in the order in which they are tried."""


@dataclass(frozen=True)
class Found:
    """The documents that a request removes from a run.

    Attributes:
      takedowns: the request, the documents of its domains, and their duplicates.
      in_corpus: number of documents that leave the corpus.
      duplicates: number of duplicates that are not in the corpus.
      unknown: entries that name no document.
      stay: ids of documents with the same text that are not removed.
      without_text: documents whose text is in no folder any more.
    """

    takedowns: list[Takedown]
    in_corpus: int
    duplicates: int
    unknown: list[str]
    stay: list[str]
    without_text: list[str]


class _Document(NamedTuple):
    """A document of the run: its URL and its shard."""

    url: str | None
    shard: int


def find_documents(
    request: Sequence[Takedown],
    listed: Takedowns,
    readers: Mapping[str, DatasetReader],
    workers: int = 1,
) -> Found:
    """Return the documents that a request removes from a run with the takedowns `listed`.

    Duplicates of a named document are listed with it. Otherwise one of them could take its place
    under other options of deduplication. Copies that only their texts show are counted here, and
    export finds them by the fingerprints.
    """
    requested = Takedowns({"": request})
    named = _documents(readers, requested)
    duplicates = _duplicates(readers, named, requested.detail_by_id)
    entries = _entries(request, requested, named, duplicates)
    located = _documents(readers, Takedowns({"": list(entries.values())}))
    # A text that no folder has any more may be known from an earlier request.
    text_by_id = {**listed.text_by_id, **_texts_of(readers, entries.keys(), located)}
    without_text = []
    for key in sorted(named.keys() - text_by_id.keys()):
        without_text.append(entries[key].url or str(key))
    takedowns = [row for row in request if row.domain is not None]
    for key, row in entries.items():
        url = located[key].url if key in located else None
        takedowns.append(row._replace(url=row.url or url, text=text_by_id.get(key)))
    domain_ids = named.keys() - requested.detail_by_id.keys()
    copies = _copies_in_corpus(readers, takedowns, listed, domain_ids, workers)
    # By these fingerprints, export would remove documents of other sites.
    repeat_others = duplicates.repeat_others | copies.repeat_others
    in_corpus = _documents_of(readers, "corpus", Takedowns({"": takedowns})).keys()
    # A requested id without a document is on the list too, and is no duplicate.
    outside_corpus = entries.keys() - named.keys() - requested.detail_by_id.keys() - in_corpus
    return Found(
        takedowns=[_without_text(row, repeat_others) for row in takedowns],
        in_corpus=len(in_corpus) + copies.num_removed,
        duplicates=len(outside_corpus),
        unknown=_unknown_entries(request, requested, named),
        stay=[str(key) for key in sorted(duplicates.stay | copies.stay)],
        without_text=without_text,
    )


def _without_text(row: Takedown, ids: Container[int | None]) -> Takedown:
    """Return a takedown, without its text if its id is among `ids`."""
    return row._replace(text=None) if row.url_id in ids else row


def _unknown_entries(
    request: Sequence[Takedown], requested: Takedowns, named: Mapping[int, _Document]
) -> list[str]:
    """Return the URLs, ids and domains of a request that name no document of the run."""
    domains = {requested.domain_of(document.url) for document in named.values() if document.url}
    unknown = []
    for row in request:
        is_known = row.domain in domains if row.url_id is None else row.url_id in named
        if not is_known:
            unknown.append(row.url or row.domain or str(row.url_id))
    return unknown


def _entries(
    request: Sequence[Takedown],
    requested: Takedowns,
    named: Mapping[int, _Document],
    duplicates: _Duplicates,
) -> dict[int, Takedown]:
    """Return the takedown of each requested id, document of a requested domain, and duplicate."""
    entries = {row.url_id: row for row in request if row.url_id is not None}
    for key, document in named.items():
        domain = requested.domain_of(document.url or "")
        if key not in entries and domain is not None:
            detail = domain_detail(domain, requested.detail_by_domain[domain])
            entries[key] = Takedown(key, document.url, None, detail)
    for key, original in duplicates.original_by_id.items():
        detail = f"repeats {named[original].url or original}, which was taken down"
        entries[key] = Takedown(key, None, None, detail)
    return entries


def _texts_of(
    readers: Mapping[str, DatasetReader], ids: Collection[int], located: Mapping[int, _Document]
) -> dict[int, Fingerprint]:
    """Return the fingerprints of documents, from the first dataset that has the text."""
    text_by_id: dict[int, Fingerprint] = {}
    for name in TEXTS_IN:
        missing_ids = set(ids) - text_by_id.keys()
        if name != "documents":
            missing_ids &= located.keys()
        if name not in readers or not missing_ids:
            continue
        missing = np.array(sorted(missing_ids), np.uint64)
        shards: Iterable[int] = {located[key].shard for key in missing_ids & located.keys()}
        if not missing_ids <= located.keys():
            # A document that clean has rejected may be in any shard of documents/.
            shards = range(readers[name].num_shards)
        for shard in sorted(shards):
            for batch in _batches(readers[name], shard, ["url_id", "text"]):
                is_missing = np.isin(batch["url_id"].to_numpy(), missing)
                rows = batch.filter(pa.array(is_missing))
                texts = fingerprints(rows["text"])
                text_by_id.update(zip(rows["url_id"].to_pylist(), texts, strict=True))
    return text_by_id


@dataclass(frozen=True)
class _Copies:
    """Documents of the corpus that repeat a text of a request, and that it does not list.

    Attributes:
      num_removed: number of documents that export will remove.
      stay: ids of documents that repeat only documents of a domain. Such a document may be the
        original, and the one of the domain its copy.
      repeat_others: ids of these documents of a domain.
    """

    num_removed: int = 0
    stay: set[int] = field(default_factory=set)
    repeat_others: set[int] = field(default_factory=set)


def _copies_in_corpus(
    readers: Mapping[str, DatasetReader],
    takedowns: Sequence[Takedown],
    listed: Takedowns,
    domain_ids: Collection[int],
    workers: int,
) -> _Copies:
    """Return the documents of the corpus that repeat a text of `takedowns`.

    `listed` are earlier takedowns, and `domain_ids` the documents that only a domain names.
    """
    known = Takedowns({**listed.rows_by_name, "": takedowns})
    text_by_id: dict[int, Fingerprint] = {}
    for row in takedowns:
        if row.url_id is not None and row.text is not None:
            text_by_id[row.url_id] = row.text
    ids = list(text_by_id)
    texts = ForgottenTexts(list(text_by_id.values()))
    corpus = readers.get("corpus")
    num_shards = corpus.num_shards if corpus is not None and ids else 0

    def search(shard: int) -> list[tuple[int, set[int]]]:
        assert corpus is not None
        copies = []
        for batch in _batches(corpus, shard, ["url_id", "url", "text"]):
            url_ids = batch["url_id"].to_numpy()
            rows = [row for row, _ in known.rows_to_forget(url_ids, batch["url"])]
            unlisted = batch.take(np.setdiff1d(np.arange(batch.num_rows), rows))
            for match in texts.matches(unlisted["text"]):
                originals = {ids[position] for position in match.positions}
                copies.append((unlisted["url_id"][match.row].as_py(), originals))
            progress.advance(batch.num_rows)
        progress.shard_done()
        return copies

    num_removed = 0
    stay: set[int] = set()
    repeat_others: set[int] = set()
    with (
        progress.step("forget", shards=num_shards),
        ThreadPoolExecutor(max(workers, 1)) as threads,
    ):
        for copies in threads.map(search, range(num_shards)):
            for url_id, originals in copies:
                if originals <= set(domain_ids):
                    stay.add(url_id)
                    repeat_others |= originals
                else:
                    num_removed += 1
    return _Copies(num_removed, stay, repeat_others)


@dataclass(frozen=True)
class _Duplicates:
    """Documents that deduplication found to have the text of a named one.

    Attributes:
      original_by_id: the named document that each one repeats.
      stay: ids of documents that are not removed.
      repeat_others: ids of the named documents that repeat one of `stay`.
    """

    original_by_id: dict[int, int] = field(default_factory=dict)
    stay: set[int] = field(default_factory=set)
    repeat_others: set[int] = field(default_factory=set)


def _duplicates(
    readers: Mapping[str, DatasetReader], named: Collection[int], ids: Container[int]
) -> _Duplicates:
    """Return the documents that deduplication found to have the text of one of `named`.

    The document that it kept in place of a named one is removed if that one is named by its URL or
    id (`ids`). If a domain names it, the kept document stays: the domain may have copied it.
    """
    if "duplicates" not in readers or not named:
        return _Duplicates()
    decisions = readers["duplicates"]
    original_by_kept = {key: key for key in named}
    kept_by_copy: dict[int, int] = {}
    for decision in _decisions(decisions, "url_id", named):
        kept = decision["kept_url_id"]
        if kept in named:
            continue
        if decision["url_id"] in ids:
            original = original_by_kept.get(kept, decision["url_id"])
            original_by_kept[kept] = min(decision["url_id"], original)
        else:
            kept_by_copy[decision["url_id"]] = kept
    same_text = dict(original_by_kept)
    for decision in _decisions(decisions, "kept_url_id", original_by_kept):
        same_text[decision["url_id"]] = original_by_kept[decision["kept_url_id"]]
    original_by_id = {key: original for key, original in same_text.items() if key not in named}
    repeat_others = {copy for copy, kept in kept_by_copy.items() if kept not in same_text}
    stay = {kept_by_copy[copy] for copy in repeat_others}
    return _Duplicates(original_by_id, stay, repeat_others)


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
