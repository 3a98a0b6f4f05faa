"""The source `wayback`: an index and captures like the Wayback Machine's, with one rate for the
run."""

from __future__ import annotations

import contextlib
import gzip
import json
import time
from collections.abc import Callable
from dataclasses import replace

import pytest
from fastwarc.warc import ArchiveIterator
from hypothesis import given
from hypothesis import strategies as st

from owt_pipeline.engine.stage import Runtime
from owt_pipeline.errors import UserError
from owt_pipeline.stages.fetch.archives.wayback import original_headers, parse_captures
from owt_pipeline.stages.fetch.web.politeness import RequestError
from schemas.manifest import Manifest
from tests.owt_pipeline.fetch.archive_server import AGENT, AT, DAY, HOST, Answer, Wayback, timestamp
from tests.owt_pipeline.fetch.conftest import Write
from tests.owt_pipeline.fetch.reading import reader, rejects, responses, why_fetched


def texts(runtime: Runtime, manifest: Manifest) -> dict[str, str]:
    """Return the text of each page, by the last part of its URL."""
    return {
        url.rpartition("/")[2]: page.body.decode()
        for url, page in responses(runtime, manifest).items()
    }


@pytest.mark.parametrize(("choice", "day"), [("nearest", 20), ("earliest", 0), ("latest", 40)])
def test_the_wanted_capture_keeps_its_archived_bytes(
    wayback: Wayback, write_urls: Write, choice: str, day: int
) -> None:
    for day_of_capture in (0, 20, 40):
        body = b"<p>day %d" % day_of_capture
        wayback.add("x/?b=1&a=2", AT + day_of_capture * DAY, body)
    posted = "https://a.example/x?b=1&utm_source=reddit&a=2"
    runtime = write_urls([(posted, AT + 18 * DAY), ("https://a.example/absent", AT)], num_shards=1)
    manifest = wayback.fetch(runtime, archive_choice=choice)
    (row,) = reader(runtime, manifest).table().to_pylist()
    page = responses(runtime, manifest)[row["url"]]
    assert page.body == b"<p>day %d" % day
    # The headers are the original ones, but the length is that of the body as it is stored.
    assert page.headers == [
        ("content-type", "text/html"),
        ("server", "Apache"),
        ("Content-Length", str(len(page.body))),
    ]
    assert (row["source"], row["fetched_at"]) == ("wayback", AT + day * DAY)
    assert (row["crawl"], row["archive_file"], row["archive_offset"]) == (
        None,
        "some-crawl/some.warc.gz",
        None,
    )
    assert row["days_after_submission"] == day - 18
    assert row["final_url"] == f"{HOST}/x/?b=1&a=2"
    assert manifest.stats["from_wayback"] == 1
    (warc,) = reader(runtime, manifest).files("warc")
    kinds = [
        record.headers["WARC-Type"]
        for record in ArchiveIterator(runtime.workdir.path(warc.path), parse_http=False)
    ]
    assert kinds == ["warcinfo", "resource", "response"]
    shown = why_fetched(runtime, posted)
    assert (shown["source"], shown["days_after_submission"]) == ("wayback", day - 18)
    ((reason, detail),) = rejects(runtime, manifest).values()
    assert (reason, detail) == ("not_archived", "no capture of a page in the Wayback Machine")
    assert len(wayback.seen) == 3
    assert wayback.agents == {AGENT}


