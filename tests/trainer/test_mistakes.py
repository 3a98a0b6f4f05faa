"""A user's mistake is one line that says what to do, and nothing of an earlier run is lost by
it."""

from __future__ import annotations

import dataclasses
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from schemas import SettingsError
from schemas.settings import ExitCode
from tests.trainer.conftest import Capture, WriteTokens, edit_manifest
from trainer import checkpoint, evaluate, export, sample
from trainer.__main__ import main, parse
from trainer.config import TrainConfig
from trainer.data import export_tokens
from trainer.data.shards import open_dataset
from trainer.loop import train
from trainer.model import GPT

REPOSITORY = Path(__file__).resolve().parents[2]


@pytest.fixture
def config(config: TrainConfig) -> TrainConfig:
    return dataclasses.replace(config, max_steps=6)


def flags(config: TrainConfig, **changes: Any) -> list[str]:
    """Return the command line of `config`."""
    names = [
        field.name
        for field in dataclasses.fields(config)
        if getattr(config, field.name) != field.default
    ]
    values = {name: getattr(config, name) for name in names} | {"data": config.data[0]} | changes
    return [f"--{name}" if value is True else f"--{name}={value}" for name, value in values.items()]


def error_of(capsys: Capture, *arguments: str) -> str:
    """Return the one line that the training command ends with.

    Fails if it is not one line, or the exit code is not 1.
    """
    capsys.readouterr()
    assert main(arguments) in (1, 2)
    (line,) = capsys.readouterr().err.splitlines()
    return line.removeprefix("trainer: ")


def contents(folder: Path) -> dict[str, bytes]:
    return {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file()
    }


def test_a_token_id_outside_the_vocabulary_names_file_and_row(
    config: TrainConfig, tmp_path: Path, write_tokens: WriteTokens, capsys: Capture
) -> None:
    good = [1, 2, 3] * 100
    bad = [*[5] * 40, 412, 5]
    data = str(write_tokens(tmp_path / "train", [good, good, good, bad], [good]))
    expected = (
        f"{data}/train/part-00001.arrow, row 1: token id 412 is outside the tokenizer's "
        f"vocabulary of 400; run"
    )
    assert error_of(capsys, *flags(config, data=data, max_steps=50)).startswith(expected)
    assert not (
        Path(config.out) / "metrics.jsonl"
        # Found when the data is opened, not at its step.
    ).exists()
    data = str(write_tokens(tmp_path / "val", [good] * 3, [bad]))
    assert "val/part-00000.arrow, row 0: token id 412" in error_of(
        capsys, *flags(config, data=data)
    )


def test_checked_ids_are_read_again_only_in_batches(
    config: TrainConfig, tmp_path: Path, write_tokens: WriteTokens, capsys: Capture
) -> None:
    data = write_tokens(tmp_path / "train", [[1, 2, 3] * 100, [412] * 100], [[1, 2, 3] * 100])
    edit_manifest(data, lambda record: record["properties"].update(ids_checked=True))
    open_dataset(data).documents("train")
    error = error_of(capsys, *flags(config, data=str(data)))
    assert error.startswith(
        "a shard was damaged since it was written: it has the token id 412, of a vocabulary of 400"
    )


def test_a_split_that_is_missing_or_too_short_is_named(
    config: TrainConfig, tmp_path: Path, write_tokens: WriteTokens, capsys: Capture
) -> None:
    good = [1, 2, 3] * 100
    data = str(write_tokens(tmp_path / "none", [], [good]))
    assert error_of(capsys, *flags(config, data=data)).startswith(
        f"{data}, split train: there is no document; run"
    )
    data = str(write_tokens(tmp_path / "short", [[1] * 20, [2] * 10], [good]))
    assert error_of(capsys, *flags(config, data=data)).startswith(
        f"{data}, split train: 32 tokens, end-of-text included, are fewer than the 33 of a window; "
        f"give a smaller"
    )
    assert (
        main(
            flags(
                config,
                data=str(write_tokens(tmp_path / "noval", [good])),
                out=str(tmp_path / "new"),
            )
        )
        == 0
    )
    assert "no validation: data has no document" in capsys.readouterr().out
    data = str(write_tokens(tmp_path / "shortval", [good], [[1] * 20]))
    assert error_of(capsys, *flags(config, data=data)).startswith(f"{data}, split val: 21 tokens")
    assert main(flags(config, data=data, eval_every=0, out=str(tmp_path / "unvalidated"))) == 0


@pytest.mark.parametrize(
    ("limit", "file"),
    [
        pytest.param(200, "metrics.jsonl", marks=pytest.mark.slow),
        pytest.param(9_000, "tokenizer.json", marks=pytest.mark.slow),
        (40_000, "model.safetensors"),
    ],
)
def test_a_file_that_a_full_disk_refuses_is_named(
    config: TrainConfig, limit: int, file: str
) -> None:
    # A limit on the size of files stands for a full disk.
    code = (
        "import resource, signal, sys\n"
        f"resource.setrlimit(resource.RLIMIT_FSIZE, ({limit}, {limit}))\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "from trainer.__main__ import main\n"
        "sys.exit(main(sys.argv[1:]))"
    )
    command = [sys.executable, "-c", code, *flags(config, n_embd=16, eval_every=0)]
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY)}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    assert done.returncode == 1
    (line,) = done.stderr.splitlines()
    assert file in line
    assert "File too large" in line


