"""The source `commoncrawl` in bulk: a join with an index of 200,000 rows, and real pages read by range."""

from __future__ import annotations

import contextlib
import io
import json
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from fastwarc.warc import ArchiveIterator

from owt_pipeline.engine.runner import run_stage
from owt_pipeline.engine.stage import Runtime
from owt_pipeline.errors import UserError
from owt_pipeline.formats.urls import BadURL, canonical_url
from owt_pipeline.formats.warc import gzip_member, response_record, single_member
from owt_pipeline.stages.fetch.stage import STAGE, Options
from owt_pipeline.storage.folder import Storage
from schemas.manifest import Manifest
from tests.owt_pipeline.fetch.archive_server import Answer, ArchiveServer
from tests.owt_pipeline.fetch.bad_server import DOMAIN, BadServer, Request
from tests.owt_pipeline.fetch.columnar import INDEX, filler, parquet, publish, row, table
from tests.owt_pipeline.fetch.conftest import write_urls_to
from tests.owt_pipeline.fetch.constants import constants
from tests.owt_pipeline.fetch.reading import reader, rejects, responses, why_fetched
from tests.owt_pipeline.runs import copy_of
from tests.servers.s3 import s3_bucket

AGENT = "TestBot/1.0 (+mailto:test@bad.test)"
HTML = [("Content-Type", "text/html")]
CRAWLS = ("CC-MAIN-2014-10", "CC-MAIN-2014-41")
MADE = 200_000


def options(server: ArchiveServer, **others: Any) -> Options:
    usual: dict[str, Any] = {
        "sources": ("commoncrawl",), "cc_index": f"{server.url}/data/{INDEX}", "cc_crawls": CRAWLS[:1],
        "user_agent": AGENT, "cc_delay": 0.0,
    }  # fmt: skip
    return Options(**{**usual, **others})


def fetch(runtime: Runtime, server: ArchiveServer, **others: Any) -> Manifest:
    with constants({"archive_retries": 1, "archive_retry_wait": 0.05, **others}) as given:
        return run_stage(STAGE, options(server, **given), runtime)[0]


@pytest.fixture
def archive() -> Iterator[ArchiveServer]:
    server = ArchiveServer()
    yield server
    server.close()


def add(server: ArchiveServer, pages: dict[str, int], crawl: str = CRAWLS[0], **fields: Any) -> list[dict[str, Any]]:
    """Put a page for each URL and time into one WARC file of a crawl; its rows."""
    name = f"crawl-data/{crawl}/warc/{len(server.files)}.warc.gz"
    content, rows = b"", []
    for url, moment in pages.items():
        record = response_record(url, moment, "HTTP/1.1 200 OK", HTML, f"<p>{crawl} {moment}".encode())
        rows.append(row(url, moment, name, len(content), len(record), **fields))
        content += record
    server.files[name] = content
    return rows


@dataclass(frozen=True)
class Large:
    """An archive of two crawls with 200,000 rows in 24 files each, among them real pages, and a run of it."""

    server: ArchiveServer
    rows: list[dict[str, Any]]
    runtime: Runtime
    manifest: Manifest
    sent: dict[str, int]


