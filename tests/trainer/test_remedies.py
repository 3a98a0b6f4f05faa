"""What a message of the trainer advises is done, and then the same command works.

`tests/owt_pipeline/remedies.txt` names the test of each message.
"""

from __future__ import annotations

import dataclasses
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from benchmarks import compare
from schemas import SettingsError
from tests.conftest import REPOSITORY
from tests.trainer.conftest import Capture, WriteTokens, records_of
from trainer import checkpoint, evaluate, export, signing
from trainer.__main__ import parse
from trainer.checkpoint import CheckpointError, Record, sha256_of
from trainer.config import TrainConfig
from trainer.data import documents
from trainer.data.corpora import open_corpora
from trainer.data.shards import ShardError
from trainer.loop import Diverged, train
from trainer.model import GPT, ModelConfig, preset
from trainer.pretrained import load_pretrained
from trainer.signing import SignatureError

Change = Callable[[dict[str, Any]], object]


@pytest.fixture
def config(config: TrainConfig) -> TrainConfig:
    return dataclasses.replace(config, max_steps=4, eval_every=0)


@pytest.fixture
def run(config: TrainConfig) -> Path:
    """Return a run that is finished."""
    train(config)
    return Path(config.out)


def newest_of(run: Path) -> Path:
    """Return the newest checkpoint."""
    return checkpoint.checkpoints(run)[-1]


def change_record(folder: Path, change: Change) -> None:
    """Change a checkpoint's record as another version would have written it."""
    path = folder / checkpoint.RECORD
    entries = json.loads(path.read_text())
    del entries["digest"]
    change(entries)
    record = Record(**entries)
    path.write_text(json.dumps(dataclasses.asdict(record) | {"digest": record.digest}))


def line_of(capsys: Capture, command: Callable[[list[str]], int], *arguments: object) -> str:
    """Return the last line of a command that fails."""
    capsys.readouterr()
    assert command([str(argument) for argument in arguments]) in (1, 2)
    return capsys.readouterr().err.splitlines()[-1]


# Checkpoints


@pytest.mark.parametrize("remedy", ["restore", "move"])
@pytest.mark.parametrize("is_signed", [False, True])
@pytest.mark.parametrize("damage", ["a file", "a folder", "all"])
def test_damaged_checkpoints_are_restored_or_moved_aside(
    config: TrainConfig, tmp_path: Path, remedy: str, is_signed: bool, damage: str
) -> None:
    if is_signed:
        pytest.importorskip("model_signing", reason="an extra: pip install model-signing")
        private, public = make_keys(tmp_path)
        config = dataclasses.replace(config, sign_key=private, verify_key=public)
    train(config)
    run = Path(config.out)
    shutil.copytree(run, tmp_path / "copy")
    if damage == "all":
        shutil.rmtree(run / "checkpoints")
    else:
        # With a key, no earlier one is taken.
        for folder in checkpoint.checkpoints(run)[-1 if is_signed else 0 :]:
            shutil.rmtree(folder) if damage == "a folder" else (
                folder / "model.safetensors"
            ).unlink()
    with pytest.raises(CheckpointError, match=f"restore it from a copy, or move {run} aside"):
        train(dataclasses.replace(config, max_steps=6))
    if remedy == "restore":
        shutil.copytree(tmp_path / "copy", run, dirs_exist_ok=True)
    else:
        run.rename(tmp_path / "aside")
    train(dataclasses.replace(config, max_steps=6))
    assert [record["step"] for record in records_of(run)] == [1, 2, 3, 4, 5, 6]


def make_keys(folder: Path) -> tuple[str, str]:
    """Return a private and a public key, made as the message of a wrong key advises."""
    with pytest.raises(SettingsError) as error:
        signing.signer_of(str(folder / "no key"))
    make_private, make_public = str(error.value).split("make one by: ")[1].split("; ")
    subprocess.run(shlex.split(make_private), cwd=folder, check=True)
    public = subprocess.check_output(shlex.split(make_public), cwd=folder)
    (folder / "public.pem").write_bytes(public)
    return str(folder / "key.pem"), str(folder / "public.pem")


