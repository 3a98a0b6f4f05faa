"""Reddit's API through PRAW, against a server on loopback that replays recorded submissions."""

from __future__ import annotations

import gzip
import itertools
import json
import os
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.owt_pipeline.collect.collecting import collected, start
from tests.owt_pipeline.collect.reddit_server import RedditServer


@pytest.fixture(scope="module")
def submissions(testdata: Path) -> list[dict[str, Any]]:
    """Recorded submissions without repetitions."""
    with gzip.open(testdata / "reddit" / "praw-submissions.ndjson.gz") as file:
        return list({record["name"]: record for record in map(json.loads, file)}.values())


@pytest.fixture
def server(submissions: list[dict[str, Any]]) -> Iterator[RedditServer]:
    with RedditServer(submissions) as server:
        yield server


@pytest.fixture(scope="module")
def busiest(submissions: list[dict[str, Any]]) -> str:
    (name, count), *_ = Counter(record["subreddit"] for record in submissions).most_common()
    assert count > 250, "too few submissions to need several listings"
    return name


def write_praw_ini(server: RedditServer, folder: Path) -> None:
    (folder / "praw.ini").write_text(
        f"[loopback]\nclient_id=id\nclient_secret=secret\nuser_agent=owt test\n"
        f"reddit_url={server.url}\noauth_url={server.url}\n"
    )


def ask(server: RedditServer, workdir: Path, *flags: str, **settings: str | int) -> tuple[int, str]:
    """Run `owt collect` with a praw.ini that names the server; returns its exit code and output."""
    write_praw_ini(server, workdir.parent)
    environment = {**os.environ, "PRAW_ALLOW_ENDPOINT_OVERRIDE": "1", "NO_PROXY": "*"}
    config = workdir.with_suffix(".toml")
    settings = {"praw_site": "loopback", **settings}
    config.write_text(
        "[collect]\n" + "".join(f"{name} = {value!r}\n" for name, value in settings.items())
    )
    process = start(workdir, str(config), *flags, cwd=workdir.parent, env=environment)
    _, output = process.communicate(timeout=100)
    return process.returncode, output


def test_listings_of_many_subreddits_are_read_to_their_ends(
    server: RedditServer, submissions: list[dict[str, Any]], busiest: str, tmp_path: Path
) -> None:
    names = [busiest, "programming", "no_such_subreddit"]
    code, output = ask(server, tmp_path / "run", "--subreddits", *names, "--min_score", "0")
    assert code == 0, output
    assert "r/no_such_subreddit cannot be read, continuing without it" in output
    expected = [
        r for r in submissions if r["subreddit"].lower() in {name.lower() for name in names}
    ]
    run = collected(tmp_path / "run")
    assert run.manifest.counts.entered == len(expected)
    details = " ".join(reject["detail"] for reject in run.rejects)
    ids = {i for row in run.urls for i in row["submission_ids"]} | {
        r["id"] for r in expected if r["id"] in details
    }
    assert ids == {record["id"] for record in expected}
    assert f"r/{busiest.lower()}:1" in details


@pytest.mark.slow
@pytest.mark.parametrize(("remaining", "refusals", "requests"), [(0, 0, 3), (95, 2, 5)])
def test_the_run_obeys_reddits_rate_limit_and_waits_after_429(
    server: RedditServer, busiest: str, tmp_path: Path, remaining: int, refusals: int, requests: int
) -> None:
    server.num_remaining = remaining
    server.num_refusals = refusals
    code, output = ask(server, tmp_path / "run", "--subreddits", f"r/{busiest}", praw_limit=250)
    assert code == 0, output
    assert output.count("Reddit asks to wait 1 s") == refusals
    assert len(server.times) == requests
    waits = [later - earlier for earlier, later in itertools.pairwise(server.times)]
    assert all(wait > 0.9 for wait in waits[: refusals or None])
    assert collected(tmp_path / "run").manifest.counts.entered == 250


@pytest.mark.slow
def test_an_interrupted_run_continues_at_its_subreddit(
    server: RedditServer, busiest: str, tmp_path: Path
) -> None:
    flags = ("--subreddits", busiest, "programming", "--min_score", "0")
    code, output = ask(server, tmp_path / "complete", *flags)
    assert code == 0, output
    num_listings = len(server.times)
    server.times.clear()
    server.fail_after = num_listings - 1
    code, output = ask(server, tmp_path / "broken", *flags)
    assert code == 1
    assert "Reddit's API fails for r/" in output
    assert "Traceback" not in output
    server.fail_after = None
    server.times.clear()
    code, output = ask(server, tmp_path / "broken", *flags)
    assert code == 0, output
    assert 0 < len(server.times) < num_listings
    assert collected(tmp_path / "broken").bytes() == collected(tmp_path / "complete").bytes()


def test_missing_credentials_are_named(server: RedditServer, tmp_path: Path) -> None:
    write_praw_ini(server, tmp_path)
    process = start(tmp_path / "other", "--subreddits", "programming", cwd=tmp_path)
    _, output = process.communicate(timeout=60)
    assert process.returncode == 1
    assert "client_id" in output
    assert "Register a script at" in output
    assert "into praw.ini" in output
    code, output = ask(
        server, tmp_path / "other", "--subreddits", "programming", "--min_score", "0"
    )
    assert code == 0, output
    _, output = ask(server, tmp_path / "nope", "--subreddits", "programming", praw_site="nope")
    assert "praw.ini has no section [nope]" in output
