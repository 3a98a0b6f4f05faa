"""Files of every kind are read line by line to their end, or to the piece with the damage."""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import random
import re
import tracemalloc
from collections.abc import Callable

import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from owt_pipeline.formats import lines
from owt_pipeline.formats.lines import Decompressed, LineReader


def _zst(content: bytes) -> bytes:
    return zstandard.ZstdCompressor(write_checksum=True).compress(content)


COMPRESS: dict[str, Callable[[bytes], bytes]] = {
    "zst": _zst,
    "xz": lzma.compress,
    "bz2": bz2.compress,
    "gz": lambda content: gzip.compress(content, mtime=0),
}
PADDING = {
    "zst": b"\x50\x2a\x4d\x18\x03\x00\x00\x00abc",
    "xz": bytes(8),
    "bz2": b"",
    "gz": bytes(512),
}
"""What may be between and after frames: a skippable frame, zeros."""

RECORDS = [
    b'{"id": "%d", "title": "%s"}' % (k, random.Random(k).randbytes(20).hex().encode())
    for k in range(8000)
]
CONTENT = b"\n".join(RECORDS) + b"\n"


def read(data: bytes, block_bytes: int = 1 << 16) -> tuple[list[bytes], str | None]:
    reader = LineReader(io.BytesIO(data), block_bytes)
    found: list[bytes] = []
    for block in reader:
        assert block.first_line == len(found) + 1
        found += block.data.split(b"\n")
    return found, reader.source.broken


@pytest.mark.parametrize("name", COMPRESS)
def test_frames_follow_each_other_and_lines_run_across_them(name: str) -> None:
    compress, third = COMPRESS[name], len(CONTENT) // 3
    pieces = [CONTENT[:third], CONTENT[third : third + 1], b"", CONTENT[third + 1 :]]
    data = b"".join(compress(piece) + PADDING[name] for piece in pieces)
    assert read(data) == (RECORDS, None)


def test_plain_files_and_empty_ones_are_read() -> None:
    assert read(CONTENT) == (RECORDS, None)
    assert read(CONTENT[:-1]) == (RECORDS, None)
    assert read(b"") == ([], None)
    assert read(_zst(b"")) == ([], None)


@pytest.mark.parametrize("is_cut", [True, False])
@pytest.mark.parametrize("name", COMPRESS)
def test_a_damaged_file_keeps_complete_records_before_the_damage(name: str, is_cut: bool) -> None:
    compress, half = COMPRESS[name], CONTENT.index(b"\n", len(CONTENT) // 2) + 1
    first, second = compress(CONTENT[:half]), compress(CONTENT[half:])
    middle = len(second) // 2
    found, broken = read(
        first + second[:middle] + (b"" if is_cut else bytes(64) + second[middle + 64 :])
    )
    known = CONTENT[:half].count(b"\n")
    assert found[:known] == RECORDS[:known]
    assert broken is not None
    if is_cut:
        assert found == RECORDS[: len(found)]
        assert (
            broken
            == f"{name}: the file ends at byte {len(first) + middle:,}, in the middle of its data"
        )
    else:
        place = int(re.search(r"byte ([\d,]+)", broken)[1].replace(",", ""))  # type: ignore[index]
        assert len(first) < place <= len(first) + len(second)


def test_trailing_garbage_is_a_break() -> None:
    found, broken = read(_zst(CONTENT) + b"<html>404</html>")
    assert found == RECORDS
    assert broken is not None
    assert f"byte {len(_zst(CONTENT)):,}" in broken


def test_complete_record_without_newline_survives_truncation() -> None:
    cut = _zst(b'{"id": 1}\n{"id": 2}')
    stream = zstandard.ZstdCompressor().compressobj()
    cut = stream.compress(b'{"id": 1}\n{"id": 2}') + stream.flush(zstandard.COMPRESSOBJ_FLUSH_BLOCK)
    assert read(cut)[0] == [b'{"id": 1}', b'{"id": 2}']
    stream = zstandard.ZstdCompressor().compressobj()
    cut = stream.compress(b"http://a.com/\nhttp://b.co") + stream.flush(
        zstandard.COMPRESSOBJ_FLUSH_BLOCK
    )
    assert read(cut)[0] == [b"http://a.com/"]


@given(
    st.lists(st.binary(max_size=30).map(lambda line: line.replace(b"\n", b"")), max_size=30),
    st.integers(1, 64),
)
def test_blocks_of_any_size_hold_the_lines_of_the_file(
    texts: list[bytes], block_bytes: int
) -> None:
    texts = [b"plain", *texts]  # not the magic number of a format
    content = b"\n".join(texts) + b"\n"
    found = [
        (block.first_line + k, line)
        for block in LineReader(io.BytesIO(content), block_bytes)
        for k, line in enumerate(block.data.split(b"\n"))
    ]
    assert found == list(enumerate(texts, 1))


def test_memory_does_not_grow_with_the_file() -> None:
    data = _zst(CONTENT) * 100
    tracemalloc.start()
    count = sum(block.data.count(b"\n") + 1 for block in LineReader(io.BytesIO(data)))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert count == 100 * len(RECORDS)
    assert peak < 24 << 20


@pytest.mark.parametrize("block_bytes", [1 << 10, 1 << 16, 1 << 22])
def test_overlong_line_is_skipped_and_counted_once(
    monkeypatch: pytest.MonkeyPatch, block_bytes: int
) -> None:
    monkeypatch.setattr(lines, "MAX_LINE_BYTES", 1 << 20)
    long = random.Random(1).randbytes(3 << 20).hex().encode()
    texts = [b"first", b"second", long, b"fourth", long, long, b"", b"eighth"]
    reader = LineReader(io.BytesIO(_zst(b"\n".join(texts) + b"\n")), block_bytes)
    found: dict[int, bytes] = {}
    for block in reader:
        assert len(block.data) < 4 << 20
        pieces = block.data.split(b"\n")
        found.update(enumerate(pieces, block.first_line))
    assert reader.overlong == [3, 5, 6]
    assert found == {number: text for number, text in enumerate(texts, 1) if text != long}
    endless = LineReader(io.BytesIO(long), block_bytes)
    assert list(endless) == []
    assert endless.overlong == [1]


def test_runs_of_zeros_do_not_fill_the_memory() -> None:
    data = _zst(bytes(100 << 20)) * 10
    content = Decompressed(io.BytesIO(data))
    tracemalloc.start()
    size = sum(iter(lambda: content.readinto(bytearray(1 << 20)), 0))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert size == 1000 << 20
    assert peak < 300 << 20
