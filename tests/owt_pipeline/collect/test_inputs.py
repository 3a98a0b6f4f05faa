"""Inputs: published files are read; a damaged file, or one of another kind, is an error that says what to do."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest
import zstandard

from owt_pipeline.errors import UserError
from owt_pipeline.formats import lines
from owt_pipeline.stages.collect.sources import Tally
from tests.owt_pipeline.collect.collecting import Collected, collect
from tests.owt_pipeline.collect.test_stage import holds, links, write_dump

# As each publisher has them, one record of each: Pushshift's API, Arctic Shift's, and files per subreddit.
PUBLISHED = list(map(json.loads, Path(__file__).with_name("published.ndjson").read_text().splitlines()))
COMMENT = {
    "id": "c0001", "body": "I agree", "link_id": "t3_7n001", "parent_id": "t3_7n001", "score": 3,
    "created_utc": 1230768001, "subreddit": "test", "author": "d",
}  # fmt: skip


def long_window(content: bytes) -> bytes:
    """Compress like the monthly dumps: `zstd --long=31`."""
    parameters = zstandard.ZstdCompressionParameters.from_level(3, window_log=31, enable_ldm=True)
    compressor = zstandard.ZstdCompressor(compression_params=parameters).compressobj()
    return compressor.compress(content) + compressor.flush()


def tallies(run: Collected) -> dict[str, Tally]:
    content = (run.workdir / "ledger" / "urls" / "inputs.json").read_bytes()
    return {tally.name: tally for tally in msgspec.json.decode(content, type=list[Tally])}


@pytest.mark.parametrize(
    ("name", "of"), [("RS_2020-01.zst", 0), ("pushshift.ndjson", 0), ("arctic_shift.ndjson", 1), ("submissions.zst", 2)]
)
def test_published_submissions_are_read(tmp_path: Path, name: str, of: int) -> None:
    record = PUBLISHED[of]
    path = write_dump(tmp_path / name, [record])
    if name.startswith("RS_"):
        path.write_bytes(long_window(json.dumps(record).encode() + b"\n"))
        assert zstandard.get_frame_parameters(path.read_bytes()).window_size == 1 << 31
    run = collect(tmp_path / "run", dumps=(str(path),))
    (row,) = run.urls
    assert (row["submission_ids"], row["score"]) == ([record["id"]], record["score"])
    assert row["created_utc"] == int(record["created_utc"])


@pytest.mark.parametrize(("suffix", "workers"), [(".zst", 2), (".zst", 1), (".xz", 1), (".bz2", 1), (".gz", 1)])
def test_a_truncated_dump_is_an_error_without_allow_damaged(
    suffix: str, workers: int, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    dump = write_dump(tmp_path / f"RS_cut{suffix}", links(60_000 if suffix == ".bz2" else 8000))
    size = dump.stat().st_size * 9 // 10
    dump.write_bytes(dump.read_bytes()[:size])
    with pytest.raises(UserError) as error:
        collect(tmp_path / "run", workers=workers, dumps=(str(dump),))
    said = str(error.value)
    assert said.startswith(f"{dump}: after line ")
    assert f"the file ends at byte {size:,}" in said
    assert "fetch it again and compare its checksum, or take what can be read with --allow_damaged" in said
    assert "\n" not in said

    run = collect(tmp_path / "run", workers=workers, dumps=(str(dump),), allow_damaged=True)
    assert 1000 < len(run.urls) < 60_000
    (reject,) = run.rejects
    assert reject["reason"] == "broken_file"
    assert f"the file ends at byte {size:,}" in reject["detail"]
    assert reject["detail"].endswith(f"RS_cut{suffix}:{len(run.urls) + 1}")
    (damaged,) = run.manifest.properties["damaged"]
    assert (damaged["name"], damaged["lines"]) == (dump.name, len(run.urls))
    assert f"the file ends at byte {size:,}" in damaged["problem"]
    assert damaged["problem"] in caplog.text
    assert run.manifest.stats["broken_files"] == 1
    assert holds(run)


def corrupt(data: bytes) -> bytes:
    return data[: len(data) // 2] + bytes(64) + data[len(data) // 2 + 64 :]


DAMAGES: dict[str, tuple[Callable[[bytes], bytes], str]] = {
    "RS_corrupt.zst": (lambda data: corrupt(zstandard.ZstdCompressor(write_checksum=True).compress(data)), "at byte"),
    "RS_none.zst": (lambda data: b"", "the file has no bytes"),
    "RS_none": (lambda data: b"", "the file has no bytes"),
    "RS_blank": (lambda data: b"\n\n\n", "the file has no lines; expected a complete file"),
    "RS_no_lines.zst": (lambda data: zstandard.compress(b""), "the file has no lines"),
    "RS_cut": (lambda data: data[:-40], "after line 500: the file ends in the middle of line 500; expected a complete"),
    "RS_cut.zst": (lambda data: zstandard.compress(data[:-40]), "the file ends in the middle of line 500"),
    "RS_comments.zst": (
        lambda data: zstandard.compress(9 * (json.dumps(COMMENT).encode() + b"\n")),
        "line 1: comments; expected submissions, whose dumps are called RS_YYYY-MM and *_submissions: leave it out",
    ),
    "array.json": (
        lambda data: b" [" + b",\n".join(data.splitlines()) + b"]",
        "line 1: a JSON array; expected one JSON object per line: convert it (jq -c '.[]' array.json)",
    ),
    "response.json": (
        lambda data: b'{"data": [' + b",".join(data.splitlines()) + b"]}",
        "line 1: an API's response; expected one submission a line: convert it (jq -c '.data[]' response.json)",
    ),
    "wide.ndjson": (
        lambda data: data.decode().encode("utf-16"),
        "line 1: UTF-16; expected UTF-8: convert it (iconv -f UTF-16 -t UTF-8 wide.ndjson)",
    ),
    "wide_without_mark.ndjson": (lambda data: data.decode().encode("utf-16-be"), "line 1: UTF-16"),
    "RS_page.zst": (
        lambda data: b"<html>\n<title>404</title>\n</html>\n",
        "3 of 3 lines are malformed, the first is line 1: not JSON",
    ),
    "half.ndjson": (
        lambda data: data + data.replace(b'{"id', b'{"id": "id'),
        "expected a submission as a JSON object on each line: check what the file is, or take",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", DAMAGES)
def test_a_file_that_is_not_a_dump_is_a_one_line_error(tmp_path: Path, name: str) -> None:
    damage, expected = DAMAGES[name]
    content = "".join(json.dumps(link) + "\n" for link in links(500)).encode()
    (tmp_path / name).write_bytes(damage(content + b"{}\n" if name == "half.ndjson" else content))
    with pytest.raises(UserError) as error:
        collect(tmp_path / "run", dumps=(str(tmp_path / name),))
    assert str(error.value).startswith(str(tmp_path / name))
    assert expected in str(error.value)
    assert "\n" not in str(error.value)


def test_each_file_has_a_tally(tmp_path: Path) -> None:
    one = write_dump(tmp_path / "RS_1.gz", [*links(7), "{", {**COMMENT}])
    two = write_dump(tmp_path / "RS_2.ndjson", [{**links(1)[0], "is_self": True}])  # type: ignore[dict-item]
    run = collect(tmp_path / "run", dumps=(str(one), str(two)))
    found = tallies(run)
    assert list(found) == ["RS_1.gz", "RS_2.ndjson"]
    first, second = found.values()
    assert (first.lines, first.malformed, first.rejected) == (9, 2, {"bad_line": 2})
    assert first.first_malformed.startswith("line 8: not JSON")
    assert first.bytes_read == one.stat().st_size
    assert second.rejected == {"self_post": 1}
    assert "damaged" not in run.manifest.properties


def test_a_line_over_the_limit_is_an_error_without_allow_damaged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lines, "MAX_LINE_BYTES", 1 << 20)
    endless = json.dumps({**PUBLISHED[0], "title": random.Random(1).randbytes(9 << 20).hex()})
    dump = write_dump(tmp_path / "RS.zst", [*links(2), endless, *links(2, start=2)])
    with pytest.raises(UserError, match=r"RS\.zst: line 3 has over 1,048,576 bytes; expected a record on each line"):
        collect(tmp_path / "run", dumps=(str(dump),))
    run = collect(tmp_path / "run", dumps=(str(dump),), allow_damaged=True)
    assert [reject["detail"] for reject in run.rejects] == ["over 1,048,576 bytes; RS.zst:3"]
    assert run.manifest.properties["damaged"][0]["problem"].startswith("line 3 has over 1,048,576 bytes")
    assert len(run.urls) == 4
    assert holds(run)


def test_a_dump_cut_in_its_last_line_gives_all_lines_before_with_allow_damaged(tmp_path: Path) -> None:
    (tmp_path / "RS").write_text("".join(json.dumps(link) + "\n" for link in links(50))[:-40])
    run = collect(tmp_path / "run", dumps=(str(tmp_path / "RS"),), allow_damaged=True)
    assert len(run.urls) == 49
    assert run.manifest.counts.rejected == {"bad_line": 1, "broken_file": 1}
    assert run.manifest.properties["damaged"][0]["problem"].startswith("after line 50: the file ends in the middle")
    (tmp_path / "RS").write_text("".join(json.dumps(link) + "\n" for link in links(50))[:-1])  # no line end is fine
    assert len(collect(tmp_path / "complete", dumps=(str(tmp_path / "RS"),)).urls) == 50


def test_broken_archives_are_an_error_without_allow_damaged(testdata: Path, tmp_path: Path) -> None:
    archives = str(testdata / "warc" / "*" / "*arc*")
    with pytest.raises(UserError, match=r"broken records, the first is the record at byte .*; expected a complete"):
        collect(tmp_path, warcs=(archives,), num_shards=2)
    run = collect(tmp_path, warcs=(archives,), num_shards=2, allow_damaged=True)
    assert len(run.urls) > 40
    assert run.manifest.counts.rejected["broken_file"] == run.manifest.stats["broken_files"] > 0
    assert len(run.manifest.properties["damaged"]) >= run.manifest.stats["broken_files"]
    assert holds(run)
