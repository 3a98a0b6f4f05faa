"""Stages: what each declares, and how its output becomes finished. No Beam: `graph.py` makes transforms of this.

A stage reads datasets of the working directory and writes one, in three phases, each of which may run on another
machine:

    plan      what has to be made: nothing where the output is finished, else the parts that are missing
    work      step by step, each step's parts anywhere and in any order; the last step's parts are the output's shards
    publish   the manifest, from the shards' records

While it works, `ledger/DATASET/.work/FINGERPRINT/` holds `plan.json` (what is being made), `prepared-DIGEST.json` (what
an attempt at planning found out), and each step's records; the manifest comes last, and `.work` goes. So a rerun skips
finished stages, and an interrupted stage continues with the parts that have no record.
"""

from __future__ import annotations

import dataclasses
import hashlib
import inspect
import json
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal

import msgspec
import pyarrow as pa

from owt_pipeline.engine.workers import map_batches
from owt_pipeline.errors import UserError
from owt_pipeline.ledger.bases import Base, described, open_chain
from owt_pipeline.ledger.commit import ShardWriter, version_of_manifest
from owt_pipeline.ledger.dataset import DatasetReader, Outcome
from owt_pipeline.ledger.exchange import Slice
from owt_pipeline.ledger.plan import Plan, version_skew, versions_of, versions_of_everything
from owt_pipeline.storage.folder import Storage, at_once
from owt_pipeline.storage.lease import Job
from schemas import DATASETS
from schemas.manifest import Counts, Manifest, ManifestError, ShardFile, ShardRecord, ledger_of
from schemas.settings import shaping_options

logger = logging.getLogger("owt")

SHARDS = "shards"
"""Name of the last step of every stage that writes rows."""


@dataclass(frozen=True)
class Runtime:
    """How a stage runs, as opposed to what it makes: nothing here shapes a byte of the output.

    Attributes:
      workers: processes of the local pool; on a cluster, one part at a time is worked on in each of its processes.
      beam_flags: Beam's flags; none for the local runner.
      owner: of the lease that is held on the working directory; empty: none.
      own_lease: whether the graph takes and keeps this lease, since no process waits that does.
      on_cluster: whether parts run where the runner places them, and not in the pool of this process.
      place: what the run's log says of where it runs, if that is not this machine.
      ended: the job that worked for the run before, and has ended without a launcher that waited for it.
      unattended: whether nobody waits for the job's end, so that it has to fail where a user's mistake is found.
      versions: on a cluster, those of what shapes bytes in the process that started the run.
      allow_version_skew: whether workers may have others, which the manifest then names.
    """

    workdir: Storage
    workers: int = 1
    beam_flags: tuple[str, ...] = ()
    owner: str = ""
    own_lease: bool = False
    on_cluster: bool = False
    place: Mapping[str, Any] | None = None
    unattended: bool = False
    ended: Job | None = None
    versions: tuple[tuple[str, str], ...] = ()
    allow_version_skew: bool = False

    def elsewhere(self, stages: Iterable[Stage], place: Mapping[str, Any]) -> Runtime:
        """The same for stages whose parts run where a runner places them, as they do on a cluster."""
        found = versions_of_everything(name for stage in stages for name in stage.libraries)
        return dataclasses.replace(self, on_cluster=True, place=place, workers=1, versions=tuple(found.items()))

    def skew(self) -> dict[str, str]:
        """The versions of this process where they are not those of the run's; none where they are.

        Raises UserError where they differ and may not.
        """
        return version_skew(dict(self.versions), self.allow_version_skew) if self.versions else {}


def _shards(run: StageRun) -> Iterable[int]:
    return range(run.num_shards)


def _unknown(_: StageRun) -> None:
    return None


def what_was_sent(_: StageRun) -> Iterable[int]:
    """`Step.keys` of a step whose parts are those that something was sent to."""
    return ()


def one_part(_: StageRun) -> Iterable[int]:
    """`Step.keys` of a step that is one part, whatever was sent."""
    return (0,)


