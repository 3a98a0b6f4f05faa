"""The source `wayback`: an index and captures like the Wayback Machine's, with one rate for the run."""

from __future__ import annotations

import contextlib
import gzip
import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from fastwarc.warc import ArchiveIterator
from hypothesis import given
from hypothesis import strategies as st

from owt_pipeline.engine.runner import run_stage
from owt_pipeline.engine.stage import Runtime
from owt_pipeline.errors import UserError
from owt_pipeline.stages.fetch.stage import STAGE, Options
from owt_pipeline.stages.fetch.wayback import BadIndex, original_headers, parse_captures
from schemas.manifest import Manifest
from tests.owt_pipeline.fetch.archive_server import AT, DAY, HOST, Answer, Wayback, timestamp
from tests.owt_pipeline.fetch.constants import constants
from tests.owt_pipeline.fetch.reading import reader, rejects, responses, why_fetched

AGENT = "TestBot/1.0 (+mailto:test@bad.test)"


@pytest.fixture
def archive() -> Iterator[Wayback]:
    server = Wayback()
    yield server
    server.close()


def options(url: str, **some: object) -> Options:
    defaults: dict = {
        "sources": ("wayback",), "wayback_cdx": f"{url}/cdx/search/cdx", "wayback_pages": f"{url}/web",
        "user_agent": AGENT, "wayback_delay": 0.0,
    }  # fmt: skip
    return Options(**{**defaults, **some})


def fetch(runtime: Runtime, server: Wayback, **some: object) -> Manifest:
    with constants({"archive_retries": 1, "archive_retry_wait": 0.05, **some}) as given:
        return run_stage(STAGE, options(server.url, **given), runtime)[0]


def texts(runtime: Runtime, manifest: Manifest) -> dict[str, str]:
    return {url.rpartition("/")[2]: found.body.decode() for url, found in responses(runtime, manifest).items()}


@pytest.mark.parametrize(("choice", "day"), [("nearest", 20), ("earliest", 0), ("latest", 40)])
def test_the_wanted_capture_keeps_its_archived_bytes(
    archive: Wayback, write_urls: Callable[..., Runtime], choice: str, day: int
) -> None:
    for some in (0, 20, 40):
        archive.add("x/?b=1&a=2", AT + some * DAY, b"<p>day %d" % some)
    posted = "https://a.example/x?b=1&utm_source=reddit&a=2"
    runtime = write_urls([(posted, AT + 18 * DAY), ("https://a.example/absent", AT)], num_shards=1)
    manifest = fetch(runtime, archive, archive_choice=choice)
    (row,) = reader(runtime, manifest).table().to_pylist()
    found = responses(runtime, manifest)[row["url"]]
    assert found.body == b"<p>day %d" % day
    assert found.headers == [
        ("content-type", "text/html"),
        ("server", "Apache"),
        ("Content-Length", str(len(found.body))),
    ]
    assert (row["source"], row["fetched_at"]) == ("wayback", AT + day * DAY)
    assert (row["crawl"], row["archive_file"], row["archive_offset"]) == (None, "some-crawl/some.warc.gz", None)
    assert row["days_after_submission"] == day - 18
    assert row["final_url"] == f"{HOST}/x/?b=1&a=2"
    assert manifest.stats["from_wayback"] == 1
    (warc,) = reader(runtime, manifest).files("warc")
    kinds = [
        record.headers["WARC-Type"] for record in ArchiveIterator(runtime.workdir.path(warc.path), parse_http=False)
    ]
    assert kinds == ["warcinfo", "response"]
    shown = why_fetched(runtime, posted)
    assert (shown["source"], shown["days_after_submission"]) == ("wayback", day - 18)
    ((reason, detail),) = rejects(runtime, manifest).values()
    assert (reason, detail) == ("not_archived", "no capture of a page in the Wayback Machine")
    assert len(archive.seen) == 4  # for the absent one, also with any parameters for tracking
    assert archive.agents == {AGENT}


