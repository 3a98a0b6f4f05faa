"""A shard's journal: every answer as it comes, so that a killed process loses what was in flight and no more.

An append-only file of entries `magic, CRC-32, length of the description, length of the records`, then both. The
tail that a kill tore off is cut when the journal is opened again. Another process may append to it (`Appender`) while
this one keeps the account of where its entries are.
"""

from __future__ import annotations

import fcntl
import os
import struct
from array import array
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import orjson
from isal import isal_zlib

from owt_pipeline.fetch.answers import INDEXED, Answer, NoPage, Page
from schemas import Reason

_HEAD = struct.Struct("<4sQIIQ")  # magic, url_id, CRC-32, lengths of description and records
_READ_BYTES = 16 << 10  # at once: most entries are smaller

_MAGIC = b"OWT\x01"


class Entries(NamedTuple):
    """What was appended to a journal: url_ids, bytes of each entry, whether it is a page."""

    ids: array[int]
    lengths: array[int]
    are_pages: array[int]


class Appender:
    """The end of the journal at `path`, for one process at a time: others that would append wait."""

    def __init__(self, path: str):
        self._file = open(path, "ab", buffering=0)  # noqa: SIM115 - open until `close`
        fcntl.flock(self._file, fcntl.LOCK_EX)

    def write(self, entries: list[bytes]) -> Entries:
        """Write down answers as `encode_entry` made entries of them; then a kill of the process does not lose them."""
        data = memoryview(b"".join(entries))
        while data:  # a disk that fills up takes a part
            data = data[self._file.write(data) or 0 :]
        heads = [_HEAD.unpack_from(entry) for entry in entries]
        return Entries(
            array("Q", [url_id for _, url_id, _, _, _ in heads]),
            array("Q", map(len, entries)),
            array("B", [records > 0 for *_, records in heads]),  # only a page has a record
        )

    def close(self) -> None:
        self._file.close()


class Journal:
    """Answers by url_id, in a file. So many (its length), `num_pages` of them pages."""

    def __len__(self) -> int:
        return len(self._ids)

    def __init__(self, path: str):
        """The journal at `path`, with what is whole of it."""
        os.makedirs(os.path.dirname(path), exist_ok=True)
        self.path = path
        self._file = open(path, "a+b", buffering=0)  # noqa: SIM115 - open as long as the journal
        self._ids, self._offsets, self._are_pages = array("Q"), array("Q"), array("B")
        self.num_pages = 0
        self._sorted: tuple[np.ndarray, np.ndarray] | None = None
        # The process that appends for a run may outlive its kill by a moment.
        fcntl.flock(self._file, fcntl.LOCK_EX)
        self._recover()
        fcntl.flock(self._file, fcntl.LOCK_UN)

    def __enter__(self) -> Journal:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    @property
    def ids(self) -> np.ndarray:
        """The url_ids that have an answer, in order of their answers."""
        return np.array(self._ids, dtype=np.uint64)

    @property
    def pages(self) -> np.ndarray:
        """Those of them whose answer is a page."""
        return self.ids[np.array(self._are_pages, dtype=bool)]

    def append(self, url_id: int, answer: Answer) -> None:
        """Write an answer down; once this returns, a kill of the process does not lose it."""
        appender = Appender(self.path)
        self.note(appender.write([encode_entry(url_id, answer)]))
        appender.close()

    def note(self, entries: Entries) -> None:
        """Take what an `Appender` has written into the account."""
        self._sorted = None
        for length in entries.lengths:
            self._offsets.append(self._end)
            self._end += length
        self._ids += entries.ids
        self._are_pages += entries.are_pages
        self.num_pages += sum(entries.are_pages)

    def answers(self, url_ids: list[int]) -> Iterator[Answer | None]:
        """The answer of each URL; None for one without."""
        if self._sorted is None:
            ids = self.ids
            order = np.argsort(ids, kind="stable")
            self._sorted = ids[order], np.array(self._offsets, np.uint64)[order]
        ids, offsets = self._sorted
        places = np.searchsorted(ids, np.array(url_ids, np.uint64)).tolist()
        for url_id, place in zip(url_ids, places, strict=True):
            found = place < len(ids) and int(ids[place]) == url_id
            yield self._read(int(offsets[place])) if found else None

    def _read(self, offset: int) -> Answer:
        # By calls, not mapped: mapped pages, and those around them, would count as this process' memory.
        entry = os.pread(self._file.fileno(), _READ_BYTES, offset)
        _, _, crc, description, records = _HEAD.unpack_from(entry)
        end = _HEAD.size + description + records
        if len(entry) < end:
            entry += os.pread(self._file.fileno(), end - len(entry), offset + len(entry))
        body = entry[_HEAD.size : end]
        if isal_zlib.crc32(body) != crc:
            raise OSError(f"{self._file.name}: the entry at byte {offset} was changed after it was written")
        return _decode(body[:description], body[description:])

    def _recover(self) -> None:
        size = self._file.seek(0, os.SEEK_END)
        self._end = 0
        while self._end + _HEAD.size <= size:
            head = os.pread(self._file.fileno(), _HEAD.size, self._end)
            magic, url_id, crc, description, records = _HEAD.unpack(head)
            length = description + records
            if magic != _MAGIC or self._end + _HEAD.size + length > size:
                break
            if isal_zlib.crc32(os.pread(self._file.fileno(), length, self._end + _HEAD.size)) != crc:
                break
            entry = Entries(array("Q", [url_id]), array("Q", [_HEAD.size + length]), array("B", [records > 0]))
            self.note(entry)
        self._file.truncate(self._end)


def encode_entry(url_id: int, answer: Answer) -> bytes:
    """An answer as an entry of a journal."""
    records = b""
    if isinstance(answer, NoPage):
        description = orjson.dumps({"reason": str(answer.reason), "detail": answer.detail})
    else:
        values: dict[str, Any] = {name: getattr(answer, name) for name in INDEXED}
        values["redirect_lengths"] = [len(record) for record in answer.redirects]
        description = orjson.dumps(values)
        records = b"".join([*answer.redirects, answer.record])
    crc = isal_zlib.crc32(records, isal_zlib.crc32(description))
    return _HEAD.pack(_MAGIC, url_id, crc, len(description), len(records)) + description + records


def _decode(description: bytes, records: bytes) -> Answer:
    entry = orjson.loads(description)
    if "reason" in entry:
        return NoPage(Reason.of(entry["reason"]), entry["detail"])
    redirects = []
    at = 0
    for length in entry.pop("redirect_lengths"):
        redirects.append(records[at : at + length])
        at += length
    return Page(**entry, record=records[at:], redirects=tuple(redirects))
