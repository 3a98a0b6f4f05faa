"""Work that is keyed by a number: one shard, one dump, one WARC file, one partition."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import apache_beam as beam

from owt_pipeline.engine.pipeline import remembering_failures
from owt_pipeline.engine.workers import work_together


class ForEachKey(beam.PTransform):
    """Call `work(key)` once for each key, wherever the runner places it; the output is the keys done.

    The shuffle after Create lets a runner spread the keys; without it they are fused into one place.
    With `together` > 1, a place works at that many keys at once, in threads: for work that waits.
    """

    def __init__(self, keys: Sequence[int], work: Callable[[int], None], together: int = 1):
        super().__init__()
        self.keys, self.work, self.together = list(keys), work, together

    def expand(self, pipeline: beam.Pipeline) -> beam.PCollection[int]:
        groups = [self.keys[start : start + self.together] for start in range(0, len(self.keys), self.together)]
        return (
            pipeline
            | "Keys" >> beam.Create(groups, reshuffle=False)
            | "Spread" >> beam.Reshuffle()
            | "Work" >> beam.ParDo(_Work(self.work))
        )


class _Work(beam.DoFn):
    def __init__(self, work: Callable[[int], None]):
        self.work = work

    def process(self, keys: list[int]) -> Iterator[int]:
        with remembering_failures():
            work_together(keys, self.work, len(keys))
        yield from keys
