"""Advice keeps the settings file of the command line, and num_shards that are kept are named."""

from __future__ import annotations

from pathlib import Path

from tests.owt_pipeline.remedies import attempt, heal
from tests.owt_pipeline.runs import ask_owt, manifest_of


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
