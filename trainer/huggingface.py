"""Folders of Hugging Face's transformers: a GPT-2 is read from one and written to one.

A folder may be a model of the Hub, which is downloaded.
"""

from __future__ import annotations

import dataclasses
import re
import shutil
from pathlib import Path
from typing import Any

import torch

from trainer.command_line import first_line
from trainer.data.text import Tokenizer
from trainer.model import GPT, ModelConfig

# The weights that transformers keeps as Conv1D has them, transposed.
_TRANSPOSED = ("attn.c_attn.weight", "attn.c_proj.weight", "mlp.c_fc.weight", "mlp.c_proj.weight")
# Settings of transformers' GPT-2 that this model does not vary.
_FIXED_SETTINGS = (
    "model_type",
    "activation_function",
    "layer_norm_epsilon",
    "scale_attn_weights",
    "scale_attn_by_inverse_layer_idx",
    "reorder_and_upcast_attn",
    "add_cross_attention",
    "tie_word_embeddings",
    "n_inner",
)
# Parts of this model that transformers' GPT-2 does not have.
_OTHER_PARTS = ("embedding_width", "shared_layers", "rope", "qk_norm", "activation")

# A repository, and its revision: gpt2, openai-community/gpt2@main.
_HUB_NAME = re.compile(r"\w[\w.-]*(/\w[\w.-]*)?(@[\w./-]+)?")
# Pickled weights are downloaded only where there are no others.
_HUB_FILES = (["*.json", "merges.txt", "model*.safetensors"], ["pytorch_model*.bin"])


def is_hub_name(source: str) -> bool:
    """Return whether this has the form of a model's name at the Hub, and no file has the name."""
    return bool(_HUB_NAME.fullmatch(source)) and not Path(source).exists()


def download_model(name: str) -> Path:
    """Return the folder of a model in the Hub's cache, after a download of what the cache lacks.

    Where the Hub cannot be reached, it is what the cache has. `NAME@REVISION` selects a revision.
    Raises ValueError if the model cannot be had.
    """
    try:
        import huggingface_hub
    except ImportError:
        raise ValueError(
            f"{name} is not a folder here, and a model of the Hugging Face Hub needs the extra "
            f"hf: pip install transformers"
        ) from None
    repository, _, revision = name.partition("@")
    try:
        for patterns in _HUB_FILES:
            folder = Path(
                huggingface_hub.snapshot_download(
                    repository,
                    revision=revision or None,
                    allow_patterns=patterns,
                    ignore_patterns="*/*",
                )
            )
            if any(folder.glob("*.safetensors")):
                return folder
        if not any(folder.glob("*.bin")):
            raise FileNotFoundError("it has no weights")
        return folder
    # Errors of the package, its HTTP client or the file system.
    except Exception as error:
        of_revision = f" --revision {revision}" if revision else ""
        raise ValueError(
            f"{name} is neither a folder here nor a model that can be had from the Hugging Face "
            f"Hub ({first_line(error)}): check the name; or fetch it once while connected "
            f"(`hf download {repository}{of_revision}`); or name a mirror by HF_ENDPOINT"
        ) from error


def load_huggingface(folder: Path) -> GPT:
    """Return the GPT-2 in a local folder, with the end-of-text that its config.json names.

    Raises ValueError if it is another model or damaged.
    """
    transformers = _transformers()
    try:
        config = transformers.GPT2Config.from_pretrained(folder)
        _check_settings(config, transformers)
        theirs, report = transformers.GPT2LMHeadModel.from_pretrained(
            folder,
            dtype=torch.float32,
            local_files_only=True,
            output_loading_info=True,
            # Their error refers to a report that is not printed; `_check_tensors` has one line.
            ignore_mismatched_sizes=True,
        )
        _check_tensors(report, config.n_layer)
        output = theirs.lm_head.weight
        embedding = theirs.transformer.wte.weight
        if not torch.allclose(output, embedding, rtol=0, atol=0, equal_nan=True):
            raise ValueError(
                "its output layer (lm_head) is not its embedding, although config.json ties them"
            )
        eot = config.eos_token_id
        if isinstance(eot, list):
            eot = next(iter(eot), None)
        if type(eot) is not int or not 0 <= eot < config.vocab_size:
            raise ValueError(
                f"its eos_token_id is {eot}, of a vocabulary of {config.vocab_size}: write the id "
                f"of end-of-text into config.json"
            )
    # Errors of transformers, safetensors or pickle.
    except Exception as error:
        raise ValueError(
            f"{folder} is not a model that the trainer loads: {first_line(error)}"
        ) from error
    shape = ModelConfig(
        vocab_size=config.vocab_size,
        block_size=config.n_positions,
        n_layer=config.n_layer,
        n_head=config.n_head,
        n_embd=config.n_embd,
    )
    model = GPT(shape)
    model.load_state_dict(from_huggingface(theirs.state_dict(), shape))
    model.eot = eot
    return model


