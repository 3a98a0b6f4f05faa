"""The source `commoncrawl` in bulk: a join with an index of many rows, and real pages read by
range."""

from __future__ import annotations

import contextlib
import io
import random
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
from fastwarc.warc import ArchiveIterator

from owt_pipeline.engine.runner import run_stage
from owt_pipeline.engine.stage import Runtime
from owt_pipeline.errors import UserError
from owt_pipeline.formats.urls import BadURL, canonical_url
from owt_pipeline.formats.warc import gzip_member, response_record, single_member
from owt_pipeline.stages.fetch.options import Options
from owt_pipeline.stages.fetch.stage import STAGE
from owt_pipeline.storage.folder import Storage
from schemas.manifest import Manifest
from tests.owt_pipeline.fetch.archive_server import AGENT, CRAWLS, HTML, Answer, CommonCrawl
from tests.owt_pipeline.fetch.columnar import INDEX, parquet, publish, row, table
from tests.owt_pipeline.fetch.conftest import Write, write_urls_to
from tests.owt_pipeline.fetch.reading import reader, records, rejects, responses
from tests.owt_pipeline.runs import copy_of
from tests.servers.s3 import s3_bucket

NUM_FILLERS = 6_000
NUM_FILES = 3


@dataclass(frozen=True)
class Large:
    """An archive of two crawls with MADE rows in FILES files each, among them real pages, and a
    run of it."""

    server: CommonCrawl
    rows: list[dict[str, Any]]
    runtime: Runtime
    manifest: Manifest


@pytest.fixture(scope="module")
def large(testdata: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Large]:
    """Serve a large archive, of which a run has fetched the real pages."""
    server = CommonCrawl()
    rows = []
    posted = []
    rng = random.Random(0)
    files: dict[str, bytes] = {
        f"crawl-data/{CRAWLS[0]}/segments/1/warc/{n:05d}.warc.gz": b"" for n in range(5)
    }
    with open(testdata / "web" / "wcxb-dev.warc.gz", "rb") as stream:
        for number, record in enumerate(islice(ArchiveIterator(stream, parse_http=False), 350)):
            url = record.headers["WARC-Target-URI"]
            try:
                canonical_url(url)
            except BadURL:
                continue
            name = rng.choice(list(files))
            content = record.reader.read()
            record.set_bytes_content(content)
            plain = io.BytesIO()
            record.write(plain)
            member = gzip_member(plain.getvalue())
            rows.append(row(url, 1_400_000_000 + number, name, len(files[name]), len(member)))
            files[name] += member
            posted.append(url)
    server.files.update(files)
    fillers = [
        row(
            f"https://filler{n % 997}.{'com de net org uk'.split()[n % 5]}/articles/{n}.html",
            n,
            f"{n}",
            n,
            1000,
        )
        for n in range(NUM_FILLERS)
    ]
    publish(server.files, {CRAWLS[0]: table(rows + fillers), CRAWLS[1]: table(fillers)}, NUM_FILES)
    requested_urls = posted[:300] + [f"https://absent.example/{n}" for n in range(300)]
    runtime = write_urls_to(tmp_path_factory.mktemp("large") / "run", requested_urls, 4)
    manifest = server.fetch(runtime, cc_crawls=CRAWLS)
    yield Large(server, rows, runtime, manifest)
    server.close()


def test_real_pages_keep_their_archived_bytes(large: Large) -> None:
    assert sum(f"{INDEX}/" in name for name in large.server.files) == 2 * NUM_FILES
    rows = reader(large.runtime, large.manifest).table().to_pylist()
    captures: dict[str, dict[tuple[str, int], int]] = {}
    for index_row in large.rows:
        place = index_row["warc_filename"], index_row["warc_record_offset"]
        captures_of_url = captures.setdefault(canonical_url(index_row["url"]), {})
        captures_of_url[place] = index_row["warc_record_length"]
    pages = reader(large.runtime, large.manifest)
    assert len(rows) == large.manifest.stats["from_commoncrawl"] > 290
    record_by_id = records(large.runtime, large.manifest)
    for page in pages.table().to_pylist():
        name, offset = page["archive_file"], page["archive_offset"]
        assert (page["source"], page["crawl"]) == ("commoncrawl", CRAWLS[0])
        end = offset + captures[page["url"]][name, offset]
        assert record_by_id[page["url_id"]] == large.server.files[name][offset:end]
    reject_by_url = rejects(large.runtime, large.manifest)
    absent = {url: reject for url, reject in reject_by_url.items() if "absent.example" in url}
    assert len(absent) == 300
    assert set(absent.values()) == {
        ("not_archived", f"no capture of a page in {', '.join(CRAWLS)}")
    }
    num_read = sum(
        count for path, count in large.server.num_by_path.items() if path.endswith(".warc.gz")
    )
    assert num_read == len(rows), "each record once"
    assert large.manifest.properties["commoncrawl"] == {
        "index": f"{large.server.folder}/{INDEX}", "crawls": list(CRAWLS), "files": 2 * NUM_FILES
    }  # fmt: skip


