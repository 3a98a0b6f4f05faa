"""GPT-2 folders of Hugging Face's transformers, read and written."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from tests.servers.hub import environment_of, hub_server
from tests.trainer.conftest import REPOSITORY, Capture
from trainer import evaluate
from trainer.data.text import Tokenizer
from trainer.huggingface import load_huggingface, save_huggingface
from trainer.model import GPT, ModelConfig
from trainer.pretrained import load_pretrained

transformers = pytest.importorskip("transformers", reason="the extra hf: pip install transformers")
TRUNCATION = {"direction": "Right", "max_length": 4, "strategy": "LongestFirst", "stride": 0}
SHAPE = {"vocab_size": 512, "n_positions": 32, "n_layer": 2, "n_head": 2, "n_embd": 32}


@pytest.fixture
def folder(tmp_path: Path, tokenizer_file: Path) -> Path:
    """Return a model with the test's tokenizer of 400 tokens, padded to a vocabulary of 512."""
    torch.manual_seed(0)
    config = transformers.GPT2Config(**SHAPE, bos_token_id=399, eos_token_id=399)
    transformers.GPT2LMHeadModel(config).save_pretrained(tmp_path / "theirs")
    (tmp_path / "theirs" / "tokenizer.json").write_bytes(tokenizer_file.read_bytes())
    return tmp_path / "theirs"


def change(path: Path, **entries: Any) -> None:
    """Set entries of a JSON file; ... removes one."""
    entries_now = json.loads(path.read_text()) | entries
    path.write_text(
        json.dumps({key: value for key, value in entries_now.items() if value is not ...})
    )


IDS = torch.arange(32)[None] * 7 % 400


@pytest.mark.parametrize(
    "layout",
    ["as saved", "as in 2019", "GPT2Model", "tied lm_head", "pickle", "shards", "bfloat16"],
)
def test_the_logits_are_those_of_transformers(folder: Path, layout: str) -> None:
    weights = folder / "model.safetensors"
    state = load_file(weights)
    if layout == "GPT2Model":
        masks = {
            "h.0.attn.bias": torch.ones(1, 1, 32, 32),
            "h.0.attn.masked_bias": torch.tensor(-1e4),
        }
        bare = {name.removeprefix("transformer."): tensor for name, tensor in state.items()}
        save_file(bare | masks, weights, {"format": "pt"})
    elif layout == "as in 2019":
        change(folder / "config.json", model_type=...)
    elif layout == "tied lm_head":
        save_file(
            state | {"lm_head.weight": state["transformer.wte.weight"].clone()},
            weights,
            {"format": "pt"},
        )
    elif layout == "pickle":
        weights.unlink()
        torch.save(state, folder / "pytorch_model.bin")
    elif layout == "shards":
        transformers.GPT2LMHeadModel.from_pretrained(folder).save_pretrained(
            folder, max_shard_size="20KB"
        )
        weights.unlink(missing_ok=True)
        assert len(list(folder.glob("model-*.safetensors"))) > 1
    elif layout == "bfloat16":
        transformers.GPT2LMHeadModel.from_pretrained(folder, dtype=torch.bfloat16).save_pretrained(
            folder
        )
    ours = load_huggingface(folder).eval()
    assert ours.wte.weight.dtype == torch.float32
    transformers_model = transformers.GPT2LMHeadModel.from_pretrained(
        folder, dtype=torch.float32
    ).eval()
    with torch.no_grad():
        torch.testing.assert_close(ours(IDS), transformers_model(IDS).logits, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("prefix", ["transformer.", ""])
@pytest.mark.parametrize(
    "change_of_head", [lambda w: torch.zeros_like(w), lambda w: w + 1e-3, lambda w: w.flip(0)]
)
def test_an_output_layer_that_is_not_the_embedding_is_refused(
    folder: Path, prefix: str, change_of_head: Any
) -> None:
    state = {
        name.replace("transformer.", prefix): tensor
        for name, tensor in load_file(folder / "model.safetensors").items()
    }
    state["lm_head.weight"] = change_of_head(state[f"{prefix}wte.weight"])
    save_file(state, folder / "model.safetensors", {"format": "pt"})
    with pytest.raises(ValueError, match=r"lm_head\) is not its embedding"):
        load_huggingface(folder)


@pytest.mark.parametrize(
    ("entries", "message"),
    [
        ({"tie_word_embeddings": False}, "tie_word_embeddings is False, this model has True"),
        (
            {"activation_function": "relu"},
            "activation_function is 'relu', this model has 'gelu_new'",
        ),
        ({"scale_attn_by_inverse_layer_idx": True}, "scale_attn_by_inverse_layer_idx is True"),
        ({"model_type": "llama"}, "model_type is 'llama', this model has 'gpt2'"),
        ({"n_embd": 64}, "tensor transformer.h.0.* is not as its config.json describes it"),
        ({"n_positions": 8}, "transformer.wpe.weight is not as its config.json"),
        ({"vocab_size": 11}, "transformer.wte.weight is not as its config.json"),
        ({"n_layer": 1}, "transformer.h.1.attn.* is not as its config.json"),
        ({"n_layer": 3}, "transformer.h.2.* is not as its config.json"),
    ],
)
def test_a_model_of_another_kind_is_refused_in_one_line(
    folder: Path, entries: dict[str, Any], message: str
) -> None:
    change(folder / "config.json", **entries)
    with pytest.raises(ValueError, match=message) as raised:
        load_huggingface(folder)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    "content", [None, b"", b"no weights", b"version https://git-lfs.github.com/spec/v1\n"]
)
def test_weights_that_cannot_be_read_are_refused_in_one_line(
    folder: Path, content: bytes | None
) -> None:
    (folder / "model.safetensors").unlink()
    if content is not None:
        (folder / "model.safetensors").write_bytes(content)
    with pytest.raises(ValueError, match=r"is not a model that the trainer loads: [^\n]*$"):
        load_huggingface(folder)


