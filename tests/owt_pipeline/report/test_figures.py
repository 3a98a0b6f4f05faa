"""The figures of a small run's report equal the counts that DuckDB makes of its files."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from owt_pipeline.stages.report.page import charts
from owt_pipeline.stages.report.tables import figure_names, read_figure


def rows_of(stats: dict[str, Any], name: str) -> list[dict[str, Any]]:
    """Return the rows of a figure."""
    rows: list[dict[str, Any]] = stats["figures"][name]["rows"]
    return rows


def test_each_figure_describes_its_count_and_can_be_drawn(stats: dict[str, Any]) -> None:
    assert list(stats["figures"]) == [file.partition("_")[2] for file in figure_names()]
    for file, (name, figure) in zip(figure_names(), stats["figures"].items(), strict=True):
        source = read_figure(file)
        assert (figure["heading"], figure["sentence"], figure["chart"]) == (
            source.heading,
            source.sentence,
            source.chart,
        )
        assert source.heading[0].isupper()
        assert source.sentence.endswith(".")
        drawn = list(charts(name, figure))
        assert bool(drawn) == (source.chart != "table" and bool(figure["rows"]))


def test_the_funnel_is_what_the_files_hold(stats: dict[str, Any], sql: Callable) -> None:
    by_dataset = {stage["dataset"]: stage for stage in stats["funnel"]}
    assert list(by_dataset) == [
        "urls",
        "pages",
        "documents",
        "clean",
        "duplicates",
        "corpus",
        "tokens",
    ]
    for name in ("urls", "pages", "documents", "clean", "corpus"):
        stage = by_dataset[name]
        ((left,),) = sql(f"select count(*) from {name}")
        rejected = dict(sql(f"select reason, count(*) from {name}_rejects group by reason"))
        assert stage["left"] == left
        assert {row["reason"]: row["count"] for row in stage["rejected"]} == rejected
        assert stage["entered"] == left + sum(rejected.values())
        for row in stage["rejected"]:
            query = f"select url_id, url, detail from {name}_rejects where reason = "
            rejects = sql(f"{query}'{row['reason']}'")
            sample = [(item["url_id"], item["url"], item["detail"]) for item in row["sample"]]
            assert set(sample) <= set(rejects)
            assert len(sample) == min(10, len({url_id for url_id, *_ in rejects}))
    num_documents = stats["totals"]["documents"]
    assert by_dataset["tokens"]["left"] == by_dataset["corpus"]["left"] == num_documents


# For each figure, a query over the run's files that counts the same. It may leave columns out.
QUERIES = sorted(Path(__file__).parent.glob("counted/*.sql"))
COUNTED = {file.stem: file.read_text() for file in QUERIES}


@pytest.mark.parametrize("name", COUNTED)
def test_a_figure_has_the_rows_that_are_counted_again(
    stats: dict[str, Any], sql: Callable, name: str
) -> None:
    columns = [column for column, *_ in sql(f"describe {COUNTED[name]}")]
    expected = sql(COUNTED[name])
    assert expected
    for row, expected_row in zip(rows_of(stats, name), expected, strict=True):
        for column, value in zip(columns, expected_row, strict=True):
            if type(value) is float:
                # The report rounds its numbers.
                assert row[column] == pytest.approx(value, abs=0.06 if value > 1 else 2e-6)
            else:
                assert row[column] == value


LENGTHS = {
    "characters": ("length(text)", "corpus"),
    "bytes": ("strlen(text)", "corpus"),
    "words": ("n_words", "corpus"),
    "tokens": ("n_tokens", "tokens"),
}


def bins_of(stats: dict[str, Any]) -> Iterator[tuple[int, str, str, float, float]]:
    """Yield the rows, table, column, lower and upper end of each bar of a histogram."""
    for row in rows_of(stats, "histograms"):
        column, table = LENGTHS[row["measure"]]
        yield row["documents"], table, column, row["low"], row["below"]
    for row in rows_of(stats, "times"):
        if row["measure"] == "bytes":
            yield row["pages"], "pages", "body_bytes", row["low"], row["below"]
    for row in rows_of(stats, "signals"):
        # In floats, 0.3 is below 6 / 20.
        low = row["low"] - 1e-8
        below = row["below"] - 1e-8
        yield row["documents"], "clean", f"signals.{row['signal']}", low, below
    for row in rows_of(stats, "scores"):
        for name in ("urls", "pages", "corpus"):
            yield row[name], name, "score", row["low"] or -(10**6), (row["high"] or 10**9) + 1
    near_duplicates = "(from duplicates where rule = 'near')"
    for row in rows_of(stats, "similarities"):
        below = 2 if row["below"] == 1 else row["below"]
        yield row["near_duplicates"], near_duplicates, "similarity", row["similarity"], below


def test_bars_count_the_rows_of_their_bins(stats: dict[str, Any], sql: Callable) -> None:
    for num_rows, table, column, low, below in bins_of(stats):
        query = f"select count(*) from {table} where {column} >= {low} and {column} < {below}"
        assert sql(query) == [(num_rows,)], column
    assert {row["signal"].partition(".")[0] for row in rows_of(stats, "signals")} >= {
        "gopher_quality",
        "gopher_repetition",
    }
    sizes = [row["pages"] for row in rows_of(stats, "times") if row["measure"] == "bytes"]
    assert sql("select count(body_bytes) from pages") == [(sum(sizes),)]
    scored = sum(row["urls"] for row in rows_of(stats, "scores"))
    assert sql("select count(score) from urls") == [(scored,)]
    similar = sum(row["near_duplicates"] for row in rows_of(stats, "similarities"))
    assert sql("select count(*) from duplicates where rule = 'near'") == [(similar,)]


def test_an_axis_has_every_range_and_each_label_ascends(stats: dict[str, Any]) -> None:
    figures = (("histograms", "measure", "length"), ("times", "measure", "value"))
    for name, group, label in (*figures, ("signals", "signal", "range")):
        rows = rows_of(stats, name)
        for row_before, next_row in itertools.pairwise(rows):
            if row_before[group] == next_row[group]:
                assert next_row["low"] == pytest.approx(row_before["below"]), (
                    name,
                    row_before,
                    next_row,
                )
        for row in rows:
            ends = [float(end) for end in re.split("–| to ", row[label])]
            assert ends == sorted(ends), row
            assert ends[0] == pytest.approx(row["low"])


def test_thresholds_count_the_documents_that_they_would_reject(
    stats: dict[str, Any], sql: Callable
) -> None:
    rows = rows_of(stats, "thresholds")
    assert {row["signal"].partition(".")[0] for row in rows} == {
        "c4",
        "fineweb",
        "gopher_quality",
        "gopher_repetition",
    }
    for row in rows:
        beyond = {"minimum": "<", "maximum": ">"}[row["kind"]]
        column = f"signals.{row['signal']}"
        query = f"select count(*) from clean where {column} {beyond} {row['threshold']}"
        assert sql(query) == [(row["documents"],)], row
    assert sum(row["documents"] for row in rows)
    for row in rows_of(stats, "signals"):
        assert row["within"] + row["beyond"] == row["documents"]
    beyond = sum(row["beyond"] for row in rows_of(stats, "signals"))
    two_sided = [row["signal"] for row in rows if row["kind"] == "minimum"]
    assert beyond == sum(row["documents"] for row in rows), two_sided


def test_splits_have_the_documents_of_the_shards(stats: dict[str, Any], small_run: Path) -> None:
    rows = {row["split"]: row for row in rows_of(stats, "splits")}
    for split, folder in (("train", "train"), ("validation", "val")):
        lengths = []
        for path in small_run.glob(f"tokens/{folder}/*.arrow"):
            lengths += pa.ipc.open_file(path).read_all()["n_tokens"].to_pylist()
        assert (rows[split]["documents"], rows[split]["tokens"]) == (len(lengths), sum(lengths))


def test_the_totals_equal_the_sums_over_the_shards(stats: dict[str, Any], sql: Callable) -> None:
    ((tokens,),) = sql("select sum(len(tokens))::bigint from tokens")
    ((size,),) = sql("select sum(strlen(text))::bigint from corpus")
    assert (stats["totals"]["tokens"], stats["totals"]["text_bytes"]) == (tokens, size)
    webtext = {row["measure"]: row["this_corpus"] for row in rows_of(stats, "webtext")}
    assert webtext["bytes per token"] == pytest.approx(size / tokens, abs=1e-3)
    assert stats["totals"]["bytes_per_token"] == pytest.approx(size / tokens, abs=1e-6)
    assert webtext["tokens per document"] == pytest.approx(
        tokens / stats["totals"]["documents"], abs=0.1
    )


def is_shown(document: dict[str, Any], table: str, sql: Callable) -> bool:
    """Return whether a document is shown as it is in a table."""
    query = f"select url, text[:3000], length(text) from {table} where url_id = "
    rows = sql(f"{query}{document['url_id']}")
    return rows == [(document["url"], document["text"], document["characters"])]


def test_removals_show_both_texts(stats: dict[str, Any], sql: Callable) -> None:
    rules = [rule for (rule,) in sql("select rule from duplicates order by rule desc")]
    assert [row["rule"] for row in stats["removals"]] == rules[:20]
    for row in stats["removals"]:
        assert is_shown(row["removed"], "clean", sql)
        assert is_shown(row["kept"], "clean", sql)
        ids = [row[side]["url_id"] for side in ("removed", "kept")]
        ((similarity,),) = sql(
            f"select similarity from duplicates where url_id = {ids[0]} and kept_url_id = {ids[1]}"
        )
        assert row["similarity"] == pytest.approx(similarity, abs=1e-4)


def test_dropped_examples_are_of_their_filter(stats: dict[str, Any], sql: Callable) -> None:
    assert len(stats["documents"]) == 20
    assert all(is_shown(document, "corpus", sql) for document in stats["documents"])
    reasons = dict(sql("select reason, count(*) from clean_rejects group by 1"))
    dropped = {row["reason"]: row["documents"] for row in stats["dropped"]}
    num_examples = {reason: len(documents) for reason, documents in dropped.items()}
    assert num_examples == {reason: min(20, count) for reason, count in reasons.items()}
    for reason, documents in dropped.items():
        for document in documents:
            assert is_shown(document, "documents", sql)
            query = f"select reason, detail from clean_rejects where url_id = {document['url_id']}"
            assert sql(query) == [(reason, document["detail"])]