def replies(archive: Wayback) -> Callable[[str, int], Answer | None]:
    """The failure, by the last part of the path."""
    zipped = gzip.compress(b"<p>zipped")
    index: dict[str, Answer] = {
        "withheld": Answer(403, b"org.archive.wayback.exception.AdministrativeAccessControlException: Blocked Site"),
        "teapot": Answer(418, b"I'm a teapot"),
        "down": Answer(500, b""),
        "welcome": Answer(200, b"<html>Welcome!</html>"),
        "broken": Answer(200, b'[["timestamp","orig'),
        "message": Answer(200, b'{"message": "no"}'),
        "cut": Answer(200, b"[[]]", {"Content-Length": "1000"}, sent=4),
        "other": Answer(200, json.dumps([["timestamp", "original", "mimetype", "statuscode"],
                                         [timestamp(AT), f"{HOST}/fine", "text/html", "200"]]).encode()),
        "image": Answer(200, json.dumps([["timestamp", "original", "mimetype", "statuscode"],
                                         [timestamp(AT), f"{HOST}/image", "image/png", "200"]]).encode()),
    }  # fmt: skip
    elsewhere = f"{archive.url}/web/{timestamp(AT)}id_/{HOST}"
    pages: dict[str, Answer] = {
        "lost": Answer(404, b"gone"),
        "busy": Answer(503, b""),
        "moved": Answer(302, b"", {"Location": f"/web/{timestamp(AT + DAY)}id_/{HOST}/moved"}),
        "strays": Answer(302, b"", {"Location": f"{elsewhere}/fine"}),
        "leaves": Answer(302, b"", {"Location": "http://a.example/web"}),
        "circles": Answer(302, b"", {"Location": f"{elsewhere}/circles"}),
        "pdf": Answer(200, b"%PDF-1.4", {"Content-Type": "text/html"}),
        "large": Answer(200, b"<p>" + b"x" * 9000, {"Content-Type": "text/html"}),
        "silent": Answer(200, zipped, {"x-archive-orig-content-encoding": "gzip", "Content-Type": "text/html"}),
        "gzip": Answer(200, zipped, {"Content-Encoding": "gzip", "Content-Type": "text/html"}),
        "damaged": Answer(200, zipped[:-12], {"x-archive-orig-content-encoding": "gzip", "Content-Type": "text/html"}),
    }

    def way(path: str, count: int) -> Answer | None:
        name = path.rpartition("/")[2]
        if path.startswith("/cdx"):
            return index.get(name)
        return None if f"/{timestamp(AT + DAY)}id_/" in path else pages.get(name)

    return way


def test_invalid_captures_are_rejects_with_a_reason(archive: Wayback, write_urls: Callable[..., Runtime]) -> None:
    names = (
        "fine withheld teapot down welcome broken message cut other image lost busy moved strays leaves circles pdf "
        "large silent gzip damaged absent"
    ).split()
    for name in names[:-1]:
        archive.add(name)
    archive.add("moved", AT + DAY, b"<p>moved")
    archive.way = replies(archive)
    runtime = write_urls([(f"{HOST}/{name}", AT) for name in names], num_shards=1)
    manifest = fetch(runtime, archive, max_page_bytes=8000)
    assert texts(runtime, manifest) == {
        "fine": "<p>page", "moved": "<p>moved", "silent": "<p>zipped", "gzip": "<p>zipped",
    }  # fmt: skip
    found = {url.rpartition("/")[2]: answer for url, answer in rejects(runtime, manifest).items()}
    assert {url: reason for url, (reason, _) in found.items()} == {
        **dict.fromkeys(["withheld", "other", "image", "absent", "lost"], "not_archived"),
        **dict.fromkeys(["teapot", "down", "welcome", "broken", "message", "cut", "busy"], "archive_failed"),
        **dict.fromkeys(["strays", "leaves"], "bad_redirect"),
        **dict.fromkeys(["damaged"], "bad_response"),
        "circles": "redirect_loop",
        "pdf": "not_html",
        "large": "too_large",
    }
    assert found["withheld"][1] == "the Wayback Machine withholds the site"
    assert found["teapot"][1] == "the Wayback Machine's index: status 418 I'm a teapot"
    assert "no captures as JSON" in found["broken"][1]
    rows = {row["url"].rpartition("/")[2]: row for row in reader(runtime, manifest).table().to_pylist()}
    assert rows["moved"]["fetched_at"] == AT + DAY


def test_an_archive_that_is_too_slow_has_failed(archive: Wayback, write_urls: Callable[..., Runtime]) -> None:
    archive.slowness = 1.5
    runtime = write_urls([(f"{HOST}/x", AT)])
    ((reason, detail),) = rejects(runtime, fetch(runtime, archive, silence_timeout=0.3)).values()
    assert reason == "archive_failed"
    assert detail == "the Wayback Machine's index: timeout, nothing came for 0.3 s"