@dataclass(frozen=True)
class Step:
    """One round of a stage's work: parts, each made by one call.

    The first step's parts are `keys`. Those of another step are the keys that rows were sent to by the step before
    (`ShardWriter.send`), and `keys` too. The last step's parts are the shards of the output; only a stage whose output
    has none, since all of it is assets (the report), ends with another step.

    Attributes:
      work: `work(run, key, slices, writer)`: makes part `key` of what was sent to it. Called again, it writes the same.
      name: of the step's folder; the last step's is `shards`.
      keys: parts that exist even if nothing is sent to them; all shards by default.
      rows: rows that each of `keys` reads, for the progress and so that the largest go first; what was sent otherwise.
      outputs: schemas of named outputs of the last step (`train`, `val`) in place of the dataset's own.
      spread: what the local pool's processes share: `shards`, of which each makes some; or also a shard's `batches`
        where shards are few (`run.map_batches`). Without it parts are made in the run's own process, one after the
        other, and spread their work themselves.
      together: how many parts are made at once in threads of the run's own process, whatever `spread` says: for work
        that waits. A number, or what gives it for a run; with 1, parts are made as `spread` says.
    """

    work: Callable[[StageRun, int, Sequence[Slice], ShardWriter], None]
    name: str = SHARDS
    keys: Callable[[StageRun], Iterable[int]] = _shards
    rows: Callable[[StageRun], Mapping[int, int] | Sequence[int] | None] = _unknown
    outputs: Callable[[StageRun], Mapping[str, pa.Schema] | None] = _unknown
    spread: Literal["", "shards", "batches"] = ""
    together: int | Callable[[StageRun], int] = 1


class Stage:
    """A stage, as its room declares it: a subclass, whose docstring is the first paragraph of `owt NAME --help`.

    The attributes say what the stage reads, does and writes; the methods, in the order in which they are called, what
    more there is to it. `owt_pipeline/export/stage.py` is an example to copy. An instance holds nothing of a run, so
    that any process can have it by the name of its class.

    Attributes:
      name: the stage's name, `owt NAME`.
      inputs: the datasets it reads; the first one gives the number of shards.
      optional_inputs: datasets it reads where they are there.
      bases: what it reads of the runs that this one builds on: datasets, or lists.
      lists: files of the working directory that shape the output where they are there.
      output: the dataset it writes.
      options: its frozen dataclass of options.
      version: raised whenever the code would write other bytes from the same input.
      libraries: distributions whose version shapes the bytes, for the manifest.
      steps: its work.
      shard_local: shard k of the output is made from shard k of the inputs alone: where an input has changed, the
        shards whose part of it has not are kept.
      positional: the option that takes the arguments without a flag, if one does.
      example: a command line for `--help`.
    """

    name: str
    inputs: tuple[str, ...] = ()
    optional_inputs: tuple[str, ...] = ()
    bases: tuple[str, ...] = ()
    lists: tuple[str, ...] = ()
    output: str
    options: type
    version: int
    libraries: tuple[str, ...] = ()
    steps: tuple[Step, ...]
    shard_local: bool = False
    positional: str = ""
    example: str = ""

    @property
    def help(self) -> str:
        return inspect.getdoc(type(self)) or ""

    def shaping(self, options: Any, workdir: Storage) -> dict[str, Any]:
        """The options that shape the bytes, by name, with what the working directory decides where one is not given.

        The stage finds them in `run.plan.options`.
        """
        return shaping_options(options)

    def sources(self, options: Any) -> Sequence[dict[str, Any]]:
        """The files outside the working directory that the output depends on; UserError where one cannot be read."""
        return ()

    def sample(self, options: Any, workdir: Storage, bases: Sequence[Base]) -> Any:
        """What to expect of the sources, from a part of them, for a dry run; None without any."""
        return None

    def again(self, options: Any, workdir: Storage, manifest: Manifest) -> bool:
        """Whether the options ask for some of a finished output to be made again, which is then noted in `lists`.

        The launcher calls it.
        """
        return False

    def irreplaceable(self, options: Any) -> bool:
        """Whether the output, once lost, cannot be made again: it is of the web as it was.

        What is lost of it is an error, unless the options ask for it.
        """
        return False

    def preload(self, options: Any) -> Sequence[str]:
        """What all worker processes need and is costly to load, for the process that they are forked from: modules,
        and `module:function`s to call, which keep what they load."""
        return ()

    def fits(self, options: Any, base: Base) -> None:
        """Raise UserError for a run that cannot be built on with these options."""

    def num_shards(self, options: Any) -> int | None:
        """Shards of the output; None for as many as the first input has."""
        return None

    def listed(self, workdir: Storage, inputs: Mapping[str, DatasetReader]) -> Callable[[int], Any]:
        """A function that gives what the `lists`, and those of the bases, say of a shard, as JSON."""
        return lambda shard: None

    def prepare(self, run: StageRun) -> None:
        """Called where the stage has to run, before any part: raises UserError for options that cannot be, sets
        `run.properties`, writes assets."""

    def finish(self, run: StageRun, records: Sequence[ShardRecord]) -> None:
        """Called with the records of all shards before the manifest is written: sets `run.counts`, adds to
        `run.stats`, `run.properties` and the assets."""


