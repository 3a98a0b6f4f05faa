"""Tell the user which settings do not change what a run already has."""

from __future__ import annotations

import logging

from owt_pipeline.engine.stage import Runtime
from owt_pipeline.ledger.root import read_root
from schemas.quantities import pluralize

logger = logging.getLogger("owt")


def mention_num_shards(num_shards: int | None, runtime: Runtime) -> None:
    """Log that the requested number of shards does not change the shards that the run has."""
    root, _ = read_root(runtime.workdir)
    if num_shards is None or runtime.add or not root.datasets:
        return
    last_number = root.generations[-1].shards
    if num_shards != last_number:
        logger.warning(
            "num_shards = %d holds for new generations: the last generation of %s keeps its %s",
            num_shards,
            runtime.workdir,
            pluralize(last_number, "shard"),
        )
