"""The figures of a small run's report, against counts that DuckDB makes of its files."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import spearmanr

from owt_pipeline.formats.encoding import tiktoken_encoding as tiktoken
from owt_pipeline.stages.report.comparisons import rank_correlation, site_of
from owt_pipeline.stages.report.figures import realised_mixture


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


def test_a_stages_bytes_are_those_of_its_rows(stats: dict[str, Any], run: Path) -> None:
    for stage in stats["funnel"]:
        files = [path for path in (run / stage["dataset"]).rglob("part-*") if path.is_file()]
        files += (run / "warc").iterdir() if stage["dataset"] == "pages" else ()
        assert stage["bytes"] == sum(path.stat().st_size for path in files)  # without tokens' copy of the tokenizer


def test_every_domain_can_be_searched(stats: dict[str, Any], sql: Callable) -> None:
    host = "split_part(url, '/', 3)"
    expected = sql(
        f"select h, coalesce(n, 0), m from (select {host} as h, count(*) as m from urls group by 1) left join "
        f"(select {host} as h, count(*) as n from corpus group by 1) using (h) order by 2 desc, 3 desc, 1"
    )
    assert stats["domains"]["search"] == [list(row) for row in expected]


@pytest.mark.parametrize("kind", ["domain", "subreddit"])
def test_domains_and_subreddits_are_counted_exactly(stats: dict[str, Any], sql: Callable, kind: str) -> None:
    key = {"domain": "split_part(url, '/', 3)", "subreddit": "unnest(subreddits)"}[kind]
    urls, corpus = (
        dict(sql(f"select key, count(*) from (select {key} as key from {name}) group by key"))
        for name in ("urls", "corpus")
    )
    found = stats[f"{kind}s"]
    assert found["distinct"] == {"urls": len(urls), "corpus": len(corpus)}
    ranked = sorted(corpus, key=lambda name: (-corpus[name], name))[:100]
    assert [row[kind] for row in found["top"]] == ranked
    for row in found["top"]:
        assert (row["documents"], row["urls"]) == (corpus[row[kind]], urls[row[kind]])
        assert row["survival"] == pytest.approx(corpus[row[kind]] / urls[row[kind]], abs=1e-6)


def test_years_languages_and_scores_are_those_of_the_rows(stats: dict[str, Any], sql: Callable) -> None:
    for name in ("urls", "pages", "corpus"):
        years = sql(f"select year(to_timestamp(created_utc) at time zone 'UTC'), count(*) from {name} group by 1")
        counted = {row["year"]: row[name] for row in stats["years"] if row[name]}
        assert counted == {year: count for year, count in years if year is not None}
        for row in stats["scores"]:
            low, high = row["low"] if row["low"] is not None else -(10**6), row["high"] or 10**9
            assert sql(f"select count(*) from {name} where score between {low} and {high}") == [(row[name],)]
    for name in ("documents", "clean", "corpus"):
        languages = dict(sql(f"select coalesce(language, 'none'), count(*) from {name} group by 1"))
        assert {row["language"]: row[name] for row in stats["languages"] if row[name]} == languages


@pytest.mark.parametrize(
    ("name", "column", "table"),
    [
        ("characters", "length(text)", "corpus"),
        ("bytes", "strlen(text)", "corpus"),
        ("words", "n_words", "corpus"),
        ("tokens", "n_tokens", "tokens"),
    ],
)
def test_lengths_are_those_of_the_documents(
    stats: dict[str, Any], sql: Callable, name: str, column: str, table: str
) -> None:
    found = stats["lengths"][name]
    ((count, total, least, most),) = sql(
        f"select count(*), sum({column})::bigint, min({column}), max({column}) from {table}"
    )
    assert (found["count"], found["sum"], found["minimum"], found["maximum"]) == (count, total, least, most)
    for q, value in found["percentiles"].items():
        ((exact,),) = sql(f"select quantile_disc({column}, {int(q) / 100}) from {table}")
        assert value == exact
    for low, high, expected in found["histogram"]:
        assert sql(f"select count(*) from {table} where {column} >= {low} and {column} < {high}") == [(expected,)]


def test_tokens_and_the_vocabulary_are_those_of_the_shards(stats: dict[str, Any], sql: Callable) -> None:
    ((tokens, ids),) = sql("select count(*), count(distinct id) from (select unnest(tokens) as id from tokens)")
    ((size,),) = sql("select sum(strlen(text)) from corpus")
    assert sum(split["tokens"] for split in stats["tokens"]["splits"].values()) == tokens == stats["totals"]["tokens"]
    assert stats["tokens"]["vocabulary_used"] == ids
    assert stats["tokens"]["bytes_per_token"] == pytest.approx(size / tokens, abs=1e-6)


def test_duplicates_are_those_decided(stats: dict[str, Any], sql: Callable) -> None:
    found = stats["duplicates"]
    rules = dict(sql("select rule, count(*) from duplicates group by rule"))
    assert (found["exact"], found["near"]) == (rules["exact"], rules["near"])
    clusters = sql("select kept_url_id, max(cluster_size), count(*) from duplicates group by 1")
    sizes: dict[str, int] = {}
    for _, size, removed in clusters:
        assert size == removed + 1
        sizes[str(size)] = sizes.get(str(size), 0) + 1
    assert found["clusters"]["sizes"] == dict(sorted(sizes.items(), key=lambda item: int(item[0])))
    assert found["clusters"]["count"] == len(clusters)
    largest = sorted(((size, kept) for kept, size, _ in clusters), key=lambda item: (-item[0], item[1]))[:20]
    assert [(row["size"], row["kept"]["url_id"]) for row in found["clusters"]["largest"]] == largest
    for row in found["clusters"]["largest"]:
        for document in (row["kept"], *row["removed"]):
            assert sql(f"select url from clean where url_id = {document['url_id']}") == [(document["url"],)]
    near = "from duplicates where rule = 'near' and similarity"
    for row in found["similarities"]:
        last = 2 if row["high"] == 1 else row["high"]
        ((count, bands),) = sql(f"select count(*), avg(shared_bands) {near} >= {row['low']} and similarity < {last}")
        assert (count, pytest.approx(bands, abs=1e-3)) == (row["count"], row["mean_shared_bands"])
    assert sum(row["count"] for row in found["similarities"]) == rules["near"]


def test_answers_are_those_of_the_pages(stats: dict[str, Any], sql: Callable) -> None:
    fetch = stats["fetch"]
    assert fetch["statuses"] == {str(s): n for s, n in sql("select status, count(*) from pages group by 1 order by 1")}
    assert fetch["failures"] == dict(sql("select reason, count(*) from pages_rejects group by 1"))
    assert sql("select sum(body_bytes)::bigint from pages") == [(fetch["body_bytes"]["sum"],)]


def test_removals_by_domain_are_those_that_export_made(stats: dict[str, Any], sql: Callable) -> None:
    host = "split_part(url, '/', 3)"
    removed = dict(sql(f"select {host}, count(*) from corpus_rejects group by 1"))
    examined = dict(sql(f"select {host}, count(*) from clean group by 1"))
    ranked = sorted(removed, key=lambda name: (-removed[name], name))[:50]
    assert [row["domain"] for row in stats["duplicates"]["domains"]] == ranked
    for row in stats["duplicates"]["domains"]:
        assert (row["removed"], row["documents"]) == (removed[row["domain"]], examined[row["domain"]])
        assert row["share"] == pytest.approx(row["removed"] / row["documents"], abs=1e-6)


def test_removals_show_both_texts_and_where_they_differ(stats: dict[str, Any], sql: Callable) -> None:
    removals = stats["duplicates"]["removals"]
    rules = ["near"] * stats["duplicates"]["near"] + ["exact"] * stats["duplicates"]["exact"]
    assert [row["rule"] for row in removals] == rules[:20]
    for row in removals:
        ids = row["removed"]["url_id"], row["kept"]["url_id"]
        ((similarity,),) = sql(f"select similarity from duplicates where url_id = {ids[0]} and kept_url_id = {ids[1]}")
        assert row["similarity"] == pytest.approx(similarity, abs=1e-4)
        for side, url_id in enumerate(ids, start=1):
            ((text,),) = sql(f"select text from clean where url_id = {url_id}")
            words = text.split()[:2000]
            for segment in row["segments"]:
                count = int(segment[side]) if segment[0] == "skipped" else len(segment[side].split())
                assert segment[0] == "skipped" or segment[side].split() == words[:count]
                words = words[count:]
            assert words == [] or len(row["segments"]) == 40
        assert (row["rule"] == "near") == any(kind == "differs" for kind, *_ in row["segments"])


def test_pages_by_domain_and_by_age_are_those_of_the_rows(stats: dict[str, Any], sql: Callable) -> None:
    fetch = stats["fetch"]
    host = "split_part(url, '/', 3)"
    pages = {name: rest for name, *rest in sql(f"select {host}, count(*), avg(body_bytes) from pages group by 1")}
    tried = dict(sql("select host, count(*) from urls group by 1"))
    ranked = sorted(tried, key=lambda name: (-tried[name], name))[:50]
    assert [row["domain"] for row in fetch["domains"]] == ranked
    for row in fetch["domains"]:
        count, size = pages.get(row["domain"], (0, None))
        assert (row["urls"], row["pages"]) == (tried[row["domain"]], count)
        assert row["mean_body_bytes"] == (None if size is None else pytest.approx(size, abs=0.06))
        assert row["failures"] == dict(
            sql(f"select reason, count(*) from pages_rejects where {host} = '{row['domain']}' group by 1")
        )
    ((captured,),) = sql("select strftime(to_timestamp(max(fetched_at)) at time zone 'UTC', '%Y-%m') from pages")
    assert fetch["captured"] == captured
    moment = "to_timestamp(created_utc) at time zone 'UTC'"
    year, month = map(int, captured.split("-"))
    age = f"greatest({year * 12 + month} - year({moment}) * 12 - month({moment}), 0) // 12"
    answers = {
        (age_, reason): count
        for age_, reason, count in sql(
            f"select {age}, reason, count(*) from urls left join pages_rejects using (url_id) "
            "where created_utc is not null group by all"
        )
    }
    assert {row["years"] for row in fetch["ages"]} == {age_ for age_, _ in answers}
    for row in fetch["ages"]:
        found = {reason: count for (age_, reason), count in answers.items() if age_ == row["years"]}
        assert row["pages"] == found.pop(None, 0)
        assert row["failures"] == found
        assert row["urls"] == row["pages"] + sum(found.values())
        ((size,),) = sql(f"select avg(body_bytes) from pages where {age} = {row['years']}")
        assert row["mean_body_bytes"] == (None if size is None else pytest.approx(size, abs=0.06))


def test_what_the_filters_took_is_what_the_texts_hold(stats: dict[str, Any], sql: Callable) -> None:
    texts = {"clean": ("clean_rejects", "documents"), "export": ("corpus_rejects", "clean")}
    encoding = tiktoken()
    lost = {(row["stage"], row["reason"]): row for row in stats["filters"]["lost"]}
    everything = stats["totals"]["tokens"] + sum(row["tokens"] for row in lost.values())
    for stage, (rejects, dataset) in texts.items():
        found: dict[str, list[str]] = {}
        for reason, text in sql(f"select reason, text from {rejects} join {dataset} using (url_id)"):
            found.setdefault(reason, []).append(text)
        assert {reason for stage_, reason in lost if stage_ == stage} == set(found)
        for reason, dropped in found.items():
            row = lost[stage, reason]
            assert (row["documents"], row["characters"]) == (len(dropped), sum(map(len, dropped)))
            assert row["bytes"] == sum(len(text.encode()) for text in dropped)
            assert row["tokens"] == sum(len(encoding.encode_ordinary(text)) for text in dropped)
            assert row["share"] == pytest.approx(row["tokens"] / everything, abs=1e-6)


def test_the_mixture_is_that_of_the_lengths(stats: dict[str, Any], sql: Callable) -> None:
    lengths = np.array([n for (n,) in sql("select n_tokens from tokens order by 1")])
    for row, expected in zip(stats["sampler"]["rows"], realised_mixture(lengths), strict=True):
        assert (row["at_least"], row["below"]) == (expected.at_least, expected.below)
        assert row["documents"] == pytest.approx(expected.documents, abs=1e-6)
        assert row["packed"]["tokens"] == pytest.approx(expected.packed.tokens, abs=1e-6)
    assert sum(row["packed"]["tokens"] for row in stats["sampler"]["rows"]) == pytest.approx(1, abs=1e-5)
    assert sum(row["longbiased"]["tokens"] for row in stats["sampler"]["rows"]) == pytest.approx(1, abs=1e-5)


def test_documents_dropped_are_of_their_filter(stats: dict[str, Any], sql: Callable) -> None:
    reasons = dict(sql("select reason, count(*) from clean_rejects group by 1"))
    assert {row["reason"]: len(row["documents"]) for row in stats["filters"]["dropped"]} == {
        reason: min(20, count) for reason, count in reasons.items()
    }
    for row in stats["filters"]["dropped"]:
        for document in row["documents"]:
            found = sql(
                "select d.url, reason, detail, text[:3000], length(text) from clean_rejects join documents d "
                f"using (url_id) where url_id = {document['url_id']}"
            )
            shown = tuple(document[name] for name in ("url", "detail", "text", "characters"))
            assert found == [(shown[0], row["reason"], *shown[1:])]


def test_token_ids_are_counted_by_how_often_they_occur(stats: dict[str, Any], sql: Callable) -> None:
    occurrences = "select count(*) as n from (select unnest(tokens) as id from tokens) group by id"
    for low, high, ids in stats["tokens"]["occurrences"]:
        assert sql(f"select count(*) from ({occurrences}) where n >= {low} and n < {high}") == [(ids,)]
    assert sum(ids for *_, ids in stats["tokens"]["occurrences"]) == stats["tokens"]["vocabulary_used"]


def test_likeness_is_measured_against_the_list_given(stats: dict[str, Any], sql: Callable) -> None:
    lengths = {row["what"]: row for row in stats["likeness"]["lengths"]}
    totals = stats["totals"]
    assert lengths["tokens_per_document"]["corpus"] == round(totals["tokens"] / totals["documents"], 2)
    assert [row["off"] for row in stats["likeness"]["lengths"]] == [True, False]  # half the tokens, the same bytes
    assert lengths["bytes_per_token"]["corpus"] == pytest.approx(totals["text_bytes"] / totals["tokens"], abs=1e-6)
    sites = stats["likeness"]["sites"]
    assert (sites["reference"], sites["listed"]) == ("sites.txt", 4)
    for row in sites["datasets"]:
        ((rows, demo),) = sql(
            f"select count(*), count(*) filter (split_part(url, '/', 3) like '%.demo.test') from {row['dataset']}"
        )
        assert row["rows"] == rows
        assert sites["top"][1]["site"] == "demo"
        assert sites["top"][1][row["dataset"]] == demo
        assert row["of_listed_sites"] == pytest.approx(
            sum(top[row["dataset"]] for top in sites["top"]) / rows, abs=1e-6
        )


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 5)), min_size=2, max_size=30))
def test_the_rank_correlation_is_spearmans(pairs: list[tuple[int, int]]) -> None:
    found = rank_correlation(pairs)
    if len({a for a, _ in pairs}) == 1 or len({b for _, b in pairs}) == 1:
        assert found is None
    else:
        assert found == pytest.approx(spearmanr(*zip(*pairs, strict=True)).statistic, abs=1e-4)


@pytest.mark.parametrize(
    ("host", "site"),
    [("en.wikipedia.org", "wikipedia"), ("news.bbc.co.uk", "bbc"), ("someone.blogspot.com", "blogspot"),
     ("a.demo.test", "demo"), ("[2001:db8::1]", None), ("192.0.2.1", None), ("localhost", None)],
)  # fmt: skip
def test_a_host_belongs_to_the_site_before_its_public_suffix(host: str, site: str | None) -> None:
    assert site_of(host) == site
