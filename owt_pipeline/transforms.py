"""The parts as Beam transforms on your own rows, with as little logic as possible: the library's functions do the work.

    result = pages | ExtractText(html_field="body", favor="precision")
    result["out"]      the rows, with `text`, `title`, ... added
    result["rejects"]  the rows without a document, with `reason` and `detail` added

A row is a `beam.Row`, a named tuple or a dict. The outputs are `beam.Row`s, with a schema if the input has one. A field
of the result replaces one of the same name. docs/library.md has an example in Beam YAML.
"""

from __future__ import annotations

import pickle
import tempfile
import uuid
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, ClassVar, Optional

import apache_beam as beam
import pyarrow as pa
import xxhash
from apache_beam.options.pipeline_options import GoogleCloudOptions
from apache_beam.runners.portability.fn_api_runner import FnApiRunner
from apache_beam.transforms.window import GlobalWindows
from apache_beam.typehints.row_type import RowTypeConstraint

from owt_pipeline.engine.graph import Dataset, RunStage, Stopped
from owt_pipeline.engine.stage import Runtime
from owt_pipeline.ledger.dataset import DatasetReader
from owt_pipeline.library import Cleaner, Extractor, as_strings, publish_documents, write_documents
from owt_pipeline.stages.dedupe.options import Comparison, Options
from owt_pipeline.stages.dedupe.stage import STAGE as DEDUPE
from owt_pipeline.stages.extract.pages import Rejected
from owt_pipeline.storage.folder import Storage
from schemas.manifest import ShardRecord
from schemas.settings import from_table

_OUT, _REJECTS = "out", "rejects"
_PROBLEM = {"reason": str, "detail": str}
# Beam's schemas do not accept `str | None`.
_TEXT: Any = Optional[str]  # noqa: UP045
_NUMBER: Any = Optional[float]  # noqa: UP045


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
        self.do_fn = _Extract(html_field, url_field, options)

    def expand(self, rows: beam.PCollection) -> dict[str, beam.PCollection]:
        return _judged(rows, self.do_fn, self.fields)


