"""The parts as Beam transforms on your own rows, with as little logic as possible: the library's functions do the work.

    result = pages | ExtractText(html_field="body", favor="precision")
    result["out"]      the rows, with `text`, `title`, ... added
    result["rejects"]  the rows without a document, with `reason` and `detail` added

A row is a `beam.Row`, a named tuple or a dict. The outputs are `beam.Row`s, with a schema if the input has one. A field
of the result replaces one of the same name. docs/library.md has an example in Beam YAML.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, ClassVar, Optional

import apache_beam as beam
from apache_beam.transforms.window import GlobalWindows
from apache_beam.typehints.row_type import RowTypeConstraint

from owt_pipeline.library import Cleaner, Extractor, near_duplicates
from owt_pipeline.stages.dedupe.options import Comparison
from owt_pipeline.stages.extract.pages import Rejected
from schemas.settings import from_table

_OUT, _REJECTS = "out", "rejects"
_PROBLEM = {"reason": str, "detail": str}
# Beam's schemas do not accept `str | None`.
_TEXT: Any = Optional[str]  # noqa: UP045
_NUMBER: Any = Optional[float]  # noqa: UP045

Fields = dict[str, Any]
Judge = Callable[[Fields], "Fields | tuple[str, str]"]
"""From a row's fields to those it gains, or to (reason, detail) if it is rejected."""


class ExtractText(beam.PTransform):
    """Pages -> their main texts and metadata (`out`), and pages without a document (`rejects`).

    Adds `text`, `title`, `author`, `date`, `site_name`, `language` and `license`, as in `owt_pipeline.Extracted`.
    Pages are read in a separate process; a page that crashes it, or exceeds its limits, is a reject.

    Args:
      html_field: name of the field with the page, as text or bytes.
      url_field: name of the field with its URL; rows may lack it.
      **options: those of `owt_pipeline.Extractor`.
    """

    fields = dict.fromkeys(("title", "author", "date", "site_name", "language", "license"), _TEXT) | {"text": str}

    def __init__(self, html_field: str = "html", url_field: str = "url", **options: Any):
        super().__init__()
        Extractor(**options)  # raises errors about the options here, not in a worker
        self.html_field, self.url_field, self.options = html_field, url_field, options

    def expand(self, rows: beam.PCollection) -> dict[str, beam.PCollection]:
        html_field, url_field, options = self.html_field, self.url_field, self.options

        def make() -> Judge:
            extractor = Extractor(**{"isolated": True, "workers": 1, **options})

            def extract(row: Fields) -> Fields | tuple[str, str]:
                html, url = _value(row, html_field), row.get(url_field)
                if not isinstance(html, (str, bytes)):
                    return "no_text", f"{html_field} is {type(html).__name__}, not text or bytes"
                # pandas writes NaN for no URL
                (result,) = extractor.map([(html, url if isinstance(url, str) else "")])
                if isinstance(result, Rejected):
                    return str(result.reason), result.detail or ""
                return {name: getattr(result, name) for name in ExtractText.fields}

            return extract

        return _judged(rows, make, self.fields)


