"""The journal of a shard: the answers to its URLs as they arrive, which the next attempt finds if this one is killed.

An attempt writes its answers to segments in the working directory, each once and complete. The next attempt reads the
segments of all attempts and requests only URLs that are in none of them.
"""

from __future__ import annotations

import asyncio
import struct
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

import msgspec
import numpy as np
from isal import isal_zlib

from owt_pipeline.stages.fetch.answers import Answer, NoPage, Page
from owt_pipeline.storage.folder import Storage, at_once
from schemas.reasons import TEMPORARY

R = TypeVar("R")
T = TypeVar("T")

PATIENCE_SECONDS = 60.0
"""An attempt that writes no segment for so long is taken for dead; two segments of a run in a bucket."""

_MAGIC = b"OWT\x03"
_HEAD = struct.Struct("<4sII")  # magic, number of entries, CRC-32 of the index
_INDEX = np.dtype([("id", "<u8"), ("length", "<u4"), ("kind", "u1")])
_NO_PAGE, _PAGE, _POSTPONED = range(3)  # kinds of answers
_FIRST_READ = 64 << 10  # bytes; most indexes are smaller
_CRC = struct.Struct("<I")  # of an entry

_PLACE = np.dtype([("id", "<u8"), ("segment", "<u4"), ("offset", "<u8"), ("length", "<u4"), ("kind", "u1")])


class Journal:
    """The answers of one source to the URLs of one shard, as far as they are in segments.

    Attributes:
      folder: the folder of the segments.
    """

    def __init__(self, folder: Storage):
        """The journal in a folder, with the segments that are there now."""
        self.folder = folder
        self._segments: list[str] = []
        self._places = np.empty(0, _PLACE)
        self.load()

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def ids(self) -> np.ndarray:
        """The url_ids that have an answer, ascending."""
        return self._places["id"][self._places["kind"] != _POSTPONED]

    @property
    def postponed(self) -> np.ndarray:
        """The url_ids whose answer was a temporary failure; they are requested once more at the end of the shard."""
        return self._places["id"][self._places["kind"] == _POSTPONED]

    @property
    def pages(self) -> np.ndarray:
        """The url_ids whose answer is a page."""
        return self._places["id"][self._places["kind"] == _PAGE]

    def load(self) -> None:
        """Read the segments that were written since; those that a power failure has damaged are skipped."""
        new = sorted(set(self.folder.names()) - set(self._segments))
        indexes = self._each(self._index, new)
        places = [self._places]
        for number, (index, start) in enumerate(indexes, len(self._segments)):
            place = np.empty(len(index), _PLACE)
            ends = start + np.cumsum(index["length"], dtype=np.uint64)
            place["id"], place["length"], place["kind"] = index["id"], index["length"], index["kind"]
            place["segment"], place["offset"] = number, ends - index["length"]
            places.append(place)
        self._segments += new
        joined = np.concatenate(places)
        joined = joined[np.lexsort((joined["kind"] == _POSTPONED, joined["id"]))]
        _, first = np.unique(joined["id"], return_index=True)  # of two attempts' answers, the first one counts
        self._places = joined[first]

    def answers(self, url_ids: Sequence[int]) -> Iterator[Answer | None]:
        """The answer of each of these URLs, given in ascending order; None for a URL without one."""
        ids = np.array(url_ids, np.uint64)
        found = self._places[np.isin(self._places["id"], ids, assume_unique=True)]
        known: dict[int, Answer] = {}
        groups = [found[found["segment"] == number] for number in np.unique(found["segment"])]
        for answers in self._each(self._read, groups):
            known.update(answers)
        return map(known.get, url_ids)

    def _each(self, call: Callable[[T], R], items: list[T]) -> list[R]:
        return list(map(call, items)) if self.folder.is_local or len(items) < 2 else at_once(call, items)

    def _read(self, places: np.ndarray) -> list[tuple[int, Answer]]:
        """Entries of one segment, read at once: since they are sorted, they lie close together."""
        name = self._segments[places["segment"][0]]
        start, end = int(places["offset"][0]), int(places["offset"][-1] + places["length"][-1])
        data = self.folder.read_range(name, start, end - start)
        answers = []
        for url_id, _, offset, length, kind in places.tolist():
            entry = data[offset - start : offset - start + length]
            if isal_zlib.crc32(entry[_CRC.size :]) != _CRC.unpack_from(entry)[0]:
                raise OSError(f"{self.folder.path(name)}: byte {offset} or later was changed after it was written")
            answers.append((url_id, (_decode_page if kind == _PAGE else _decode_no_page)(entry[_CRC.size :])))
        return answers

    def _index(self, name: str) -> tuple[np.ndarray, int]:
        """The index of a segment, and where its entries begin."""
        data, size = self.folder.read_range(name, 0, _FIRST_READ), self.folder.size(name)
        if len(data) >= _HEAD.size:
            magic, count, crc = _HEAD.unpack_from(data)
            start = _HEAD.size + count * _INDEX.itemsize
            if magic == _MAGIC and len(data) < start <= size:
                data += self.folder.read_range(name, len(data), start - len(data))
            if magic == _MAGIC and start <= len(data) and isal_zlib.crc32(data[_HEAD.size : start]) == crc:
                index = np.frombuffer(data, _INDEX, count, _HEAD.size)
                if size == start + int(index["length"].sum()):
                    return index, start
        return np.empty(0, _INDEX), 0


