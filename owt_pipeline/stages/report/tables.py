"""Reads the datasets' narrow columns into a DuckDB database, and runs the files of `queries/`.

The database is a temporary file on the local disk. Beyond its memory limit DuckDB spills to a
folder next to it. Every query has a total order and sums only integers, so its rows do not depend
on the number of shards, the number of threads or the memory limit.
"""

from __future__ import annotations

import hashlib
import itertools
import os
import re
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.resources import files
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from owt_pipeline import progress
from owt_pipeline.errors import UserError
from owt_pipeline.ledger.dataset import DatasetReader
from owt_pipeline.storage.folder import Storage
from schemas import DATASETS, REJECTS
from schemas.filters import BUILT_IN

if TYPE_CHECKING:
    import duckdb

MEMORY = "768MB"
"""DuckDB's memory limit, beyond which it spills. Python, Arrow and Beam take another 300 MB."""

_MAX_THREADS = 4

_TABLES = ("urls", "pages", "documents", "clean", "duplicates", "corpus", "tokens")
"""The datasets that have a table. It has the columns that a query of the table names."""

_TABLE_NAME = re.compile(r"\b(?:from|join)\s+(\w+)", re.IGNORECASE)

_REJECTS_COLUMNS = ["url_id", "url", "reason"]

_GENERATIONS = pa.schema(
    [
        pa.field("generation", pa.string()),
        pa.field("first", pa.int64()),
        pa.field("last", pa.int64()),
    ]
)

_THRESHOLDS = pa.schema(
    [
        pa.field("signal", pa.string()),
        pa.field("minimum", pa.float64()),
        pa.field("maximum", pa.float64()),
    ]
)

_SPLITS = pa.schema(
    [
        pa.field("split", pa.string()),
        pa.field("documents", pa.int64()),
        pa.field("tokens", pa.int64()),
    ]
)

_QUERIES = files("owt_pipeline.stages.report") / "queries"
_MAX_BATCH_ROWS = 1 << 16

Row = dict[str, Any]


@dataclass(frozen=True)
class Tables:
    """An open database.

    It has a table for each of _TABLES, which is empty if the run has no such dataset. `host` can be
    read in place of `url`, and `shard` is the number of the row's shard. The other tables
    are the `rejects` of all datasets, `generations`, the `thresholds` of the filters, and the
    `splits` of the tokens.
    """

    connection: duckdb.DuckDBPyConnection
    parameters: Mapping[str, Any]

    def rows(self, query: str, **parameters: Any) -> list[Row]:
        """Return the rows of `queries/QUERY.sql` as dicts.

        `parameters` override the parameters of the run. Raises UserError for a mistake in the
        query.
        """
        import duckdb

        sql = _sql(query)
        # DuckDB raises an error for a parameter that the query does not have.
        values = {
            name: value
            for name, value in {**self.parameters, **parameters}.items()
            if f"${name}" in sql
        }
        try:
            result = self.connection.execute(sql, values)
        except (duckdb.ProgrammingError, duckdb.DataError) as error:
            problem = " ".join(str(error).partition("\n\n")[0].split())
            raise UserError(f"queries/{query}.sql: {problem}") from error
        names = [column[0] for column in result.description]
        return [dict(zip(names, row, strict=True)) for row in result.fetchall()]

    def fill(
        self, table: str, schema: pa.Schema, batches: Iterable[pa.RecordBatch], select: str = "*"
    ) -> None:
        """Create a table of `select` from batches.

        Raises UserError if a file of the batches is damaged.
        """
        import duckdb

        errors: list[UserError] = []

        def read() -> Iterator[pa.RecordBatch]:
            try:
                yield from batches
            except UserError as error:
                # DuckDB wraps what a reader raises in an error of its own.
                errors.append(error)
                raise

        self.connection.register("batches", pa.RecordBatchReader.from_batches(schema, read()))
        try:
            self.connection.execute(f"create table {table} as select {select} from batches")
        except duckdb.Error:
            if errors:
                raise errors[0] from None
            raise
        self.connection.unregister("batches")


