"""export: the corpus, clean documents without their duplicates."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from owt_pipeline.engine.bases import FORGOTTEN
from owt_pipeline.engine.dataset import read_manifest
from owt_pipeline.engine.stage import Stage, StageRun, Step, rows_of_input
from owt_pipeline.export.takedowns import forgotten_in_shards, takedowns_of_chain
from schemas import DATASETS, option
from schemas.manifest import Counts
from schemas.settings import shaping_options

if TYPE_CHECKING:
    from owt_pipeline.engine.commit import ShardWriter
    from owt_pipeline.engine.exchange import Slice
    from schemas.manifest import ShardRecord


@dataclass(frozen=True)
class ExportOptions:
    rules: tuple[str, ...] = option(("exact", "near"), "decisions to apply, by rule", choices=("exact", "near", "none"))
    min_similarity: float = option(0.0, "decisions to apply: of at least this similarity", minimum=0.0, maximum=1.0)


def export(run: StageRun, shard: int, _: Sequence[Slice], writer: ShardWriter) -> None:
    from owt_pipeline.export.shards import Policy, export_shard

    export_shard(
        shard,
        writer,
        source=run.inputs["clean"],
        decisions=run.inputs["duplicates"],
        policy=Policy(run.options.rules, run.options.min_similarity),
        takedowns=takedowns_of_chain(run.workdir, [base.workdir for base in run.bases]),
    )


def write_card(run: StageRun, records: Sequence[ShardRecord]) -> None:
    from owt_pipeline.export.card import card

    before = {name: read_manifest(run.workdir, name) for name in DATASETS if name not in ("corpus", "tokens")}
    stats: Counter[str] = Counter()
    for record in records:
        stats.update(record.stats)
    text = card(
        {name: manifest for name, manifest in before.items() if manifest is not None},
        sum((record.counts for record in records), Counts()),
        stats,
        shaping_options(run.options),
        sum(file.bytes for record in records for file in record.files if file.kind == "data"),
        run.num_shards,
    )
    run.write_asset("README.md", text.encode())


STAGE = Stage(
    name="export",
    output="corpus",
    inputs=("clean", "duplicates"),
    options=ExportOptions,
    version=4,
    steps=(Step(export, rows=rows_of_input, spread="shards"),),
    finish=write_card,
    module="owt_pipeline.export.stage",
    lists=(FORGOTTEN,),
    listed=forgotten_in_shards,
    bases=(FORGOTTEN,),
    shard_local=True,
    help="Write the corpus: the clean documents without those that duplicates/ removes. Change the policy and export\n"
    "again: nothing is computed anew. What forgotten.jsonl names (owt forget) stays out.\n"
    "ledger/corpus/README.md is the dataset card.",
    example="owt export --workdir runs/2013 --rules exact --min_similarity 0.9",
)

if __name__ == "__main__":
    from owt_pipeline.commands.stage import main

    sys.exit(main(STAGE))