class SegmentWriter:
    """Writes the answers of one attempt to segments of a journal."""

    def __init__(self, folder: Storage, attempt: str, is_last: bool):
        """A writer for the journal in `folder`; `attempt` is a unique name.

        Unless `is_last`, URLs that failed temporarily have no final answer: they are requested once more.
        """
        self.folder, self._attempt, self._number = folder, attempt, 0
        self._is_last = is_last
        self._entries: dict[int, tuple[bytes, int]] = {}
        self.bytes = 0
        self.since = 0.0

    def append(self, url_id: int, answer: Answer) -> bool:
        """Keep an answer in memory for the next segment; returns whether it is final."""
        if not self._entries:
            self.since = time.monotonic()
        entry = _encoded(answer)
        kind = _PAGE if isinstance(answer, Page) else _NO_PAGE
        if isinstance(answer, NoPage) and answer.reason in TEMPORARY and not self._is_last:
            kind = _POSTPONED
        self._entries[url_id] = entry, kind
        self.bytes += len(entry)
        return kind != _POSTPONED

    def flush(self) -> None:
        """Write the answers that are kept as a segment."""
        if not self._entries:
            return
        entries = sorted(self._entries.items())
        index = np.array([(url_id, len(entry), kind) for url_id, (entry, kind) in entries], _INDEX).tobytes()
        head = _HEAD.pack(_MAGIC, len(entries), isal_zlib.crc32(index))
        segment = b"".join([head, index, *(entry for _, (entry, _) in entries)])
        self.folder.create(f"{self._attempt}-{self._number:06d}", segment)
        self._number += 1
        self._entries, self.bytes = {}, 0


def _encoded(answer: Answer) -> bytes:
    entry = msgspec.msgpack.encode(answer)
    return _CRC.pack(isal_zlib.crc32(entry)) + entry


_decode_no_page = msgspec.msgpack.Decoder(NoPage).decode
_decode_page = msgspec.msgpack.Decoder(Page).decode


class Superseded(Exception):
    """Another attempt makes the requests for the shard now."""


class Attempt:
    """The right of one attempt to make requests for a shard: a file with its id, which the next attempt replaces.

    An attempt that finds another's id there stops. It looks when it writes a segment, so both may make requests for as
    long as a segment takes.

    Attributes:
      id: a unique name.
    """

    def __init__(self, folder: Storage, name: str):
        """An attempt whose file is `name` in `folder`."""
        self.id = uuid.uuid4().hex
        self._folder, self._name = folder, name

    def begin(self) -> bool:
        """Take the file over; returns whether another attempt had it, which may still make requests."""
        was_there = self._folder.exists(self._name)
        self._folder.write(self._name, self.id.encode())
        return was_there

    def check(self) -> None:
        """Raise Superseded if the file has another attempt's id."""
        if self._owner() not in (None, self.id):
            raise Superseded

    def end(self) -> None:
        """Remove the file, unless it is another attempt's."""
        if self._owner() == self.id:
            self._folder.delete(self._name)

    async def wait_for_other(self, journal: Storage) -> None:
        """Wait until the attempt that has superseded this one ends, or has written nothing for PATIENCE_SECONDS."""
        seen, since = ("", 0), 0.0
        while (owner := await asyncio.to_thread(self._owner)) not in (None, self.id):
            if (now := (owner, len(await asyncio.to_thread(journal.names)))) != seen:
                seen, since = now, time.monotonic()
            elif time.monotonic() - since > PATIENCE_SECONDS:
                return
            await asyncio.sleep(PATIENCE_SECONDS / 20)

    def _owner(self) -> str | None:
        found = self._folder.read_version(self._name)
        return found[0].decode("utf-8", "replace") if found is not None else None
