"""The list of documents that a run must forget: a file in its ledger, named by its content.

    ledger/takedowns-1f2e3d4c.jsonl             URLs, ids and domains, and how each was resolved
    ledger/forgotten-5a6b7c8d.parquet           fingerprints of the forgotten texts, without texts
    ledger/*.copy                               a copy of either, in case it is damaged or deleted

The root manifest has the path of the list.

`owt forget` resolves entries: it looks for the documents that they name and for copies of their
texts, and records the shards in which these are, and the files that it has searched. A shard made
from a searched file is compared only with the entries found in it. A shard made from another file,
of a later generation or after a change of settings, is compared with the complete entry, also by
text.
"""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Collection, Mapping
from typing import NamedTuple

import msgspec
import numpy as np
import pyarrow as pa

from owt_pipeline.errors import UserError
from owt_pipeline.formats.urls import host_of
from owt_pipeline.ledger.dataset import DatasetReader
from owt_pipeline.storage.folder import Storage
from schemas.datasets import LEDGER
from schemas.manifest import Root


class Takedown(msgspec.Struct, frozen=True, omit_defaults=True):
    """A document to forget.

    Attributes:
      url: its URL if known.
      detail: the detail of its reject row.
      shard: the shard that it is in; None if no shard that was searched has it.
      resolution: number of the resolution that searched for it; None in lists of earlier releases.
    """

    url: str | None
    detail: str
    shard: int | None = None
    resolution: int | None = None


class Resolution(msgspec.Struct, frozen=True):
    """One search for entries of the list.

    Attributes:
      scan: position in `Takedowns.scans` of the digests of the searched files.
      texts: path of the fingerprints of the documents that were found; empty for none.
      sha256: digest of that file.
    """

    scan: int
    texts: str = ""
    sha256: str = ""


class Takedowns(msgspec.Struct, frozen=True):
    """A list of takedowns.

    Attributes:
      ids: documents to forget, by `url_id`.
      domains: domains to forget, including all hosts below them, with the detail for the reject
        rows.
      resolved_domains: the resolution of each domain that has one.
      resolutions: the searches, in order.
      scans: for each distinct set of searched files, their digests by shard of clean/.
    """

    ids: dict[int, Takedown] = {}
    domains: dict[str, str] = {}
    resolved_domains: dict[str, int] = {}
    resolutions: list[Resolution] = []
    scans: list[dict[int, str]] = []

    def __or__(self, other: Takedowns) -> Takedowns:
        """Return the union; for entries in both, the detail of `self` is kept.

        The resolutions are those of `self`, since they are known by their numbers.
        """
        return msgspec.structs.replace(
            self,
            ids={**other.ids, **self.ids},
            domains={**other.domains, **self.domains},
        )

    def rows_to_forget(self, url_ids: np.ndarray, urls: pa.Array) -> list[tuple[int, str]]:
        """Return (row, detail) of the rows to forget, in order.

        Args:
          url_ids: uint64 (n,), the documents.
          urls: strings (n,), their URLs; null for a document without one.
        """
        listed_ids = np.fromiter(self.ids, np.uint64, len(self.ids))
        listed_rows = np.flatnonzero(np.isin(url_ids, listed_ids)).tolist()
        detail_by_row = {row: self.ids[int(url_ids[row])].detail for row in listed_rows}
        if not self.domains:
            return sorted(detail_by_row.items())
        for row, url in enumerate(urls.to_pylist()):
            if not url or row in detail_by_row:
                continue
            domain = self.domain_of(url)
            if domain is not None:
                detail_by_row[row] = domain_detail(domain, self.domains[domain])
        return sorted(detail_by_row.items())

    def domain_of(self, url: str) -> str | None:
        """Return the listed domain that equals or contains the host of `url`; None if none does."""
        host = host_of(url)
        while host:
            if host in self.domains:
                return host
            host = host.partition(".")[2]
        return None

    def pending(self, shard: int, digest: str) -> frozenset[int]:
        """Return the numbers of the resolutions that have not searched this file of a shard."""
        return frozenset(
            number
            for number, resolution in enumerate(self.resolutions)
            if self.scans[resolution.scan].get(shard) != digest
        )


def fingerprint_paths_of(takedowns: Takedowns) -> tuple[str, ...]:
    """Return the paths of all fingerprints that a list names."""
    return tuple(resolution.texts for resolution in takedowns.resolutions if resolution.texts)


def domain_detail(domain: str, detail: str) -> str:
    """Return the detail of the reject row of a document of a listed domain."""
    return f"domain {domain}: {detail}"


class ShardTakedowns(msgspec.Struct, frozen=True):
    """The part of the list that concerns one shard.

    Attributes:
      takedowns: the entries that concern it.
      fingerprint_paths: the fingerprints that its documents have to be compared with.
      key: the part of the shard's key that depends on the list; None without such entries.
    """

    takedowns: Takedowns
    fingerprint_paths: tuple[str, ...]
    key: object


def takedowns_of_shard(workdir: Storage, root: Root, shard: int, digest: str) -> ShardTakedowns:
    """Return the entries that concern a shard made from the file of clean/ with this digest.

    No row is read, so that a key can be computed whatever files are left.
    """
    index = _index(workdir, root.takedowns)
    return index.of_shard(shard, digest)


def digest_of_shard(reader: DatasetReader, shard: int) -> str:
    """Return the digest of a shard's files in `Takedowns.scans`, from the list of files."""
    return " ".join(file.sha256[:16] for file in reader.files("data", shard))


