"""What runs and tools start from: a checkpoint, a run's newest one, or a GPT-2 of Hugging Face."""

from __future__ import annotations

import dataclasses
import json
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file

from schemas import SettingsError, option
from trainer.checkpoint import WEIGHTS, CheckpointError, Record, latest, read_record, resolve
from trainer.command_line import check_local, first_line, note
from trainer.config import SHAPE, TrainConfig, config_of, known_entries
from trainer.corpora import Corpora
from trainer.data import DocumentBlocks
from trainer.metrics import has_saved
from trainer.model import GPT, ModelConfig
from trainer.remote import download_model, is_hub_name
from trainer.shards import TokenizerInfo, sha256_of
from trainer.signing import verifier_of

MODELS = "a checkpoint, a run's folder for its newest, or a GPT-2 folder or name of Hugging Face"


@dataclass(frozen=True)
class ModelOptions:
    """Which checkpoint a tool takes, and how it computes."""

    step: int | None = option(
        None, "the run's checkpoint of this step (default: the newest)", minimum=0
    )
    verify_key: str | None = option(
        None, "refuse a model unless the owner of this public key signed it", metavar="PEM"
    )
    device: str = option("auto", "auto is cuda if there is a GPU", choices=("auto", "cpu", "cuda"))
    dtype: str = option("auto", "auto is bfloat16 on cuda", choices=("auto", "float32", "bfloat16"))


@dataclass(frozen=True)
class Pretrained:
    """A trained model, in evaluation mode."""

    folder: Path  # where it was read from
    model: GPT
    tokenizer: Path  # its tokenizer.json; a Hugging Face folder may have other files, or none
    eot: int  # id of end-of-text
    record: Record | None  # that of the checkpoint; None for a Hugging Face folder
    blocks: DocumentBlocks  # how it treated the documents of a window in training

    def check_tokenizer(self, other: TokenizerInfo, where: str) -> None:
        """Raise CheckpointError unless the shards in `where` have this model's tokenizer and
        end-of-text."""
        if has_tokenizer(self.tokenizer.parent):
            is_file = self.tokenizer.is_file()
            same = is_file and sha256_of(self.tokenizer) == other.sha256
            same = same or Tokenizer(self.tokenizer).definition == Tokenizer(other.path).definition
        else:  # a Hugging Face folder with weights only: compare the size
            same = self.model.config.vocab_size == other.vocab_size
        if not same or self.eot != other.eot:
            raise CheckpointError(
                f"{where} has the tokenizer {other}, which is not that of {self.folder} "
                f"(end-of-text {self.eot}): "
                f"tokenize again with --tokenizer {self.tokenizer}, or the right --eot_token"
            )


def load_pretrained(
    source: str,
    device: torch.device | str = "cpu",
    *,
    verify_key: str | None = None,
    step: int | None = None,
) -> Pretrained:
    """Return the model of a Hugging Face folder or name, or of a checkpoint as `resolve` finds it.

    The owner of the public key `verify_key` must have signed the folder, which is checked before
    the model is read. Raises SignatureError, CheckpointError, ValueError: it is not signed, is
    damaged, or of an unsupported kind.
    """
    check_local(source, "model")
    check = verifier_of(verify_key) if verify_key else None
    if is_hub_name(source):
        if check:  # the cache has links, which no signature covers
            raise SettingsError(
                f"verify_key: signatures are of a folder: hf download {source} --local-dir FOLDER"
            )
        source = str(download_model(source))
    huggingface = (Path(source) / "config.json").is_file()
    folder = Path(source) if huggingface else resolve(source, step)
    if check:
        check(folder)
    if huggingface:
        model, record, mask = load_huggingface(folder), None, False
        eot = end_of_text(folder, model.config.vocab_size)
    else:
        record = read_record(folder)
        shape = known_entries(ModelConfig, record.model, str(folder), note)
        model, eot = GPT(ModelConfig(**shape)), record.tokenizer["eot"]
        mask = record.settings.get("document_mask", False)
        model.load_state_dict(load_file(folder / WEIGHTS))
    for name, parameter in model.named_parameters():
        if not parameter.isfinite().all():
            raise CheckpointError(
                f"{folder}: the weights {name} are not finite; take another model, or an earlier "
                f"checkpoint"
            )
    blocks = DocumentBlocks(eot, mask)
    return Pretrained(
        folder, model.to(device).eval(), folder / "tokenizer.json", eot, record, blocks
    )