def test_an_unsigned_model_is_signed_or_taken_without_a_key(run: Path, tmp_path: Path) -> None:
    pytest.importorskip("model_signing", reason="an extra: pip install model-signing pyOpenSSL")
    private, public = make_keys(tmp_path)
    with pytest.raises(SignatureError, match="sign it, or leave verify_key out"):
        load_pretrained(str(run), verify_key=public)
    assert load_pretrained(str(run)).folder == newest_of(run)
    assert export.main([str(run), str(tmp_path / "signed"), "--sign_key", private]) == 0
    assert load_pretrained(str(tmp_path / "signed"), verify_key=public).eot == 399


def test_weights_that_are_not_finite_are_replaced_by_earlier_ones(
    run: Path, config: TrainConfig
) -> None:
    folder = newest_of(run)
    weights = load_file(folder / "model.safetensors")
    weights["ln_f.bias"][0] = torch.nan
    save_file(weights, folder / "model.safetensors")
    digest = sha256_of(folder / "model.safetensors")
    change_record(folder, lambda record: record["files"]["model.safetensors"].update(sha256=digest))
    with pytest.raises(CheckpointError, match="take another model, or an earlier checkpoint"):
        load_pretrained(str(run))
    assert load_pretrained(str(run), step=2).folder.name == "step-00000002"


