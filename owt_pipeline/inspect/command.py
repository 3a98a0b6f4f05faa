"""`owt inspect`: the schema, the counts and some rows of a dataset or a file."""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa

from owt_pipeline.engine.command_line import CommandParser
from owt_pipeline.engine.errors import UsageError
from owt_pipeline.inspect.source import Source, open_source
from owt_pipeline.inspect.where import parse_condition
from owt_pipeline.stage_command import reporting_errors
from schemas.settings import did_you_mean

_WIDTH = 200


def build_parser() -> argparse.ArgumentParser:
    """The flags of `owt inspect`."""
    parser = CommandParser(
        prog="owt inspect",
        description="Print the schema, the counts and some rows of a dataset (a folder with a manifest), of its\n"
        "rejects, or of one Parquet, Arrow or WARC file.",
        epilog="examples:\n"
        "  owt inspect runs/2013/corpus --rows 2\n"
        "  owt inspect runs/2013/ledger/clean/rejects --where reason=too_short --rows 20\n"
        "  owt inspect runs/2013/urls --where 'score>=1000' --where subreddits=science --columns url score\n"
        "  owt inspect runs/2013/warc/part-00000-3f2a9c1b.warc.gz --json",
    )
    parser.add_argument("dataset", metavar="DATASET", help="a dataset's folder, its rejects folder, or a file")
    parser.add_argument("--rows", type=int, default=3, metavar="N", help="rows to print (default: 3)")
    parser.add_argument("--columns", nargs="+", metavar="FIELD", help="fields to print (default: all)")
    parser.add_argument(
        "--where",
        action="append",
        default=[],
        metavar="CONDITION",
        help="print rows with FIELD=VALUE; also !=, <, <=, >, >=, ~ (contains); given more than once, all must hold",
    )
    parser.add_argument("--json", action="store_true", help="print JSON: one object, with whole texts")
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """`owt inspect` with the flags of `argv`; returns the exit code."""
    return reporting_errors(lambda: _inspect(build_parser().parse_args(argv)))


def _inspect(arguments: argparse.Namespace) -> int:
    source = open_source(arguments.dataset)
    if source.schema is None:
        if arguments.where or arguments.columns:
            raise UsageError(f"{source.name} is a WARC file: --where and --columns are for its index, beside it")
        rows = list(_warc_records(source, arguments.rows))
    else:
        rows = list(_rows(source, source.schema, arguments))
    if arguments.json:
        fields = [{"name": f.name, "type": str(f.type), "description": _meaning(f)} for f in source.schema or []]
        print(json.dumps({**source.about, "schema": fields, "rows_shown": rows}, indent=1, ensure_ascii=False))
        return 0
    for key, value in source.about.items():
        print(f"{key}: {f'{value:,}' if isinstance(value, int) else json.dumps(value) if key == 'options' else value}")
    if source.schema is not None:
        print("schema:")
        names = max(len(name) for name in source.schema.names)
        kinds = max(len(_kind(field)) for field in source.schema)
        for field in source.schema:
            print(f"  {field.name.ljust(names)}  {_kind(field).ljust(kinds)}  {_meaning(field)}".rstrip())
    for number, row in enumerate(rows):
        print(f"row {number}:")
        print_row(row)
    if arguments.where and not rows:
        print("no row is so")
    return 0


def print_row(row: dict[str, Any], width: int = _WIDTH) -> None:
    """A row for a person: a field a line, long ones cut."""
    for key, value in row.items():
        if isinstance(value, list):
            shown = f"[{', '.join(map(str, value[:20]))}{', …' if len(value) > 20 else ''}]"
        else:
            shown = "" if value is None else " ".join(str(value).split())
        print(f"  {key}: {shown[:width]}{'…' if len(shown) > width else ''}".rstrip())


def _rows(source: Source, schema: pa.Schema, arguments: argparse.Namespace) -> Iterator[dict[str, Any]]:
    for name in arguments.columns or ():
        if name not in schema.names:
            raise UsageError(f"--columns: no field '{name}'{did_you_mean(name, schema.names)}")
    conditions = [parse_condition(text, schema) for text in arguments.where]
    wanted = arguments.columns or schema.names
    columns = list(dict.fromkeys([*wanted, *(condition.field for condition in conditions)]))
    left = arguments.rows
    if left <= 0:
        return
    for batch in source.batches(columns, rows=min(1024, left) if not conditions else 1024):
        for condition in conditions:
            batch = batch.filter(condition.mask(batch))
        for row in batch.slice(0, left).to_pylist():
            yield {name: row[name] for name in wanted}
        left -= min(left, batch.num_rows)
        if not left:
            return


def _warc_records(source: Source, most: int) -> Iterator[dict[str, Any]]:
    from fastwarc.warc import ArchiveIterator, WarcRecordType

    folder, path = source.files[0]
    with folder.open(path) as file:
        for number, record in enumerate(ArchiveIterator(file, record_types=WarcRecordType.any_type)):
            if number >= most:
                return
            http = record.http_headers
            yield {
                "type": record.headers.get("WARC-Type"),
                "url": record.headers.get("WARC-Target-URI"),
                "date": record.headers.get("WARC-Date"),
                "status": http.status_code if http is not None else None,
                "content_type": http.get("Content-Type") if http is not None else record.headers.get("Content-Type"),
                "bytes": record.content_length,
                "offset": record.stream_pos,
            }


def _kind(field: pa.Field) -> str:
    kind = re.sub(r"<\w+: (\w+)( not null)?>", r"<\1>", str(field.type))
    return kind + (" or null" if field.nullable else "")


def _meaning(field: pa.Field) -> str:
    return (field.metadata or {}).get(b"description", b"").decode()
