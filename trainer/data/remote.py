"""Buckets (`s3://`, `gs://`) and the Hub: opened, read, and sent a run while it trains."""

from __future__ import annotations

import json
import os
import re
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import TimeoutError as FutureTimeoutError
from contextlib import suppress
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.fs

from schemas import SettingsError
from schemas.hub import fetch_file
from trainer.command_line import first_line

# How long a bucket may take to answer, in seconds. Without credentials, clients retry for up to 15
# minutes.
_MAX_SECONDS = 45
_MAX_CHARACTERS = 240  # of a client's error
# The file of a run that is sent with each checkpoint.
_FIGURES = "metrics.jsonl"
# Between commits of the figures at the Hub, apart from those with a checkpoint.
_MINUTES_BETWEEN_COMMITS = 10
# Where a run can be sent, apart from a folder.
PUBLISHABLE = ("hf://", "s3://", "gs://")


def why_not(error: Exception) -> str:
    """Return the error of a bucket's client in one line, and what to check."""
    message = " ".join(str(error).split())[:_MAX_CHARACTERS]
    return f"{message}; check the bucket's name, the network and the credentials"


def open_bucket(uri: str) -> tuple[pyarrow.fs.FileSystem, str]:
    """Return the file system of a `gs://` or `s3://` URI, and the path in it.

    One request shows that it can be reached. Credentials and endpoints are found as each vendor's
    clients find them; `s3://anonymous@BUCKET` and `gs://anonymous@BUCKET` need none.
    `GOOGLE_BASE_URL` names another server for `gs://`, with `GOOGLE_BEARER_TOKEN` as its token, and
    `AWS_ENDPOINT_URL` one for `s3://`, as for the pipeline. Raises pyarrow.ArrowInvalid for an
    invalid URI; OSError if access is refused, or if there is no answer within 45 seconds.
    """
    result: Future[tuple[pyarrow.fs.FileSystem, str]] = Future()

    def connect() -> None:
        try:
            filesystem, path = _file_system(uri)
            filesystem.get_file_info(path)
            result.set_result((filesystem, path))
        except Exception as error:
            result.set_exception(error)

    # A daemon: it may go on for minutes.
    threading.Thread(target=connect, daemon=True).start()
    try:
        return result.result(_MAX_SECONDS)
    except FutureTimeoutError:
        raise TimeoutError(
            f"no answer within {_MAX_SECONDS} seconds, as without credentials"
        ) from None


def _file_system(uri: str) -> tuple[pyarrow.fs.FileSystem, str]:
    # Arrow's URIs cannot express this one.
    if uri.startswith("s3://anonymous@"):
        path = uri.removeprefix("s3://anonymous@")
        endpoint = os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL")
        region = None
        if not endpoint:
            region = pyarrow.fs.resolve_s3_region(path.partition("/")[0])
        filesystem = pyarrow.fs.S3FileSystem(
            anonymous=True, endpoint_override=endpoint, region=region
        )
        return filesystem, path
    filesystem, path = pyarrow.fs.FileSystem.from_uri(uri)
    if uri.startswith("gs://"):
        filesystem = _google_server() or filesystem
    return filesystem, path


def _google_server() -> pyarrow.fs.FileSystem | None:
    """Return the server that the environment names in place of Google's; None without one.

    `STORAGE_EMULATOR_HOST` (`host:port`, or a URL), which Google's clients read, is used without
    credentials. `GOOGLE_BASE_URL` precedes it.
    """
    base_url = os.environ.get("GOOGLE_BASE_URL", "")
    address = base_url or os.environ.get("STORAGE_EMULATOR_HOST", "")
    if not address:
        return None
    scheme, _, host = address.rpartition("://")
    server = {"scheme": scheme or "http", "endpoint_override": host.strip("/")}
    token = os.environ.get("GOOGLE_BEARER_TOKEN")
    if not base_url:
        return pyarrow.fs.GcsFileSystem(anonymous=True, **server)
    if not token:
        return pyarrow.fs.GcsFileSystem(**server)
    # pyarrow asks when the token expires; the server decides.
    expiration = datetime.now(timezone.utc) + timedelta(days=365)
    return pyarrow.fs.GcsFileSystem(
        access_token=token, credential_token_expiration=expiration, **server
    )


# A repository, and its revision: gpt2, openai-community/gpt2@main.
_HUB_NAME = re.compile(r"\w[\w.-]*(/\w[\w.-]*)?(@[\w./-]+)?")
# The first of these that a model has is downloaded.
_HUB_WEIGHTS = (
    "model.safetensors",
    "model.safetensors.index.json",
    "pytorch_model.bin",
    "pytorch_model.bin.index.json",
)
# All of these that a model has are.
_HUB_TOKENIZER = (
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "vocab.json",
    "merges.txt",
)


def is_hub_name(source: str) -> bool:
    """Return whether this has the form of a model's name at the Hub, and no file has the name."""
    return bool(_HUB_NAME.fullmatch(source)) and not Path(source).exists()


