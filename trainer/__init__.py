"""GPT-2 on token shards.

    from trainer import GPT, Loader, Tokenizer, TrainConfig, open_corpora, train, write_shards

The import is light: a name is loaded when it is first used. `export_tokens` and `documents` of
`trainer.data` run without torch.
"""

from __future__ import annotations

import importlib
import sys
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from trainer.config import ModelConfig, TrainConfig, preset
    from trainer.data.corpora import open_corpora
    from trainer.data.loader import Loader
    from trainer.data.shard_writer import write_shards
    from trainer.data.text import Tokenizer
    from trainer.loop import Step, TrainResult, train
    from trainer.model import GPT

__all__ = [
    "GPT",
    "Loader",
    "ModelConfig",
    "Step",
    "Tokenizer",
    "TrainConfig",
    "TrainResult",
    "open_corpora",
    "preset",
    "train",
    "write_shards",
]
# The module of each name.
_MODULES = {
    "GPT": "model",
    "Loader": "data.loader",
    "ModelConfig": "config",
    "Step": "loop",
    "Tokenizer": "data.text",
    "TrainConfig": "config",
    "TrainResult": "loop",
    "open_corpora": "data.corpora",
    "preset": "config",
    "train": "loop",
    "write_shards": "data.shard_writer",
}
_WITHOUT_TORCH = ("trainer.data.export_tokens", "trainer.data.documents")


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
    return getattr(module, name)


def __dir__() -> list[str]:
    """Return the names to complete, also those that are not loaded yet."""
    return sorted({*globals(), *__all__})


def _needs_torch() -> ImportError:
    return ImportError(
        "the trainer needs PyTorch 2.9 or later, which is not installed: pip install torch "
        "safetensors tensorboard",
        name=__name__,
    )


# Python imports the package while it looks for the module of `python -m`. It prints an ImportError
# with the package's own name as one line, without a traceback.
_is_command = sys.argv[:1] == ["-m"]
_needs_no_torch = any(name in argument for name in _WITHOUT_TORCH for argument in sys.orig_argv)
if _is_command and not _needs_no_torch and find_spec("torch") is None:
    raise _needs_torch()
