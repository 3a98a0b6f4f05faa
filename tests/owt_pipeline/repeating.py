"""A runner that does what runners may do: run a bundle twice, run it late, and drop its result."""

from __future__ import annotations

import random
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any, ClassVar
from unittest import mock

from apache_beam.portability.api import beam_fn_api_pb2
from apache_beam.runners.portability.fn_api_runner import FnApiRunner
from apache_beam.runners.worker.data_plane import InMemoryDataChannel

_taking = threading.Lock()


def _input_elements(self: Any, instruction_id: str, *_: Any, **__: Any) -> Iterator[Any]:
    """Yield the elements that were sent for one bundle.

    Beam's own method expects one bundle at a time, and loses the elements of others that are sent
    meanwhile.
    """
    elements_of_bundle = []
    # A lock for removing is enough, since the other threads of the channel only append.
    with _taking:
        for position in reversed(range(len(self._inputs))):
            if self._inputs[position].instruction_id == instruction_id:
                elements_of_bundle.append(self._inputs.pop(position))
    for element in reversed(elements_of_bundle):
        if isinstance(element, beam_fn_api_pb2.Elements.Timers):
            if not element.is_last:
                yield element
        elif element.data or element.is_last:
            yield element


class RepeatingRunner(FnApiRunner):
    """Runs every bundle twice and takes one result.

    One bundle in three is late: its second attempt overlaps with a later bundle, of the next stage
    or of one long after it. Of one bundle in five, the first result is dropped.

    Beam itself repeats bundles for its tests (`bundle_repeat`); this runner also does so late.

    Attributes:
      seed: decides which bundles are late and which results are dropped.
      counts: the number of `bundles`, and of those that were `late` and `dropped`.
    """

    seed = 0
    counts: ClassVar[Counter[str]] = Counter()

    def run_pipeline(self, pipeline: Any, options: Any) -> Any:
        type(self).counts = Counter()
        self._random = random.Random(self.seed)
        # The number of the bundle after which each late attempt starts, and the attempt.
        self._late: list[tuple[int, Callable[[], None]]] = []
        self._errors: list[BaseException] = []
        try:
            with mock.patch.object(InMemoryDataChannel, "input_elements", _input_elements):
                return super().run_pipeline(pipeline, options)
        finally:
            # Some attempts are so late that the run has ended.
            for _, repeat in self._late:
                repeat()
            if self._errors:
                raise self._errors[0]

    def _run_bundle(
        self, context: Any, bundle: Any, inputs: Any, outputs: Any, timers: Any, manager: Any
    ) -> Any:
        def repeat() -> None:
            try:
                self._get_bundle_manager(bundle).process_bundle(
                    inputs.data, outputs, inputs.timers, timers, dry_run=True
                )
            except BaseException as error:
                self._errors.append(error)

        number = self.counts["bundles"]
        overlapping = []
        still_late = []
        for due, late_attempt in self._late:
            if due <= number:
                overlapping.append(threading.Thread(target=late_attempt))
            else:
                still_late.append((due, late_attempt))
        self._late = still_late
        for thread in overlapping:
            thread.start()
        is_late = self._random.random() < 1 / 3
        is_dropped = self._random.random() < 1 / 5
        self.counts.update(bundles=1, late=is_late, dropped=is_dropped)
        if is_dropped:
            repeat()
        result = super()._run_bundle(context, bundle, inputs, outputs, timers, manager)
        if is_late:
            num_bundles_later = self._random.choice((1, 1, 2, 5, 20))
            self._late.append((number + num_bundles_later, repeat))
        elif not is_dropped:
            repeat()
        for thread in overlapping:
            thread.join()
        return result
