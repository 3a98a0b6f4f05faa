"""The source `commoncrawl`: lookups in an index, reads by range, and a reason or a clear error for each failure."""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from owt_pipeline.engine.runner import run_stage
from owt_pipeline.engine.stage import Runtime
from owt_pipeline.errors import UserError
from owt_pipeline.formats.warc import gzip_member, response_record, single_member
from owt_pipeline.stages.fetch.commoncrawl import CdxClient, Collection, parse_collections
from owt_pipeline.stages.fetch.lookups import BadIndex, Capture, Found, parse_captures
from owt_pipeline.stages.fetch.sources import Crawl
from owt_pipeline.stages.fetch.stage import STAGE, Options
from schemas.manifest import Manifest
from tests.owt_pipeline.fetch.archive_server import Answer, ArchiveServer, capture_row
from tests.owt_pipeline.fetch.reading import reader, rejects, responses, why_fetched

HTML = [("Content-Type", "text/html; charset=utf-8")]
AGENT = "TestBot/1.0 (+mailto:test@bad.test)"
DAY = 86_400
SPRING, WINTER = (15_000 * DAY, 15_030 * DAY), (15_300 * DAY, 15_330 * DAY)


@pytest.fixture
def archive() -> Iterator[ArchiveServer]:
    server = ArchiveServer()
    server.collections = {"CC-MAIN-2011-48": WINTER, "CC-MAIN-2011-05": SPRING}
    yield server
    server.close()


def page(text: str) -> bytes:
    return f"<html><body><p>{text}</p></body></html>".encode()


def add(server: ArchiveServer, collection: str, url: str, moment: int, text: str = "page", **fields: str) -> bytes:
    """Put a page into the archive; its record."""
    record = response_record(url, moment, "HTTP/1.1 200 OK", HTML, page(text))
    file = f"{collection}.warc.gz"
    content = server.files.get(file, b"")
    row = capture_row(url, moment, file, len(content), len(record), **fields)
    server.files[file] = content + record
    server.rows.setdefault(collection, []).append(row)
    return record


def fetch(runtime: Runtime, server: ArchiveServer, **options: object) -> Manifest:
    defaults: dict = {
        "sources": ("commoncrawl",), "cdx_index": f"{server.url}/collinfo.json", "cdx_data": f"{server.url}/data",
        "user_agent": AGENT, "cdx_delay": 0.0, "cdx_connections": 4, "host_delay": 0.0,
        "archive_retries": 1, "archive_retry_wait": 0.05,
    }  # fmt: skip
    return run_stage(STAGE, Options(**{**defaults, **options}), runtime)[0]


def texts(runtime: Runtime, manifest: Manifest) -> dict[str, str]:
    """The text of each page, by the last part of its URL's path."""
    found = responses(runtime, manifest)
    return {url.rpartition("/")[2]: answer.body.decode()[15:-18] for url, answer in found.items()}


NEAREST = {14_000: 15_000, 15_010: 15_000, 15_020: 15_029, 15_150: 15_029, 15_170: 15_301, 16_000: 15_329}
"""The day of the capture to take, by the day of the submission."""


def add_captures(server: ArchiveServer) -> list[tuple[str, int | None]]:
    """Put each of the days of NEAREST under the URL of each submission; the submissions, one of them undated."""
    for at in [*NEAREST, "undated"]:
        for day in sorted(set(NEAREST.values())):
            collection = "CC-MAIN-2011-05" if day * DAY < WINTER[0] else "CC-MAIN-2011-48"
            add(server, collection, f"http://www.a.example/some/{at}?b=1&a=2", day * DAY, f"day {day}")
    dates: list[tuple[object, int | None]] = [*((at, at * DAY) for at in NEAREST), ("undated", None)]
    return [(f"https://a.example/some/{at}/?b=1&utm_source=reddit&a=2", moment) for at, moment in dates]


def nearest(found: dict[str, str]) -> dict[str, str]:
    return {name.partition("?")[0]: text for name, text in found.items()}


EXPECTED = {**{str(at): f"day {day}" for at, day in NEAREST.items()}, "undated": "day 15329"}


def test_the_capture_nearest_to_the_submission_is_taken(
    archive: ArchiveServer, write_urls: Callable[..., Runtime]
) -> None:
    runtime = write_urls(add_captures(archive))
    assert nearest(texts(runtime, fetch(runtime, archive))) == EXPECTED


