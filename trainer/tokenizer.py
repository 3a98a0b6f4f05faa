"""The tokenizer of a checkpoint or of shards, read from its own file."""

from __future__ import annotations

from pathlib import Path
from typing import Any


class Tokenizer:
    """Text to ids and back, by a `tokenizer.json` in the format of Hugging Face's tokenizers.

    Text that looks like a special token is encoded as the text it is.

    Raises:
      ValueError: the package tokenizers is not installed, or the file is none of its own.
    """

    def __init__(self, path: Path) -> None:
        try:
            from tokenizers import Tokenizer as Loaded
        except ImportError:
            raise ValueError(
                "text needs the package tokenizers, which is not installed: pip install tokenizers"
            ) from None
        try:
            self._tokenizer: Any = Loaded.from_file(str(path))
        except Exception as error:
            raise ValueError(f"{path} is no tokenizer that the package tokenizers reads: {error}") from error
        self._tokenizer.encode_special_tokens = True

    def encode(self, text: str) -> list[int]:
        return self._tokenizer.encode(text, add_special_tokens=False).ids

    def decode(self, ids: list[int]) -> str:
        return self._tokenizer.decode(ids, skip_special_tokens=True)
