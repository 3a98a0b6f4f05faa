"""The parts as Beam transforms on your own rows.

    result = pages | ExtractText(html_field="body", favor="precision")
    result["out"]      the rows, with the fields of `owt_pipeline.Extracted` added
    result["rejects"]  the rows without a document, with `reason` and `detail` added

A row is a `beam.Row`, a named tuple or a dict. The outputs are `beam.Row`s, with a schema if the
input has one, which Beam YAML needs. docs/library.md has an example, and near-duplicates in Beam.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from types import UnionType
from typing import Any, Union, get_args, get_type_hints

import apache_beam as beam
from apache_beam.typehints.row_type import RowTypeConstraint

from owt_pipeline.library import Cleaner, Extractor
from owt_pipeline.stages.clean.documents import Cleaned
from owt_pipeline.stages.extract.extractor import Extracted


class ExtractText(beam.PTransform):
    """Add the main text and the metadata of each row's page, in `html_field` as text or bytes.

    Pages are read in a separate process. A page that crashes it or exceeds its limits, and a
    missing page, are rejects. `options` are those of `owt_pipeline.Extractor`.
    """

    def __init__(self, html_field: str = "html", url_field: str = "url", **options: Any):
        super().__init__()
        # Wrong options are errors here, where the pipeline is built, and not in a worker.
        Extractor(**options)
        make_tool = partial(Extractor, **{"isolated": True, "workers": 1, **options})
        self.judge = _Judge(make_tool, partial(_extract, html_field, url_field))

    def expand(self, rows: beam.PCollection) -> dict[str, beam.PCollection]:
        return _apply(self.judge, rows, Extracted)


def _extract(html_field: str, url_field: str, extractor: Extractor, row: Any) -> Any:
    page = row.get(html_field)
    url = row.get(url_field)
    # pandas writes NaN for a missing value.
    pair = page if isinstance(page, (str, bytes)) else "", url if isinstance(url, str) else ""
    (result,) = extractor.map([pair])
    return result


class CleanText(beam.PTransform):
    """Repair the text in each row's `text_field`, and add its measures.

    A row whose text the filters reject, and a row without a text, are rejects. `options` are those
    of `owt_pipeline.Cleaner`.
    """

    def __init__(self, text_field: str = "text", **options: Any):
        super().__init__()
        Cleaner(**options)
        self.judge = _Judge(partial(Cleaner, **options), partial(_clean, text_field))

    def expand(self, rows: beam.PCollection) -> dict[str, beam.PCollection]:
        return _apply(self.judge, rows, Cleaned)


def _clean(text_field: str, cleaner: Cleaner, row: Any) -> Cleaned:
    text = row.get(text_field)
    return cleaner(text if isinstance(text, str) else "")


class _Judge(beam.DoFn):
    """Adds the fields of a result to a row. Its tool is made once per worker."""

    def __init__(self, make_tool: Callable[[], Any], judge: Callable[..., Any]):
        self.make_tool = make_tool
        self.judge = judge

    def setup(self) -> None:
        self.tool = self.make_tool()

    def process(self, row: Any) -> Iterator[Any]:
        fields = dict(row) if isinstance(row, Mapping) else row._asdict()
        result = dict(vars(self.judge(self.tool, fields)))
        reason = result.pop("reason", None)
        detail = result.pop("detail", None) or ""
        if reason is None:
            yield beam.Row(**{**fields, **result})
        else:
            reject = beam.Row(**{**fields, "reason": str(reason), "detail": detail})
            yield beam.pvalue.TaggedOutput("rejects", reject)


def _apply(judge: _Judge, rows: beam.PCollection, kind: type) -> dict[str, beam.PCollection]:
    """Return the judged rows as `out`, with the fields of a dataclass added, and the rejects."""
    judged = rows | beam.ParDo(judge).with_outputs("rejects", main="out")
    reason = {"reason": str, "detail": str}
    result = {}
    for name, hint in get_type_hints(kind).items():
        if name not in reason:
            # Beam's schemas accept `Optional[str]`, but not `str | None`.
            is_optional = isinstance(hint, UnionType)
            result[name] = Union[get_args(hint)] if is_optional else hint  # noqa: UP007
    outputs = {"out": judged["out"], "rejects": judged["rejects"]}
    schema: Any = rows.element_type
    if not isinstance(schema, RowTypeConstraint):
        schema = RowTypeConstraint.from_user_type(schema)
    # A collection of dicts has no schema.
    if schema is not None:
        for name, added in (("out", result), ("rejects", reason)):
            fields = {**dict(schema._fields), **added}
            outputs[name].element_type = RowTypeConstraint.from_fields(list(fields.items()))
    return outputs