@pytest.mark.parametrize("kind", ["disk", "web server", pytest.param("s3", marks=pytest.mark.slow)])
def test_a_copy_of_the_archive_gives_the_same_pages(
    kind: str, large: Large, tmp_path: Path
) -> None:
    with contextlib.ExitStack() as stack:
        if kind == "web server":
            # The first request for each file is refused: of records by 503, of the index by 403.
            root = f"{large.server.url}/data"
            busy = {True: Answer(503), False: Answer(403)}
            large.server.way = lambda path, count: (
                busy[path.endswith(".warc.gz")] if count == 1 else None
            )
        else:
            root = str(tmp_path / "copy") if kind == "disk" else stack.enter_context(s3_bucket())
            copy = Storage(root)
            for name, content in large.server.files.items():
                copy.write(name, content)
        runtime = Runtime(
            Storage(
                str(copy_of(Path(str(large.runtime.workdir)), tmp_path / "run", without=("pages",)))
            )
        )
        large.server.num_by_path.clear()
        copied = Options(
            sources=("commoncrawl",),
            cc_index=f"{root}/{INDEX}",
            cc_crawls=CRAWLS,
            cc_delay=0,
            user_agent=AGENT,
        )
        manifest = run_stage(STAGE, copied, runtime)[0]
        assert bool(large.server.num_by_path) == (kind == "web server")
        pages = [
            reader(run, dataset).table(columns=["url_id", "payload_digest", "archive_offset"])
            for run, dataset in ((runtime, manifest), (large.runtime, large.manifest))
        ]
        assert pages[0].equals(pages[1])


def test_captures_of_all_crawls_compete_and_complete_ones_win(
    commoncrawl: CommonCrawl, write_urls: Write
) -> None:
    url = "http://a.example/x"
    cut = "http://a.example/cut"
    commoncrawl.add({url: 100, cut: 100})
    commoncrawl.add({cut: 160}, content_truncated="length")
    commoncrawl.add({url: 200}, CRAWLS[1])
    commoncrawl.add({url: 300}, CRAWLS[1])
    broken = commoncrawl.add({url: 155}, CRAWLS[1])
    large = commoncrawl.add({url: 156}, CRAWLS[1])
    large[0].update(warc_record_length=20_000_000)
    commoncrawl.files[broken[0]["warc_filename"]] = b"x" * 1000
    for choice, expected in (("nearest", 200), ("earliest", 100), ("latest", 300)):
        runtime = write_urls([(url, 160), (cut, 160)], choice)
        manifest = commoncrawl.fetch(runtime, cc_crawls=CRAWLS, archive_choice=choice)
        time_by_url = {
            row["url"]: row["fetched_at"] for row in reader(runtime, manifest).table().to_pylist()
        }
        assert time_by_url == {"https://a.example/x": expected, "https://a.example/cut": 100}


BAD_INDEX = {
    "no such crawl": (
        {"cc_crawls": ("CC-MAIN-1999-01",)},
        "--cc_crawls CC-MAIN-1999-01: no file /.*1999-01/",
    ),
    "no web server": (
        {"cc_index": "http://127.0.0.1:9/cc-index/x"},
        "http://127.0.0.1:9: no connection: .*; check the",
    ),
    "no folder": (
        {"cc_index": "/nowhere/cc-index/table"},
        "--cc_crawls CC-MAIN-2014-10: no file /nowhere/cc-index/table/crawl=",
    ),
    "no column": (
        {"cc_crawls": ("CC-COLUMN",)},
        r"part-00000.*\.parquet has no column warc_filename",
    ),
    "no Parquet": (
        {"cc_crawls": ("CC-TEXT",)},
        r"part-00000.*\.parquet cannot be read: .*magic bytes.*; a complete copy",
    ),
    "damaged": (
        {"cc_crawls": ("CC-DAMAGED",)},
        r"part-00000.*\.parquet cannot be read: .*; a complete copy",
    ),
    "no crawls": ({"cc_crawls": ()}, "--cc_index and --cc_crawls go together"),
    "another source": ({"sources": ("live",)}, "--cc_index and --sources commoncrawl go together"),
    "no index": (
        {"cc_index": "", "cc_crawls": ()},
        "--cc_index and --sources commoncrawl go together",
    ),
    "no root": (
        {"cc_index": "/data/index", "cc_data": ""},
        "--cc_index /data/index: not a folder below .*; give the root",
    ),
}


