"""The figures of a small run's report, against counts that DuckDB makes of its files."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from owt_pipeline.stages.report.page import charts
from owt_pipeline.stages.report.tables import figure_names, read_figure

HOST = "split_part(url, '/', 3)"


def rows_of(stats: dict[str, Any], name: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = stats["figures"][name]["rows"]
    return found


def test_each_query_that_is_a_figure_says_what_it_counts_and_can_be_drawn(stats: dict[str, Any]) -> None:
    assert list(stats["figures"]) == [file.partition("_")[2] for file in figure_names()]
    for file, (name, figure) in zip(figure_names(), stats["figures"].items(), strict=True):
        said = read_figure(file)
        assert (figure["heading"], figure["sentence"], figure["chart"]) == (said.heading, said.sentence, said.chart)
        assert said.heading[0].isupper()
        assert said.sentence.endswith(".")
        drawn = list(charts(name, figure))
        assert bool(drawn) == (said.chart != "table" and bool(figure["rows"]))


def test_the_funnel_is_what_the_files_hold(stats: dict[str, Any], sql: Callable) -> None:
    by_dataset = {stage["dataset"]: stage for stage in stats["funnel"]}
    assert list(by_dataset) == ["urls", "pages", "documents", "clean", "duplicates", "corpus", "tokens"]
    for name in ("urls", "pages", "documents", "clean", "corpus"):
        stage = by_dataset[name]
        ((left,),) = sql(f"select count(*) from {name}")
        rejected = dict(sql(f"select reason, count(*) from {name}_rejects group by reason"))
        assert stage["left"] == left
        assert {row["reason"]: row["count"] for row in stage["rejected"]} == rejected
        assert stage["entered"] == left + sum(rejected.values())
        for row in stage["rejected"]:
            found = sql(f"select url_id, url, detail from {name}_rejects where reason = '{row['reason']}'")
            sample = [(item["url_id"], item["url"], item["detail"]) for item in row["sample"]]
            assert set(sample) <= set(found)
            assert len(sample) == min(10, len({url_id for url_id, *_ in found}))
    assert by_dataset["tokens"]["left"] == by_dataset["corpus"]["left"] == stats["totals"]["documents"]


def counted(key: str, table: str) -> str:
    return f"(select key, count(*) as n from (select {key} as key from {table}) group by key)"


def survivors(key: str) -> str:
    both = f"{counted(key, 'corpus')} c join {counted(key, 'urls')} u using (key)"
    return f"select key, c.n, u.n, c.n / u.n from {both} order by c.n desc, key limit 100"


TABLES = {
    "domains": ("domain documents urls survival", survivors(HOST)),
    "subreddits": ("subreddit documents urls survival", survivors("unnest(subreddits)")),
    "links": (
        "source urls documents",
        "select link, count(*) as n, count(corpus.url_id) from (select url_id, unnest(link_sources) as link from urls) "
        "left join corpus using (url_id) group by link order by n desc, link",
    ),
    "answers": (
        "answer urls",
        "select 'status ' || status as answer, count(*) as n from pages group by 1 union all "
        "select reason, count(*) from pages_rejects group by 1 order by n desc, answer",
    ),
    "duplicates": ("rule documents", "select rule, count(*) from duplicates group by 1 order by 1"),
    "clusters": (
        "size clusters",
        f"select n + 1, count(*) from {counted('kept_url_id', 'duplicates')} group by 1 order by 1",
    ),
    "largest_clusters": (
        "documents kept_url_id kept_url exact_copies near_duplicates",
        "select count(*) + 1, kept_url_id::varchar, any_value(clean.url), count(*) filter (rule = 'exact'), "
        "count(*) filter (rule = 'near') from duplicates join clean on clean.url_id = kept_url_id group by kept_url_id "
        "order by 1 desc, kept_url_id limit 20",
    ),
    "removed_domains": (
        "domain removed documents share",
        f"select key, r.n, c.n, r.n / c.n from {counted(HOST, 'corpus_rejects')} r join {counted(HOST, 'clean')} c "
        "using (key) order by r.n desc, key limit 50",
    ),
    "fetched_domains": (
        "domain urls pages mean_body_bytes most_often_otherwise",
        f"""select key, u.n, coalesce(p.n, 0), size, failure from {counted("host", "urls")} u
            left join {counted(HOST, "pages")} p using (key)
            left join (select {HOST} as key, avg(body_bytes) as size from pages group by 1) using (key)
            left join (select key, first(reason order by n desc, reason) as failure from (
                select {HOST} as key, reason, count(*) as n from pages_rejects group by all
            ) group by key) using (key)
            order by u.n desc, key limit 50""",
    ),
}  # fmt: skip
"""Columns of figures, and the rows that they have to have, in order."""


@pytest.mark.parametrize("name", TABLES)
def test_a_table_has_the_rows_that_are_counted_again(stats: dict[str, Any], sql: Callable, name: str) -> None:
    columns, query = TABLES[name]
    found, expected = ([row[column] for column in columns.split()] for row in rows_of(stats, name)), sql(query)
    assert expected
    for ours, theirs in zip(found, expected, strict=True):
        assert ours == [
            pytest.approx(one, abs=0.06 if one > 1 else 1e-6) if type(one) is float else one for one in theirs
        ]


def test_years_languages_and_scores_are_those_of_the_rows(stats: dict[str, Any], sql: Callable) -> None:
    for name in ("urls", "pages", "corpus"):
        years = sql(f"select year(to_timestamp(created_utc) at time zone 'UTC'), count(*) from {name} group by 1")
        counted = {row["year"]: row[name] for row in rows_of(stats, "years") if row[name]}
        assert counted == {year: count for year, count in years if year is not None}
        for row in rows_of(stats, "scores"):
            low, high = row["low"] if row["low"] is not None else -(10**6), row["high"] or 10**9
            assert sql(f"select count(*) from {name} where score between {low} and {high}") == [(row[name],)]
    for name in ("documents", "clean", "corpus"):
        languages = dict(sql(f"select coalesce(language, 'none'), count(*) from {name} group by 1"))
        assert {row["language"]: row[name] for row in rows_of(stats, "languages") if row[name]} == languages


LENGTHS = {
    "characters": ("length(text)", "corpus"),
    "bytes": ("strlen(text)", "corpus"),
    "words": ("n_words", "corpus"),
    "tokens": ("n_tokens", "tokens"),
}


def test_lengths_are_those_of_the_documents(stats: dict[str, Any], sql: Callable) -> None:
    lengths = {row["measure"]: row for row in rows_of(stats, "lengths")}
    for name, (column, table) in LENGTHS.items():
        found = lengths[name]
        assert sql(f"select sum({column})::bigint, min({column}), max({column}) from {table}") == [
            (found["sum"], found["minimum"], found["maximum"])
        ]
        for q in (5, 25, 50, 75, 95):
            assert sql(f"select quantile_disc({column}, {q / 100}) from {table}") == [(found[f"{q} %"],)]


def bins_of(stats: dict[str, Any]) -> Iterator[tuple[int, str, str, float, float]]:
    """(rows, table, column, low, below) of each bar of a histogram."""
    for row in rows_of(stats, "histograms"):
        column, table = LENGTHS[row["measure"]]
        yield row["documents"], table, column, row["low"], row["below"]
    for row in rows_of(stats, "times"):
        if row["measure"] == "bytes":
            yield row["pages"], "pages", "body_bytes", row["low"], row["below"]
    for row in rows_of(stats, "signals"):
        near = 1e-8  # 0.3 is below 6 / 20
        yield row["documents"], "clean", f"signals.{row['signal']}", row["low"] - near, row["below"] - near
    near_duplicates = "(from duplicates where rule = 'near')"
    for row in rows_of(stats, "similarities"):
        below = 2 if row["below"] == 1 else row["below"]
        yield row["near_duplicates"], near_duplicates, "similarity", row["similarity"], below


def test_bars_count_the_rows_of_their_bins(stats: dict[str, Any], sql: Callable) -> None:
    for rows, table, column, low, below in bins_of(stats):
        assert sql(f"select count(*) from {table} where {column} >= {low} and {column} < {below}") == [(rows,)], column
    assert {row["signal"].partition(".")[0] for row in rows_of(stats, "signals")} >= {
        "gopher_quality",
        "gopher_repetition",
    }
    sizes = [row["pages"] for row in rows_of(stats, "times") if row["measure"] == "bytes"]
    assert sql("select count(body_bytes) from pages") == [(sum(sizes),)]
    similar = sum(row["near_duplicates"] for row in rows_of(stats, "similarities"))
    assert sql("select count(*) from duplicates where rule = 'near'") == [(similar,)]


def test_the_totals_are_those_of_the_shards(stats: dict[str, Any], sql: Callable) -> None:
    ((tokens,),) = sql("select sum(len(tokens))::bigint from tokens")
    ((size,),) = sql("select sum(strlen(text))::bigint from corpus")
    assert (stats["totals"]["tokens"], stats["totals"]["text_bytes"]) == (tokens, size)
    webtext = {row["measure"]: row["this_corpus"] for row in rows_of(stats, "webtext")}
    assert webtext["bytes per token"] == pytest.approx(size / tokens, abs=1e-3)
    assert stats["totals"]["bytes_per_token"] == pytest.approx(size / tokens, abs=1e-6)
    assert webtext["tokens per document"] == pytest.approx(tokens / stats["totals"]["documents"], abs=0.1)


def test_removals_show_both_texts(stats: dict[str, Any], sql: Callable) -> None:
    removals = stats["removals"]
    rules = [rule for (rule,) in sql("select rule from duplicates order by rule desc")]
    assert [row["rule"] for row in removals] == rules[:20]
    for row in removals:
        ids = [row[side]["url_id"] for side in ("removed", "kept")]
        ((similarity,),) = sql(f"select similarity from duplicates where url_id = {ids[0]} and kept_url_id = {ids[1]}")
        assert row["similarity"] == pytest.approx(similarity, abs=1e-4)
        for side in ("removed", "kept"):
            shown = row[side]
            found = sql(f"select url, text[:3000], length(text) from clean where url_id = {shown['url_id']}")
            assert found == [(shown["url"], shown["text"], shown["characters"])]


def test_pages_by_age_are_those_of_the_rows(stats: dict[str, Any], sql: Callable) -> None:
    ((captured,),) = sql("select strftime(to_timestamp(max(fetched_at)) at time zone 'UTC', '%Y-%m') from pages")
    year, month = map(int, captured.split("-"))
    moment = "to_timestamp(created_utc) at time zone 'UTC'"
    age = f"greatest({year * 12 + month} - year({moment}) * 12 - month({moment}), 0) // 12"
    answers = {
        (years, reason): count
        for years, reason, count in sql(
            f"select {age}, reason, count(*) from urls left join pages_rejects using (url_id) "
            "where created_utc is not null group by all"
        )
    }
    assert {row["years"] for row in rows_of(stats, "fetched_ages")} == {years for years, _ in answers}
    for row in rows_of(stats, "fetched_ages"):
        counted = {reason: count for (years, reason), count in answers.items() if years == row["years"]}
        assert row["urls"] == sum(counted.values())
        assert row["pages"] == counted.get(None, 0)
        gone = sum(counted.get(reason, 0) for reason in ("http_404", "http_410"))
        assert row["gone_share"] == pytest.approx(gone / row["urls"], abs=1e-6)
        shares = sum(row[f"{name}_share"] for name in ("page", "gone", "no_answer", "other"))
        assert shares == pytest.approx(1, abs=1e-5)


def test_documents_dropped_are_of_their_filter(stats: dict[str, Any], sql: Callable) -> None:
    reasons = dict(sql("select reason, count(*) from clean_rejects group by 1"))
    assert {row["reason"]: len(row["documents"]) for row in stats["dropped"]} == {
        reason: min(20, count) for reason, count in reasons.items()
    }
    for row in stats["dropped"]:
        for document in row["documents"]:
            found = sql(
                "select d.url, reason, detail, text[:3000], length(text) from clean_rejects join documents d "
                f"using (url_id) where url_id = {document['url_id']}"
            )
            shown = tuple(document[name] for name in ("url", "detail", "text", "characters"))
            assert found == [(shown[0], row["reason"], *shown[1:])]


def test_documents_shown_are_those_of_the_corpus(stats: dict[str, Any], sql: Callable) -> None:
    assert len(stats["documents"]) == 20
    for row in stats["documents"]:
        found = sql(f"select url, text[:3000], length(text) from corpus where url_id = {row['url_id']}")
        assert found == [(row["url"], row["text"], row["characters"])]
