"""gcp-storage-emulator: Google Cloud Storage on loopback."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import pytest

from tests.servers.process import free_port, program, serving

# By itself it takes one request at a time, until the answer is read: a client that reads two parts of a file at once
# would wait for ever. In threads, what changes its state still comes one at a time.
_START = """
import http.server, sys, threading
http.server.HTTPServer = http.server.ThreadingHTTPServer
from gcp_storage_emulator import __main__, server
lock = threading.Lock()
def one_at_a_time(handle):
    def locked(self):
        with lock:
            handle(self)
    return locked
for name in ("do_POST", "do_PUT", "do_PATCH", "do_DELETE"):
    setattr(server.RequestHandler, name, one_at_a_time(getattr(server.RequestHandler, name)))
__main__.main(sys.argv[1:])
"""


@contextlib.contextmanager
def gcs_bucket(name: str = "bucket") -> Iterator[str]:
    """The URI of an empty bucket, which this process finds; skips where gcp-storage-emulator is not installed."""
    python, port = program("gcp-storage-emulator").with_name("python"), free_port()
    flags = ["--host=127.0.0.1", f"--port={port}", "--in-memory", f"--default-bucket={name}"]
    url = f"http://127.0.0.1:{port}"
    with serving([python, "-c", _START, "start", *flags], f"{url}/storage/v1/b"), pytest.MonkeyPatch.context() as patch:
        patch.setenv("STORAGE_EMULATOR_HOST", url)
        yield f"gs://{name}"
