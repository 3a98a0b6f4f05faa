"""Collecting with bases: URLs that they accepted are rejected; others are judged with the scores there."""

from __future__ import annotations

import random
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import zstandard

from owt_pipeline.commands.verify import verify
from owt_pipeline.formats.urls import url_id
from owt_pipeline.ledger.bases import pin
from owt_pipeline.storage.folder import Storage
from schemas import Reason
from schemas.reasons import TEMPORARY
from tests.owt_pipeline.collect.collecting import Collected, collect
from tests.owt_pipeline.collect.test_stage import write_dump
from tests.owt_pipeline.making import publish_rows

LATER = ("clean", "duplicates", "corpus")


def post(number: int, page: int, score: int = 5, **fields: Any) -> dict[str, Any]:
    about = {"id": f"x{number}", "url": f"http://site{page % 7}.example/page/{page}", "score": score}
    return {
        **about,
        "is_self": False,
        "over_18": False,
        "created_utc": number,
        "subreddit": "t",
        "title": "T",
        **fields,
    }


def month(folder: Path, dump: Path, bases: Sequence[Path] = (), **options: Any) -> Collected:
    """A run that has collected `dump` on top of `bases`."""
    pin(Storage(str(folder)), [str(base) for base in bases])
    return collect(folder, dumps=(str(dump),), **options)


def finish(run: Collected, **later: tuple[Sequence[dict[str, Any]], Sequence[dict[str, Any]]]) -> Path:
    """Write (rows, rejects) of datasets that later stages of a run would make; nothing for other datasets."""
    for name in dict.fromkeys((*later, *LATER)):
        publish_rows(Storage(str(run.workdir)), name, *later.get(name, ((), ())))
    return run.workdir


def lines_of(path: Path) -> list[str]:
    return zstandard.ZstdDecompressor().stream_reader(path.read_bytes()).read().decode().splitlines()


def test_three_months_accept_the_urls_of_one_run_over_their_dumps(tmp_path: Path, testdata: Path) -> None:
    lines, chosen = lines_of(testdata / "reddit/RS_wcxb-dev.zst"), random.Random(7)
    months: list[list[str]] = [[], [], []]
    for line in lines:
        for number in chosen.sample(range(3), chosen.choice([1, 1, 1, 2])):  # some submissions are in two dumps
            months[number].append(line)
    dumps = [write_dump(tmp_path / f"RS_{n}.zst", some) for n, some in enumerate(months)]  # type: ignore[arg-type]
    options = {"min_score": 150}
    one = collect(tmp_path / "one", dumps=tuple(map(str, dumps)), num_shards=4, **options)
    runs: list[Collected] = []
    for number, dump in enumerate(dumps):
        bases = [finish(runs[-1])] if runs else []
        runs.append(month(tmp_path / str(number), dump, bases, num_shards=number + 3, **options))
    found = [row["url_id"] for run in runs for row in run.urls]
    assert sorted(found) == sorted(row["url_id"] for row in one.urls)
    assert len(found) == len(set(found))
    assert all(len(run.urls) > 20 for run in runs)
    last = {row["url_id"]: row["score"] for row in one.urls}
    assert {row["url_id"]: row["score"] for row in runs[2].urls} == {
        row["url_id"]: last[row["url_id"]] for row in runs[2].urls
    }
    for run in runs:
        assert not [
            finding for finding in verify(Storage(str(run.workdir))) if finding.problems and finding.name == "urls"
        ]
        assert run.manifest.counts.entered == len(run.urls) + len(run.rejects)
    assert any("with earlier runs" in row["detail"] for row in runs[2].rejects)


PAGES = {name: f"https://site{page % 7}.example/page/{page}" for page, name in enumerate(
    ("kept", "timeout", "missing", "no_text", "short", "copy", "new"))}  # fmt: skip


def rejected(**reasons: str) -> list[dict[str, Any]]:
    return [{"url_id": url_id(PAGES[name]), "url": PAGES[name], "reason": reason} for name, reason in reasons.items()]