def replies(wayback: Wayback) -> Callable[[str, int], Answer | None]:
    """Return a way that answers by the last part of the path."""
    zipped = gzip.compress(b"<p>zipped")
    index_answers: dict[str, Answer] = {
        "withheld": Answer(
            403, b"org.wayback.wayback.exception.AdministrativeAccessControlException: Blocked Site"
        ),
        "teapot": Answer(418, b"I'm a teapot"),
        "down": Answer(500, b""),
        "welcome": Answer(200, b"<html>Welcome!</html>"),
        "broken": Answer(200, b'[["timestamp","orig'),
        "message": Answer(200, b'{"message": "no"}'),
        "cut": Answer(200, b"[[]]", {"Content-Length": "1000"}, sent=4),
        "other": Answer(
            200,
            json.dumps(
                [
                    ["timestamp", "original", "mimetype", "statuscode"],
                    [timestamp(AT), f"{HOST}/fine", "text/html", "200"],
                ]
            ).encode(),
        ),
        "image": Answer(
            200,
            json.dumps(
                [
                    ["timestamp", "original", "mimetype", "statuscode"],
                    [timestamp(AT), f"{HOST}/image", "image/png", "200"],
                ]
            ).encode(),
        ),
    }
    elsewhere = f"{wayback.url}/web/{timestamp(AT)}id_/{HOST}"
    page_answers: dict[str, Answer] = {
        "lost": Answer(404, b"gone"),
        "busy": Answer(503, b""),
        "moved": Answer(302, b"", {"Location": f"/web/{timestamp(AT + DAY)}id_/{HOST}/moved"}),
        "strays": Answer(302, b"", {"Location": f"{elsewhere}/fine"}),
        "leaves": Answer(302, b"", {"Location": "http://a.example/web"}),
        "circles": Answer(302, b"", {"Location": f"{elsewhere}/circles"}),
        "pdf": Answer(200, b"%PDF-1.4", {"Content-Type": "text/html"}),
        "large": Answer(200, b"<p>" + b"x" * 9000, {"Content-Type": "text/html"}),
        "silent": Answer(
            200, zipped, {"x-archive-orig-content-encoding": "gzip", "Content-Type": "text/html"}
        ),
        "gzip": Answer(200, zipped, {"Content-Encoding": "gzip", "Content-Type": "text/html"}),
        "damaged": Answer(
            200,
            zipped[:-12],
            {"x-archive-orig-content-encoding": "gzip", "Content-Type": "text/html"},
        ),
    }

    def way(path: str, count: int) -> Answer | None:
        name = path.rpartition("/")[2]
        if path.startswith("/cdx"):
            return index_answers.get(name)
        return None if f"/{timestamp(AT + DAY)}id_/" in path else page_answers.get(name)

    return way


def test_invalid_captures_are_rejects_with_a_reason(wayback: Wayback, write_urls: Write) -> None:
    names = (
        "fine withheld teapot down welcome broken message cut other image lost busy moved strays "
        "leaves circles pdf large silent gzip damaged absent"
    ).split()
    for name in names[:-1]:
        wayback.add(name)
    wayback.add("moved", AT + DAY, b"<p>moved")
    wayback.way = replies(wayback)
    runtime = write_urls([(f"{HOST}/{name}", AT) for name in names], num_shards=1)
    manifest = wayback.fetch(runtime, max_page_bytes=8000)
    assert texts(runtime, manifest) == {
        "fine": "<p>page", "moved": "<p>moved", "silent": "<p>zipped", "gzip": "<p>zipped",
    }  # fmt: skip
    reject_by_name = {
        url.rpartition("/")[2]: reject for url, reject in rejects(runtime, manifest).items()
    }
    assert {name: reason for name, (reason, _) in reject_by_name.items()} == {
        **dict.fromkeys(["withheld", "other", "image", "absent", "lost"], "not_archived"),
        **dict.fromkeys(
            ["teapot", "down", "welcome", "broken", "message", "cut", "busy"], "archive_failed"
        ),
        **dict.fromkeys(["strays", "leaves"], "bad_redirect"),
        **dict.fromkeys(["damaged"], "bad_response"),
        "circles": "redirect_loop",
        "pdf": "not_html",
        "large": "too_large",
    }
    assert reject_by_name["withheld"][1] == "the Wayback Machine withholds the site"
    assert reject_by_name["teapot"][1] == "the Wayback Machine's index: status 418 I'm a teapot"
    assert "no captures as JSON" in reject_by_name["broken"][1]
    rows = {
        row["url"].rpartition("/")[2]: row for row in reader(runtime, manifest).table().to_pylist()
    }
    assert rows["moved"]["fetched_at"] == AT + DAY