@pytest.mark.parametrize(("choice", "day"), [("earliest", 15_000), ("latest", 15_329)])
def test_the_first_or_the_last_capture_is_taken_by_option(
    choice: str, day: int, archive: ArchiveServer, write_urls: Callable[..., Runtime], tmp_path: Path
) -> None:
    runtime = write_urls(add_captures(archive))
    manifest = fetch(runtime, archive, archive_choice=choice)
    assert set(texts(runtime, manifest).values()) == {f"day {day}"}
    for name, content in archive.files.items():
        (tmp_path / name).write_bytes(content)
    files = Options(pages_from=tuple(str(tmp_path / name) for name in archive.files), archive_choice=choice)
    manifest = run_stage(STAGE, files, runtime)[0]
    assert set(texts(runtime, manifest).values()) == {f"day {day}"}


def test_a_page_keeps_its_archived_bytes(archive: ArchiveServer, write_urls: Callable[..., Runtime]) -> None:
    before = add(archive, "CC-MAIN-2011-05", "http://a.example/another", SPRING[0])
    record = add(archive, "CC-MAIN-2011-05", "http://www.a.example/x/", SPRING[0])
    runtime = write_urls(["http://a.example/x"], num_shards=1)
    manifest = fetch(runtime, archive)
    (row,) = reader(runtime, manifest).table().to_pylist()
    assert row["source"] == "commoncrawl"
    assert (row["final_url"], row["fetched_at"]) == ("http://www.a.example/x/", SPRING[0])
    assert (row["crawl"], row["archive_file"]) == ("CC-MAIN-2011-05", "CC-MAIN-2011-05.warc.gz")
    assert row["archive_offset"] == len(before)
    assert row["days_after_submission"] == round((SPRING[0] - 1_400_000_000) / DAY)
    (warc,) = reader(runtime, manifest).files("warc")
    assert runtime.workdir.read(warc.path) == record
    assert manifest.stats["from_commoncrawl"] == 1
    assert archive.agents == {AGENT}


def test_collections_are_asked_only_while_they_may_hold_a_nearer_capture(
    archive: ArchiveServer, write_urls: Callable[..., Runtime]
) -> None:
    add(archive, "CC-MAIN-2011-05", "http://a.example/x", SPRING[0])
    urls = [("http://a.example/x", SPRING[0]), ("http://a.example/absent", SPRING[0])]
    manifest = fetch(runtime := write_urls(urls), archive, cdx_collections=1)
    assert archive.asked == 3  # for the absent one, also with any parameters for tracking
    ((reason, detail),) = rejects(runtime, manifest).values()
    assert (reason, detail) == ("not_archived", "no capture of a page in CC-MAIN-2011-05")


@given(
    st.lists(st.tuples(st.integers(0, 60), st.lists(st.integers(0, 9), max_size=3)), min_size=1, max_size=6),
    st.integers(-5, 80),
)
def test_whatever_the_collections_the_nearest_capture_comes_first(
    collections: list[tuple[int, list[int]]], moment: int
) -> None:
    held = {
        str(i): [Capture(None, "f", 0, 1, begin + at) for at in days] for i, (begin, days) in enumerate(collections)
    }

    class Indexes(CdxClient):
        async def captures_in(self, collection: Collection, *_: object) -> Found:
            return Found(held[collection.name])

    async def nearest() -> int | None:
        known = tuple(Collection(str(i), "", begin, begin + 9) for i, (begin, _) in enumerate(collections))
        client = Indexes(Options(user_agent=AGENT, cdx_collections=len(known)), Crawl({}, False), *known)
        try:
            found = await client.look_up("http://a.example/", "http://a.example/", moment)
        finally:
            await client.close()
        return min((abs(capture.date - moment) for capture in found.captures), default=None)

    expected = min((abs(c.date - moment) for captures in held.values() for c in captures), default=None)
    assert asyncio.run(nearest()) == expected


