"""Buckets (`s3://`, `gs://`) and the Hub: opened, read, and sent a run while it trains."""

from __future__ import annotations

import json
import os
import re
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import TimeoutError as TookTooLong
from contextlib import suppress
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.fs

from schemas import SettingsError
from trainer.command_line import first_line

_SECONDS = (
    45  # that a bucket may take to answer: without credentials, clients retry for up to 15 minutes
)
_FIGURES = ("metrics.jsonl", "training.html")
_MINUTES = 10  # between commits of the figures at the Hub, apart from those with a checkpoint


def why_not(error: Exception) -> str:
    """The error of a bucket's client in one line, and what to check."""
    return (
        f"{' '.join(str(error).split())[:240]}; check the bucket's name, the network and the "
        f"credentials"
    )


def open_bucket(uri: str) -> tuple[pyarrow.fs.FileSystem, str]:
    """The file system of a `gs://` or `s3://` URI, and the path in it, after one request to it.

    Credentials and endpoints are found as each vendor's clients find them; `s3://anonymous@BUCKET`
    and `gs://anonymous@BUCKET` need none. `STORAGE_EMULATOR_HOST` (`host:port`, or a URL) names
    another server for `gs://`, which is used without credentials; `AWS_ENDPOINT_URL` names one for
    `s3://`. Raises pyarrow.ArrowInvalid: an invalid URI; OSError: access is refused, or there is no
    answer within 45 seconds.
    """
    answer: Future[tuple[pyarrow.fs.FileSystem, str]] = Future()

    def ask() -> None:
        try:
            filesystem, path = _file_system(uri)
            filesystem.get_file_info(path)
            answer.set_result((filesystem, path))
        except Exception as error:
            answer.set_exception(error)

    threading.Thread(target=ask, daemon=True).start()  # a daemon: it may go on for minutes
    try:
        return answer.result(_SECONDS)
    except TookTooLong:
        raise TimeoutError(f"no answer within {_SECONDS} seconds, as without credentials") from None


def _file_system(uri: str) -> tuple[pyarrow.fs.FileSystem, str]:
    if uri.startswith("s3://anonymous@"):  # which Arrow's URIs cannot express
        path = uri.removeprefix("s3://anonymous@")
        endpoint = os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL")
        region = None if endpoint else pyarrow.fs.resolve_s3_region(path.partition("/")[0])
        return pyarrow.fs.S3FileSystem(
            anonymous=True, endpoint_override=endpoint, region=region
        ), path
    filesystem, path = pyarrow.fs.FileSystem.from_uri(uri)
    scheme, _, host = os.environ.get("STORAGE_EMULATOR_HOST", "").rpartition("://")
    if uri.startswith("gs://") and host:
        server = {"scheme": scheme or "http", "endpoint_override": host.strip("/")}
        filesystem = pyarrow.fs.GcsFileSystem(anonymous=True, **server)
    return filesystem, path


