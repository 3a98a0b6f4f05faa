"""Shards in a bucket: S3 and Google Cloud Storage on loopback, and a cache that holds less than the shards."""

from __future__ import annotations

import hashlib
import http.server
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.fs
import pytest

from schemas import SettingsError
from schemas.manifest import ShardFile
from tests.servers.gcs import gcs_bucket
from tests.servers.s3 import s3_bucket
from tests.trainer.conftest import TOKENIZER
from trainer.config import TrainConfig
from trainer.manifest import ShardError, TokenFile
from trainer.publishing import open_place
from trainer.remote import Cache, Folder, missing_credentials, open_bucket
from trainer.samplers import Packed
from trainer.shards import Documents, open_dataset
from trainer.tools import compare, job
from trainer.train import main

SHARDS = 5


@pytest.fixture(scope="module", params=[s3_bucket, gcs_bucket], ids=["s3", "gs"])
def bucket(request: pytest.FixtureRequest) -> Iterator[str]:
    with request.param() as uri:
        yield uri


@pytest.fixture
def tokens(tmp_path: Path, write_tokens: Callable[..., Path]) -> Path:
    rng = np.random.default_rng(0)
    documents = [rng.integers(0, 399, n).tolist() for n in rng.integers(0, 400, 60)]
    return write_tokens(tmp_path / "tokens", documents, documents[:7], shards=SHARDS)


@pytest.fixture
def uploaded(bucket: str, tokens: Path, tmp_path: Path) -> str:
    return upload(tokens.parent, f"{bucket}/{tmp_path.name}")


def upload(run: Path, uri: str) -> str:
    """Copy a run's tokens and their ledger to `uri`; returns where the tokens are there."""
    fs, root = open_bucket(uri)
    for name in ("tokens", "ledger/tokens"):
        pyarrow.fs.copy_files(str(run / name), f"{root}/{name}", destination_filesystem=fs)
    return f"{uri}/tokens"


def change(uri: str, name: str, content: Callable[[bytes], bytes] | None) -> None:
    fs, root = open_bucket(uri)
    if content is None:
        fs.delete_file(f"{root}/{name}")
        return
    with fs.open_input_file(f"{root}/{name}") as file:
        changed = content(file.read())
    with fs.open_output_stream(f"{root}/{name}") as out:
        out.write(changed)


def test_windows_equal_those_of_local_shards_through_a_cache_smaller_than_the_shards(
    uploaded: str, tokens: Path, tmp_path: Path
) -> None:
    cache = tmp_path / "cache"
    largest = max(path.stat().st_size for path in (tokens / "train").iterdir())
    limit = int(2.5 * largest)
    remote = open_dataset(uploaded, cache=cache, cache_gb=limit / 1e9)
    local = open_dataset(tokens)
    assert remote.digest == local.digest
    assert remote.tokenizer.path.read_bytes() == local.tokenizer.path.read_bytes()
    theirs, ours = (Packed(own.documents("train"), 32, own.tokenizer.eot, seed=4) for own in (remote, local))
    for first in range(0, 200, 40):
        assert np.array_equal(theirs.windows(first, 8), ours.windows(first, 8))
        assert sum(path.stat().st_size for path in cache.glob("*.arrow")) <= limit
    assert remote.documents("val")[3].tolist() == local.documents("val")[3].tolist()


def test_a_tokenizer_is_kept_by_a_cache_smaller_than_the_shards(uploaded: str, tokens: Path, tmp_path: Path) -> None:
    remote = open_dataset(uploaded, cache=tmp_path / "cache", cache_gb=1e-9)
    for path in (tmp_path / "cache").iterdir():
        os.utime(path, (0, 0))
    Packed(remote.documents("train"), 32, remote.tokenizer.eot, seed=4).windows(0, 40)
    assert remote.tokenizer.path.read_bytes() == (tokens.parent / TOKENIZER).read_bytes()


def test_ids_above_16_bits_are_read_after_an_empty_shard(
    bucket: str, tmp_path: Path, write_tokens: Callable[..., Path]
) -> None:
    wide = write_tokens(tmp_path / "wide", [[69_999] * 40], shards=2, kind=pa.uint32())
    dataset = open_dataset(upload(wide.parent, f"{bucket}/{tmp_path.name}"), cache=tmp_path / "cache")
    documents = Documents.open(dataset.folder, dataset.files["train"][::-1], 70_000, ids_checked=True)
    assert Packed(documents, 32, eot=0, seed=0).windows(0, 1).max() == 69_999


