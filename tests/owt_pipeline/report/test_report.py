"""The report of a small run: its figures against counts made by DuckDB, its page in a real browser."""

from __future__ import annotations

import json
import re
import shutil
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from owt_pipeline.report.figures import STATS_VERSION
from owt_pipeline.report.summaries import SCORE_EDGES
from owt_pipeline.runtime.stage import Runtime, run_stage
from owt_pipeline.runtime.storage import Storage
from owt_pipeline.stages import load
from owt_pipeline.stages.report import STAGE, ReportOptions
from schemas import Manifest
from tests.owt_pipeline.report.browser import Browser
from tests.owt_pipeline.whole_runs import run_owt, write_sources

REPOSITORY = Path(__file__).resolve().parents[3]
SECTIONS = (
    "funnel", "domains", "subreddits", "years", "languages", "scores", "lengths", "duplicates", "fetch", "documents",
    "settings",
)  # fmt: skip


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("small")
    run_owt("run", write_sources(folder), "--workdir", folder / "run", "--workers", 2)
    return folder / "run"


@pytest.fixture(scope="module")
def stats(run: Path) -> dict[str, Any]:
    return json.loads((run / "report" / "stats.json").read_bytes())


@pytest.fixture(scope="module")
def sql(run: Path) -> Any:
    """Rows of a query over the run's files, which DuckDB reads by itself."""
    duckdb = pytest.importorskip("duckdb")
    connection = duckdb.connect()
    for name in ("urls", "pages", "documents", "clean", "duplicates", "corpus"):
        connection.execute(f"create view {name} as select * from '{run}/{name}/part-*.parquet'")
        connection.execute(f"create view {name}_rejects as select * from '{run}/{name}/rejects/part-*.parquet'")
    paths = sorted(run.glob("tokens/*/part-*.arrow"))
    connection.register("tokens", pa.concat_tables(pa.ipc.open_file(path).read_all() for path in paths))
    return lambda query: connection.execute(query).fetchall()


def test_the_funnel_is_what_the_files_hold(stats: dict[str, Any], sql: Any) -> None:
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
            assert len(sample) == min(20, len({url_id for url_id, *_ in found}))
    assert by_dataset["tokens"]["left"] == by_dataset["corpus"]["left"] == stats["totals"]["documents"]


@pytest.mark.parametrize("kind", ["domain", "subreddit"])
def test_domains_and_subreddits_are_counted_exactly(stats: dict[str, Any], sql: Any, kind: str) -> None:
    key = {"domain": "split_part(url, '/', 3)", "subreddit": "unnest(subreddits)"}[kind]
    urls, corpus = (
        dict(sql(f"select key, count(*) from (select {key} as key from {name}) group by key"))
        for name in ("urls", "corpus")
    )
    found = stats[f"{kind}s"]
    assert found["exact"]
    assert found["distinct"] == {
        "urls": {"count": len(urls), "exact": True},
        "corpus": {"count": len(corpus), "exact": True},
    }
    ranked = sorted(corpus, key=lambda name: (-corpus[name], name))[:100]
    assert [row[kind] for row in found["top"]] == ranked
    for row in found["top"]:
        assert (row["documents"], row["urls"]) == (corpus[row[kind]], urls[row[kind]])
        assert row["survival"] == pytest.approx(corpus[row[kind]] / urls[row[kind]], abs=1e-6)


def test_years_languages_and_scores_are_those_of_the_rows(stats: dict[str, Any], sql: Any) -> None:
    for name in ("urls", "pages", "corpus"):
        years = sql(f"select year(to_timestamp(created_utc) at time zone 'UTC'), count(*) from {name} group by 1")
        counted = {row["year"]: row[name] for row in stats["years"] if row[name]}
        assert counted == {year: count for year, count in years if year is not None}
        for row in stats["scores"]:
            low, high = row["low"] if row["low"] is not None else -(10**6), row["high"] or 10**9
            assert sql(f"select count(*) from {name} where score between {low} and {high}") == [(row[name],)]
    assert {row["low"] for row in stats["scores"]} <= {None, *SCORE_EDGES}
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
    stats: dict[str, Any], sql: Any, name: str, column: str, table: str
) -> None:
    found = stats["lengths"][name]
    ((count, total, least, most),) = sql(
        f"select count(*), sum({column})::bigint, min({column}), max({column}) from {table}"
    )
    assert (found["count"], found["sum"], found["minimum"], found["maximum"]) == (count, total, least, most)
    for q, value in found["percentiles"].items():
        ((exact,),) = sql(f"select quantile_disc({column}, {int(q) / 100}) from {table}")
        assert value == pytest.approx(exact, rel=0.005)
    for low, high, expected in found["histogram"]:
        assert sql(f"select count(*) from {table} where {column} >= {low} and {column} < {high}") == [(expected,)]


