"""Simple conditions on a row: `field=value`, with `=`, `!=`, `<`, `<=`, `>`, `>=`, or `~` for "contains"."""

from __future__ import annotations

import re
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from owt_pipeline.engine.errors import UsageError
from schemas.settings import did_you_mean

_FORM = re.compile(r"(\w+)\s*(<=|>=|!=|=|<|>|~)\s*(.*)", re.DOTALL)
_COMPARE = {
    "=": pc.equal,
    "!=": pc.not_equal,
    "<": pc.less,
    "<=": pc.less_equal,
    ">": pc.greater,
    ">=": pc.greater_equal,
}


@dataclass(frozen=True)
class Condition:
    """`field operator value`, with the value as the field's type."""

    field: str
    operator: str
    value: str

    def mask(self, batch: pa.RecordBatch) -> pa.BooleanArray:
        """Which rows hold; one whose field is null does not."""
        column = batch[self.field]
        if pa.types.is_list(column.type):
            items = pc.list_flatten(column)
            parents = pc.list_parent_indices(column).filter(self._compare(items))
            return pc.is_in(pa.array(range(batch.num_rows), pa.int64()), parents)
        return pc.fill_null(self._compare(column), False)

    def _compare(self, values: pa.Array) -> pa.BooleanArray:
        if self.operator == "~":
            return pc.match_substring(values.cast(pa.string()), self.value, ignore_case=True)
        return _COMPARE[self.operator](values, pa.scalar(self.value).cast(values.type))


def parse_condition(text: str, schema: pa.Schema) -> Condition:
    """The condition in `text`; raises UsageError for one that is none, or names no field of `schema`."""
    match = _FORM.fullmatch(text.strip())
    if match is None:
        raise UsageError(
            f"--where {text!r} is no condition: write FIELD=VALUE, with =, !=, <, <=, >, >= or ~ (contains)"
        )
    condition = Condition(*match.groups())
    if condition.field not in schema.names:
        raise UsageError(f"--where {text!r}: no field '{condition.field}'{did_you_mean(condition.field, schema.names)}")
    kind = schema.field(condition.field).type
    kind = kind.value_type if pa.types.is_list(kind) else kind
    if condition.operator != "~":
        try:
            pa.scalar(condition.value).cast(kind)
        except pa.ArrowInvalid as error:
            raise UsageError(f"--where {text!r}: {condition.value!r} is no {kind}") from error
    return condition