@pytest.mark.parametrize("case", BAD_INDEX)
def test_an_unusable_index_is_a_one_line_error(
    case: str, commoncrawl: CommonCrawl, write_urls: Write
) -> None:
    rows = commoncrawl.add({"http://a.example/x": 5})
    publish(
        commoncrawl.files,
        dict.fromkeys((CRAWLS[0], "CC-COLUMN", "CC-TEXT", "CC-DAMAGED"), table(rows)),
    )
    name_by_crawl = {
        name.split("crawl=")[1].split("/")[0]: name
        for name in commoncrawl.files
        if "crawl=" in name
    }
    commoncrawl.files[name_by_crawl["CC-COLUMN"]] = parquet(
        table(rows).drop_columns("warc_filename")
    )
    commoncrawl.files[name_by_crawl["CC-TEXT"]] = b"<html>Welcome</html>"
    content = commoncrawl.files[name_by_crawl["CC-DAMAGED"]]
    commoncrawl.files[name_by_crawl["CC-DAMAGED"]] = content[:4] + bytes(300) + content[304:]
    changed, message = BAD_INDEX[case]
    with pytest.raises(UserError, match=message) as raised:
        commoncrawl.fetch(write_urls(["http://a.example/x"]), **changed)
    assert "\n" not in str(raised.value)


def test_a_bad_capture_is_a_reject_with_a_reason(
    commoncrawl: CommonCrawl, write_urls: Write
) -> None:
    names = ("fine", "other", "damaged", "cut", "no-file", "no-range", "large", "pdf")
    rows = {name: commoncrawl.add({f"http://a.example/{name}": 5})[0] for name in names}
    rows["other"].update(
        {name: rows["fine"][name] for name in ("warc_filename", "warc_record_length")}
    )
    rows["damaged"]["warc_record_offset"] += 7
    rows["damaged"]["warc_record_length"] -= 7
    rows["cut"]["warc_record_length"] -= 40
    rows["pdf"].update(content_mime_detected="application/pdf")
    rows["no-file"]["warc_filename"] = "absent.warc.gz"
    rows["no-range"]["warc_filename"] = "complete.warc.gz"
    large = response_record(
        "http://a.example/large", 5, "HTTP/1.1 200 OK", HTML, bytes(range(32, 128)) * 100
    )
    commoncrawl.files[rows["large"]["warc_filename"]] = large
    rows["large"]["warc_record_length"] = len(large)
    commoncrawl.way = lambda path, count: (
        Answer(200, b"x" * 100_000_000) if "complete" in path else None
    )
    runtime = write_urls([row["url"] for row in rows.values()])
    manifest = commoncrawl.fetch(runtime, max_page_bytes=8000)
    assert list(responses(runtime, manifest)) == ["https://a.example/fine"]
    reject_by_name = {
        url.rpartition("/")[2]: reject for url, reject in rejects(runtime, manifest).items()
    }
    assert {name: reason for name, (reason, _) in reject_by_name.items()} == {
        **dict.fromkeys(["other", "damaged", "cut"], "bad_response"),
        **dict.fromkeys(["no-file", "no-range"], "archive_failed"),
        "large": "too_large",
        "pdf": "not_archived",
    }
    assert reject_by_name["pdf"][1] == f"no capture of a page in {CRAWLS[0]}"
    assert "the record is of 'http://a.example/fine'" in reject_by_name["other"][1]
    assert "status 404" in reject_by_name["no-file"][1]
    assert "status 200 where a part (206) was asked for" in reject_by_name["no-range"][1]


def test_records_that_are_not_gzip_members_are_written_again(
    commoncrawl: CommonCrawl, write_urls: Write
) -> None:
    (row,) = commoncrawl.add({"http://a.example/x": 5})
    plain = single_member(commoncrawl.files[row["warc_filename"]], 1 << 20)[1]
    commoncrawl.files["plain.warc"] = plain
    row.update(warc_filename="plain.warc", warc_record_length=len(plain))
    runtime = write_urls(["http://a.example/x"], num_shards=1)
    (record,) = records(runtime, commoncrawl.fetch(runtime)).values()
    assert single_member(record, 1 << 20) == (gzip_member(plain), plain)