@contextmanager
def open_tables(
    readers: Mapping[str, DatasetReader],
    work: Storage,
    generations: list[Row],
    parameters: Mapping[str, Any],
    *,
    threads: int = 1,
    memory: str = MEMORY,
) -> Iterator[Tables]:
    """Yield the tables of a run; they are removed when the block ends.

    `generations` are rows of the table `generations`. The database is in the spool of `work`.
    """
    # Slow to import.
    import duckdb

    with (
        work.spool() as file,
        # A spool file whose process was killed is removed by its name. So is this folder, since its
        # name begins with that of the spool file.
        tempfile.TemporaryDirectory(
            dir=_folder_for_duckdb(file.path), prefix=os.path.basename(file.path)
        ) as folder,
    ):
        config: dict[str, Any] = {
            "temp_directory": folder,
            "memory_limit": memory,
            # The order of insertion takes memory, and every query has an order of its own.
            "preserve_insertion_order": False,
            "threads": min(threads, _MAX_THREADS),
        }
        with duckdb.connect(os.path.join(folder, "tables.duckdb"), config=config) as connection:
            # `owt` shows its own progress.
            connection.execute("SET enable_progress_bar = false")
            connection.execute(_sql("macros"))
            tables = Tables(connection, parameters)
            _fill_datasets(tables, readers)
            _fill_rejects(tables, readers)
            _fill_from_rows(tables, "generations", _GENERATIONS, generations)
            connection.execute(_sql("views"))
            signals = _signal_names()
            _create_view_of_signals(connection, signals)
            _fill_from_rows(tables, "thresholds", _THRESHOLDS, _thresholds(readers, signals))
            _fill_from_rows(tables, "splits", _SPLITS, _splits(readers))
            yield tables


_SHARD = pa.field("shard", pa.uint32())
"""The number of the shard that has the row. Its text is read from there."""


def _fill_datasets(tables: Tables, readers: Mapping[str, DatasetReader]) -> None:
    for name, words in _words_by_table().items():
        schema = DATASETS[name].schema
        columns = [column for column in schema.names if column in words]
        selected = [*columns, _SHARD.name]
        if "host" in words and "host" not in columns and "url" in schema.names:
            selected.append("host_of(url) as host")
            columns = [column for column in schema.names if column in {*words, "url"}]
        fields = [schema.field(column) for column in columns]
        batches: Iterable[pa.RecordBatch] = ()
        if name in readers:
            batches = _batches(readers[name], columns)
        tables.fill(name, pa.schema([*fields, _SHARD]), batches, ", ".join(selected))


def _words_by_table() -> dict[str, set[str]]:
    """Return for each table the words of the statements that read it.

    Its columns are among them. A word that is no column, or the column of another table, costs at
    most a column that is not needed.
    """
    words_by_table: dict[str, set[str]] = {name: set() for name in _TABLES}
    for query in _query_names():
        code = re.sub(r"--.*", "", _sql(query))
        for statement in code.split(";"):
            words = set(re.findall(r"\w+", statement))
            for name in words_by_table.keys() & set(_TABLE_NAME.findall(statement)):
                # The ids of tokens/ are in a column of the same name, which no figure reads.
                words_by_table[name] |= words - {name}
    # `_create_view_of_signals` reads them.
    words_by_table["clean"].add("signals")
    return words_by_table


def _fill_rejects(tables: Tables, readers: Mapping[str, DatasetReader]) -> None:
    fields = [REJECTS.field(name) for name in _REJECTS_COLUMNS]
    schema = pa.schema([*fields, _SHARD, pa.field("dataset", pa.string())])
    host = "case when dataset in ('pages', 'corpus') then host_of(url) end as host"
    tables.fill("rejects", schema, _reject_batches(readers), f"* exclude (url), {host}")


def _fill_from_rows(tables: Tables, table: str, schema: pa.Schema, rows: list[Row]) -> None:
    tables.fill(table, schema, [pa.RecordBatch.from_pylist(rows, schema)])


def _signal_names() -> list[str]:
    """Return the signals of clean as `FILTER.SIGNAL`."""
    names = []
    for filter_field in DATASETS["clean"].schema.field("signals").type:
        names += [f"{filter_field.name}.{signal.name}" for signal in filter_field.type]
    return names


def _create_view_of_signals(connection: duckdb.DuckDBPyConnection, signals: list[str]) -> None:
    """Create the view `signals` with a row for each document and signal."""
    selects = [f"select '{name}' as signal, signals.{name} as value from clean" for name in signals]
    connection.execute("create view signals as " + " union all ".join(selects))


