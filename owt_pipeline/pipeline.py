"""The pipeline: from Reddit submissions to token shards, as one Beam graph.

    import apache_beam as beam
    from owt_pipeline.pipeline import Run, build

    with beam.Pipeline() as pipeline:
        build(pipeline, Run.from_toml("config.toml"))

Each stage is a transform from the handle of one dataset to that of the next; the datasets themselves are files of the
run's working directory. Finished stages and parts are skipped, on every runner. `owt run` does the same with progress,
a lease on the working directory, and the processes of this machine.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import apache_beam as beam
from apache_beam.runners.portability.fn_api_runner import FnApiRunner

from owt_pipeline import config
from owt_pipeline.engine.bases import pin
from owt_pipeline.engine.graph import Dataset, End, RunStage, Start
from owt_pipeline.engine.stage import Runtime, Stage
from owt_pipeline.engine.storage import Storage
from owt_pipeline.stages import ORDER, load


class Collect(RunStage):
    """Reddit dumps, Reddit's API, URL lists -> `urls/`: a canonical URL with what Reddit said of it."""


class Fetch(RunStage):
    """`urls/` -> `pages/`: each URL's response from the web or from archives, or why there is none."""


class Extract(RunStage):
    """`pages/` -> `documents/`: each page's main text and metadata."""


class Import(RunStage):
    """Text of one's own -> `documents/`, in place of the three stages above."""


class Clean(RunStage):
    """`documents/` -> `clean/`: documents repaired and judged fit."""


class Dedupe(RunStage):
    """`clean/` -> `duplicates/`: which document repeats which, how much, by which rule."""


class Export(RunStage):
    """`clean/` without what `duplicates/` removes -> `corpus/`: our OpenWebText."""


class Tokenize(RunStage):
    """`corpus/` -> `tokens/`: documents' token ids in Arrow shards."""


class Report(RunStage):
    """Every dataset -> `report/`: the run's statistics as a page and as JSON."""


def build(pipeline: beam.Pipeline, run: Run) -> beam.PCollection[Dataset]:
    """The graph of a run: one linear chain. Stages that the run leaves out add nothing to it."""
    if run.bases:
        pin(run.runtime.workdir, run.bases, list(run.stages.values()))
    run = run.on(pipeline.runner)
    return (
        pipeline
        | Start(run.runtime.workdir)
        | Collect(run["collect"])
        | Fetch(run["fetch"])
        | Extract(run["extract"])
        | Import(run["import"])
        | Clean(run["clean"])
        | Dedupe(run["dedupe"])
        | Export(run["export"])
        | Tokenize(run["tokenize"])
        | Report(run["report"])
        | End(run.runtime)
    )


@dataclass(frozen=True)
class Run:
    """What runs, and how.

    Attributes:
      stages: (stage, options) by the stage's name; a stage that is not there is left out of the graph.
      runtime: where and how they run.
      bases: finished runs that it builds on.
    """

    stages: Mapping[str, tuple[Stage, Any]]
    runtime: Runtime
    bases: tuple[str, ...] = ()

    @classmethod
    def from_toml(cls, path: str, *, workdir: str = "", workers: int = 1, until: str = ORDER[-1]) -> Run:
        """The run of a settings file (`owt init` writes one), up to the stage `until`.

        `workdir` and `workers` override the file's. Raises UserError for settings that cannot be.
        """
        tables = config.read_config(path)
        options = {name: config.stage_options(load(name), path, tables, {}) for name in ORDER}
        chosen = {name: (load(name), options[name]) for name in ORDER[: ORDER.index(until) + 1]}
        where = config.workdir_of(tables, workdir)
        runtime = Runtime(Storage(where), tables.get("run", {}).get("workers", workers))
        return cls(chosen, runtime, tuple(config.bases_of(tables)))

    def __getitem__(self, name: str) -> tuple[Stage, Any, Runtime] | None:
        """A stage with its options and runtime, as its transform takes it; None where the run leaves it out."""
        return (*self.stages[name], self.runtime) if name in self.stages else None

    def on(self, runner: Any) -> Run:
        """The run on a runner: only the local one, which works in this process, has this machine's pool."""
        if isinstance(runner, FnApiRunner):
            return self
        return replace(self, runtime=self.runtime.elsewhere([stage for stage, _ in self.stages.values()]))
