"""Shards in a bucket, S3's and Google Cloud Storage's on loopback, are copied before they are
read."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pyarrow.fs
import pytest

from tests.servers.gcs import gcs_bucket
from tests.servers.s3 import s3_bucket
from tests.trainer.conftest import REPOSITORY, Capture, WriteTokens
from trainer.__main__ import main
from trainer.data.buckets import open_bucket
from trainer.data.samplers import Packed
from trainer.data.shards import ShardError, open_dataset

SHARDS = 5


@pytest.fixture(scope="module", params=[s3_bucket, gcs_bucket], ids=["s3", "gs"])
def bucket(request: pytest.FixtureRequest) -> Iterator[str]:
    with request.param() as uri:
        yield uri


@pytest.fixture
def tokens(tmp_path: Path, write_tokens: WriteTokens) -> Path:
    rng = np.random.default_rng(0)
    documents = [rng.integers(0, 399, n).tolist() for n in rng.integers(0, 400, 60)]
    return write_tokens(tmp_path / "tokens", documents, documents[:7], shards=SHARDS)


@pytest.fixture
def uploaded(bucket: str, tokens: Path, tmp_path: Path) -> str:
    return upload(tokens.parent, f"{bucket}/{tmp_path.name}")


def upload(run: Path, uri: str) -> str:
    """Copy a run's tokens and their ledger to `uri`; return the URI of the tokens."""
    fs, root = open_bucket(uri)
    for name in ("tokens", "ledger"):
        pyarrow.fs.copy_files(str(run / name), f"{root}/{name}", destination_filesystem=fs)
    return f"{uri}/tokens"


def change(uri: str, name: str, content: Callable[[bytes], bytes] | None) -> None:
    fs, root = open_bucket(uri)
    if content is None:
        fs.delete_file(f"{root}/{name}")
        return
    with fs.open_input_stream(f"{root}/{name}") as file:
        changed = content(file.read())
    with fs.open_output_stream(f"{root}/{name}") as out:
        out.write(changed)


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OWT_CACHE", str(tmp_path / "cache"))


def test_windows_equal_those_of_local_shards(
    bucket: str, uploaded: str, tokens: Path, tmp_path: Path
) -> None:
    remote = open_dataset(uploaded)
    local = open_dataset(tokens)
    assert remote.digest == local.digest
    assert remote.tokenizer.path.read_bytes() == local.tokenizer.path.read_bytes()
    of_remote, ours = (
        Packed(dataset.documents("train"), 32, dataset.tokenizer.eot, seed=4)
        for dataset in (remote, local)
    )
    assert np.array_equal(of_remote.windows(0, 200), ours.windows(0, 200))
    assert remote.documents("val")[3].tolist() == local.documents("val")[3].tolist()
    with pytest.raises(
        ShardError, match=f"in {bucket}/nowhere: {bucket}/nowhere/ledger/manifest.json is missing; "
    ):
        open_dataset(f"{bucket}/nowhere")
    with pytest.raises(ShardError, match=rf"{bucket}/\[x\]"):
        open_dataset(f"{bucket}/[x]")