class CleanText(beam.PTransform):
    """Texts -> repaired texts that pass the filters (`out`), and the others (`rejects`).

    Adds `text` (repaired), `n_words`, `language`, `language_score` and `signals`, as in `owt_pipeline.Cleaned`.

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
    }

    def __init__(self, text_field: str = "text", **options: Any):
        super().__init__()
        Cleaner(**options)
        self.do_fn = _Clean(text_field, options)

    def expand(self, rows: beam.PCollection) -> dict[str, beam.PCollection]:
        return _judged(rows, self.do_fn, self.fields)


class MarkNearDuplicates(beam.PTransform):
    """Rows -> the same rows, each with the row it duplicates (`out`), and rows whose text is not text (`rejects`).

    Adds `document` (an integer, unique to the row), `cluster` (the `document` of the row that is kept in its place;
    its own if it is kept itself), `duplicate` (whether it is to be removed), `similarity` (exact; None if kept) and
    `rule` (`exact` or `near`). The decisions are those of `owt_pipeline.near_duplicates`. Of equally long texts any may
    be kept, but always the same one.

    Rows and sketches are stored in files, so that the runner moves only handles of them: in `temp_location`, by default
    that of the pipeline's options, otherwise in a folder that is deleted with the pipeline. On a cluster, all workers
    have to see it, so use a bucket. Files that remain there can be deleted after the job.

    Args:
      text_field: name of the field with the text; None duplicates nothing.
      temp_location: a folder or a bucket's URI.
      num_shards: number of files; about one per 100,000 rows.
      workers: processes on this machine, with the local runner.
      **options: those of `owt_pipeline.near_duplicates`.
    """

    fields: ClassVar[Mapping[str, Any]] = {
        "document": int,
        "cluster": int,
        "duplicate": bool,
        "similarity": _NUMBER,
        "rule": _TEXT,
    }

    def __init__(
        self, text_field: str = "text", temp_location: str = "", num_shards: int = 8, workers: int = 1, **options: Any
    ):
        super().__init__()
        if num_shards < 1:
            raise ValueError(f"num_shards: {num_shards} is not a whole number of at least 1")
        asked = vars(from_table(Comparison, options, "MarkNearDuplicates"))
        self.options = Options(**asked, max_cluster_share=1.0, max_host_share=1.0)
        self.text_field, self.temp_location, self.num_shards, self.workers = (
            text_field,
            temp_location,
            num_shards,
            workers,
        )

    def expand(self, rows: beam.PCollection) -> dict[str, beam.PCollection]:
        if not isinstance(rows.windowing.windowfn, GlobalWindows):
            raise ValueError("rows are compared with all others: give them in GlobalWindows()")
        place = self.temp_location or rows.pipeline.options.view_as(GoogleCloudOptions).temp_location
        if not place:
            self._folder = tempfile.TemporaryDirectory(prefix="owt-")  # deleted with the pipeline
            place = self._folder.name
        workdir = Storage(f"{place.rstrip('/')}/near-duplicates-{uuid.uuid4()}")
        runtime = Runtime(workdir, self.workers)
        if not isinstance(rows.pipeline.runner, FnApiRunner):
            runtime = runtime.elsewhere([DEDUPE], {"host": type(rows.pipeline.runner).__name__})
        checked = rows | "Check" >> beam.ParDo(_Check(self.text_field, self.num_shards)).with_outputs(
            _REJECTS, main=_OUT
        )
        marked = (
            checked[_OUT]
            | "ToShards" >> beam.GroupByKey()
            | "Write" >> beam.ParDo(_Write(workdir))
            | "Gather" >> beam.GroupByKey()
            | "Publish" >> beam.ParDo(_Publish(workdir, self.num_shards)).with_output_types(Dataset)
            | "Dedupe" >> RunStage(DEDUPE, self.options, runtime)
            | "Shards" >> beam.FlatMap(_shards)
            | "Spread" >> beam.Reshuffle()
            | "Mark" >> beam.FlatMap(_marked, workdir)
        )
        return _typed(rows, {_OUT: (marked, self.fields), _REJECTS: (checked[_REJECTS], _PROBLEM)})


def _judged(rows: beam.PCollection, do_fn: beam.DoFn, fields: Mapping[str, Any]) -> dict[str, beam.PCollection]:
    found = rows | beam.ParDo(do_fn).with_outputs(_REJECTS, main=_OUT)
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


def _reject(fields: Mapping[str, Any], reason: str, detail: str) -> Any:
    return beam.pvalue.TaggedOutput(_REJECTS, beam.Row(**{**fields, "reason": reason, "detail": detail}))


class _Extract(beam.DoFn):
    def __init__(self, html_field: str, url_field: str, options: Mapping[str, Any]):
        self.html_field, self.url_field, self.options = html_field, url_field, options

    def setup(self) -> None:
        self.extractor = Extractor(**{"isolated": True, "workers": 1, **self.options})

    def process(self, row: Any) -> Iterator[Any]:
        fields = _fields_of(row)
        html, url = _value(fields, self.html_field), fields.get(self.url_field)
        url = url if isinstance(url, str) else ""  # pandas writes NaN for none
        if not isinstance(html, (str, bytes)):
            yield _reject(fields, "no_text", f"{self.html_field} is {type(html).__name__}, not text or bytes")
            return
        (result,) = self.extractor.map([(html, url)])
        if isinstance(result, Rejected):
            yield _reject(fields, str(result.reason), result.detail or "")
        else:
            yield beam.Row(**{**fields, **{name: getattr(result, name) for name in ExtractText.fields}})


class _Clean(beam.DoFn):
    def __init__(self, text_field: str, options: Mapping[str, Any]):
        self.text_field, self.options = text_field, options

    def setup(self) -> None:
        self.cleaner = Cleaner(**self.options)

    def process(self, row: Any) -> Iterator[Any]:
        fields = _fields_of(row)
        text = _value(fields, self.text_field)
        if not isinstance(text, str):
            yield _reject(fields, "empty_text", f"{self.text_field} is {type(text).__name__}, not text")
            return
        cleaned = self.cleaner(text)
        if cleaned.reason is not None:
            yield _reject(fields, str(cleaned.reason), cleaned.detail)
        else:
            yield beam.Row(**{**fields, **{name: getattr(cleaned, name) for name in CleanText.fields}})


class _Check(beam.DoFn):
    """Rows -> (shard, (text, pickled row)); the shard is a hash of the pickled row."""

    def __init__(self, text_field: str, num_shards: int):
        self.text_field, self.num_shards = text_field, num_shards

    def process(self, row: Any) -> Iterator[Any]:
        fields = _fields_of(row)
        text = _value(fields, self.text_field)
        if not isinstance(text, (str, type(None))):
            yield _reject(fields, "empty_text", f"{self.text_field} is {type(text).__name__}, not text")
            return
        packed = pickle.dumps(fields, 5)
        yield xxhash.xxh3_64_intdigest(packed) % self.num_shards, (text, packed)


class _Write(beam.DoFn):
    """A shard's rows -> files with its documents and its rows, sorted by their bytes; emits the record of these files.

    Called again with the same rows, it writes the same files.
    """

    def __init__(self, workdir: Storage):
        self.workdir = workdir

    def process(self, element: tuple[int, Iterable[tuple[str | None, bytes]]]) -> Iterator[tuple[int, bytes]]:
        shard, rows = element
        rows = sorted(rows, key=lambda row: row[1])
        texts = as_strings([text for text, _ in rows])
        yield 0, _write_shard(self.workdir, shard, texts, [packed for _, packed in rows])


def _write_shard(workdir: Storage, shard: int, texts: pa.Array, packed: list[bytes]) -> bytes:
    sink = pa.BufferOutputStream()
    batch = pa.record_batch({"row": pa.array(packed, pa.large_binary())})
    with pa.ipc.new_file(sink, batch.schema) as file:
        file.write_batch(batch)
    workdir.write(_rows_name(shard), sink.getvalue().to_pybytes())
    return write_documents(workdir, shard, [(shard << _SHARD_BITS, texts)]).to_json()


_SHARD_BITS = 32
"""Bits of a document's number below those of its shard."""


