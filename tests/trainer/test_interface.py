"""The interface of docs/training.md, "In your own code": typed, checked, with a callback."""

from __future__ import annotations

import dataclasses
import math
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from schemas import SettingsError
from tests.conftest import REPOSITORY
from tests.trainer.conftest import records_of
from trainer import GPT, ModelConfig, Step, Tokenizer, TrainConfig, open_corpora, preset, train
from trainer.__main__ import parse
from trainer.data.samplers import Packed
from trainer.pretrained import load_pretrained

PAGE = REPOSITORY / "docs" / "training.md"


@pytest.fixture
def config(config: TrainConfig) -> TrainConfig:
    return dataclasses.replace(config, max_steps=4, eval_every=2, save_every=0)


def script() -> str:
    """Return the page's script."""
    section = PAGE.read_text(encoding="utf-8").partition("## In your own code")[2]
    found = re.search(r"```python\n(.*?)```", section, re.DOTALL)
    assert found
    return found[1]


@pytest.mark.slow
def test_mypy_strict_accepts_the_pages_script(tmp_path: Path) -> None:
    pytest.importorskip("mypy")
    program = tmp_path / "program.py"
    program.write_text(f"{script()}\nreveal_type(train)\nreveal_type(model.generate('a', 1))\n")
    command = [sys.executable, "-m", "mypy", "--strict", "--cache-dir", str(tmp_path / "cache")]
    done = subprocess.run(
        [*command, "--follow-imports=silent", str(program)],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env={"MYPYPATH": str(REPOSITORY)},
        check=False,
    )
    assert done.returncode == 0, done.stdout
    assert '-> trainer.loop.TrainResult"' in done.stdout
    assert re.search(r'"(builtins\.)?str"', done.stdout)


def test_the_pages_script_trains_and_exports(
    config: TrainConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    transformers = pytest.importorskip("transformers")
    monkeypatch.chdir(tmp_path)
    text = script().replace("run/tokens", config.data[0]).replace("max_steps=50", "max_steps=4")
    names: dict[str, Any] = {}
    exec(compile(text, "training.md", "exec"), names)
    theirs = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "exported")
    ids = torch.arange(20)[None]
    with torch.no_grad():
        torch.testing.assert_close(theirs(ids).logits, names["result"].model(ids))
    assert transformers.AutoTokenizer.from_pretrained(tmp_path / "exported").encode("abc")


def test_a_callback_sees_every_step_and_its_validation(config: TrainConfig) -> None:
    steps: list[Step] = []
    result = train(config, on_step=steps.append)
    records = records_of(config.out)
    seen = [(step.number, step.loss, step.lr, step.val_loss) for step in steps]
    names = ("step", "loss", "lr", "val_loss")
    assert seen == [tuple(record.get(name) for name in names) for record in records]
    assert [step.val_loss is None for step in steps] == [True, False, True, False]
    assert steps[0].model is result.model
    assert (result.loss, result.val_loss) == (records[-1]["loss"], records[-1]["val_loss"])
    assert not result.model.training
    # The figures are those of a run without a callback.
    other = dataclasses.replace(config, out=f"{config.out}-other")
    assert train(other).loss == result.loss
    # A finished run has them, too.
    again = train(config, on_step=steps.append)
    assert len(steps) == 4
    assert (again.loss, again.val_loss) == (result.loss, result.val_loss)


def test_a_callback_may_end_the_run(config: TrainConfig) -> None:
    def stop_at_two(step: Step) -> None:
        if step.number == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train(dataclasses.replace(config, save_every=1), on_step=stop_at_two)
    result = train(config)
    assert [record["step"] for record in records_of(config.out)] == [1, 2, 3, 4]
    assert result.loss == train(dataclasses.replace(config, out=f"{config.out}-other")).loss


def test_a_model_of_ones_own_replaces_the_described_one(config: TrainConfig) -> None:
    config = dataclasses.replace(config, schedule="constant", warmup_steps=1)
    vocab_size = open_corpora(config.data).tokenizer.vocab_size
    shape = ModelConfig(vocab_size=vocab_size, block_size=16, n_layer=3, n_head=4, n_embd=16)

    def make() -> GPT:
        torch.manual_seed(7)
        return GPT(dataclasses.replace(shape, activation="relu2"))

    result = train(dataclasses.replace(config, max_steps=2), make())
    assert load_pretrained(config.out).model.config == make().config
    # The same script again continues; another model is another run.
    resumed = train(config, make())
    whole = train(dataclasses.replace(config, out=f"{config.out}-whole"), make())
    assert resumed.loss == whole.loss != result.loss
    with pytest.raises(SettingsError, match=r"the model was .*relu2"):
        train(dataclasses.replace(config, max_steps=6), GPT(shape))


def test_a_model_with_fewer_ids_than_the_data_gets_more(config: TrainConfig) -> None:
    with pytest.raises(SettingsError, match="make it with vocab_size=") as error:
        train(config, GPT(preset("tiny", vocab_size=100, block_size=32, n_embd=32)))
    advised = re.search(r"vocab_size=(\d+)$", str(error.value))
    assert advised
    model = GPT(preset("tiny", vocab_size=int(advised[1]), block_size=32, n_embd=32))
    assert train(config, model).loss < 7


