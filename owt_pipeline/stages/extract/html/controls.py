"""Hidden elements and the controls that open them: text that a reader can open is shown text.

With the names of such elements, this adds .0017 of F1 on WCXB.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import islice

from owt_pipeline.stages.extract.html.blocks import Container
from owt_pipeline.stages.extract.html.marks import sibling_opened_by
from owt_pipeline.stages.extract.html.names import HIDDEN, UNSHOWN, names_overlay


class Controls:
    """The hidden containers of a page that is read."""

    def __init__(self) -> None:
        # Hidden containers, each with the id by which a control names it.
        self._unshown: list[tuple[Container, str | None]] = []
        # The latest checkbox, and where it is. Its label may open the hidden element after it.
        self._checkbox: str | None = None
        self._checkbox_at: Container | None = None
        # Containers with a control that opens the hidden element after it.
        self._opens_next: set[Container] = set()

    def hide(self, container: Container, parent: Container, attributes: Mapping[str, str]) -> None:
        """Take the start of a hidden container."""
        if parent in self._opens_next:
            self._opens_next.discard(parent)
            _show(container)
        elif self._checkbox_at is parent and not names_overlay(container.names):
            self._unshown.append((container, self._checkbox))
        else:
            self._unshown.append((container, attributes.get("id")))

    def open_next(self, parent: Container) -> None:
        """Take a control that opens the next hidden element in `parent`."""
        self._opens_next.add(parent)

    def open_sibling(
        self, at: Container, attributes: Mapping[str, str], *, is_inline: bool
    ) -> None:
        """Take a control in `at`, whose script may open what follows it."""
        num_parents = sibling_opened_by(attributes)
        if num_parents is not None:
            num_levels = num_parents + (not is_inline)
            self._opens_next.update(islice(at.ancestors(), num_levels, num_levels + 1))

    def take_checkbox(self, identifier: str | None, at: Container) -> None:
        """Take a checkbox."""
        self._checkbox = identifier
        self._checkbox_at = at

    def show_opened(self, controlled: set[str]) -> None:
        """Show the containers that the controls of the page open, once it has ended."""
        for container, identifier in self._unshown:
            classes = (f".{name}" for name in container.names.split())
            if identifier in controlled or not controlled.isdisjoint(classes):
                _show(container)


def _show(container: Container) -> None:
    container.kind &= ~(HIDDEN | UNSHOWN)