def _rows_name(shard: int) -> str:
    return f"rows/{shard:05d}.arrow"


class _Publish(beam.DoFn):
    """Records of the shards -> handle of the dataset of all documents."""

    def __init__(self, workdir: Storage, num_shards: int):
        self.workdir, self.num_shards = workdir, num_shards

    def process(self, element: tuple[int, Iterable[bytes]]) -> Iterator[Dataset]:
        records = {record.shard: record for record in map(ShardRecord.from_json, element[1])}
        for shard in set(range(self.num_shards)) - records.keys():  # shards without rows
            records[shard] = ShardRecord.from_json(_write_shard(self.workdir, shard, pa.array([], pa.string()), []))
        manifest = publish_documents(self.workdir, [records[shard] for shard in range(self.num_shards)])
        yield Dataset(self.workdir.path("clean"), manifest.digest, self.num_shards, manifest.total("data").rows)


def _shards(duplicates: Dataset | Stopped) -> range:
    if isinstance(duplicates, Stopped):
        raise ValueError(duplicates.message)
    return range(duplicates.shards)


def _marked(shard: int, workdir: Storage) -> Iterator[beam.Row]:
    """The rows of a shard with the decision on each."""
    decided = DatasetReader.open(workdir, "duplicates").table(
        shard, columns=["url_id", "kept_url_id", "similarity", "rule"]
    )
    decisions = {row["url_id"]: row for row in decided.to_pylist()}
    with pa.ipc.open_file(pa.BufferReader(workdir.read(_rows_name(shard)))) as file:
        rows = file.read_all()["row"]
    for number, packed in enumerate(rows):
        document = (shard << _SHARD_BITS) + number
        decision = decisions.get(document)
        found = {
            "document": document,
            "cluster": decision["kept_url_id"] if decision else document,
            "duplicate": decision is not None,
            "similarity": decision["similarity"] if decision else None,
            "rule": decision["rule"] if decision else None,
        }
        yield beam.Row(**{**pickle.loads(packed.as_py()), **found})
