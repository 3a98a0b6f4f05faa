"""Takedowns: the documents and domains that a run must forget, in files.

    ledger/takedowns/1f2e3d4c5a6b7c8d.parquet     a request: a row for each document or domain

A file is named by its content, and nothing rewrites or removes it. All files of the folder are in
force, and all names that the root manifest has seen (`read_root` returns both). So neither an older
root manifest nor a deleted file brings a document back. A missing or damaged file is an error until
a later file replaces it, which takes the same request again.

A row has a fingerprint of the document's text, not the text: the hash of the normalised text and
the hashes of its n-grams of words. Whatever the options of a run are, two texts are compared by the
same n-grams.
"""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from owt_pipeline.errors import UserError, command
from owt_pipeline.formats.shingles import chunked, hash_texts, hash_words, ngrams
from owt_pipeline.formats.urls import host_of
from owt_pipeline.ledger.root import TAKEDOWNS
from owt_pipeline.storage.folder import Storage, at_once
from schemas.manifest import Root

_SCHEMA = pa.schema(
    [
        pa.field("url_id", pa.uint64()),
        pa.field("url", pa.string()),
        pa.field("domain", pa.string()),
        pa.field("detail", pa.string(), nullable=False),
        pa.field("digest", pa.binary(16)),
        pa.field("shingles", pa.list_(pa.uint64())),
    ]
)
_HASHING = b"hashing"
_REPLACES = b"replaces"


class Takedown(NamedTuple):
    """A document or a domain to forget.

    Attributes:
      url_id: the document's id; None for a domain.
      url: the document's URL if known.
      domain: the domain, with all hosts below it; None for a document.
      detail: the detail of the reject rows.
      text: the fingerprint of the document's text; None if later copies are not to be rejected,
        or the text is not known.
    """

    url_id: int | None
    url: str | None
    domain: str | None
    detail: str
    text: Fingerprint | None = None


class Takedowns:
    """The union of some files of takedowns.

    Attributes:
      names: the names of the files, sorted.
      detail_by_id: the documents to forget, with the detail of their reject rows.
      detail_by_domain: the domains to forget, including all hosts below them.
      rows_by_name: the rows of each file.
    """

    def __init__(self, rows_by_name: Mapping[str, Sequence[Takedown]]):
        self.names = sorted(rows_by_name)
        self.detail_by_id: dict[int, str] = {}
        self.detail_by_domain: dict[str, str] = {}
        self.rows_by_name = rows_by_name
        # The first file by name decides, so the order of the requests does not matter.
        for name in self.names:
            for row in rows_by_name[name]:
                if row.url_id is not None:
                    self.detail_by_id.setdefault(row.url_id, row.detail)
                elif row.domain is not None:
                    self.detail_by_domain.setdefault(row.domain, row.detail)

    def rows_to_forget(self, url_ids: np.ndarray, urls: pa.Array) -> list[tuple[int, str]]:
        """Return (row, detail) of the rows to forget, in order.

        Args:
          url_ids: uint64 (n,), the documents.
          urls: strings (n,), their URLs; null for a document without one.
        """
        listed_rows = np.flatnonzero(np.isin(url_ids, self._listed_ids)).tolist()
        detail_by_row = {row: self.detail_by_id[int(url_ids[row])] for row in listed_rows}
        if not self.detail_by_domain:
            return sorted(detail_by_row.items())
        for row, url in enumerate(urls.to_pylist()):
            if not url or row in detail_by_row:
                continue
            domain = self.domain_of(url)
            if domain is not None:
                detail_by_row[row] = domain_detail(domain, self.detail_by_domain[domain])
        return sorted(detail_by_row.items())

    def domain_of(self, url: str) -> str | None:
        """Return the listed domain that equals or contains the host of `url`; None if none does."""
        host = host_of(url)
        while host:
            if host in self.detail_by_domain:
                return host
            host = host.partition(".")[2]
        return None

    @functools.cached_property
    def _listed_ids(self) -> np.ndarray:
        return np.fromiter(self.detail_by_id, np.uint64, len(self.detail_by_id))

    def texts(self, without: Collection[str] = ()) -> list[Fingerprint]:
        """Return the distinct texts of the files, except of the files `without`."""
        text_by_digest: dict[bytes, Fingerprint] = {}
        for name in self.names:
            if name in without:
                continue
            for row in self.rows_by_name[name]:
                if row.text is not None:
                    text_by_digest[row.text.digest] = row.text
        return list(text_by_digest.values())

    @functools.cached_property
    def text_by_id(self) -> dict[int, Fingerprint]:
        """Return the text of each document whose text is known."""
        text_by_id: dict[int, Fingerprint] = {}
        for name in self.names:
            for row in self.rows_by_name[name]:
                if row.url_id is not None and row.text is not None:
                    text_by_id.setdefault(row.url_id, row.text)
        return text_by_id

    def lacking(self, rows: Iterable[Takedown]) -> list[Takedown]:
        """Return the rows that none of the files has, with their detail and text.

        A row without a text is not lacking if a file has it with a text.
        """
        known: set[tuple[int | None, str | None, str, bytes | None]] = set()
        for own_rows in self.rows_by_name.values():
            for row in own_rows:
                known.add((row.url_id, row.domain, row.detail, None))
                if row.text is not None:
                    known.add((row.url_id, row.domain, row.detail, row.text.digest))
        lacking = []
        for row in rows:
            digest = None if row.text is None else row.text.digest
            if (row.url_id, row.domain, row.detail, digest) not in known:
                lacking.append(row)
        return lacking


