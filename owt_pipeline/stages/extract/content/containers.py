"""The containers around a page's blocks: their tree, and the distinct paths of names to them."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import lru_cache

import numpy as np

from owt_pipeline.stages.extract.html.blocks import Block, Container
from owt_pipeline.stages.extract.html.names import CHROME, COMMENT, CONTENT, HIDDEN

ANCESTOR_TAGS = tuple(
    "footer form ul ol dl blockquote article main section noscript"
    " nav aside header figure table details figcaption button".split()
)
"""The tags around a block that are features, in the order of their bits."""
_BIT_OF_TAG = {tag: 1 << index for index, tag in enumerate(ANCESTOR_TAGS)}
FAR = 1000
"""Stands for a distance to something that the page does not have."""
_BOILERPLATE = CHROME | COMMENT | HIDDEN
_DIGITS = re.compile(r"\d+")


def containers_with_text(blocks: Sequence[Block]) -> list[Container]:
    """Return the containers that hold text, in order."""
    by_index: dict[int, Container] = {}
    for block in blocks:
        container: Container | None = block.container
        while container is not None and container.index not in by_index:
            by_index[container.index] = container
            container = container.parent
    return [by_index[index] for index in sorted(by_index)]


InheritedRow = tuple[int, int, int, int, int, int, int, int]
"""The numbers that a path passes on to the paths below it, in a plain tuple for its speed.

- its number of names before the last one;
- the tags on it, and the kinds on it, as bits;
- its levels below boilerplate, and below content;
- numbers for its tags, for its names, and for its last two names: equal for paths with the same.
"""
_ABOVE_BODY: InheritedRow = (-1, 0, 0, FAR, FAR, -1, -1, -1)


class Paths:
    """The distinct paths of names from the body to a container; a page has 170 for 420 containers.

    Attributes:
      of_container: the path of each container.
      parent: for each path the one without its last name; -1 for the body.
      names: the distinct names of containers: tag, classes, id.
      name_of: for each path the index of its last name in `names`.
      inherited: the numbers that each path passes on.
    """

    def __init__(self, containers: Sequence[Container], parents: Sequence[int]):
        of_container: list[int] = []
        parents_of_paths: list[int] = []
        name_of: list[int] = []
        inherited: list[InheritedRow] = []
        # The number of each path's last name without digits.
        plain_names: list[int] = []
        # Numbers for whatever is equal, in order of their first occurrence.
        path_numbers: dict[tuple[int, str, str, int], int] = {}
        name_numbers: dict[tuple[str, str], int] = {}
        plain_numbers: dict[tuple[str, str], int] = {}
        tags_numbers: dict[tuple[int, str], int] = {}
        names_numbers: dict[tuple[int, int], int] = {}
        last_numbers: dict[tuple[int, int], int] = {}
        for container, parent_index in zip(containers, parents, strict=True):
            parent = of_container[parent_index] if parent_index >= 0 else -1
            tag = container.tag
            names = container.names
            kind = container.kind
            num_paths = len(inherited)
            path = path_numbers.setdefault((parent, tag, names, kind), num_paths)
            of_container.append(path)
            if path < num_paths:
                continue
            plain = plain_numbers.setdefault((tag, _without_digits(names)), len(plain_numbers))
            above = inherited[parent] if parent >= 0 else _ABOVE_BODY
            depth, tags, kinds, chrome_depth, content_depth, of_tags, of_names, _ = above
            last_name = -1
            if parent >= 0:
                chrome_depth = 0 if kind & _BOILERPLATE else chrome_depth + 1
                content_depth = 0 if kind & CONTENT else content_depth + 1
                last_name = plain_names[parent]
            of_tags = tags_numbers.setdefault((of_tags, tag), len(tags_numbers))
            of_names = names_numbers.setdefault((of_names, plain), len(names_numbers))
            of_last = last_numbers.setdefault((last_name, plain), len(last_numbers))
            depth += 1
            tags |= _BIT_OF_TAG.get(tag, 0)
            kinds |= kind
            inherited.append(
                (depth, tags, kinds, chrome_depth, content_depth, of_tags, of_names, of_last)
            )
            parents_of_paths.append(parent)
            name_of.append(name_numbers.setdefault((tag, names), len(name_numbers)))
            plain_names.append(plain)
        self.of_container = of_container
        self.parent = parents_of_paths
        self.names = [f"<{tag}> {names}" for tag, names in name_numbers]
        self.name_of = name_of
        self.inherited = inherited


@lru_cache(1 << 15)
def _without_digits(names: str) -> str:
    return _DIGITS.sub("", names)


class Tree:
    """The m containers of a page's n blocks, with sums over them.

    Attributes:
      container_of_block (n): the container of each block.
      parent, end (m): the descendants of container c are c + 1 to end[c] - 1; the parent of the
        first is -1.
    """

    def __init__(self, blocks: Sequence[Block], containers: Sequence[Container]):
        indexes = [container.index for container in containers]
        position_by_index = {index: position for position, index in enumerate(indexes)}
        self.container_of_block = np.array(
            [position_by_index[block.container.index] for block in blocks]
        )
        parents = [
            position_by_index[container.parent.index] if container.parent else -1
            for container in containers
        ]
        self.parent = np.array(parents)
        self.end = np.searchsorted(indexes, [container.end for container in containers])
        self._up = np.maximum(self.parent, 0)

    def below(self, values: np.ndarray) -> np.ndarray:
        """Return for each container the sum of `values` over the blocks in it, at any depth."""
        count = len(self.parent)
        running = np.zeros(count + 1)
        directly = np.bincount(self.container_of_block, values, minlength=count)
        np.cumsum(directly, out=running[1:])
        sums: np.ndarray = running[self.end] - running[:-1]
        return sums

    def levels(self, count: int) -> list[np.ndarray]:
        """Return for each block its container, that container's parent, and so on.

        The body counts as its own parent.
        """
        levels = [self.container_of_block]
        for _ in range(count - 1):
            levels.append(self._up[levels[-1]])
        return levels