def test_a_capture_that_is_not_a_page_is_replaced_by_the_next(
    archive: Wayback, write_urls: Callable[..., Runtime]
) -> None:
    archive.add("x", AT, b"%PDF-1.4")
    archive.add("x", AT + DAY, b"<p>second")
    runtime = write_urls([(f"{HOST}/x", AT)])
    assert texts(runtime, fetch(runtime, archive)) == {"x": "<p>second"}


def test_requests_of_all_shards_and_workers_keep_to_one_rate(
    archive: Wayback, write_urls: Callable[..., Runtime]
) -> None:
    urls = [(f"http://a{i}.example/x", AT) for i in range(6)]
    archive.captures = {(url, AT): b"<p>page" for url, _ in urls}
    runtime = replace(write_urls(urls, num_shards=3), workers=2)
    manifest = fetch(runtime, archive, wayback_delay=0.1, wayback_connections=4)
    assert manifest.counts.left == 6
    times = [moment for moment, _ in archive.seen]
    assert len(times) == 12
    assert times[-1] - times[0] > 11 * 0.1 - 0.05


def test_a_retry_after_applies_to_the_complete_run(archive: Wayback, write_urls: Callable[..., Runtime]) -> None:
    for i in range(6):
        archive.add(str(i))
    refused: list[float] = []

    def way(path: str, count: int) -> Answer | None:
        if path.endswith("/2") and count == 1:
            refused.append(time.monotonic())
            return Answer(429, b"slow down", {"Retry-After": "1"})
        return None

    archive.way = way
    runtime = write_urls([(f"{HOST}/{i}", AT) for i in range(6)], num_shards=1)
    manifest = fetch(runtime, archive, wayback_connections=1)
    assert manifest.counts.left == 6
    assert len(refused) == 2  # its index and its page
    for moment in refused:
        assert not [at for at, _ in archive.seen if moment < at < moment + 0.95]


def test_after_a_busy_answer_without_retry_after_a_minute_of_turns_is_skipped(
    archive: Wayback, write_urls: Callable[..., Runtime]
) -> None:
    archive.add("x")
    archive.way = lambda path, count: Answer(503) if count == 1 else None
    runtime = write_urls([(f"{HOST}/x", AT)])
    manifest = fetch(runtime, archive, wayback_delay=0.05)
    assert manifest.counts.left == 1
    moments = [at for at, _ in archive.seen]
    assert len(moments) == 4
    assert moments[1] - moments[0] >= 1.15
    assert moments[3] - moments[2] >= 1.15


def test_an_archive_that_asks_for_hours_stops_the_run_which_continues_later(
    archive: Wayback, write_urls: Callable[..., Runtime]
) -> None:
    for i in range(8):
        archive.add(str(i))
    archive.way = lambda path, count: Answer(429, b"", {"Retry-After": "7200"}) if len(archive.seen) > 8 else None
    runtime = write_urls([(f"{HOST}/{i}", AT) for i in range(8)], num_shards=1)
    with pytest.raises(UserError, match=r"asks for a wait of 7,200 s \(status 429\): run the same command again"):
        fetch(runtime, archive, wayback_connections=1)
    assert len(archive.seen) == 9
    archive.way = lambda path, count: None
    manifest = fetch(runtime, archive, wayback_connections=1)
    assert manifest.counts.left == 8
    assert len(archive.seen) == 9 + 8  # four URLs have an answer; what was refused is asked again


def test_an_archive_that_is_down_ends_the_run_and_rejects_no_url(
    archive: Wayback, write_urls: Callable[..., Runtime]
) -> None:
    archive.way = lambda path, count: Answer(500, b"down")
    runtime = write_urls([(f"{HOST}/{i}", AT) for i in range(8)], num_shards=1)
    with pytest.raises(UserError, match=r"3 requests in a row to the archive failed.*index: status 500 down"):
        fetch(runtime, archive, archive_failures=3)
    archive.way = lambda path, count: None
    assert fetch(runtime, archive).counts.rejected == {"not_archived": 8}


