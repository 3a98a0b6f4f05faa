"""Nothing ends silently short: pieces of each format are hollowed out, cut, and doubled.

A piece is a gzip member, a zstd frame, an xz or bzip2 stream, a WARC record or a Parquet row group.
A file that is not complete is an error, or gives all of its content.
"""

from __future__ import annotations

import base64
import bz2
import gzip
import io
import json
import lzma
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pyarrow.parquet.encryption as pe
import pytest
import zstandard

from owt_pipeline.errors import UserError
from owt_pipeline.formats.captures import Broken, captures
from owt_pipeline.formats.completeness import check_is_complete
from owt_pipeline.formats.lines import LineReader
from owt_pipeline.formats.records import read_records
from owt_pipeline.formats.warc import response_record, single_member
from owt_pipeline.stages.fetch.archives import commoncrawl

COMPRESS: dict[str, Callable[[bytes], bytes]] = {
    "gz": gzip.compress,
    "bz2": bz2.compress,
    "xz": lzma.compress,
    "zst": zstandard.ZstdCompressor(write_checksum=True).compress,
}
LINES = [json.dumps({"text": str(number) * 99}).encode() + b"\n" for number in range(4)]
WHERE = ["start", "middle", "end"]


def with_piece(pieces: list[bytes], piece: bytes, where: str) -> list[bytes]:
    """Return the pieces with another one at the start, in the middle or at the end."""
    position = {"start": 0, "middle": 2, "end": len(pieces)}[where]
    return [*pieces[:position], piece, *pieces[position:]]


def texts_in(path: Path) -> list[str]:
    """Return the texts of a file of records."""
    records = list(read_records(str(path), path.name, "jsonl", columns=None))
    assert all(record.fields for record in records)
    return [record.fields["text"] for record in records if record.fields]


@pytest.mark.parametrize("ending", COMPRESS)
@pytest.mark.parametrize("where", WHERE)
def test_an_empty_frame_does_not_end_a_file_of_lines(
    tmp_path: Path, ending: str, where: str
) -> None:
    frames = with_piece(list(map(COMPRESS[ending], LINES)), COMPRESS[ending](b""), where)
    path = tmp_path / f"a.jsonl.{ending}"
    path.write_bytes(b"".join(frames))
    assert texts_in(path) == [str(number) * 99 for number in range(4)]
    reader = LineReader(io.BytesIO(path.read_bytes()))
    assert b"\n".join(block.data for block in reader) == b"".join(LINES).rstrip()
    assert reader.source.broken is None


@pytest.mark.parametrize("ending", COMPRESS)
def test_a_doubled_frame_is_read_twice(tmp_path: Path, ending: str) -> None:
    path = tmp_path / f"a.jsonl.{ending}"
    path.write_bytes(COMPRESS[ending](b"".join(LINES)) * 2)
    assert len(texts_in(path)) == 8


@pytest.mark.parametrize("ending", COMPRESS)
def test_a_cut_frame_is_an_error_at_every_byte(tmp_path: Path, ending: str) -> None:
    frames = list(map(COMPRESS[ending], LINES))
    complete = b"".join(frames)
    path = tmp_path / f"a.jsonl.{ending}"
    for num_missing in range(1, len(frames[-1])):
        data = complete[: len(complete) - num_missing]
        path.write_bytes(data)
        with pytest.raises(UserError, match="is damaged or incomplete"):
            texts_in(path)
        reader = LineReader(io.BytesIO(data))
        assert len(list(reader)) == 1
        assert reader.source.broken


def warc_records(compressed: bool) -> list[bytes]:
    """Return four records, as gzip members or plain."""
    records = [
        response_record(f"http://a.example/{number}", 1, "HTTP/1.1 200 OK", [], b"a page " * 9)
        for number in range(4)
    ]
    if compressed:
        return records
    return [single_member(record, 1 << 20)[1] for record in records]


def found_in(data: bytes) -> list[str | None]:
    """Return the last character of each capture's URL, None for a broken record."""
    found = captures(io.BytesIO(data), len(data))
    return [None if isinstance(capture, Broken) else capture.url[-1] for capture in found]


@pytest.mark.parametrize("where", WHERE)
@pytest.mark.parametrize("content", [b"", b"\r\n\r\n"])
@pytest.mark.parametrize("number", [1, 3])
def test_hollow_gzip_members_do_not_end_a_warc_file(
    where: str, content: bytes, number: int
) -> None:
    hollow = gzip.compress(content) * number
    assert found_in(b"".join(with_piece(warc_records(True), hollow, where))) == list("0123")


