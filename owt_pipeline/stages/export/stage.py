"""export: write the corpus, the clean documents without duplicates and takedowns."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from owt_pipeline.engine.generations import key_sources
from owt_pipeline.engine.stage import Recorded, Stage, StageRun, Step, Summary, rows_of_input
from owt_pipeline.errors import UsageError
from owt_pipeline.ledger.dataset import DatasetReader
from owt_pipeline.ledger.root import read_root
from owt_pipeline.stages.export.card import card
from owt_pipeline.stages.export.corpus import APPLIED_TAKEDOWNS, export_shard
from owt_pipeline.stages.export.options import Options
from schemas import DATASETS
from schemas.manifest import Counts, Manifest, Root, ShardRecord
from schemas.settings import shaping_options

_SPDX = re.compile(r"[A-Za-z0-9][A-Za-z0-9.+-]*")


def _manifests_before(root: Root) -> dict[str, Manifest]:
    """Return the manifests of the datasets before the corpus, which the card describes.

    An earlier run may have left a corpus and tokens in the root.
    """
    manifests = {}
    for name in DATASETS:
        if name in root.datasets and name not in ("corpus", "tokens"):
            manifests[name] = root.datasets[name]
    return manifests


class Export(Stage):
    """Write the corpus: the documents of clean/ without the duplicates, and without documents that
    `owt forget` has removed. A change of these options reruns export and the stages after it, but
    not dedupe. The dataset card is ledger/corpus/README.md.
    """

    name = "export"
    inputs = ("clean", "duplicates")
    kinds = ("data", "kept")
    output = "corpus"
    options = Options
    version = 8
    libraries = ("jinja2",)
    can_patch = True
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
    ) -> Any:
        """Return the names of the files of takedowns; None if there are none."""
        return root.takedowns or None

    def described(self, root: Root) -> Any:
        """Return what the dataset card tells about the datasets before the corpus."""
        described = []
        for name, manifest in _manifests_before(root).items():
            counts = msgspec.to_builtins(manifest.counts)
            described.append([name, manifest.options, counts, key_sources(manifest.sources)])
        return described

    def set_up(self, run: StageRun) -> Summary:
        """Return the takedowns that the corpus is built with, which `owt publish` compares."""
        return Summary(properties={APPLIED_TAKEDOWNS: run.root.takedowns})

    def finish(self, run: StageRun, records: Sequence[ShardRecord]) -> Summary:
        """Return the dataset card."""
        root, _ = read_root(run.workdir)
        manifests = _manifests_before(root)
        stats: Counter[str] = Counter()
        num_bytes = 0
        for record in records:
            stats.update(record.stats)
            num_bytes += sum(file.bytes for file in record.files if file.kind == "data")
        counts = sum((record.counts for record in records), Counts())
        text = card(
            manifests, counts, stats, shaping_options(run.options), num_bytes, run.num_shards
        )
        return Summary(contents={run.asset_path("README.md"): text.encode()})


STAGE = Export()