class CleanText(beam.PTransform):
    """Texts -> repaired texts that pass the filters (`out`), and the others (`rejects`).

    Adds `text` (repaired), `n_words`, `language`, `language_score`, `signals` and `own_signals`, as in
    `owt_pipeline.Cleaned`.

    Args:
      text_field: name of the field with the text.
      **options: those of `owt_pipeline.Cleaner`.
    """

    fields: ClassVar[Mapping[str, Any]] = {
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
        self.text_field, self.options = text_field, options

    def expand(self, rows: beam.PCollection) -> dict[str, beam.PCollection]:
        text_field, options = self.text_field, self.options

        def make() -> Judge:
            cleaner = Cleaner(**options)

            def clean(row: Fields) -> Fields | tuple[str, str]:
                text = _value(row, text_field)
                if not isinstance(text, str):
                    return "empty_text", f"{text_field} is {type(text).__name__}, not text"
                cleaned = cleaner(text)
                if cleaned.reason is not None:
                    return str(cleaned.reason), cleaned.detail
                return {name: getattr(cleaned, name) for name in CleanText.fields}

            return clean

        return _judged(rows, make, self.fields)


class MarkNearDuplicates(beam.PTransform):
    """Rows -> the same rows, each with the row it duplicates (`out`), and rows whose text is not text (`rejects`).

    Adds `document` (an integer, unique to the row), `cluster` (the `document` of the row that is kept in its place;
    its own if it is kept itself), `duplicate` (whether it is to be removed), `similarity` (exact; None if kept) and
    `rule` (`exact` or `near`). The decisions are those of `owt_pipeline.near_duplicates`.

    All rows meet in one worker, whose memory has to hold them. For more, `owt import` the texts and run `dedupe`.

    Args:
      text_field: name of the field with the text; None duplicates nothing.
      workers: processes of that worker.
      **options: those of `owt_pipeline.near_duplicates`.
    """

    fields: ClassVar[Mapping[str, Any]] = {
        "document": int, "cluster": int, "duplicate": bool, "similarity": _NUMBER, "rule": _TEXT
    }  # fmt: skip

    def __init__(self, text_field: str = "text", workers: int = 1, **options: Any):
        super().__init__()
        from_table(Comparison, options, "MarkNearDuplicates")
        self.text_field, self.options = text_field, {"workers": workers, **options}

    def expand(self, rows: beam.PCollection) -> dict[str, beam.PCollection]:
        if not isinstance(rows.windowing.windowfn, GlobalWindows):
            raise ValueError("rows are compared with all others: give them in GlobalWindows()")
        text_field = self.text_field

        def check(row: Fields) -> Fields | tuple[str, str]:
            text = _value(row, text_field)
            is_text = isinstance(text, (str, type(None)))
            return {} if is_text else ("empty_text", f"{text_field} is {type(text).__name__}, not text")

        checked = _judged(rows, lambda: check, {})
        marked = (
            checked[_OUT]
            | beam.Map(lambda row: (0, pickle.dumps(row._asdict(), 5)))
            | beam.GroupByKey()
            | beam.FlatMap(_marked, text_field, self.options)
        )
        return {**checked, **_typed(rows, {_OUT: (marked, self.fields)})}


def _marked(group: tuple[int, Iterable[bytes]], text_field: str, options: Fields) -> Iterator[beam.Row]:
    """The rows, in the order of their bytes, with the decision on each."""
    rows = [pickle.loads(row) for row in sorted(group[1])]
    found = near_duplicates([row[text_field] for row in rows], **options).to_pylist()
    decisions = {row["row"]: row for row in found}
    for number, row in enumerate(rows):
        gone = decisions.get(number, {"kept_row": number, "similarity": None, "rule": None})
        about = {"document": number, "cluster": gone["kept_row"], "duplicate": number in decisions}
        yield beam.Row(**{**row, **about, "similarity": gone["similarity"], "rule": gone["rule"]})


class _Judge(beam.DoFn):
    """`make` is called once per worker."""

    def __init__(self, make: Callable[[], Judge]):
        self.make = make

    def setup(self) -> None:
        self.judge = self.make()

    def process(self, row: Any) -> Iterator[Any]:
        fields = _fields_of(row)
        found = self.judge(fields)
        if isinstance(found, tuple):
            rejected = {**fields, "reason": found[0], "detail": found[1]}
            yield beam.pvalue.TaggedOutput(_REJECTS, beam.Row(**rejected))
        else:
            yield beam.Row(**{**fields, **found})


def _judged(
    rows: beam.PCollection,
    make: Callable[[], Judge],
    fields: Mapping[str, Any],
) -> dict[str, beam.PCollection]:
    found = rows | "Judge" >> beam.ParDo(_Judge(make)).with_outputs(_REJECTS, main=_OUT)
    return _typed(rows, {_OUT: (found[_OUT], fields), _REJECTS: (found[_REJECTS], _PROBLEM)})


def _typed(
    rows: beam.PCollection, outputs: Mapping[str, tuple[beam.PCollection, Mapping[str, Any]]]
) -> dict[str, beam.PCollection]:
    """The outputs, with a schema derived from that of the input, if it has one."""
    known = RowTypeConstraint.from_user_type(rows.element_type) if rows.element_type is not None else None
    if isinstance(rows.element_type, RowTypeConstraint):
        known = rows.element_type
    for collection, fields in outputs.values():
        if known is not None:
            collection.element_type = RowTypeConstraint.from_fields(list(({**dict(known._fields), **fields}).items()))
    return {name: collection for name, (collection, _) in outputs.items()}


def _fields_of(row: Any) -> dict[str, Any]:
    """The fields of a row by name; raises TypeError if it is not a row."""
    if isinstance(row, Mapping):
        return dict(row)
    if isinstance(row, beam.Row) or hasattr(row, "_asdict"):
        return dict(row._asdict())
    raise TypeError(f"a row is a beam.Row, a named tuple or a dict, not {type(row).__name__}")


def _value(fields: Mapping[str, Any], name: str) -> Any:
    if name not in fields:
        raise ValueError(f"a row has no field {name!r}; it has {', '.join(fields)}")
    return fields[name]
