"""What happens to a run whose checkpoints or settings are not as they were."""

from __future__ import annotations

import dataclasses
import errno
import itertools
import json
import math
import os
import re
import shlex
import shutil
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from schemas import SettingsError
from tests.trainer.conftest import Capture, WriteTokens, records_of
from trainer import checkpoint, export, optim
from trainer.checkpoint import CheckpointError, resolve
from trainer.config import TrainConfig
from trainer.data import documents
from trainer.data.shards import open_dataset
from trainer.loop import Diverged, train
from trainer.model import ModelConfig
from trainer.pretrained import load_pretrained


def run_of(config: TrainConfig) -> Path:
    return Path(config.out) / "checkpoints"


def steps(config: TrainConfig) -> list[int]:
    return [
        int(path.name.removeprefix("step-")) for path in checkpoint.checkpoints(Path(config.out))
    ]


def record_of(step: int) -> checkpoint.Record:
    model = dataclasses.asdict(ModelConfig())
    settings = {"seed": 1, "data": ("a", "b"), "rate": 6e-4}
    return checkpoint.Record(step, model, settings, [{"folder": "a"}], {"name": "t"}, "", 1)


def remove(config: TrainConfig, *numbers: int) -> None:
    """Remove checkpoints as if they had never been saved."""
    for number in numbers:
        shutil.rmtree(run_of(config) / f"step-{number:08d}")
    last = max(steps(config), default=0)
    lines = [
        json.dumps(record | {"saved": min(record["saved"], last)}) + "\n"
        for record in records_of(config.out)
    ]
    Path(config.out, "metrics.jsonl").write_text("".join(lines))


def test_the_newest_checkpoints_stay_with_equal_permissions(
    config: TrainConfig,
) -> None:
    train(dataclasses.replace(config, max_steps=10))
    assert sorted(path.name for path in run_of(config).iterdir()) == [
        f"step-{n:08d}" for n in (6, 8, 10)
    ]
    assert len({path.stat().st_mode for path in run_of(config).rglob("*") if path.is_file()}) == 1


def test_a_record_with_any_byte_changed_is_refused(tmp_path: Path, tokenizer_file: Path) -> None:
    saver = checkpoint.Saver(tmp_path, tokenizer_file)
    saver.save(record_of(7), {"w": torch.ones(2)}, {})
    saver.wait()
    (folder,) = checkpoint.checkpoints(tmp_path)
    path = folder / checkpoint.RECORD
    content = (folder / checkpoint.RECORD).read_bytes()
    entries = json.loads(content)
    assert checkpoint.read_record(folder).step == 7
    for place in range(len(content)):
        changed = bytearray(content)
        changed[place] ^= 1 << place % 7
        path.write_bytes(changed)
        try:
            # Changed white space or escapes may leave the entries equal.
            is_equal = json.loads(changed) == entries
        except ValueError:
            is_equal = False
        if not is_equal:
            with pytest.raises(CheckpointError, match=r"checkpoint\.json"):
                checkpoint.read_record(folder)


def test_damaged_later_checkpoints_displace_no_intact_ones(
    config: TrainConfig,
) -> None:
    train(config)
    for number in (6, 8):
        (run_of(config) / f"step-0000000{number}" / "model.safetensors").unlink()
    train(dataclasses.replace(config, max_steps=5))
    assert steps(config) == [4, 5]
    assert resolve(config.out).name == "step-00000005"
    train(config)
    assert steps(config) == [5, 6, 8]
    assert all(checkpoint.read_record(path) for path in checkpoint.checkpoints(Path(config.out)))


def test_each_of_many_kinds_of_damage_is_found(config: TrainConfig, tmp_path: Path) -> None:
    train(dataclasses.replace(config, max_steps=2))
    (intact,) = checkpoint.checkpoints(Path(config.out))
    changes: dict[str, Callable[[Path], object]] = {
        "removed": lambda path: path.unlink(),
        "emptied": lambda path: path.write_bytes(b""),
        "cut": lambda path: path.write_bytes(path.read_bytes()[:-7]),
        "longer": lambda path: path.write_bytes(path.read_bytes() + b"\n}"),
        "first byte": lambda path: path.write_bytes(
            bytes([path.read_bytes()[0] ^ 1]) + path.read_bytes()[1:]
        ),
        "zeros": lambda path: path.write_bytes(bytes(path.stat().st_size)),
    }
    names = ["checkpoint.json", "model.safetensors", "training.safetensors", "tokenizer.json"]
    num_damages = 0
    for name, (kind, change) in itertools.product(names, changes.items()):
        damaged = tmp_path / f"{kind} {name}"
        shutil.copytree(intact, damaged)
        change(damaged / name)
        with pytest.raises(CheckpointError, match=name.replace(".", r"\.")):
            checkpoint.read_record(damaged)
        num_damages += 1
    # A record that is intact by itself, and describes other files.
    copied = tmp_path / "another record"
    shutil.copytree(intact, copied)
    train(dataclasses.replace(config, max_steps=3))
    shutil.copyfile(
        run_of(config) / "step-00000003" / "checkpoint.json", copied / "checkpoint.json"
    )
    with pytest.raises(CheckpointError, match="has another SHA-256"):
        checkpoint.read_record(copied)
    assert num_damages + 1 == 25


