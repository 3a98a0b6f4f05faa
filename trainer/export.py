"""Export a checkpoint as a folder that Hugging Face's transformers loads, here, at the Hub or in a bucket.

python -m trainer.export RUN FOLDER
python -m trainer.export RUN hf://OWNER/NAME --yes

While a run trains, `Publisher` sends its page, its figures and each checkpoint to the same places.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from schemas import SettingsError, option
from trainer.checkpoint import RECORD, Signer
from trainer.command_line import CommandParser, run_command
from trainer.pretrained import Pretrained, load_pretrained, save_huggingface
from trainer.remote import missing_credentials, open_bucket


@dataclass(frozen=True)
class ExportOptions:
    """Settings of `trainer.export`."""

    step: int | None = option(None, "the run's checkpoint of this step, where not the newest", minimum=0)
    verify_key: str | None = option(None, "take a model only if the owner of this public key signed it", metavar="PEM")
    sign_key: str | None = option(None, "private key (PEM, elliptic curve) that signs the folder", metavar="PEM")
    license: str = option("other", "the Hub's name of the model's licence, for its card")
    yes: bool = option(False, "send to hf:// or a bucket; without it, say what would be sent")


def export(source: str, folder: str, options: ExportOptions, uri: str = "") -> None:
    """Write the model that `source` names to `folder`: weights as safetensors, configuration, tokenizer.

    With `uri`, where the folder is to be sent, it gets a card too.

    Raises:
      SettingsError: `folder` is a file, or has a model or a run in it that this would write over.
      ValueError: there is no such model, it is not signed as it should be, or transformers has no class for it.
    """
    check_target(Path(folder), source)
    signer = Signer(options.sign_key) if options.sign_key else None
    trained = load_pretrained(source, verify_key=options.verify_key, step=options.step, newest=True)
    save_huggingface(trained.model, Path(folder), trained.tokenizer, trained.eot)
    if uri:
        (Path(folder) / "README.md").write_text(card(trained, uri, options.license), encoding="utf-8")
    if signer:
        signer.sign(Path(folder))


def check_target(folder: Path, source: str) -> None:
    """Raise SettingsError unless the model may be written to `folder`: not over itself, a run or a checkpoint."""
    if folder.exists() and not folder.is_dir():
        raise SettingsError(f"{folder} is a file; give a folder, which is created if need be")
    if folder.exists() and Path(source).exists() and folder.samefile(source):
        raise SettingsError(f"{folder} is the model itself; give another folder to export it to")
    if (folder / "checkpoints").exists() or (folder / RECORD).exists():
        raise SettingsError(f"{folder} is a run or a checkpoint; give another folder, of its own")


def publish(source: str, uri: str, options: ExportOptions) -> None:
    """Send the exported folder, with a card, to `hf://OWNER/NAME` or a bucket; without `options.yes`, say what it is.

    Raises:
      ValueError: as `export`, or it could not be sent.
    """
    destination = open_destination(uri)
    with tempfile.TemporaryDirectory() as folder:
        exported = Path(folder)
        export(source, folder, options, uri)
        sent: dict[str, Content] = {
            path.relative_to(exported).as_posix(): path for path in sorted(exported.rglob("*")) if path.is_file()
        }
        for name, path in sent.items():
            print(f"{name}: {Path(str(path)).stat().st_size:,} bytes")
        if not options.yes:
            print(f"Nothing was sent: --yes sends it to {uri}")
            return
        try:
            destination.send(sent, "Export of a checkpoint")
        except Exception as error:  # of the package, its HTTP client or the file system
            raise ValueError(f"{uri}: {str(error).splitlines()[0]}; the same command continues") from error
    print(f"published: {uri}")


def card(trained: Pretrained, uri: str, license: str) -> str:
    """README.md of the model."""
    config = trained.model.config
    steps = f" after {trained.step:,} steps" if trained.step is not None else ""
    return f"""\
---
license: {license}
library_name: transformers
pipeline_tag: text-generation
tags: [gpt2]
---

# {uri.rstrip("/").rpartition("/")[2]}

