"""The datasets' narrow columns as tables of a DuckDB database, and the queries in `queries/`
over them.

The database is a temporary file on the local disk, next to which DuckDB spills what exceeds its
memory limit. Every query has a total order and sums only integers, so its rows do not depend on the
number of shards, threads and bytes of memory.
"""

from __future__ import annotations

import hashlib
import itertools
import os
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
"""DuckDB's memory limit, beyond which it spills; Python, Arrow and Beam take another 300 MB."""

_MOST_THREADS = 4

_COLUMNS = {
    "urls": "url_id host subreddits created_utc score link_sources".split(),
    "pages": "url status source fetched_at days_after_submission fetch_ms body_bytes created_utc "
    "score".split(),
    "documents": "language reserved".split(),
    "clean": "url_id url language signals".split(),
    "duplicates": "url_id kept_url_id rule similarity shared_bands cluster_size".split(),
    "corpus": "url_id url subreddits created_utc score language n_words n_chars n_bytes "
    "copies license source fetched_at".split(),
    "tokens": "url_id n_tokens".split(),
}
"""The columns that are read of each dataset; its table has `host` in place of `url`, but for
clean's."""

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
_ROWS = 1 << 16

Row = dict[str, Any]


@dataclass(frozen=True)
class Tables:
    """An open database.

    Its tables are the datasets (missing ones are empty), all `rejects`, `generations`, the
    `thresholds` of the filters and the `splits` of the tokens.
    """

    connection: duckdb.DuckDBPyConnection
    parameters: Mapping[str, Any]

    def rows(self, query: str, **parameters: Any) -> list[Row]:
        """The rows of `queries/QUERY.sql` as dicts; `parameters` override those of the run."""
        sql = _sql(query)
        known = {**self.parameters, **parameters}
        found = self.connection.execute(
            sql, {name: value for name, value in known.items() if f"${name}" in sql}
        )
        names = [column[0] for column in found.description]
        return [dict(zip(names, row, strict=True)) for row in found.fetchall()]

    def fill(
        self, table: str, schema: pa.Schema, batches: Iterable[pa.RecordBatch], select: str = "*"
    ) -> None:
        """Create a table of `select` from batches; raises UserError if one of their files is
        damaged."""
        import duckdb

        damaged: list[UserError] = []

        def read() -> Iterator[pa.RecordBatch]:
            try:
                yield from batches
            except UserError as error:  # DuckDB would wrap it
                damaged.append(error)
                raise

        self.connection.register("batches", pa.RecordBatchReader.from_batches(schema, read()))
        try:
            self.connection.execute(f"create table {table} as select {select} from batches")
        except duckdb.Error:
            if damaged:
                raise damaged[0] from None
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
    """The tables of a run, until the block ends.

    `generations` are rows of that table: each generation's shards. The database is in the spool of
    `work`.
    """
    import duckdb  # slow to import

    with (
        work.spool() as file,
        # named like the spool file, so that it is removed like one if its process is killed
        tempfile.TemporaryDirectory(
            dir=_folder_for_duckdb(file.path), prefix=os.path.basename(file.path)
        ) as folder,
    ):
        config: dict[str, Any] = {
            "temp_directory": folder,
            "memory_limit": memory,
            "preserve_insertion_order": False,
            "threads": min(threads, _MOST_THREADS),
        }
        with duckdb.connect(os.path.join(folder, "tables.duckdb"), config=config) as connection:
            connection.execute("SET enable_progress_bar = false")  # ours is there
            connection.execute(_sql("macros"))
            tables = Tables(connection, parameters)
            shard, dataset = pa.field("shard", pa.uint32()), pa.field("dataset", pa.string())
            for name, columns in _COLUMNS.items():
                schema = pa.schema(
                    [*(DATASETS[name].schema.field(column) for column in columns), shard]
                )
                select = (
                    "* exclude (url), host_of(url) as host"
                    if "url" in columns and name != "clean"
                    else "*"
                )
                tables.fill(
                    name, schema, _rows(readers[name], columns) if name in readers else (), select
                )
            schema = pa.schema(
                [*(REJECTS.field(name) for name in ("url_id", "url", "reason")), shard, dataset]
            )
            host = "case when dataset in ('pages', 'corpus') then host_of(url) end as host"
            tables.fill("rejects", schema, _rejects(readers), f"* exclude (url), {host}")
            tables.fill(
                "generations", _GENERATIONS, [pa.RecordBatch.from_pylist(generations, _GENERATIONS)]
            )
            connection.execute(_sql("views"))
            kinds = DATASETS["clean"].schema.field("signals").type
            signals = [f"{of.name}.{field.name}" for of in kinds for field in of.type]
            rows = [
                f"select '{name}' as signal, signals.{name} as value from clean" for name in signals
            ]
            connection.execute("create view signals as " + " union all ".join(rows))
            for table, schema, found in (
                ("thresholds", _THRESHOLDS, _thresholds(readers, signals)),
                ("splits", _SPLITS, _splits(readers)),
            ):
                tables.fill(table, schema, [pa.RecordBatch.from_pylist(found, schema)])
            yield tables


