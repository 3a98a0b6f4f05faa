"""Stages: what a stage declares (`Stage`, `Step`) and what its functions are given (`StageRun`). No Beam: `graph.py`
turns stages into transforms.

A stage reads datasets of the working directory and writes one, in three phases. Each phase may run on another machine:

    plan      find out what to make: nothing if the output is finished, otherwise the missing parts
    work      make the parts, step by step; the last step's parts are the output's shards
    publish   write the manifest from the shards' records

During the work, `ledger/DATASET/.work/FINGERPRINT/` holds `plan.json` (what is being made), `prepared-DIGEST.json` (the
result of one attempt at planning) and the records of each step. Publishing removes it. A rerun therefore skips finished
stages, and an interrupted stage continues with the parts that have no record.
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
    """How and where a stage runs. Nothing here changes a byte of the output.

    Attributes:
      workers: processes of the local pool; on a cluster, each process makes one part at a time.
      beam_flags: Beam's flags; none for the local runner.
      owner: owner of the lease on the working directory; empty if no lease is held.
      own_lease: whether the graph itself takes and renews the lease, because no process waits for the job.
      on_cluster: whether the runner places the parts, rather than the pool of this process.
      place: where the run takes place, for the run's log; None for this machine.
      ended: the run's previous job, if it ended while no launcher waited for it.
      unattended: whether nobody waits for the job, so that it has to fail when it finds a user's mistake.
      versions: on a cluster, the versions of everything that shapes bytes, in the process that started the run.
      allow_version_skew: whether workers may have other versions; the manifest then names them.
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
        """The same runtime, with parts placed by a runner on a cluster."""
        found = versions_of_everything(name for stage in stages for name in stage.libraries)
        return dataclasses.replace(self, on_cluster=True, place=place, workers=1, versions=tuple(found.items()))

    def skew(self) -> dict[str, str]:
        """The versions of this process if they differ from the run's; empty if they do not.

        Raises UserError if they differ and `allow_version_skew` is not set.
        """
        return version_skew(dict(self.versions), self.allow_version_skew) if self.versions else {}


def _shards(run: StageRun) -> Iterable[int]:
    return range(run.num_shards)


def _unknown(_: StageRun) -> None:
    return None


def what_was_sent(_: StageRun) -> Iterable[int]:
    """`Step.keys` of a step that has a part for each key that rows were sent to, and no others."""
    return ()


def one_part(_: StageRun) -> Iterable[int]:
    """`Step.keys` of a step that always has exactly one part."""
    return (0,)


@dataclass(frozen=True)
class Step:
    """One round of a stage's work: parts, each made by one call of `work`.

    The first step's parts are `keys`. A later step's parts are `keys` and every key that the step before sent rows to
    (`ShardWriter.send`). The last step's parts are the shards of the output.

    Attributes:
      work: `work(run, key, slices, writer)` makes part `key` from the rows that were sent to it. Calling it again
        writes the same bytes.
      name: name of the step's folder; the last step is called `shards`.
      keys: parts that exist even if nothing is sent to them; all shards by default.
      rows: input rows of each part, for the progress and to start the largest parts first; by default the rows sent.
      outputs: schemas of the last step's named outputs (`train`, `val`), in place of the dataset's own schema.
      spread: what the processes of the local pool share: `shards`, or `batches` too, if there are few shards
        (`run.map_batches`). If empty, the run's own process makes one part after the other, and each part may use the
        pool.
      together: parts made at once in threads of the run's own process, for work that waits; a number, or a function of
        the run. If 1, `spread` applies.
    """

    work: Callable[[StageRun, int, Sequence[Slice], ShardWriter], None]
    name: str = SHARDS
    keys: Callable[[StageRun], Iterable[int]] = _shards
    rows: Callable[[StageRun], Mapping[int, int] | Sequence[int] | None] = _unknown
    outputs: Callable[[StageRun], Mapping[str, pa.Schema] | None] = _unknown
    spread: Literal["", "shards", "batches"] = ""
    together: int | Callable[[StageRun], int] = 1


class Stage:
    """A stage. Each is a subclass, whose docstring is the first paragraph of `owt NAME --help`.

    The attributes say what the stage reads, does and writes. The methods, in the order in which they are called, are
    for what the attributes cannot say; most stages override few of them. `owt_pipeline/stages/export/stage.py` is an
    example to copy. Instances have no state, so any process can create one from the class's name.

    Attributes:
      name: the stage's name, `owt NAME`.
      inputs: the datasets it reads; the first one gives the number of shards.
      optional_inputs: datasets it reads if they exist.
      bases: datasets and lists it reads from the runs that this one builds on.
      lists: files of the working directory that shape the output if they exist.
      output: the dataset it writes.
      options: its frozen dataclass of options.
      version: raised whenever the code would write other bytes from the same input.
      libraries: distributions whose version shapes the bytes, for the manifest.
      steps: its work.
      shard_local: whether shard k of the output is made from shard k of the inputs alone. If so, when an input changes,
        the shards whose part of it is unchanged are kept.
      positional: the option that takes the arguments without a flag, if any.
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
        """The options that shape the bytes, by name; defaults that depend on the working directory are filled in.

        The stage finds them in `run.plan.options`.
        """
        return shaping_options(options)

    def sources(self, options: Any) -> Sequence[dict[str, Any]]:
        """Files outside the working directory that the output depends on; raises UserError for an unreadable one."""
        return ()

    def noted(self, options: Any) -> Mapping[str, Any]:
        """Options that are not in the manifest, for the run's log: commands that make the output again use them."""
        return {}

    def again(self, options: Any, workdir: Storage, manifest: Manifest) -> bool:
        """Whether the options ask for parts of a finished output to be made again. If so, notes in `lists` which ones.

        Called by the launcher only.
        """
        return False

    def irreplaceable(self, options: Any) -> bool:
        """Whether a lost output cannot be made again, because it shows the web as it was.

        If so, a missing or damaged file is an error, unless the options ask for it to be fetched again.
        """
        return False

    def preload(self, options: Any) -> Sequence[str]:
        """What the process that workers are forked from loads once for all of them: modules to import, and
        `module:function`s to call, which cache what they load."""
        return ()

    def fits(self, options: Any, base: Base) -> None:
        """Raise UserError if this stage, with these options, cannot build on `base`."""

    def num_shards(self, options: Any) -> int | None:
        """Number of shards of the output; None for that of the first input."""
        return None

    def listed(self, workdir: Storage, inputs: Mapping[str, DatasetReader]) -> Callable[[int], Any]:
        """A function from a shard to what the `lists`, and those of the bases, say about it, as JSON."""
        return lambda shard: None

    def prepare(self, run: StageRun) -> None:
        """Called before the parts, if the stage has to run: raises UserError for impossible options, sets
        `run.properties`, writes assets."""

    def finish(self, run: StageRun, records: Sequence[ShardRecord]) -> None:
        """Called with the records of all shards before the manifest is written: sets `run.counts`, adds to
        `run.stats`, `run.properties` and the assets."""


