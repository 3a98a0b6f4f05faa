"""Google Cloud Storage on loopback: fake-gcs-server, and its XML API, which that lacks for writing.

Beam speaks the JSON API, obstore the XML API
(https://cloud.google.com/storage/docs/xml-api/reference-methods). The server here translates the
second into the first, and passes everything else on.
"""

from __future__ import annotations

import contextlib
import http.client
import itertools
import json
import threading
import urllib.request
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, quote, unquote, urlencode, urlsplit
from xml.sax.saxutils import escape

import pytest

from tests.servers.process import free_port, program, serving

_JSON = ("/storage/", "/upload/", "/download/", "/batch/", "/_internal/", "/resumable/")
_CODES = {404: "NoSuchKey", 412: "PreconditionFailed"}


class _Translator(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128

    def __init__(self, port: int, behind: int):
        super().__init__(("127.0.0.1", port), _Handler)
        self.behind = behind
        # Parts of each multipart upload, by number.
        self.uploads: dict[str, dict[int, bytes]] = {}
        self.numbers = itertools.count()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: _Translator

    def do(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        if self.headers.get("Transfer-Encoding", "").lower() == "chunked":
            body = b"".join(iter(self._chunk, b""))
        if self.path.startswith(_JSON):
            return self._answer(
                *self._ask(self.command, self.path, body, dict(self.headers.items()))
            )
        parts = urlsplit(self.path)
        bucket, _, key = unquote(parts.path).lstrip("/").partition("/")
        query = {
            name: values[0]
            for name, values in parse_qs(parts.query, keep_blank_values=True).items()
        }
        objects = f"/storage/v1/b/{bucket}/o"
        if not key:
            return self._list(bucket, query)
        if self.command == "POST" and "uploads" in query:
            number = str(next(self.server.numbers))
            self.server.uploads[number] = {}
            return self._xml(200, "InitiateMultipartUploadResult", UploadId=number)
        if self.command == "PUT" and "partNumber" in query:
            self.server.uploads[query["uploadId"]][int(query["partNumber"])] = body
            return self._answer(200, {"ETag": f'"{query["partNumber"]}"'}, b"")
        if self.command in ("PUT", "POST"):
            if self.command == "POST":
                body = b"".join(
                    part for _, part in sorted(self.server.uploads[query["uploadId"]].items())
                )
            fields = {"uploadType": "media", "name": key}
            generation = self.headers.get("x-goog-if-generation-match")
            if generation is not None:
                fields["ifGenerationMatch"] = generation
            status, _, answer = self._ask(
                "POST", f"/upload{objects}?{urlencode(fields)}", body, {"Content-Type": "x/x"}
            )
            if status != 200:
                return self._failed(bucket, status)
            created = json.loads(answer)
            headers = {"ETag": f'"{created["etag"]}"', "x-goog-generation": created["generation"]}
            if self.command == "POST":
                return self._xml(
                    200, "CompleteMultipartUploadResult", headers, ETag=created["etag"]
                )
            return self._answer(200, headers, b"")
        if self.command == "DELETE":
            if self.server.uploads.pop(query.get("uploadId", ""), None) is not None:
                return self._answer(204, {}, b"")
            status, headers, answer = self._ask(
                "DELETE", f"{objects}/{quote(key, safe='')}", b"", {}
            )
        else:
            headers = {"Range": self.headers["Range"]} if "Range" in self.headers else {}
            address = f"/download{objects}/{quote(key, safe='')}?alt=media"
            status, headers, answer = self._ask("GET", address, b"", headers)
        return (
            self._answer(status, headers, answer) if status < 300 else self._failed(bucket, status)
        )

    do_GET = do_HEAD = do_PUT = do_POST = do_DELETE = do_PATCH = do

    def _list(self, bucket: str, query: dict[str, str]) -> None:
        names = {
            "prefix": "prefix",
            "start-after": "startOffset",
            "max-keys": "maxResults",
            "continuation-token": "pageToken",
        }
        fields = {of_json: query[of_xml] for of_xml, of_json in names.items() if query.get(of_xml)}
        status, _, answer = self._ask(
            "GET", f"/storage/v1/b/{bucket}/o?{urlencode(fields)}", b"", {}
        )
        if status != 200:
            self._failed(bucket, status)
            return
        listing = json.loads(answer)
        content = "".join(
            f"<Contents><Key>{escape(item['name'])}</Key><Generation>{item['generation']}</Generation>"
            f'<LastModified>{item["updated"]}</LastModified><ETag>"{item["etag"]}"</ETag>'
            f"<Size>{item['size']}</Size></Contents>"
            for item in listing.get("items", [])
            if item["name"] > query.get("start-after", "")
        )
        if listing.get("nextPageToken"):
            content += (
                f"<NextContinuationToken>{escape(listing['nextPageToken'])}</NextContinuationToken>"
            )
        self._answer(200, {}, f"<ListBucketResult>{content}</ListBucketResult>".encode())

    def _failed(self, bucket: str, status: int) -> None:
        code = _CODES.get(status, "InternalError")
        if status == 404 and self._ask("GET", f"/storage/v1/b/{bucket}", b"", {})[0] == 404:
            code = "NoSuchBucket"
        self._xml(status, "Error", Code=code, Message=code)

    def _xml(
        self, status: int, name: str, headers: dict[str, str] | None = None, **fields: str
    ) -> None:
        content = "".join(f"<{field}>{escape(value)}</{field}>" for field, value in fields.items())
        self._answer(status, headers or {}, f"<{name}>{content}</{name}>".encode())

    def _ask(
        self, method: str, path: str, body: bytes, headers: dict[str, str]
    ) -> tuple[int, dict[str, str], bytes]:
        connection = http.client.HTTPConnection("127.0.0.1", self.server.behind)
        sent_headers = {
            name: value for name, value in headers.items() if name.lower() != "transfer-encoding"
        }
        connection.request(method, path, body, {**sent_headers, "Content-Length": str(len(body))})
        answer = connection.getresponse()
        content = answer.read()
        connection.close()
        return answer.status, dict(answer.getheaders()), content

    def _answer(self, status: int, headers: dict[str, str], body: bytes) -> None:
        self.send_response(status)
        for name, value in headers.items():
            if name.lower() not in ("content-length", "transfer-encoding", "connection"):
                self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def _chunk(self) -> bytes:
        size = int(self.rfile.readline().split(b";")[0], 16)
        data = self.rfile.read(size)
        self.rfile.readline()
        return data

    def log_message(self, *_: Any) -> None:
        pass


@contextlib.contextmanager
def gcs_bucket(name: str = "bucket") -> Iterator[str]:
    """Serve an empty bucket, which each client of this process finds; yields its URI.

    Skips the test without fake-gcs-server.
    """
    port = free_port()
    behind = free_port()
    url = f"http://127.0.0.1:{port}"
    flags = [
        "-scheme=http",
        "-host=127.0.0.1",
        f"-port={behind}",
        "-backend=memory",
        "-log-level=error",
    ]
    addresses = [f"-external-url={url}", f"-public-host=127.0.0.1:{port}"]
    with (
        serving(
            [program("fake-gcs-server"), *flags, *addresses],
            f"http://127.0.0.1:{behind}/storage/v1/b",
        ),
        _Translator(port, behind) as translator,
        pytest.MonkeyPatch.context() as patch,
    ):
        threading.Thread(target=translator.serve_forever, daemon=True).start()
        # For Beam and for the trainer.
        patch.setenv("STORAGE_EMULATOR_HOST", url)
        # For obstore, which would ask for credentials without a token.
        patch.setenv("GOOGLE_BASE_URL", url)
        patch.setenv("GOOGLE_BEARER_TOKEN", "test")
        make = urllib.request.Request(
            f"{url}/storage/v1/b?project=test",
            json.dumps({"name": name}).encode(),
            {"Content-Type": "application/json"},
        )
        urllib.request.urlopen(make).close()
        yield f"gs://{name}"
        translator.shutdown()