@pytest.mark.parametrize(("eos", "expected"), [(7, 7), ([7, 399], 7)])
def test_end_of_text_is_what_config_json_names(folder: Path, eos: Any, expected: int) -> None:
    change(folder / "config.json", eos_token_id=eos)
    assert load_pretrained(str(folder)).eot == expected


@pytest.mark.parametrize("eos", [..., None, [], 512, [50256, 7]])
def test_a_folder_without_an_end_of_text_is_refused(folder: Path, eos: Any) -> None:
    change(folder / "config.json", eos_token_id=eos)
    with pytest.raises(ValueError, match=r"write the id of end-of-text into config\.json"):
        load_pretrained(str(folder))
    change(folder / "config.json", eos_token_id=399)
    assert load_pretrained(str(folder)).eot == 399


@pytest.mark.parametrize("vocab_size", [400, 401, 512])
def test_a_written_folder_is_read_back_to_the_same_bits(
    tmp_path: Path, tokenizer_file: Path, vocab_size: int
) -> None:
    torch.manual_seed(0)
    model = GPT(
        ModelConfig(
            vocab_size=vocab_size, block_size=32, n_layer=2, n_head=2, n_embd=32, dropout=0.1
        )
    ).eval()
    save_huggingface(model, tmp_path / "out", tokenizer_file, 399)
    back = load_huggingface(tmp_path / "out")
    for name, tensor in model.state_dict().items():
        assert torch.equal(back.state_dict()[name], tensor), name
    assert load_pretrained(str(tmp_path / "out")).eot == 399
    transformers_model = transformers.GPT2LMHeadModel.from_pretrained(tmp_path / "out").eval()
    torch.testing.assert_close(model(IDS), transformers_model(IDS).logits, rtol=1e-4, atol=1e-5)


def test_a_model_without_biases_is_written_with_zeros(tmp_path: Path, tokenizer_file: Path) -> None:
    torch.manual_seed(0)
    model = GPT(
        ModelConfig(vocab_size=400, block_size=32, n_layer=2, n_head=2, n_embd=32, bias=False)
    ).eval()
    assert not [name for name, _ in model.named_parameters() if name.endswith("bias")]
    save_huggingface(model, tmp_path / "out", tokenizer_file, 399)
    transformers_model = transformers.GPT2LMHeadModel.from_pretrained(tmp_path / "out").eval()
    torch.testing.assert_close(model(IDS), transformers_model(IDS).logits, rtol=1e-4, atol=1e-5)
    biases = {
        name: tensor
        for name, tensor in transformers_model.named_parameters()
        if name.endswith("bias")
    }
    assert len(biases) == 2 * 6 + 1
    assert not any(tensor.any() for tensor in biases.values())


