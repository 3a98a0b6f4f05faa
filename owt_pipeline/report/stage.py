"""`report`: the statistics of a run as one HTML page and stats.json.

Two passes over the datasets, each a tree: parts read pieces of them, one round merges the parts' summaries, 64 into
one, and the next step merges what that comes to:

    statistics | statistics_merged | totals             what there is, and of what the second pass is to find more
    details    | details_merged    | finish             exact counts and texts; the page
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import pyarrow as pa

from owt_pipeline.engine.commit import ShardWriter
from owt_pipeline.engine.dataset import DatasetReader
from owt_pipeline.engine.exchange import Slice, read_slices
from owt_pipeline.engine.phases import read_log
from owt_pipeline.engine.stage import Stage, StageRun, Step, one_part, what_was_sent
from owt_pipeline.engine.storage import describe_source
from owt_pipeline.report.comparisons import (
    TRAINING_METRICS,
    Reference,
    comparison,
    months,
    read_reference,
    read_stats,
    read_training,
    with_base_reports,
)
from owt_pipeline.report.figures import figures, times
from owt_pipeline.report.first_pass import (
    FAN_IN,
    Sizes,
    kinds_of_first_pass,
    parts,
    pieces_of,
    rows_of_parts,
    summarize,
)
from owt_pipeline.report.page import page
from owt_pipeline.report.second_pass import Wanted, kinds_of_second_pass, look_up
from owt_pipeline.report.sketches import Details, Summary, T, pack, unpack
from schemas import DATASETS, option
from schemas.manifest import Counts, ShardRecord

_PACKED = pa.schema([("summary", pa.large_binary())])


@dataclass(frozen=True)
class Options:
    """Options of the stage."""

    top_domains: int = option(100, "domains to list", minimum=1, maximum=1000)
    sample_urls: int = option(10, "URLs to show of each reject reason", minimum=0, maximum=1000)
    sample_documents: int = option(
        20, "documents to show, of the corpus and of those each filter dropped", minimum=0, maximum=100
    )
    reference_domains: str = option(
        "",
        "a list of sites to compare with, `COUNT SITE` a line, such as the one OpenAI published of WebText's",
        metavar="FILE",
        shapes_bytes=False,  # what is in it does, and is among the sources
    )
    compare: str = option(
        "",
        "working directory of another run, with its report, to compare this one with",
        metavar="DIR",
        shapes_bytes=False,  # what its report says does, and is among the sources
    )
    training: str = option(
        "",
        "folder of a training run, whose losses to draw: its metrics.jsonl",
        metavar="DIR",
        shapes_bytes=False,  # what is in it does, and is among the sources
    )

    times: bool = option(
        False,
        "show when, where and for how many seconds each stage ran, and its price on Dataflow: then no two runs' pages "
        "are the same",
    )


def prepare(run: StageRun) -> None:
    _reference(run.options)  # a list that cannot be read is an error here, and not of a worker


def gather_statistics(run: StageRun, part: int, _: Sequence[Slice], writer: ShardWriter) -> None:
    readers, summary = _readers(run), Summary()
    sizes = Sizes(run.options.sample_urls, run.options.sample_documents)
    for piece in pieces_of(part, readers, kinds_of_first_pass(readers)):
        summarize(summary, piece, readers, sizes)
    _send(writer, part // FAN_IN, summary)


def merge_statistics(run: StageRun, _: int, slices: Sequence[Slice], writer: ShardWriter) -> None:
    _send(writer, 0, _merged(run, slices, Summary()))


def write_totals(run: StageRun, _: int, slices: Sequence[Slice], writer: ShardWriter) -> None:
    summary, reference = _merged(run, slices, Summary()), _reference(run.options)
    _write(writer, "summary", summary)
    _write(writer, "wanted", Wanted.of(summary, frozenset(reference.counts) if reference else frozenset()))


def gather_details(run: StageRun, part: int, _: Sequence[Slice], writer: ShardWriter) -> None:
    readers, details = _readers(run), Details()
    (wanted,) = _written(run, "totals", "wanted", Wanted)
    for piece in pieces_of(part, readers, kinds_of_second_pass(readers)):
        look_up(details, piece, readers, wanted)
    _send(writer, part // FAN_IN, details)


def merge_details(run: StageRun, _: int, slices: Sequence[Slice], writer: ShardWriter) -> None:
    _write(writer, "details", _merged(run, slices, Details()))


def finish(run: StageRun, _: Sequence[ShardRecord]) -> None:
    options: Options = run.options
    (summary,) = _written(run, "totals", "summary", Summary)
    (wanted,) = _written(run, "totals", "wanted", Wanted)
    details = Details()
    for found in _written(run, "details_merged", "details", Details):
        details.merge(found)
    readers = _readers(run)
    own = {name: reader.manifest for name, reader in readers.items()}
    stats = figures(
        own,
        summary,
        wanted.candidates,
        details,
        top_domains=options.top_domains,
        reference=_reference(options),
        training=read_training(options.training) if options.training else None,
    )
    if options.compare:
        stats["comparison"] = comparison(stats, read_stats(options.compare)[1], _name_of(options.compare))
    if options.times:
        stats["times"] = times(read_log(run.workdir), own)
    stats["months"] = months(run.workdir, own, stats, run.bases)
    run.write_asset("stats.json", (json.dumps(stats, indent=1, ensure_ascii=False) + "\n").encode())
    run.write_asset("index.html", page(stats).encode())
    documents = readers["tokens"].rows()
    run.counts = Counts(documents, documents)


def _readers(run: StageRun) -> dict[str, DatasetReader]:
    return {name: run.inputs[name] for name in DATASETS if name in run.inputs}


def _reference(options: Options) -> Reference | None:
    return read_reference(options.reference_domains) if options.reference_domains else None


def _send(writer: ShardWriter, key: int, summary: Any) -> None:
    writer.send(key, pa.record_batch([pa.array([pack(summary)], pa.large_binary())], _PACKED))


def _merged(run: StageRun, slices: Sequence[Slice], merged: Any) -> Any:
    """All that was sent, in `merged`, which comes empty."""
    for table in read_slices(run.work, slices):
        for content in table["summary"]:
            merged.merge(unpack(content.as_buffer(), type(merged)))
    return merged


def _write(writer: ShardWriter, kind: str, value: Any) -> None:
    writer.open_file(f".{kind}", kind).write(pack(value))


def _written(run: StageRun, step: str, kind: str, of: type[T]) -> Iterator[T]:
    """What the parts of a finished step wrote of one kind."""
    for record in run.read_records(step):
        for file in record.files:
            if file.kind == kind:
                yield unpack(run.work.read(file.path), of)


def _pass(name: str, work: Callable[..., None], kinds: Callable[..., Sequence[tuple[str, str]]]) -> Step:
    return Step(work, name, partial(_over, parts, kinds), partial(_over, rows_of_parts, kinds), spread="shards")


def _over(of: Callable[..., Any], kinds: Callable[..., Any], run: StageRun) -> Any:
    readers = _readers(run)
    return of(readers, kinds(readers))


def _sources(options: Options) -> list[dict[str, Any]]:
    found = []
    if options.reference_domains:
        found.append(describe_source(options.reference_domains))
    if options.training:
        found.append(describe_source(f"{options.training.rstrip('/')}/{TRAINING_METRICS}"))
    if options.compare:
        other, content = _name_of(options.compare), read_stats(options.compare)[0]
        found.append({"name": other, "bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()})
    return found


def _name_of(workdir: str) -> str:
    return workdir.rstrip("/").rpartition("/")[2] or workdir


STAGE = Stage(
    name="report",
    output="report",
    inputs=("tokens",),
    optional_inputs=("urls", "pages", "documents", "clean", "duplicates", "corpus"),
    options=Options,
    version=7,
    steps=(
        _pass("statistics", gather_statistics, kinds_of_first_pass),
        Step(merge_statistics, "statistics_merged", keys=what_was_sent, spread="shards"),
        Step(write_totals, "totals", keys=one_part),
        _pass("details", gather_details, kinds_of_second_pass),
        Step(merge_details, "details_merged", keys=what_was_sent, spread="shards"),
    ),
    prepare=prepare,
    finish=finish,
    sources=_sources,
    shaping=with_base_reports,
    bases=("urls", "duplicates", "corpus", "tokens"),
    module="owt_pipeline.report.stage",
    help="Write the statistics of the run: report/index.html, one page for a browser that needs nothing else, and\n"
    "report/stats.json, every figure of it (docs/stats.md).",
    num_shards=lambda options: 0,
    libraries=("tld",),
    example="owt report --workdir runs/2013 --reference_domains webtext-top-domains.txt --compare runs/2012",
)
