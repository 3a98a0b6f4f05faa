"""The report as a stage: its bytes, its schema, its inputs, and runs with few datasets."""

from __future__ import annotations

import json
import random
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import duckdb
import pytest

from owt_pipeline.engine.runner import run_stage
from owt_pipeline.engine.stage import Runtime
from owt_pipeline.errors import UserError
from owt_pipeline.pipeline import STAGES
from owt_pipeline.stages.report import tables
from owt_pipeline.stages.report.options import Options
from owt_pipeline.stages.report.stage import STAGE
from owt_pipeline.stages.report.tables import open_tables
from owt_pipeline.storage.folder import Storage
from tests.conftest import REPOSITORY
from tests.owt_pipeline.dedupe.corpora import prose
from tests.owt_pipeline.report.test_figures import rows_of
from tests.owt_pipeline.report.test_page import SECTIONS, sections_of
from tests.owt_pipeline.runs import ask_owt, copy_of, differing, manifest_of


def test_a_rebuilt_report_has_the_same_bytes(small_run: Path, tmp_path: Path) -> None:
    copy = copy_of(small_run, tmp_path / "run", without=("report",))
    run_stage(STAGE, Options(), Runtime(Storage(str(copy))))
    assert differing(copy, small_run) == []
    assert not list((copy / ".tmp").glob("*"))


@pytest.mark.slow
def test_rows_beyond_the_memory_are_spilled_unchanged(tmp_path: Path) -> None:
    def shown(memory: str, threads: int, *settings: str) -> list[tables.Row]:
        parameters = {"sample_urls": 5, "sample_documents": 3}
        folder = Storage(str(tmp_path))
        with tables.open_tables(
            {}, folder, [], parameters, threads=threads, memory=memory
        ) as opened:
            for statement in settings:
                opened.connection.execute(statement)
            opened.connection.execute(
                "insert into rejects (url_id, shard, reason, dataset) "
                "select range, range % 7, 'reason-' || range % 3, 'urls' from range(600_000)"
            )
            return opened.rows("rejected")

    assert len(shown("1GB", 2)) == 15
    assert shown("40MB", 1) == shown("1GB", 2)
    with pytest.raises(duckdb.OutOfMemoryException):
        shown("40MB", 1, "set max_temp_directory_size = '0KB'")


@pytest.mark.parametrize("name", ["a?b", "a\\b"])
def test_the_tables_of_a_folder_with_an_odd_name_open(tmp_path: Path, name: str) -> None:
    """DuckDB reads `?` as the end of a path, and a backslash as a slash."""
    with open_tables({}, Storage(str(tmp_path / name)), [], {}) as opened:
        assert opened.rows("50_duplicates") == []


@pytest.mark.slow
def test_another_number_of_shards_comes_to_the_same_figures(
    small_config: Path, stats: dict[str, Any], tmp_path: Path
) -> None:
    config = small_config.read_text().replace("num_shards = 3", "num_shards = 5")
    (tmp_path / "config.toml").write_text(config)
    ask_owt("run", tmp_path / "run", tmp_path / "config.toml", "--workers", 2)
    other_stats = json.loads((tmp_path / "run" / "report" / "stats.json").read_bytes())
    expected = json.loads(json.dumps(stats))
    assert manifest_of(tmp_path / "run", "urls").num_shards == 5
    for report in (other_stats, expected):
        del report["settings"]
        for row in report["funnel"]:
            del row["bytes"]
    assert other_stats == expected


def test_a_damaged_file_is_named_with_what_to_do(small_run: Path, tmp_path: Path) -> None:
    copy = copy_of(small_run, tmp_path / "run", without=("report",))
    path = next((copy / "duplicates").glob("part-00001-*"))
    path.write_bytes(b"PAR1" + bytes(path.stat().st_size - 8) + b"PAR1")
    with pytest.raises(
        UserError, match=rf"{path.name} was changed or removed .* run `owt verify .*--repair`"
    ):
        run_stage(STAGE, Options(), Runtime(Storage(str(copy))))


def test_a_run_of_imported_text_has_a_report_of_its_datasets(tmp_path: Path) -> None:
    rows = [
        {"text": f"</script><script>alert({i})</script> & a text of its own. " * 40 + str(i)}
        for i in range(9)
    ]
    (tmp_path / "in.jsonl").write_text(
        "\n".join(json.dumps({**row, "title": "<b>&"}) for row in rows)
    )
    ask_owt("import", tmp_path / "run", tmp_path / "in.jsonl", "--num_shards", 2)
    for name in ("clean", "dedupe", "export", "tokenize", "report"):
        stage = STAGES[name]
        run_stage(stage, stage.options(), Runtime(Storage(str(tmp_path / "run"))))
    stats = json.loads((tmp_path / "run" / "report" / "stats.json").read_bytes())
    assert stats["funnel"][0]["stage"] == "import"
    assert stats["funnel"][0]["entered"] == 9
    for name in ("answers", "scores", "domains", "generations", "webtext"):
        assert rows_of(stats, name) == []
    assert stats["made_from"] == "texts imported from files"
    page = (tmp_path / "run" / "report" / "index.html").read_text()
    assert "<script>alert(" not in page
    assert "Made from texts imported from files" in page
    assert "WebText" not in page
    assert "&lt;b&gt;&amp;" in page
    assert set(sections_of(page)) < set(SECTIONS)
    assert {"lengths", "documents"} <= set(sections_of(page))