def test_tokens_and_the_vocabulary_are_those_of_the_shards(stats: dict[str, Any], sql: Any) -> None:
    ((tokens, ids),) = sql("select count(*), count(distinct id) from (select unnest(tokens) as id from tokens)")
    ((size,),) = sql("select sum(strlen(text)) from corpus")
    assert sum(split["tokens"] for split in stats["tokens"]["splits"].values()) == tokens == stats["totals"]["tokens"]
    assert stats["tokens"]["vocabulary_used"] == ids
    assert stats["tokens"]["bytes_per_token"] == pytest.approx(size / tokens, abs=1e-6)


def test_duplicates_are_those_decided(stats: dict[str, Any], sql: Any) -> None:
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


def test_answers_are_those_of_the_pages(stats: dict[str, Any], sql: Any) -> None:
    fetch = stats["fetch"]
    assert fetch["statuses"] == {str(s): n for s, n in sql("select status, count(*) from pages group by 1 order by 1")}
    assert fetch["failures"] == dict(sql("select reason, count(*) from pages_rejects group by 1"))
    assert sql("select sum(body_bytes)::bigint from pages") == [(fetch["body_bytes"]["sum"],)]


def test_every_key_of_stats_is_documented(stats: dict[str, Any]) -> None:
    documented = (REPOSITORY / "docs" / "stats.md").read_text()
    assert f"version {STATS_VERSION}" in documented
    assert stats["schema_version"] == STATS_VERSION

    def keys(value: Any) -> set[str]:
        if isinstance(value, dict):
            return set(value) | {k for v in value.values() for k in keys(v)}
        return {k for v in value for k in keys(v)} if isinstance(value, list) else set()

    skipped = {"settings": None, "fetch": {"failures", "sources", "statuses"}, "documents": None}
    for name, value in stats.items():
        assert f"`{name}`" in documented
        for key in keys(value) if name not in skipped else skipped[name] or ():
            assert f"`{key}`" in documented or key.isdigit(), f"{name}: {key}"


def test_one_and_two_workers_write_the_same_bytes_and_a_rerun_too(run: Path, tmp_path: Path) -> None:
    copy = tmp_path / "run"
    shutil.copytree(run, copy)
    for workers in (1, 2):
        shutil.rmtree(copy / "report")
        run_stage(STAGE, ReportOptions(), Runtime(Storage(str(copy)), workers))
        for name in ("index.html", "stats.json", "manifest.json"):
            assert (copy / "report" / name).read_bytes() == (run / "report" / name).read_bytes()


def test_a_run_of_imported_text_has_a_report_of_what_is_there(tmp_path: Path) -> None:
    rows = [{"text": f"</script><script>alert({i})</script> & a text of its own. " * 40 + str(i)} for i in range(9)]
    (tmp_path / "in.jsonl").write_text("\n".join(json.dumps({**row, "title": "<b>&"}) for row in rows))
    run_owt("import", tmp_path / "in.jsonl", "--workdir", tmp_path / "run", "--num_shards", 2)
    for name in ("clean", "dedupe", "export", "tokenize", "report"):
        run_owt(name, "--workdir", tmp_path / "run")
    stats = json.loads((tmp_path / "run" / "report" / "stats.json").read_bytes())
    assert stats["funnel"][0]["stage"] == "import"
    assert stats["funnel"][0]["entered"] == 9
    assert (stats["fetch"], stats["scores"], stats["domains"]["top"]) == ({}, [], [])
    page = (tmp_path / "run" / "report" / "index.html").read_text()
    assert page.count("the text was imported") == 1
    assert "<script>alert(" not in page
    assert "&lt;b&gt;&amp;" in page
    assert _Page(page).sections == list(SECTIONS)


