"""proofs: the components of a group are split until each document that goes is proven to repeat one that stays."""

from __future__ import annotations

import pyarrow as pa

from owt_pipeline.dedupe.step_files import one_batch, open_arrow, read_step, step_file
from owt_pipeline.dedupe.verification import Verifier
from owt_pipeline.engine import progress
from owt_pipeline.engine.commit import ShardWriter
from owt_pipeline.engine.storage import Storage


def verify_group(
    group: int, writer: ShardWriter, *, shingles: Storage, components: Storage, verifier: Verifier
) -> None:
    """Write which documents of a group repeat which."""
    where = read_step(components, [0])
    of_group = where.filter(pa.array(where["group"].to_numpy() == group))
    batches = []
    for part, index in zip(of_group["part"].to_pylist(), of_group["batch"].to_pylist(), strict=True):
        with open_arrow(shingles, step_file(part)) as reader:
            batches.append(reader.get_batch(index))
    rows = one_batch(batches, batches[0].schema)
    del batches
    proven, counts = verifier.verify(rows)
    writer.write(proven)
    writer.count(counts)
    progress.advance(rows.num_rows)