@pytest.mark.parametrize("where", ["middle", "end"])
@pytest.mark.parametrize("blank", [b"\r\n", b"\n\n\n", b"\r\n" * 99_999])
def test_blank_lines_do_not_end_a_plain_warc_file(where: str, blank: bytes) -> None:
    assert found_in(b"".join(with_piece(warc_records(False), blank, where))) == list("0123")


JUNK = [b"<html>", b"WARC", bytes(5000), gzip.compress(b"x", mtime=0), b"\x1f\x8b\x08" + bytes(90)]


@pytest.mark.parametrize("junk", JUNK)
@pytest.mark.parametrize("compressed", [True, False])
@pytest.mark.parametrize("where", ["middle", "end"])
def test_bytes_that_are_not_a_record_are_named(junk: bytes, compressed: bool, where: str) -> None:
    names = found_in(b"".join(with_piece(warc_records(compressed), junk, where)))
    num_before = 2 if where == "middle" else 4
    assert names == [*"0123"[:num_before], None]


@pytest.mark.parametrize("compressed", [True, False])
def test_a_cut_warc_file_is_broken_at_every_byte(compressed: bool) -> None:
    records = warc_records(compressed)
    complete = b"".join(records)
    # Of a plain record, the blank lines after it are not content.
    num_blank = 0 if compressed else 4
    for num_missing in range(num_blank + 1, len(records[-1])):
        names = found_in(complete[: len(complete) - num_missing])
        assert names[-1] is None, num_missing
        assert names[:3] == list("012")


@pytest.mark.parametrize("compressed", [True, False])
def test_doubled_warc_records_are_read_twice(compressed: bool) -> None:
    assert found_in(b"".join(warc_records(compressed) * 2)) == list("01230123")


def short_parquet(path: Path) -> None:
    """Write a Parquet file that declares 104 rows, whose column has 100 values.

    The footer is a struct in Thrift's compact protocol: a byte names type and number of a
    field, here 16 hex for an i64, and numbers are zigzag varints. The rows of the file come first, then
    the values of the column, then the rows of the row group.
    """
    buffer = io.BytesIO()
    table = pa.table({"text": pa.array(["same"] * 100)})
    pq.write_table(table, buffer, store_schema=False, write_statistics=False)
    hundred = b"\x16\xc8\x01"
    more = b"\x16\xd0\x01"
    before, values, rows, after = buffer.getvalue().split(hundred)
    path.write_bytes(before + more + values + hundred + rows + more + after)
    assert pq.read_metadata(path).num_rows == 104


def test_fewer_rows_than_a_parquet_file_declares_are_an_error(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    short_parquet(path)
    with pytest.raises(UserError, match=r"a\.parquet .*row group 0 declares 104 rows, but has 100"):
        list(read_records(str(path), "a", "parquet", columns=None))
    # A file of Common Crawl's index is read by row group.
    with pytest.raises(OSError, match="row group 0 declares 104 rows, but has 100"):
        commoncrawl._read_group(pq.ParquetFile(path), 0, ["text"])


def test_the_check_names_piece_and_numbers() -> None:
    check_is_complete("row group 1", 5, 5, "rows")
    with pytest.raises(OSError, match="row group 1 declares 5 rows, but has 2: the file is dam"):
        check_is_complete("row group 1", 2, 5, "rows")


class KeptKeys(pe.KmsClient):
    """A key service that stores keys in the file, which is enough for a test."""

    def wrap_key(self, key_bytes: bytes, _master_key: str) -> bytes:
        return base64.b64encode(key_bytes)

    def unwrap_key(self, wrapped_key: bytes, _master_key: str) -> bytes:
        return base64.b64decode(wrapped_key)


@pytest.mark.parametrize("has_plain_footer", [True, False])
def test_an_encrypted_column_is_an_error_that_names_the_file(
    tmp_path: Path, has_plain_footer: bool
) -> None:
    path = tmp_path / "a.parquet"
    table = pa.table({"text": ["a secret"], "url": ["http://a.example/"]})
    properties = pe.CryptoFactory(lambda _: KeptKeys()).file_encryption_properties(
        pe.KmsConnectionConfig(),
        pe.EncryptionConfiguration(
            footer_key="f", column_keys={"k": ["text"]}, plaintext_footer=has_plain_footer
        ),
    )
    with pq.ParquetWriter(path, table.schema, encryption_properties=properties) as writer:
        writer.write_table(table)
    with pytest.raises(UserError, match=r"a\.parquet cannot be read as Parquet: .*crypt"):
        list(read_records(str(path), "a", "parquet", columns=["text"]))
    if has_plain_footer:
        (record,) = read_records(str(path), "a", "parquet", columns=["url"])
        assert record.fields == {"url": "http://a.example/"}
