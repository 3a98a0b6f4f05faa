"""A trained model: from a checkpoint, a run's newest one, or a GPT-2 of Hugging Face."""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors.torch import load_file

from schemas import SettingsError, option
from trainer.checkpoint import (
    TOKENIZER,
    WEIGHTS,
    CheckpointError,
    Record,
    read_record,
    resolve,
    sha256_of,
)
from trainer.command_line import check_local, first_line
from trainer.data.loader import DocumentBlocks
from trainer.data.shards import TokenizerInfo
from trainer.data.text import Tokenizer
from trainer.huggingface import download_model, is_hub_name, load_huggingface
from trainer.model import GPT, ModelConfig
from trainer.signing import verifier_of

MODELS = "a checkpoint, a run's folder for its newest, or a GPT-2 folder or name of Hugging Face"


@dataclass(frozen=True)
class CheckpointOptions:
    """The checkpoint that a tool takes."""

    step: int | None = option(
        None, "the run's checkpoint of this step (default: the newest)", minimum=0
    )
    checkpoint: str = option(
        "newest",
        "the run's newest checkpoint, or the one with the lowest validation loss",
        choices=("newest", "best"),
    )
    verify_key: str | None = option(
        None,
        "refuse a model unless the owner of this public key signed it",
        metavar="PEM",
        is_path=True,
    )

    def load(self, source: str, device: torch.device | str = "cpu") -> Pretrained:
        """Return the model that these options choose, as `load_pretrained`."""
        return load_pretrained(
            source,
            device,
            verify_key=self.verify_key,
            step=self.step,
            is_best=self.checkpoint == "best",
        )


@dataclass(frozen=True)
class ModelOptions(CheckpointOptions):
    """The checkpoint that a tool takes, and how it computes."""

    device: str = option("auto", "auto is cuda if there is a GPU", choices=("auto", "cpu", "cuda"))
    dtype: str = option("auto", "auto is bfloat16 on cuda", choices=("auto", "float32", "bfloat16"))


@dataclass(frozen=True)
class Pretrained:
    """A trained model, in evaluation mode."""

    folder: Path  # where it was read from
    model: GPT
    tokenizer: Path  # its tokenizer.json, which a Hugging Face folder may lack
    eot: int  # id of end-of-text
    record: Record | None  # of the checkpoint; None for a Hugging Face folder
    blocks: DocumentBlocks  # how it treated the documents of a window in training

    def check_tokenizer(self, other: TokenizerInfo, where: str) -> None:
        """Raise CheckpointError unless the shards in `where` have this model's tokenizer.

        Its end-of-text has to be the same, too.
        """
        if not self._has_tokenizer(other) or self.eot != other.eot:
            flag = f"--tokenizer {shlex.quote(str(self.tokenizer))}"
            raise CheckpointError(
                f"{where} has the tokenizer {other}, which is not that of {self.folder} "
                f"(end-of-text {self.eot}): tokenize again with {flag}, or the right --eot_token"
            )

    def _has_tokenizer(self, other: TokenizerInfo) -> bool:
        if not self.tokenizer.is_file():
            # A Hugging Face folder with weights only: compare the size.
            return self.model.config.vocab_size == other.vocab_size
        if sha256_of(self.tokenizer) == other.sha256:
            return True
        return Tokenizer(self.tokenizer).definition == Tokenizer(other.path).definition


def load_pretrained(
    source: str,
    device: torch.device | str = "cpu",
    *,
    verify_key: str | None = None,
    step: int | None = None,
    is_best: bool = False,
) -> Pretrained:
    """Return the model of a Hugging Face folder or name, or of a checkpoint as `resolve` finds it.

    The owner of the public key `verify_key` must have signed the folder, which is checked before
    the model is read. Raises SignatureError, CheckpointError or ValueError if it is not signed, is
    damaged, or of an unsupported kind.
    """
    check_local(source, "model")
    verify = verifier_of(verify_key) if verify_key else None
    if is_hub_name(source):
        # The cache has links, which no signature covers.
        if verify:
            raise SettingsError(
                f"verify_key: signatures are of a folder: hf download {source} --local-dir FOLDER"
            )
        source = str(download_model(source))
    folder = Path(source)
    is_huggingface = (folder / "config.json").is_file()
    if not is_huggingface:
        folder = resolve(source, step, is_best=is_best)
    if verify:
        verify(folder)
    record = None if is_huggingface else read_record(folder)
    model = _load_checkpoint(folder, record) if record else load_huggingface(folder)
    for name, parameter in model.named_parameters():
        if not parameter.isfinite().all():
            raise CheckpointError(
                f"{folder}: the weights {name} are not finite; take another model, or an earlier "
                f"checkpoint"
            )
    model.tokenizer_path = folder / TOKENIZER
    eot = model.eot or 0
    has_mask = bool(record and record.settings["document_mask"])
    return Pretrained(
        folder=folder,
        model=model.to(device).eval(),
        tokenizer=model.tokenizer_path,
        eot=eot,
        record=record,
        blocks=DocumentBlocks(eot, has_mask),
    )


def _load_checkpoint(folder: Path, record: Record) -> GPT:
    try:
        model = GPT(ModelConfig(**record.model))
        model.load_state_dict(load_file(folder / WEIGHTS))
        model.eot = record.tokenizer["eot"]
    except (TypeError, RuntimeError) as error:
        raise CheckpointError(
            f"{folder} is not a model of this version, or has parts of another class "
            f"({first_line(error)}): load its weights in the program that made it"
        ) from error
    return model
