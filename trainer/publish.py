"""A run is sent to a folder, a bucket or the Hugging Face Hub while it trains."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pyarrow
import pyarrow.fs

from schemas import SettingsError
from trainer.command_line import first_line
from trainer.data.buckets import open_bucket

# Where a run can be sent, apart from a folder.
PUBLISHABLE = ("hf://", "s3://", "gs://")
_PLACES = "give a folder, hf://OWNER/NAME, s3://BUCKET/PATH or gs://BUCKET/PATH"


class Publisher:
    """Sends the figures and checkpoints of the run in the folder `run`, in the background.

    A failure is reported by `say`; training continues. `uri` is hf://, s3://, gs:// or a folder.
    Raises SettingsError if it is something else or the run itself, if the Hub's client or token is
    missing, or if no bucket is reached.
    """

    def __init__(self, uri: str, run: Path, say: Callable[[str], None]) -> None:
        self._run = run
        self._say = say
        try:
            self._target = _Repository(uri) if uri.startswith("hf://") else _Folder(uri)
            if os.path.realpath(uri) == os.path.realpath(run):
                raise OSError("this is the run's own folder; give another one")
        except (ImportError, pyarrow.ArrowInvalid, OSError) as error:
            raise SettingsError(f"publish: {uri}: {first_line(error)}") from error
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="publish")

    def push(self, checkpoint: Path | None) -> None:
        """Send the run's figures, and this checkpoint."""
        self._thread.submit(self._push, checkpoint)

    def close(self) -> None:
        """Wait until all is sent, and send the figures as they are now."""
        self.push(None)
        self._thread.shutdown()

    def _push(self, checkpoint: Path | None) -> None:
        figures = self._run / "metrics.jsonl"
        # A checkpoint may have been pruned since: a newer one follows.
        paths = [path for path in (checkpoint, figures) if path and path.exists()]
        if checkpoint and checkpoint not in paths:
            return
        name = (checkpoint or figures).name
        try:
            for path in paths:
                self._target.send(path, path.relative_to(self._run).as_posix())
            self._say(f"published {name}")
        # Errors of the package, its HTTP client or the file system.
        except Exception as error:
            self._say(f"{name} could not be published ({first_line(error)}); training continues")


class _Folder:
    """A folder on a disk or in a bucket."""

    def __init__(self, uri: str) -> None:
        self._filesystem: pyarrow.fs.FileSystem = pyarrow.fs.LocalFileSystem()
        self._root = os.path.realpath(uri)
        # A bucket has no folders.
        self._is_local = "://" not in uri
        if self._is_local:
            self._filesystem.create_dir(self._root)
        elif uri.startswith(PUBLISHABLE):
            self._filesystem, self._root = open_bucket(uri.rstrip("/"))
        else:
            raise OSError(_PLACES)

    def send(self, path: Path, name: str) -> None:
        """Copy a file or folder of the run."""
        target = f"{self._root}/{name}"
        if self._is_local and path.is_dir():
            self._filesystem.create_dir(target)
        pyarrow.fs.copy_files(str(path), target, destination_filesystem=self._filesystem)


class _Repository:
    """A repository at the Hub."""

    def __init__(self, uri: str) -> None:
        import huggingface_hub

        self._name = uri.removeprefix("hf://")
        if not re.fullmatch("[^/]+/[^/]+", self._name):
            raise OSError(_PLACES)
        if not huggingface_hub.get_token():
            raise OSError("there is no token of the Hub; run `hf auth login`")

    def send(self, path: Path, name: str) -> None:
        """Commit a file, or all files of a folder together."""
        import huggingface_hub

        huggingface_hub.create_repo(self._name, exist_ok=True)
        if path.is_dir():
            huggingface_hub.upload_folder(
                repo_id=self._name, folder_path=path, path_in_repo=name, commit_message=name
            )
        else:
            # A copy: training appends to the file while it is sent.
            huggingface_hub.upload_file(
                repo_id=self._name,
                path_or_fileobj=path.read_bytes(),
                path_in_repo=name,
                commit_message=name,
            )
