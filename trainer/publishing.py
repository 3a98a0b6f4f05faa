"""Publish to the Hub or a bucket: a model, or a run with its page, figures and checkpoints while it trains."""

from __future__ import annotations

import contextlib
import io
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Protocol

from schemas import SettingsError
from trainer.remote import missing_credentials, open_bucket

HUB = "hf://"
_TRIES, _PAUSE = 3, 5.0  # of one push, and seconds between them

Content = Path | bytes
"""A file, or its content."""


class Destination(Protocol):
    """Where files are sent; `send` adds or replaces {path: content} and raises any error of its client."""

    def send(self, files: dict[str, Content], message: str) -> None: ...


def open_destination(uri: str) -> Destination:
    """`hf://OWNER/NAME`, `s3://BUCKET/PATH` or `gs://BUCKET/PATH`.

    Raises SettingsError for any other URI, and for a bucket without credentials.
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
    """A folder in a bucket. The page is sent last, so that it never shows what is not there yet."""

    def __init__(self, uri: str) -> None:
        self._fs, self._root = open_bucket(uri.rstrip("/"))

    def send(self, files: dict[str, Content], message: str) -> None:
        for name, content in files.items():
            opened = content.open("rb") if isinstance(content, Path) else io.BytesIO(content)
            with opened as source, self._fs.open_output_stream(f"{self._root}/{name}") as sink:
                while piece := source.read(8 << 20):
                    sink.write(piece)


class Publisher:
    """Sends the run's folder in the background; a failure is reported, and the next checkpoint is sent as usual.

    Args:
      destination: where it is sent.
      run: the run's folder.
      say: prints a message.
    """

    def __init__(self, destination: Destination, run: Path, say: Callable[[str], None]) -> None:
        self._destination, self._run, self._say = destination, run, say
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="publish")
        self._lock = threading.Lock()
        self._waiting: Path | None = None

    def push(self, checkpoint: Path) -> None:
        """Send this checkpoint and the run's page; of checkpoints that wait for an earlier push, the newest is sent."""
        with self._lock:
            self._waiting = checkpoint
        self._thread.submit(self._push_newest)

    def close(self) -> None:
        """Wait until the pushes are done, then send the page as it is now."""
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
