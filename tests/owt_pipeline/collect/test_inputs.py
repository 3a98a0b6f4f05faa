"""Inputs: published files are read; a damaged file, or one of another kind, is an error that says what to do."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest
import zstandard

from owt_pipeline.errors import UserError
from owt_pipeline.formats import lines
from tests.owt_pipeline.collect.collecting import collect
from tests.owt_pipeline.collect.test_stage import holds, links, write_dump

# As each publisher has them, one record of each: Pushshift's API, Arctic Shift's, and files per subreddit.
PUBLISHED = list(map(json.loads, Path(__file__).with_name("published.ndjson").read_text().splitlines()))


def long_window(content: bytes) -> bytes:
    """Compress like the monthly dumps: `zstd --long=31`."""
    parameters = zstandard.ZstdCompressionParameters.from_level(3, window_log=31, enable_ldm=True)
    compressor = zstandard.ZstdCompressor(compression_params=parameters).compressobj()
    return compressor.compress(content) + compressor.flush()


@pytest.mark.parametrize(
    ("name", "of"), [("RS_2020-01.zst", 0), ("pushshift.ndjson", 0), ("arctic_shift.ndjson", 1), ("submissions.zst", 2)]
)
def test_published_submissions_are_read(tmp_path: Path, name: str, of: int) -> None:
    record = PUBLISHED[of]
    path = write_dump(tmp_path / name, [record])
    if name.startswith("RS_"):
        path.write_bytes(long_window(json.dumps(record).encode()))
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
    assert holds(run)


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


def test_broken_archives_are_an_error_without_allow_damaged(testdata: Path, tmp_path: Path) -> None:
    archives = str(testdata / "warc" / "*" / "*arc*")
    with pytest.raises(UserError, match=r"broken records, the first is the record at byte .*; expected a complete"):
        collect(tmp_path, warcs=(archives,), num_shards=2)
    run = collect(tmp_path, warcs=(archives,), num_shards=2, allow_damaged=True)
    assert len(run.urls) > 40
    assert len(run.manifest.properties["damaged"]) >= run.manifest.counts.rejected["broken_file"] > 0
    assert holds(run)