@pytest.mark.parametrize(("share", "lookups"), [(0.5, 1.9), (0.3, 2.2)])
def test_a_url_with_a_page_takes_as_many_lookups_as_the_dry_run_expects(share: float, lookups: float) -> None:
    day, choose, asked = 86_400, random.Random(0), list[str]()
    months = tuple(Collection(str(n), "", 30 * day * n, (30 * n + 9) * day) for n in range(24))

    class Indexes(CdxClient):
        async def captures_in(self, collection: Collection, *_: object) -> Found:
            asked.append(collection.name)
            at = choose.randint(collection.begins, collection.ends)
            return Found([Capture(None, "f", 0, 1, at)] if choose.random() < share else [])

    async def lookups_of_found() -> float:
        client, found = Indexes(Options(user_agent=AGENT), Crawl({}, False), *months), list[int]()
        for _ in range(4000):
            asked.clear()
            if (await client.look_up("u", "u", choose.randint(months[3].begins, months[-4].ends))).captures:
                found.append(len(asked))
        await client.close()
        return sum(found) / len(found)

    assert asyncio.run(lookups_of_found()) == pytest.approx(lookups, abs=0.1)


def test_a_bad_capture_is_a_reject_with_its_reason(archive: ArchiveServer, write_urls: Callable[..., Runtime]) -> None:
    at, name, host = SPRING[0], "CC-MAIN-2011-05", "http://a.example"
    for url in ("fine", "CASE", "other", "damaged", "cut", "long", "pdf", "untyped", "redirect", "nameless", "no-file",
                "no-range", "shrinks"):  # fmt: skip
        add(archive, name, f"{host}/{url}", at)
    add(archive, name, f"{host}/large", at, random.Random(0).randbytes(9000).hex())
    rows = {row["url"].rpartition("/")[2]: row for row in archive.rows[name]}
    rows["CASE"]["url"] = f"{host}/Case"
    rows["other"].update(offset=rows["fine"]["offset"], length=rows["fine"]["length"])
    rows["damaged"]["offset"] = str(int(rows["damaged"]["offset"]) + 7)
    rows["cut"]["length"] = str(int(rows["cut"]["length"]) - 40)
    rows["long"].update(offset=str(len(archive.files[f"{name}.warc.gz"]) - 100), length="500")
    rows["pdf"].update({"mime": "application/pdf", "mime-detected": "application/pdf"})
    rows["untyped"].update({"mime": "unk", "mime-detected": "application/pdf"})
    rows["redirect"]["status"] = "301"
    del rows["nameless"]["filename"]
    rows["no-file"]["filename"] = "absent.warc.gz"
    rows["no-range"]["filename"] = "complete.warc.gz"
    rows["shrinks"]["filename"] = "shrinks.warc.gz"

    def way(path: str, count: int) -> Answer | None:
        if "complete" in path:
            return Answer(200, b"x" * 100_000_000)
        if "shrinks" in path:
            return Answer(206, b"x" * int(rows["shrinks"]["length"]), sent=20)
        if path.endswith("teapot"):
            return Answer(418, b"I'm a teapot")
        if path.endswith("garbage"):
            return Answer(200, b"<html>Welcome!</html>")
        if path.endswith("reset"):
            return Answer(200, b'{"a"', {"Content-Length": "1000"}, sent=4)
        return None

    archive.way = way
    names = [*rows, "teapot", "garbage", "reset", "absent"]
    runtime = write_urls([(f"{host}/{url}", at) for url in names])
    manifest = fetch(runtime, archive, max_page_bytes=8000)
    assert texts(runtime, manifest) == {"fine": "page"}
    found = {url.rpartition("/")[2]: answer for url, answer in rejects(runtime, manifest).items()}
    assert {url: reason for url, (reason, _) in found.items()} == {
        "CASE": "not_archived",
        "pdf": "not_archived",
        "untyped": "not_archived",
        "redirect": "bad_response",
        "absent": "not_archived",
        "other": "bad_response",
        "damaged": "bad_response",
        "cut": "bad_response",
        "long": "bad_response",
        "large": "too_large",
        "nameless": "archive_failed",
        "no-file": "archive_failed",
        "no-range": "archive_failed",
        "shrinks": "archive_failed",
        "teapot": "archive_failed",
        "garbage": "archive_failed",
        "reset": "archive_failed",
    }
    assert "the record is of 'http://a.example/fine'" in found["other"][1]
    assert "only 100 bytes came" in found["long"][1]
    assert "status 404" in found["no-file"][1]
    assert "status 200 where a part (206) was asked for" in found["no-range"][1]
    assert "status 418 I'm a teapot" in found["teapot"][1]
    assert "<html>Welcome!" in found["garbage"][1]
    shown = why_fetched(runtime, f"{host}/no-file")
    assert (shown["verdict"], shown["reason"]) == ("rejected", "archive_failed")