def test_a_background_checkpoint_has_the_state_of_its_step(
    tmp_path: Path, tokenizer_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    go = threading.Event()
    model = torch.nn.Linear(3, 1, bias=False)
    monkeypatch.setattr(
        checkpoint, "save_file", lambda *arguments: go.wait(10) and save_file(*arguments)
    )
    saver = checkpoint.Saver(tmp_path, tokenizer_file)
    optimizer = torch.optim.AdamW(model.parameters())
    model.weight.grad = torch.ones_like(model.weight)
    optimizer.step()
    average = optimizer.state[model.weight]["exp_avg"]
    started = model.weight.detach().clone()
    for number in (1, 2):
        saver.save(record_of(number), model.state_dict(), optim.training_state(model, [optimizer]))
        with torch.no_grad():
            # The loop goes on while the checkpoint is written.
            model.weight.add_(1)
        average.add_(1)
        go.set()
    saver.wait()
    for number in (1, 2):
        folder = tmp_path / "checkpoints" / f"step-0000000{number}"
        optim.load_training(folder, model, [optimizer])
        assert optimizer.state[model.weight]["exp_avg"][0].tolist() == pytest.approx(
            [0.1 + number - 1] * 3
        )
        torch.testing.assert_close(
            load_file(folder / "model.safetensors")["weight"], started + number - 1
        )


def test_a_checkpoint_that_could_not_be_written_stops_the_run(config: TrainConfig) -> None:
    run_of(config).parent.mkdir()
    run_of(config).write_text("in the way")
    with pytest.raises(OSError, match="checkpoints"):
        train(config)


def test_the_last_step_is_saved_before_its_validation(
    config: TrainConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    def out_of_memory(*arguments: object) -> float:
        raise torch.OutOfMemoryError("CUDA out of memory.")

    monkeypatch.setattr("trainer.loop.score_windows", out_of_memory)
    with pytest.raises(MemoryError, match="device_batch_size"):
        train(dataclasses.replace(config, max_steps=3, save_every=0))
    assert steps(config) == [3]
    assert [record["step"] for record in records_of(config.out)] == [1, 2, 3]
    assert records_of(config.out)[-1]["saved"] == 3


def test_each_checkpoint_names_the_one_its_run_continued_from(config: TrainConfig) -> None:
    train(dataclasses.replace(config, save_every=3))
    remove(config, 6, 8)
    train(dataclasses.replace(config, save_every=3))
    third, eighth = (checkpoint.read_record(run_of(config) / f"step-0000000{n}") for n in (3, 8))
    assert third.parent == ""
    assert eighth.parent == third.digest
    assert eighth.versions["torch"] == torch.__version__


@pytest.mark.parametrize("killed", [2, 8])
def test_a_checkpoint_that_was_interrupted_is_ignored(config: TrainConfig, killed: int) -> None:
    # The first checkpoint of a run, or a later one.
    train(dataclasses.replace(config, max_steps=killed))
    (run_of(config) / f"step-{killed:08d}").rename(run_of(config) / f".step-{killed:08d}.part")
    remove(config)
    train(config)
    assert steps(config) == [4, 6, 8]
    assert not list(run_of(config).glob(".*"))


def test_a_lost_newest_checkpoint_is_reported_and_not_exported(
    config: TrainConfig, tmp_path: Path, capsys: Capture
) -> None:
    train(config)
    newest = run_of(config) / "step-00000008"
    (newest / "model.safetensors").unlink()
    capsys.readouterr()
    assert export.main([config.out, str(tmp_path / "exported")]) == 1
    error = capsys.readouterr().err
    assert (
        f"{newest / 'model.safetensors'} is missing: the checkpoint is damaged; restore it, or "
        f"name another" in error
    )
    shutil.rmtree(newest)
    assert export.main([config.out, str(tmp_path / "exported")]) == 1
    missing = f"{newest}, the newest checkpoint that was saved, is missing"
    assert f"{missing}; restore it, or name another one by --step" in capsys.readouterr().err
    assert export.main([config.out, str(tmp_path / "exported"), "--step", "3"]) == 1
    assert f"{config.out} has no checkpoint of step 3; it has 4, 6" in capsys.readouterr().err
    assert export.main([config.out, str(tmp_path / "exported"), "--step", "6"]) == 0
    assert capsys.readouterr().err == f"taking {config.out}/checkpoints/step-00000006\n"
    train(config)
    assert f"{missing}; taking step-00000006, the newest intact one" in capsys.readouterr().out
    train(dataclasses.replace(config, max_steps=9))
    assert "is missing" not in capsys.readouterr().out


def test_a_run_whose_checkpoints_are_missing_does_not_start_over(config: TrainConfig) -> None:
    train(dataclasses.replace(config, max_steps=4))
    lines = (Path(config.out) / "metrics.jsonl").read_text()
    for folder in (
        run_of(config) / "step-00000002",
        run_of(config) / "step-00000004",
        run_of(config),
    ):
        shutil.rmtree(folder)
        if not checkpoint.checkpoints(Path(config.out)):
            with pytest.raises(
                CheckpointError, match=r"step-00000004, .* is missing; restore .* or move .* aside"
            ):
                train(config)
            assert (Path(config.out) / "metrics.jsonl").read_text() == lines
    Path(config.out).rename(f"{config.out}-aside")
    train(config)
    assert steps(config) == [4, 6, 8]


def test_a_run_killed_before_its_first_checkpoint_starts_over(
    config: TrainConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    def killed(*arguments: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("trainer.checkpoint.Saver.save", killed)
    with pytest.raises(KeyboardInterrupt):
        train(dataclasses.replace(config, save_every=3))
    assert records_of(config.out)[-1]["saved"] == 0
    monkeypatch.undo()
    train(config)
    assert steps(config) == [4, 6, 8]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"seed": 1}, "seed was 1337, is 1"),
        ({"sampler": "longbiased", "long_min_tokens": 100}, "sampler was packed, is longbiased"),
        ({"batch_tokens": 1024}, "batch_tokens was 512, is 1024"),
        ({"n_embd": 64}, "n_embd was 32, is 64"),
    ],
)
def test_a_run_with_other_settings_is_not_resumed(
    config: TrainConfig, change: dict[str, Any], message: str
) -> None:
    train(dataclasses.replace(config, max_steps=2))
    with pytest.raises(SettingsError, match=message):
        train(dataclasses.replace(config, **change))