def test_cached_files_are_not_fetched_again(uploaded: str, tmp_path: Path) -> None:
    kept = open_dataset(uploaded, cache=tmp_path / "cache", verify=True)
    for file in kept.files["train"]:
        change(uploaded, file.path, lambda content: bytes(len(content)))
    documents = kept.documents
    with pytest.raises(ShardError, match="is no Arrow IPC file"):
        documents("train")  # the lengths are read from the bucket
    assert open_dataset(uploaded, cache=tmp_path / "cache", verify=True).digest == kept.digest


@pytest.mark.parametrize("content", [b"", b"0" * 600], ids=["empty", "zeros"])
def test_a_damaged_copy_in_the_cache_is_named_and_fetched_again(uploaded: str, tmp_path: Path, content: bytes) -> None:
    open_dataset(uploaded, cache=tmp_path, verify=True)
    for path in tmp_path.glob("*.arrow"):
        path.write_bytes(content)
    damaged = open_dataset(uploaded, cache=tmp_path).documents("train")
    with pytest.raises(ShardError, match=rf"{uploaded}/train/part-00000.arrow or its copy .*--verify_shards"):
        damaged[0]
    verified = open_dataset(uploaded, cache=tmp_path, verify=True).documents("train")
    assert len(verified[0]) == verified.lengths[0]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "is missing, though its manifest names it"),
        (lambda content: content[:-8], "is cut short"),
        (lambda content: content[:600] + bytes([content[600] ^ 1]) + content[601:], "was changed or damaged"),
    ],
    ids=["missing", "short", "flipped"],
)
def test_a_bad_shard_is_named_before_training_starts(
    uploaded: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    content: Callable[[bytes], bytes] | None,
    message: str,
) -> None:
    change(uploaded, "train/part-00003.arrow", content)
    arguments = ["--data", uploaded, "--out", str(tmp_path / "run"), "--cache", str(tmp_path / "cache")]
    assert main([*arguments, "--verify_shards", "--preset", "tiny", "--device", "cpu"]) == 1
    error = capsys.readouterr().err
    assert f"{uploaded}/train/part-00003.arrow" in error
    assert message in error
    assert not (tmp_path / "run" / "checkpoints").exists()


def test_missing_shards_and_unknown_schemes_give_a_clear_error(bucket: str, tmp_path: Path) -> None:
    with pytest.raises(ShardError, match=f"shards in {bucket}/nowhere, .*ledger/manifest.json does not name it; run"):
        open_dataset(f"{bucket}/nowhere", cache=tmp_path)
    with pytest.raises(ShardError, match=rf"{bucket}/\[x\] cannot be opened"):
        open_dataset(f"{bucket}/[x]", cache=tmp_path)
    with pytest.raises(ShardError, match="ftp://host/tokens: give a local folder, s3://BUCKET/PATH or gs://"):
        open_dataset("ftp://host/tokens", cache=tmp_path)


