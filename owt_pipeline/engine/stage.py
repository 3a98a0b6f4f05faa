"""Describe stages: their declarations (`Stage`, `Step`), and the argument of their functions
(`StageRun`).

A stage reads datasets of a run and writes one. Shard k of its output is a pure function of the
contents of its key. The modules of this room find the shards to make (`plan.py`), make them
(`parts.py`) and publish them (`publish.py`). `graph.py` turns stages into Beam's transforms.
Nothing here imports Beam.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

import msgspec
import pyarrow as pa

from owt_pipeline.ledger.commit import RecordPath, ShardWriter
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

FINAL_DATASETS = ("corpus", "tokens", "report")
"""Datasets whose lost files are always rebuilt. `plan.py` decides on files of other datasets."""

KINDS_NEVER_DELETED = ("rejects", "places", "kept", "figures")
"""Kinds of files that are always rebuilt if they are lost. Without rejects and places, a run loses
URLs."""


class Stage:
    """A stage. Each is a subclass, and its docstring is the stage's help.

    The attributes declare what the stage reads, does and writes. The methods are in the order in
    which they are called; most stages override few of them. `owt_pipeline/stages/export/stage.py`
    is an example to copy. Instances have no state, so any process can create one from its name.

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
      patched_part: a part of keys. If only this part differs, a shard can be made from the
        published shard, without the inputs (export, for takedowns).
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
    patched_part: str = ""
    steps: tuple[Step, ...]
    example: str = ""

    @property
    def flags(self) -> Mapping[str, str]:
        """Return the flag that names sources of each kind; empty for a stage without sources."""
        return {}

    @property
    def help(self) -> str:
        """Return the class's docstring, for `--help`."""
        return inspect.getdoc(type(self)) or ""

    def key_options(self, options: Any) -> dict[str, Any]:
        """Return the options that shape the bytes, by name."""
        return shaping_options(options)

    def options_of_generation(self, options: Any, root: Root, number: int) -> Any:
        """Return the options for a generation, whose defaults may depend on it; raise UserError."""
        return options

    def sources(self, options: Any, recorded: Recorded = ()) -> Sequence[dict[str, Any]]:
        """Return the files that a stage with `flags` reads.

        Each has a `kind`, a `name`, what identifies its content, and a `uri`, which is not part of
        keys. Files that the root has `recorded` may be missing. Raises UserError for a file that
        cannot be read.
        """
        return ()

    def shards_for(self, options: Any, sources: Sequence[Mapping[str, Any]]) -> int:
        """Return the number of shards of a generation, for a stage without inputs."""
        return int(getattr(options, "num_shards", None) or 1)

    def update_root(self, options: Any, root: Root, runtime: Runtime) -> Root:
        """Return the root with what the options request once, such as `--retry_failed`."""
        return root

    def external_inputs(self, options: Any, recorded: Recorded = ()) -> Sequence[dict[str, Any]]:
        """Return the digests of all other inputs from outside: models, tokenizers, the user's
        code, evaluation sets.

        Files whose digests the published output has `recorded` may be missing. The options are
        checked, too, so that a mistake is found before the earlier stages run. Raises UserError.
        """
        return ()

    def shard_history(
        self, options: Any, root: Root, inputs: Mapping[str, DatasetReader], shard: int
    ) -> Mapping[str, Any]:
        """Return what else changes a shard, such as retries or takedowns, as JSON.

        Each value is a part of the shard's key under its name, unless it is empty.
        """
        return {}

    def preload(self, options: Any) -> Sequence[str]:
        """Return the modules and functions that the fork server loads once for all workers.

        Each is a module to import, or a `module:function` to call, which fills a cache.
        """
        return ()

    def set_up(self, run: StageRun) -> Summary:
        """Return the properties and assets that are known before the parts are made.

        The parts read the properties as `run.properties`. The names of the assets depend on their
        content (`content_name`), since a late attempt writes them, too. Raises UserError for
        impossible options.
        """
        return Summary()

    def finish(self, run: StageRun, records: Sequence[ShardRecord]) -> Summary:
        """Return the additions to the manifest that depend on the records of all shards.

        It is called before the shards are published. The same records have the same summary.
        """
        return Summary()


