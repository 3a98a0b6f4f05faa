"""The pipeline: from Reddit submissions to token shards, as one Beam graph.

    import apache_beam as beam
    from owt_pipeline.pipeline import Run, build

    with beam.Pipeline() as pipeline:
        build(pipeline, Run.of("run"))

Each stage is a transform from the handle of one dataset to the handle of the next
(`engine/graph.py`). The datasets themselves are files in the run's folder:

    collect     Reddit's dumps or API, lists of URLs -> urls/: canonical URLs with Reddit's metadata
    fetch       urls/ -> pages/: each URL's response, from the web or archives, or why there is none
    extract     pages/ -> documents/: each page's main text and metadata
    import      your own text -> documents/, in place of the three stages above
    clean       documents/ -> clean/: documents that pass the filters, with repaired text
    dedupe      clean/ -> duplicates/: which document repeats which, how similar, and by which rule
    export      clean/ without the documents that duplicates/ removes -> corpus/
    tokenize    corpus/ -> tokens/: the documents' token ids in Arrow shards
    report      all datasets -> report/: the run's statistics as a web page and as JSON

Finished stages and parts are skipped, on every runner. `owt run` does the same with progress.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from owt_pipeline import config
from owt_pipeline.engine.runner import without_imported
from owt_pipeline.engine.stage import Runtime, Stage
from owt_pipeline.ledger.root import read_root
from owt_pipeline.stages.clean.stage import STAGE as CLEAN
from owt_pipeline.stages.collect.stage import STAGE as COLLECT
from owt_pipeline.stages.dedupe.stage import STAGE as DEDUPE
from owt_pipeline.stages.export.stage import STAGE as EXPORT
from owt_pipeline.stages.extract.stage import STAGE as EXTRACT
from owt_pipeline.stages.fetch.stage import STAGE as FETCH
from owt_pipeline.stages.report.stage import STAGE as REPORT
from owt_pipeline.stages.tokenize.stage import STAGE as TOKENIZE
from owt_pipeline.storage.folder import Storage

if TYPE_CHECKING:
    import apache_beam as beam

    from owt_pipeline.engine.graph import Handle

_CHAIN = (COLLECT, FETCH, EXTRACT, CLEAN, DEDUPE, EXPORT, TOKENIZE, REPORT)

STAGES: dict[str, Stage] = {stage.name: stage for stage in _CHAIN}
"""The stages of a run by name, in order. `owt import` has a stage of its own."""

LAST = REPORT.name


def build(pipeline: beam.Pipeline, run: Run) -> beam.PCollection[Handle]:
    """Add the run's stages to a pipeline, as one linear chain.

    Returns the handle of the last dataset.

    Nothing is written before the pipeline runs. Then the first transform takes the lock of the
    run's folder, and the last one sweeps the folder and releases it.
    """
    # This imports Beam, which a finished run does not need.
    from owt_pipeline.engine import graph

    run = run.on(pipeline.runner)
    # In a run of imported text, the chain begins after the stages that `owt import` replaces.
    root, _ = read_root(run.runtime.workdir)
    stages = without_imported(run.stages, run.runtime.workdir, root)
    return graph.build(pipeline, stages, run.runtime)


@dataclass(frozen=True)
class Run:
    """What `build` adds to a pipeline: the stages of a run with their options.

    Attributes:
      stages: (stage, options) pairs, in order.
      runtime: the run's folder, and how the stages run.
    """

    stages: Sequence[tuple[Stage, Any]]
    runtime: Runtime

    @classmethod
    def of(
        cls,
        run: str,
        settings: str | None = None,
        *,
        workers: int | None = None,
        until: str = LAST,
    ) -> Run:
        """Return the run in the folder `run`, up to and including the stage `until`.

        Args:
          run: the folder, a local path or a URI.
          settings: path of the settings file; by default the folder's own `settings.toml`, which
            `owt init` writes.
          workers: number of processes; by default the number in the settings, or 1.
          until: name of the last stage.

        Raises UserError for invalid settings.
        """
        settings = settings or Storage(run).path(config.SETTINGS)
        tables = config.read_config(settings)
        # Options of all stages are read, so that a mistake is reported before the first stage runs.
        options = config.options_of(_CHAIN, settings, tables, {})
        stages = list(zip(_CHAIN, options, strict=True))
        num_chosen = list(STAGES).index(until) + 1
        runtime = Runtime(Storage(run), config.workers_of(tables, workers, 1))
        return cls(stages[:num_chosen], runtime)

    def on(self, runner: Any) -> Run:
        """Return this run for a runner of Beam.

        Only the local runner uses this process's pool of workers.
        """
        from apache_beam.runners.portability.fn_api_runner import FnApiRunner

        names = tuple(stage.name for stage, _ in self.stages)
        runtime = replace(self.runtime, run=uuid4().hex, stages=names)
        if not isinstance(runner, FnApiRunner) and not runtime.on_cluster:
            runtime = runtime.for_cluster(
                [stage for stage, _ in self.stages], type(runner).__name__
            )
        return replace(self, runtime=runtime)