def test_a_longer_run_continues_and_a_finished_one_does_nothing(
    config: TrainConfig, capsys: Capture
) -> None:
    train(dataclasses.replace(config, max_steps=4))
    train(dataclasses.replace(config, max_steps=6, device_batch_size=4))
    assert "max_steps was 4, is 6" in capsys.readouterr().out
    assert steps(config) == [2, 4, 6]
    lines = (Path(config.out) / "metrics.jsonl").read_text()
    for max_steps in (6, 5):
        train(dataclasses.replace(config, max_steps=max_steps))
        assert (
            f"nothing to do: {config.out} is at step 6 of {max_steps}; a higher"
            in capsys.readouterr().out
        )
    assert (Path(config.out) / "metrics.jsonl").read_text() == lines


def test_a_loss_of_nan_stops_the_run_and_names_the_step(
    config: TrainConfig,
) -> None:
    train(dataclasses.replace(config, max_steps=4, schedule="constant"))
    message = (
        r"step (\d+): loss .*; the last good checkpoint is .*step-00000004\b"
        r".*trainer.data.documents .* --step \1\)"
    )
    with pytest.raises(Diverged, match=message):
        train(
            dataclasses.replace(
                config, max_steps=50, schedule="constant", learning_rate=1e30, grad_clip=0.0
            )
        )
    assert steps(config) == [2, 4]


GARBAGE = [
    b"\0" * 40 + b"\n",
    b"\xff\xfe\n",
    b"{\n",
    # A changed bit may leave valid JSON.
    b'{"stgp": 2, "loss": 5.5}\n',
    b'{"step": "2", "loss": 5.5}\n',
    b'{"step": 2, "tokens": "512"}\n',
    b"7\n",
    b"null\n",
    b'["step"]\n',
    b"[" * 100_000 + b"\n",
]