@pytest.mark.parametrize("has_scheme", [False, True])
def test_another_server_is_named_by_the_environment(
    has_scheme: bool, tokens: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with gcs_bucket() as uri:
        monkeypatch.delenv("STORAGE_EMULATOR_HOST")
        if not has_scheme:
            address = os.environ["GOOGLE_BASE_URL"].removeprefix("http://")
            monkeypatch.setenv("GOOGLE_BASE_URL", address)
        upload(tokens.parent, uri)
        assert open_dataset(f"{uri}/tokens").digest == open_dataset(tokens).digest


def test_shards_are_copied_once_and_again_if_they_are_cut(uploaded: str, tmp_path: Path) -> None:
    with ThreadPoolExecutor(4) as ranks:
        digests = list(ranks.map(lambda _: open_dataset(uploaded).digest, range(4)))
    assert len(set(digests)) == 1
    copies = {
        path: path.stat().st_mtime_ns
        for path in (tmp_path / "cache").glob("*.*")
        if path.name != ".lock"
    }
    # One file more is the tokenizer.
    assert len(copies) == 2 * SHARDS + 1
    cut, *_ = (path for path in copies if path.suffix == ".arrow")
    cut.write_bytes(cut.read_bytes()[:-8])
    assert open_dataset(uploaded).documents("train")
    assert {path for path, written in copies.items() if path.stat().st_mtime_ns != written} == {cut}


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "cannot be copied to"),
        (lambda content: content[:-8], "was changed or damaged"),
        (
            lambda content: content[:600] + bytes([content[600] ^ 1]) + content[601:],
            "was changed or damaged",
        ),
    ],
    ids=["missing", "short", "flipped"],
)
def test_a_bad_shard_is_named_before_training_starts(
    uploaded: str,
    tmp_path: Path,
    capsys: Capture,
    content: Callable[[bytes], bytes] | None,
    message: str,
) -> None:
    change(uploaded, "train/part-00003.arrow", content)
    arguments = [
        "--data",
        uploaded,
        "--out",
        str(tmp_path / "run"),
    ]
    assert main([*arguments, "--preset", "tiny", "--device", "cpu"]) == 1
    error = capsys.readouterr().err
    assert f"{uploaded}/train/part-00003.arrow" in error
    assert message in error
    assert not (tmp_path / "run" / "checkpoints").exists()


IMPATIENT = """
import sys
from datetime import timedelta
from trainer.__main__ import main
from trainer.data import buckets
assert buckets._MAX_RETRYING < timedelta(seconds=60)
buckets._MAX_RETRYING = timedelta(seconds=5)
sys.exit(main())
"""


@pytest.mark.slow
@pytest.mark.parametrize("uri", ["gs://private/tokens", "s3://private/tokens"])
def test_without_credentials_a_run_ends_and_names_the_checks(uri: str, tmp_path: Path) -> None:
    """The machine is in no cloud and has no files of its user. The minute is a shorter one here."""
    nobody = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("AWS_", "GOOGLE_", "STORAGE_"))
    }
    nobody |= {
        "HOME": str(tmp_path),
        "GCE_METADATA_ROOT": "127.0.0.1:9",
        "PYTHONPATH": str(REPOSITORY),
    }
    nobody |= {"AWS_EC2_METADATA_SERVICE_ENDPOINT": "http://127.0.0.1:9"}
    flags = ["--data", uri, "--out", str(tmp_path / "run"), "--preset", "tiny", "--device", "cpu"]
    command = [sys.executable, "-c", IMPATIENT, *flags]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=90, env=nobody, check=False
    )
    assert done.returncode == 1
    line = done.stderr.splitlines()[-1]
    assert f"{uri} cannot be opened: " in line
    assert "check the bucket's name, the network and the credentials" in line


@pytest.mark.long
def test_a_bucket_that_never_answers_ends_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        monkeypatch.setenv("GOOGLE_BASE_URL", f"127.0.0.1:{server.getsockname()[1]}")
        monkeypatch.setenv("GOOGLE_BEARER_TOKEN", "any")
        with pytest.raises(ShardError, match=r"cannot be opened: .*check the bucket's name"):
            open_dataset("gs://bucket/tokens")


def test_a_run_trains_from_a_public_bucket_without_credentials(
    uploaded: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name, raising=False)
    data = uploaded.replace("://", "://anonymous@")
    arguments = ["--data", data, "--out", str(tmp_path / "run")]
    shape = [
        "--preset",
        "tiny",
        "--block_size",
        "32",
        "--batch_tokens",
        "256",
        "--max_steps",
        "3",
        "--device",
        "cpu",
    ]
    assert main([*arguments, *shape]) == 0
    assert (tmp_path / "run" / "checkpoints" / "step-00000003" / "model.safetensors").exists()
