"""A run of an earlier version is continued.

`earlier-run.zip` has the tokens of a run of 12 steps by the version of 2026-11-28, its checkpoint
of step 6, and the losses of all its steps. It is never rebuilt.
"""

from __future__ import annotations

import dataclasses
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from schemas import SettingsError
from tests.trainer.conftest import Capture, records_of
from trainer.checkpoint import RECORD, Record
from trainer.config import TrainConfig
from trainer.data import documents
from trainer.tools import evaluate, export
from trainer.train import main, train

SETTINGS = {
    "preset": "tiny",
    "width": 16,
    "context": 32,
    "batch_tokens": 256,
    "max_steps": 12,
    "save_every": 6,
    "val_every": 6,
    "learning_rate": 3e-3,
    "device": "cpu",
    "compile": False,
}


@pytest.fixture
def earlier(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> TrainConfig:
    """Return the settings of the earlier run, which lies in `out`."""
    shutil.unpack_archive(Path(__file__).with_name("earlier-run.zip"), tmp_path)
    # The record has the path of its data from there.
    monkeypatch.chdir(tmp_path)
    data = (str(tmp_path / "data" / "tokens"),)
    return TrainConfig(data=data, out=str(tmp_path / "run"), **SETTINGS)  # type: ignore[arg-type]


def change_record(run: str, change: Callable[[dict[str, Any]], object]) -> None:
    """Change the newest record as another version would have written it."""
    path = Path(run) / "checkpoints" / "step-00000006" / RECORD
    entries = json.loads(path.read_text())
    del entries["digest"]
    change(entries)
    record = Record(**entries)
    path.write_text(json.dumps(dataclasses.asdict(record) | {"digest": record.digest}))


def test_an_earlier_run_continues_with_the_losses_it_had(
    earlier: TrainConfig, tmp_path: Path, capsys: Capture
) -> None:
    earlier_records = records_of(earlier.out)
    train(earlier)
    assert "step-00000006 at step 6" in capsys.readouterr().out
    records = records_of(earlier.out)
    assert [record["step"] for record in records] == list(range(1, 13))
    for key in ("loss", "grad_norm", "lr"):
        values = [record[key] for record in records]
        assert values == pytest.approx([record[key] for record in earlier_records], rel=1e-4), key
    assert records[-1]["val_loss"] == pytest.approx(earlier_records[-1]["val_loss"], rel=1e-4)


def test_the_tools_take_an_earlier_run(
    earlier: TrainConfig, tmp_path: Path, capsys: Capture
) -> None:
    (tmp_path / "text.txt").write_text("abc " * 50)
    text = str(tmp_path / "text.txt")
    out = str(tmp_path / "exported")
    assert evaluate.main([earlier.out, "--text", text, "--data", earlier.data[0]]) == 0
    assert documents.main([earlier.out, "--step", "3"]) == 0
    assert export.main([earlier.out, out]) == 0


@pytest.mark.parametrize("name", ["seed", "qk_norm", "document_mask", "optimizer", "clip"])
def test_a_setting_that_a_record_lacks_has_its_default(earlier: TrainConfig, name: str) -> None:
    change_record(earlier.out, lambda record: record["settings"].pop(name, None))
    train(dataclasses.replace(earlier, max_steps=7))
    with pytest.raises(SettingsError, match="seed was 1337, is 5"):
        train(dataclasses.replace(earlier, max_steps=8, seed=5))


def test_a_part_of_the_model_that_a_record_lacks_has_its_default(earlier: TrainConfig) -> None:
    change_record(earlier.out, lambda record: record["model"].pop("shared_layers"))
    train(dataclasses.replace(earlier, max_steps=7))


@pytest.mark.parametrize("value", [None, False, 0, "", []])
def test_a_setting_that_was_removed_is_named_and_ignored(
    earlier: TrainConfig, value: object, capsys: Capture
) -> None:
    def change(record: dict[str, Any]) -> None:
        record["settings"]["zeal"] = record["model"]["zeal"] = value

    change_record(earlier.out, change)
    assert documents.main([earlier.out, "--step", "3"]) == 0
    train(dataclasses.replace(earlier, max_steps=7))
    output = capsys.readouterr().out
    assert ("the setting zeal, which was" in output) == (value is not None)


PIECES = {"rope": True, "qk_norm": True, "activation": "relu2"}


def test_the_speedruns_three_settings_are_its_preset(earlier: TrainConfig, tmp_path: Path) -> None:
    # An earlier version wrote the three beside the preset tiny.
    new = dataclasses.replace(
        earlier, out=str(tmp_path / "new"), preset="speedrun", n_layer=2, n_head=2, max_steps=6
    )
    train(new)
    change = {"preset": "tiny", "n_layer": None, "n_head": None, "cache": "/somewhere", **PIECES}
    change_record(new.out, lambda record: record["settings"].update(change))
    train(dataclasses.replace(new, max_steps=7))
    assert documents.main([new.out, "--step", "3"]) == 0


@pytest.mark.parametrize("preset", ["tiny", "speedrun"])
@pytest.mark.parametrize("missing", [*PIECES, None])
def test_records_name_the_pieces_of_a_preset(
    earlier: TrainConfig, tmp_path: Path, preset: str, missing: str | None, capsys: Capture
) -> None:
    # Records of earlier versions had them. A run whose record lacks a piece continues.
    new = dataclasses.replace(
        earlier, out=str(tmp_path / "new"), preset=preset, n_layer=1, n_head=2, max_steps=6
    )
    train(new)
    pieces = PIECES if preset == "speedrun" else {name: not value for name, value in PIECES.items()}

    def change(record: dict[str, Any]) -> None:
        settings = record["settings"]
        recorded = {name: settings[name] for name in PIECES}
        assert recorded == (pieces | {"activation": "gelu"} if preset == "tiny" else pieces)
        if missing:
            settings.pop(missing)

    change_record(new.out, change)
    capsys.readouterr()
    train(dataclasses.replace(new, max_steps=7))
    assert "does not exist" not in capsys.readouterr().out
    assert documents.main([new.out, "--step", "3"]) == 0


def test_pieces_of_the_speedrun_without_the_others_are_refused(earlier: TrainConfig) -> None:
    change_record(earlier.out, lambda record: record["settings"].update(rope=True))
    with pytest.raises(SettingsError, match="has no setting rope, which was True"):
        train(earlier)


def test_a_setting_that_was_removed_and_used_is_refused(
    earlier: TrainConfig, capsys: Capture
) -> None:
    change_record(earlier.out, lambda record: record["settings"].update(zeal=3))
    flags = [f"--{key}={value}" for key, value in SETTINGS.items() if key != "compile"]
    assert main(["--data", *earlier.data, "--out", earlier.out, *flags]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "this version has no setting zeal, which was 3; use the version that wrote it" in line