# A repository, and its revision: gpt2, openai-community/gpt2@main.
_HUB_NAME = re.compile(r"\w[\w.-]*(/\w[\w.-]*)?(@[\w./-]+)?")
# The first of these that a model has, and the others that it has.
_HUB_WEIGHTS = (
    "model.safetensors",
    "model.safetensors.index.json",
    "pytorch_model.bin",
    "pytorch_model.bin.index.json",
)
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
    `NAME@REVISION` selects a revision. Raises ValueError: the model cannot be had.
    """
    repository, _, revision = name.partition("@")
    try:
        import huggingface_hub
        from huggingface_hub.errors import (
            EntryNotFoundError,
            HfHubHTTPError,
            LocalEntryNotFoundError,
        )
    except ImportError:
        raise ValueError(
            f"{name} is not a folder here, and a model of the Hugging Face Hub needs the extra "
            f"hf: pip install transformers"
        ) from None

    def fetch(file: str) -> Path:
        commit = revision or None
        try:
            path = huggingface_hub.hf_hub_download(
                repository, file, revision=commit, local_files_only=True
            )
        except LocalEntryNotFoundError:
            # Fails at once without a network, where the download retries for half a minute.
            try:
                url = huggingface_hub.hf_hub_url(repository, file, revision=commit)
                huggingface_hub.get_hf_file_metadata(url)
            except HfHubHTTPError:
                raise
            except Exception as error:
                raise LocalEntryNotFoundError(first_line(error)) from error
            path = huggingface_hub.hf_hub_download(repository, file, revision=commit)
        return Path(path)

    def fetch_first(files: Sequence[str]) -> Path:
        errors = []
        for file in files:
            try:
                return fetch(file)
            except EntryNotFoundError as error:
                errors.append(error)
        raise errors[0]

    try:
        folder = fetch("config.json").parent
        revision = folder.name  # the commit: all files are of one
        weights = fetch_first(_HUB_WEIGHTS)
        if weights.suffix == ".json":
            for file in sorted(set(json.loads(weights.read_bytes())["weight_map"].values())):
                fetch(file)
        for file in _HUB_TOKENIZER:
            with suppress(EntryNotFoundError):
                fetch(file)
    except Exception as error:  # of the package, its HTTP client or the file system
        raise ValueError(
            f"{name} is neither a folder here nor a model that can be had from the Hugging Face "
            f"Hub ({first_line(error)}): check the name; or fetch it once while connected "
            f"(`hf download {repository}`); or name a mirror by HF_ENDPOINT"
        ) from error
    return folder


class Publisher:
    """Sends the figures and checkpoints of the run in the folder `run`, in the background.

    A failure is reported by `say`; training continues. Raises SettingsError: `uri` is none of
    hf://, s3://, gs:// and a folder that can be made; it is the run; the Hub's client or token is
    missing; or no bucket is reached.
    """

    def __init__(self, uri: str, run: Path, say: Callable[[str], None]) -> None:
        self._run, self._say = run, say
        self._scheduler: Any = None  # of the Hub, from the first push on: it makes the repository
        self._bucket: pyarrow.fs.FileSystem | None = None
        scheme, scheme_end, self._root = uri.partition("://")
        try:
            if scheme in ("s3", "gs"):
                self._bucket, self._root = open_bucket(uri.rstrip("/"))
            elif not scheme_end:
                self._bucket, self._root = pyarrow.fs.LocalFileSystem(), os.path.realpath(uri)
                if self._root == os.path.realpath(run):
                    raise OSError("this is the run's own folder; give another one")
                self._bucket.create_dir(self._root)
            elif scheme == "hf" and self._root.count("/") == 1 and all(self._root.split("/")):
                import huggingface_hub

                if not huggingface_hub.get_token():
                    raise OSError("there is no token of the Hub; run `hf auth login`")
            else:
                raise OSError(
                    "give a folder, hf://OWNER/NAME, s3://BUCKET/PATH or gs://BUCKET/PATH"
                )
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
        if self._scheduler:
            self._scheduler.stop()

    def _push(self, checkpoint: Path | None) -> None:
        if checkpoint and not checkpoint.exists():
            return  # pruned since: a newer one follows
        what, send = (
            checkpoint.name if checkpoint else "the page",
            self._copy if self._bucket else self._commit,
        )
        try:
            send([*([checkpoint] if checkpoint else []), *(self._run / name for name in _FIGURES)])
            self._say(f"published {what}")
        except Exception as error:  # of the package, its HTTP client or the file system
            self._say(f"{what} could not be published ({first_line(error)}); training continues")

    def _copy(self, paths: list[Path]) -> None:
        for path in filter(Path.exists, paths):
            there = f"{self._root}/{path.relative_to(self._run).as_posix()}"
            if path.is_dir() and isinstance(self._bucket, pyarrow.fs.LocalFileSystem):
                self._bucket.create_dir(there)
            pyarrow.fs.copy_files(str(path), there, destination_filesystem=self._bucket)

    def _commit(self, paths: list[Path]) -> None:
        import huggingface_hub

        patterns = [
            *_FIGURES,
            "checkpoints/step-*",
        ]  # a checkpoint has this name once it is complete
        self._scheduler = self._scheduler or huggingface_hub.CommitScheduler(
            repo_id=self._root, folder_path=self._run, every=_MINUTES, allow_patterns=patterns
        )
        self._scheduler.trigger().result()  # sends all that has changed
