"""dedupe: find exact and near-duplicates; every near-duplicate is verified."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from owt_pipeline.engine.stage import (
    Recorded,
    Stage,
    StageRun,
    Step,
    Summary,
    one_part,
    rows_of_input,
    sent_keys,
)
from owt_pipeline.stages.dedupe import numbering, steps
from owt_pipeline.stages.dedupe.decisions import MAX_COMPARISONS
from owt_pipeline.stages.dedupe.minhash import banding, probability
from owt_pipeline.stages.dedupe.options import Options
from owt_pipeline.storage.folder import folder_of
from schemas import Reason
from schemas.manifest import Counts
from schemas.quantities import pluralize

if TYPE_CHECKING:
    from schemas.manifest import ShardRecord

logger = logging.getLogger("owt")


def _parts(run: StageRun) -> range:
    """Return the parts: the shards, then the files of --against."""
    return range(run.num_shards + len(numbering.known_files(run)))


def _rows(run: StageRun) -> list[int]:
    """Return the number of documents of each part."""
    return np.diff(numbering.first_of_parts(run)).tolist()


def _sha256(uri: str) -> str:
    folder, name = folder_of(uri)
    return folder.sha256(name)


class Dedupe(Stage):
    """Find exact copies by a hash of the normalised text, then near-duplicates by MinHash LSH. Each
    pair is verified by the exact similarity of the shingle sets. No document is deleted yet:
    duplicates/ has a row for each document to remove, with the document to keep and their
    similarity, and export applies these decisions.
    """

    name = "dedupe"
    inputs = ("clean",)
    reads = "earlier"
    output = "duplicates"
    options = Options
    version = 10
    libraries = ("numpy", "pyarrow", "xxhash")
    steps: tuple[Step, ...] = (
        Step(steps.sketch, "sketch", keys=_parts, rows=_rows),
        Step(steps.buckets, "buckets", keys=sent_keys),
        Step(steps.components, "components", keys=one_part),
        Step(steps.candidates, "candidates", keys=sent_keys),
        Step(steps.verify, "verify", keys=sent_keys),
        Step(steps.write, rows=rows_of_input),
    )
    example = "owt run runs/2013 --until dedupe --threshold 0.85 --survivor highest_score"

    def external_inputs(self, options: Options, recorded: Recorded = ()) -> list[dict[str, Any]]:
        """Return names and digests of the files of --against.

        Raises UserError for one that cannot be read.
        """
        return [
            {"kind": "against", "name": uri.rpartition("/")[2], "sha256": _sha256(uri)}
            for uri in numbering.files_of(options)
        ]

    def set_up(self, run: StageRun) -> Summary:
        """Count the texts of the files of --against."""
        if run.options.against:
            numbering.count_files(run)
        return Summary()

    def preload(self, _: Options) -> list[str]:
        """Return the modules that numpy imports on first use."""
        return ["numpy.ma", "numpy.polynomial", "numpy.random"]

    def finish(self, run: StageRun, records: Sequence[ShardRecord]) -> Summary:
        """Return the sums of the counts, and the curve of the bands."""
        total: Counter[str] = Counter()
        for step in ("buckets", "components", "verify"):
            for record in run.records_of_step(step):
                total.update(record.stats)
        written: Counter[str] = Counter()
        for record in records:
            written.update(record.stats)
        rejected: dict[str, int] = {}
        for reason, count in (
            (Reason.EXACT_DUPLICATE, written["exact"]),
            (Reason.NEAR_DUPLICATE, written["near"]),
        ):
            if count:
                rejected[str(reason)] = count
        counts = Counts(written["stay"] + sum(rejected.values()), written["stay"], rejected)
        bands, rows = banding(run.options.threshold)
        # The probability that a pair is compared, by its similarity in steps of 0.05.
        curve = [(s / 20, round(probability(s / 20, bands, rows), 6)) for s in range(21)]
        properties = {
            "threshold": run.options.threshold,
            "bands": bands,
            "rows": rows,
            "curve": curve,
        }
        if total["capped"]:
            logger.warning(
                "dedupe: %s had more than %s similar documents among the kept ones, and only the "
                "%s most similar were compared: some near-duplicates may remain; a lower "
                "--threshold removes more of such pages",
                pluralize(total["capped"], "document"),
                MAX_COMPARISONS,
                MAX_COMPARISONS,
            )
        return Summary(counts, total, properties)


STAGE = Dedupe()