def test_a_page_archived_with_tracking_parameters_is_found_by_the_posted_url(
    archive: ArchiveServer, write_urls: Callable[..., Runtime]
) -> None:
    usual = archive._usual

    def by_query(path: str, url: str, span: str) -> Answer:  # as SURT has it
        return usual(path, url, span) if "-index" not in path or "utm_source" in url else Answer(200)

    archive._usual = by_query  # type: ignore[method-assign]
    add(archive, "CC-MAIN-2011-05", "http://a.example/x?utm_source=reddit", SPRING[0])
    urls = [("http://a.example/x?utm_source=reddit", SPRING[0]), ("http://a.example/y", SPRING[0])]
    manifest = fetch(runtime := write_urls(urls), archive)
    assert texts(runtime, manifest) == {"x": "page"}
    assert archive.asked == 2 + 1 + 2 + 1  # each collection without a nearer capture known; one by prefix


def test_a_broken_capture_is_replaced_by_the_next(archive: ArchiveServer, write_urls: Callable[..., Runtime]) -> None:
    for day in range(3):
        add(archive, "CC-MAIN-2011-05", "http://a.example/x", SPRING[0] + day * DAY, f"day {day}")
    archive.rows["CC-MAIN-2011-05"][0]["offset"] = "5"
    runtime = write_urls([("http://a.example/x", SPRING[0])])
    assert texts(runtime, fetch(runtime, archive)) == {"x": "day 1"}


def test_a_busy_index_is_retried(archive: ArchiveServer, write_urls: Callable[..., Runtime]) -> None:
    for path in ("429", "503", "data"):
        add(archive, "CC-MAIN-2011-05", f"http://a.example/{path}", SPRING[0])

    def way(path: str, count: int) -> Answer | None:
        if count > 1:
            return None
        if path.endswith("429"):
            return Answer(429, headers={"Retry-After": "2"})
        return Answer(503) if path.endswith("503") or path.startswith("/data/") else None

    archive.way = way
    started = time.monotonic()
    runtime = write_urls([(f"http://a.example/{path}", SPRING[0]) for path in ("429", "503", "data")])
    manifest = fetch(runtime, archive)
    assert set(texts(runtime, manifest)) == {"429", "503", "data"}
    assert time.monotonic() - started >= 2


def test_the_index_gets_no_more_requests_than_it_should(
    archive: ArchiveServer, write_urls: Callable[..., Runtime]
) -> None:
    urls = [(f"http://a{i}.example/x", SPRING[0]) for i in range(5)]
    for url, at in urls:
        add(archive, "CC-MAIN-2011-05", url, at)
    archive.slowness = 0.02
    manifest = fetch(write_urls(urls, num_shards=3), archive, cdx_connections=1, cdx_delay=0.1)
    assert manifest.counts.left == 5
    assert archive.most_open == 1
    assert archive.times[-1] - archive.times[0] > 4 * 0.1 - 0.05
    many = fetch(write_urls(urls, "many", num_shards=3), archive, cdx_connections=2)
    assert many.counts.left == 5
    assert archive.most_open == 2


@pytest.mark.parametrize(
    ("answer", "problem"),
    [
        (Answer(500, b"down"), "status 500"),
        (Answer(200, b"<html>"), "no list of collections"),
        (Answer(200, b"[]"), "an empty list of collections"),
        (Answer(200, b'[{"id": "x"}]'), "'cdx-api' is missing"),
    ],
)
def test_an_archive_without_a_list_of_collections_is_a_clear_error(
    archive: ArchiveServer, write_urls: Callable[..., Runtime], answer: Answer, problem: str
) -> None:
    archive.way = lambda path, count: answer if path == "/collinfo.json" else None
    with pytest.raises(UserError, match=f"--cdx_index http://127.0.0.1:.*: {problem}.*; try later"):
        fetch(write_urls(["http://a.example/x"]), archive)


def test_an_archive_that_cannot_be_reached_is_a_clear_error(
    archive: ArchiveServer, write_urls: Callable[..., Runtime]
) -> None:
    with pytest.raises(UserError, match=r"--cdx_index http://127.0.0.1:1/collinfo.json: .* connect, .*; try later"):
        fetch(write_urls(["http://a.example/x"]), archive, cdx_index="http://127.0.0.1:1/collinfo.json")


