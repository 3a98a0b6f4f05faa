"""The report's passes over the run: each part summarized where it is, the summaries merged."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import apache_beam as beam

from owt_pipeline.engine.pipeline import remembering_failures


class MergeSummaries(beam.PTransform):
    """Summarize every part, merge what comes of it into one, and store that.

    Text stays where it is read: what travels are summaries, whose size is fixed.

    Args:
      parts: what to read.
      summarize: gives a part's summary, with a commutative and associative method `merge`.
      empty: a summary of nothing.
      store: takes the summary of all.
    """

    def __init__(
        self,
        parts: Sequence[Any],
        summarize: Callable[[Any], Any],
        empty: Callable[[], Any],
        store: Callable[[Any], None],
    ):
        super().__init__()
        self.parts, self.summarize, self.empty, self.store = list(parts), summarize, empty, store

    def expand(self, pipeline: beam.Pipeline) -> beam.PCollection[None]:
        return (
            pipeline
            | "Parts" >> beam.Create(self.parts, reshuffle=False)
            | "Spread" >> beam.Reshuffle()
            | "Summarize" >> beam.ParDo(_Summarize(self.summarize))
            | "Merge" >> beam.CombineGlobally(_Merge(self.empty))
            | "Store" >> beam.ParDo(_Store(self.store))
        )


class _Summarize(beam.DoFn):
    def __init__(self, summarize: Callable[[Any], Any]):
        self.summarize = summarize

    def process(self, part: Any) -> Iterator[Any]:
        with remembering_failures():
            yield self.summarize(part)


class _Merge(beam.CombineFn):
    def __init__(self, empty: Callable[[], Any]):
        self.empty = empty

    def create_accumulator(self) -> Any:
        return self.empty()

    def add_input(self, accumulator: Any, element: Any) -> Any:
        accumulator.merge(element)
        return accumulator

    def merge_accumulators(self, accumulators: Iterable[Any]) -> Any:
        merged = self.empty()
        for accumulator in accumulators:
            merged.merge(accumulator)
        return merged

    def extract_output(self, accumulator: Any) -> Any:
        return accumulator


class _Store(beam.DoFn):
    def __init__(self, store: Callable[[Any], None]):
        self.store = store

    def process(self, summary: Any) -> None:
        with remembering_failures():
            self.store(summary)
