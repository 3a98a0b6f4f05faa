"""GPT-2 on token shards.

    from trainer import GPT, preset, TrainConfig, train, open_corpora, Loader, write_shards

The import is light: a name is loaded when it is first used. `export_tokens` and `documents` of
`trainer.data` run without torch.
"""

from __future__ import annotations

import importlib
import sys
from importlib.util import find_spec
from typing import Any

# The module of each name.
_MODULES = {
    "GPT": "model",
    "preset": "shape",
    "TrainConfig": "config",
    "train": "train",
    "open_corpora": "data.corpora",
    "Loader": "data.loader",
    "write_shards": "data.shard_writer",
}
_WITHOUT_TORCH = ("trainer.data.export_tokens", "trainer.data.documents")
__all__ = [*_MODULES]


def __getattr__(name: str) -> Any:
    """Import a name when it is first used."""
    if name not in _MODULES:
        raise AttributeError(f"module 'trainer' has no attribute {name!r}")
    try:
        module = importlib.import_module(f"trainer.{_MODULES[name]}")
    except ModuleNotFoundError as error:
        if error.name not in ("torch", "safetensors"):
            raise
        raise _needs_torch() from None
    # The module `trainer.train` can be called as its function.
    return module if name == "train" else getattr(module, name)


def _needs_torch() -> ImportError:
    return ImportError(
        "the trainer needs PyTorch 2.9 or later, which is not installed: pip install torch "
        "safetensors tensorboard",
        name=__name__,
    )


# Python imports the package while it looks for the module of `python -m`. It prints an ImportError
# with the package's own name as one line, without a traceback.
_is_command = sys.argv[:1] == ["-m"]
_is_light = any(argument.removeprefix("-m") in _WITHOUT_TORCH for argument in sys.orig_argv)
if _is_command and not _is_light and find_spec("torch") is None:
    raise _needs_torch()
