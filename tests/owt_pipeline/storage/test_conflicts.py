"""A write that S3 refuses because of another one under way (409) is looked at again."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator

import pytest

from owt_pipeline.storage import buckets
from owt_pipeline.storage.folder import Storage
from tests.servers.web import Request, WebServer

CONFLICT = (
    b"<Error><Code>ConditionalRequestConflict</Code><Message>A conflicting conditional operation "
    b"is currently in progress against this resource. Please try again.</Message></Error>"
)


class ConflictingBucket:
    """An S3 bucket whose first conditional writes meet another one that is under way.

    Attributes:
      content_by_path: the objects.
      num_conflicts: conditional writes that are still refused.
      other_content: what the other writer has written when the last of them is refused; None if it
        has failed.
    """

    def __init__(self) -> None:
        self.content_by_path: dict[str, bytes] = {}
        self.num_conflicts = 0
        self.other_content: bytes | None = None

    async def serve(self, request: Request) -> None:
        """Answer a request."""
        path = request.path.partition("?")[0]
        if request.method == "PUT":
            await self._put(request, path)
        elif "list-type" in request.path:
            await request.answer(b"<ListBucketResult></ListBucketResult>")
        elif path not in self.content_by_path:
            await request.answer(b"", "404 Not Found")
        else:
            content = self.content_by_path[path]
            time = "Sun, 29 Nov 2026 09:00:00 GMT"
            await request.answer(content, ETag=_etag(content), Last_Modified=time)

    async def _put(self, request: Request, path: str) -> None:
        if self.num_conflicts:
            self.num_conflicts -= 1
            if not self.num_conflicts and self.other_content is not None:
                self.content_by_path[path] = self.other_content
            await request.answer(CONFLICT, "409 Conflict")
            return
        present = self.content_by_path.get(path)
        is_other = request.headers.get("if-match") not in (None, _etag(present or b""))
        if is_other or (present is not None and "if-none-match" in request.headers):
            await request.answer(b"<Error><Code>PreconditionFailed</Code></Error>", "412 Failed")
            return
        self.content_by_path[path] = request.body
        await request.answer(b"", ETag=_etag(request.body))


def _etag(content: bytes) -> str:
    return f'"{hashlib.md5(content, usedforsecurity=False).hexdigest()}"'


@pytest.fixture
def bucket(monkeypatch: pytest.MonkeyPatch) -> Iterator[ConflictingBucket]:
    """The bucket `conflicts`, which is served until the test ends."""
    bucket = ConflictingBucket()
    with WebServer({"": bucket.serve}) as server:
        monkeypatch.setenv("AWS_ENDPOINT_URL", server.url)
        monkeypatch.setenv("AWS_ACCESS_KEY_ID", "any")
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "any")
        yield bucket


def test_a_create_after_a_failed_writer_succeeds(bucket: ConflictingBucket) -> None:
    bucket.num_conflicts = 3
    assert Storage("s3://conflicts/run").create("root.json", b"ours")
    assert list(bucket.content_by_path.values()) == [b"ours"]


def test_a_create_after_another_writer_is_refused(bucket: ConflictingBucket) -> None:
    bucket.num_conflicts = 1
    bucket.other_content = b"theirs"
    assert not Storage("s3://conflicts/run").create("root.json", b"ours")
    assert list(bucket.content_by_path.values()) == [b"theirs"]


def test_a_swap_after_a_failed_writer_succeeds(bucket: ConflictingBucket) -> None:
    folder = Storage("s3://conflicts/run")
    version = folder.swap("root.json", b"first", None)
    bucket.num_conflicts = 3
    assert folder.swap("root.json", b"second", version)
    assert not folder.swap("root.json", b"third", version)
    assert list(bucket.content_by_path.values()) == [b"second"]


def test_a_conflict_without_end_is_given_up(
    bucket: ConflictingBucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(buckets, "_RETRY_SECONDS", 0.5)
    bucket.num_conflicts = 1 << 30
    assert not Storage("s3://conflicts/run").create("root.json", b"ours")