@dataclass
class StageRun:
    """A stage at work: what its functions are given, in whichever process they run.

    Attributes:
      inputs: a reader for each dataset of `stage.inputs`, and of `stage.optional_inputs` where it is there.
      attempt: digest of what the attempt at planning has found out, which names it.
      replaces: version of the output's manifest when that attempt looked; None where there was none.
      work: the folder for intermediate steps; it goes when the stage is done.
      properties: for the manifest: set by `prepare` or `finish`.
      assets: files of the complete dataset.
      contents: of those assets that `publish_stage` has yet to write, by path.
      started: when the stage began, in seconds since 1970.
      kept: shards that need not be made again.
      counts: set by `finish` in a stage whose ledger is not that of its shards (dedupe's decisions).
      stats: further counts of the stage, apart from those of its shards.
      bases: the runs that this one builds on, the oldest first, for a stage that reads something of them.
    """

    stage: Stage
    options: Any
    runtime: Runtime
    inputs: Mapping[str, DatasetReader]
    plan: Plan
    work: Storage
    properties: dict[str, Any] = field(default_factory=dict)
    assets: list[ShardFile] = field(default_factory=list)
    started: float = 0.0
    kept: int = 0
    counts: Counts | None = None
    stats: dict[str, int] = field(default_factory=dict)
    bases: tuple[Base, ...] = ()
    attempt: str = ""
    replaces: str | None = None
    contents: dict[str, bytes] = field(default_factory=dict)

    @property
    def workdir(self) -> Storage:
        return self.runtime.workdir

    @property
    def num_shards(self) -> int:
        """Shards of the output."""
        return self.plan.num_shards

    @property
    def name(self) -> str:
        """The folder of the plan's work, and the attempt: what `open_run` opens."""
        return f"{self.work.uri.rpartition('/')[2]}/{self.attempt}"

    def stop(self) -> None:
        """Keep parts that have not begun from beginning: what one of them found stops the stage."""
        self.work.create(f"stopped-{self.attempt}", b"")

    def is_stopped(self) -> bool:
        return self.work.exists(f"stopped-{self.attempt}")

    def is_superseded(self) -> bool:
        """Whether the output was published, by this work or another one, since it was planned."""
        return version_of_manifest(self.workdir, self.stage.output) != self.replaces

    def records(self, step: str) -> Storage:
        """The folder of a step's records."""
        return records_of(self.work, step)

    def read_records(self, step: str) -> list[ShardRecord]:
        """The records of all parts of a finished step, by key."""
        records = self.records(step)
        return at_once(partial(read_record, records), records.names())

    def write_asset(self, name: str, content: bytes, *, named_by_content: bool = False) -> str:
        """Write a file of the complete dataset, such as a tokenizer's; returns its path in the working directory.

        It lies with the manifest, so that the dataset's own folder holds rows alone; the report, which has none, is
        its assets. One whose name another run may write, too, is written when the output is published.
        """
        digest = hashlib.sha256(content).hexdigest()
        if named_by_content:
            stem, dot, suffix = name.rpartition(".")
            name = f"{stem}-{digest[:8]}{dot}{suffix}"
        path = f"{ledger_of(self.stage.output) if self.stage.output in DATASETS else self.stage.output}/{name}"
        if named_by_content:
            self.workdir.write(path, content)
        else:
            self.contents[path] = content
        self.assets.append(ShardFile(path, "asset", -1, 0, len(content), digest))
        return path

    def map_batches(
        self,
        shard: int,
        writer: ShardWriter,
        fn: Callable[[pa.RecordBatch], Outcome],
        *,
        rows: int = 256,
        columns: list[str] | None = None,
    ) -> None:
        """Write shard k of the output from shard k of the first input, batch by batch, by `fn`.

        `fn` runs in worker processes, so it is a function of a module or a `functools.partial` of one.
        `columns` are those it needs, where it does not need all.
        """
        batches = self.inputs[self.stage.inputs[0]].batches(shard, rows=rows, columns=columns)
        for batch, outcome in map_batches(fn, batches, self.runtime.workers):
            writer.add(batch.num_rows, outcome)


