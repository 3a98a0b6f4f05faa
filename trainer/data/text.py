"""Text to ids and back, by the files of Hugging Face's tokenizers."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any


class Tokenizer:
    """A `tokenizer.json`, or, where there is none, GPT-2's `vocab.json` and `merges.txt` beside it.

    A text always has the same ids: dropout, truncation and padding, which the file may ask for, are
    off. Text that looks like a special token is encoded as ordinary text, and a lone surrogate as
    U+FFFD. `loaded` is the package's own tokenizer. Tokenizers of equal `definition` give equal
    ids. Raises ValueError if the package is not installed or cannot read the file.
    """

    def __init__(self, path: str | Path) -> None:
        path = Path(path)
        try:
            import tokenizers

            self.loaded: Any = _read_tokenizer(tokenizers, path)
        except ImportError:
            raise ValueError("text needs the package tokenizers: pip install tokenizers") from None
        except Exception as error:
            raise ValueError(
                f"{path} is not a tokenizer that the package tokenizers reads: {error}"
            ) from error
        self.loaded.no_truncation()
        self.loaded.no_padding()
        self.loaded.encode_special_tokens = True
        if hasattr(self.loaded.model, "dropout"):
            self.loaded.model.dropout = None
        entries = json.loads(self.loaded.to_str())
        model = entries["model"]
        self._unknown_id = model.get("unk_id")
        if model.get("unk_token") is not None:
            self._unknown_id = self.loaded.token_to_id(model["unk_token"])
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
        """Return the UTF-8 bytes of the text that `ids` decode to; the unknown token has none."""
        known_ids = [token for token in ids if token != self._unknown_id]
        if self._is_byte_level:
            return sum(map(self._num_bytes_of, known_ids))
        if self.loaded.decoder is None:
            # The package would write a space between any two tokens.
            text = "".join(map(self.loaded.id_to_token, known_ids))
        else:
            text = self.decode(known_ids)
        return len(text.encode("utf-8"))

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


def has_tokenizer(folder: Path) -> bool:
    """Return whether `Tokenizer(folder / "tokenizer.json")` has files to read."""
    if (folder / "tokenizer.json").is_file():
        return True
    return (folder / "vocab.json").is_file() and (folder / "merges.txt").is_file()


def _read_tokenizer(tokenizers: Any, path: Path) -> Any:
    if path.is_file() or not has_tokenizer(path.parent):
        return tokenizers.Tokenizer.from_file(str(path))
    vocabulary = str(path.with_name("vocab.json"))
    merges = str(path.with_name("merges.txt"))
    loaded = tokenizers.Tokenizer(tokenizers.models.BPE.from_file(vocabulary, merges))
    loaded.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    loaded.decoder = tokenizers.decoders.ByteLevel()
    loaded.add_special_tokens(["<|endoftext|>"])
    return loaded
