"""export: write the corpus, the clean documents without duplicates and takedowns."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from owt_pipeline.engine.stage import Recorded, Stage, StageRun, Step, Summary, rows_of_input
from owt_pipeline.errors import UsageError
from owt_pipeline.ledger.dataset import DatasetReader
from owt_pipeline.stages.export.corpus import APPLIED_TAKEDOWNS, export_shard
from owt_pipeline.stages.export.options import Options
from schemas.manifest import Root

_SPDX = re.compile(r"[A-Za-z0-9][A-Za-z0-9.+-]*")


class Export(Stage):
    """Write the corpus: the documents of clean/ without the duplicates, and without documents that
    `owt forget` has removed. A change of these options reruns export and the stages after it, but
    not dedupe.
    """

    name = "export"
    inputs = ("clean", "duplicates")
    kinds = ("data", "kept")
    output = "corpus"
    options = Options
    version = 8
    patched_part = "takedowns"
    steps = (Step(export_shard, rows=rows_of_input),)
    example = "owt run runs/2013 --until export --rules exact --min_similarity 0.9"

    def external_inputs(self, options: Options, recorded: Recorded = ()) -> list[dict[str, Any]]:
        """Raise UsageError for a licence that is not an SPDX identifier."""
        for name in options.licenses:
            if not _SPDX.fullmatch(name):
                raise UsageError(
                    f"licenses: {name!r} is not an SPDX identifier, such as CC-BY-4.0 or CC0-1.0"
                )
        return []

    def shard_history(
        self, options: Any, root: Root, inputs: Mapping[str, DatasetReader], shard: int
    ) -> dict[str, Any]:
        """Return the names of the files of takedowns."""
        return {"takedowns": root.takedowns}

    def set_up(self, run: StageRun) -> Summary:
        """Return the takedowns that the corpus is built with, which `owt publish` compares."""
        return Summary(properties={APPLIED_TAKEDOWNS: run.root.takedowns})


STAGE = Export()
