"""Text to ids and back, by the files of Hugging Face's tokenizers."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any


class Tokenizer:
    """A `tokenizer.json`.

    A text always has the same ids: dropout, truncation and padding, which the file may ask for, are
    off. Text that looks like a special token is encoded as ordinary text, and a lone surrogate as
    U+FFFD. `loaded` is the package's own tokenizer. Tokenizers of equal `definition` give equal
    ids. Raises ValueError if the package is not installed or cannot read the file.
    """

    def __init__(self, path: str | Path) -> None:
        path = Path(path)
        try:
            import tokenizers

            self.loaded: Any = tokenizers.Tokenizer.from_file(str(path))
        except ImportError:
            raise ValueError("text needs the package tokenizers: pip install tokenizers") from None
        except Exception as error:
            raise ValueError(
                f"{path} is not a tokenizer that the package tokenizers reads ({error}): for a "
                f"folder with vocab.json and merges.txt, transformers writes it by "
                f"AutoTokenizer.from_pretrained({str(path.parent)!r}).save_pretrained("
                f"{str(path.parent)!r})"
            ) from error
        self.loaded.no_truncation()
        self.loaded.no_padding()
        self.loaded.encode_special_tokens = True
        if hasattr(self.loaded.model, "dropout"):
            self.loaded.model.dropout = None
        entries = json.loads(self.loaded.to_str())
        model = entries["model"]
        # Files write the same BPE with an option empty, null or left out.
        options = {key: value for key, value in model.items() if value not in (None, "", False)}
        added_tokens = {token["content"]: token["id"] for token in entries["added_tokens"]}
        self.definition = (options, added_tokens)
        self._special_ids = {token["id"] for token in entries["added_tokens"] if token["special"]}
        self._is_byte_level = _is_byte_level(entries["decoder"])

    def encode(self, text: str) -> list[int]:
        """Return the ids of a text, without special tokens."""
        text = text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
        return self.loaded.encode(text, add_special_tokens=False).ids

    def decode(self, ids: Sequence[int]) -> str:
        """Return the text of ids, without special tokens."""
        return self.loaded.decode(ids, skip_special_tokens=True)

    def count_bytes(self, ids: Sequence[int]) -> int:
        """Return the UTF-8 bytes of the text that `ids` decode to."""
        if self._is_byte_level:
            return sum(map(self._num_bytes_of, ids))
        return len(self.decode(ids).encode("utf-8"))

    def _num_bytes_of(self, token: int) -> int:
        """Return the bytes of a byte-level token, which may be a part of a character.

        A decoder would write a part as U+FFFD, which is three bytes.
        """
        name = self.loaded.id_to_token(token)
        if name is None or token in self._special_ids:
            return 0
        if name in self.definition[1]:
            # Added to the vocabulary as text.
            return len(name.encode("utf-8"))
        # Each byte has its own character in the vocabulary.
        return len(name)


def _is_byte_level(decoder: dict[str, Any] | None) -> bool:
    """Return whether the decoder of a tokenizer.json reads each character of a token as a byte."""
    if decoder is None:
        return False
    parts = decoder.get("decoders", [decoder])
    return any(part["type"] == "ByteLevel" for part in parts)
