"""--publish: checkpoints and the page at a hub and in a bucket, during training."""

from __future__ import annotations

import json
import subprocess
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow.fs
import pytest

from schemas import SettingsError
from tests.servers.hub import environment_of, hub_server
from tests.servers.s3 import s3_bucket
from trainer.publishing import Publisher, open_destination
from trainer.remote import open_bucket
from trainer.tools import export

FLAGS: Sequence[object] = (
    *("--preset", "tiny", "--width", 32, "--context", 32, "--batch_tokens", 256, "--max_steps", 4, "--save_every", 2),
    *("--val_every", 2, "--sample_tokens", 4, "--tracker", "none", "--device", "cpu"),
)


def start(trainer: Any, environment: dict[str, str], *arguments: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        trainer.command(*arguments), capture_output=True, text=True, timeout=300, check=False,
        env={**trainer.environment(), **environment},
    )  # fmt: skip


def test_the_hub_gets_every_checkpoint_the_page_and_an_export(
    tmp_path: Path, text_tokens: Path, trainer: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("huggingface_hub", reason="the client: pip install huggingface_hub")
    run = tmp_path / "run"
    with hub_server() as hub:
        hub.failing = 1  # the client or we try again
        flags = ("--data", text_tokens, "--out", run, "--publish", "hf://someone/gpt2", *FLAGS)
        environment = environment_of(hub, tmp_path / "home")
        done = start(trainer, environment, *flags)
        sending = trainer.command(run, "hf://someone/exported", "--yes", module="trainer.tools.export")
        send = {"env": trainer.environment() | environment, "timeout": 240, "check": True}
        sent = subprocess.run(sending, capture_output=True, text=True, **send)
    assert done.returncode == 0, done.stderr
    assert "published step-00000004" in done.stdout
    assert sent.stdout.endswith("published: hf://someone/exported\n")
    assert export.main([str(run), "hf://someone/else"]) == 0
    assert capsys.readouterr().out.endswith("Nothing was sent: --yes sends it to hf://someone/else\n")
    assert export.main([str(run), str(tmp_path / "exported")]) == 0
    exported = hub.files["someone/exported"]
    assert "library_name: transformers" in exported.pop("README.md").decode()
    assert exported == {path.name: path.read_bytes() for path in (tmp_path / "exported").iterdir()}
    files = hub.files["someone/gpt2"]
    local = {path.relative_to(run).as_posix(): path.read_bytes() for path in run.rglob("*") if path.is_file()}
    assert {name for name in files if name.startswith("checkpoints/step-00000004/")} == {
        f"checkpoints/step-00000004/{name}"
        for name in (
            "checkpoint.json",
            "model.safetensors",
            "tokenizer.json",
            "training/.metadata",
            "training/__0_0.distcp",
        )
    }
    for name, content in files.items():
        assert local[name] == content, name
    assert b"4 of 4" in files["training.html"]
    assert [json.loads(line)["step"] for line in files["metrics.jsonl"].splitlines()] == [1, 2, 3, 4]
    assert [summary for _, summary in hub.commits][-2:] == ["run: the page", "Export of a checkpoint"]


def test_a_refusal_by_the_hub_is_reported_and_training_continues(
    tmp_path: Path, text_tokens: Path, trainer: Any
) -> None:
    pytest.importorskip("huggingface_hub", reason="the client: pip install huggingface_hub")
    with hub_server() as hub:
        environment = environment_of(hub, tmp_path / "home") | {"HF_TOKEN": "hf_wrong"}
        flags = ("--data", text_tokens, "--out", tmp_path / "run", "--publish", "hf://someone/gpt2", *FLAGS)
        done = start(trainer, environment, *flags)
    assert done.returncode == 0, done.stderr
    assert "step-00000004 could not be published (" in done.stdout
    assert "401" in done.stdout
    assert "step 4/4" in done.stdout
    assert not hub.files


def test_a_bucket_gets_the_run(tmp_path: Path) -> None:
    with s3_bucket() as bucket:
        _publish_to(f"{bucket}/runs/gpt2", tmp_path)


def test_a_newer_checkpoint_replaces_one_that_waits(tmp_path: Path) -> None:
    sent: list[str] = []
    first, go_on = threading.Event(), threading.Event()

    class Slow:
        def send(self, files: dict[str, Path | bytes], message: str) -> None:
            sent.append(message)
            first.set()
            assert go_on.wait(60)

    publisher = Publisher(Slow(), tmp_path / "run", lambda line: None)
    for step in (1, 2, 3, 4):
        (tmp_path / f"step-{step}").mkdir()
        publisher.push(tmp_path / f"step-{step}")
        assert first.wait(60)
    go_on.set()
    publisher.close()
    assert sent == ["run: step-1", "run: step-4", "run: the page"]


def test_a_checkpoint_that_was_removed_meanwhile_is_not_reported_as_published(tmp_path: Path) -> None:
    class Destination:
        def send(self, files: dict[str, Path | bytes], message: str) -> None: ...

    said: list[str] = []
    publisher = Publisher(Destination(), tmp_path / "run", said.append)
    publisher.push(tmp_path / "step-1")
    publisher.close()
    assert said == ["published the page"]


@pytest.mark.parametrize(
    ("uri", "message"),
    [
        ("hf://someone", "hf://someone is not hf://OWNER/NAME"),
        ("ftp://host/run", "ftp://host/run is neither hf://OWNER/NAME nor s3://"),
        ("run", "publish: run is neither"),
    ],
)
def test_an_invalid_destination_is_refused(uri: str, message: str) -> None:
    with pytest.raises(SettingsError, match=message):
        open_destination(uri)


def _publish_to(uri: str, folder: Path) -> None:
    run, checkpoint = folder / "run", folder / "run" / "checkpoints" / "step-00000002"
    checkpoint.mkdir(parents=True)
    (checkpoint / "model.safetensors").write_bytes(b"weights" * 1000)
    (run / "training.html").write_text("page")
    said: list[str] = []
    publisher = Publisher(open_destination(uri), run, said.append)
    publisher.push(checkpoint)
    publisher.close()
    assert said == ["published step-00000002", "published the page"]
    filesystem, root = open_bucket(uri)
    found = filesystem.get_file_info(pyarrow.fs.FileSelector(root, recursive=True))
    names = {info.path.removeprefix(f"{root}/"): info.size for info in found if info.is_file}
    assert names == {"checkpoints/step-00000002/model.safetensors": 7000, "training.html": 4}
