"""--publish: checkpoints and the page at a hub and in a bucket, during training."""

from __future__ import annotations

import dataclasses
import json
import subprocess
from pathlib import Path
from typing import Any

import pyarrow.fs
import pytest

from schemas import SettingsError
from tests.servers.hub import environment_of, hub_server
from tests.servers.s3 import s3_bucket
from trainer import checkpoint
from trainer.config import TrainConfig
from trainer.data.buckets import open_bucket
from trainer.loop import train
from trainer.publish import Publisher

from .conftest import TINY, flags_of

FLAGS = flags_of(**TINY, max_steps=4, save_every=2, eval_every=2, device="cpu")


def start(
    trainer: Any, environment: dict[str, str], *arguments: object
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        trainer.command(*arguments), capture_output=True, text=True, timeout=300, check=False,
        env={**trainer.environment(), **environment},
    )  # fmt: skip


@pytest.mark.slow
def test_the_hub_gets_every_checkpoint_and_the_page(
    tmp_path: Path, text_tokens: Path, trainer: Any
) -> None:
    pytest.importorskip("huggingface_hub", reason="the client: pip install huggingface_hub")
    run = tmp_path / "run"
    with hub_server() as hub:
        # The client or the publisher tries again.
        hub.failing = 1
        flags = ("--data", text_tokens, "--out", run, "--publish", "hf://someone/gpt2", *FLAGS)
        done = start(trainer, environment_of(hub, tmp_path / "home"), *flags)
    assert done.returncode == 0, done.stderr
    assert "published step-00000004" in done.stdout
    files = hub.files["someone/gpt2"]
    local = {
        path.relative_to(run).as_posix(): path.read_bytes()
        for path in run.rglob("*")
        if path.is_file()
    }
    assert {name for name in files if name.startswith("checkpoints/step-00000004/")} == {
        f"checkpoints/step-00000004/{name}"
        for name in (
            "checkpoint.json",
            "model.safetensors",
            "tokenizer.json",
            "training.safetensors",
        )
    }
    for name, content in files.items():
        assert local[name] == content or name == ".gitattributes", name
    assert [json.loads(line)["step"] for line in files["metrics.jsonl"].splitlines()] == [
        1,
        2,
        3,
        4,
    ]


@pytest.mark.slow
def test_a_refusal_by_the_hub_is_reported_and_training_continues(
    tmp_path: Path, text_tokens: Path, trainer: Any
) -> None:
    pytest.importorskip("huggingface_hub", reason="the client: pip install huggingface_hub")
    with hub_server() as hub:
        environment = environment_of(hub, tmp_path / "home") | {"HF_TOKEN": "hf_wrong"}
        flags = (
            "--data",
            text_tokens,
            "--out",
            tmp_path / "run",
            "--publish",
            "hf://someone/gpt2",
            *FLAGS,
        )
        done = start(trainer, environment, *flags)
    assert done.returncode == 0, done.stderr
    assert "step-00000004 could not be published (" in done.stdout
    assert "401" in done.stdout
    assert "step 4/4" in done.stdout
    assert not any(hub.files.values())


@pytest.mark.parametrize(
    ("uri", "message"),
    [
        ("hf://someone", "hf://someone: give a folder, hf://OWNER/NAME"),
        ("hf://someone/", "hf://someone/: give a folder, hf://OWNER/NAME"),
        ("ftp://host/run", "ftp://host/run: give a folder, hf://OWNER/NAME, s3://"),
        (__file__, "publish: .*test_publish.py: "),
        (f"{__file__}/run", "publish: .*/run: "),
        ("hf://someone/gpt2", "there is no token of the Hub; run `hf auth login`"),
    ],
)
def test_an_invalid_destination_is_refused(
    uri: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("huggingface_hub", reason="the client: pip install huggingface_hub")
    monkeypatch.setattr("huggingface_hub.get_token", lambda: None)
    with pytest.raises(SettingsError, match=message):
        Publisher(uri, tmp_path, print)


def test_a_bucket_gets_the_run(tmp_path: Path) -> None:
    run = tmp_path / "run"
    checkpoint = tmp_path / "run" / "checkpoints" / "step-00000002"
    checkpoint.mkdir(parents=True)
    (checkpoint / "model.safetensors").write_bytes(b"weights" * 1000)
    (run / "metrics.jsonl").write_text("{}\n")
    messages: list[str] = []
    with s3_bucket() as bucket:
        publisher = Publisher(f"{bucket}/runs/gpt2", run, messages.append)
        publisher.push(checkpoint)
        # It may have been pruned meanwhile.
        publisher.push(run / "checkpoints" / "step-00000001")
        publisher.close()
        filesystem, root = open_bucket(f"{bucket}/runs/gpt2")
        files = filesystem.get_file_info(pyarrow.fs.FileSelector(root, recursive=True))
    assert messages == ["published step-00000002", "published metrics.jsonl"]
    names = {info.path.removeprefix(f"{root}/"): info.size for info in files if info.is_file}
    assert names == {"checkpoints/step-00000002/model.safetensors": 7000, "metrics.jsonl": 3}


def test_a_folder_gets_the_run(tmp_path: Path, config: TrainConfig) -> None:
    copy = tmp_path / "copies" / "run"
    train(dataclasses.replace(config, max_steps=4, publish=str(copy)))
    run = Path(config.out)
    names = ["metrics.jsonl", "checkpoints/step-00000004/model.safetensors"]
    for name in names:
        assert (copy / name).read_bytes() == (run / name).read_bytes(), name
    train(dataclasses.replace(config, max_steps=6, publish=str(copy)))
    assert checkpoint.read_record(copy / "checkpoints" / "step-00000006").step == 6
    for place in (run, run / ".." / "run"):
        with pytest.raises(SettingsError, match="is the run's own folder"):
            train(dataclasses.replace(config, max_steps=8, publish=str(place)))
