"""The parts of the Hugging Face Hub that take uploads, by Git LFS's batch API and commits, and
that return a file."""

from __future__ import annotations

import base64
import contextlib
import hashlib
import json
from collections.abc import Iterator

import yaml

from tests.servers.web import Request, WebServer

_SUFFIXES_OF_LFS = (".safetensors", ".pt", ".arrow", ".parquet")


class Hub(WebServer):
    """Takes uploads with the token `hf_test`.

    Attributes:
      files: by repository, the content of each path.
      commits: (repository, summary) of each commit, in order.
      failing: how many of the next requests get a 503.
      commits_left: how many commits are taken, before each gets a 500; None for all.
      objects: all files that were uploaded, by SHA-256, whether or not they were committed.
    """

    def __init__(self) -> None:
        super().__init__({"/": self._behave})
        self.files: dict[str, dict[str, bytes]] = {}
        self.commits: list[tuple[str, str]] = []
        self.failing = 0
        self.commits_left: int | None = None
        self.objects: dict[str, bytes] = {}

    async def _behave(self, request: Request) -> None:
        status, content = self._answer_to(request)
        if isinstance(content, bytes):
            etag = f'"{hashlib.sha1(content).hexdigest()}"'
            await request.answer(content, status, ETag=etag, X_Repo_Commit="0" * 40)
        elif status == 404:
            is_entry = content == {"error": "Entry not found"}
            code = "EntryNotFound" if is_entry else "RepoNotFound"
            await request.answer_json(content, status, X_Error_Code=code)
        else:
            await request.answer_json(content, status)

    def _answer_to(self, request: Request) -> tuple[int, object]:
        """Return the status of the answer, and its JSON or the bytes of a file."""
        path = request.path.partition("?")[0]
        is_upload = path.startswith("/lfs/")
        if not is_upload and request.headers.get("authorization") != "Bearer hf_test":
            return 401, {"error": "Invalid username or password."}
        if self.failing:
            self.failing -= 1
            return 503, {"error": "unavailable"}
        if "/resolve/" in path:
            return self._file(path)
        if path == "/api/repos/create":
            return self._create(json.loads(request.body))
        if path == "/api/validate-yaml":
            card = json.loads(request.body)["content"]
            yaml.safe_load(card.split("---")[1])
            return 200, {"errors": [], "warnings": []}
        if is_upload and request.method == "PUT":
            sha256 = path.removeprefix("/lfs/")
            assert hashlib.sha256(request.body).hexdigest() == sha256, (
                "the bytes are not the object's"
            )
            self.objects[sha256] = request.body
            return 200, {}
        if path.endswith(".git/info/lfs/objects/batch"):
            objects = json.loads(request.body)["objects"]
            return 200, {"transfer": "basic", "objects": [*map(self._object, objects)]}
        if "/revision/" in path:
            return self._info(path.removeprefix("/api/models/").partition("/revision/")[0])
        _, api, kind, *parts = path.split("/")
        # A name may have no owner.
        name = "/".join(parts[:-2] if parts[-2:-1] == ["tree"] else parts[:2])
        if api != "api" or kind not in ("models", "datasets") or name not in self.files:
            return 404, {"error": "Repository not found"}
        if parts[-2] == "tree":
            return 200, self._tree(name)
        if parts[2] == "preupload":
            files = json.loads(request.body)["files"]
            return 200, {"files": [_upload_mode(file["path"]) for file in files]}
        if parts[2] == "super-squash":
            summary = json.loads(request.body)["message"]
            other_commits = [commit for commit in self.commits if commit[0] != name]
            self.commits[:] = [*other_commits, (name, summary)]
            return 200, {}
        if parts[2] == "commit":
            if self.commits_left == 0:
                return 500, {"error": "no more commits"}
            if self.commits_left is not None:
                self.commits_left -= 1
            return 200, self._commit(name, [*map(json.loads, request.body.splitlines())])
        return 404, {"error": f"this server does not know {request.method} {path}"}

    def _file(self, path: str) -> tuple[int, object]:
        """Return a file of a repository."""
        name, _, file = path.removeprefix("/").partition("/resolve/")
        if name not in self.files:
            return 404, {"error": "Repository not found"}
        content = self.files[name].get(file.partition("/")[2])
        if content is None:
            return 404, {"error": "Entry not found"}
        return 200, content

    def _info(self, name: str) -> tuple[int, object]:
        """Return the commit of a model, and the names of its files."""
        if name not in self.files:
            return 404, {"error": "Repository not found"}
        siblings = [{"rfilename": path} for path in sorted(self.files[name])]
        return 200, {"id": name, "sha": "0" * 40, "siblings": siblings}

    def _create(self, entry: dict[str, str]) -> tuple[int, object]:
        """Create a repository, unless it exists."""
        name = "/".join(filter(None, (entry.get("organization"), entry["name"])))
        status = 409 if name in self.files else 200
        self.files.setdefault(name, {})
        return status, {"url": f"{self.url}/{name}", "name": name, "id": name}

    def _object(self, entry: dict[str, object]) -> dict[str, object]:
        """Return where to upload an object of LFS, unless it was uploaded already."""
        if entry["oid"] in self.objects:
            return entry
        return {**entry, "actions": {"upload": {"href": f"{self.url}/lfs/{entry['oid']}"}}}

    def _tree(self, name: str) -> list[dict[str, object]]:
        """Return the list of a repository's files."""
        return [
            {
                "type": "file",
                "path": path,
                "size": len(content),
                "oid": hashlib.sha1(content).hexdigest(),
            }
            for path, content in sorted(self.files[name].items())
        ]

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


def _upload_mode(path: str) -> dict[str, object]:
    """Return how a file is uploaded: the Hub keeps large ones in LFS, here by their suffix."""
    mode = "lfs" if path.endswith(_SUFFIXES_OF_LFS) else "regular"
    return {"path": path, "uploadMode": mode, "shouldIgnore": False}


@contextlib.contextmanager
def hub_server() -> Iterator[Hub]:
    """Serve a hub on loopback, which huggingface_hub uses in the environment `environment_of`."""
    with Hub() as hub:
        yield hub


def environment_of(hub: Hub, home: object) -> dict[str, str]:
    """Return the environment in which a new process uploads to `hub` and keeps files in `home`."""
    return {
        "HF_ENDPOINT": hub.url,
        "HF_HOME": str(home),
        "HF_TOKEN": "hf_test",
        "HF_HUB_DISABLE_XET": "1",
    }
