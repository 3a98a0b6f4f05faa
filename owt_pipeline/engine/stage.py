"""Stages: what a stage declares (`Stage`, `Step`) and what its functions are given (`StageRun`).
No Beam: `graph.py` turns stages into transforms.

A stage reads datasets of a run and writes one. Shard k of its output is a pure function of what its
key names; the modules of this room find the shards to make (`plan.py`), make them (`parts.py`), and
publish them (`publish.py`).
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Literal, TypeAlias

import msgspec
import pyarrow as pa

from owt_pipeline.ledger.commit import Place, ShardWriter
from owt_pipeline.ledger.dataset import DatasetReader, Outcome
from owt_pipeline.ledger.exchange import Slice
from owt_pipeline.ledger.versions import check_versions, versions_of, versions_of_everything
from owt_pipeline.storage.folder import Storage
from schemas import DATASETS
from schemas.manifest import Counts, Generation, Manifest, Root, ShardFile, ShardRecord, ledger_of
from schemas.settings import shaping_options

SHARDS = "shards"
"""Name of the last step of every stage."""

Recorded: TypeAlias = Sequence[Mapping[str, Any]]
"""Sources as a manifest, or a generation, has recorded them."""

FINAL = ("corpus", "tokens", "report")
"""Datasets whose files are made again whenever they are gone; others only if something reads
them."""


KEPT_FOR_GOOD = ("rejects", "places", "kept", "figures")
"""Kinds of files that are made again whenever they are gone, whatever reads them."""


class Stage:
    """A stage. Each is a subclass, whose docstring says what it does.

    The attributes say what the stage reads, does and writes. The methods, in the order in which
    they are called, are for what the attributes cannot say; most stages override few of them.
    `owt_pipeline/stages/export/stage.py` is an example to copy. Instances have no state, so any
    process can create one from the class's name.

    Attributes:
      name: the stage's name.
      inputs: the datasets it reads; none for a stage that reads sources, which the generations of
        the run list.
      optional_inputs: datasets it reads if they exist.
      reads: what shard k is made from: shard k of the inputs (`shard`), all shards of its own and
        earlier generations (`earlier`), or everything (`all`), in which case the output has one
        shard.
      kinds: the kinds of its inputs' files that it reads.
      output: the dataset it writes.
      options: its frozen dataclass of options.
      version: raised whenever the code would write other bytes from the same input.
      libraries: distributions whose version shapes the bytes, for the records.
      can_patch: whether a shard can be made from the published one alone, without the inputs,
        if they differ by `of_shard` only (export, for takedowns).
      flags: the flag that names sources of each kind, for a stage without inputs.
      steps: its work.
      example: a command line for `--help`.
    """

    name: str
    inputs: tuple[str, ...] = ()
    optional_inputs: tuple[str, ...] = ()
    reads: Literal["shard", "earlier", "all"] = "shard"
    kinds: tuple[str, ...] = ("data",)
    output: str
    options: type
    version: int
    libraries: tuple[str, ...] = ()
    can_patch: bool = False
    flags: Mapping[str, str] = MappingProxyType({})
    steps: tuple[Step, ...]
    example: str = ""

    @property
    def help(self) -> str:
        return inspect.getdoc(type(self)) or ""

    def shaping(self, options: Any) -> dict[str, Any]:
        """The options that shape the bytes, by name."""
        return shaping_options(options)

    def sources(self, options: Any, recorded: Recorded = ()) -> Sequence[dict[str, Any]]:
        """The files that a stage without inputs reads: `kind`, `name`, what identifies the
        content, and `uri`, which shapes no bytes. Those `recorded` in the root may be gone.
        Raises UserError for an unreadable one."""
        return ()

    def shards_for(self, options: Any, sources: Sequence[Mapping[str, Any]]) -> int:
        """Number of shards of a generation of these sources, for a stage without inputs."""
        return int(getattr(options, "num_shards", None) or 1)

    def begin(self, options: Any, root: Root, runtime: Runtime) -> Root:
        """The root with what the options ask for once, when a run begins: `--retry_failed`."""
        return root

    def outside(self, options: Any, recorded: Recorded = ()) -> Sequence[dict[str, Any]]:
        """Digests of what else comes from outside: models, tokenizers, the user's code,
        evaluation sets. Files of which the published output has `recorded` the digest may be
        gone.

        Also checks the options, so that a mistake is found before the stages that come first:
        raises UserError.
        """
        return ()

    def of_shard(
        self, options: Any, root: Root, inputs: Mapping[str, DatasetReader], shard: int
    ) -> Any:
        """What the run's history says about a shard, as JSON; None for nothing: retries,
        takedowns."""
        return None

    def preload(self, options: Any) -> Sequence[str]:
        """What the process that workers are forked from loads once for all of them: modules to
        import, and `module:function`s to call, which cache what they load."""
        return ()

    def set_up(self, run: StageRun) -> Summary:
        """Return what is known before the parts are made, which read it in `run.properties`.

        The names of its assets depend on their content (`content_name`), since a late attempt
        writes them too. Raises UserError for impossible options.
        """
        return Summary()

    def finish(self, run: StageRun, records: Sequence[ShardRecord]) -> Summary:
        """Return what the records of all shards add, before they are published.

        The same records lead to the same summary.
        """
        return Summary()


@dataclass(frozen=True)
class Summary:
    """What a stage adds to the manifest of its output, apart from its shards.

    Attributes:
      counts: the stage's ledger, if it is not the sum over its shards (dedupe's decisions).
      stats: counts of the stage, added to those of its shards.
      properties: properties for the manifest. None from `finish` keeps those of `set_up`.
      contents: contents of files of the complete dataset, by path (`StageRun.asset_path`).
    """

    counts: Counts | None = None
    stats: Mapping[str, int] = field(default_factory=dict)
    properties: Mapping[str, Any] | None = None
    contents: Mapping[str, bytes] = field(default_factory=dict)

    @property
    def assets(self) -> list[ShardFile]:
        """The files of `contents`."""
        return [
            ShardFile(path, "asset", -1, 0, len(content), hashlib.sha256(content).hexdigest())
            for path, content in self.contents.items()
        ]


def content_name(name: str, content: bytes) -> str:
    """Return the name of a file with eight digits of the digest of its content before its
    suffix."""
    stem, dot, suffix = name.rpartition(".")
    return f"{stem}-{hashlib.sha256(content).hexdigest()[:8]}{dot}{suffix}"


def _shards(run: StageRun) -> Iterable[int]:
    return sorted(run.plan.make)


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

    The first step's parts are `keys`. A later step's parts are `keys` and every key that the step
    before sent rows to (`ShardWriter.send`). The last step's parts are the shards of the output.

    Attributes:
      work: `work(run, key, slices, writer)` makes part `key` from the rows that were sent to it.
        Calling it again writes the same bytes.
      name: name of the step's folder; the last step is called `shards`.
      keys: parts that exist even if nothing is sent to them; by default the shards to be made.
      rows: input rows of each part, for the progress and to start the largest parts first; by
        default the rows sent.
      outputs: schemas of the last step's named outputs (`train`, `val`), in place of the dataset's
        own schema.
      together: parts that this process makes at once in threads, for work that waits or uses the
        pool itself; a number, or a function of the run. If 0, each part is made by one process of
        the pool.
    """

    work: Callable[[StageRun, int, Sequence[Slice], ShardWriter], None]
    name: str = SHARDS
    keys: Callable[[StageRun], Iterable[int]] = _shards
    rows: Callable[[StageRun], Mapping[int, int] | Sequence[int] | None] = _unknown
    outputs: Callable[[StageRun], Mapping[str, pa.Schema] | None] = _unknown
    together: int | Callable[[StageRun], int] = 0


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """What a stage at work makes: the content of `ledger/STAGE/work/WORK/plan-DIGEST.json`, from
    which every process that makes its parts or publishes it opens the same `StageRun`.

    Attributes:
      root: the run's generations, rounds and takedowns when it was planned; of its datasets,
        those that the stage reads, and its output if it was published with a readable list.
      keys: the key of each shard of the output.
      made_from: the same without what changes from outside (`ShardRecord.made_from`).
      make: the shards to be made.
      gone: those of them that were made, and whose files are gone.
      settled: number of shards of the first generations, which are published with these keys.
      started: when the stage began, in seconds since 1970.
      properties: properties for the manifest, from `Stage.set_up`.
      assets: files of the complete dataset, from `Stage.set_up`.
    """

    root: Root
    keys: list[str]
    made_from: list[str]
    make: frozenset[int]
    gone: frozenset[int]
    settled: int
    started: float
    properties: dict[str, Any] = {}
    assets: list[ShardFile] = []


