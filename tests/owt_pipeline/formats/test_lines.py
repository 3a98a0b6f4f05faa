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
# What may be between and after frames: a skippable frame, or zeros.
PADDING = {
    "zst": b"\x50\x2a\x4d\x18\x03\x00\x00\x00abc",
    "xz": bytes(8),
    "bz2": b"",
    "gz": bytes(512),
}

RECORDS = [
    b'{"id": "%d", "title": "%s"}' % (k, random.Random(k).randbytes(20).hex().encode())
    for k in range(8000)
]
CONTENT = b"\n".join(RECORDS) + b"\n"


def read(data: bytes, block_bytes: int = 1 << 16) -> tuple[list[bytes], str | None]:
    """Return the lines of a file, and the description of its damage."""
    reader = LineReader(io.BytesIO(data), block_bytes)
    all_lines: list[bytes] = []
    for block in reader:
        assert block.first_line == len(all_lines) + 1
        all_lines += block.data.split(b"\n")
    return all_lines, reader.source.broken


@pytest.mark.parametrize("name", COMPRESS)
def test_frames_follow_each_other_and_lines_run_across_them(name: str) -> None:
    compress = COMPRESS[name]
    third = len(CONTENT) // 3
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
    compress = COMPRESS[name]
    half = CONTENT.index(b"\n", len(CONTENT) // 2) + 1
    first = compress(CONTENT[:half])
    second = compress(CONTENT[half:])
    middle = len(second) // 2
    damaged = second[:middle]
    if not is_cut:
        damaged += bytes(64) + second[middle + 64 :]
    records, broken = read(first + damaged)
    num_undamaged = CONTENT[:half].count(b"\n")
    assert records[:num_undamaged] == RECORDS[:num_undamaged]
    assert broken is not None
    if is_cut:
        assert records == RECORDS[: len(records)]
        end = len(first) + middle
        assert broken == f"{name}: the file ends at byte {end:,}, in the middle of its data"
    else:
        match = re.search(r"byte ([\d,]+)", broken)
        assert match is not None
        position = int(match[1].replace(",", ""))
        assert len(first) < position <= len(first) + len(second)


def test_trailing_garbage_is_a_break() -> None:
    records, broken = read(_zst(CONTENT) + b"<html>404</html>")
    assert records == RECORDS
    assert broken is not None
    assert f"byte {len(_zst(CONTENT)):,}" in broken


def test_complete_record_without_newline_survives_truncation() -> None:
    records, _ = read(_unfinished(b'{"id": 1}\n{"id": 2}'))
    assert records == [b'{"id": 1}', b'{"id": 2}']
    # A line of text does not show whether it is complete.
    records, _ = read(_unfinished(b"http://a.com/\nhttp://b.co"))
    assert records == [b"http://a.com/"]


def _unfinished(content: bytes) -> bytes:
    """Return a Zstandard frame with all of a content, but without its end."""
    stream = zstandard.ZstdCompressor().compressobj()
    return stream.compress(content) + stream.flush(zstandard.COMPRESSOBJ_FLUSH_BLOCK)


@given(
    st.lists(st.binary(max_size=30).map(lambda line: line.replace(b"\n", b"")), max_size=30),
    st.integers(1, 64),
)
def test_blocks_of_any_size_hold_the_lines_of_the_file(
    texts: list[bytes], block_bytes: int
) -> None:
    # The file must not begin with the magic number of a format.
    texts = [b"plain", *texts]
    content = b"\n".join(texts) + b"\n"
    numbered_lines = []
    for block in LineReader(io.BytesIO(content), block_bytes):
        numbered_lines += enumerate(block.data.split(b"\n"), block.first_line)
    assert numbered_lines == list(enumerate(texts, 1))


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
    line_by_number: dict[int, bytes] = {}
    for block in reader:
        assert len(block.data) < 4 << 20
        pieces = block.data.split(b"\n")
        line_by_number.update(enumerate(pieces, block.first_line))
    assert reader.overlong == [3, 5, 6]
    assert line_by_number == {number: text for number, text in enumerate(texts, 1) if text != long}
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
