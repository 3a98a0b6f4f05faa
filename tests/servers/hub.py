"""The parts of the Hugging Face Hub that take uploads, by Git LFS's batch API and commits, and
that give a file."""

from __future__ import annotations

import base64
import contextlib
import hashlib
import json
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import yaml


@dataclass
class Hub:
    """What was uploaded.

    Attributes:
      files: by repository, the content of each path.
      commits: (repository, summary) of each commit, in order.
      failing: answer so many further requests with 503.
      commits_left: how many commits are taken, then 500; None for all.
      objects: what was uploaded, by SHA-256, whether or not it was committed.
    """

    url: str = ""
    files: dict[str, dict[str, bytes]] = field(default_factory=dict)
    commits: list[tuple[str, str]] = field(default_factory=list)
    failing: int = 0
    commits_left: int | None = None
    objects: dict[str, bytes] = field(default_factory=dict)

    def answer(
        self, method: str, path: str, body: bytes, headers: dict[str, str]
    ) -> tuple[int, object]:
        """(status, JSON or a file) for a request; a file is LFS's if its name ends as `_large`
        says."""
        path = path.partition("?")[0]
        if not path.startswith("/lfs/") and headers.get("authorization") != "Bearer hf_test":
            return 401, {"error": "Invalid username or password."}
        if self.failing:
            self.failing -= 1
            return 503, {"error": "unavailable"}
        if "/resolve/" in path:
            name, _, file = path.removeprefix("/").partition("/resolve/")
            if name not in self.files:
                return 404, {"error": "Repository not found"}
            content = self.files[name].get(file.partition("/")[2])
            return (404, {"error": "Entry not found"}) if content is None else (200, content)
        if path == "/api/repos/create":
            entry = json.loads(body)
            name = "/".join(filter(None, (entry.get("organization"), entry["name"])))
            known = name in self.files
            self.files.setdefault(name, {})
            return (409 if known else 200), {"url": f"{self.url}/{name}", "name": name, "id": name}
        if path == "/api/validate-yaml":  # of a card
            yaml.safe_load(json.loads(body)["content"].split("---")[1])
            return 200, {"errors": [], "warnings": []}
        if path.startswith("/lfs/") and method == "PUT":
            assert hashlib.sha256(body).hexdigest() == path.removeprefix("/lfs/"), (
                "the bytes are not the object's"
            )
            self.objects[path.removeprefix("/lfs/")] = body
            return 200, {}
        if path.endswith(".git/info/lfs/objects/batch"):
            objects = []
            for wanted in json.loads(body)["objects"]:
                upload = {"upload": {"href": f"{self.url}/lfs/{wanted['oid']}"}}
                objects.append(
                    wanted | ({} if wanted["oid"] in self.objects else {"actions": upload})
                )
            return 200, {"transfer": "basic", "objects": objects}
        parts = path.split("/")
        if (
            parts[1] != "api"
            or parts[2] not in ("models", "datasets")
            or "/".join(parts[3:5]) not in self.files
        ):
            return 404, {"error": "Repository not found"}
        name = "/".join(parts[3:5])
        if parts[5] == "tree":
            return 200, [
                {
                    "type": "file",
                    "path": path,
                    "size": len(content),
                    "oid": hashlib.sha1(content).hexdigest(),
                }
                for path, content in sorted(self.files[name].items())
            ]
        if parts[5] == "preupload":
            modes = [
                {
                    "path": f["path"],
                    "uploadMode": "lfs" if _large(f["path"]) else "regular",
                    "shouldIgnore": False,
                }
                for f in json.loads(body)["files"]
            ]
            return 200, {"files": modes}
        if parts[5] == "super-squash":
            summary = json.loads(body)["message"]
            others = [commit for commit in self.commits if commit[0] != name]
            self.commits[:] = [*others, (name, summary)]
            return 200, {}
        if parts[5] == "commit":
            if self.commits_left == 0:
                return 500, {"error": "no more commits"}
            self.commits_left = None if self.commits_left is None else self.commits_left - 1
            return 200, self._commit(name, [json.loads(line) for line in body.splitlines()])
        return 404, {"error": f"{method} {path} is nothing this server knows"}

    def _commit(self, name: str, lines: list[dict]) -> dict[str, object]:
        for line in lines:
            value = line["value"]
            if line["key"] == "header":
                self.commits.append((name, value["summary"]))
            elif line["key"] == "file":
                self.files[name][value["path"]] = base64.b64decode(value["content"])
            elif line["key"] == "deletedFile":
                del self.files[name][value["path"]]
            elif line["key"] == "lfsFile":
                content = self.objects[value["oid"]]
                assert len(content) == value["size"]
                self.files[name][value["path"]] = content
        oid = hashlib.sha1(str(len(self.commits)).encode()).hexdigest()
        return {
            "commitUrl": f"{self.url}/{name}/commit/{oid}",
            "commitOid": oid,
            "pullRequestUrl": None,
        }


@contextlib.contextmanager
def hub_server() -> Iterator[Hub]:
    """A hub on loopback, which `environment_of` tells huggingface_hub to use."""
    hub = Hub()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            body = self._body()
            headers = {key.lower(): value for key, value in self.headers.items()}
            status, content = hub.answer(self.command, self.path, body, headers)
            text = content if isinstance(content, bytes) else json.dumps(content).encode()
            self.send_response(status)
            if status == 404:
                is_entry = content == {"error": "Entry not found"}
                self.send_header("X-Error-Code", "EntryNotFound" if is_entry else "RepoNotFound")
            if isinstance(content, bytes):
                self.send_header("ETag", f'"{hashlib.sha1(content).hexdigest()}"')
                self.send_header("X-Repo-Commit", "0" * 40)
            self.send_header("Content-Length", str(len(text)))
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(text)

        do_PUT = do_GET = do_HEAD = do_POST

        def _body(self) -> bytes:
            if self.headers.get("Transfer-Encoding") == "chunked":
                pieces = []
                while size := int(self.rfile.readline(), 16):
                    pieces.append(self.rfile.read(size))
                    self.rfile.readline()
                self.rfile.readline()
                return b"".join(pieces)
            return self.rfile.read(int(self.headers.get("Content-Length", 0)))

        def log_message(self, *arguments: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    hub.url = f"http://127.0.0.1:{server.server_port}"
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield hub
    finally:
        server.shutdown()
        server.server_close()


def environment_of(hub: Hub, home: object) -> dict[str, str]:
    """The environment in which huggingface_hub, started anew, uploads to `hub` and keeps its
    files in `home`."""
    return {
        "HF_ENDPOINT": hub.url,
        "HF_HOME": str(home),
        "HF_TOKEN": "hf_test",
        "HF_HUB_DISABLE_XET": "1",
    }


def _large(path: str) -> bool:
    return path.endswith((".safetensors", ".pt", ".arrow", ".parquet"))