@dataclass
class StageRun:
    """A stage at work: the first argument of its functions, in whichever process they run.

    Attributes:
      inputs: a reader for each dataset of `stage.inputs`, and for each of `stage.optional_inputs` that exists.
      plan: what is being made.
      work: the folder of the plan's work; removed when the output is published.
      properties: properties for the manifest, set by `prepare` or `finish`.
      assets: files of the complete dataset.
      started: when the stage began, in seconds since 1970.
      kept: number of shards that need not be made again.
      counts: set by `finish` if the stage's ledger is not the sum over its shards (dedupe's decisions).
      stats: counts of the stage apart from those of its shards.
      bases: the runs that this one builds on, the oldest first, if the stage reads any of their data.
      attempt: digest of what the attempt at planning found out; it names the attempt.
      replaces: version of the output's manifest that the attempt saw; None if there was none.
      contents: contents of the assets that `publish_stage` has yet to write, by path.
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
        """FINGERPRINT/ATTEMPT, from which `open_run` opens the same run in another process."""
        return f"{self.work.uri.rpartition('/')[2]}/{self.attempt}"

    def stop(self) -> None:
        """Let no further part begin, because one has found an error that stops the stage."""
        self.work.create(f"stopped-{self.attempt}", b"")

    def is_stopped(self) -> bool:
        return self.work.exists(f"stopped-{self.attempt}")

    def is_superseded(self) -> bool:
        """Whether the output has been published since it was planned, by this run or another."""
        return version_of_manifest(self.workdir, self.stage.output) != self.replaces

    def records(self, step: str) -> Storage:
        """The folder of a step's records."""
        return records_of(self.work, step)

    def read_records(self, step: str) -> list[ShardRecord]:
        """The records of all parts of a finished step, sorted by key."""
        records = self.records(step)
        return at_once(partial(read_record, records), records.names())

    def write_asset(self, name: str, content: bytes, *, named_by_content: bool = False) -> str:
        """Write a file of the complete dataset, such as a tokenizer's; returns its path in the working directory.

        It is placed next to the manifest, so that the dataset's own folder holds only rows; the report consists of
        assets alone. A file whose name does not depend on its content is written when the output is published, because
        another run may write the same name.
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
        """Write shard k of the output: `fn` of each batch of shard k of the first input.

        `fn` runs in worker processes, so it has to be a module's function or a `functools.partial` of one. `columns`
        are the columns it needs; None for all.
        """
        batches = self.inputs[self.stage.inputs[0]].batches(shard, rows=rows, columns=columns)
        for batch, outcome in map_batches(fn, batches, self.runtime.workers):
            writer.add(batch.num_rows, outcome)


def make_plan(stage: Stage, options: Any, inputs: Mapping[str, DatasetReader], workdir: Storage) -> Plan:
    """The plan of a stage, without its shards; raises UserError if a source cannot be read."""
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
    """The plan with its number of shards, and a digest of what each is made from."""
    num_shards = stage.num_shards(options)
    if num_shards is None:
        num_shards = inputs[stage.inputs[0]].num_shards
    return msgspec.structs.replace(plan, num_shards=num_shards, made_from=made_from(stage, inputs, workdir, num_shards))


def made_from(stage: Stage, inputs: Mapping[str, DatasetReader], workdir: Storage, num_shards: int) -> list[str]:
    """For each shard, a digest of everything it is made from but the options; empty unless the stage is
    `shard_local`."""
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
        named = listed(shard) or None  # an empty entry counts as none
        digests.append(hashlib.sha256(json.dumps([files, named], sort_keys=True).encode()).hexdigest())
    return digests


def rows_of_input(run: StageRun) -> list[int]:
    """`Step.rows` of a stage that reads its first input shard by shard."""
    return run.inputs[run.stage.inputs[0]].rows_of_shards()


def records_of(work: Storage, step: str) -> Storage:
    """The folder of a step's records, in the folder of a plan's work."""
    return work / SHARDS if step == SHARDS else work / step / "records"


def read_record(records: Storage, name: str) -> ShardRecord:
    """A part's record; raises FileNotFoundError if the part is not finished, UserError if the record is damaged."""
    try:
        return ShardRecord.from_json(records.read(name), records.path(name))
    except ManifestError as error:
        raise UserError(f"{error}: run the same command again") from error