def test_a_killed_run_repeats_only_requests_in_flight(archive: Wayback, write_urls: Callable[..., Runtime]) -> None:
    for i in range(20):
        archive.add(str(i))
    archive.slowness = 0.02
    urls = [(f"{HOST}/{i}", AT) for i in range(30)]
    runtime = write_urls(urls, num_shards=1)
    command = [
        sys.executable, "-m", "owt_pipeline", "fetch", runtime.workdir.uri, "--quiet",
        "--sources", "wayback", "--wayback_cdx", f"{archive.url}/cdx/search/cdx",
        "--wayback_pages", f"{archive.url}/web", "--user_agent", AGENT, "--wayback_delay", "0.03",
    ]  # fmt: skip
    with subprocess.Popen(command) as process:
        end = time.monotonic() + 120
        while len(archive.seen) < 20 and time.monotonic() < end:
            time.sleep(0.005)
        process.send_signal(signal.SIGKILL)
    time.sleep(0.2)
    before = len(archive.seen)
    assert 20 <= before < 50
    manifest = fetch(runtime, archive)
    assert (manifest.counts.left, manifest.counts.rejected) == (20, {"not_archived": 10})
    asked = archive.asked_for()
    assert len(set(asked)) == 30 + 20 + 10  # lookups, captures, lookups with any parameters for tracking
    assert len(asked) - len(set(asked)) <= 4  # of the URL in flight, and of one on its way into the journal


def test_only_urls_that_earlier_sources_do_not_have_are_requested(
    archive: Wayback, write_urls: Callable[..., Runtime], tmp_path: Path
) -> None:
    from owt_pipeline.formats.warc import response_record

    record = response_record(f"{HOST}/own", AT, "HTTP/1.1 200 OK", [("Content-Type", "text/html")], b"<p>own")
    (tmp_path / "own.warc.gz").write_bytes(record)
    archive.add("dead")
    runtime = write_urls([(f"{HOST}/{name}", AT) for name in ("own", "dead", "nowhere")])
    manifest = fetch(runtime, archive, sources=("archive", "wayback"), pages_from=(str(tmp_path / "own.warc.gz"),))
    rows = {row["url"].rpartition("/")[2]: row for row in reader(runtime, manifest).table().to_pylist()}
    assert {name: row["source"] for name, row in rows.items()} == {"own": "archive", "dead": "wayback"}
    assert not [path for path in archive.asked_for() if path.endswith("/own")]
    assert (rows["own"]["archive_file"], rows["own"]["archive_offset"]) == ("own.warc.gz", 0)


_VALUES = st.sampled_from(["200", "-", "", "unk", "http://a.example/x", "text/html", "20110102030405", 3, None])


@given(st.lists(st.lists(_VALUES, max_size=5), max_size=4), st.booleans())
def test_odd_rows_of_an_index_are_skipped(rows: list[list], as_lines: bool) -> None:
    names = ["timestamp", "original", "mimetype", "statuscode"]
    body = json.dumps([names, *rows])
    if as_lines:
        body = "\n".join(json.dumps(dict(zip(names, row, strict=False))) for row in rows)
    with contextlib.suppress(BadIndex):
        for capture in parse_captures(body.encode(), "https://a.example/x").captures:
            assert (capture.url, timestamp(capture.date)) == ("http://a.example/x", "20110102030405")


@given(st.binary(max_size=200))
def test_any_bytes_are_captures_or_no_index(body: bytes) -> None:
    with contextlib.suppress(BadIndex):
        assert parse_captures(body, "https://a.example/").captures == []


def test_a_revisit_is_another_date_of_its_page() -> None:
    about = {"url": "http://a.example/x", "status": "200", "mime": "text/html"}
    rows = [
        {**about, "timestamp": "20100101000000", "digest": "A"},
        {**about, "timestamp": "20120101000000", "digest": "B"},
        {**about, "timestamp": "20110101000000", "digest": "A", "mime": "warc/revisit"},
    ]
    found = parse_captures("\n".join(map(json.dumps, rows)).encode(), "https://a.example/x")
    assert [timestamp(capture.date)[:4] for capture in found.captures] == ["2010", "2012", "2011"]


def test_the_headers_of_a_capture_are_those_it_was_archived_with() -> None:
    replay = [
        ("Content-Type", "text/html"),
        ("Link", "<x>"),
        ("Memento-Datetime", "x"),
        ("X-Own", "1"),
        ("Date", "now"),
    ]
    assert original_headers(replay) == [("Content-Type", "text/html"), ("X-Own", "1")]
    assert original_headers([*replay, ("X-Archive-Orig-Server", "Apache")]) == [
        ("Server", "Apache"), ("Content-Type", "text/html"),
    ]  # fmt: skip
