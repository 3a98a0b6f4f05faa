"""The figures of a small run's report, against counts that DuckDB makes of its files."""

from __future__ import annotations

from collections.abc import Callable
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


@pytest.mark.parametrize("kind", ["domain", "subreddit"])
def test_domains_and_subreddits_are_counted_exactly(stats: dict[str, Any], sql: Callable, kind: str) -> None:
    key = {"domain": HOST, "subreddit": "unnest(subreddits)"}[kind]
    urls, corpus = (
        dict(sql(f"select key, count(*) from (select {key} as key from {name}) group by key"))
        for name in ("urls", "corpus")
    )
    found = rows_of(stats, f"{kind}s")
    ranked = sorted(corpus, key=lambda name: (-corpus[name], name))[:100]
    assert [row[kind] for row in found] == ranked
    for row in found:
        assert (row["documents"], row["urls"]) == (corpus[row[kind]], urls[row[kind]])
        assert row["survival"] == pytest.approx(corpus[row[kind]] / urls[row[kind]], abs=1e-6)


def test_sources_of_links_are_counted(stats: dict[str, Any], sql: Callable) -> None:
    found = sql("""
        select link, count(*), count(corpus.url_id)
        from (select url_id, unnest(link_sources) as link from urls) left join corpus using (url_id) group by link
    """)
    assert [(row["source"], row["urls"], row["documents"]) for row in rows_of(stats, "links")] == found
    assert [row["share"] for row in rows_of(stats, "links")] == [1]


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
    for row in rows_of(stats, "histograms"):
        column, table = LENGTHS[row["measure"]]
        counted = sql(f"select count(*) from {table} where {column} >= {row['low']} and {column} < {row['below']}")
        assert counted == [(row["documents"],)]


def test_the_totals_are_those_of_the_shards(stats: dict[str, Any], sql: Callable) -> None:
    ((tokens,),) = sql("select sum(len(tokens))::bigint from tokens")
    ((size,),) = sql("select sum(strlen(text))::bigint from corpus")
    assert (stats["totals"]["tokens"], stats["totals"]["text_bytes"]) == (tokens, size)
    webtext = {row["measure"]: row["this_corpus"] for row in rows_of(stats, "webtext")}
    assert webtext["bytes per token"] == pytest.approx(size / tokens, abs=1e-3)
    assert stats["totals"]["bytes_per_token"] == pytest.approx(size / tokens, abs=1e-6)
    assert webtext["tokens per document"] == pytest.approx(tokens / stats["totals"]["documents"], abs=0.1)


def test_duplicates_are_those_decided(stats: dict[str, Any], sql: Callable) -> None:
    rules = dict(sql("select rule, count(*) from duplicates group by rule"))
    assert {row["rule"]: row["documents"] for row in rows_of(stats, "duplicates")} == rules
    clusters = sql("select kept_url_id, max(cluster_size), count(*) from duplicates group by 1")
    sizes: dict[int, int] = {}
    for _, size, removed in clusters:
        assert size == removed + 1
        sizes[size] = sizes.get(size, 0) + 1
    assert {row["size"]: row["clusters"] for row in rows_of(stats, "clusters")} == sizes
    largest = sorted(((size, kept) for kept, size, _ in clusters), key=lambda item: (-item[0], item[1]))[:20]
    found = rows_of(stats, "largest_clusters")
    assert [(row["documents"], int(row["kept_url_id"])) for row in found] == largest
    for row in found:
        assert sql(f"select url from clean where url_id = {row['kept_url_id']}") == [(row["kept_url"],)]
        assert row["exact_copies"] + row["near_duplicates"] == row["documents"] - 1
    near = "from duplicates where rule = 'near' and similarity"
    for row in rows_of(stats, "similarities"):
        last = 2 if row["below"] == 1 else row["below"]
        assert sql(f"select count(*) {near} >= {row['similarity']} and similarity < {last}") == [
            (row["near_duplicates"],)
        ]
    assert sum(row["near_duplicates"] for row in rows_of(stats, "similarities")) == rules["near"]


def test_answers_are_those_of_the_pages(stats: dict[str, Any], sql: Callable) -> None:
    expected = {f"status {status}": n for status, n in sql("select status, count(*) from pages group by 1")}
    expected |= dict(sql("select reason, count(*) from pages_rejects group by 1"))
    assert {row["answer"]: row["urls"] for row in rows_of(stats, "answers")} == expected
    sizes = [row for row in rows_of(stats, "times") if row["measure"] == "bytes"]
    for row in sizes:
        counted = sql(f"select count(*) from pages where body_bytes >= {row['low']} and body_bytes < {row['below']}")
        assert counted == [(row["pages"],)]
    assert sql("select count(body_bytes) from pages") == [(sum(row["pages"] for row in sizes),)]


def test_removals_by_domain_are_those_that_export_made(stats: dict[str, Any], sql: Callable) -> None:
    removed = dict(sql(f"select {HOST}, count(*) from corpus_rejects group by 1"))
    examined = dict(sql(f"select {HOST}, count(*) from clean group by 1"))
    ranked = sorted(removed, key=lambda name: (-removed[name], name))[:50]
    found = rows_of(stats, "removed_domains")
    assert [row["domain"] for row in found] == ranked
    for row in found:
        assert (row["removed"], row["documents"]) == (removed[row["domain"]], examined[row["domain"]])
        assert row["share"] == pytest.approx(row["removed"] / row["documents"], abs=1e-6)


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


def test_pages_by_domain_and_by_age_are_those_of_the_rows(stats: dict[str, Any], sql: Callable) -> None:
    pages = {name: rest for name, *rest in sql(f"select {HOST}, count(*), avg(body_bytes) from pages group by 1")}
    tried = dict(sql("select host, count(*) from urls group by 1"))
    ranked = sorted(tried, key=lambda name: (-tried[name], name))[:50]
    found = rows_of(stats, "fetched_domains")
    assert [row["domain"] for row in found] == ranked
    for row in found:
        count, size = pages.get(row["domain"], (0, None))
        assert (row["urls"], row["pages"]) == (tried[row["domain"]], count)
        assert row["mean_body_bytes"] == (None if size is None else pytest.approx(size, abs=0.06))
        failures = sql(
            f"select reason from pages_rejects where {HOST} = '{row['domain']}' group by 1 order by count(*) desc, 1"
        )
        assert row["most_often_otherwise"] == (failures[0][0] if failures else None)
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


def test_signals_are_those_of_the_documents(stats: dict[str, Any], sql: Callable) -> None:
    found = rows_of(stats, "signals")
    assert {row["signal"].partition(".")[0] for row in found} >= {"gopher_quality", "gopher_repetition"}
    for row in found:
        value = f"signals.{row['signal']}"
        near = 1e-8  # 0.3 is below 6 / 20
        counted = sql(
            f"select count(*) from clean where {value} >= {row['low']} - {near} and {value} < {row['below']} - {near}"
        )
        assert counted == [(row["documents"],)], row


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
