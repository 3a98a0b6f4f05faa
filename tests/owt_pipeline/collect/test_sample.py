"""The forecast of collect's output, from a sample of its sources."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import zstandard

from owt_pipeline.stages.collect.options import Options
from owt_pipeline.stages.collect.sample import forecast
from owt_pipeline.stages.collect.stage import STAGE
from owt_pipeline.storage.folder import Storage
from tests.owt_pipeline.collect.collecting import collect

SCHEMA = pa.schema([("url_id", pa.uint64()), ("reason", pa.string()), ("score", pa.int64()), ("host", pa.string())])


def batch(*rows: tuple[int, str | None, int | None, str]) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist([dict(zip(SCHEMA.names, row, strict=True)) for row in rows], SCHEMA)


def test_a_completely_read_source_is_counted() -> None:
    """Rows of one URL count once, with their scores; URLs without a score are accepted, rejected ones are not."""
    rows = batch(
        (1, None, 2, "a.org"), (1, None, 5, "a.org"), (2, None, 2, "b.org"), (3, None, None, "b.org"),
        (4, "over_18", 9, "c.org"), (5, None, 3, "b.org"),
    )  # fmt: skip
    found = forecast([rows], 6, 3, "max")
    assert (found.read, found.submissions, found.urls) == (6, 6, 3)
    assert sorted(found.ids.tolist()) == [1, 3, 5]
    assert found.busiest == pytest.approx(2 / 3)
    assert sorted(forecast([rows], 6, 7, "sum").ids.tolist()) == [1, 3]


@pytest.mark.parametrize("share", [0.5, 0.1, 0.02])
def test_distinct_urls_of_a_part_predict_those_of_all_rows_within_30_percent(share: float) -> None:
    draws = np.random.default_rng(7).zipf(1.3, 200_000).astype(np.uint64)
    rows = pa.table({"url_id": draws, "reason": pa.nulls(len(draws), pa.string()),
                     "score": np.full(len(draws), 3), "host": ["a.org"] * len(draws)})  # fmt: skip
    read = rows.slice(0, int(share * len(draws))).combine_chunks().to_batches()
    found = forecast(read, len(draws), 3, "max")
    assert found.urls == pytest.approx(len(np.unique(draws)), rel=0.3)


def test_urls_of_a_base_are_subtracted_in_proportion() -> None:
    found = forecast([batch(*((k, None, 3, "a.org") for k in range(100)))], 1000, 3, "max")
    assert found.urls == 1000
    later = found.without(np.arange(25, dtype=np.uint64))
    assert later.urls == 750
    assert later.ids.tolist() == list(range(25, 100))
    assert later.without(later.ids).urls == 0


def test_a_source_without_a_row_gives_nothing() -> None:
    assert forecast([], 0, 3, "max").urls == forecast([batch()], 10, 3, "max").urls == 0
    nothing = forecast([batch((1, "over_18", 9, "a.org"))], 10, 3, "max")
    assert (nothing.urls, nothing.busiest) == (0, 0)


@pytest.fixture(scope="module")
def dump(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """200,000 submissions, many of a URL posted before; a tenth over 18."""
    path = tmp_path_factory.mktemp("dump") / "RS_2019-01.zst"
    urls = np.random.default_rng(3).zipf(1.4, 200_000) % 10**9

    def submission(number: int) -> dict[str, Any]:
        url = f"https://h{urls[number] % 997}.example/{urls[number]}"
        known = {"id": f"a{number}", "url": url, "score": 5, "created_utc": 1546300800 + number}
        return {**known, "over_18": number % 10 == 0, "title": "t" * (number % 50), "subreddit": "x"}

    lines = "\n".join(json.dumps(submission(number)) for number in range(len(urls)))
    path.write_bytes(zstandard.ZstdCompressor(level=1).compress(lines.encode()))
    return path


def test_a_few_blocks_of_a_dump_give_what_collect_makes_of_it_within_30_percent(dump: Path, tmp_path: Path) -> None:
    counts = collect(tmp_path / "run", dumps=(str(dump),), num_shards=2).manifest.counts
    for seconds in (0.0, 600.0):
        found = STAGE.sample(Options(dumps=(str(dump),)), Storage(str(tmp_path / "new")), (), seconds)
        assert found is not None
        assert (found.read < 100_000) == (seconds == 0)
        assert found.submissions == pytest.approx(200_000, rel=0.3)
        assert found.urls == pytest.approx(counts.left, rel=0.3)
    assert not (tmp_path / "new").exists()


def test_reddits_api_is_not_sampled(tmp_path: Path) -> None:
    assert STAGE.sample(Options(subreddits=("news",)), Storage(str(tmp_path)), ()) is None
