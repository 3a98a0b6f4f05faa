"""The complete stage collect, with real and generated dumps: every line is accounted for."""

from __future__ import annotations

import gzip
import json
import lzma
import random
import shutil
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import zstandard

from owt_pipeline.commands.verify import verify
from owt_pipeline.commands.why import asked_for, history, readers_of
from owt_pipeline.engine.runner import run_stage
from owt_pipeline.engine.stage import Runtime
from owt_pipeline.errors import UserError
from owt_pipeline.formats import lines
from owt_pipeline.formats.urls import canonical_url, host_of, id_of
from owt_pipeline.stages.collect.options import Options
from owt_pipeline.stages.collect.stage import STAGE
from owt_pipeline.storage.folder import Storage
from tests.owt_pipeline.collect.collecting import Collected, collect, collected
from tests.owt_pipeline.engine.test_graph import ELSEWHERE
from tests.owt_pipeline.runs import ask_owt, snapshot


def write_dump(path: Path, records: list[dict[str, Any] | str]) -> Path:
    """Write a dump of records or lines, compressed as its suffix tells."""
    texts = [record if isinstance(record, str) else json.dumps(record) for record in records]
    content = "".join(text + "\n" for text in texts).encode()
    by_suffix = {".zst": zstandard.compress, ".gz": gzip.compress}
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(by_suffix.get(path.suffix, bytes)(content))
    return path


def links(n: int, *, host: str = "site{}.example", start: int = 0) -> list[dict[str, Any] | str]:
    """Return n links, each posted once, on n // 10 hosts."""
    return [
        {
            "id": f"x{k}",
            "url": f"http://{host.format(k // 10)}/page/{k}",
            "score": 5,
            "is_self": False,
            "over_18": False,
            "created_utc": 1300000000 + k,
            "num_comments": 1,
            "subreddit": "test",
            "title": f"Page {k}",
        }
        for k in range(start, start + n)
    ]


def holds(run: Collected) -> bool:
    """Return whether `owt verify` finds no problem."""
    return all(not finding.problems for finding in verify(Storage(str(run.workdir))))


@pytest.mark.slow
def test_the_top_submissions_of_2013_are_accounted_for(testdata: Path, tmp_path: Path) -> None:
    run = collect(tmp_path, dumps=(str(testdata / "reddit" / "RS_2013-top.zst"),), num_shards=3)
    # The dump is real: any change of a rule or of parsing shows in these counts.
    assert str(run.manifest.counts) == (
        "99294 in = 20761 out + 3 bad_url + 44030 blocked_domain + 1939 blocked_extension + 621 "
        "low_score "
        "+ 1977 over_18 + 269 repeated_url + 29694 self_post"
    )
    assert holds(run)
    for row in run.urls:
        assert row["url"] == canonical_url(row["posted_url"])
        assert (row["url_id"], row["host"]) == (id_of(row["url"]), host_of(row["url"]))
        assert row["score"] >= 3
        assert row["submission_ids"]
        assert row["subreddits"]


@pytest.mark.parametrize(
    ("kind", "files", "num_entered", "num_urls"),
    [
        ("dumps", ("reddit/praw*.gz", "reddit/RS_v2_2005-06.xz"), 6785 + 103, 862),
        ("warcs", ("web/wcxb-dev.warc.gz",), 1308, 1304),
    ],
)
def test_recorded_api_answers_dumps_and_warc_files_are_read(
    testdata: Path,
    tmp_path: Path,
    kind: str,
    files: tuple[str, ...],
    num_entered: int,
    num_urls: int,
) -> None:
    run = collect(tmp_path, **{kind: tuple(str(testdata / file) for file in files)}, min_score=1)
    assert (run.manifest.counts.entered, run.manifest.counts.left) == (num_entered, num_urls)
    assert "bad_line" not in run.manifest.counts.rejected
    assert holds(run)


def test_bytes_depend_on_no_worker_runner_or_order_of_files(testdata: Path, tmp_path: Path) -> None:
    files = [testdata / "reddit" / name for name in ("RS_wcxb-dev.zst", "RS_v2_2005-06.xz")]
    (other := tmp_path / "elsewhere").mkdir()
    for file in files:
        shutil.copy(file, other)
    one = collect(tmp_path / "1", dumps=tuple(map(str, files)), workers=1)
    two = collect(tmp_path / "2", dumps=(str(other),), workers=2)
    assert one.manifest == two.manifest
    options = Options(dumps=tuple(map(str, reversed(files))))
    run_stage(STAGE, options, Runtime(Storage(str(tmp_path / "there")), 2, ELSEWHERE))
    assert one.bytes() == two.bytes() == collected(tmp_path / "there").bytes()


