"""The pipeline: from Reddit submissions to token shards, as one Beam graph.

    import apache_beam as beam
    from owt_pipeline.pipeline import Run, build

    with beam.Pipeline() as pipeline:
        build(pipeline, Run.from_toml("config.toml"))

Each stage is a transform from the handle of one dataset to that of the next; the datasets themselves are files of the
run's working directory:

    collect     Reddit's dumps or API, lists of URLs -> urls/: canonical URLs with what Reddit said of them
    fetch       urls/ -> pages/: each URL's response, from the web or from archives, or why there is none
    extract     pages/ -> documents/: each page's main text and metadata
    import      your own text -> documents/, in place of the three stages above
    clean       documents/ -> clean/: documents repaired and judged fit
    dedupe      clean/ -> duplicates/: which document repeats which, how much, and by which rule
    export      clean/ without what duplicates/ removes -> corpus/
    tokenize    corpus/ -> tokens/: the documents' token ids in Arrow shards
    report      all datasets -> report/: the run's statistics as a page and as JSON

Finished stages and parts are skipped, on every runner. `owt run` does the same with progress.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any
from uuid import uuid4

import apache_beam as beam
from apache_beam.runners.portability.fn_api_runner import FnApiRunner

from owt_pipeline import config
from owt_pipeline.engine import graph
from owt_pipeline.engine.stage import Runtime, Stage
from owt_pipeline.stages import ORDER, load
from owt_pipeline.storage.folder import Storage


def build(pipeline: beam.Pipeline, run: Run) -> beam.PCollection[graph.Dataset]:
    """The graph of a run: one linear chain. Stages that the run leaves out add nothing to it.

    Nothing is written before the pipeline runs. Then the first transform takes the lease on the working directory, and
    the last one lets go of it, unless the caller holds it (`Runtime.owner`).
    """
    run = run.on(pipeline.runner)
    return graph.build(pipeline, run.stages, run.runtime, run.bases)


@dataclass(frozen=True)
class Run:
    """What runs, and how.

    Attributes:
      stages: (stage, its options), in order.
      runtime: where and how they run.
      bases: finished runs that it builds on.
    """

    stages: Sequence[tuple[Stage, Any]]
    runtime: Runtime
    bases: tuple[str, ...] = ()

    @classmethod
    def from_toml(cls, path: str, *, workdir: str = "", workers: int = 1, until: str = ORDER[-1]) -> Run:
        """The run of a settings file (`owt init` writes one), up to the stage `until`.

        `workdir` and `workers` override the file's. Raises UserError for settings that cannot be.
        """
        tables = config.read_config(path)
        options = {name: config.stage_options(load(name), path, tables, {}) for name in ORDER}
        chosen = [(load(name), options[name]) for name in ORDER[: ORDER.index(until) + 1]]
        where = config.workdir_of(tables, workdir)
        runtime = Runtime(Storage(where), tables.get("run", {}).get("workers", workers))
        return cls(chosen, runtime, tuple(config.bases_of(tables)))

    def on(self, runner: Any) -> Run:
        """The run on a runner: only the local one, which works in this process, has this machine's pool. Where nobody
        holds the lease, the graph does."""
        runtime = self.runtime
        if not runtime.owner:
            runtime = replace(runtime, owner=uuid4().hex, own_lease=True, unattended=True)
        if not isinstance(runner, FnApiRunner) and not runtime.on_cluster:
            place = {"host": type(runner).__name__}
            runtime = runtime.elsewhere([stage for stage, _ in self.stages], place)
        return replace(self, runtime=runtime)
