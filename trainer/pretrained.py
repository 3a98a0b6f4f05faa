"""A model to use, with its tokenizer: from a checkpoint, a run's folder, or a GPT-2 folder of Hugging Face."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from trainer.checkpoint import CheckpointError, load_model, resolve
from trainer.documents import DocumentBlocks
from trainer.huggingface import is_huggingface, load_huggingface
from trainer.model import GPT
from trainer.shards import TokenizerInfo, sha256_of
from trainer.signing import Verifier


@dataclass(frozen=True)
class Pretrained:
    """A trained model.

    Attributes:
      folder: where it was read.
      model: its weights, set to evaluation.
      tokenizer: its tokenizer.json, which a folder of Hugging Face's may lack.
      eot: id of end-of-text.
      step: optimizer steps of the checkpoint; None for a Hugging Face folder.
      blocks: what the documents of a window meant to it in training.
    """

    folder: Path
    model: GPT
    tokenizer: Path
    eot: int
    step: int | None
    blocks: DocumentBlocks

    def check_tokenizer(self, other: TokenizerInfo, where: str) -> None:
        """Raise CheckpointError unless the shards in `where` have this model's tokenizer."""
        if not self.tokenizer.is_file():  # a Hugging Face folder of weights only: its size must do
            same = (self.model.config.vocab_size, self.eot) == (other.vocab_size, other.eot)
        else:
            same = sha256_of(self.tokenizer) == other.sha256 or _tokens_of(self.tokenizer) == _tokens_of(other.path)
        if not same:
            raise CheckpointError(
                f"{where} has the tokenizer {other.name}, which is not that of {self.folder}: tokenize again with "
                f"--tokenizer {self.tokenizer}"
            )


def load_pretrained(source: str, device: torch.device | str = "cpu", verifier: Verifier | None = None) -> Pretrained:
    """The model that `source` names.

    Args:
      source: a checkpoint, a run's folder for its newest, or a folder of Hugging Face's.
      verifier: must accept the folder, before anything of the model is read.

    Raises:
      SignatureError: the verifier does not accept it.
      CheckpointError, ValueError: none of these, damaged, or of a kind this package does not have.
    """
    huggingface = is_huggingface(Path(source))
    folder = Path(source) if huggingface else resolve(source)
    if verifier:
        verifier.check(folder)
    if huggingface:
        model = load_huggingface(folder)
        eot = json.loads((folder / "config.json").read_text(encoding="utf-8")).get("eos_token_id")
        if not isinstance(eot, int):
            eot = model.config.vocab_size - 1  # as in GPT-2
        blocks = DocumentBlocks(eot)
        return Pretrained(folder, model.to(device).eval(), folder / "tokenizer.json", eot, None, blocks)
    model, record = load_model(folder, device)
    eot, settings = record.tokenizer["eot"], record.settings
    blocks = DocumentBlocks(eot, settings.get("document_mask", False), settings.get("reset_positions", False))
    return Pretrained(folder, model, folder / "tokenizer.json", eot, record.step, blocks)


def _tokens_of(path: Path) -> tuple[dict[str, int], list[list[str]]]:
    """(ids by token, merges) of a tokenizer.json, which versions of the package tokenizers write differently."""
    entries = json.loads(path.read_text(encoding="utf-8"))
    vocabulary = {**entries["model"]["vocab"], **{token["content"]: token["id"] for token in entries["added_tokens"]}}
    merges = [merge.split(" ") if isinstance(merge, str) else merge for merge in entries["model"].get("merges", [])]
    return vocabulary, merges


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