def test_variants_of_a_url_in_dumps_and_lists_are_one_row(tmp_path: Path) -> None:
    dump = write_dump(
        tmp_path / "RS_1.gz",
        [
            {
                "id": "b",
                "url": "http://www.example.com/a/?utm_source=x",
                "score": 4,
                "created_utc": 1_400_000_020,
                "subreddit": "s",
            },
            {
                "id": "a",
                "url": "https://EXAMPLE.com/a#top",
                "score": 9,
                "created_utc": 1_400_000_030,
                "subreddit": "r",
                "title": "T",
            },
        ],
    )
    listed = tmp_path / "list.txt.xz"
    listed.write_bytes(
        lzma.compress(b"# mine\n\nhttp://example.com:80/a\r\nexample.com/b\nhttps://example.com/c")
    )
    run = collect(tmp_path / "run", dumps=(str(dump),), links=(str(listed),), num_shards=1)
    (merged_row, other_row) = sorted(run.urls, key=lambda row: row["url"])
    assert (other_row["url"], other_row["score"], other_row["submission_ids"]) == (
        "https://example.com/c",
        None,
        [],
    )
    assert merged_row == {
        "url_id": id_of("https://example.com/a"),
        "url": "https://example.com/a",
        "host": "example.com",
        "posted_url": "http://www.example.com/a/?utm_source=x",
        "title": "T",
        "score": 9,
        "created_utc": 1_400_000_020,
        "subreddits": ["r", "s"],
        "num_comments": None,
        "submission_ids": ["a", "b"],
        "link_sources": ["links", "reddit"],
    }
    assert Counter(reject["reason"] for reject in run.rejects) == {"repeated_url": 2, "bad_url": 1}
    assert [r["detail"] for r in run.rejects if r["reason"] == "bad_url"] == [
        "no scheme such as https://; list.txt.xz:4"
    ]
    # Lists of links can be a table, such as urls/ of another run.
    rows_of_table = collect(
        tmp_path / "again", links=(str(tmp_path / "run/urls"),), num_shards=1
    ).urls
    assert rows_of_table == [
        {**row, "num_comments": None, "submission_ids": []} for row in run.urls
    ]


@pytest.mark.parametrize("created", [1_400_000_000_000, 2**62, -(2**62)])
def test_an_impossible_date_is_quoted_as_it_is(tmp_path: Path, created: int) -> None:
    record = {"id": "a", "url": "http://a.example/", "score": 5, "created_utc": created}
    run = collect(
        tmp_path / "run", dumps=(str(write_dump(tmp_path / "RS.ndjson", [record])),), num_shards=1
    )
    shown = history(readers_of(Storage(str(run.workdir))), asked_for("a.example"))
    assert shown is not None
    assert shown["stages"][0]["created_utc"] == created


def test_policies_decide_and_the_manifest_counts_the_rejects(tmp_path: Path) -> None:
    blocked = tmp_path / "blocked.txt"
    blocked.write_text("evil.example\n")
    link = {
        "score": 2,
        "is_self": False,
        "over_18": False,
        "created_utc": 1,
        "subreddit": "Books",
        "title": "t",
    }
    # Each score is high enough, so that only a rule rejects a submission.
    dump = write_dump(
        tmp_path / "RS.ndjson",
        [
            {**link, "id": "1", "url": "http://good.example/"},
            {**link, "id": "2", "url": "http://good.example"},
            {**link, "id": "3", "url": "http://sub.evil.example/"},
            {**link, "id": "4", "url": "http://good.example/2", "over_18": True, "score": 9},
            {**link, "id": "5", "url": "http://good.example/3", "subreddit": "spam", "score": 9},
            {**link, "id": "6", "url": "http://cgi.org/run", "score": 9},
            {**link, "id": "7", "url": "http://imgur.com/", "score": 9},
        ],
    )
    run = collect(
        tmp_path / "run",
        dumps=(str(dump),),
        min_score=2,
        blocked_domains=(str(blocked), "=cgi.org"),
        deny_subreddits=("r/Spam",),
        over_18=True,
    )
    assert run.manifest.counts.rejected == {
        "blocked_domain": 3,
        "blocked_subreddit": 1,
        "repeated_url": 1,
    }
    assert sorted((row["url"], row["score"]) for row in run.urls) == [
        ("https://good.example/", 2),
        ("https://good.example/2", 9),
    ]
    assert {"kind": "blocklist", "name": "=cgi.org"} in run.manifest.sources


def test_no_source_or_a_broken_blocklist_stops_with_one_line(
    tmp_path: Path,
) -> None:
    with pytest.raises(UserError, match=r"--dumps, --links, --warcs and --subreddits"):
        collect(tmp_path)
    with pytest.raises(UserError, match=r"no file matches '.*nothing\*'"):
        collect(tmp_path, dumps=(str(tmp_path / "nothing*"),))
    (listed := tmp_path / "urls.txt").write_text("http://a.example/")
    # Without its end, the list could let blocked domains through.
    (blocked := tmp_path / "domains.gz").write_bytes(gzip.compress(b"a.example\n" * 999)[:-9])
    with pytest.raises(UserError, match=r"domains\.gz is damaged or incomplete"):
        collect(tmp_path, workers=2, links=(str(listed),), blocked_domains=(str(blocked),))


