"""A tokenizer named at the Hugging Face hub: from a hub on loopback, from the cache, and without either."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from owt_pipeline.formats import encoding as encodings
from owt_pipeline.formats.encoding import is_hub_name
from tests.owt_pipeline.runs import drop, manifest_of
from tests.owt_pipeline.tokenize.corpus import write_corpus

COMMIT = "0123456789abcdef0123456789abcdef01234567"


class Hub(BaseHTTPRequestHandler):
    """A hub with one file of one model."""

    def do_GET(self) -> None:
        known = self.path in (f"/some/model/resolve/{revision}/tokenizer.json" for revision in ("main", COMMIT))
        content = encodings.gpt2_tokenizer_json() if known else b"not found"
        self.send_response(200 if known else 404)
        if known:
            self.send_header("ETag", f'"{hashlib.sha1(content).hexdigest()}"')
            self.send_header("X-Repo-Commit", COMMIT)
        else:
            self.send_header("X-Error-Code", "RepoNotFound")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(content)

    do_HEAD = do_GET

    def log_message(self, *arguments: object) -> None:
        pass


@pytest.fixture
def hub() -> Iterator[ThreadingHTTPServer]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Hub)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield server
    server.shutdown()
    server.server_close()


def tokenize(workdir: Path, hub: ThreadingHTTPServer, home: Path, name: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "owt_pipeline", "tokenize", str(workdir), "--tokenizer", name]
    endpoint = f"http://127.0.0.1:{hub.server_port}"
    environment = {**os.environ, "HF_ENDPOINT": endpoint, "HF_HOME": str(home), "HF_HUB_DISABLE_XET": "1"}
    command += ["--workers", "2", "--quiet"]
    return subprocess.run(command, capture_output=True, text=True, timeout=180, env=environment, check=False)


@pytest.mark.slow
def test_hub_tokenizer_is_fetched_once_and_cached_and_unknown_names_are_errors(
    tmp_path: Path, hub: ThreadingHTTPServer
) -> None:
    workdir = write_corpus(tmp_path / "run", ["Hello world", "a<|endoftext|>b"] * 30, shards=1)
    first = tokenize(workdir, hub, tmp_path / "home", "some/model")
    assert first.returncode == 0, first.stderr
    manifest = manifest_of(workdir, "tokens")
    assert manifest.properties["tokenizer"]["name"] == "some/model"
    assert (workdir / manifest.properties["tokenizer"]["file"]).read_bytes() == encodings.gpt2_tokenizer_json()

    unknown = tokenize(workdir, hub, tmp_path / "home", "some/other")
    assert unknown.returncode == 1
    assert "tokenizer some/other: no file of this name" in unknown.stderr

    hub.shutdown()
    hub.server_close()
    drop(workdir, "tokens")
    again = tokenize(workdir, hub, tmp_path / "home", "some/model")
    assert again.returncode == 0, again.stderr
    assert manifest_of(workdir, "tokens").digest == manifest.digest

    offline = tokenize(workdir, hub, tmp_path / "empty", "some/model")
    assert offline.returncode == 1
    assert "hf download some/model tokenizer.json" in offline.stderr
    assert "Traceback" not in offline.stderr


@pytest.mark.parametrize(
    ("tokenizer", "at_hub"),
    [
        ("EleutherAI/gpt-neox-20b", True),
        ("bert-base-uncased", True),
        ("org/name@v1.0", True),
        ("tokenizer.json", False),
        ("runs/mine/tokenizer.json", False),
        ("/etc/passwd", False),
        ("gs://bucket/tokenizer.json", False),
        ("../name", False),
    ],
)
def test_names_at_the_hub_are_distinguished_from_files(tokenizer: str, at_hub: bool) -> None:
    assert is_hub_name(tokenizer) == at_hub