@pytest.fixture
def base(tmp_path: Path) -> Path:
    """A finished run of six URLs, each with another outcome."""
    dump = write_dump(tmp_path / "RS_1.zst", [post(page, page) for page in range(6)])
    live = {"url_id": url_id(PAGES["kept"]), "source": "live", "fetched_at": int(time.time()) - 3 * 86400}
    return finish(
        month(tmp_path / "2024-01", dump, num_shards=1),
        pages=([live], rejected(timeout="timeout", missing="http_404")),
        documents=((), rejected(no_text="no_text")),
        clean=((), rejected(short="too_short")),
        duplicates=([{"url_id": url_id(PAGES["copy"]), "rule": "near"}], ()),
    )


def second_month(tmp_path: Path, base: Path, **options: Any) -> Collected:
    dump = write_dump(tmp_path / "RS_2.zst", [post(100 + page, page) for page in (0, *range(7))])
    return month(tmp_path / "2024-02", dump, [base], num_shards=3, **options)


def test_a_url_that_a_base_accepted_is_rejected_with_its_outcome_there(tmp_path: Path, base: Path) -> None:
    run = second_month(tmp_path, base)
    assert [row["url"] for row in run.urls] == [PAGES["new"]]
    assert {row["reason"] for row in run.rejects} == {"seen_before"}
    details = {row["url"]: row["detail"].split(";")[0] for row in run.rejects}
    assert details == {
        PAGES["kept"]: "2024-01: kept",
        PAGES["timeout"]: "2024-01: rejected by fetch: timeout",
        PAGES["missing"]: "2024-01: rejected by fetch: http_404",
        PAGES["no_text"]: "2024-01: rejected by extract: no_text",
        PAGES["short"]: "2024-01: rejected by clean: too_short",
        PAGES["copy"]: "2024-01: rejected by dedupe: near_duplicate",
    }
    assert next(row for row in run.rejects if row["url"] == PAGES["copy"])["detail"].endswith(
        "; submission x105, RS_2.zst:7"
    )
    third = month(tmp_path / "2024-03", tmp_path / "RS_2.zst", [finish(run)], num_shards=1)
    assert third.urls == []
    assert {row["detail"].split(":")[0] for row in third.rejects} == {"2024-01", "2024-02"}


def test_temporary_failures_are_retried_once_they_are_old_enough(tmp_path: Path, base: Path) -> None:
    too_soon = second_month(tmp_path, base, retry_bases=True)
    assert [row["url"] for row in too_soon.urls] == [PAGES["new"]]
    run = second_month(tmp_path, base, retry_bases=True, retry_after_days=2.5)
    assert {row["url"] for row in run.urls} == {PAGES["new"], PAGES["timeout"]}
    again = next(row for row in run.urls if row["url"] == PAGES["timeout"])
    assert (again["submission_ids"], again["created_utc"], again["title"]) == (["x1"], 1, "T")
    assert run.manifest.counts.entered == 9
    details = {row["url"]: row["detail"] for row in run.rejects}
    assert details[PAGES["timeout"]].startswith("2024-01: rejected by fetch: timeout; taken up again; submission x101")
    assert abs(run.manifest.properties["retried_as_of"] - time.time()) < 600


def test_what_fetch_would_retry_is_what_a_later_run_takes_up(tmp_path: Path) -> None:
    reasons = [reason for reason in Reason if reason.stage == "fetch"]
    dump = write_dump(tmp_path / "RS_1.zst", [post(page, page) for page in range(len(reasons))])
    first = month(tmp_path / "2024-01", dump, num_shards=1)
    failed = {row["url_id"]: reason for row, reason in zip(first.urls, reasons, strict=True)}
    finish(first, pages=((), [{"url_id": number, "reason": reason} for number, reason in failed.items()]))
    dump = write_dump(tmp_path / "RS_2.zst", [post(99, 99)])
    run = month(tmp_path / "2024-02", dump, [first.workdir], retry_bases=True)
    assert {failed[row["url_id"]] for row in run.urls if row["url_id"] in failed} == TEMPORARY


def test_urls_of_imported_text_are_known_too(tmp_path: Path) -> None:
    text = Storage(str(tmp_path / "text"))
    rows = [{"url_id": url_id(PAGES["kept"]), "url": PAGES["kept"]}, {"url_id": 7, "url": None}]
    publish_rows(text, "documents", rows, stage="import")
    for name in LATER:
        publish_rows(text, name, [])
    run = second_month(tmp_path, tmp_path / "text")
    assert len(run.urls) == 6
    assert {row["detail"].split(";")[0] for row in run.rejects} == {"text: kept"}