@pytest.mark.parametrize(
    ("error", "settings", "message"),
    [
        (
            RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 9"),
            {"device_batch_size": 1},
            "a forward pass of 1 window does not fit in memory: give --checkpoint_activations (",
        ),
        (
            MemoryError(),
            {"device_batch_size": 1, "checkpoint_activations": True},
            "a forward pass of 1 window does not fit in memory: give a smaller --preset or "
            "--block_size (MemoryError())",
        ),
    ],
)
def test_a_lack_of_memory_is_one_line(
    config: TrainConfig,
    capsys: Capture,
    monkeypatch: pytest.MonkeyPatch,
    error: Exception,
    settings: dict[str, Any],
    message: str,
) -> None:
    def full(*arguments: object, **named: object) -> None:
        raise error

    monkeypatch.setattr("trainer.model.GPT.forward", full)
    assert error_of(capsys, *flags(config, **settings)).startswith(message)
    monkeypatch.undo()
    train(dataclasses.replace(config, max_steps=1))
    monkeypatch.setattr("trainer.model.GPT.forward", full)
    (Path(config.out) / "text").write_text("some text")
    assert evaluate.main([config.out, "--text", str(Path(config.out) / "text")]) == 1
    lines = capsys.readouterr().err.splitlines()
    assert lines[-1].startswith("trainer.evaluate: out of memory (")


