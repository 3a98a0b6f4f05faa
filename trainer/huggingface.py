"""To and from the GPT-2 folders that Hugging Face's transformers reads and writes; needs no transformers."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

from trainer.model import GPT, ModelConfig

_TRANSPOSED = ("attn.c_attn.weight", "attn.c_proj.weight", "mlp.c_fc.weight", "mlp.c_proj.weight")
_FIXED = {  # what GPT-2 is, and this model does not vary
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
    """The weights under GPT2LMHeadModel's names and layout: Conv1D's are transposed, the padding is gone.

    Raises:
      ValueError: the model has a factorised embedding or shared layers, which that class has not.
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
    shutil.copymode(folder / "config.json", folder / "model.safetensors")  # safetensors lets its owner alone read it
    _write_json(folder / "generation_config.json", {"bos_token_id": eot, "eos_token_id": eot})
    shutil.copyfile(tokenizer, folder / "tokenizer.json")
    added = json.loads(tokenizer.read_text(encoding="utf-8")).get("added_tokens", [])
    text = next((token["content"] for token in added if token["id"] == eot), "<|endoftext|>")
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