def make_plan(stage: Stage, options: Any, inputs: Mapping[str, DatasetReader], workdir: Storage) -> Plan:
    """The plan of a stage, without its shards; raises UserError where a source cannot be read."""
    lists = [
        {"name": name, "bytes": workdir.size(name), "sha256": workdir.sha256(name)}
        for name in stage.lists
        if workdir.exists(name)
    ]
    return Plan(
        stage.name,
        stage.version,
        stage.shaping(options, workdir),
        {name: reader.manifest.digest for name, reader in inputs.items()},
        [*stage.sources(options), *lists, *described(open_chain(workdir) if stage.bases else (), stage.bases)],
        versions_of(stage.libraries),
    )


def with_shards(plan: Plan, stage: Stage, options: Any, inputs: Mapping[str, DatasetReader], workdir: Storage) -> Plan:
    """The plan with the number of its shards and what each is made from."""
    num_shards = stage.num_shards(options)
    if num_shards is None:
        num_shards = inputs[stage.inputs[0]].num_shards
    return msgspec.structs.replace(plan, num_shards=num_shards, made_from=made_from(stage, inputs, workdir, num_shards))


def made_from(stage: Stage, inputs: Mapping[str, DatasetReader], workdir: Storage, num_shards: int) -> list[str]:
    """For each shard, a digest of all that it is made from apart from the options; none where shards are not apart."""
    if not stage.shard_local:
        return []
    listed = stage.listed(workdir, inputs)
    files_of: list[dict[str, list[list[str]]]] = [{} for _ in range(num_shards)]
    for name, reader in inputs.items():
        for file in reader.table_of_files.files:
            if 0 <= file.shard < num_shards and file.kind != "rejects":  # what was rejected is not read
                files_of[file.shard].setdefault(name, []).append([file.path, file.sha256])
    digests = []
    for shard, files in enumerate(files_of):
        named = listed(shard) or None  # names nothing: as without lists
        digests.append(hashlib.sha256(json.dumps([files, named], sort_keys=True).encode()).hexdigest())
    return digests


def rows_of_input(run: StageRun) -> list[int]:
    """Rows of each shard of the first input: `Step.rows` of a stage that reads it shard by shard."""
    return run.inputs[run.stage.inputs[0]].rows_of_shards()


def records_of(work: Storage, step: str) -> Storage:
    """The folder of a step's records, below that of a plan's work."""
    return work / SHARDS if step == SHARDS else work / step / "records"


def read_record(records: Storage, name: str) -> ShardRecord:
    """A part's record; raises FileNotFoundError where it is not finished, UserError where the record is damaged."""
    try:
        return ShardRecord.from_json(records.read(name), records.path(name))
    except ManifestError as error:
        raise UserError(f"{error}: run the same command again") from error
