"""Load a trained model with its tokenizer: from a checkpoint, a run's folder, or a GPT-2 folder of Hugging Face."""

from __future__ import annotations

import json
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

from trainer.checkpoint import CheckpointError, Verifier, load_model, resolve
from trainer.command_line import check_local, note
from trainer.data import DocumentBlocks
from trainer.model import GPT, ModelConfig
from trainer.remote import sha256_of
from trainer.shards import TokenizerInfo


@dataclass(frozen=True)
class Pretrained:
    """A trained model.

    Attributes:
      folder: where it was read from.
      model: the model, in evaluation mode.
      tokenizer: its tokenizer.json, which a Hugging Face folder may lack.
      eot: id of end-of-text.
      step: optimizer steps of the checkpoint; None for a Hugging Face folder.
      blocks: how it treated the documents of a window in training.
    """

    folder: Path
    model: GPT
    tokenizer: Path
    eot: int
    step: int | None
    blocks: DocumentBlocks

    def check_tokenizer(self, other: TokenizerInfo, where: str) -> None:
        """Raise CheckpointError unless the shards in `where` have this model's tokenizer and end-of-text."""
        if not self.tokenizer.is_file():  # a Hugging Face folder with weights only: compare the size
            same = self.model.config.vocab_size == other.vocab_size
        else:
            same = sha256_of(self.tokenizer) == other.sha256 or _tokens_of(self.tokenizer) == _tokens_of(other.path)
        if not same:
            raise CheckpointError(
                f"{where} has the tokenizer {other.name}, which is not that of {self.folder}: tokenize again with "
                f"--tokenizer {self.tokenizer}"
            )
        if self.eot != other.eot:
            raise CheckpointError(
                f"{where} has end-of-text {other.eot}, {self.folder} has {self.eot}: tokenize again with --eot_token"
            )


def load_pretrained(
    source: str,
    device: torch.device | str = "cpu",
    *,
    verify_key: str | None = None,
    step: int | None = None,
    newest: bool = False,
) -> Pretrained:
    """The model in `source`. For a run's folder, the error stream says which checkpoint was taken.

    Args:
      source: a checkpoint, a run's folder for its newest intact checkpoint, or a Hugging Face folder.
      verify_key: public key whose owner must have signed the folder; checked before anything of the model is read. A
        damaged newest checkpoint is then an error, so that damage cannot bring back an earlier model.
      step: of the run's checkpoint, if it is not the newest.
      newest: whether a damaged newest checkpoint is an error without `verify_key`, too.

    Raises:
      SignatureError: the key's owner has not signed it.
      CheckpointError, ValueError: it is no model, is damaged, or is of an unsupported kind.
    """
    check_local(source, "model")
    verifier = Verifier(verify_key) if verify_key else None
    huggingface = is_huggingface(Path(source))
    strict = "restore it, or name another one by --step" if newest or verifier else ""
    folder = Path(source) if huggingface else resolve(source, step, note, strict=strict)
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


def _tokens_of(path: Path) -> tuple[dict[str, int], list[list[Any]]]:
    """(ids by token, merges) of a tokenizer.json, which versions of the package tokenizers write differently."""
    entries = json.loads(path.read_text(encoding="utf-8"))
    vocabulary, merges = entries["model"]["vocab"], entries["model"].get("merges", [])
    if isinstance(vocabulary, list):  # of Unigram: tokens and their scores
        vocabulary, merges = {token: number for number, (token, _) in enumerate(vocabulary)}, vocabulary
    vocabulary = {**vocabulary, **{token["content"]: token["id"] for token in entries["added_tokens"]}}
    return vocabulary, [merge.split(" ") if isinstance(merge, str) else merge for merge in merges]