@pytest.fixture
def without_credentials(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A machine of no cloud, with none of its user's files."""
    for name in list(os.environ):
        if name.startswith(("AWS_", "GOOGLE_", "STORAGE_")):
            monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("GCE_METADATA_ROOT", "127.0.0.1:9")
    monkeypatch.setenv("AWS_EC2_METADATA_SERVICE_ENDPOINT", "http://127.0.0.1:9")


@pytest.mark.parametrize(
    ("uri", "what"),
    [
        ("gs://private/tokens", "run `gcloud auth application-default login`, or set GOOGLE_APPLICATION_CREDENTIALS"),
        ("s3://private/tokens", "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_PROFILE"),
    ],
)
def test_without_credentials_a_run_ends_at_once_and_says_what_to_set(
    without_credentials: None, uri: str, what: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    started = time.monotonic()
    assert main(["--data", uri, "--out", str(tmp_path / "run"), "--preset", "tiny", "--device", "cpu"]) == 1
    assert time.monotonic() - started < 30
    (line,) = capsys.readouterr().err.splitlines()
    assert f"{uri}: no credentials found: {what}" in line
    with pytest.raises(SettingsError, match=f"publish: {uri}: no credentials found: {what[:9]}"):
        open_place(uri)


def test_a_metadata_server_that_never_answers_gives_no_credentials(
    without_credentials: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"127.0.0.1:{server.getsockname()[1]}"
        monkeypatch.setenv("GCE_METADATA_ROOT", address)
        monkeypatch.setenv("AWS_EC2_METADATA_SERVICE_ENDPOINT", f"http://{address}")
        started = time.monotonic()
        assert missing_credentials("gs://private/tokens")
        assert missing_credentials("s3://private/tokens")
        assert time.monotonic() - started < 30  # Arrow asks for minutes


def test_credentials_in_files_or_from_the_machine_are_left_to_the_client(
    without_credentials: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    class Metadata(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("Metadata-Flavor", "Google")
            self.end_headers()

    uris = ("gs://private/tokens", "s3://private/tokens")
    with http.server.HTTPServer(("127.0.0.1", 0), Metadata) as server, monkeypatch.context() as patch:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        patch.setenv("GCE_METADATA_ROOT", f"http://127.0.0.1:{server.server_port}/")
        patch.setenv("AWS_EC2_METADATA_SERVICE_ENDPOINT", f"http://127.0.0.1:{server.server_port}")
        assert [missing_credentials(uri) for uri in uris] == ["", ""]
        server.shutdown()
    assert all(missing_credentials(uri) for uri in uris)
    for name in (".config/gcloud/application_default_credentials.json", ".aws/credentials"):
        (tmp_path / name).parent.mkdir(parents=True)
        (tmp_path / name).touch()
    assert [missing_credentials(uri) for uri in uris] == ["", ""]


def test_a_public_bucket_is_read_without_credentials(
    bucket: str, uploaded: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = open_dataset(uploaded, cache=tmp_path).digest
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name, raising=False)
    assert open_dataset(uploaded.replace("://", "://anonymous@"), cache=tmp_path).digest == expected


def test_a_run_trains_from_a_bucket(uploaded: str, tmp_path: Path) -> None:
    arguments = ["--data", uploaded, "--out", str(tmp_path / "run"), "--cache", str(tmp_path / "cache")]
    shape = ["--preset", "tiny", "--context", "32", "--batch_tokens", "256", "--max_steps", "3", "--device", "cpu"]
    assert main([*arguments, *shape, "--val_windows", "4"]) == 0
    assert (tmp_path / "run" / "checkpoints" / "step-00000003" / "model.safetensors").exists()


def test_a_comparison_of_corpora_in_a_bucket_uses_its_cache_alone(
    uploaded: str, tokens: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OWT_CACHE", str(tmp_path / "default"))
    config = TrainConfig(
        data=(), out="", preset="tiny", width=16, context=16, batch_tokens=64, max_steps=1, device="cpu",
        tracker="none", cache=str(tmp_path / "cache"),
    )  # fmt: skip
    data = (uploaded, upload(tokens.parent, f"{uploaded.removesuffix('/tokens')}/copy"))
    comparison = compare.Comparison(compare.CompareOptions(data, str(tmp_path / "out")), config, print)
    comparison.prepare()
    job.work(comparison.jobs[0])
    assert comparison.jobs[0].finished
    assert not (tmp_path / "default").exists()


def test_ranks_of_a_machine_fetch_a_file_once(tmp_path: Path) -> None:
    content, fetched = b"a shard" * 100, []
    file = ShardFile("a.arrow", "data", 0, 1, len(content), hashlib.sha256(content).hexdigest())

    def fetch() -> Iterator[bytes]:
        fetched.append(threading.get_ident())
        time.sleep(0.2)
        yield content

    with ThreadPoolExecutor(4) as ranks:
        found = list(ranks.map(lambda _: Cache(tmp_path / "cache", 10_000).get(file, fetch).read_bytes(), range(4)))
    assert found == [content] * 4
    assert len(fetched) == 1
    assert [path.suffix for path in (tmp_path / "cache").iterdir()] == [".arrow"]


def test_a_shard_that_another_rank_removes_before_it_is_mapped_is_fetched_again(uploaded: str, tmp_path: Path) -> None:
    class Crowded(Cache):
        removed: Path | None = None

        def get(self, file: TokenFile, fetch: Callable[[], Iterator[bytes]]) -> Path:
            path = super().get(file, fetch)
            if not self.removed:
                self.removed = path
                path.unlink()
            return path

    cache, file = (
        Crowded(tmp_path / "cache", 1 << 30),
        open_dataset(uploaded, cache=tmp_path / "other").files["train"][0],
    )
    assert Folder(uploaded, cache).map(file).size() == file.bytes
    assert cache.removed


def test_the_least_recently_used_file_leaves_the_cache_first(tmp_path: Path) -> None:
    cache = Cache(tmp_path, 250)
    fetched = []

    def get(name: str) -> None:
        content = name.encode() * 100
        file = ShardFile(f"{name}.arrow", "data", 0, 1, len(content), hashlib.sha256(content).hexdigest())
        cache.get(file, lambda: iter([fetched.append(name) or content]))  # type: ignore[func-returns-value]

    for name in "ababcaab":
        get(name)
    assert fetched == ["a", "b", "c", "a", "b"]  # c drove out a, a drove out b
    for name, hours in (("killed", 2), ("writing", 0)):
        (tmp_path / f"{name}.tmp").write_bytes(b"part of a shard")
        os.utime(tmp_path / f"{name}.tmp", (time.time() - 3600 * hours,) * 2)
    for name in "cd":
        get(name)
    assert [path.name for path in tmp_path.glob("*.tmp")] == ["writing.tmp"]
