"""The stages of a run, one module each."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from owt_pipeline.engine.stage import Stage

ORDER = ("collect", "fetch", "extract", "clean", "dedupe", "export", "tokenize", "report")
"""The stages of a run, in order."""

_MODULES = {"import": "import_text"}  # `import` is no name for a module


def load(name: str) -> Stage:
    """The stage `name`: one of ORDER, or `import`."""
    stage: Stage = importlib.import_module(
        f"owt_pipeline.stages.{_MODULES.get(name, name)}.stage"
    ).STAGE
    return stage