def domain_detail(domain: str, detail: str) -> str:
    """Return the detail of the reject row of a document of a listed domain."""
    return f"domain {domain}: {detail}"


def write_takedowns(
    workdir: Storage, rows: Iterable[Takedown], replaced: Collection[str] = ()
) -> str:
    """Write a file of takedowns; return its name.

    `replaced` are the names of missing and damaged files whose requests it takes again. If one of
    them had the same content, it is restored.
    """
    rows = sorted(rows, key=lambda row: (row.domain or "", row.url_id or 0, row.detail))
    content = _encode(rows, ())
    name = _name_of(content)
    if not set(replaced) <= {name}:
        content = _encode(rows, replaced)
        name = _name_of(content)
    workdir.write(f"{TAKEDOWNS}/{name}", content)
    return name


def _encode(rows: Sequence[Takedown], replaced: Collection[str]) -> bytes:
    """Return a file's content; the same bytes for equal rows."""
    metadata = {_HASHING: hashing().encode(), _REPLACES: msgspec.json.encode(sorted(replaced))}
    columns = [
        [row.url_id for row in rows],
        [row.url for row in rows],
        [row.domain for row in rows],
        [row.detail for row in rows],
        [row.text and row.text.digest for row in rows],
        [row.text and row.text.shingles for row in rows],
    ]
    arrays = [pa.array(column, kind) for column, kind in zip(columns, _SCHEMA.types, strict=True)]
    sink = pa.BufferOutputStream()
    table = pa.Table.from_arrays(arrays, schema=_SCHEMA.with_metadata(metadata))
    pq.write_table(table, sink, compression="zstd")
    return bytes(sink.getvalue().to_pybytes())


def _name_of(content: bytes) -> str:
    return f"{hashlib.sha256(content).hexdigest()[:16]}.parquet"


def in_force(workdir: Storage, root: Root) -> Root:
    """Return the root with only the names of the files of takedowns that are in force.

    These are all names of `root.takedowns`, except of files that were replaced. Raises UserError as
    `read_takedowns`.
    """
    names = read_takedowns(workdir, root.takedowns).names
    return msgspec.structs.replace(root, takedowns=names)


def read_takedowns(
    workdir: Storage, names: Iterable[str], replaced: Collection[str] = ()
) -> Takedowns:
    """Return the union of the files with these names, as `read_root` returns them.

    The files in `replaced` may be missing or damaged, since their requests are taken again. Raises
    UserError if another file is missing or damaged, or hashes texts in another way, unless one of
    the files replaces it.
    """
    return _read(workdir, tuple(names), frozenset(replaced))