def _thresholds(readers: Mapping[str, DatasetReader], signals: Iterable[str]) -> list[Row]:
    """Return the limits of each signal in the options of clean.

    A filter that is not chosen has limits too.
    """
    options: Mapping[str, Any] = {}
    if "clean" in readers:
        options = readers["clean"].manifest.options
    limits_by_filter = limits_of(options)
    rows: list[Row] = []
    for signal in signals:
        filter_name, _, name = signal.partition(".")
        limits = limits_by_filter[filter_name]
        row = {
            "signal": signal,
            "minimum": limits.get(f"min_{name}"),
            "maximum": limits.get(f"max_{name}"),
        }
        rows.append(row)
    return rows


def limits_of(options: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Return the limits of each filter's signals in the options of clean, by filter."""
    chosen = options.get("filters") or ()
    limits_by_filter = {name: dict(options.get(name) or {}) for name in BUILT_IN}
    for name, thresholds in BUILT_IN.items():
        measured_by = thresholds.measured_by
        if name in chosen and measured_by and measured_by not in chosen:
            # Both limit the same signals, and only this filter's limits were applied.
            limits_by_filter[measured_by].update(limits_by_filter[name])
    return limits_by_filter


def _splits(readers: Mapping[str, DatasetReader]) -> list[Row]:
    """Return the documents and tokens of each split, as tokenize has counted them."""
    if "tokens" not in readers:
        return []
    stats = readers["tokens"].manifest.stats
    rows: list[Row] = []
    for split, key in (("train", "train"), ("validation", "val")):
        num_documents = stats.get(f"documents_{key}", 0)
        num_tokens = stats.get(f"tokens_{key}", 0)
        rows.append({"split": split, "documents": num_documents, "tokens": num_tokens})
    return rows


def _folder_for_duckdb(path: str) -> str | None:
    """Return the folder of `path`; None, which is the system's temporary folder, if DuckDB would
    take the path for another."""
    folder = os.path.dirname(path)
    if "?" in folder or "\\" in folder:
        return None
    return folder


def _batches(
    reader: DatasetReader, columns: list[str], kind: str = "data"
) -> Iterator[pa.RecordBatch]:
    for shard in range(reader.num_shards):
        for batch in reader.batches(shard, kind=kind, columns=columns, rows=_MAX_BATCH_ROWS):
            shards = pa.repeat(pa.scalar(shard, _SHARD.type), batch.num_rows)
            yield batch.append_column(_SHARD.name, shards)
            progress.advance(batch.num_rows)


def _reject_batches(readers: Mapping[str, DatasetReader]) -> Iterator[pa.RecordBatch]:
    for name, reader in readers.items():
        for batch in _batches(reader, _REJECTS_COLUMNS, "rejects"):
            yield batch.append_column("dataset", pa.repeat(name, batch.num_rows))


@dataclass(frozen=True)
class Figure:
    """A query's heading and chart, which the comments at its head declare.

    Attributes:
      heading: the first line.
      sentence: the lines between, which describe what the figure counts.
      chart: the last line, `table`, or `KIND LABEL: SERIES ...`; see `page.charts`.
    """

    heading: str
    sentence: str
    chart: str


def figure_names() -> list[str]:
    """Return the names of the queries that are figures.

    The numbers at the beginning of the names give the order in which the page shows them.
    """
    return [name for name in _query_names() if name[0].isdigit()]


def read_figure(name: str) -> Figure:
    """Read the comments at the head of a figure's query; raise UserError if some are missing."""
    comments = itertools.takewhile(_is_comment, _sql(name).splitlines())
    head = [line.removeprefix("--").strip() for line in comments]
    if len(head) < 3 or not head[-1].startswith(_CHART):
        raise UserError(
            f"queries/{name}.sql does not begin with three comments: a heading, a sentence that "
            f"says what is counted, and `-- {_CHART}table`"
        )
    return Figure(
        heading=head[0],
        sentence=" ".join(head[1:-1]),
        chart=head[-1].removeprefix(_CHART),
    )


_CHART = "chart: "


def _is_comment(line: str) -> bool:
    return line.startswith("--")


def digest_of_queries() -> str:
    """Return the SHA-256 of all queries. The report is rebuilt when it changes."""
    texts = [f"{name}\n{_sql(name)}" for name in _query_names()]
    return hashlib.sha256("\n".join(texts).encode()).hexdigest()


def _query_names() -> list[str]:
    return sorted(entry.name.removesuffix(".sql") for entry in _QUERIES.iterdir())


def _sql(name: str) -> str:
    return (_QUERIES / f"{name}.sql").read_text(encoding="utf-8")