def _thresholds(readers: Mapping[str, DatasetReader], signals: Iterable[str]) -> list[Row]:
    """Return the limits of each signal by the options of clean, whether its filter is chosen or
    not."""
    options = readers["clean"].manifest.options if "clean" in readers else {}
    chosen = options.get("filters") or ()
    limits_by_filter = {name: dict(options.get(name) or {}) for name in BUILT_IN}
    for name, thresholds in BUILT_IN.items():
        measured_by = thresholds.measured_by
        if name in chosen and measured_by and measured_by not in chosen:
            # Both limit the same signals, and only this filter's limits were applied.
            limits_by_filter[measured_by].update(limits_by_filter[name])
    rows: list[Row] = []
    for signal in signals:
        of_filter, _, name = signal.partition(".")
        limits = limits_by_filter[of_filter]
        row = {
            "signal": signal,
            "minimum": limits.get(f"min_{name}"),
            "maximum": limits.get(f"max_{name}"),
        }
        rows.append(row)
    return rows


def _splits(readers: Mapping[str, DatasetReader]) -> list[Row]:
    """Return the documents and tokens of each split, as tokenize has counted them."""
    if "tokens" not in readers:
        return []
    stats = readers["tokens"].manifest.stats
    return [
        {
            "split": split,
            "documents": stats.get(f"documents_{key}", 0),
            "tokens": stats.get(f"tokens_{key}", 0),
        }
        for split, key in (("train", "train"), ("validation", "val"))
    ]


def _folder_for_duckdb(path: str) -> str | None:
    """The folder of `path`, or None, for the system's, if DuckDB would take it for another."""
    folder = os.path.dirname(path)
    return None if "?" in folder or "\\" in folder else folder


def _rows(
    reader: DatasetReader, columns: list[str], kind: str = "data"
) -> Iterator[pa.RecordBatch]:
    for shard in range(reader.num_shards):
        for batch in reader.batches(shard, kind=kind, columns=columns, rows=_ROWS):
            yield batch.append_column(
                "shard", pa.repeat(pa.scalar(shard, pa.uint32()), batch.num_rows)
            )
            progress.advance(batch.num_rows)


def _rejects(readers: Mapping[str, DatasetReader]) -> Iterator[pa.RecordBatch]:
    for name, reader in readers.items():
        for batch in _rows(reader, ["url_id", "url", "reason"], "rejects"):
            yield batch.append_column("dataset", pa.repeat(name, batch.num_rows))


@dataclass(frozen=True)
class Figure:
    """What the comments at the head of a query say.

    Attributes:
      heading: the first line.
      sentence: the lines after it: what the figure counts.
      chart: the last line, `table`, or `KIND LABEL: SERIES ...`; see `page.charts`.
    """

    heading: str
    sentence: str
    chart: str


def figure_names() -> list[str]:
    """The queries that are figures, in the order in which they are shown, which the numbers of
    their names give."""
    return [
        name for name in _names() if _sql(name).startswith("--") and "\n-- chart: " in _sql(name)
    ]


def read_figure(name: str) -> Figure:
    head = [
        line.removeprefix("--").strip()
        for line in itertools.takewhile(_is_comment, _sql(name).splitlines())
    ]
    return Figure(head[0], " ".join(head[1:-1]), head[-1].removeprefix("chart: "))


def _is_comment(line: str) -> bool:
    return line.startswith("--")


def digest_of_queries() -> str:
    """SHA-256 of all queries, which may be changed: then the report is made again."""
    return hashlib.sha256(
        "\n".join(f"{name}\n{_sql(name)}" for name in _names()).encode()
    ).hexdigest()


def _names() -> list[str]:
    return sorted(entry.name.removesuffix(".sql") for entry in _QUERIES.iterdir())


def _sql(name: str) -> str:
    return (_QUERIES / f"{name}.sql").read_text(encoding="utf-8")
