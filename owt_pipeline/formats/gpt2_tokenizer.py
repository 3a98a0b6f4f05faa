"""GPT-2's tokenizer, for tiktoken and as a `tokenizer.json`.

`gpt2_merges.txt` is the file `vocab.bpe` that OpenAI published with GPT-2: one pair of tokens a
line, in the order in which the pairs are merged. The ids follow from it: the 256 bytes come first,
then the result of each merge, then the token that separates documents. Tests compare them with
OpenAI's `encoder.json`.
"""

from __future__ import annotations

import functools
import hashlib
from pathlib import Path
from typing import TYPE_CHECKING

from owt_pipeline.errors import UserError

if TYPE_CHECKING:
    import tiktoken

END_OF_TEXT = "<|endoftext|>"
GPT2_END_OF_TEXT_ID = 50256

_MERGES_PATH = Path(__file__).with_name("gpt2_merges.txt")
# The digest with which tiktoken verifies its download of vocab.bpe from OpenAI.
_MERGES_SHA256 = "1ce1664773c50f3e0cc8842619a93edc4624525b728b188a9e0be33b7726adc5"

# Splits text into words before merging: tiktoken's equivalent of the pattern in OpenAI's
# encoder.py.
_PATTERN = r"""'(?:[sdmt]|ll|ve|re)| ?\p{L}++| ?\p{N}++| ?[^\s\p{L}\p{N}]++|\s++$|\s+(?!\S)|\s"""


@functools.cache
def tiktoken_encoding() -> tiktoken.Encoding:
    """Return GPT-2's encoding in tiktoken; raise UserError if the file of merges is altered."""
    import tiktoken

    byte_by_char = str.maketrans({char: chr(byte) for byte, char in _char_by_byte().items()})
    rank_by_token: dict[bytes, int] = {}
    for rank, token in enumerate(_tokens()):
        rank_by_token[token.translate(byte_by_char).encode("latin-1")] = rank
    return tiktoken.Encoding(
        "gpt2",
        pat_str=_PATTERN,
        mergeable_ranks=rank_by_token,
        special_tokens={END_OF_TEXT: GPT2_END_OF_TEXT_ID},
    )


@functools.cache
def gpt2_tokenizer_json() -> bytes:
    """Return GPT-2's tokenizer as a `tokenizer.json` of Hugging Face's tokenizers.

    Its ids are those of `tiktoken_encoding`. Raises UserError if the file of merges is altered.
    """
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

    id_by_token = {token: token_id for token_id, token in enumerate([*_tokens(), END_OF_TEXT])}
    tokenizer = Tokenizer(models.BPE(vocab=id_by_token, merges=_merges()))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)  # type: ignore[assignment]
    tokenizer.decoder = decoders.ByteLevel()  # type: ignore[assignment]
    tokenizer.add_special_tokens([AddedToken(END_OF_TEXT, special=True, normalized=False)])
    return tokenizer.to_str().encode()


def _tokens() -> list[str]:
    """Return the tokens of ordinary text in the order of their ids."""
    merged_tokens = [left + right for left, right in _merges()]
    return [*_char_by_byte().values(), *merged_tokens]


@functools.cache
def _merges() -> list[tuple[str, str]]:
    """Return the pairs of tokens in the order in which they are merged."""
    content = _MERGES_PATH.read_bytes()
    digest = hashlib.sha256(content).hexdigest()
    if digest != _MERGES_SHA256:
        raise UserError(
            f"{_MERGES_PATH} is not the file that OpenAI published: its SHA-256 is {digest}, "
            f"expected {_MERGES_SHA256}; install owt-pipeline again"
        )
    # The first line is the file's version, the last one is empty.
    lines = content.decode().split("\n")[1:-1]
    merges: list[tuple[str, str]] = []
    for line in lines:
        left, right = line.split(" ")
        merges.append((left, right))
    return merges


def _char_by_byte() -> dict[int, str]:
    """Return the character that represents each byte in the file, in the order of the bytes' ids.

    A printable character represents itself, any other byte is a character from U+0100 on.
    """
    printable = [
        *range(ord("!"), ord("~") + 1),
        *range(ord("¡"), ord("¬") + 1),
        *range(ord("®"), ord("ÿ") + 1),
    ]
    unprintable = [byte for byte in range(256) if byte not in printable]
    chars = {byte: chr(byte) for byte in printable}
    for position, byte in enumerate(unprintable):
        chars[byte] = chr(256 + position)
    return chars