def test_an_archive_that_goes_down_ends_the_run_and_rejects_no_url(
    archive: ArchiveServer, write_urls: Callable[..., Runtime]
) -> None:
    urls = [(f"http://a.example/{i}", SPRING[0]) for i in range(40)]
    for url, at in urls:
        add(archive, "CC-MAIN-2011-05", url, at)
    runtime = write_urls(urls, num_shards=1)
    archive.way = lambda path, count: Answer(403, b"blocked") if "-index" in path and archive.asked > 20 else None
    with pytest.raises(UserError, match=r"5 requests in a row to the archive failed.*: .*status 403 blocked"):
        fetch(runtime, archive, host_failures=5)
    archive.way = lambda path, count: None
    archive.requests.clear()
    manifest = fetch(runtime, archive)
    assert manifest.counts.left == 40
    assert archive.asked < 30


def test_after_a_kill_only_requests_in_flight_are_repeated(
    archive: ArchiveServer, write_urls: Callable[..., Runtime]
) -> None:
    urls = [(f"http://a.example/{i}", SPRING[0]) for i in range(60)]
    for url, at in urls[:40]:
        add(archive, "CC-MAIN-2011-05", url, at)
    archive.slowness = 0.02
    runtime = write_urls(urls, num_shards=1)
    command = [
        sys.executable, "-m", "owt_pipeline", "fetch", "--workdir", runtime.workdir.uri, "--quiet",
        "--sources", "commoncrawl", "--cdx_index", f"{archive.url}/collinfo.json", "--cdx_data", f"{archive.url}/data",
        "--user_agent", AGENT, "--cdx_delay", "0", "--cdx_connections", "2", "--cdx_collections", "1",
    ]  # fmt: skip
    with subprocess.Popen(command) as process:
        end = time.monotonic() + 120
        while archive.asked < 25 and time.monotonic() < end:
            time.sleep(0.01)
        process.send_signal(signal.SIGKILL)
    time.sleep(0.2)
    assert 25 <= archive.asked < 60
    manifest = fetch(runtime, archive, cdx_collections=1)
    assert (manifest.counts.left, manifest.counts.rejected) == (40, {"not_archived": 20})
    assert archive.asked - (40 + 2 * 20) <= 8  # two connections, as many that wait for them, and two to be recorded


@given(st.binary(max_size=200))
def test_any_bytes_are_captures_or_no_index(body: bytes) -> None:
    with contextlib.suppress(BadIndex):
        assert parse_captures(body, "https://a.example/", True).captures == []
    with contextlib.suppress(BadIndex):
        assert parse_collections(body)


@given(
    st.lists(
        st.fixed_dictionaries(
            {},
            optional={
                name: st.sampled_from(
                    ["200", "-", "", "a", "http://a.example/x", "text/html", "20110102030405", 3, None]
                )
                for name in ("filename", "status", "url", "mime", "timestamp", "offset", "length")
            },
        ),
        max_size=4,
    )
)
def test_odd_rows_of_an_index_are_skipped(rows: list[dict]) -> None:
    body = "\n".join(json.dumps(row) for row in rows).encode()
    try:
        for capture in parse_captures(body, "https://a.example/x", False).captures:
            assert (capture.date, capture.url) == (1294023845, "http://a.example/x")
    except BadIndex:
        assert not any("timestamp" in row for row in rows)


def test_records_that_are_not_gzip_members_are_written_again(
    archive: ArchiveServer, write_urls: Callable[..., Runtime]
) -> None:
    record = add(archive, "CC-MAIN-2011-05", "http://a.example/x", SPRING[0])
    plain = single_member(record, 1 << 20)[1]
    archive.files["plain.warc"] = plain
    archive.rows["CC-MAIN-2011-05"][0].update(filename="plain.warc", length=str(len(plain)))
    runtime = write_urls([("http://a.example/x", SPRING[0])], num_shards=1)
    manifest = fetch(runtime, archive)
    assert texts(runtime, manifest) == {"x": "page"}
    (warc,) = reader(runtime, manifest).files("warc")
    assert single_member(runtime.workdir.read(warc.path), 1 << 20) == (gzip_member(plain), plain)
