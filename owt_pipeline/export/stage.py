"""export: the corpus, clean documents without their duplicates."""

from __future__ import annotations

import sys
from collections import Counter
from dataclasses import dataclass
from functools import partial

from owt_pipeline.engine.dataset import read_manifest
from owt_pipeline.engine.stage import Stage, StageRun
from owt_pipeline.forget.takedowns import FORGOTTEN, forgotten_in_shard, read_takedowns
from owt_pipeline.stage_command import main
from schemas import DATASETS, option
from schemas.manifest import Counts
from schemas.settings import shaping_options


@dataclass(frozen=True)
class ExportOptions:
    rules: tuple[str, ...] = option(("exact", "near"), "decisions to apply, by rule", choices=("exact", "near", "none"))
    min_similarity: float = option(0.0, "decisions to apply: of at least this similarity", minimum=0.0, maximum=1.0)


def run(run: StageRun) -> None:
    from owt_pipeline.export.apply import Policy
    from owt_pipeline.export.card import card
    from owt_pipeline.export.shards import export_shard

    policy = Policy(run.options.rules, run.options.min_similarity)
    source, decisions = run.inputs["clean"], run.inputs["duplicates"]
    takedowns = read_takedowns(run.runtime.workdir)
    export = partial(export_shard, source=source, decisions=decisions, policy=policy, takedowns=takedowns)
    records = run.write_shards(export, rows=source.rows_of_shards(), spread="shards")
    before = {name: read_manifest(run.runtime.workdir, name) for name in DATASETS if name not in ("corpus", "tokens")}
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
    version=3,
    run=run,
    lists=(FORGOTTEN,),
    listed=forgotten_in_shard,
    shard_local=True,
    help="Write the corpus: the clean documents without those that duplicates/ removes. Change the policy and export\n"
    "again: nothing is computed anew. What forgotten.jsonl names (owt forget) stays out.\n"
    "ledger/corpus/README.md is the dataset card.",
    example="owt export --workdir runs/2013 --rules exact --min_similarity 0.9",
)

if __name__ == "__main__":
    sys.exit(main(STAGE))