# The settings that a resumed run has to keep.
_FROZEN = SHAPE - {"dropout"} | {
    "preset", "init_from", "seed", "batch_tokens", "optimizer", "sampler", "long_min_tokens",
    "long_fraction", "document_mask",
}  # fmt: skip


def newest(
    out: Path, say: Callable[[str], None], verify_key: str | None
) -> tuple[Path, Record] | None:
    """The run's newest intact checkpoint; None for a new run. Raises CheckpointError,
    SignatureError."""
    hint = f"restore it from a copy, or move {out} aside to start at step 0"
    hint = f"with verify_key, no earlier one is taken in its place; {hint}" if verify_key else hint
    found = latest(out, say, hint, strict=bool(verify_key))
    metrics, folder = out / "metrics.jsonl", out / "checkpoints"
    # A part is left where the first save was interrupted.
    if not found and has_saved(metrics) and not any(folder.glob(".step-*.part")):
        raise CheckpointError(
            f"{folder} has no checkpoint, but the run of {metrics} has saved some; {hint}"
        )
    if found and verify_key:
        verifier_of(verify_key)(found[0])
    return found


def check_same_run(
    path: Path, before: Record, config: TrainConfig, corpora: Corpora, say: Callable[[str], None]
) -> None:
    """Raises SettingsError if the checkpoint is of another run; says which settings have
    changed."""
    refused = []
    earlier = config_of(before.settings, path.name, say)
    for field in dataclasses.fields(config):
        old, new = getattr(earlier, field.name), getattr(config, field.name)
        # `data` is compared by what the shards hold, not by where they are.
        if field.metadata["shapes_bytes"] and field.name != "data" and old != new:
            change = f"{field.name} was {old}, is {new}"
            if field.name in _FROZEN:
                refused.append(change)
            else:
                say(f"changed since {path.name}: {change}")
    was, now = dataclasses.replace(corpora.tokenizer, **before.tokenizer), corpora.tokenizer
    if not was.same_as(now):
        refused.append(f"the tokenizer was {was}, is {now}")

    data = corpora.description()
    if [(own["digest"], own["share"]) for own in before.data] != [
        (own["digest"], own["share"]) for own in data
    ]:
        changed = f"the data was {described(before.data)}, is {described(data)}"
        refused.append(f"{changed}: other data is a new run with --init_from {config.out}")
    if refused:
        raise SettingsError(
            f"{path} is of another run: {'; '.join(refused)}. Use another --out, or the same "
            f"settings"
        )


def described(data: list[dict[str, Any]]) -> str:
    """The data of a record in a line."""
    return ", ".join(f"{own['folder']} ({own['share']:.1%}, {own['digest'][:12]}…)" for own in data)


def load_weights(
    model: GPT, path: Path | None, config: TrainConfig, corpora: Corpora, say: Callable[[str], None]
) -> Path | None:
    """Load the weights of the checkpoint `path`, or else of `init_from`; returns whose
    optimizer's state to load."""
    if path:
        model.load_state_dict(load_file(path / WEIGHTS))
        return path
    if not config.init_from:
        return None
    trained = load_pretrained(config.init_from, verify_key=config.verify_key)
    trained.check_tokenizer(corpora.tokenizer, corpora.datasets[0].folder)
    ours, theirs = model.config, trained.model.config
    shape: dict[str, Any] = {"dropout": ours.dropout, "context": min(ours.context, theirs.context)}
    if dataclasses.replace(theirs, **shape) != ours:
        raise CheckpointError(
            f"{config.init_from} is of another shape: {theirs}; these settings make {ours}"
        )
    state = trained.model.state_dict()
    if not ours.rope:
        state["wpe.weight"] = state["wpe.weight"][: ours.context]
    model.load_state_dict(state)
    if ours.context < theirs.context:
        say(
            f"weights from {config.init_from}, of whose {theirs.context} positions the first "
            f"{ours.context} are kept; no state of the optimizer"
        )
        return None
    same = trained.record is not None and (
        config_of(trained.record.settings, config.init_from).optimizer == config.optimizer
    )
    say(f"weights{' and state of the optimizer' if same else ''} from {config.init_from}")
    return trained.folder if same else None


