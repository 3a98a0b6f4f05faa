"""Advice keeps the settings file of the command line, and num_shards that are kept are named."""

from __future__ import annotations

import json
import re
import shlex
from functools import partial
from pathlib import Path

import pytest

from tests.owt_pipeline.remedies import attempt, heal
from tests.owt_pipeline.runs import ask_owt, manifest_of, run_here
from trainer.data import export_tokens


def write_text(path: Path, number: int) -> Path:
    path.write_text(f'{{"text": "The text of the file {number}."}}\n')
    return path


def test_advice_to_repeat_a_command_keeps_its_settings_file(tmp_path: Path) -> None:
    run = tmp_path / "a run"
    settings = tmp_path / "my settings.toml"
    first = write_text(tmp_path / "first.jsonl", 1)
    settings.write_text(f'[import]\nfiles = ["{first}"]\nnum_shards = 2\n')
    ask_owt("import", run, settings)
    second = write_text(tmp_path / "second.jsonl", 2)
    words = ["import", run, settings, second]
    heal(words, "repeat the command with --add")
    assert manifest_of(run, "documents").num_shards == 4


def test_advice_of_a_later_command_has_no_settings_file(tmp_path: Path) -> None:
    settings = tmp_path / "my.toml"
    settings.write_text("")
    text = write_text(tmp_path / "first.jsonl", 1)
    assert (
        f"owt run {tmp_path}/run {settings}"
        in attempt(["import", tmp_path / "run", settings, text])[1]
    )
    assert str(settings) not in attempt(["import", tmp_path / "other", text])[1]


def test_num_shards_of_a_run_with_shards_holds_for_new_ones(tmp_path: Path) -> None:
    run = tmp_path / "run"
    first = write_text(tmp_path / "first.jsonl", 1)
    second = write_text(tmp_path / "second.jsonl", 2)
    message = "holds for new generations"
    words = ["import", run, first, "--num_shards"]
    assert message not in attempt([*words, "2"])[1]
    assert message not in attempt([*words, "2"])[1]
    code, output = attempt([*words, "3"])
    assert (code, f"num_shards = 3 {message}" in output) == (0, True), output
    assert manifest_of(run, "documents").num_shards == 2
    added = attempt(["import", run, second, "--num_shards", "3", "--add"])[1]
    assert message not in added
    assert manifest_of(run, "documents").num_shards == 5


def test_own_text_gets_the_command_for_other_trainers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    texts = [f"The boat of the year {year} was late in the harbour. " * 9 for year in range(40)]
    lines = [json.dumps({"text": text}) for text in texts]
    (tmp_path / "texts.jsonl").write_text("\n".join(lines))
    run = tmp_path / "a run"
    ask_owt("import", run, tmp_path / "texts.jsonl", "--num_shards", 1)
    output = ask_owt("run", run, "--min_tokens", 1, "--languages", "all", "--val_fraction", 0.3)
    advised = re.search(
        r"^or: +python -m trainer\.data\.export_tokens (.*)  \(", output, re.MULTILINE
    )
    assert advised is not None, output
    run_here(partial(export_tokens.main, shlex.split(advised[1])))
    assert (tmp_path / "out/train.bin").stat().st_size > 0
