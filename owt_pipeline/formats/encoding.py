"""Text to token ids, by GPT-2's tokenizer or another one (charsets: stages/extract/charset.py)."""

from __future__ import annotations

import functools
import os
import re
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence

import numpy as np

from owt_pipeline.errors import UserError
from owt_pipeline.formats.gpt2_tokenizer import (
    END_OF_TEXT,
    GPT2_END_OF_TEXT_ID,
    gpt2_tokenizer_json,
    tiktoken_encoding,
)
from owt_pipeline.formats.hub_tokenizer import download_tokenizer, is_hub_name
from owt_pipeline.storage.folder import open_source

GPT2_VOCAB_SIZE = 50_257

# The token between documents in well-known tokenizers, used if none is named.
_END_OF_TEXT_NAMES = (END_OF_TEXT, "<|end_of_text|>", "</s>", "<eos>", "<|im_end|>")

# What tokenizers change: capitals, blanks in a row, line ends, letters of many alphabets.
_SAMPLE = "The first Text,\n\n\t  of 2  Harbours: «naïve café», 東京 Привет مرحبا 😀!\n"


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

    @abstractmethod
    def check_keeps_text(self) -> None:
        """Raise UserError for a tokenizer that changes text, or takes text for end-of-text."""

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

    def check_keeps_text(self) -> None:
        """Return, since each byte has a token."""

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
        ids_of_texts = [np.array(encoding.ids, np.uint32) for encoding in encodings]
        if any(self.eot in ids for ids in ids_of_texts):
            raise UserError(
                f"the tokenizer {self.name} encodes ordinary text as {self._eot_text!r}, which "
                "separates documents; name another token with --eot_token"
            )
        return ids_of_texts

    def check_keeps_text(self) -> None:
        text = f"{_SAMPLE}{self._eot_text}\n"
        ids, _ = self.encode_batch([text])
        decoded = self._tokenizer.decode(ids.tolist(), skip_special_tokens=False)
        # Some tokenizers put a space before each text.
        if decoded.removeprefix(" ") != text:
            raise UserError(
                f"the tokenizer {self.name} changes text: {text!r} becomes {decoded!r}, so "
                "losses per byte would count bytes that no token has; use another --tokenizer"
            )


def _without_surrogates(text: str) -> str:
    """Return the text with pairs of surrogates joined and lone ones replaced.

    tiktoken's `encode_ordinary` does the same.
    """
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
