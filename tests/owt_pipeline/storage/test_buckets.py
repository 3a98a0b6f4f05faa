"""Buckets behind a bad network, and buckets that cannot be used."""

from __future__ import annotations

import os
import socket
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from owt_pipeline.errors import UserError
from owt_pipeline.storage import lock
from owt_pipeline.storage.folder import Storage
from tests.owt_pipeline.conftest import BUCKETS
from tests.servers.flaky import FlakyWay
from tests.servers.process import free_port
from tests.servers.s3 import s3_bucket


@pytest.mark.slow
@pytest.mark.parametrize("kind", BUCKETS)
class TestFlakyNetwork:
    @pytest.fixture
    def way(self, kind: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[FlakyWay]:
        """Serve the way to a bucket `bucket`."""
        variable = {
            "s3": "AWS_ENDPOINT_URL",
            "gs": "GOOGLE_BASE_URL",
            "az": "AZURE_STORAGE_ENDPOINT",
        }[kind]
        with BUCKETS[kind]():
            server = urlsplit(os.environ[variable])
            way = FlakyWay(server.port)
            monkeypatch.setenv(variable, f"http://127.0.0.1:{way.port}{server.path}")
            yield way
            way.close()

    def test_requests_are_repeated_until_the_network_is_back(
        self, kind: str, way: FlakyWay
    ) -> None:
        folder = Storage(f"{kind}://bucket/run")
        folder.write("a", b"a" * 100)
        folder.write("old", b"")
        folder.write("older", b"")
        version = folder.read_version("a")[1]
        with folder.spool() as file:
            file.write(b"b" * (20 << 20))
            for done, request in enumerate(
                (
                    lambda: folder.create("created", b"c"),
                    lambda: folder.swap("a", b"A" * 100, version),
                    lambda: folder.read_range("a", 10, 5) == b"AAAAA",
                    lambda: file.publish("b") is None,
                    lambda: folder.delete("old", "older") is None,
                    lambda: folder.names() == ["a", "b", "created"],
                )
            ):
                with way.down_for(0.5):
                    started = time.monotonic()
                    assert request(), done
                    # The request has waited for the network, which is down for half a second.
                    assert time.monotonic() - started > 0.25
        assert folder.sha256("b") == file.sha256
        folder.delete(*folder.names())

    def test_a_lost_answer_does_not_undo_a_write(self, kind: str, way: FlakyWay) -> None:
        folder = Storage(f"{kind}://bucket/run")
        assert folder.names() == []
        way.answers_to_lose = 1
        created = folder.create("record", b"mine")
        assert way.answers_to_lose == 0
        # The request was repeated, and found the file that the first one had written.
        assert not created
        assert folder.read("record") == b"mine"
        assert not folder.create("record", b"another's")
        folder.delete(*folder.names())

    def test_a_lock_survives_lost_answers(
        self, kind: str, way: FlakyWay, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        folder = Storage(f"{kind}://bucket/run")
        assert folder.names() == []
        way.answers_to_lose = 1
        monkeypatch.setattr(lock, "RENEW_SECONDS", 0.01)
        with lock.hold(folder, "one"):
            for _ in range(5):
                way.answers_to_lose = 1
                lock.renew(folder, "one")
        assert folder.names() == []


class TestUnusableBuckets:
    """Each is one line within ten seconds that says what is missing."""

    @pytest.fixture(autouse=True)
    def _nothing_set(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
        for name in list(os.environ):
            if name.startswith(("AWS_", "GOOGLE_", "AZURE_", "CLOUDSDK_", "STORAGE_")):
                monkeypatch.delenv(name)
        monkeypatch.setenv("HOME", str(tmp_path))
        # On Google's machines, the tests would find credentials without this.
        monkeypatch.setenv("NO_GCE_CHECK", "true")
        # On Amazon's machines, they would find them without this.
        monkeypatch.setenv("AWS_METADATA_ENDPOINT", "http://127.0.0.1:9")
        monkeypatch.setenv("AWS_REGION", "us-east-1")

    def fails(self, uri: str, message: str) -> None:
        started = time.monotonic()
        with pytest.raises(UserError, match=message) as error:
            Storage(uri).list()
        assert time.monotonic() - started < 60
        assert "\n" not in str(error.value)

    @pytest.mark.parametrize("uri", ["s3://bucket/run", "gs://bucket/run", "az://bucket/run"])
    def test_no_credentials(self, uri: str) -> None:
        self.fails(
            uri,
            f"^{uri[:11]}: no credentials found: (set AWS_ACCESS_KEY_ID|set AZURE_|run `gcloud "
            f"auth)",
        )

    @pytest.mark.slow
    @pytest.mark.parametrize("kind", BUCKETS)
    def test_no_such_bucket(self, kind: str) -> None:
        with BUCKETS[kind]():
            self.fails(
                f"{kind}://missing/run",
                f"^{kind}://missing: there is no such bucket: check its name, or make it$",
            )

    @pytest.mark.slow
    def test_a_closed_port_and_a_silent_server_are_errors(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        with socket.create_server(("127.0.0.1", 0)) as server:
            for port in (free_port(), server.getsockname()[1]):
                for uri, variable in self.pointed_at(f"http://127.0.0.1:{port}", monkeypatch):
                    self.fails(uri, f"^{uri}: no connection: .*; check the network and {variable}$")

    def pointed_at(self, address: str, monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, str]]:
        monkeypatch.setenv("AWS_ACCESS_KEY_ID", "test")
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "test")
        monkeypatch.setenv("AWS_ENDPOINT_URL", address)
        monkeypatch.setenv("GOOGLE_BASE_URL", address)
        monkeypatch.setenv("GOOGLE_BEARER_TOKEN", "test")
        return [("s3://bucket", "AWS_ENDPOINT_URL"), ("gs://bucket", "GOOGLE_BASE_URL")]

    @pytest.mark.slow
    def test_wrong_credentials_for_s3(self) -> None:
        with s3_bucket(checks_keys=True) as uri:
            self.fails(
                uri,
                f"^{uri}: the credentials do not give access: The AWS Access Key Id you provided "
                f"does not exist",
            )

    def test_a_profile_needs_boto3(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setitem(sys.modules, "boto3", None)
        monkeypatch.setenv("AWS_PROFILE", "other")
        self.fails(
            "s3://bucket", "^AWS_PROFILE needs boto3, which reads ~/.aws: pip install boto3$"
        )

    def test_keys_of_a_profile_are_found_by_boto3(
        self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
    ) -> None:
        pytest.importorskip("boto3")
        (tmp_path / "credentials").write_text(
            "[other]\naws_access_key_id=a\naws_secret_access_key=b\n"
        )
        monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "credentials"))
        with s3_bucket() as uri:
            for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
                monkeypatch.delenv(name)
            monkeypatch.setenv("AWS_PROFILE", "other")
            assert Storage(uri).list() == []