@dataclass(frozen=True)
class Summary:
    """Additions of a stage to the manifest of its output, apart from its shards.

    Attributes:
      counts: the stage's ledger, if it is not the sum over its shards (dedupe's decisions).
      stats: counts of the stage, added to the counts of its shards.
      properties: properties for the manifest. None from `finish` keeps those of `set_up`.
      contents: contents of files of the complete dataset, by path (`StageRun.asset_path`).
    """

    counts: Counts | None = None
    stats: Mapping[str, int] = field(default_factory=dict)
    properties: Mapping[str, Any] | None = None
    contents: Mapping[str, bytes] = field(default_factory=dict)

    @property
    def assets(self) -> list[ShardFile]:
        """Return the files of `contents`."""
        assets = []
        for path, content in self.contents.items():
            sha256 = hashlib.sha256(content).hexdigest()
            assets.append(ShardFile(path, "asset", -1, 0, len(content), sha256))
        return assets


def content_name(name: str, content: bytes) -> str:
    """Return a file's name with eight digits of the digest of its content before its suffix."""
    stem, dot, suffix = name.rpartition(".")
    digest = hashlib.sha256(content).hexdigest()[:8]
    return f"{stem}-{digest}{dot}{suffix}"


def _pending_shards(run: StageRun) -> Iterable[int]:
    return sorted(run.plan.pending)


def _unknown(_: StageRun) -> None:
    return None


def sent_keys(_: StageRun) -> Iterable[int]:
    """Return no keys: `Step.keys` of a step whose parts are only the keys that rows are sent to."""
    return ()