@pytest.mark.parametrize("state", [{"truncation": TRUNCATION}, {}])
def test_the_tokenizer_of_a_written_folder_has_no_state(
    tmp_path: Path, tokenizer_file: Path, state: dict[str, Any]
) -> None:
    entries = json.loads(tokenizer_file.read_text())
    entries["model"]["dropout"] = None if state else 0.5
    (tmp_path / "tokenizer.json").write_text(json.dumps(entries | state))
    model = GPT(ModelConfig(vocab_size=400, block_size=32, n_layer=1, n_head=2, n_embd=32))
    save_huggingface(model, tmp_path / "out", tmp_path / "tokenizer.json", 399)
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "out")
    text = "import the tokenizer of this test " * 4
    expected = transformers.PreTrainedTokenizerFast(tokenizer_file=str(tokenizer_file))(
        text
    ).input_ids
    assert tokenizer.eos_token_id == 399
    assert all(tokenizer(text).input_ids == expected for _ in range(5))
    save_huggingface(
        model, tmp_path / "ordinary", tokenizer_file, 7
    )  # a token that is not a special one
    token = json.loads((tmp_path / "ordinary/tokenizer_config.json").read_text())["eos_token"]
    assert entries["model"]["vocab"][token] == 7


def test_a_model_that_transformers_lacks_is_not_written(tmp_path: Path) -> None:
    model = GPT(
        ModelConfig(vocab_size=50, block_size=8, n_layer=2, n_head=2, n_embd=16, shared_layers=True)
    )
    with pytest.raises(ValueError, match="transformers knows no GPT-2 with other parts"):
        save_huggingface(model, tmp_path, tmp_path / "tokenizer.json", 49)


def test_gelu_pytorch_tanh_is_gelu_new(folder: Path) -> None:
    logits = load_huggingface(folder).eval()(IDS)
    change(folder / "config.json", activation_function="gelu_pytorch_tanh")
    torch.testing.assert_close(load_huggingface(folder).eval()(IDS), logits)


def test_gpt2s_vocabulary_and_merges_become_a_tokenizer(folder: Path, tokenizer_file: Path) -> None:
    # GPT-2 was published with these files, before there was a tokenizer.json.
    entries = json.loads(tokenizer_file.read_text())["model"]
    merges = [" ".join(pair) for pair in entries["merges"]]
    vocab = entries["vocab"] | {"<|endoftext|>": 399}
    (folder / "tokenizer.json").unlink()
    (folder / "vocab.json").write_text(json.dumps(vocab))
    (folder / "merges.txt").write_text("\n".join(["#version: 0.2", *merges]))
    with pytest.raises(ValueError, match=r"vocab\.json and merges\.txt, transformers") as error:
        Tokenizer(folder / "tokenizer.json")
    eval(str(error.value).split("writes it by ")[1], {"AutoTokenizer": transformers.AutoTokenizer})
    text = "The heron's 3 über-fish\n  sit."
    ours = Tokenizer(folder / "tokenizer.json")
    assert ours.encode(text) == Tokenizer(tokenizer_file).encode(text)
    assert ours.decode(ours.encode(text)) == text


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("tensor", ["wte.weight", "h.1.mlp.c_fc.bias", "ln_f.weight"])
def test_weights_that_are_not_finite_are_refused(
    folder: Path, value: float, tensor: str, tmp_path: Path, capsys: Capture
) -> None:
    state = load_file(folder / "model.safetensors")
    state[f"transformer.{tensor}"].view(-1)[3] = value
    save_file(state, folder / "model.safetensors", {"format": "pt"})
    (tmp_path / "text.txt").write_text("hello " * 40)
    assert evaluate.main([str(folder), "--text", str(tmp_path / "text.txt")]) == 1
    output = capsys.readouterr()
    assert not output.out
    assert f"the weights {tensor} are not finite; take another model" in output.err