def _check_tensors(report: dict[str, Any], num_blocks: int) -> None:
    """Raise ValueError if the weights are not those that config.json describes."""
    wrong = [*report["missing_keys"], *(name for name, *_ in report["mismatched_keys"])]
    # Heads of other tasks and masks of earlier versions may be left out, blocks may not.
    for name in report["unexpected_keys"]:
        block = re.search(r"\bh\.(\d+)\.", name)
        if block and int(block[1]) >= num_blocks:
            wrong.append(name)
    if wrong:
        raise ValueError(f"the tensor {min(wrong)} is not as its config.json describes it")


def _check_settings(config: Any, transformers: Any) -> None:
    """Raise ValueError if a setting of transformers' GPT-2 differs from what this model has."""
    n_inner = 4 * config.n_embd if getattr(config, "n_inner", None) else None
    supported = transformers.GPT2Config(n_inner=n_inner)
    # Two names of the same function.
    if config.activation_function == "gelu_pytorch_tanh":
        config.activation_function = "gelu_new"
    for name in _FIXED_SETTINGS:
        theirs = getattr(config, name)
        ours = getattr(supported, name)
        if theirs != ours:
            raise ValueError(f"its {name} is {theirs!r}, this model has {ours!r}")


def from_huggingface(
    state: dict[str, torch.Tensor], config: ModelConfig
) -> dict[str, torch.Tensor]:
    """Return the weights of GPT2LMHeadModel with this model's names, layout and padding."""
    ours = {
        name.removeprefix("transformer."): tensor
        for name, tensor in state.items()
        if name != "lm_head.weight"
    }
    num_padding = config.padded_vocab_size - config.vocab_size
    ours["wte.weight"] = torch.nn.functional.pad(ours["wte.weight"], (0, 0, 0, num_padding))
    return _transposed(ours)


def to_huggingface(model: GPT) -> dict[str, torch.Tensor]:
    """Return the weights with the names and layout of GPT2LMHeadModel, in float32.

    They have no padding. A model without biases gets biases of zero.
    """
    with torch.device("meta"):
        with_biases = GPT(dataclasses.replace(model.config, bias=True)).state_dict()
    state = {name: torch.zeros(tensor.shape) for name, tensor in with_biases.items()}
    for name, tensor in model.state_dict().items():
        state[name] = tensor.detach().float().cpu()
    state["wte.weight"] = state["wte.weight"][: model.config.vocab_size]
    return {f"transformer.{name}": tensor for name, tensor in _transposed(state).items()}


def _transposed(state: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Return the weights with Conv1D's layout in place of linear layers', or the reverse."""
    result = {}
    for name, tensor in state.items():
        if name.endswith(_TRANSPOSED):
            tensor = tensor.t()
        result[name] = tensor.contiguous()
    return result


def save_huggingface(model: GPT, folder: Path, tokenizer: Path | None, eot: int | None) -> None:
    """Write a folder that `AutoModelForCausalLM` and, with a tokenizer, `AutoTokenizer` load.

    Raises ValueError for a model with parts that transformers' GPT-2 does not have.
    """
    transformers = _transformers()
    config = model.config
    gpt2 = ModelConfig()
    gpt2_parts = {name: getattr(gpt2, name) for name in _OTHER_PARTS}
    supported = dataclasses.replace(config, **gpt2_parts)
    if config != supported:
        raise ValueError(
            f"transformers knows no GPT-2 with other parts than {supported}; this is {config}"
        )
    shape = transformers.GPT2Config(
        vocab_size=config.vocab_size,
        n_positions=config.block_size,
        n_embd=config.n_embd,
        n_layer=config.n_layer,
        n_head=config.n_head,
        attn_pdrop=config.dropout,
        resid_pdrop=config.dropout,
        embd_pdrop=0.0,
        bos_token_id=eot,
        eos_token_id=eot,
    )
    with torch.device("meta"):
        theirs = transformers.GPT2LMHeadModel(shape)
    # Not strict: the output is missing, which is tied.
    theirs.load_state_dict(to_huggingface(model), strict=False, assign=True)
    theirs.tie_weights()
    theirs.save_pretrained(folder)
    if tokenizer is not None and eot is not None:
        _save_tokenizer(folder, tokenizer, eot, config.block_size)
    # Otherwise only its owner can read the weights.
    for path in folder.iterdir():
        shutil.copymode(folder / "config.json", path)


def _save_tokenizer(folder: Path, tokenizer: Path, eot: int, block_size: int) -> None:
    transformers = _transformers()
    loaded = Tokenizer(tokenizer).loaded
    text = loaded.id_to_token(eot) or "<|endoftext|>"
    transformers.PreTrainedTokenizerFast(
        tokenizer_object=loaded,
        bos_token=text,
        eos_token=text,
        unk_token=text,
        model_max_length=block_size,
    ).save_pretrained(folder)
    # Again: transformers makes an ordinary token that ends texts a special one.
    loaded.save(str(folder / "tokenizer.json"))


def _transformers() -> Any:
    try:
        import transformers
    except ImportError:
        raise ValueError(
            "folders of Hugging Face need the extra hf: pip install transformers"
        ) from None
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    return transformers