@pytest.mark.parametrize("garbage", GARBAGE, ids=range(len(GARBAGE)))
def test_damaged_lines_of_the_metrics_are_left_out(config: TrainConfig, garbage: bytes) -> None:
    train(dataclasses.replace(config, max_steps=2))
    path = Path(config.out) / "metrics.jsonl"
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(lines[0] + garbage + lines[1])
    train(config)
    assert [record["step"] for record in records_of(config.out)] == list(range(1, 9))


def test_a_full_disk_leaves_no_unfinished_file(
    config: TrainConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next run may have nothing left to write."""
    name = ".metrics.jsonl.part"
    write_text = Path.write_text

    def write_half(path: Path, text: str, encoding: str) -> int:
        if path.name != name:
            return write_text(path, text, encoding=encoding)
        write_text(path, text[: len(text) // 2], encoding=encoding)
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(Path, "write_text", write_half)
    with pytest.raises(OSError, match=rf"{re.escape(name)} cannot be written: No space left"):
        train(config)
    assert not list(Path(config.out).rglob("*.part"))
    monkeypatch.undo()
    train(config)
    assert steps(config) == [4, 6, 8]


def test_a_checkpoint_with_the_weights_that_diverged_is_not_called_good(
    config: TrainConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The third update breaks the weights, which the loss of the fourth step shows.
    train(dataclasses.replace(config, max_steps=2))
    wild = dataclasses.replace(
        config, save_every=1, learning_rate=1e30, grad_clip=0.0, warmup_steps=1
    )
    with pytest.raises(Diverged) as error:
        train(wild)
    advised = re.search(r"weights in (\S+) may be the cause: delete that folder", str(error.value))
    assert advised
    assert advised[1] == str(run_of(config) / "step-00000003")
    # Without it the next run would end so, whatever its settings.
    with pytest.raises(Diverged, match="step-00000003 may be the cause"):
        train(config)
    shutil.rmtree(advised[1])
    train(config)
    assert steps(config) == [4, 6, 8]


def test_a_validation_loss_of_nan_is_an_error_and_no_figure(
    config: TrainConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("trainer.loop.score_windows", lambda *arguments: torch.tensor([math.nan]))
    with pytest.raises(Diverged, match=r"step 8: validation loss nan; .*step-00000008"):
        train(config)
    assert "NaN" not in (Path(config.out) / "metrics.jsonl").read_text()


@pytest.mark.parametrize("name", ["a run", "it's", "run;date", "$HOME", "(run)", "-run"])
def test_commands_in_messages_name_any_folder(
    name: str, config: TrainConfig, tmp_path: Path, write_tokens: WriteTokens
) -> None:
    """Check that a shell passes on the folder's name in a message's command as it is."""
    config = dataclasses.replace(config, out=str(tmp_path / name), max_steps=2)
    train(config)
    with pytest.raises(Diverged) as diverged:
        train(dataclasses.replace(config, max_steps=50, learning_rate=1e30, grad_clip=0.0))
    command = str(diverged.value).split("Look at the step's documents (")[1]
    command = command[: command.rindex("), try a lower")]
    assert shlex.split(command)[:4] == ["python", "-m", "trainer.data.documents", config.out]
    flags = shlex.split(command)[4:]
    value_by_flag = dict(zip(flags[::2], map(int, flags[1::2]), strict=True))
    step, max_steps = value_by_flag["--step"], value_by_flag["--max_steps"]
    assert list(documents.documents_of(config.out, step, max_steps))
    other_data = write_tokens(tmp_path / "other" / "tokens", [[1, 2, 3] * 40] * 20)
    with pytest.raises(SettingsError) as refused:
        train(dataclasses.replace(config, data=(str(other_data),)))
    command = str(refused.value).split("is a new run with ")[1].rsplit(". Use another", 1)[0]
    assert shlex.split(command) == ["--init_from", config.out]


def test_a_new_run_takes_the_optimizers_state_with_the_weights(
    config: TrainConfig, tmp_path: Path, text_tokens: Path, capsys: Capture
) -> None:
    train(
        dataclasses.replace(
            config, max_steps=4, schedule="constant", learning_rate=1e-3, warmup_steps=1
        )
    )
    shape = {
        "schedule": "constant",
        "learning_rate": 1e-3,
        "warmup_steps": 1,
        "init_from": config.out,
        "max_steps": 4,
    }
    further = dataclasses.replace(config, out=str(tmp_path / "further"), **shape)  # type: ignore[arg-type]
    train(further)
    assert f"weights and state of the optimizer from {config.out}" in capsys.readouterr().out
    state = load_file(run_of(further) / "step-00000004" / "training.safetensors")
    assert state["ln_f.weight/step"].item() == 8
    with_muon = dataclasses.replace(further, out=str(tmp_path / "other"), optimizer="muon")
    train(with_muon)
    assert f"weights from {config.out}" in capsys.readouterr().out


def test_finetuning_is_one_epoch_of_linear_decay(config: TrainConfig, tmp_path: Path) -> None:
    train(config)
    tuned = dataclasses.replace(
        config, out=str(tmp_path / "tuned"), init_from=config.out, max_steps=0
    )
    train(tuned)
    records = records_of(tmp_path / "tuned")
    assert (
        records[0]["loss"]
        < train(dataclasses.replace(config, out=str(tmp_path / "fresh"), max_steps=1)).loss - 0.2
    )
    lengths = open_dataset(*config.data).documents("train").lengths
    assert len(records) == math.ceil((lengths.sum() + len(lengths)) / 512)
    falls = [before["lr"] - after["lr"] for before, after in itertools.pairwise(records)]
    assert falls == pytest.approx([falls[0]] * len(falls))
    assert records[0]["lr"] == pytest.approx(3e-4, rel=0.1)


@pytest.mark.parametrize("optimizer", ["adamw", "adafactor", "muon"])
def test_every_optimizer_learns_and_resumes_to_the_same_loss(
    config: TrainConfig, optimizer: str
) -> None:
    config = dataclasses.replace(
        config, optimizer=optimizer, max_steps=20, save_every=10, warmup_steps=2, batch_tokens=256
    )
    last = train(config).loss
    remove(config, 20)
    records = records_of(config.out)
    assert records[-1]["loss"] < records[0]["loss"] - 0.1
    assert train(config).loss == last


def test_bfloat16_and_recomputation_hardly_change_the_loss(
    config: TrainConfig, tmp_path: Path
) -> None:
    changes: dict[str, Any] = {"dtype": "bfloat16", "checkpoint_activations": True}
    changed = dataclasses.replace(config, out=str(tmp_path / "other"), **changes)
    assert math.isclose(train(changed).loss, train(config).loss, rel_tol=0.01)


@pytest.mark.parametrize("block_size", [8, 16, 31])
def test_a_shorter_context_keeps_the_first_positions(
    config: TrainConfig, tmp_path: Path, block_size: int, capsys: Capture
) -> None:
    train(dataclasses.replace(config, max_steps=2))
    settings = {
        "block_size": block_size,
        "batch_tokens": 8 * block_size,
        "max_steps": 1,
        "eval_every": 0,
    }
    shorter = dataclasses.replace(
        config, out=str(tmp_path / "short"), init_from=config.out, learning_rate=0.0, **settings
    )
    train(shorter)
    assert f"of whose 32 positions the first {block_size} are kept" in capsys.readouterr().out
    before, after = (load_pretrained(path).model for path in (config.out, shorter.out))
    ids = torch.arange(block_size)[None]
    torch.testing.assert_close(after(ids), before(ids))
    train(dataclasses.replace(shorter, max_steps=2))
    longer = dataclasses.replace(
        shorter, block_size=64, batch_tokens=512, out=str(tmp_path / "long")
    )
    with pytest.raises(
        CheckpointError, match="of another shape: block_size 32 in place of 64; give"
    ):
        train(longer)


def test_a_run_keeps_its_biases_and_may_change_beta2(config: TrainConfig, capsys: Capture) -> None:
    config = dataclasses.replace(config, bias=False, beta2=0.99)
    train(dataclasses.replace(config, max_steps=4))
    assert not load_pretrained(config.out).model.config.bias
    state = load_file(run_of(config) / "step-00000004" / "training.safetensors")
    assert not [name for name in state if "bias" in name]
    with pytest.raises(SettingsError, match="bias was False, is True"):
        train(dataclasses.replace(config, bias=True))
    train(dataclasses.replace(config, beta2=0.95))
    assert "changed since step-00000004: beta2 was 0.99, is 0.95" in capsys.readouterr().out