class Tokenizer:
    """Text to ids and back, by a `tokenizer.json` in the format of Hugging Face's tokenizers.

    Text that looks like a special token is encoded as ordinary text, and a lone surrogate as U+FFFD.

    Raises:
      ValueError: the package tokenizers is not installed or cannot read the file.
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
            raise ValueError(f"{path} is not a tokenizer that the package tokenizers reads: {error}") from error
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()
        self._tokenizer.encode_special_tokens = True

    def encode(self, text: str) -> list[int]:
        text = text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
        return self._tokenizer.encode(text, add_special_tokens=False).ids

    def decode(self, ids: list[int]) -> str:
        return self._tokenizer.decode(ids, skip_special_tokens=True)


_TRANSPOSED = ("attn.c_attn.weight", "attn.c_proj.weight", "mlp.c_fc.weight", "mlp.c_proj.weight")
_FIXED = {  # settings of GPT-2 that this model does not vary
    "model_type": "gpt2",
    "activation_function": "gelu_new",
    "layer_norm_epsilon": 1e-5,
    "scale_attn_weights": True,
    "scale_attn_by_inverse_layer_idx": False,
    "reorder_and_upcast_attn": False,
    "add_cross_attention": False,
    "tie_word_embeddings": True,
}


def to_huggingface(model: GPT) -> dict[str, torch.Tensor]:
    """The weights with GPT2LMHeadModel's names and layout: those of Conv1D transposed, without padding.

    Raises:
      ValueError: the model has a part that GPT2LMHeadModel lacks, such as shared layers.
    """
    config = model.config
    if not config.is_gpt2:
        raise ValueError(
            "a model with a factorised embedding, shared layers or pieces of the speedrun preset is no GPT-2 that "
            "transformers knows"
        )
    state = {}
    for name, tensor in model.state_dict().items():
        if name == "wte.weight":
            tensor = tensor[: config.vocab_size]
        elif name.endswith(_TRANSPOSED):
            tensor = tensor.t()
        state[f"transformer.{name}"] = tensor.detach().contiguous().cpu()
    return state


def from_huggingface(state: dict[str, torch.Tensor], config: ModelConfig) -> dict[str, torch.Tensor]:
    """Weights of GPT2LMHeadModel or GPT2Model as this package's state dict."""
    ours = {}
    for name, tensor in state.items():
        name = name.removeprefix("transformer.")
        if name == "lm_head.weight" or name.endswith((".attn.bias", ".attn.masked_bias")):
            continue  # the tied output, and the causal mask that old versions stored
        if name == "wte.weight":
            tensor = torch.nn.functional.pad(tensor, (0, 0, 0, config.padded_vocab_size - config.vocab_size))
        elif name.endswith(_TRANSPOSED):
            tensor = tensor.t()
        ours[name] = tensor.contiguous()
    return ours


def is_huggingface(folder: Path) -> bool:
    """Whether `folder` looks like one of transformers' models."""
    return (folder / "config.json").is_file()


def load_huggingface(folder: Path) -> GPT:
    """The GPT-2 in a local folder of transformers' (config.json, model.safetensors or pytorch_model.bin).

    Raises:
      ValueError: it is no GPT-2, or of a kind this model does not have.
    """
    entries = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    for key, wanted in _FIXED.items():
        found = entries.get(key, wanted)
        if found != wanted:
            raise ValueError(f"{folder / 'config.json'}: {key} is {found!r}, this model has {wanted!r}")
    if entries.get("n_inner") not in (None, 4 * entries["n_embd"]):
        raise ValueError(f"{folder / 'config.json'}: n_inner is {entries['n_inner']}, this model has 4 × n_embd")
    config = ModelConfig(
        vocab_size=entries["vocab_size"],
        context=entries["n_positions"],
        n_layer=entries["n_layer"],
        n_head=entries["n_head"],
        width=entries["n_embd"],
    )
    if (folder / "model.safetensors").is_file():
        state = load_file(folder / "model.safetensors")
    elif (folder / "pytorch_model.bin").is_file():
        state = torch.load(folder / "pytorch_model.bin", map_location="cpu", weights_only=True)
    else:
        raise ValueError(f"{folder} has neither model.safetensors nor pytorch_model.bin")
    model = GPT(config)
    model.load_state_dict(from_huggingface(state, config))
    return model


def save_huggingface(model: GPT, folder: Path, tokenizer: Path, eot: int) -> None:
    """Write a folder that `GPT2LMHeadModel.from_pretrained` and `AutoTokenizer` load."""
    folder.mkdir(parents=True, exist_ok=True)
    config = model.config
    save_file(to_huggingface(model), folder / "model.safetensors", metadata={"format": "pt"})
    entries = {
        "architectures": ["GPT2LMHeadModel"],
        **_FIXED,
        "vocab_size": config.vocab_size,
        "n_positions": config.context,
        "n_ctx": config.context,
        "n_layer": config.n_layer,
        "n_head": config.n_head,
        "n_embd": config.width,
        "attn_pdrop": config.dropout,
        "resid_pdrop": config.dropout,
        "embd_pdrop": 0.0,
        "initializer_range": 0.02,
        "bos_token_id": eot,
        "eos_token_id": eot,
    }
    _write_json(folder / "config.json", entries)
    shutil.copymode(folder / "config.json", folder / "model.safetensors")  # else only its owner can read it
    _write_json(folder / "generation_config.json", {"bos_token_id": eot, "eos_token_id": eot})
    shutil.copyfile(tokenizer, folder / "tokenizer.json")
    text = next((token for token, number in _tokens_of(tokenizer)[0].items() if number == eot), "<|endoftext|>")
    _write_json(
        folder / "tokenizer_config.json",
        {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "model_max_length": config.context,
            "bos_token": text,
            "eos_token": text,
            "unk_token": text,
        },
    )


def _write_json(path: Path, entries: dict[str, Any]) -> None:
    path.write_text(json.dumps(entries, indent=2) + "\n", encoding="utf-8")