def test_an_abbreviated_flag_is_refused(capsys: Capture) -> None:
    # A new flag with the same beginning would change the meaning of scripts.
    assert sample.main(["run", "--prom=a"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.endswith("unknown argument --prom=a; did you mean --prompt?")
    expected = "unexpected 'false': no CONFIG.toml; flags such as --compile take no value"
    assert error_of(capsys, "--data", "tokens", "--out", "run", "--compile", "false") == expected


WRONG_SETTINGS = Path(__file__).with_name("mistakes.txt").read_text().strip().split("\n\n")
"""Lines of a settings file, and below them what the error matches."""


@pytest.mark.parametrize("case", WRONG_SETTINGS)
def test_a_wrong_setting_gives_a_one_line_error(
    config: TrainConfig, tmp_path: Path, case: str, capsys: Capture
) -> None:
    settings, _, message = case.rpartition("\n")
    (tmp_path / "binary").write_bytes(b"\xff\xfe")
    (tmp_path / "short").write_text("short")
    settings = settings.replace("BINARY", str(tmp_path / "binary")).replace(
        "SHORT", str(tmp_path / "short")
    )
    name = settings.split()[0]
    values = {
        "data": config.data[0],
        "out": config.out,
        "preset": "tiny",
        "n_embd": 32,
        "block_size": 32,
        "device": "cpu",
    }
    lines = [
        f"{key} = {json.dumps(value)}"
        for key, value in (values | {"batch_tokens": 512}).items()
        if key != name
    ]
    (tmp_path / "config.toml").write_text("\n".join([*lines, settings]))
    assert re.search(message, error_of(capsys, str(tmp_path / "config.toml")))
    assert (tmp_path / "binary").read_bytes() == b"\xff\xfe"


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"optimizer": "sgd"}, "optimizer: 'sgd' is not one of adamw"),
        ({"schedule": "exponential"}, "schedule: 'exponential' is not one of cosine"),
        ({"preset": "gpt2"}, "preset: 'gpt2' is not one of tiny"),
        ({"max_steps": "10"}, "max_steps: '10' is not a whole number"),
        ({"learning_rate": -1e-3}, "learning_rate: -0.001 is not a number"),
        ({"sampler": "random"}, "sampler: 'random' is not one of packed"),
    ],
)
def test_a_wrong_setting_in_a_program_is_an_error(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(SettingsError, match=message):
        TrainConfig(data=("tokens",), out="run", **settings)


def test_a_program_may_name_folders_by_their_paths(config: TrainConfig) -> None:
    paths: dict[str, Any] = {"data": Path(config.data[0]), "out": Path(config.out)}
    train(dataclasses.replace(config, max_steps=1, **paths))
    model = GPT.from_pretrained(Path(config.out))
    assert model.config.n_embd == 32
    train(dataclasses.replace(config, data=[Path(config.data[0])], max_steps=2))  # type: ignore[arg-type]
    assert checkpoint.resolve(config.out).name == "step-00000002"


def test_a_reader_that_ends_and_ctrl_c_leave_no_traceback(
    config: TrainConfig, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    train(dataclasses.replace(config, max_steps=1))
    command = [sys.executable, "-m", "trainer.data.documents", config.out, "--step", "1"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert process.stdout
    process.stdout.close()
    _, errors = process.communicate()
    assert process.returncode == ExitCode.NO_READER
    assert b"Error" not in errors

    def interrupt(*arguments: object, **named: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("trainer.sample.SampleOptions.load", interrupt)
    capsys.readouterr()
    assert sample.main([config.out]) == ExitCode.INTERRUPTED
    assert capsys.readouterr().err == "trainer.sample: interrupted\n"


def test_a_model_is_not_exported_over_itself_a_run_or_a_file(
    config: TrainConfig, tmp_path: Path, capsys: Capture
) -> None:
    train(dataclasses.replace(config, max_steps=1))
    run = Path(config.out)
    exported = tmp_path / "exported"
    file = tmp_path / "file"
    (newest,) = checkpoint.checkpoints(run)
    assert export.main([str(run), str(exported)]) == 0
    file.write_text("mine")
    contents_before = contents(tmp_path)
    for folder in (run, exported, newest, file):
        capsys.readouterr()
        assert export.main([str(run), str(folder)]) == 2
        (line,) = capsys.readouterr().err.splitlines()
        assert (
            line == f"trainer.export: {folder} exists and is not an empty folder; give another one"
        )
    for command, source in ((export_tokens, config.data[0]), (export, str(run))):
        assert command.main([source, "s3://bucket/x"]) == 2
        assert "s3://bucket/x is not a local folder" in capsys.readouterr().err
    assert contents(tmp_path) == contents_before


@pytest.mark.parametrize("module", ["trainer", "trainer.sample"])
def test_without_torch_a_command_names_its_installation(module: str, tmp_path: Path) -> None:
    shutil.copytree(
        REPOSITORY / "trainer", tmp_path / "trainer", ignore=shutil.ignore_patterns("__pycache__")
    )
    # -S leaves out site-packages, and with them torch.
    command = [sys.executable, "-S", "-m", module]
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    result = subprocess.run(
        command, capture_output=True, text=True, cwd=tmp_path, env=environment, check=False
    )
    assert result.returncode == 1
    (line,) = result.stderr.splitlines()
    assert (
        "needs PyTorch 2.9 or later, which is not installed: pip install torch safetensors "
        "tensorboard" in line
    )


def test_ids_are_copied_and_documents_named_without_torch(
    config: TrainConfig, tmp_path: Path
) -> None:
    train(dataclasses.replace(config, max_steps=1, save_every=0))
    site = tmp_path / "site"
    site.mkdir()
    for path in Path(np.__file__).parents[1].iterdir():
        if not path.name.startswith(("torch", "functorch", "safetensors")):
            (site / path.name).symlink_to(path)

    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        # -S leaves out site-packages, and with them torch.
        command = [sys.executable, "-S", *arguments]
        environment = {**os.environ, "PYTHONPATH": f"{site}:{REPOSITORY}"}
        return subprocess.run(command, capture_output=True, text=True, env=environment, check=False)

    done = run("-m", "trainer.data.export_tokens", config.data[0], str(tmp_path / "bin"))
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "bin" / "train.bin").stat().st_size
    done = run("-m", "trainer.data.documents", config.out, "--step", "1")
    assert done.returncode == 0, done.stderr
    assert "url_id" in done.stdout
    code = "import trainer; from trainer import TrainConfig, open_corpora, preset; preset('124M')"
    done = run("-c", code)
    assert done.returncode == 0, done.stderr
    done = run("-c", "from trainer import GPT")
    assert done.stderr.splitlines()[-1].startswith("ImportError: the trainer needs PyTorch 2.9")


def test_one_import_has_the_interface_and_loads_nothing() -> None:
    code = (
        "import sys, trainer; assert 'torch' not in sys.modules and 'numpy' not in sys.modules; "
        "from inspect import isfunction; from trainer import *; import trainer.loop; "
        "assert isfunction(train) and trainer.train is train is trainer.loop.train; "
        "assert set(trainer.__all__) <= set(dir(trainer)) and GPT and Loader and Tokenizer"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_training_imports_no_heavy_package() -> None:
    heavy = ["apache_beam", "owt_pipeline", "tokenizers", "tiktoken", "transformers", "tensorboard"]
    modules = ", ".join(f"trainer.{name}" for name in ("loop", "sample", "evaluate", "export"))
    code = f"import sys, {modules}; print([name for name in {heavy} if name in sys.modules])"
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=True
    )
    assert result.stdout.strip() == "[]"


def test_the_home_folder_is_expanded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "c.toml").write_text(
        'data = ["~/a/tokens=0.7", "gs://b/~/tokens=0.3"]\nout = "~/gpt2"\nval_data = "~/v.txt"\n'
        'sign_key = "~/k.pem"\nverify_key = "~/p.pem"\npublish = "hf://a/~"\n'
    )
    config = parse(["~/c.toml", "--init_from=~/gpt2"])
    assert config.data == (f"{tmp_path}/a/tokens=0.7", "gs://b/~/tokens=0.3")
    assert (config.out, config.init_from) == (f"{tmp_path}/gpt2", f"{tmp_path}/gpt2")
    assert config.val_data == f"{tmp_path}/v.txt"
    assert (config.sign_key, config.verify_key) == (f"{tmp_path}/k.pem", f"{tmp_path}/p.pem")
    assert config.publish == "hf://a/~"
