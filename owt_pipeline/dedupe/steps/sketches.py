"""sketches: the texts that are left once exact copies are gone are read for all that is to be known of them."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from owt_pipeline.dedupe.collection import Collection
from owt_pipeline.dedupe.parts import read_part
from owt_pipeline.dedupe.sketches import Sketcher
from owt_pipeline.dedupe.step_files import one_batch, read_step
from owt_pipeline.engine import progress
from owt_pipeline.engine.commit import ShardWriter
from owt_pipeline.engine.storage import Storage


def sketch_part(
    number: int, writer: ShardWriter, *, collection: Collection, exact_rows: Storage, sketcher: Sketcher
) -> None:
    """Write the sketches of a part's documents, those left out that go as exact duplicates."""
    part = collection.parts[number]
    hashed = read_step(collection.own.hashes, [number])
    rows = hashed["row"].to_numpy()
    stay = ~np.isin(rows, read_step(exact_rows, [part.shard])["row"].to_numpy())
    hashed = one_batch(hashed.filter(pa.array(stay)).combine_chunks().to_batches(), hashed.schema)
    writer.count({"sketched": len(hashed)})
    done = 0
    for batch in read_part(part, collection.own.clean.workdir, ["text"], rows[stay]):
        known, sketches = hashed.slice(done, batch.num_rows), sketcher.sketch(batch["text"])
        writer.write(pa.RecordBatch.from_arrays([*known.columns, *sketches.columns], schema=sketcher.stored_schema))
        done += batch.num_rows
        progress.advance(batch.num_rows)