def one_part(_: StageRun) -> Iterable[int]:
    """Return one key: `Step.keys` of a step that always has exactly one part."""
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
      unit: what `rows` and `progress.advance` count: rows or bytes.
      outputs: schemas of the last step's named outputs (`train`, `val`), in place of the dataset's
        own schema.
      max_concurrent: number of parts that this process makes at once in threads, for work that
        waits or uses the pool itself; or a function of the run that returns it. If 0, each part is
        made by one process of the pool.
    """

    work: Callable[[StageRun, int, Sequence[Slice], ShardWriter], None]
    name: str = SHARDS
    keys: Callable[[StageRun], Iterable[int]] = _pending_shards
    rows: Callable[[StageRun], Mapping[int, int] | Sequence[int] | None] = _unknown
    unit: str = "rows"
    outputs: Callable[[StageRun], Mapping[str, pa.Schema] | None] = _unknown
    max_concurrent: int | Callable[[StageRun], int] = 0


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """The content of `ledger/STAGE/work/WORK/plan-DIGEST.json`: the shards that a stage makes.

    Every process that makes its parts or publishes its output opens the same `StageRun` from it.

    Attributes:
      root: the run's generations, rounds and takedowns when the stage was planned. Its datasets are
        the inputs of the stage, and the output if it was published with a readable list.
      keys: the key of each shard of the output.
      parts: the digests of the parts of each pending shard's key, by the name of the part.
      pending: the shards to make.
      patched: the pending shards that are made from the published shards, not from the inputs.
      lost: the pending shards that were made before and whose files are missing.
      num_settled: number of shards of the first generations, which are published with these keys.
      started: when the stage began, in seconds since 1970.
      properties: properties for the manifest, from `Stage.set_up`.
      assets: files of the complete dataset, from `Stage.set_up`.
    """

    root: Root
    keys: list[str]
    parts: dict[int, dict[str, str]]
    pending: frozenset[int]
    patched: frozenset[int]
    lost: frozenset[int]
    num_settled: int
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
      plan: the shards that it makes.
      name: name of the plan: the folder of its work, a slash, and the digest of its file. With it,
        `open_run` opens the same run in another process.
    """

    stage: Stage
    options: Any
    runtime: Runtime
    plan: Plan
    name: str

    @functools.cached_property
    def inputs(self) -> dict[str, DatasetReader]:
        """Return a reader of each input, and of each optional input that exists, by dataset."""
        datasets = self.root.datasets
        names = (*self.stage.inputs, *self.stage.optional_inputs)
        return {
            name: DatasetReader(self.workdir, datasets[name]) for name in names if name in datasets
        }

    @property
    def root(self) -> Root:
        """Return the root of the plan."""
        return self.plan.root

    @property
    def published(self) -> Manifest | None:
        """Return the output's manifest when the stage was planned; None if there was none."""
        return self.root.datasets.get(self.stage.output)

    @property
    def work(self) -> Storage:
        """Return the folder of what intermediate steps write."""
        return work_of(self.workdir, self.stage) / self.name.partition("/")[0]

    @property
    def properties(self) -> Mapping[str, Any]:
        """Return the properties for the manifest, from `Stage.set_up`."""
        return self.plan.properties

    @property
    def workdir(self) -> Storage:
        return self.runtime.workdir

    @property
    def num_shards(self) -> int:
        """Return the number of shards of the output."""
        return len(self.plan.keys)

    def generation_of(self, shard: int) -> Generation:
        """Return the generation of a shard."""
        return self.root.generations[self.root.generation_number_of(shard)]

    def record_path(self, step: str, key: int) -> RecordPath:
        """Return the path of the record of a shard, or of a part of an intermediate step."""
        if step != SHARDS:
            return RecordPath(self.work / step / "records", key)
        versions = versions_of(self.stage.libraries)
        return RecordPath(
            records_of(self.workdir, self.stage),
            key,
            self.plan.keys[key],
            self.plan.parts.get(key, {}),
            versions,
        )

    def records_of_step(self, step: str) -> list[ShardRecord]:
        """Return the records of all parts of a finished intermediate step, sorted by key."""
        folder = self.work / step / "records"
        records = [ShardRecord.from_json(folder.read(name), name) for name in folder.names()]
        return sorted(records, key=lambda record: record.shard)

    def asset_path(self, name: str) -> str:
        """Return the path of a file of the complete dataset, such as a tokenizer's.

        It is in the ledger, so that the dataset's own folder holds only rows. The report's page is
        in report/.
        """
        output = self.stage.output
        folder = ledger_of(output) if output in DATASETS else output
        return f"{folder}/{name}"

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
      host: a runner's name, for the run's log; empty if the run takes place on this machine.
      versions: on a cluster, the versions of everything that shapes bytes, in the process that
        started the run.
      add: whether new sources become a generation. If not, they are an error.
      stages: names of the stages of the run, whose out-of-date files its end removes.
    """

    workdir: Storage
    workers: int = 1
    beam_flags: tuple[str, ...] = ()
    run: str = ""
    on_cluster: bool = False
    host: str = ""
    versions: tuple[tuple[str, str], ...] = ()
    add: bool = False
    stages: tuple[str, ...] = ()

    @property
    def lock(self) -> bool:
        """Return whether the lock of the run's folder is an object.

        An object expires, so the parts renew it.
        """
        return self.on_cluster or not self.workdir.is_local

    def for_cluster(self, stages: Iterable[Stage], runner: str) -> Runtime:
        """Return the same runtime, with parts placed by a runner on a cluster."""
        libraries = [name for stage in stages for name in stage.libraries]
        versions = tuple(versions_of_everything(libraries).items())
        return dataclasses.replace(self, on_cluster=True, host=runner, workers=1, versions=versions)

    def check_versions(self) -> None:
        """Raise UserError if this process has other versions than the one that started the run."""
        check_versions(dict(self.versions))


def recorded_sources(stage: Stage, manifest: Manifest | None) -> Recorded:
    """Return the sources of the stage's published output; none if another stage has made it."""
    if manifest is None or manifest.stage != stage.name:
        return ()
    return manifest.sources


def records_of(workdir: Storage, stage: Stage) -> Storage:
    """Return the folder of the records of a stage's shards."""
    return workdir / ledger_of(stage.name) / "records"


def work_of(workdir: Storage, stage: Stage) -> Storage:
    """Return the folder of a stage's intermediate steps, in which each work has its folder."""
    return workdir / ledger_of(stage.name) / "work"


def rows_of_input(run: StageRun) -> list[int]:
    """Return the rows of each shard of the first input, as `Step.rows`."""
    return run.inputs[run.stage.inputs[0]].rows_of_shards()