@pytest.mark.slow
def test_evaluation_sets_and_other_corpora_are_among_the_sources(tmp_path: Path) -> None:
    words = [f"word{i}" for i in range(600)]
    texts = [" ".join(words[start : start + 200]) for start in (0, 100, 400)]
    texts_by_run = {"other": texts[1:2], "run": texts}
    (tmp_path / "evaluation.txt").write_text(texts[2])
    for name, texts_of_run in texts_by_run.items():
        rows = [json.dumps({"text": text}) for text in texts_of_run]
        (tmp_path / f"{name}.jsonl").write_text("\n".join(rows))
        ask_owt("import", tmp_path / name, tmp_path / f"{name}.jsonl", "--num_shards", 1)
    against = [
        "--decontaminate",
        tmp_path / "evaluation.txt",
        "--against",
        tmp_path / "other.jsonl",
    ]
    ask_owt("run", tmp_path / "run", "--min_tokens", 0, "--languages", "all", *against)
    page = (tmp_path / "run/report/index.html").read_text()
    assert "clean read evaluation.txt" in page
    assert "dedupe read other.jsonl" in page
    assert manifest_of(tmp_path / "run", "corpus").counts.left == 1
    stats = json.loads((tmp_path / "run/report/stats.json").read_bytes())
    assert [source["name"] for source in stats["settings"]["duplicates"]["sources"]] == [
        "other.jsonl"
    ]


# The URLs of each generation's documents. A document of copy-of.org has the text of the URL in
# which its own URL ends, without the last word.
GENERATIONS = (
    ["a.org/1", "a.org/2", "b.org/1", "c.org/1", "d.org/1", "d.org/2"],
    ["a.org/3", "b.org/2", "e.org/1", "copy-of.org/a.org/1", "copy-of.org/b.org/2", "e.org/2"],
)


def text_of(url: str) -> str:
    """Return the text of a URL's document."""
    text = " ".join(prose(random.Random(url.removeprefix("copy-of.org/")), 60))
    return text.rsplit(" ", 1)[0] if url.startswith("copy-of.org/") else text


def report_with(run: Path, number: int) -> dict[str, Any]:
    """Import a generation and run all stages; return the figures of the report."""
    file = run.parent / f"{number}.jsonl"
    rows = [{"url": f"https://{url}", "text": text_of(url)} for url in GENERATIONS[number]]
    file.write_text("\n".join(map(json.dumps, rows)))
    ask_owt("import", run, file, "--num_shards", 2, *(["--add"] if number else []))
    ask_owt("run", run, "--min_tokens", 0, "--languages", "all")
    return json.loads((run / "report/stats.json").read_bytes())


def test_the_report_counts_what_each_generation_adds(tmp_path: Path) -> None:
    run = tmp_path / "run"
    assert rows_of(report_with(run, 0), "generations") == []
    stats = report_with(run, 1)
    first, second = rows_of(stats, "generations")
    assert (
        first["generation"],
        first["urls"],
        first["documents"],
        first["repeats_of_earlier"],
    ) == ("0", 0, 6, 0)
    assert (second["documents"], second["repeats_within"], second["repeats_of_earlier"]) == (
        4,
        1,
        1,
    )
    # b.org/2 has a copy in its own generation, and a.org/1 a copy in a later generation.
    assert rows_of(stats, "clusters") == [{"size": 2, "clusters": 2, "documents": 1}]
    assert first["tokens"] + second["tokens"] == stats["totals"]["tokens"]
    page = (run / "report/index.html").read_text()
    data = page.split('<script type="application/json" id="charts">')[1].split("</script>")[0]
    all_series = json.loads(data)["generations"]["series"]
    assert [series["values"] for series in all_series] == [[6, 4], [0, 1], [0, 1]]


@pytest.fixture
def own_figure(
    small_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Callable[[str], Any]:
    """A function that writes the report with one more query, and returns the figures."""
    folder = tmp_path / "queries"
    shutil.copytree(Path(str(tables._QUERIES)), folder)
    monkeypatch.setattr(tables, "_QUERIES", folder)
    run = copy_of(small_run, tmp_path / "run", without=("report",))

    def write(query: str) -> Any:
        (folder / "26_authors.sql").write_text(query)
        run_stage(STAGE, Options(), Runtime(Storage(str(run))))
        return json.loads((run / "report/stats.json").read_text())["figures"]

    return write


AUTHORS = re.findall(r"```sql\n(.*?)```", (REPOSITORY / "CONTRIBUTING.md").read_text(), re.DOTALL)[
    0
]


def test_the_documented_figure_is_counted(
    own_figure: Callable[[str], Any], sql: Callable[[str], list[tuple]]
) -> None:
    figure = own_figure(AUTHORS.replace("limit 20", "limit 3"))["authors"]
    count = "select author, count(*) from corpus where author is not null group by 1 order by 2 desc, 1 limit 3"
    assert [tuple(row.values()) for row in figure["rows"]] == sql(count)
    assert len(figure["rows"]) == 3


@pytest.mark.parametrize(
    ("right", "wrong", "problem"),
    [
        ("author is", "authr is", 'Referenced column "authr" not found'),
        ("from corpus", "from korpus", "Table with name korpus does not exist"),
        ("count(*)", "cuont(*)", "cuont does not exist"),
        ("limit 20", "limit limit", "Parser Error: syntax error"),
        ("-- chart: table\n", "", "does not begin with three comments"),
        ("chart: table", "chart: bars name: documents", "draws 'name', which its query"),
    ],
)
def test_a_mistake_in_a_figure_is_one_line(
    own_figure: Callable[[str], Any], right: str, wrong: str, problem: str
) -> None:
    with pytest.raises(UserError, match=re.escape(problem)) as error:
        own_figure(AUTHORS.replace(right, wrong))
    assert "authors" in str(error.value)
    assert "\n" not in str(error.value)
