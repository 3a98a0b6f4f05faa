"""The parts as Beam transforms on your own rows.

They have as little logic as possible: the library's functions do the work.

    result = pages | ExtractText(html_field="body", favor="precision")
    result["out"]      the rows, with `text`, `title`, ... added
    result["rejects"]  the rows without a document, with `reason` and `detail` added

A row is a `beam.Row`, a named tuple or a dict. The outputs are `beam.Row`s, with a schema if the
input has one. A field of the result replaces one of the same name. docs/library.md has an example
in Beam YAML, and near-duplicates in Beam.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any, Optional, TypeAlias

import apache_beam as beam
from apache_beam.typehints.row_type import RowTypeConstraint

from owt_pipeline.library import Cleaner, Extractor
from owt_pipeline.stages.extract.pages import Rejected

# Beam's schemas do not accept `str | None`.
_OPTIONAL_TEXT: Any = Optional[str]  # noqa: UP045

Fields: TypeAlias = dict[str, Any]
Outputs: TypeAlias = dict[str, beam.PCollection]
Verdict: TypeAlias = "Fields | tuple[str, str]"
"""The fields that a row gains, or (reason, detail) if it is rejected."""


class ExtractText(beam.PTransform):
    """Pages -> their main texts and metadata (`out`), and pages without a document (`rejects`).

    Adds `text`, `title`, `author`, `date`, `site_name`, `language` and `license`, as in
    `owt_pipeline.Extracted`. Pages are read in a separate process; a page that crashes it, or
    exceeds its limits, is a reject.

    Args:
      html_field: name of the field with the page, as text or bytes.
      url_field: name of the field with its URL; rows may lack it.
      **options: those of `owt_pipeline.Extractor`.
    """

    fields: Mapping[str, Any] = {
        "text": str,
        "title": _OPTIONAL_TEXT,
        "author": _OPTIONAL_TEXT,
        "date": _OPTIONAL_TEXT,
        "site_name": _OPTIONAL_TEXT,
        "language": _OPTIONAL_TEXT,
        "license": _OPTIONAL_TEXT,
    }

    def __init__(self, html_field: str = "html", url_field: str = "url", **options: Any):
        super().__init__()
        # Wrong options are errors here, where the pipeline is built, and not in a worker.
        Extractor(**options)
        self.extractor = partial(Extractor, **{"isolated": True, "workers": 1, **options})
        self.judge = partial(_extract, html_field=html_field, url_field=url_field)

    def expand(self, rows: beam.PCollection) -> Outputs:
        return _judge_rows(rows, self.extractor, self.judge, self.fields)


def _extract(extractor: Extractor, row: Fields, html_field: str, url_field: str) -> Verdict:
    if html_field not in row:
        return "no_text", _describe_missing(row, html_field)
    html = row[html_field]
    if not isinstance(html, (str, bytes)):
        return "no_text", f"{html_field} is {type(html).__name__}, not text or bytes"
    url = row.get(url_field)
    if not isinstance(url, str):
        url = ""  # pandas writes NaN for a missing URL
    (result,) = extractor.map([(html, url)])
    if isinstance(result, Rejected):
        return str(result.reason), result.detail or ""
    return {name: getattr(result, name) for name in ExtractText.fields}


class CleanText(beam.PTransform):
    """Texts -> repaired texts that pass the filters (`out`), and the others (`rejects`).

    Adds `text` (repaired), `n_words`, `language`, `language_score`, `signals` and `own_signals`, as
    in `owt_pipeline.Cleaned`.

    Args:
      text_field: name of the field with the text.
      **options: those of `owt_pipeline.Cleaner`.
    """

    fields: Mapping[str, Any] = {
        "text": str,
        "n_words": int,
        "language": str,
        "language_score": float,
        "signals": Mapping[str, Mapping[str, float]],
        "own_signals": Mapping[str, float],
    }

    def __init__(self, text_field: str = "text", **options: Any):
        super().__init__()
        # Wrong options are errors here, where the pipeline is built, and not in a worker.
        Cleaner(**options)
        self.cleaner = partial(Cleaner, **options)
        self.judge = partial(_clean, text_field=text_field)

    def expand(self, rows: beam.PCollection) -> Outputs:
        return _judge_rows(rows, self.cleaner, self.judge, self.fields)


def _clean(cleaner: Cleaner, row: Fields, text_field: str) -> Verdict:
    if text_field not in row:
        return "empty_text", _describe_missing(row, text_field)
    text = row[text_field]
    if not isinstance(text, str):
        return "empty_text", f"{text_field} is {type(text).__name__}, not text"
    cleaned = cleaner(text)
    if cleaned.reason is not None:
        return str(cleaned.reason), cleaned.detail
    return {name: getattr(cleaned, name) for name in CleanText.fields}


def _describe_missing(row: Fields, name: str) -> str:
    return f"no field {name!r}; it has {', '.join(map(str, row)) or 'none'}"


def _judge_rows(
    rows: beam.PCollection,
    make_tool: Callable[[], Any],
    judge: Callable[..., Verdict],
    fields: Mapping[str, Any],
) -> Outputs:
    """Return the rows that `judge` accepts, with `fields` added, and the rejects."""
    judged = rows | "Judge" >> beam.ParDo(_Judge(make_tool, judge)).with_outputs(
        "rejects", main="out"
    )
    rejects = _with_schema(judged["rejects"], rows, {"reason": str, "detail": str})
    return {"out": _with_schema(judged["out"], rows, fields), "rejects": rejects}


class _Judge(beam.DoFn):
    """Calls `judge(make_tool(), row)`, with a tool that is made once per worker."""

    def __init__(self, make_tool: Callable[[], Any], judge: Callable[..., Verdict]):
        self.make_tool = make_tool
        self.judge = judge

    def setup(self) -> None:
        self.tool = self.make_tool()

    def process(self, row: Any) -> Iterator[Any]:
        fields = _fields_of(row)
        verdict = self.judge(self.tool, fields)
        if isinstance(verdict, tuple):
            reason, detail = verdict
            rejected = beam.Row(**{**fields, "reason": reason, "detail": detail})
            yield beam.pvalue.TaggedOutput("rejects", rejected)
        else:
            yield beam.Row(**{**fields, **verdict})


def _fields_of(row: Any) -> Fields:
    """Return a row's fields by name; raise TypeError for anything but a row."""
    if isinstance(row, Mapping):
        return dict(row)
    if hasattr(row, "_asdict"):
        return dict(row._asdict())
    raise TypeError(f"a row is a beam.Row, a named tuple or a dict, not {type(row).__name__}")


def _with_schema(
    output: beam.PCollection, rows: beam.PCollection, fields: Mapping[str, Any]
) -> beam.PCollection:
    """Return `output` with the schema of `rows` and `fields`, if `rows` has a schema."""
    schema: Any = rows.element_type
    if schema is not None and not isinstance(schema, RowTypeConstraint):
        schema = RowTypeConstraint.from_user_type(schema)
    if schema is not None:
        all_fields = {**dict(schema._fields), **fields}
        output.element_type = RowTypeConstraint.from_fields(list(all_fields.items()))
    return output
