"""Work that is keyed by a number: one shard, one dump, one WARC file, one partition."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed

import apache_beam as beam

from owt_pipeline.runtime.pipeline import remembering_failures


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
            if len(keys) == 1:
                self.work(keys[0])
            else:
                threads = ThreadPoolExecutor(len(keys))
                try:
                    for future in as_completed([threads.submit(self.work, key) for key in keys]):
                        future.result()
                finally:  # an error, or Ctrl-C, does not wait for the others
                    threads.shutdown(wait=False, cancel_futures=True)
        yield from keys
