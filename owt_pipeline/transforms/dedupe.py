"""What of dedupe crosses shards: hashes and ids, brought together by partitions of the hash space."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

import apache_beam as beam
import pyarrow as pa

from owt_pipeline.engine.pipeline import remembering_failures


class ReducePartitions(beam.PTransform):
    """Read (partition, batch) from every shard, and reduce each partition's batches, of all shards, together.

    Args:
      shards: the shards to read.
      read: gives a shard's batches, each with its partition.
      reduce: takes a partition and its batches, in no particular order, and stores what it makes of them.
    """

    def __init__(
        self,
        shards: Sequence[int],
        read: Callable[[int], Iterable[tuple[int, pa.RecordBatch]]],
        reduce: Callable[[int, list[pa.RecordBatch]], None],
    ):
        super().__init__()
        self.shards, self.read, self.reduce = list(shards), read, reduce

    def expand(self, pipeline: beam.Pipeline) -> beam.PCollection[int]:
        return (
            pipeline
            | "Shards" >> beam.Create(self.shards, reshuffle=False)
            | "Spread" >> beam.Reshuffle()
            | "Read" >> beam.ParDo(_Read(self.read)).with_output_types(tuple[int, pa.RecordBatch])
            | "ByPartition" >> beam.GroupByKey()
            | "Reduce" >> beam.ParDo(_Reduce(self.reduce)).with_output_types(int)
        )


class _Read(beam.DoFn):
    def __init__(self, read: Callable[[int], Iterable[tuple[int, pa.RecordBatch]]]):
        self.read = read

    def process(self, shard: int) -> Iterator[tuple[int, pa.RecordBatch]]:
        with remembering_failures():
            yield from self.read(shard)


class _Reduce(beam.DoFn):
    def __init__(self, reduce: Callable[[int, list[pa.RecordBatch]], None]):
        self.reduce = reduce

    def process(self, element: tuple[int, Iterable[pa.RecordBatch]]) -> Iterator[int]:
        partition, batches = element
        with remembering_failures():
            self.reduce(partition, list(batches))
        yield partition
