"""Models that are kept in a folder, so that commands share their fits and continue after a stop.

A model's file is named by a digest of everything that it follows from: the examples, the seed, the
recipe, and the code that fits. A change of a page, a label or a feature therefore fits anew. A
change of the rules that come after the model does not.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import ModuleType

from owt_pipeline.stages.extract.content import arrays, containers, model
from owt_pipeline.stages.extract.html import names

from . import boosting, fitting
from .examples import Example
from .fitting import RECIPE, Recipe, fit_model, write

# They turn examples into a model. Whatever makes the examples shows in the examples themselves.
_CODE: tuple[ModuleType, ...] = (arrays, boosting, containers, fitting, model, names)
# Two models of one folder do not get the same name by accident.
_NUM_DIGITS = 16


def fit_or_read(
    examples: Sequence[Example],
    seed: int = 0,
    recipe: Recipe = RECIPE,
    folder: Path | None = None,
) -> model.Model:
    """Return the model of `fit_model`: from `folder` if it is kept there, else fit and keep it.

    Without a folder, always fit.
    """
    if folder is None:
        return fit_model(examples, seed, recipe)
    path = folder / f"seed_{seed}-{_digest(examples, seed, recipe)}.npz"
    if path.exists():
        return model.read(path)
    fitted = fit_model(examples, seed, recipe)
    folder.mkdir(parents=True, exist_ok=True)
    # A command that is stopped here leaves no part of a model under the model's name.
    unfinished = path.with_suffix(f".{os.getpid()}")
    write(fitted, unfinished)
    unfinished.replace(path)
    return fitted


def _digest(examples: Sequence[Example], seed: int, recipe: Recipe) -> str:
    """Return a digest of everything that a model follows from."""
    digest = hashlib.sha256(f"{seed} {recipe}".encode())
    for module in _CODE:
        assert module.__file__ is not None
        digest.update(Path(module.__file__).read_bytes())
    for example in examples:
        for part in _parts(example):
            # With its length, so that no two lists of parts are the same bytes.
            digest.update(len(part).to_bytes(8, "big"))
            digest.update(part)
    return digest.hexdigest()[:_NUM_DIGITS]


def _parts(example: Example) -> Iterator[bytes]:
    """Yield what `fit_model` takes from an example, as bytes."""
    page = example.page
    view = example.view
    yield repr((page.set, page.url, page.kind, view.shared)).encode()
    # Sorted, since words come out of sets, whose order differs between processes.
    yield repr((sorted(example.words.names.items()), sorted(example.words.texts.items()))).encode()
    yield repr((view.paths.names, view.paths.name_of, view.paths.parent)).encode()
    yield b"\n".join(b" ".join(words) for words in view.words)
    for values in (
        example.label,
        example.weight,
        view.static,
        view.signatures,
        view.path_of_block,
        view.heading,
        view.in_comments,
        view.counts.chars,
        view.counts.words,
        view.tree.parent,
        view.tree.end,
        view.tree.container_of_block,
    ):
        yield values.tobytes()
