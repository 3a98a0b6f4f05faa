"""The library's Beam transforms on rows, named tuples and dicts, from Python and from Beam YAML."""

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
from apache_beam.testing.util import BeamAssertException, assert_that, equal_to

import owt_pipeline as owt
from owt_pipeline.transforms import CleanText, ExtractText
from tests.owt_pipeline.dedupe.corpora import corpus_with_copies

PROSE = (
    "This is a sentence of an article that somebody wrote, and it goes on about the weather, "
    "number {}. "
)


def page(number: int) -> str:
    return f"<article><h1>Page {number}</h1><p>{PROSE.format(number) * 20}</p></article>"


def rows_are(expected: Sequence[dict[str, Any]], *names: str) -> Any:
    """An assertion that a PCollection has these rows, in any order, as far as the fields `names`
    go."""

    def check(rows: Any) -> None:
        found = sorted(
            ({name: row._asdict()[name] for name in names or row._asdict()} for row in rows),
            key=str,
        )
        if found != sorted(
            ({name: row[name] for name in names or row} for row in expected), key=str
        ):
            raise BeamAssertException(f"{found} is not {list(expected)}")

    return check


class Posted(NamedTuple):
    html: str
    url: str
    score: int


@pytest.mark.parametrize("kind", [beam.Row, Posted, dict])
def test_pages_become_texts_and_rejects(kind: Any) -> None:
    given = [
        {"html": page(i) if i else "", "url": f"https://example.org/{i}", "score": i}
        for i in range(4)
    ]
    results = [vars(owt.extract(row["html"], row["url"])) for row in given[1:]]
    expected = [
        {**row, **{name: result[name] for name in ExtractText.fields}}
        for row, result in zip(given[1:], results, strict=True)
    ]
    with beam.Pipeline(runner=FnApiRunner()) as pipeline:
        result = pipeline | beam.Create([kind(**row) for row in given]) | ExtractText()
        assert_that(result["out"], rows_are(expected), label="out")
        problem = {"reason": "no_text", "detail": "an empty page"}
        assert_that(result["rejects"], rows_are([{**given[0], **problem}]), label="rejects")


def test_page_that_is_none_or_crashes_its_process_is_a_reject() -> None:
    given = [{"html": None}, {"html": "die"}, {"html": "fine"}]
    with beam.Pipeline(runner=FnApiRunner()) as pipeline:
        rows = pipeline | beam.Create([beam.Row(**row) for row in given])
        result = rows | ExtractText(extractor="tests.owt_pipeline.test_library:hostile")
        assert_that(result["out"], rows_are([{"text": "fine"}], "text"), label="out")
        rejects = [{"html": None, "reason": "no_text"}, {"html": "die", "reason": "extract_crash"}]
        assert_that(result["rejects"], rows_are(rejects, "html", "reason"), label="rejects")


def test_texts_are_repaired_judged_and_typed() -> None:
    good, short = PROSE.format(1) * 30 + "â€™", "too short"
    with beam.Pipeline(runner=FnApiRunner()) as pipeline:
        rows = pipeline | beam.Create(
            [beam.Row(id=1, body=good), beam.Row(id=2, body=short), beam.Row(id=3, body=None)]
        )
        result = rows | CleanText(text_field="body")
        assert dict(result["out"].element_type._fields)["n_words"] is int
        repaired = [{"id": 1, "text": owt.clean(good).text, "language": "en"}]
        assert "’" in repaired[0]["text"]
        assert_that(result["out"], rows_are(repaired, "id", "text", "language"), label="out")
        rejects = [{"id": 2, "reason": "too_short"}, {"id": 3, "reason": "empty_text"}]
        assert_that(result["rejects"], rows_are(rejects, "id", "reason"), label="rejects")


def examples_of_beam(language: str) -> list[str]:
    """The examples in the section on Beam of the library's page."""
    page = (Path(__file__).resolve().parents[2] / "docs" / "library.md").read_text()
    section = page.partition("\n## Beam\n")[2].partition("\n## ")[0]
    return re.findall(rf"^```{language}\n(.*?)^```", section, re.MULTILINE | re.DOTALL)


def test_the_documented_do_fn_removes_near_duplicates() -> None:
    texts = [f"{text} {'x' * i}" for i, text in enumerate(corpus_with_copies(3, 80))]
    removed = owt.near_duplicates(texts, workers=1)["row"].to_pylist()
    assert len(removed) > 5
    expected = [{"url": f"{i:02}", "text": text} for i, text in enumerate(texts)]
    expected = [row for i, row in enumerate(expected) if i not in removed]
    _, example = examples_of_beam("python")
    with beam.Pipeline(runner=FnApiRunner()) as pipeline:
        rows = [beam.Row(url=f"{i:02}", text=text) for i, text in enumerate(texts)]
        names = {"beam": beam, "owt": owt, "cleaned": {"out": pipeline | beam.Create(rows)}}
        exec(example, names)
        assert_that(names["unique"], rows_are(expected))


def test_mistakes_are_found_while_the_pipeline_is_built() -> None:
    with pytest.raises(ValueError, match="did you mean 'favor'"):
        ExtractText(favour="recall")
    with pytest.raises(ValueError, match="did you mean 'min_tokens'"):
        CleanText(min_token=5)


def test_a_url_that_is_not_text_counts_as_none() -> None:
    with beam.Pipeline(runner=FnApiRunner()) as pipeline:
        rows = [{"html": page(1), "url": url} for url in (float("nan"), 7, b"https://example.org/")]
        result = pipeline | beam.Create(rows) | ExtractText()
        assert_that(result["out"], rows_are([{"text": owt.extract(page(1)).text}] * 3, "text"))  # type: ignore[union-attr]
    with beam.Pipeline(runner=FnApiRunner()) as pipeline:
        rows = pipeline | beam.Create([{"body": "x"}, {}])
        transforms = (ExtractText(), CleanText())
        for number, transform in enumerate(transforms):
            field, reason = [("html", "no_text"), ("text", "empty_text")][number > 0]
            about = (
                ("body", f"no field {field!r}; it has body"),
                (None, f"no field {field!r}; it has none"),
            )
            expected = [
                {**({"body": "x"} if body else {}), "reason": reason, "detail": detail}
                for body, detail in about
            ]
            result = rows | f"Transform {number}" >> transform
            found = result["rejects"] | f"As dicts {number}" >> beam.Map(lambda row: row._asdict())
            assert_that(found, equal_to(expected), label=f"rejects {number}")


def test_beam_yaml_runs_them(tmp_path: Path) -> None:
    from apache_beam.yaml.main import run

    pages = [{"id": i, "html": page(1) if i != 2 else "", "url": ""} for i in range(4)]
    pq.write_table(pa.Table.from_pylist(pages), tmp_path / "pages.parquet")
    (specification,) = examples_of_beam("yaml")
    specification = specification.replace(
        "providers.yaml", str(Path(owt.__file__).with_name("providers.yaml"))
    )
    for name in ("pages.parquet", "documents", "rejects"):
        specification = specification.replace(f"path: {name}", f"path: {tmp_path / name}")
    run(["--yaml_pipeline", specification, "--runner=FnApiRunner"])
    written = [
        row for path in tmp_path.glob("documents*") for row in pq.read_table(path).to_pylist()
    ]
    assert sorted(row["id"] for row in written) == [0, 1, 3]
    assert all(row["text"] == owt.extract(page(1), text_format="markdown").text for row in written)
    rejected = [
        row for path in tmp_path.glob("rejects*") for row in pq.read_table(path).to_pylist()
    ]
    assert [(row["id"], row["reason"]) for row in rejected] == [(2, "no_text")]