class _File(NamedTuple):
    """A file of takedowns: its problem, "" for none, its rows, and the names that it replaces."""

    name: str
    problem: str
    rows: Sequence[Takedown] = ()
    replaced: frozenset[str] = frozenset()


# A process needs it for every shard. A file's name is made of its content, so it never changes.
@functools.lru_cache(maxsize=4)
def _read(workdir: Storage, names: tuple[str, ...], replaced: frozenset[str]) -> Takedowns:
    files = at_once(functools.partial(_read_file, workdir), names)
    all_replaced = replaced.union(*(file.replaced for file in files))
    unusable = [file for file in files if file.problem and file.name not in all_replaced]
    if unusable:
        problems = [
            f"{workdir.path(f'{TAKEDOWNS}/{file.name}')} {file.problem}" for file in unusable
        ]
        words = ["owt", "forget", workdir, "URLS.txt", "--replaces"]
        words += [file.name for file in unusable]
        raise UserError(
            f"{', '.join(problems)}: removed documents or copies of them would return. Restore the "
            f"file from a backup, or take its request again: write its URLs, ids and domains into "
            f"URLS.txt, and run {command(*words)}"
        )
    return Takedowns({file.name: file.rows for file in files if not file.problem or file.rows})


def _read_file(workdir: Storage, name: str) -> _File:
    try:
        content = workdir.read(f"{TAKEDOWNS}/{name}")
    except FileNotFoundError:
        return _File(name, "is missing")
    if _name_of(content) != name:
        return _File(name, "is damaged")
    # Not `read_table`, which imports pyarrow.dataset and with it pandas, in half a second.
    table = pq.ParquetFile(pa.BufferReader(content)).read(use_threads=False)
    metadata = table.schema.metadata
    replaced = frozenset(msgspec.json.decode(metadata[_REPLACES], type=list[str]))
    has_own_hashing = metadata[_HASHING] == hashing().encode()
    problem = "" if has_own_hashing else "hashes texts in another way than this release"
    return _File(name, problem, _rows_of(table, has_texts=has_own_hashing), replaced)


def _rows_of(table: pa.Table, *, has_texts: bool) -> list[Takedown]:
    """Return the rows of a file, without their texts unless `has_texts`."""
    # The shingles stay numbers of 8 bytes: as objects of Python they would take five times as much.
    entries = table.drop_columns(["shingles"]).to_pylist()
    rows = []
    for entry, shingles in zip(entries, table["shingles"], strict=True):
        text = None
        if has_texts and entry["digest"] is not None:
            text = Fingerprint(entry["digest"], shingles.values.to_numpy())
        rows.append(Takedown(entry["url_id"], entry["url"], entry["domain"], entry["detail"], text))
    return rows


NGRAM = 5
"""Words of a shingle of a fingerprint."""


@dataclass(frozen=True)
class Fingerprint:
    """What identifies a text.

    Attributes:
      digest: 16 bytes, equal for texts of the same words in the same order.
      shingles: uint64, the distinct hashes of its n-grams, sorted; empty for a text without words.
    """

    digest: bytes
    shingles: np.ndarray


def fingerprints(texts: pa.Array) -> list[Fingerprint]:
    """Return the fingerprint of each text of an array of strings without nulls."""
    prints: list[Fingerprint] = []
    for chunk in chunked(texts):
        words = hash_words(chunk)
        sets = ngrams(words, NGRAM).sets()
        prints += map(Fingerprint, hash_texts(chunk, words), sets)
    return prints


_SAMPLE = "The Five Boxing Wizards, \u00c9t\u00e9 2024: \u6f22\u5b57 and an incomprehensibilities."


@functools.cache
def hashing() -> str:
    """Return a digest of the way in which fingerprints are made; it changes if they do."""
    (sample,) = fingerprints(pa.array([_SAMPLE]))
    return hashlib.sha256(sample.digest + sample.shingles.astype("<u8").tobytes()).hexdigest()[:16]
