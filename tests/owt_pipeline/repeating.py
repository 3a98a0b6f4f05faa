"""A runner that does what runners may do: it runs every bundle twice, late, and drops results."""

from __future__ import annotations

import random
import threading
from collections import Counter
from collections.abc import Iterator
from typing import Any, ClassVar
from unittest import mock

from apache_beam.portability.api import beam_fn_api_pb2
from apache_beam.runners.portability.fn_api_runner import FnApiRunner
from apache_beam.runners.worker.data_plane import InMemoryDataChannel

_taking = threading.Lock()


def _input_elements(self: Any, instruction_id: str, *_: Any, **__: Any) -> Iterator[Any]:
    """What was sent for one bundle. Beam's own loses what is sent for another meanwhile: it
    expects one at a time."""
    with _taking:  # others only append
        places = reversed(range(len(self._inputs)))
        mine = [
            self._inputs.pop(i) for i in places if self._inputs[i].instruction_id == instruction_id
        ]
    for element in reversed(mine):
        if isinstance(element, beam_fn_api_pb2.Elements.Timers):
            if not element.is_last:
                yield element
        elif element.data or element.is_last:
            yield element


class RepeatingRunner(FnApiRunner):
    """Runs every bundle twice and takes one result. Of one bundle in three, the second attempt
    overlaps with a later bundle, of the next stage or of one long after it; of one in five, the
    first result is dropped.

    Beam itself runs bundles again for its tests (`bundle_repeat`); this runner also does so late.

    Attributes:
      seed: what is late and what is dropped follows from it.
      counts: how many bundles were run; of them, `late` and `dropped`.
    """

    seed = 0
    counts: ClassVar[Counter[str]] = Counter()

    def run_pipeline(self, pipeline: Any, options: Any) -> Any:
        type(self).counts = Counter()
        self._random, self._late, self._failed = (
            random.Random(self.seed),
            list[Any](),
            list[BaseException](),
        )
        try:
            with mock.patch.object(InMemoryDataChannel, "input_elements", _input_elements):
                return super().run_pipeline(pipeline, options)
        finally:
            for _, again in self._late:  # when the run has ended
                again()
            if self._failed:
                raise self._failed[0]

    def _run_bundle(
        self, context: Any, bundle: Any, given: Any, outputs: Any, timers: Any, manager: Any
    ) -> Any:
        def again() -> None:
            try:
                self._get_bundle_manager(bundle).process_bundle(
                    given.data, outputs, given.timers, timers, dry_run=True
                )
            except BaseException as error:
                self._failed.append(error)

        number = self.counts["bundles"]
        overlapping = [threading.Thread(target=late) for due, late in self._late if due <= number]
        self._late = [late for late in self._late if late[0] > number]
        for thread in overlapping:
            thread.start()
        is_late, is_dropped = self._random.random() < 1 / 3, self._random.random() < 1 / 5
        self.counts.update(bundles=1, late=is_late, dropped=is_dropped)
        if is_dropped:
            again()
        result = super()._run_bundle(context, bundle, given, outputs, timers, manager)
        if is_late:
            self._late.append((number + self._random.choice((1, 1, 2, 5, 20)), again))
        elif not is_dropped:
            again()
        for thread in overlapping:
            thread.join()
        return result
