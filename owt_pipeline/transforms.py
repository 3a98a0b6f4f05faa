"""The parts as Beam transforms on your own rows, with as little logic as possible: the library's
functions do the work.

    result = pages | ExtractText(html_field="body", favor="precision")
    result["out"]      the rows, with `text`, `title`, ... added
    result["rejects"]  the rows without a document, with `reason` and `detail` added

A row is a `beam.Row`, a named tuple or a dict. The outputs are `beam.Row`s, with a schema if the
input has one. A field of the result replaces one of the same name. docs/library.md has an example
in Beam YAML.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from typing import Any, Optional, TypeAlias

import apache_beam as beam
from apache_beam.transforms.window import GlobalWindows
from apache_beam.typehints.row_type import RowTypeConstraint

from owt_pipeline.library import Cleaner, Extractor, near_duplicates
from owt_pipeline.stages.dedupe.options import Comparison
from owt_pipeline.stages.extract.pages import Rejected
from schemas.settings import from_table

# Beam's schemas do not accept `str | None`.
_TEXT: Any = Optional[str]  # noqa: UP045
_NUMBER: Any = Optional[float]  # noqa: UP045

Fields: TypeAlias = dict[str, Any]
Outputs: TypeAlias = dict[str, beam.PCollection]
Judged: TypeAlias = "Fields | tuple[str, str]"
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
        **dict.fromkeys(("title", "author", "date", "site_name", "language", "license"), _TEXT),
    }

    def __init__(self, html_field: str = "html", url_field: str = "url", **options: Any):
        super().__init__()
        Extractor(**options)  # raises errors about the options here, not in a worker
        self.extractor = partial(Extractor, **{"isolated": True, "workers": 1, **options})
        self.judge = partial(_extract, html_field=html_field, url_field=url_field)

    def expand(self, rows: beam.PCollection) -> Outputs:
        return _judged(rows, self.extractor, self.judge, self.fields)


def _extract(extractor: Extractor, row: Fields, html_field: str, url_field: str) -> Judged:
    if html_field not in row:
        return "no_text", _missing(row, html_field)
    html, url = row[html_field], row.get(url_field)
    if not isinstance(html, (str, bytes)):
        return "no_text", f"{html_field} is {type(html).__name__}, not text or bytes"
    (result,) = extractor.map(
        [(html, url if isinstance(url, str) else "")]
    )  # pandas writes NaN for no URL
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
        Cleaner(**options)
        self.cleaner, self.judge = (
            partial(Cleaner, **options),
            partial(_clean, text_field=text_field),
        )

    def expand(self, rows: beam.PCollection) -> Outputs:
        return _judged(rows, self.cleaner, self.judge, self.fields)


def _clean(cleaner: Cleaner, row: Fields, text_field: str) -> Judged:
    if text_field not in row:
        return "empty_text", _missing(row, text_field)
    if not isinstance(text := row[text_field], str):
        return "empty_text", f"{text_field} is {type(text).__name__}, not text"
    cleaned = cleaner(text)
    if cleaned.reason is not None:
        return str(cleaned.reason), cleaned.detail
    return {name: getattr(cleaned, name) for name in CleanText.fields}


class MarkNearDuplicates(beam.PTransform):
    """Rows -> the same rows, each with the row it duplicates (`out`), and rows whose text is not
    text (`rejects`).

    Adds `document` (an integer, unique to the row), `cluster` (the `document` of the row that is
    kept in its place; its own if it is kept itself), `duplicate` (whether it is to be removed),
    `similarity` (exact; None if kept) and `rule` (`exact` or `near`). The decisions are those of
    `owt_pipeline.near_duplicates`.

    All rows meet in one worker, whose memory has to hold them. For more, `owt import` the texts and
    run `dedupe`.

    Args:
      text_field: name of the field with the text; None duplicates nothing.
      workers: processes of that worker.
      **options: those of `owt_pipeline.near_duplicates`.
    """

    fields: Mapping[str, Any] = {
        "document": int, "cluster": int, "duplicate": bool, "similarity": _NUMBER, "rule": _TEXT
    }  # fmt: skip

    def __init__(self, text_field: str = "text", workers: int = 1, **options: Any):
        super().__init__()
        from_table(Comparison, options, "MarkNearDuplicates")
        self.text_field, self.options = text_field, {"workers": workers, **options}

    def expand(self, rows: beam.PCollection) -> Outputs:
        if not isinstance(rows.windowing.windowfn, GlobalWindows):
            raise ValueError("rows are compared with all others: give them in GlobalWindows()")
        checked = _judged(rows, None, partial(_check, text_field=self.text_field), {})
        marked = (
            checked["out"]
            | beam.Map(lambda row: (0, pickle.dumps(row._asdict(), 5)))
            | beam.GroupByKey()
            | beam.FlatMap(_marked, self.text_field, self.options)
        )
        return {"out": _typed(marked, rows, self.fields), "rejects": checked["rejects"]}


def _check(_: None, row: Fields, text_field: str) -> Judged:
    if text_field not in row:
        return "empty_text", _missing(row, text_field)
    is_text = isinstance(text := row[text_field], (str, type(None)))
    return {} if is_text else ("empty_text", f"{text_field} is {type(text).__name__}, not text")


def _marked(
    group: tuple[int, Iterable[bytes]], text_field: str, options: Fields
) -> Iterator[beam.Row]:
    """The rows, in the order of their bytes, with the decision on each."""
    rows = [pickle.loads(row) for row in sorted(group[1])]
    found = near_duplicates([row[text_field] for row in rows], **options).to_pylist()
    decisions = {row["row"]: row for row in found}
    for number, row in enumerate(rows):
        gone = decisions.get(number, {"kept_row": number, "similarity": None, "rule": None})
        about = {"document": number, "cluster": gone["kept_row"], "duplicate": number in decisions}
        yield beam.Row(**{**row, **about, "similarity": gone["similarity"], "rule": gone["rule"]})


def _judged(
    rows: beam.PCollection, tool: Any, judge: Callable[..., Judged], fields: Mapping[str, Any]
) -> Outputs:
    found = rows | "Judge" >> beam.ParDo(_Judge(tool, judge)).with_outputs("rejects", main="out")
    rejects = _typed(found["rejects"], rows, {"reason": str, "detail": str})
    return {"out": _typed(found["out"], rows, fields), "rejects": rejects}


class _Judge(beam.DoFn):
    """Calls `judge(tool(), row)`, with a tool that is made once per worker."""

    def __init__(self, tool: Callable[[], Any] | None, judge: Callable[..., Judged]):
        self.make_tool, self.judge = tool, judge

    def setup(self) -> None:
        self.tool = self.make_tool and self.make_tool()

    def process(self, row: Any) -> Iterator[Any]:
        if not (is_dict := isinstance(row, Mapping)) and not hasattr(row, "_asdict"):
            raise TypeError(
                f"a row is a beam.Row, a named tuple or a dict, not {type(row).__name__}"
            )
        fields = dict(row if is_dict else row._asdict())
        found = self.judge(self.tool, fields)
        if isinstance(found, tuple):
            rejected = beam.Row(**{**fields, "reason": found[0], "detail": found[1]})
            yield beam.pvalue.TaggedOutput("rejects", rejected)
        else:
            yield beam.Row(**{**fields, **found})


def _typed(
    found: beam.PCollection, rows: beam.PCollection, fields: Mapping[str, Any]
) -> beam.PCollection:
    """`found` with the schema of `rows`, if these have one, and `fields`."""
    known: Any = rows.element_type
    if known is not None and not isinstance(known, RowTypeConstraint):
        known = RowTypeConstraint.from_user_type(known)
    if known is not None:
        found.element_type = RowTypeConstraint.from_fields(
            [*{**dict(known._fields), **fields}.items()]
        )
    return found


def _missing(fields: Mapping[str, Any], name: str) -> str:
    return f"no field {name!r}; it has {', '.join(map(str, fields)) or 'none'}"
