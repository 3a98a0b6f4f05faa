"""The demo's dump: read as a monthly dump is, and linking to every page that a link is expected for."""

from __future__ import annotations

import io
import json
from collections import Counter
from pathlib import Path

import pytest
import zstandard

from owt_pipeline.demo.inputs import all_expectations, write_dump
from owt_pipeline.demo.site import Site
from schemas import Reason


@pytest.fixture(scope="module")
def dump(site: Site, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("dump") / "RS_demo.zst"
    assert write_dump(site, path) == len(_lines(path))
    return path


def _lines(path: Path) -> list[bytes]:
    with path.open("rb") as file, zstandard.ZstdDecompressor(max_window_size=2**31).stream_reader(file) as stream:
        return io.BufferedReader(stream).readlines()


def _records(path: Path) -> list[dict[str, object]]:
    records = []
    for line in _lines(path):
        try:
            records.append(json.loads(line))
        except ValueError:
            continue
    return records


def test_the_dump_needs_a_long_window_as_real_ones_do(dump: Path) -> None:
    assert zstandard.get_frame_parameters(dump.read_bytes()[:18]).window_size > 2**27


def test_one_line_is_truncated(dump: Path) -> None:
    assert len(_lines(dump)) - len(_records(dump)) == 1


def test_every_url_is_linked_to(dump: Path, site: Site) -> None:
    linked = {str(record["url"]) for record in _records(dump)}
    expected = {link.url for link in all_expectations(site)}
    assert expected <= linked
    assert len(linked) > len(expected) + 50  # variants of the same URLs


def test_repeats_and_scores_look_like_reddit(dump: Path) -> None:
    records = _records(dump)
    scores = [int(str(record["score"])) for record in records]
    assert min(scores) < 3
    assert max(scores) >= 1000
    assert len({record["subreddit"] for record in records}) >= 5
    assert any("crosspost_parent" in record for record in records)
    assert any("&amp;" in str(record["url"]) for record in records)
    assert any(isinstance(record["created_utc"], str) for record in records)
    assert any("is_self" not in record for record in records)
    assert len({record["id"] for record in records}) == len(records)


def test_what_collect_rejects_is_in_the_dump(site: Site) -> None:
    reasons = Counter(reason for link in all_expectations(site) for reason in link.reasons)
    assert {Reason.LOW_SCORE, Reason.OVER_18, Reason.SELF_POST, Reason.BLOCKED_DOMAIN, Reason.BLOCKED_EXTENSION} <= set(
        reasons
    )


def test_the_same_site_gives_the_same_dump(dump: Path, site: Site, tmp_path: Path) -> None:
    write_dump(site, tmp_path / "again.zst")
    assert (tmp_path / "again.zst").read_bytes() == dump.read_bytes()