@pytest.fixture(scope="module")
def large(testdata: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Large]:
    server = ArchiveServer()
    rows, posted, random_ = [], [], random.Random(0)
    files: dict[str, bytes] = {f"crawl-data/{CRAWLS[0]}/segments/1/warc/{n:05d}.warc.gz": b"" for n in range(5)}
    with open(testdata / "web" / "wcxb-dev.warc.gz", "rb") as stream:
        for number, record in enumerate(ArchiveIterator(stream, parse_http=False)):
            url = record.headers["WARC-Target-URI"]
            try:
                canonical_url(url)
            except BadURL:
                continue
            name = random_.choice(list(files))
            content = record.reader.read()
            record.set_bytes_content(content)
            plain = io.BytesIO()
            record.write(plain)
            member = gzip_member(plain.getvalue())
            rows.append(row(url, 1_400_000_000 + number, name, len(files[name]), len(member)))
            files[name] += member
            posted.append(url)
    server.files.update(files)
    made = [filler(0, MADE // 2), filler(MADE // 2, MADE // 2)]
    publish(server.files, {CRAWLS[0]: pa.concat_tables([table(rows), made[0]]), CRAWLS[1]: made[1]}, 24)
    asked = posted[:600] + [f"https://absent.example/{n}" for n in range(300)]
    runtime = write_urls_to(tmp_path_factory.mktemp("large") / "run", asked, 4)
    manifest = fetch(runtime, server, cc_crawls=CRAWLS)
    yield Large(server, rows, runtime, manifest, dict(server.sent))
    server.close()


def test_real_pages_are_found_among_200_000_rows_and_keep_their_archived_bytes(large: Large) -> None:
    assert sum(f"{INDEX}/" in name for name in large.server.files) == 48
    found = reader(large.runtime, large.manifest).table().to_pylist()
    captures: dict[str, dict[tuple[str, int], int]] = {}
    for each in large.rows:
        place = each["warc_filename"], each["warc_record_offset"]
        captures.setdefault(canonical_url(each["url"]), {})[place] = each["warc_record_length"]
    pages = reader(large.runtime, large.manifest)
    assert len(found) == large.manifest.stats["from_commoncrawl"] >= 595
    for warc in pages.files("warc"):
        for each in pages.table(warc.shard).to_pylist():
            place = each["archive_file"], each["archive_offset"]
            assert (each["source"], each["crawl"]) == ("commoncrawl", CRAWLS[0])
            kept = large.runtime.workdir.read_range(warc.path, each["warc_offset"], each["warc_length"])
            assert kept == large.server.files[place[0]][place[1] :][: captures[each["url"]][place]]
    lost = rejects(large.runtime, large.manifest)
    absent = {url: shown for url, shown in lost.items() if "absent.example" in url}
    assert len(absent) == 300
    assert set(absent.values()) == {("not_archived", f"no capture of a page in {', '.join(CRAWLS)}")}


def test_only_row_groups_that_may_hold_a_key_are_read_and_each_record_once(large: Large) -> None:
    stats = large.manifest.stats
    index = sum(len(content) for name, content in large.server.files.items() if name.startswith(INDEX))
    read = sum(count for path, count in large.sent.items() if f"/data/{INDEX}" in path)
    assert stats["cc_keys"] >= 900
    assert stats["cc_row_groups"] >= 200
    assert stats["cc_row_groups_read"] < stats["cc_row_groups"] / 2
    assert stats["cc_index_bytes_read"] <= read < index * 0.7
    records = sum(count for path, count in large.server.requests.items() if path.endswith(".warc.gz"))
    assert records == stats["from_commoncrawl"]
    assert large.manifest.properties["commoncrawl"] == {
        "index": f"{large.server.url}/data/{INDEX}", "crawls": list(CRAWLS), "files": 48
    }  # fmt: skip


@pytest.mark.parametrize("where", ["disk", pytest.param("s3", marks=pytest.mark.slow)])
def test_a_copy_of_the_archive_on_a_disk_or_in_a_bucket_gives_the_same_pages(
    where: str, large: Large, tmp_path: Path
) -> None:
    with contextlib.ExitStack() as stack:
        root = str(tmp_path / "copy") if where == "disk" else stack.enter_context(s3_bucket())
        copy = Storage(root)
        for name, content in large.server.files.items():
            copy.write(name, content)
        runtime = Runtime(Storage(str(copy_of(Path(str(large.runtime.workdir)), tmp_path / "run", without=("pages",)))))
        large.server.requests.clear()
        copied = Options(sources=("commoncrawl",), cc_index=f"{root}/{INDEX}", cc_crawls=CRAWLS, user_agent=AGENT)
        manifest = run_stage(STAGE, copied, runtime)[0]
        assert not large.server.requests
        pages = [
            reader(run, of).table(columns=["url_id", "payload_digest", "archive_offset"])
            for run, of in ((runtime, manifest), (large.runtime, large.manifest))
        ]
        assert pages[0].equals(pages[1])


async def half(request: Request) -> None:
    if "live" in request.path:
        await request.answer()
    else:
        await request.answer(b"", "404 Not Found")


def test_each_source_is_asked_only_for_urls_that_earlier_ones_do_not_have(
    archive: ArchiveServer, write_urls: Callable[..., Runtime]
) -> None:
    live = BadServer({"some": half})
    host = f"http://some.{DOMAIN}"
    rows = add(archive, {f"{host}/live-old": 5, f"{host}/old": 6, f"{host}/pdf": 7})
    rows[2].update(content_mime_detected="application/pdf")
    publish(archive.files, {CRAWLS[0]: table(rows)})
    urls = [f"{host}/{name}" for name in ("live", "live-old", "old", "pdf", "nowhere")]
    common = {"resolve": live.rules, "host_delay": 0.0}
    try:
        manifest = fetch(first := write_urls(urls, "a"), archive, sources=("live", "commoncrawl"), **common)
        assert manifest.stats["cc_keys"] == 6  # each, and its path with any parameters for tracking
        won = {each["url"].rpartition("/")[2]: each["source"] for each in reader(first, manifest).table().to_pylist()}
        assert won == {"live": "live", "live-old": "live", "old": "commoncrawl"}
        shown = {url.rpartition("/")[2]: answer for url, answer in rejects(first, manifest).items()}
        nowhere = f"commoncrawl: not_archived, no capture of a page in {CRAWLS[0]}"
        assert shown["nowhere"] == ("http_404", f"live: http_404, status 404; {nowhere}")
        assert shown["pdf"] == ("http_404", f"live: http_404, status 404; {nowhere}: 1 of application/pdf")
        assert why_fetched(first, f"{host}/old")["source"] == "commoncrawl"
        live.requests.clear()
        manifest = fetch(second := write_urls(urls, "b"), archive, sources=("commoncrawl", "live"), **common)
        won = {each["url"].rpartition("/")[2]: each["source"] for each in reader(second, manifest).table().to_pylist()}
        assert won == {"live": "live", "live-old": "commoncrawl", "old": "commoncrawl"}
        assert {path.strip("/") for _, path in live.requests} == {"robots.txt", "live", "pdf", "nowhere"}
    finally:
        live.close()


def test_the_choice_of_captures_goes_over_all_crawls_and_prefers_complete_ones(
    archive: ArchiveServer, write_urls: Callable[..., Runtime]
) -> None:
    url, cut = "http://a.example/x", "http://a.example/cut"
    first = add(archive, {url: 100, cut: 100}) + add(archive, {cut: 160}, content_truncated="length")
    second = add(archive, {url: 200}, CRAWLS[1]) + add(archive, {url: 300}, CRAWLS[1])
    broken = add(archive, {url: 155}, CRAWLS[1])
    large = add(archive, {url: 156}, CRAWLS[1])
    large[0].update(warc_record_length=20_000_000)
    archive.files[broken[0]["warc_filename"]] = b"x" * 1000
    publish(archive.files, {CRAWLS[0]: table(first), CRAWLS[1]: table(second + broken + large)})
    for choice, expected in (("nearest", 200), ("earliest", 100), ("latest", 300)):
        runtime = write_urls([(url, 160), (cut, 160)], choice)
        manifest = fetch(runtime, archive, cc_crawls=CRAWLS, archive_choice=choice)
        found = {each["url"]: each["fetched_at"] for each in reader(runtime, manifest).table().to_pylist()}
        assert found == {"https://a.example/x": expected, "https://a.example/cut": 100}
        assert manifest.stats["cc_captures_truncated"] == 1


def test_every_archive_finds_a_capture_of_another_spelling_of_the_url(archive: ArchiveServer, tmp_path: Path) -> None:
    posted = "http://a.example/x?srsltid=1"
    assert canonical_url(posted) == "https://a.example/x"
    rows = add(archive, {posted: 5})
    publish(archive.files, {CRAWLS[0]: table(rows)})
    file = tmp_path / "some.warc.gz"
    file.write_bytes(archive.files[rows[0]["warc_filename"]])
    ways = {
        "commoncrawl": options(archive),
        "archive": Options(pages_from=(str(file),)),
    }
    for name, way in ways.items():
        runtime = write_urls_to(tmp_path / name, [posted], 1)
        assert list(responses(runtime, run_stage(STAGE, way, runtime)[0])) == ["https://a.example/x"], name


BAD_INDEX = {
    "no such crawl": ({"cc_crawls": ("CC-MAIN-1999-01",)}, r"CC-MAIN-1999-01/cc-index-table\.paths\.gz: status 404"),
    "no list": ({"cc_crawls": ("CC-BAD",)}, r"--cc_crawls CC-BAD: .*paths\.gz is not a list of files"),
    "another folder": ({"cc_index": "URL/cc-index/other"}, "names no file below cc-index/other/crawl=CC-MAIN-2014-10"),
    "no host": (
        {"cc_index": "http://127.0.0.1:9/cc-index/x"},
        "--cc_index: .* connect, .*; check it and --cc_crawls",
    ),
    "no folder": (
        {"cc_index": "/nowhere/cc-index/table"},
        "--cc_crawls CC-MAIN-2014-10: no file /nowhere/cc-index/table/crawl=",
    ),
    "no column": ({"cc_crawls": ("CC-COLUMN",)}, r"part-00000.*\.parquet has no column warc_filename"),
    "no Parquet": (
        {"cc_crawls": ("CC-TEXT",)},
        r"part-00000.*\.parquet cannot be read: .*magic bytes.*; a complete copy",
    ),
    "damaged": ({"cc_crawls": ("CC-DAMAGED",)}, r"part-00000.*\.parquet cannot be read: .*; a complete copy"),
    "no crawls": ({"cc_crawls": ()}, "--cc_index and --cc_crawls go together"),
    "another source": ({"sources": ("live",)}, "--cc_index and --sources commoncrawl go together"),
    "no index": ({"cc_index": "", "cc_crawls": ()}, "--cc_index and --sources commoncrawl go together"),
    "no root": ({"cc_index": "/data/index"}, "--cc_index /data/index: not a folder below .*; give the root"),
}


@pytest.mark.parametrize("case", BAD_INDEX)
def test_an_unusable_index_is_a_one_line_error(
    case: str, archive: ArchiveServer, write_urls: Callable[..., Runtime]
) -> None:
    rows = add(archive, {"http://a.example/x": 5})
    publish(archive.files, dict.fromkeys((CRAWLS[0], "CC-COLUMN", "CC-TEXT", "CC-DAMAGED"), table(rows)))
    of = {name.split("crawl=")[1].split("/")[0]: name for name in archive.files if "crawl=" in name}
    archive.files[of["CC-COLUMN"]] = parquet(table(rows).drop_columns("warc_filename"))
    archive.files[of["CC-TEXT"]] = b"<html>Welcome</html>"
    content = archive.files[of["CC-DAMAGED"]]
    archive.files[of["CC-DAMAGED"]] = content[:4] + bytes(300) + content[304:]
    archive.files["crawl-data/CC-BAD/cc-index-table.paths.gz"] = b"<html>Welcome</html>"
    changed, message = BAD_INDEX[case]
    changed = {name: value.replace("URL", f"{archive.url}/data") if isinstance(value, str) else value
               for name, value in changed.items()}  # fmt: skip
    with pytest.raises(UserError, match=message) as raised:
        fetch(write_urls(["http://a.example/x"]), archive, **{"archive_retries": 0, **changed})
    assert "\n" not in str(raised.value)


def test_a_busy_archive_is_retried_and_one_that_is_down_loses_no_url(
    archive: ArchiveServer, write_urls: Callable[..., Runtime]
) -> None:
    pages = {f"http://a.example/{n}": n for n in range(6)}
    publish(archive.files, {CRAWLS[0]: table([each for page in pages for each in add(archive, {page: pages[page]})])})
    runtime = write_urls(list(pages))

    def down(path: str, count: int) -> Answer | None:
        return Answer(503, b"slow down") if path.endswith(".warc.gz") else None

    archive.way = down
    with pytest.raises(UserError, match=r"5 requests in a row to the archive failed.* the last one: .*status 503"):
        fetch(runtime, archive, archive_failures=5, archive_retries=2)

    answers = [403, 429, 503]

    def busy(path: str, count: int) -> Answer | None:
        return Answer(answers.pop(), b"slow down") if path.endswith(".warc.gz") and answers else None

    archive.way = busy
    archive.requests.clear()
    manifest = fetch(runtime, archive, archive_retries=3)
    assert manifest.counts.left == 6
    assert not answers
    assert not any(INDEX in path for path in archive.requests)  # the join was finished


def test_an_unreadable_record_does_not_affect_its_neighbours(
    archive: ArchiveServer, write_urls: Callable[..., Runtime]
) -> None:
    rows = add(archive, {f"http://a.example/{name}": 5 for name in ("first", "last")})
    rows[1].update(warc_record_length=50_000)
    publish(archive.files, {CRAWLS[0]: table(rows)})
    manifest = fetch(runtime := write_urls([each["url"] for each in rows]), archive)
    assert list(responses(runtime, manifest)) == ["https://a.example/first"]
    ((reason, detail),) = rejects(runtime, manifest).values()
    assert reason == "archive_failed"
    assert "bytes came" in detail


def test_after_a_kill_only_records_in_flight_are_read_again(archive: ArchiveServer, tmp_path: Path) -> None:
    pages = {f"http://a.example/{n}": n for n in range(40)}
    publish(archive.files, {CRAWLS[0]: table([each for page in pages for each in add(archive, {page: pages[page]})])})
    archive.slowness = 0.05
    runtime = write_urls_to(tmp_path / "run", list(pages), 1)
    arguments = {name: getattr(options(archive), name) for name in ("cc_index", "cc_crawls", "user_agent")}
    code = (
        "import json, sys\n"
        "from owt_pipeline.engine.runner import run_stage\n"
        "from owt_pipeline.engine.stage import Runtime\n"
        "from owt_pipeline.storage.folder import Storage\n"
        "from owt_pipeline.stages.fetch.stage import STAGE, Options\n"
        "given = json.loads(sys.argv[2])\n"
        "given = {name: tuple(value) if isinstance(value, list) else value for name, value in given.items()}\n"
        "run_stage(STAGE, Options(sources=('commoncrawl',), cc_delay=0.0, **given), "
        "Runtime(Storage(sys.argv[1])))\n"
    )
    process = subprocess.Popen([sys.executable, "-c", code, str(runtime.workdir), json.dumps(arguments)])
    deadline = time.monotonic() + 120
    while records_read(archive) < 12 and time.monotonic() < deadline and process.poll() is None:
        time.sleep(0.02)
    process.send_signal(signal.SIGKILL)
    process.wait()
    before = records_read(archive)
    assert 12 <= before < 40
    manifest = fetch(runtime, archive)
    assert manifest.counts.left == 40
    again = sum(count - 1 for path, count in archive.requests.items() if path.endswith(".warc.gz"))
    assert again <= 10  # four in flight, and those on the way into the journal


def records_read(archive: ArchiveServer) -> int:
    return sum(count for path, count in list(archive.requests.items()) if path.endswith(".warc.gz"))


def test_a_bad_capture_is_a_reject_with_its_reason(archive: ArchiveServer, write_urls: Callable[..., Runtime]) -> None:
    names = ("fine", "other", "damaged", "cut", "no-file", "no-range", "large")
    rows = {name: add(archive, {f"http://a.example/{name}": 5})[0] for name in names}
    rows["other"].update({name: rows["fine"][name] for name in ("warc_filename", "warc_record_length")})
    rows["damaged"]["warc_record_offset"] += 7
    rows["damaged"]["warc_record_length"] -= 7
    rows["cut"]["warc_record_length"] -= 40
    rows["no-file"]["warc_filename"] = "absent.warc.gz"
    rows["no-range"]["warc_filename"] = "complete.warc.gz"
    large = response_record("http://a.example/large", 5, "HTTP/1.1 200 OK", HTML, bytes(range(32, 128)) * 100)
    archive.files[rows["large"]["warc_filename"]] = large
    rows["large"]["warc_record_length"] = len(large)
    publish(archive.files, {CRAWLS[0]: table(list(rows.values()))})
    archive.way = lambda path, count: Answer(200, b"x" * 100_000_000) if "complete" in path else None
    runtime = write_urls([each["url"] for each in rows.values()])
    manifest = fetch(runtime, archive, max_page_bytes=8000)
    assert list(responses(runtime, manifest)) == ["https://a.example/fine"]
    found = {url.rpartition("/")[2]: answer for url, answer in rejects(runtime, manifest).items()}
    assert {name: reason for name, (reason, _) in found.items()} == {
        **dict.fromkeys(["other", "damaged", "cut"], "bad_response"),
        **dict.fromkeys(["no-file", "no-range"], "archive_failed"),
        "large": "too_large",
    }
    assert "the record is of 'http://a.example/fine'" in found["other"][1]
    assert "status 404" in found["no-file"][1]
    assert "status 200 where a part (206) was asked for" in found["no-range"][1]


def test_records_that_are_not_gzip_members_are_written_again(
    archive: ArchiveServer, write_urls: Callable[..., Runtime]
) -> None:
    (row,) = add(archive, {"http://a.example/x": 5})
    plain = single_member(archive.files[row["warc_filename"]], 1 << 20)[1]
    archive.files["plain.warc"] = plain
    row.update(warc_filename="plain.warc", warc_record_length=len(plain))
    publish(archive.files, {CRAWLS[0]: table([row])})
    runtime = write_urls(["http://a.example/x"], num_shards=1)
    (warc,) = reader(runtime, fetch(runtime, archive)).files("warc")
    assert single_member(runtime.workdir.read(warc.path), 1 << 20) == (gzip_member(plain), plain)
