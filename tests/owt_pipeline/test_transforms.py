"""Beam transforms work on rows, named tuples and dicts, from Python and from Beam YAML."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import apache_beam as beam
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from apache_beam.runners.portability.fn_api_runner import FnApiRunner
from apache_beam.testing.util import BeamAssertException, assert_that

import owt_pipeline as owt
from owt_pipeline.transforms import CleanText, ExtractText
from tests.owt_pipeline.dedupe.corpora import corpus_with_copies

pytestmark = pytest.mark.beam

PROSE = (
    "This is a sentence of an article that somebody wrote, and it goes on about the weather, "
    "number {}. "
)


def page(number: int) -> str:
    """Return the HTML of an article."""
    return f"<article><h1>Page {number}</h1><p>{PROSE.format(number) * 20}</p></article>"


def rows_are(expected: Sequence[dict[str, Any]], *names: str) -> Any:
    """Return a check that a PCollection has these rows, in any order.

    If names are given, only these fields are compared.
    """

    def select(row: dict[str, Any]) -> dict[str, Any]:
        return {name: row[name] for name in names or row}

    def check(rows: Any) -> None:
        selected = sorted((select(row._asdict()) for row in rows), key=str)
        if selected != sorted(map(select, expected), key=str):
            raise BeamAssertException(f"{selected} is not {list(expected)}")

    return check


class Posted(NamedTuple):
    html: str
    url: str
    score: int


@pytest.mark.parametrize("kind", [beam.Row, Posted, dict])
def test_pages_become_texts_and_rejects(kind: Any) -> None:
    inputs = [{"html": "", "url": "https://example.org/0", "score": 0}]
    expected = []
    for number in range(1, 4):
        url = f"https://example.org/{number}"
        row = {"html": page(number), "url": url, "score": number}
        extraction = vars(owt.extract(row["html"], url))
        inputs.append(row)
        expected.append({**row, **extraction})
    with beam.Pipeline(runner=FnApiRunner()) as pipeline:
        result = pipeline | beam.Create([kind(**row) for row in inputs]) | ExtractText()
        assert_that(result["out"], rows_are(expected), label="out")
        problem = {"reason": "no_text", "detail": "an empty page"}
        assert_that(result["rejects"], rows_are([{**inputs[0], **problem}]), label="rejects")


def test_a_missing_page_or_a_crash_is_a_reject() -> None:
    inputs = [{"html": None}, {"html": "die"}, {"html": "fine"}]
    with beam.Pipeline(runner=FnApiRunner()) as pipeline:
        rows = pipeline | beam.Create([beam.Row(**row) for row in inputs])
        result = rows | ExtractText(extractor="tests.owt_pipeline.test_library:hostile")
        assert_that(result["out"], rows_are([{"text": "fine"}], "text"), label="out")
        rejects = [{"html": None, "reason": "no_text"}, {"html": "die", "reason": "extract_crash"}]
        assert_that(result["rejects"], rows_are(rejects, "html", "reason"), label="rejects")


def test_texts_are_repaired_judged_and_typed() -> None:
    good = PROSE.format(1) * 30 + "â€™"
    short = "too short"
    with beam.Pipeline(runner=FnApiRunner()) as pipeline:
        bodies = [good, short, None]
        inputs = [beam.Row(id=number, body=body) for number, body in enumerate(bodies, 1)]
        rows = pipeline | beam.Create(inputs)
        result = rows | CleanText(text_field="body")
        assert dict(result["out"].element_type._fields)["n_words"] is int
        repaired = [{"id": 1, "text": owt.clean(good).text, "language": "en"}]
        assert "’" in repaired[0]["text"]
        assert_that(result["out"], rows_are(repaired, "id", "text", "language"), label="out")
        rejects = [{"id": 2, "reason": "too_short"}, {"id": 3, "reason": "too_short"}]
        assert_that(result["rejects"], rows_are(rejects, "id", "reason"), label="rejects")


def examples_of_beam(language: str) -> list[str]:
    """Return the examples in the section on Beam of the library's page."""
    page = (Path(__file__).resolve().parents[2] / "docs" / "library.md").read_text()
    section = page.partition("\n## Beam\n")[2].partition("\n## ")[0]
    return re.findall(rf"^```{language}\n(.*?)^```", section, re.MULTILINE | re.DOTALL)


def test_the_documented_do_fn_removes_near_duplicates() -> None:
    texts = [f"{text} {'x' * i}" for i, text in enumerate(corpus_with_copies(3, 80))]
    removed = owt.near_duplicates(texts, workers=1)["row"].to_pylist()
    assert len(removed) > 5
    inputs = [{"url": f"{number:02}", "text": text} for number, text in enumerate(texts)]
    expected = [row for number, row in enumerate(inputs) if number not in removed]
    _, example = examples_of_beam("python")
    with beam.Pipeline(runner=FnApiRunner()) as pipeline:
        rows = [beam.Row(**row) for row in inputs]
        names = {"beam": beam, "owt": owt, "cleaned": {"out": pipeline | beam.Create(rows)}}
        exec(example, names)
        assert_that(names["unique"], rows_are(expected))


def test_mistakes_are_found_while_the_pipeline_is_built() -> None:
    with pytest.raises(ValueError, match="did you mean 'favor'"):
        ExtractText(favour="recall")
    with pytest.raises(ValueError, match="did you mean 'min_tokens'"):
        CleanText(min_token=5)


def test_a_missing_field_is_a_reject_or_a_page_without_a_url() -> None:
    with beam.Pipeline(runner=FnApiRunner()) as pipeline:
        urls = [float("nan"), 7, b"https://example.org/"]
        pages = [{"html": page(1), "url": url} for url in urls] + [{"body": page(1)}]
        result = pipeline | beam.Create(pages) | ExtractText()
        expected = [{"text": owt.extract(page(1)).text}] * 3  # type: ignore[union-attr]
        assert_that(result["out"], rows_are(expected, "text"), label="out")
        rejects = [{"body": page(1), "reason": "no_text", "detail": "an empty page"}]
        assert_that(result["rejects"], rows_are(rejects), label="rejects")


def test_beam_yaml_runs_them(tmp_path: Path) -> None:
    from apache_beam.yaml.main import run

    pages = [{"id": number, "html": page(1), "url": ""} for number in range(4)]
    pages[2]["html"] = ""
    pq.write_table(pa.Table.from_pylist(pages), tmp_path / "pages.parquet")
    (specification,) = examples_of_beam("yaml")
    specification = specification.replace(
        "providers.yaml", str(Path(owt.__file__).with_name("providers.yaml"))
    )
    for name in ("pages.parquet", "documents", "rejects"):
        specification = specification.replace(f"path: {name}", f"path: {tmp_path / name}")
    run(["--yaml_pipeline", specification, "--runner=FnApiRunner"])
    documents = rows_of(tmp_path, "documents*")
    assert sorted(row["id"] for row in documents) == [0, 1, 3]
    text = owt.extract(page(1), text_format="markdown").text
    assert all(row["text"] == text for row in documents)
    rejects = rows_of(tmp_path, "rejects*")
    assert [(row["id"], row["reason"]) for row in rejects] == [(2, "no_text")]


def rows_of(folder: Path, pattern: str) -> list[dict[str, Any]]:
    """Return the rows of the Parquet files whose names match a pattern."""
    rows = []
    for path in folder.glob(pattern):
        rows += pq.read_table(path).to_pylist()
    return rows