class Tokenizer:
    """Text to ids and back, by a `tokenizer.json` in the format of Hugging Face's tokenizers, or,
    where there is none, by GPT-2's `vocab.json` and `merges.txt` next to it.

    A text always has the same ids: dropout, truncation and padding, which the file may ask for, are
    off. Text that looks like a special token is encoded as ordinary text, and a lone surrogate as
    U+FFFD. `loaded` is the package's own tokenizer; those of equal `definition` give equal ids.
    ValueError if the package cannot read the file.
    """

    def __init__(self, path: Path) -> None:
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
        name = entries["model"].get("unk_token")
        self._unknown = (
            entries["model"].get("unk_id") if name is None else self.loaded.token_to_id(name)
        )
        # Files write the same BPE with an option empty, null or left out.
        self.definition = (
            {key: own for key, own in entries["model"].items() if own not in (None, "", False)},
            {token["content"]: token["id"] for token in entries["added_tokens"]},
        )

    def encode(self, text: str) -> list[int]:
        text = text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
        return self.loaded.encode(text, add_special_tokens=False).ids

    def decode(self, ids: Sequence[int]) -> str:
        return self.loaded.decode(ids, skip_special_tokens=True)

    def count_bytes(self, ids: Sequence[int]) -> int:
        """UTF-8 bytes of the text that `ids` decode to; the unknown token has none."""
        known = [token for token in ids if token != self._unknown]
        if self.loaded.decoder is None:  # the package would write a space between any two tokens
            return len("".join(map(self.loaded.id_to_token, known)).encode("utf-8"))
        return len(self.decode(known).encode("utf-8"))


def has_tokenizer(folder: Path) -> bool:
    """Return whether `Tokenizer(folder / "tokenizer.json")` has files to read."""
    is_old = (folder / "vocab.json").is_file() and (folder / "merges.txt").is_file()
    return (folder / "tokenizer.json").is_file() or is_old


def _read_tokenizer(tokenizers: Any, path: Path) -> Any:
    vocab, merges = (str(path.with_name(name)) for name in ("vocab.json", "merges.txt"))
    if path.is_file() or not has_tokenizer(path.parent):
        return tokenizers.Tokenizer.from_file(str(path))
    loaded = tokenizers.Tokenizer(tokenizers.models.BPE.from_file(vocab, merges))
    loaded.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    loaded.decoder = tokenizers.decoders.ByteLevel()
    loaded.add_special_tokens(["<|endoftext|>"])
    return loaded


_TRANSPOSED = ("attn.c_attn.weight", "attn.c_proj.weight", "mlp.c_fc.weight", "mlp.c_proj.weight")
# Settings of GPT-2 that this model does not vary.
_FIXED = (
    "model_type", "activation_function", "layer_norm_epsilon", "scale_attn_weights",
    "scale_attn_by_inverse_layer_idx", "reorder_and_upcast_attn", "add_cross_attention",
    "tie_word_embeddings", "n_inner",
)  # fmt: skip


def load_huggingface(folder: Path) -> GPT:
    """The GPT-2 in a local folder of transformers'; ValueError for another model, or one that
    cannot be read."""
    transformers = _transformers()
    try:
        config = transformers.GPT2Config.from_pretrained(folder)
        plain = transformers.GPT2Config(
            n_inner=4 * config.n_embd if getattr(config, "n_inner", None) else None
        )
        if config.activation_function == "gelu_pytorch_tanh":  # another name of the same
            config.activation_function = "gelu_new"
        for key in _FIXED:
            if (found := getattr(config, key)) != (wanted := getattr(plain, key)):
                raise ValueError(f"its {key} is {found!r}, this model has {wanted!r}")
        theirs, report = transformers.GPT2LMHeadModel.from_pretrained(
            folder, dtype=torch.float32, local_files_only=True, output_loading_info=True
        )
        if missing := report["missing_keys"]:
            raise ValueError(f"it is no GPT-2: the tensor {min(missing)} is missing")
        tied = theirs.lm_head.weight, theirs.transformer.wte.weight
        if not torch.allclose(*tied, rtol=0, atol=0, equal_nan=True):
            raise ValueError(
                "its output layer (lm_head) is not its embedding, although config.json ties them"
            )
    except Exception as error:  # of transformers, safetensors or pickle
        raise ValueError(
            f"{folder} is no model that the trainer loads: {first_line(error)}"
        ) from error
    sizes = config.vocab_size, config.n_positions, config.n_layer, config.n_head, config.n_embd
    model = GPT(ModelConfig(*sizes))
    model.load_state_dict(from_huggingface(theirs.state_dict(), model.config))
    return model


