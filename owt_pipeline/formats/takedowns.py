"""The list of documents that a run must forget: a file in its ledger, named by its content,
which the root names.

Export rejects the documents it names, with the reason `forgotten`.
"""

from __future__ import annotations

import functools
import hashlib

import msgspec
import numpy as np
import pyarrow as pa

from owt_pipeline.errors import UserError
from owt_pipeline.formats.urls import host_of
from owt_pipeline.storage.folder import Storage
from schemas.datasets import LEDGER
from schemas.manifest import Root


class Takedown(msgspec.Struct, frozen=True):
    """A document to forget: its URL if known, and the detail of its reject row."""

    url: str | None
    detail: str


class Takedowns(msgspec.Struct, frozen=True):
    """A list of takedowns.

    Attributes:
      ids: documents to forget, by `url_id`.
      domains: domains to forget, including all hosts below them, with the detail for the reject
        rows.
    """

    ids: dict[int, Takedown] = {}
    domains: dict[str, str] = {}

    def __or__(self, other: Takedowns) -> Takedowns:
        """The union; for entries in both, the detail of `self` is kept."""
        return Takedowns({**other.ids, **self.ids}, {**other.domains, **self.domains})

    def of(self, url_ids: np.ndarray, urls: pa.Array) -> list[tuple[int, str]]:
        """(row, detail) of the rows to forget, in order; url_ids uint64 (n,), urls strings (n,)."""
        listed = np.fromiter(self.ids, np.uint64, len(self.ids))
        found = {
            row: self.ids[int(url_ids[row])].detail
            for row in np.flatnonzero(np.isin(url_ids, listed)).tolist()
        }
        if self.domains:
            for row, url in enumerate(urls.to_pylist()):
                if url and row not in found and (domain := self._domain(host_of(url))):
                    found[row] = f"domain {domain}: {self.domains[domain]}"
        return sorted(found.items())

    def _domain(self, host: str) -> str | None:
        """The listed domain that equals or contains `host`, if any."""
        while host:
            if host in self.domains:
                return host
            host = host.partition(".")[2]
        return None


def read_takedowns(workdir: Storage, root: Root) -> Takedowns:
    """The run's list, empty if there is none. Raises UserError for a damaged one."""
    return _read(workdir, root.takedowns)


@functools.lru_cache(maxsize=4)  # a process reads it for every shard; its name says its content
def _read(workdir: Storage, path: str) -> Takedowns:
    if not path:
        return Takedowns()
    try:
        return msgspec.json.decode(workdir.read(path), type=Takedowns)
    except msgspec.MsgspecError as error:
        raise UserError(
            f"{workdir.path(path)} is no list of takedowns ({error}): restore it from a copy"
        ) from error


def write_takedowns(workdir: Storage, takedowns: Takedowns) -> str:
    """Write a list, named by its content; returns its path, for the root."""
    ids, domains = (dict(sorted(entries.items())) for entries in (takedowns.ids, takedowns.domains))
    text = msgspec.json.encode({"ids": ids, "domains": domains}) + b"\n"
    path = f"{LEDGER}/takedowns-{hashlib.sha256(text).hexdigest()[:8]}.jsonl"
    workdir.write(path, text)
    return path