class GatedGPT(GPT):
    """A GPT-2 with a part that the trainer does not know."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__(config)
        self.gate = torch.nn.Parameter(torch.ones(config.n_embd))

    def _hidden(self, *arguments: Any) -> torch.Tensor:
        return super()._hidden(*arguments) * self.gate


def test_a_model_of_another_class_is_loaded_by_its_program(config: TrainConfig) -> None:
    def make() -> GatedGPT:
        torch.manual_seed(1)
        return GatedGPT(preset("tiny", vocab_size=400, block_size=32, n_embd=32))

    train(dataclasses.replace(config, max_steps=2), model=make())
    with pytest.raises(CheckpointError, match="load its weights in the program that made it"):
        load_pretrained(config.out)
    model = make()
    model.load_state_dict(load_file(newest_of(Path(config.out)) / "model.safetensors"))
    # The same script again continues the run.
    resumed = train(dataclasses.replace(config, max_steps=4), model=make()).model
    assert isinstance(resumed, GatedGPT)
    assert (resumed.gate != model.gate).any()
    assert (resumed.gate - model.gate).abs().max() < 0.1


def test_a_run_of_other_settings_or_data_gets_another_folder(
    run: Path, config: TrainConfig, tmp_path: Path, write_tokens: WriteTokens
) -> None:
    other_config = dataclasses.replace(config, seed=1, max_steps=5)
    with pytest.raises(SettingsError, match="Use another --out, or the same settings"):
        train(other_config)
    train(dataclasses.replace(other_config, out=f"{run}-other"))
    train(dataclasses.replace(other_config, seed=config.seed))
    other_data = write_tokens(tmp_path / "more", [[1, 2, 3] * 40] * 9)
    new = dataclasses.replace(config, data=(str(other_data),))
    with pytest.raises(SettingsError, match="other data is a new run with --init_from") as error:
        train(new)
    flags = re.search("a new run with (--init_from .*?)[.;] ", str(error.value))
    assert flags
    source = parse(["--data", "x", "--out", "y", *shlex.split(flags[1])]).init_from
    train(dataclasses.replace(new, out=f"{run}-more", init_from=source))


@pytest.mark.parametrize("change", [{"n_embd": 64}, {"n_layer": 1}, {"block_size": 64}])
def test_a_model_of_another_shape_is_taken_with_its_settings(
    run: Path, config: TrainConfig, change: dict[str, Any]
) -> None:
    new = dataclasses.replace(config, out=f"{run}-new", init_from=str(run), max_steps=1)
    with pytest.raises(CheckpointError) as error:
        train(dataclasses.replace(new, **change))
    assert "give the preset and the settings that it was made with" in str(error.value)
    differences = re.findall(r"(\w+) (\d+) in place of (\d+)", str(error.value))
    assert [(name, int(other_value)) for name, _, other_value in differences] == list(
        change.items()
    )
    settings: dict[str, Any] = {name: int(value) for name, value, _ in differences}
    train(dataclasses.replace(new, **settings))


def test_a_diverged_run_goes_on_with_a_lower_rate(run: Path, config: TrainConfig) -> None:
    wild = dataclasses.replace(config, max_steps=30, learning_rate=1e30, grad_clip=0.0)
    with pytest.raises(Diverged, match="try a lower learning_rate") as error:
        train(wild)
    command = re.search(r"documents \((python .*?)\), try", str(error.value))
    assert command
    words = shlex.split(command[1])
    assert words[:3] == ["python", "-m", "trainer.data.documents"]
    assert documents.main(words[3:]) == 0
    train(dataclasses.replace(wild, learning_rate=1e-3))
    assert len(records_of(run)) == 30


# The machine


def test_without_a_gpu_the_cpu_is_named(config: TrainConfig, capsys: Capture) -> None:
    if torch.cuda.is_available():
        pytest.skip("here is a GPU")
    with pytest.raises(ValueError, match="use --device cpu"):
        train(dataclasses.replace(config, device="cuda"))
    train(dataclasses.replace(config, device="cpu"))


@pytest.mark.slow
def test_without_a_compiler_a_run_goes_on_uncompiled(config: TrainConfig, tmp_path: Path) -> None:
    missing = str(tmp_path / "missing")
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY), "PATH": missing}
    environment |= {"CC": missing, "CXX": missing, "TORCHINDUCTOR_CACHE_DIR": str(tmp_path)}
    flags = ["--data", *config.data, "--out", config.out, "--preset=tiny", "--n_embd=32"]
    flags += ["--block_size=32", "--batch_tokens=512", "--max_steps=1", "--eval_every=0"]
    command = [sys.executable, "-m", "trainer", *flags]
    pipes: dict[str, Any] = {"capture_output": True, "text": True, "env": environment}
    done = subprocess.run([*command, "--compile"], check=False, **pipes)
    assert done.stderr.rstrip().endswith("or give --no_compile")
    done = subprocess.run([*command, "--no_compile"], check=False, **pipes)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("flag", "settings"),
    [
        ("--device_batch_size", {"device_batch_size": 2}),
        ("--checkpoint_activations", {"checkpoint_activations": True}),
        ("--block_size", {"block_size": 8, "device_batch_size": 1, "checkpoint_activations": True}),
    ],
)
def test_a_pass_that_does_not_fit_is_made_smaller(
    config: TrainConfig, monkeypatch: pytest.MonkeyPatch, flag: str, settings: dict[str, Any]
) -> None:
    # A pass fits here if it has few windows, or short ones, or recomputes activations.
    from trainer.model import GPT

    forward = GPT.forward
    needs_context = flag == "--block_size"

    def limited(model: GPT, ids: torch.Tensor, *arguments: Any, **named: Any) -> torch.Tensor:
        is_small = len(ids) <= 2 or model.checkpoint_activations
        if ids.shape[1] > 8 if needs_context else not is_small:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20 GiB.")
        return forward(model, ids, *arguments, **named)

    monkeypatch.setattr(GPT, "forward", limited)
    full = {**settings, "block_size": 32} if needs_context else {}
    with pytest.raises(MemoryError, match=flag):
        train(dataclasses.replace(config, **full))
    train(dataclasses.replace(config, out=f"{config.out}-small", **settings))


# Settings


def test_settings_without_their_table_get_it(config: TrainConfig, tmp_path: Path) -> None:
    path = tmp_path / "config.toml"
    path.write_text("[collect]\nx = 1\n")
    with pytest.raises(SettingsError, match=r"no \[train\]; add it"):
        parse([str(path)])
    path.write_text(path.read_text() + f'[train]\ndata = "{config.data[0]}"\nout = "run"\n')
    assert parse([str(path)]).data == config.data


def test_a_text_in_another_encoding_is_converted(
    run: Path, tmp_path: Path, capsys: Capture
) -> None:
    text = tmp_path / "text.txt"
    text.write_bytes("Ein schöner Tag, übrigens.".encode("latin-1"))
    line = line_of(capsys, evaluate.main, run, "--text", text)
    assert line.endswith("convert it first (iconv)")
    converted = subprocess.check_output(["iconv", "-f", "latin1", "-t", "utf8", str(text)])
    text.write_bytes(converted)
    assert evaluate.main([str(run), "--text", str(text)]) == 0


def test_a_file_that_a_uri_names_is_copied_here(run: Path, tmp_path: Path, capsys: Capture) -> None:
    text = tmp_path / "far" / "text.txt"
    text.parent.mkdir()
    text.write_text("some text")
    assert line_of(capsys, evaluate.main, run, "--text", text.as_uri()).endswith(
        "copy it here first"
    )
    shutil.copy(text, tmp_path)
    assert evaluate.main([str(run), "--text", str(tmp_path / "text.txt")]) == 0


@pytest.mark.parametrize("kept", [{"dropout": 0.1}, {"document_mask": True}])
def test_of_dropout_and_a_mask_either_is_given(config: TrainConfig, kept: dict[str, Any]) -> None:
    both_settings: dict[str, Any] = {"dropout": 0.1, "document_mask": True}
    with pytest.raises(SettingsError, match="give document_mask or dropout, not both"):
        dataclasses.replace(config, **both_settings)
    train(dataclasses.replace(config, max_steps=1, **kept))


@pytest.mark.parametrize("device", ["xla", "xla_host"])
def test_what_xla_lacks_is_left_out(config: TrainConfig, device: str) -> None:
    for changes in ({"compile": True}, {"optimizer": "muon"}):
        with pytest.raises(SettingsError, match="leave them out"):
            dataclasses.replace(config, device=device, **changes)  # type: ignore[arg-type]
    assert dataclasses.replace(config, device=device, compile=None).device == device


def test_a_run_gets_a_folder_of_its_own(config: TrainConfig, tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("mine")
    for out, remedy in (
        ("", "name a folder"),
        (str(file), "give a folder"),
        ("file:///x", "give one"),
    ):
        with pytest.raises(SettingsError, match=remedy):
            train(dataclasses.replace(config, out=out))
    train(dataclasses.replace(config, out=str(tmp_path / "folder"), max_steps=1))
    for place in (config.out, "ftp://host/x", "hf://name"):
        with pytest.raises(SettingsError, match=r"give another one|give a folder, hf://OWNER/NAME"):
            train(dataclasses.replace(config, publish=place))
    train(dataclasses.replace(config, publish=str(tmp_path / "published"), max_steps=1))
    assert (tmp_path / "published" / "checkpoints").is_dir()


def test_an_evaluation_gets_what_to_evaluate(
    run: Path, config: TrainConfig, tmp_path: Path, write_tokens: WriteTokens, capsys: Capture
) -> None:
    assert line_of(capsys, evaluate.main, run).endswith("give --data DIR, --text FILE, or both")
    without = write_tokens(tmp_path / "without", [[1, 2, 3] * 40])
    assert line_of(capsys, evaluate.main, run, "--data", without).endswith("give other --data")
    text = tmp_path / "text.txt"
    text.write_text("some text")
    assert evaluate.main([str(run), "--data", config.data[0], "--text", str(text)]) == 0


def test_corpora_of_one_name_are_renamed_to_be_compared(
    config: TrainConfig, tmp_path: Path, write_tokens: WriteTokens, capsys: Capture
) -> None:
    text = tmp_path / "text.txt"
    text.write_text("some text")
    runs = []
    for number in (1, 2):
        data = write_tokens(tmp_path / f"{number}" / "mine", [[number, 2, 3] * 40] * 9)
        runs.append(str(tmp_path / f"run-{number}"))
        train(dataclasses.replace(config, data=(str(data),), out=runs[-1], max_steps=1))
    line = line_of(capsys, compare.main, *runs, "--eval_text", text)
    assert "another corpus is called mine; rename the folder of one, and train there" in line
    (tmp_path / "2" / "mine").rename(tmp_path / "2" / "other")
    data = tmp_path / "2" / "other" / "tokens"
    train(dataclasses.replace(config, data=(str(data),), out=f"{runs[1]}-again", max_steps=1))
    assert compare.main([runs[0], f"{runs[1]}-again", "--eval_text", str(text)]) == 0


# Tokens


def test_data_is_named_once_and_with_all_weights_or_none(
    config: TrainConfig, tmp_path: Path, write_tokens: WriteTokens
) -> None:
    first = config.data[0]
    second = str(write_tokens(tmp_path / "second", [[1, 2, 3] * 40] * 9))
    with pytest.raises(SettingsError, match="name a folder of token shards"):
        open_corpora(())
    with pytest.raises(ShardError, match="are the same tokens; name them once"):
        open_corpora((first, first))
    with pytest.raises(SettingsError, match="or give none a weight") as error:
        open_corpora((first, f"{second}=0.5"))
    written = re.search("write (.*), or give", str(error.value))
    assert written
    entry = shlex.split(written[1])[0].replace("WEIGHT", "0.5")
    assert open_corpora((entry, f"{second}=0.5")).shares == (0.5, 0.5)
    assert len(open_corpora((first, second)).datasets) == 2
    for uri in ("hf://owner/name", "s3://"):
        with pytest.raises(ShardError, match="give a local folder, s3://BUCKET/PATH or gs://"):
            open_corpora(uri)


def test_too_few_tokens_are_more_text_or_a_smaller_context(
    config: TrainConfig, tmp_path: Path, write_tokens: WriteTokens
) -> None:
    for texts in ([], [[1] * 20]):
        data = write_tokens(tmp_path / "few", texts, [[1, 2, 3] * 40])
        too_few = dataclasses.replace(config, data=(str(data),), max_steps=1)
        with pytest.raises(ShardError, match="run tokenize on more text") as error:
            train(too_few)
        if texts:
            assert "give a smaller block_size" in str(error.value)
            train(dataclasses.replace(too_few, out=f"{too_few.out}-small", block_size=8))
        shutil.rmtree(data.parent)
    data = write_tokens(tmp_path / "few", [[1] * 200])
    train(dataclasses.replace(config, data=(str(data),), max_steps=1))


def test_without_a_long_document_the_samples_are_packed(
    config: TrainConfig, tmp_path: Path, write_tokens: WriteTokens
) -> None:
    data = str(write_tokens(tmp_path / "short", [[1, 2, 3] * 40] * 9))
    config = dataclasses.replace(config, data=(data,), sampler="longbiased", max_steps=1)
    with pytest.raises(ShardError, match="no document has 512 tokens; use packed"):
        train(config)
    train(dataclasses.replace(config, sampler="packed"))


def test_damaged_tokens_are_copied_again(config: TrainConfig, tmp_path: Path) -> None:
    tokens = Path(config.data[0])
    # Not below tokens/: a damaged file of a run has another remedy.
    run = tokens.parent
    shutil.copytree(run, tmp_path / "copy")
    shard = next(tokens.glob("train/*.arrow"))
    damages: dict[Path, bytes] = {
        shard: shard.read_bytes()[:-8],
        run / "ledger/manifest.json": b'{"schema_version": 4}',
        run / "ledger/tokens/files.parquet": b"PAR1",
        run / "ledger/tokens/tokenizer.json": b"",
    }
    garbage = shard.read_bytes()
    cases = [*damages.items(), (shard, bytes(len(garbage)))]
    version = json.loads((run / "ledger/manifest.json").read_text())["schema_version"]
    for path, content in cases:
        path.write_bytes(content.replace(b"4", str(version).encode()))
        with pytest.raises(ShardError, match="copy it again"):
            open_corpora(config.data)
        shutil.copytree(tmp_path / "copy", run, dirs_exist_ok=True)
        assert open_corpora(config.data).tokens