def from_huggingface(
    state: dict[str, torch.Tensor], config: ModelConfig
) -> dict[str, torch.Tensor]:
    """The weights of GPT2LMHeadModel, whose blocks have Conv1D in place of linear layers, as
    ours, with padding."""
    ours = {
        name.removeprefix("transformer."): own
        for name, own in state.items()
        if name != "lm_head.weight"
    }
    padding = config.padded_vocab_size - config.vocab_size
    ours["wte.weight"] = torch.nn.functional.pad(ours["wte.weight"], (0, 0, 0, padding))
    return _transposed(ours)


def _transposed(state: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Return the weights with those of linear layers as Conv1D has them, or the reverse."""
    return {
        name: (tensor.t() if name.endswith(_TRANSPOSED) else tensor).contiguous()
        for name, tensor in state.items()
    }


def to_huggingface(model: GPT) -> dict[str, torch.Tensor]:
    """Return the weights with the names and layout of GPT2LMHeadModel, in float32.

    They have no padding. The biases of a model without are zero.
    """
    state = {name: own.detach().float().cpu() for name, own in model.state_dict().items()}
    with torch.device("meta"):
        names = GPT(dataclasses.replace(model.config, bias=True)).state_dict()
    for name in names.keys() - state.keys():
        state[name] = torch.zeros(names[name].shape)
    state["wte.weight"] = state["wte.weight"][: model.config.vocab_size]
    return {f"transformer.{name}": own for name, own in _transposed(state).items()}


def end_of_text(folder: Path, vocab_size: int) -> int:
    """The id of end-of-text in a folder of transformers'.

    It is what config.json or generation_config.json name as `eos_token_id`: of several ids, the one
    that the tokenizer ends texts with, or the first. If they name none, it is the tokenizer's;
    ValueError if that has none either.
    """
    named: list[int] = []
    for name in ("config.json", "generation_config.json"):
        found = _entries(folder / name).get("eos_token_id")
        named = named or [
            token for token in (found if isinstance(found, list) else [found]) if type(token) is int
        ]
    if has_tokenizer(folder):
        text = _entries(folder / "tokenizer_config.json").get("eos_token") or "<|endoftext|>"
        tokenizer = Tokenizer(folder / "tokenizer.json").loaded
        known = tokenizer.token_to_id(text["content"] if isinstance(text, dict) else text)
        if known is not None and (not named or known in named):
            named = [known]
    if not named or not 0 <= named[0] < vocab_size:
        wrong = f"its eos_token_id is {named}, of a vocabulary of {vocab_size}"
        raise ValueError(f"{folder}: {wrong}: write the id of end-of-text into config.json")
    return named[0]


def save_huggingface(model: GPT, folder: Path, tokenizer: Path, eot: int) -> None:
    """Write a folder that `AutoModelForCausalLM` and `AutoTokenizer` load; ValueError for a
    model of other parts."""
    config, transformers = model.config, _transformers()
    gpt2 = ModelConfig()
    pieces = ("embedding_width", "shared_layers", "rope", "qk_norm", "activation")
    plain = dataclasses.replace(config, **{name: getattr(gpt2, name) for name in pieces})
    if config != plain:
        raise ValueError(
            f"transformers knows no GPT-2 with other parts than {plain}; this is {config}"
        )
    shape = transformers.GPT2Config(
        vocab_size=config.vocab_size,
        n_positions=config.context,
        n_embd=config.width,
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
    # All but the output, which is tied.
    theirs.load_state_dict(to_huggingface(model), strict=False, assign=True)
    theirs.tie_weights()
    theirs.save_pretrained(folder)
    loaded = Tokenizer(tokenizer).loaded
    text = loaded.id_to_token(eot) or "<|endoftext|>"
    transformers.PreTrainedTokenizerFast(
        tokenizer_object=loaded,
        bos_token=text,
        eos_token=text,
        unk_token=text,
        model_max_length=config.context,
    ).save_pretrained(folder)
    # Again: theirs makes an ordinary token that ends texts a special one.
    loaded.save(str(folder / "tokenizer.json"))
    for path in folder.iterdir():
        shutil.copymode(folder / "config.json", path)  # else only its owner can read the weights


def _entries(path: Path) -> dict[str, Any]:
    """The entries of a JSON file; none if there is no file."""
    return dict(json.loads(path.read_text(encoding="utf-8"))) if path.is_file() else {}


def _transformers() -> Any:
    try:
        import transformers
    except ImportError:
        text = "folders of Hugging Face need the extra hf: pip install transformers"
        raise ValueError(text) from None
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    return transformers