class _PendingEntries(NamedTuple):
    """Entries with which a shard has to be compared completely.

    Attributes:
      entries: the entries.
      fingerprint_paths: their fingerprints.
      digest: SHA-256 of all of it.
    """

    entries: Takedowns
    fingerprint_paths: tuple[str, ...]
    digest: str


class _ListIndex:
    """A list of takedowns, by shard."""

    def __init__(self, takedowns: Takedowns):
        self._list = takedowns
        self._ids_by_shard: dict[int, dict[int, Takedown]] = {}
        self._has_unresolved = any(
            domain not in takedowns.resolved_domains for domain in takedowns.domains
        )
        for key, entry in takedowns.ids.items():
            self._has_unresolved |= entry.resolution is None
            if entry.shard is not None:
                self._ids_by_shard.setdefault(entry.shard, {})[key] = entry
        # By the numbers of the resolutions, which are the same for most shards.
        self._pending: dict[frozenset[int], _PendingEntries] = {}

    def of_shard(self, shard: int, digest: str) -> ShardTakedowns:
        """Return the entries that concern a shard whose file in clean/ has this digest."""
        in_shard = self._ids_by_shard.get(shard, {})
        numbers = self._list.pending(shard, digest)
        if not numbers and not self._has_unresolved:
            return ShardTakedowns(Takedowns(in_shard), (), _details(in_shard) or None)
        if numbers not in self._pending:
            self._pending[numbers] = self._entries_of(numbers)
        pending = self._pending[numbers]
        resolved = {key: entry for key, entry in in_shard.items() if key not in pending.entries.ids}
        return ShardTakedowns(
            takedowns=Takedowns(in_shard) | pending.entries,
            fingerprint_paths=pending.fingerprint_paths,
            key=[_details(resolved), pending.digest],
        )

    def _entries_of(self, numbers: Collection[int]) -> _PendingEntries:
        """Return the complete entries of some resolutions, and the entries without a resolution."""
        resolutions = {None, *numbers}
        ids = self._list.ids.items()
        resolved = self._list.resolved_domains
        domains: dict[str, str] = {}
        for domain, detail in self._list.domains.items():
            if resolved.get(domain) in resolutions:
                domains[domain] = detail
        entries = Takedowns(
            {key: entry for key, entry in ids if entry.resolution in resolutions}, domains
        )
        searches = [self._list.resolutions[number] for number in sorted(numbers)]
        content = msgspec.json.encode(
            [
                _details(entries.ids),
                sorted(domains.items()),
                [search.sha256 for search in searches],
            ]
        )
        return _PendingEntries(
            entries=entries,
            fingerprint_paths=tuple(search.texts for search in searches if search.texts),
            digest=hashlib.sha256(content).hexdigest(),
        )


def _details(entries: Mapping[int, Takedown]) -> list[tuple[int, str]]:
    return sorted((key, entry.detail) for key, entry in entries.items())


@functools.lru_cache(maxsize=4)
def _index(workdir: Storage, path: str) -> _ListIndex:
    return _ListIndex(_read(workdir, path))


def read_takedowns(workdir: Storage, root: Root) -> Takedowns:
    """Return the run's list, empty if there is none; raise UserError for a damaged one."""
    return _read(workdir, root.takedowns)


# A process needs it for every shard. A file's name is made of its content, so it never changes.
@functools.lru_cache(maxsize=4)
def _read(workdir: Storage, path: str) -> Takedowns:
    if not path:
        return Takedowns()
    content = read_kept(workdir, path)
    try:
        return msgspec.json.decode(content, type=Takedowns)
    except msgspec.MsgspecError as error:
        raise UserError(
            f"{workdir.path(path)} is not a list of takedowns ({error}): use the release that "
            "wrote it"
        ) from error


def write_takedowns(workdir: Storage, takedowns: Takedowns) -> str:
    """Write a list, named by its content; return its path, for the root."""
    in_order = msgspec.structs.replace(
        takedowns,
        ids=dict(sorted(takedowns.ids.items())),
        domains=dict(sorted(takedowns.domains.items())),
    )
    content = msgspec.json.encode(in_order)
    return write_kept(workdir, f"{LEDGER}/takedowns", ".jsonl", content + b"\n")


COPY_SUFFIX = ".copy"


def write_kept(workdir: Storage, stem: str, suffix: str, content: bytes) -> str:
    """Write a file that cannot be rebuilt, and its copy; return its path."""
    path = f"{stem}-{hashlib.sha256(content).hexdigest()[:8]}{suffix}"
    workdir.write(path + COPY_SUFFIX, content)
    workdir.write(path, content)
    return path


def read_kept(workdir: Storage, path: str) -> bytes:
    """Return a file that `write_kept` wrote; from its copy, if it is damaged or missing.

    Raises UserError if the copy is damaged, too.
    """
    for name in (path, path + COPY_SUFFIX):
        try:
            content = workdir.read(name)
        except OSError:
            continue
        if hashlib.sha256(content).hexdigest()[:8] in path.rpartition("/")[2]:
            if name != path:
                workdir.write(path, content)
            return content
    raise UserError(
        f"{workdir.path(path)} and its copy {workdir.path(path)}{COPY_SUFFIX} are missing or "
        "damaged; without them, removed documents would return: restore either file from a backup"
    )