def test_the_report_stands_until_anything_it_tells_of_changes(run: Path, tmp_path: Path) -> None:
    copy = tmp_path / "run"
    shutil.copytree(run, copy)
    runtime = Runtime(Storage(str(copy)))
    assert not run_stage(STAGE, ReportOptions(), runtime)[1]
    dedupe = load("dedupe")
    run_stage(dedupe, dedupe.options(threshold=0.95), runtime)
    assert run_stage(STAGE, ReportOptions(), runtime)[1]
    assert Manifest.from_json((copy / "report" / "manifest.json").read_bytes()).of_kind("asset")


class _Page(HTMLParser):
    """The ids of the sections and of all elements, and what a page refers to."""

    def __init__(self, text: str):
        super().__init__()
        self.sections: list[str] = []
        self.ids: list[str] = []
        self.references: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        if given.get("id"):
            self.ids.append(given["id"] or "")
            if tag == "section":
                self.sections.append(given["id"] or "")
        where = given.get("src") or given.get("href") or ""
        if where and (tag != "a" or where.startswith("#")):
            self.references.append(where)


def test_the_page_has_every_section_and_needs_no_other_file(run: Path) -> None:
    page = _Page((run / "report" / "index.html").read_text())
    assert page.sections == list(SECTIONS)
    assert page.references == [f"#{name}" for name in SECTIONS]
    assert len(set(page.ids)) == len(page.ids)


@pytest.mark.parametrize(("width", "dark"), [(1100, False), (1100, True), (390, False)])
def test_the_page_draws_in_a_browser(run: Path, browser: Browser, tmp_path: Path, width: int, dark: bool) -> None:
    browser.open(run / "report" / "index.html", width, 900, dark=dark)
    plots = browser.evaluate("[...document.querySelectorAll('.plot')].map(p => [p.id, !!p.querySelector('.main-svg')])")
    assert len(plots) >= 13
    assert all(drawn for _, drawn in plots)
    sideways = browser.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth")
    assert sideways == 0
    paper = browser.evaluate("getComputedStyle(document.body).backgroundColor")
    assert (sum(map(int, re.findall(r"\d+", paper))) < 300) == dark
    browser.screenshot(tmp_path / "page.png")
    assert (tmp_path / "page.png").stat().st_size > 50_000
    assert browser.problems == []
    assert browser.requests == [(run / "report" / "index.html").as_uri()]


def test_pointing_at_a_bar_shows_its_value(run: Path, browser: Browser, stats: dict[str, Any]) -> None:
    browser.open(run / "report" / "index.html", 1100, 900)
    bar = "document.querySelector('#plot-funnel .bars .point path').getBoundingClientRect()"
    x, y = browser.evaluate(f"(b => [b.x + b.width / 2, b.y + b.height / 2])({bar})")
    browser.call("Input.dispatchMouseEvent", type="mouseMoved", x=x - 5, y=y)
    browser.call("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y)
    label = f"entered: {stats['totals']['entered']:,}"
    assert browser.comes_to(f"document.querySelector('#plot-funnel .hoverlayer').textContent.includes('{label}')")


def test_a_reason_opens_to_urls(run: Path, browser: Browser, stats: dict[str, Any]) -> None:
    browser.open(run / "report" / "index.html", 390, 900)
    reason = stats["funnel"][0]["rejected"][0]
    browser.evaluate("document.querySelector('#funnel summary').click()")
    links = browser.evaluate("[...document.querySelectorAll('#funnel details[open] li')].map(e => e.textContent)")
    assert len(links) == len(reason["sample"])
    assert reason["sample"][0]["url"] in links[0]


def test_the_page_prints(run: Path, browser: Browser) -> None:
    browser.open(run / "report" / "index.html", 1100, 900, dark=True)
    browser.call("Emulation.setEmulatedMedia", media="print")
    assert browser.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    assert browser.evaluate("getComputedStyle(document.querySelector('nav')).display") == "none"
    assert browser.comes_to("document.querySelector('#plot-funnel .main-svg').getBoundingClientRect().width === 680")
    assert len(browser.call("Page.printToPDF")["data"]) > 50_000
    assert browser.problems == []