def test_a_loss_that_is_not_finite_is_not_a_figure(
    folder: Path, tmp_path: Path, text_tokens: Path, capsys: Capture
) -> None:
    state = load_file(folder / "model.safetensors")
    for key in ("transformer.wte.weight", "transformer.ln_f.weight"):
        state[key] = state[key] * 1e30 + 1e25
    save_file(state, folder / "model.safetensors", {"format": "pt"})
    (tmp_path / "text.txt").write_text("hello " * 40)
    assert evaluate.main([str(folder), "--text", str(tmp_path / "text.txt")]) == 1
    assert "loss on the text is not finite" in capsys.readouterr().err


def in_new_process(code: str, environment: dict[str, str], home: Path) -> str:
    """Return the last line of what it prints, or of its error."""
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=home,
        env=os.environ | {"PYTHONPATH": str(REPOSITORY)} | environment,
        capture_output=True,
        text=True,
        check=False,
    )
    return (done.stdout or done.stderr).strip().splitlines()[-1]


def downloaded(name: str, environment: dict[str, str], home: Path) -> str:
    code = f"from trainer.huggingface import download_model as get; print(get({name!r}))"
    return in_new_process(code, environment, home)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "layout"),
    [("tiny-gpt2", "safetensors"), ("someone/gpt2", "pickle"), ("someone/gpt2@main", "shards")],
)
def test_a_model_of_the_hub_is_loaded_by_its_name(
    folder: Path, tmp_path: Path, name: str, layout: str
) -> None:
    # The second time the Hub cannot be reached, and the cache is enough.
    if layout == "pickle":
        torch.save(load_file(folder / "model.safetensors"), folder / "pytorch_model.bin")
        (folder / "model.safetensors").unlink()
    if layout == "shards":
        model = transformers.GPT2LMHeadModel.from_pretrained(folder)
        (folder / "model.safetensors").unlink()
        model.save_pretrained(folder, max_shard_size="20KB")
    with hub_server() as hub:
        environment = environment_of(hub, tmp_path / "home")
        files = {path.name: path.read_bytes() for path in folder.iterdir()}
        hub.files[name.partition("@")[0]] = files
        folder_of_model = Path(downloaded(name, environment, tmp_path))
    assert {path.name: path.read_bytes() for path in folder_of_model.iterdir()} == files
    assert downloaded(name, environment, tmp_path) == str(folder_of_model)
    environment["HF_HUB_OFFLINE"] = "1"
    assert downloaded(name, environment, tmp_path) == str(folder_of_model)
    expected = load_pretrained(str(folder)).model(IDS)
    assert torch.equal(load_pretrained(str(folder_of_model)).model(IDS), expected)
    if layout == "safetensors":
        code = (
            f"import torch; from trainer import GPT; model = GPT.from_pretrained({name!r}); "
            "print(model(torch.arange(32)[None] * 7 % 400).double().sum().item())"
        )
        total = float(in_new_process(code, environment, tmp_path))
        assert total == pytest.approx(expected.double().sum().item(), rel=1e-6)


@pytest.mark.slow
def test_a_name_that_the_hub_does_not_have_is_one_line(tmp_path: Path) -> None:
    with hub_server() as hub:
        hub.files["someone/else"] = {"config.json": b"{}"}
        environment = environment_of(hub, tmp_path / "home")
        for name in ("gpt3", "someone/else", "a--b"):
            line = downloaded(name, environment, tmp_path)
            assert f"ValueError: {name} is neither a folder here nor a model that can be" in line
    for changed in (environment, environment | {"HF_HUB_OFFLINE": "1"}):
        line = downloaded("gpt2", changed, tmp_path)
        assert "while connected (`hf download gpt2`); or name a mirror by HF_ENDPOINT" in line
        assert "Retrying" not in line
    line = downloaded("gpt2@v1", environment, tmp_path)
    assert "(`hf download gpt2 --revision v1`)" in line


def test_a_folder_comes_before_a_name_of_the_hub(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert load_pretrained("theirs").folder == Path("theirs")
    (tmp_path / "empty").mkdir()
    with pytest.raises(ValueError, match="empty is neither a checkpoint nor the folder of a run"):
        load_pretrained("empty")


def test_signatures_are_not_checked_by_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("trainer.pretrained.verifier_of", lambda key: print)
    with pytest.raises(ValueError, match="hf download someone/gpt2 --local-dir FOLDER"):
        load_pretrained("someone/gpt2", verify_key="key.pem")