GPT-2 with {trained.model.n_parameters:,} parameters ({config.n_layer} layers, width {config.width}, context
{config.context}), trained with owt-pipeline{steps}. It continues text as its training data did, mistakes and
prejudices of web pages included, and was not taught to follow instructions or to be safe.

    from transformers import pipeline

    print(pipeline("text-generation", model="{uri.removeprefix("hf://")}")("The council"))
"""


HUB = "hf://"
_TRIES, _PAUSE = 3, 5.0  # of one push, and seconds between them


Content = Path | bytes
"""A file, or what is in it."""


class Destination(Protocol):
    """Where files are sent; `send` adds or replaces {path there: content} and raises any error of its client."""

    def send(self, files: dict[str, Content], message: str) -> None: ...


def open_destination(uri: str) -> Destination:
    """`hf://OWNER/NAME`, `s3://BUCKET/PATH` or `gs://BUCKET/PATH`.

    Raises SettingsError for another form, and for a bucket that nothing gives credentials for.
    """
    if uri.startswith(HUB):
        return _Hub(uri.removeprefix(HUB))
    if uri.partition("://")[0] in ("s3", "gs"):
        if missing := missing_credentials(uri):
            raise SettingsError(f"publish: {uri}: no credentials found: {missing}")
        return _Bucket(uri)
    raise SettingsError(f"publish: {uri} is neither hf://OWNER/NAME nor s3://BUCKET/PATH nor gs://BUCKET/PATH")


class _Hub:
    """A model repository at the Hugging Face Hub: a push is one commit. The token is huggingface_hub's own."""

    def __init__(self, name: str) -> None:
        try:
            from huggingface_hub import HfApi
        except ImportError:
            raise SettingsError(
                "publish to hf:// needs huggingface_hub, which is not installed: pip install huggingface_hub"
            ) from None
        if name.count("/") != 1 or not all(name.split("/")):
            raise SettingsError(f"publish: {HUB}{name} is not {HUB}OWNER/NAME")
        self._api, self._name, self._created = HfApi(), name, False

    def send(self, files: dict[str, Content], message: str) -> None:
        from huggingface_hub import CommitOperationAdd

        if not self._created:
            self._api.create_repo(self._name, exist_ok=True)
            self._created = True
        operations = [CommitOperationAdd(name, content) for name, content in files.items()]
        self._api.create_commit(self._name, operations, commit_message=message)


class _Bucket:
    """A folder in a bucket. The page goes last, so that it never shows what is not there yet."""

    def __init__(self, uri: str) -> None:
        self._fs, self._root = open_bucket(uri.rstrip("/"))

    def send(self, files: dict[str, Content], message: str) -> None:
        for name, content in files.items():
            opened = content.open("rb") if isinstance(content, Path) else io.BytesIO(content)
            with opened as source, self._fs.open_output_stream(f"{self._root}/{name}") as sink:
                while piece := source.read(8 << 20):
                    sink.write(piece)


class Publisher:
    """Sends the run's folder in the background: what fails is reported and sent again with the next checkpoint.

    Args:
      destination: where it goes.
      run: the run's folder.
      say: prints a line for people.
    """

    def __init__(self, destination: Destination, run: Path, say: Callable[[str], None]) -> None:
        self._destination, self._run, self._say = destination, run, say
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="publish")
        self._lock = threading.Lock()
        self._waiting: Path | None = None

    def push(self, checkpoint: Path) -> None:
        """Send this checkpoint and the run's page; one that waits for an earlier push gives way to a newer one."""
        with self._lock:
            self._waiting = checkpoint
        self._thread.submit(self._push_newest)

    def close(self) -> None:
        """Wait for what is being sent, then send the page as it is now."""
        self._thread.submit(self._push, None)
        self._thread.shutdown()

    def _push_newest(self) -> None:
        with self._lock:
            checkpoint, self._waiting = self._waiting, None
        if checkpoint:
            self._push(checkpoint)

    def _push(self, checkpoint: Path | None) -> None:
        what = checkpoint.name if checkpoint else "the page"
        for number in range(_TRIES):
            if checkpoint and not checkpoint.exists():
                return  # pruned since: a newer one follows
            try:
                self._destination.send(self._files(checkpoint), f"{self._run.resolve().name}: {what}")
                self._say(f"published {what}")
                return
            except Exception as error:  # of the package, its HTTP client or the file system
                problem: Any = error
            if number + 1 < _TRIES:
                time.sleep(_PAUSE)
        self._say(f"{what} could not be published ({problem}); training continues, the next checkpoint is sent as well")

    def _files(self, checkpoint: Path | None) -> dict[str, Content]:
        files: dict[str, Content] = {}
        if checkpoint:
            paths = sorted(path for path in checkpoint.rglob("*") if path.is_file())
            files = {f"checkpoints/{path.relative_to(checkpoint.parent).as_posix()}": path for path in paths}
        for name in ("metrics.jsonl", "samples.jsonl", "training.html"):
            with contextlib.suppress(FileNotFoundError):
                files[name] = (self._run / name).read_bytes()  # the run keeps writing them
        return files


def main(arguments: Sequence[str] | None = None) -> int:
    parser = CommandParser(prog="python -m trainer.export", description=__doc__)
    parser.add_argument("checkpoint", metavar="CHECKPOINT", help="a checkpoint, or a run's folder for its newest")
    parser.add_argument("folder", metavar="FOLDER", help="where the model goes: a folder, hf://…, s3://… or gs://…")

    def work(given: argparse.Namespace, options: ExportOptions) -> None:
        if "://" in given.folder:
            publish(given.checkpoint, given.folder, options)
            return
        export(given.checkpoint, given.folder, options)
        print(f"{given.folder}: transformers.AutoModelForCausalLM.from_pretrained loads it")

    return run_command(parser, ExportOptions, work, arguments)


if __name__ == "__main__":
    sys.exit(main())