def test_requests_of_all_shards_and_workers_keep_to_one_rate(
    wayback: Wayback, write_urls: Write
) -> None:
    urls = [(f"http://a{i}.example/x", AT) for i in range(6)]
    wayback.captures = {(url, AT): b"<p>page" for url, _ in urls}
    runtime = replace(write_urls(urls, num_shards=3), workers=2)
    manifest = wayback.fetch(runtime, wayback_delay=0.1, wayback_connections=4)
    assert manifest.counts.left == 6
    times = [moment for moment, _ in wayback.seen]
    assert len(times) == 12
    assert times[-1] - times[0] > 11 * 0.1 - 0.05


def test_a_retry_after_applies_to_the_complete_run(wayback: Wayback, write_urls: Write) -> None:
    for i in range(6):
        wayback.add(str(i))
    refused: list[float] = []

    def way(path: str, count: int) -> Answer | None:
        if path.endswith("/2") and count == 1:
            refused.append(time.monotonic())
            return Answer(429, b"slow down", {"Retry-After": "1"})
        return None

    wayback.way = way
    runtime = write_urls([(f"{HOST}/{i}", AT) for i in range(6)], num_shards=1)
    manifest = wayback.fetch(runtime, wayback_connections=1)
    assert manifest.counts.left == 6
    # The search in the index and the page are refused once each.
    assert len(refused) == 2
    for moment in refused:
        assert not [at for at, _ in wayback.seen if moment < at < moment + 0.95]


def test_a_busy_response_without_retry_after_skips_a_minute(
    wayback: Wayback, write_urls: Write
) -> None:
    wayback.add("x")
    wayback.way = lambda path, count: Answer(503) if count == 1 else None
    runtime = write_urls([(f"{HOST}/x", AT)])
    manifest = wayback.fetch(runtime, wayback_delay=0.05)
    assert manifest.counts.left == 1
    moments = [at for at, _ in wayback.seen]
    assert len(moments) == 4
    assert moments[1] - moments[0] >= 1.15
    assert moments[3] - moments[2] >= 1.15


def test_an_archive_that_asks_for_hours_stops_the_run(wayback: Wayback, write_urls: Write) -> None:
    for i in range(8):
        wayback.add(str(i))
    wayback.way = lambda path, count: (
        Answer(429, b"", {"Retry-After": "7200"}) if len(wayback.seen) > 8 else None
    )
    runtime = write_urls([(f"{HOST}/{i}", AT) for i in range(8)], num_shards=1)
    with pytest.raises(
        UserError,
        match=r"asks for a wait of 7,200 s \(status 429\): wait that long, then run the same",
    ):
        wayback.fetch(runtime, wayback_connections=1)
    assert len(wayback.seen) == 9
    wayback.way = lambda path, count: None
    manifest = wayback.fetch(runtime, wayback_connections=1)
    assert manifest.counts.left == 8
    # Four URLs have their page already. The other four take two requests each.
    assert len(wayback.seen) == 9 + 8


_VALUES = st.sampled_from(
    ["200", "-", "", "unk", "http://a.example/x", "text/html", "20110102030405", 3, None]
)


@given(st.lists(st.lists(_VALUES, max_size=5), max_size=4))
def test_odd_rows_of_an_index_are_skipped(rows: list[list]) -> None:
    names = ["timestamp", "original", "mimetype", "statuscode"]
    body = json.dumps([names, *rows])
    with contextlib.suppress(RequestError):
        for capture in parse_captures(body.encode(), "https://a.example/x"):
            assert (capture.url, timestamp(capture.date)) == (
                "http://a.example/x",
                "20110102030405",
            )


@given(st.binary(max_size=200))
def test_any_bytes_are_captures_or_no_index(body: bytes) -> None:
    with contextlib.suppress(RequestError):
        assert parse_captures(body, "https://a.example/") == []


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