@dataclass(frozen=True)
class StageRun:
    """A stage at work: the first argument of its functions, in whichever process they run.

    Attributes:
      stage: the stage.
      options: its options.
      runtime: how and where it runs.
      plan: what it makes.
      name: name of the plan: the folder of its work, a slash, and the digest of its file. From it,
        `open_run` opens the same run in another process.
    """

    stage: Stage
    options: Any
    runtime: Runtime
    plan: Plan
    name: str

    @functools.cached_property
    def inputs(self) -> dict[str, DatasetReader]:
        """A reader for each dataset of `stage.inputs`, and for each of `stage.optional_inputs`
        that exists."""
        datasets = self.root.datasets
        names = (*self.stage.inputs, *self.stage.optional_inputs)
        return {
            name: DatasetReader(self.workdir, datasets[name]) for name in names if name in datasets
        }

    @property
    def root(self) -> Root:
        return self.plan.root

    @property
    def before(self) -> Manifest | None:
        """The output's manifest when it was planned; None if there was none."""
        return self.root.datasets.get(self.stage.output)

    @property
    def work(self) -> Storage:
        """The folder of what intermediate steps write."""
        return work_of(self.workdir, self.stage) / self.name.partition("/")[0]

    @property
    def properties(self) -> Mapping[str, Any]:
        """Properties for the manifest, from `Stage.set_up`."""
        return self.plan.properties

    @property
    def workdir(self) -> Storage:
        return self.runtime.workdir

    @property
    def num_shards(self) -> int:
        """Shards of the output."""
        return len(self.plan.keys)

    def generation_of(self, shard: int) -> Generation:
        """The generation of a shard."""
        return self.root.generations[self.root.generation_of(shard)]

    def place(self, step: str, key: int) -> Place:
        """The place of the record of a shard, or of a part of an intermediate step."""
        if step != SHARDS:
            return Place(self.work / step / "records", key)
        versions = versions_of(self.stage.libraries)
        return Place(
            records_of(self.workdir, self.stage),
            key,
            self.plan.keys[key],
            self.plan.made_from[key],
            versions,
        )

    def records_of_step(self, step: str) -> list[ShardRecord]:
        """The records of all parts of an intermediate step that is finished, sorted by key."""
        records = self.work / step / "records"
        found = (ShardRecord.from_json(records.read(name), name) for name in records.names())
        return sorted(found, key=lambda record: record.shard)

    def asset_path(self, name: str) -> str:
        """Return the path of a file of the complete dataset, such as a tokenizer's.

        It is in the ledger, so that the dataset's own folder holds only rows. The report's page is
        in report/.
        """
        output = self.stage.output
        return f"{ledger_of(output) if output in DATASETS else output}/{name}"

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

        `columns` are the columns that `fn` needs; None for all.
        """
        for batch in self.inputs[self.stage.inputs[0]].batches(shard, rows=rows, columns=columns):
            writer.add(batch.num_rows, fn(batch))


@dataclass(frozen=True)
class Runtime:
    """How and where a stage runs. Nothing here changes a byte of the output.

    Attributes:
      workers: processes of the local pool; on a cluster, each process makes one part at a time.
      beam_flags: Beam's flags; none for the local runner.
      run: id of the process or job that works on the run's folder.
      on_cluster: whether the runner places the parts, rather than the pool of this process.
      host: where the run takes place, for the run's log: a runner's name; empty for this machine.
      versions: on a cluster, the versions of everything that shapes bytes, in the process that
        started the run.
      add: whether new sources become a generation, rather than an error.
      is_complete: whether the run has all stages, so that its end removes what interrupted runs by
        other options have finished.
    """

    workdir: Storage
    workers: int = 1
    beam_flags: tuple[str, ...] = ()
    run: str = ""
    on_cluster: bool = False
    host: str = ""
    versions: tuple[tuple[str, str], ...] = ()
    add: bool = False
    is_complete: bool = False

    @property
    def lock(self) -> bool:
        """Whether the parts renew the lock of the run's folder, because it is an object that
        expires."""
        return self.on_cluster or not self.workdir.is_local

    def for_cluster(self, stages: Iterable[Stage], runner: str) -> Runtime:
        """The same runtime, with parts placed by a runner on a cluster."""
        found = versions_of_everything(name for stage in stages for name in stage.libraries)
        return dataclasses.replace(
            self, on_cluster=True, host=runner, workers=1, versions=tuple(found.items())
        )

    def check_versions(self) -> None:
        """Raise UserError if this process has other versions than the one that started the run."""
        check_versions(dict(self.versions))


def recorded_of(stage: Stage, manifest: Manifest | None) -> Recorded:
    """The sources of the stage's published output."""
    return manifest.sources if manifest is not None and manifest.stage == stage.name else ()


def records_of(workdir: Storage, stage: Stage) -> Storage:
    """The folder of the records of a stage's shards."""
    return workdir / ledger_of(stage.name) / "records"


def work_of(workdir: Storage, stage: Stage) -> Storage:
    """The folder of what the stage's intermediate steps write, with one folder per plan's work."""
    return workdir / ledger_of(stage.name) / "work"


def rows_of_input(run: StageRun) -> list[int]:
    """`Step.rows` of a stage that reads its first input shard by shard."""
    return run.inputs[run.stage.inputs[0]].rows_of_shards()