def test_sources_may_be_deleted_once_they_are_published(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    dump = {"id": "1", "url": "https://a.example/1", "score": 5, "is_self": False}
    for path, text in {
        "old/RS_1.ndjson": json.dumps(dump),
        "old/RS_2.ndjson": json.dumps({**dump, "id": "2", "url": "https://a.example/2"}),
        "old/RS_3.ndjson": "",
        "tables/a.csv": "url\nhttps://b.example/1\n",
        "tables/b.csv": "url\nhttps://b.example/2\n",
        "new.csv": "url\nhttps://c.example/1\n",
    }.items():
        Path(path).parent.mkdir(exist_ok=True)
        Path(path).write_text(text)
    collect = ["run", "run", "--until", "collect", "--workers", 1, "--allow_damaged"]
    ask_owt(*collect, "--dumps", "old/*.ndjson", "--links", "tables")
    files_before = snapshot(tmp_path / "run")
    Path("old/RS_1.ndjson").unlink()
    shutil.rmtree("tables")
    # The run needs no file of a published generation, also if it takes another one.
    assert "(finished)" in ask_owt(*collect)
    assert snapshot(tmp_path / "run") == files_before
    ask_owt(*collect, "--links", "new.csv", "--add")
    assert len(collected(tmp_path / "run").urls) == 5
    damaged = collected(tmp_path / "run").manifest.properties["damaged"]
    assert damaged == [{"name": "RS_3.ndjson", "problem": damaged[0]["problem"], "lines": 0}]
    assert "cannot read old/RS_1.ndjson" in ask_owt(*collect, "--min_score", 4, code=1)
    assert len(collected(tmp_path / "run").urls) == 5


@pytest.mark.parametrize(
    ("shards", "expected"), [(0, 8), (8, 8), (8.1, 16), (17, 32), (64, 64), (1e6, 1 << 15)]
)
def test_shards_are_a_power_of_two_so_generations_share_hosts(shards: float, expected: int) -> None:
    source = {"kind": "dump", "bytes": int(shards * (100 << 20))}
    assert STAGE.shards_for(Options(), [source]) == expected
    assert STAGE.shards_for(Options(num_shards=5), [source]) == 5


# A record of each publisher, in its form: Pushshift's API, Arctic Shift's, and files per subreddit.
PUBLISHED = list(
    map(json.loads, Path(__file__).with_name("published.ndjson").read_text().splitlines())
)


def long_window(content: bytes) -> bytes:
    """Compress like the monthly dumps: `zstd --long=31`."""
    # Decompressors refuse a window of 2 GiB unless they are told to allow it.
    parameters = zstandard.ZstdCompressionParameters.from_level(3, window_log=31, enable_ldm=True)
    compressor = zstandard.ZstdCompressor(compression_params=parameters).compressobj()
    return compressor.compress(content) + compressor.flush()


def test_published_submissions_are_read(tmp_path: Path) -> None:
    folder = tmp_path / "dumps"
    for name, record in zip(
        ("pushshift.ndjson", "arctic_shift.ndjson", "submissions.zst"), PUBLISHED, strict=True
    ):
        write_dump(folder / name, [record])
    monthly = long_window(json.dumps(PUBLISHED[0]).encode())
    assert zstandard.get_frame_parameters(monthly).window_size == 1 << 31
    (folder / "RS_2020-01.zst").write_bytes(monthly)
    run = collect(tmp_path / "run", dumps=(str(folder),))
    assert str(run.manifest.counts) == "4 in = 3 out + 1 repeated_url"
    rows = sorted((row["submission_ids"], row["score"], row["created_utc"]) for row in run.urls)
    assert rows == sorted(
        ([record["id"]], record["score"], int(record["created_utc"])) for record in PUBLISHED
    )


def test_a_line_over_the_limit_is_an_error_without_allow_damaged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lines, "MAX_LINE_BYTES", 1 << 20)
    endless = json.dumps({**PUBLISHED[0], "title": random.Random(1).randbytes(9 << 20).hex()})
    dump = write_dump(tmp_path / "RS.zst", [*links(2), endless, *links(2, start=2)])
    with pytest.raises(
        UserError, match=r"RS\.zst: line 3 has over 1,048,576 bytes; expected a record on each line"
    ):
        collect(tmp_path / "run", dumps=(str(dump),))
    run = collect(tmp_path / "run", dumps=(str(dump),), allow_damaged=True)
    assert [reject["detail"] for reject in run.rejects] == ["over 1,048,576 bytes; RS.zst:3"]
    assert run.manifest.properties["damaged"][0]["problem"].startswith(
        "line 3 has over 1,048,576 bytes"
    )
    assert len(run.urls) == 4
    assert holds(run)


def test_broken_archives_are_an_error_without_allow_damaged(testdata: Path, tmp_path: Path) -> None:
    archives = str(testdata / "warc" / "*" / "*.warc*")
    with pytest.raises(
        UserError, match=r"broken records, the first is the record at byte .*; expected a complete"
    ):
        collect(tmp_path, warcs=(f"{archives[:-1]}.gz",), num_shards=2)
    run = collect(tmp_path, warcs=(archives,), num_shards=2, allow_damaged=True)
    assert len(run.urls) > 40
    assert (
        len(run.manifest.properties["damaged"]) >= run.manifest.counts.rejected["broken_file"] > 0
    )
    assert holds(run)