def test_a_sampler_of_ones_own_gives_the_samples(config: TrainConfig) -> None:
    corpora = open_corpora(config.data)
    documents = corpora.datasets[0].documents("train")
    sampler = Packed(documents, 32, corpora.tokenizer.eot, seed=5)
    same = dataclasses.replace(config, out=f"{config.out}-same", seed=5)
    own = train(config, GPT(same.model_config(corpora.tokenizer.vocab_size)), sampler)
    assert not math.isnan(own.loss)
    with pytest.raises(SettingsError, match="make both equal"):
        train(same, sampler=Packed(documents, 16, corpora.tokenizer.eot, seed=5))


def test_generate_takes_a_text_or_ids(config: TrainConfig, tokenizer_file: Path) -> None:
    model = train(config).model
    tokenizer = Tokenizer(str(tokenizer_file))
    text = "The run"
    written = model.generate(text, 8, temperature=0)
    assert written.startswith(text)
    assert written == model.generate(text, 8, temperature=0, tokenizer=tokenizer)
    # A text follows an end-of-text, as in training.
    assert model.eot is not None
    ids = [model.eot, *tokenizer.encode(text)]
    row = model.generate(ids, 8, temperature=0, stop=model.eot)
    assert tokenizer.decode(row[1:].tolist()) == written
    assert torch.equal(
        model.generate([ids], max_new_tokens=8, temperature=0, stop=model.eot)[0], row
    )


def test_a_text_without_a_tokenizer_gets_one(tokenizer_file: Path) -> None:
    model = GPT(preset("tiny", vocab_size=400))
    with pytest.raises(ValueError, match="give generate"):
        model.generate("The run", 3)
    assert model.generate("The run", 3, tokenizer=Tokenizer(tokenizer_file)).startswith("The run")
    assert len(model.generate([1, 2], 3)) == 5


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"activation": "silu"}, "no activation silu"),
        ({"activation": "relu"}, "did you mean 'relu2'"),
        ({"n_layer": -1}, "n_layer -1 is below 1"),
        ({"n_head": 0}, "n_head 0 is below 1"),
        ({"n_embd": 0}, "n_embd 0 is below 1"),
        ({"block_size": 0}, "block_size 0 is below 1"),
        ({"vocab_size": 0}, "vocab_size 0 is below 1"),
        ({"dropout": 1.5}, "dropout 1.5 is not from 0 to 1"),
        ({"embedding_width": -8}, "embedding_width -8 is below 0"),
    ],
)
def test_a_shape_that_cannot_be_is_an_error(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        preset("tiny", **settings)
    with pytest.raises(ValueError, match=message):
        ModelConfig(**settings)


@pytest.mark.parametrize("name", ["n_layer", "n_head", "n_embd", "block_size", "batch_tokens"])
def test_the_api_checks_settings_as_the_flags_do(config: TrainConfig, name: str) -> None:
    with pytest.raises(SettingsError, match=f"{name}: -1 is not"):
        dataclasses.replace(config, **{name: -1})


def test_more_warmup_than_steps_gets_fewer(config: TrainConfig) -> None:
    with pytest.raises(SettingsError, match=r"warmup_steps 5 is above max_steps 4: .* give fewer"):
        dataclasses.replace(config, warmup_steps=5)
    assert train(dataclasses.replace(config, warmup_steps=4)).loss < 7
    # Also if the number of steps is a default.
    with pytest.raises(SettingsError, match="above max_steps 19073"):
        train(dataclasses.replace(config, max_steps=0, warmup_steps=20_000))


@pytest.mark.parametrize("token", [400, 511, 512, -1])
def test_an_id_beyond_the_vocabulary_is_an_error(token: int) -> None:
    model = GPT(preset("tiny", vocab_size=400))
    for call in (model, lambda ids: model.generate(ids, 1)):
        with pytest.raises((ValueError, IndexError)):
            call(torch.tensor([[1, token]]))


def test_the_command_is_the_package() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "trainer", "--help"], capture_output=True, text=True, check=False
    )
    assert done.stdout.startswith("usage: python -m trainer [CONFIG.toml] [FLAGS]")


@pytest.mark.parametrize(
    ("flag", "ours"),
    [
        ("--lr=1e-3", "--learning_rate"),
        ("--width=64", "--n_embd"),
        ("--context", "--block_size"),
        ("--batch_size=8", "--device_batch_size"),
        ("--eval_interval=100", "--eval_every"),
        ("--compile=False", "--no_compile"),
        ("--compile=True", "--compile"),
    ],
)
def test_a_flag_of_nanogpt_is_led_to_ours(flag: str, ours: str) -> None:
    with pytest.raises(SettingsError, match=rf"{flag} is {ours} here"):
        parse([flag, "64"])
    value = [] if "compile" in ours else ["1"]
    assert parse(["--data", "x", "--out", "y", ours, *value])