def download_model(name: str) -> Path:
    """Return the folder of a model in the Hub's cache, after a download of what the cache lacks.

    A cached file is used without a check, so that a rerun needs no network and gets no newer file.
    `NAME@REVISION` selects a revision. Raises ValueError if the model cannot be had.
    """
    try:
        from huggingface_hub.errors import EntryNotFoundError
    except ImportError:
        raise ValueError(
            f"{name} is not a folder here, and a model of the Hugging Face Hub needs the extra "
            f"hf: pip install transformers"
        ) from None
    repository, _, revision = name.partition("@")
    try:
        folder = Path(fetch_file(repository, "config.json", revision or None)).parent
        # The name of the folder. All files are of one commit.
        commit = folder.name
        weights = _download_first(repository, _HUB_WEIGHTS, commit)
        if weights.suffix == ".json":
            file_by_tensor = json.loads(weights.read_bytes())["weight_map"]
            for file in sorted(set(file_by_tensor.values())):
                fetch_file(repository, file, commit)
        for file in _HUB_TOKENIZER:
            with suppress(EntryNotFoundError):
                fetch_file(repository, file, commit)
    # Errors of the package, its HTTP client or the file system.
    except Exception as error:
        of_revision = f" --revision {revision}" if revision else ""
        raise ValueError(
            f"{name} is neither a folder here nor a model that can be had from the Hugging Face "
            f"Hub ({first_line(error)}): check the name; or fetch it once while connected "
            f"(`hf download {repository}{of_revision}`); or name a mirror by HF_ENDPOINT"
        ) from error
    return folder


def _download_first(repository: str, files: Sequence[str], revision: str) -> Path:
    """Return the first of the files that the model has; raises the error of the first."""
    from huggingface_hub.errors import EntryNotFoundError

    errors = []
    for file in files:
        try:
            return Path(fetch_file(repository, file, revision))
        except EntryNotFoundError as error:
            errors.append(error)
    raise errors[0]


class Publisher:
    """Sends the figures and checkpoints of the run in the folder `run`, in the background.

    A failure is reported by `say`; training continues. `uri` is hf://, s3://, gs:// or a folder.
    Raises SettingsError if it is something else or the run itself, if the Hub's client or token is
    missing, or if no bucket is reached.
    """

    def __init__(self, uri: str, run: Path, say: Callable[[str], None]) -> None:
        self._run = run
        self._say = say
        # The Hub's, from the first push on: it makes the repository.
        self._scheduler: Any = None
        # None for the Hub.
        self._filesystem: pyarrow.fs.FileSystem | None = None
        self._root = ""
        try:
            self._open(uri)
        except (ImportError, pyarrow.ArrowInvalid, OSError) as error:
            raise SettingsError(f"publish: {uri}: {first_line(error)}") from error
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="publish")

    def _open(self, uri: str) -> None:
        scheme, separator, path = uri.partition("://")
        if not separator:
            self._root = os.path.realpath(uri)
            if self._root == os.path.realpath(self._run):
                raise OSError("this is the run's own folder; give another one")
            self._filesystem = pyarrow.fs.LocalFileSystem()
            self._filesystem.create_dir(self._root)
        elif scheme in ("s3", "gs"):
            self._filesystem, self._root = open_bucket(uri.rstrip("/"))
        elif scheme == "hf" and path.count("/") == 1 and all(path.split("/")):
            import huggingface_hub

            if not huggingface_hub.get_token():
                raise OSError("there is no token of the Hub; run `hf auth login`")
            self._root = path
        else:
            raise OSError("give a folder, hf://OWNER/NAME, s3://BUCKET/PATH or gs://BUCKET/PATH")

    def push(self, checkpoint: Path | None) -> None:
        """Send the run's figures, and this checkpoint."""
        self._thread.submit(self._push, checkpoint)

    def close(self) -> None:
        """Wait until all is sent, and send the figures as they are now."""
        self.push(None)
        self._thread.shutdown()
        if self._scheduler:
            self._scheduler.stop()

    def _push(self, checkpoint: Path | None) -> None:
        # Pruned since: a newer one follows.
        if checkpoint and not checkpoint.exists():
            return
        name = checkpoint.name if checkpoint else _FIGURES
        paths = [self._run / _FIGURES]
        if checkpoint:
            paths.insert(0, checkpoint)
        try:
            if self._filesystem:
                self._copy(self._filesystem, paths)
            else:
                self._commit()
            self._say(f"published {name}")
        # Errors of the package, its HTTP client or the file system.
        except Exception as error:
            self._say(f"{name} could not be published ({first_line(error)}); training continues")

    def _copy(self, filesystem: pyarrow.fs.FileSystem, paths: list[Path]) -> None:
        for path in paths:
            if not path.exists():
                continue
            target = f"{self._root}/{path.relative_to(self._run).as_posix()}"
            # A bucket has no folders.
            if path.is_dir() and isinstance(filesystem, pyarrow.fs.LocalFileSystem):
                filesystem.create_dir(target)
            pyarrow.fs.copy_files(str(path), target, destination_filesystem=filesystem)

    def _commit(self) -> None:
        """Send all that has changed to the Hub."""
        import huggingface_hub

        if not self._scheduler:
            self._scheduler = huggingface_hub.CommitScheduler(
                repo_id=self._root,
                folder_path=self._run,
                every=_MINUTES_BETWEEN_COMMITS,
                # A checkpoint has this name once it is complete.
                allow_patterns=[_FIGURES, "checkpoints/step-*"],
            )
        self._scheduler.trigger().result()
