from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from schemas import SettingsError
from trainer.config import parse
from trainer.train import main


def test_an_unknown_key_suggests_the_right_one(tmp_path: Path) -> None:
    path = tmp_path / "config.toml"
    path.write_text('data = "tokens"\nout = "run"\nlearning_rat = 1e-3\n')
    with pytest.raises(SettingsError, match=r"unknown key 'learning_rat'; did you mean 'learning_rate'\?"):
        parse([str(path)])
    for flag in ("--learning_rat", "--learning_rat=1e-3"):
        with pytest.raises(SettingsError, match=rf"unknown argument {flag}; did you mean --learning_rate\?"):
            parse(["--data", "tokens", "--out", "run", flag, "1e-3"])


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("max_steps = -1", "max_steps: -1 is not a whole number of at least 0"),
        ('preset = "125M"', r"preset: '125M' is not one of .*did you mean '124M'\?"),
        ("max_steps", "is not TOML"),
        ("[collect]", r"has tables \(collect\) but no \[train\]"),
    ],
)
def test_a_wrong_value_is_named_with_what_is_allowed(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "config.toml"
    path.write_text(text)
    with pytest.raises(SettingsError, match=message):
        parse([str(path), "--data", "tokens", "--out", "run"])


def test_a_users_mistake_is_reported_in_one_line_without_a_traceback(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["--data", str(tmp_path), "--out", str(tmp_path), "--device", "cpu"]) == 1
    error = capsys.readouterr().err
    assert error.startswith("trainer.train: no token shards in")
    assert len(error.splitlines()) == 1


def test_the_trainer_needs_only_torch_numpy_pyarrow_and_safetensors() -> None:
    heavy = ["apache_beam", "owt_pipeline", "tokenizers", "tiktoken", "transformers", "tensorboard"]
    modules = ", ".join(f"trainer.{name}" for name in ("train", "tools.sample", "tools.evaluate", "tools.export"))
    code = f"import sys, {modules}; print([name for name in {heavy} if name in sys.modules])"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=True)
    assert result.stdout.strip() == "[]"


def test_the_value_of_a_switch_is_not_mistaken_for_the_configuration(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--data", "tokens", "--out", "run", "--compile", "false"]) == 2
    assert "unexpected 'false': no CONFIG.toml; flags such as --compile take no value" in capsys.readouterr().err
