"""Buckets behind a bad network, and buckets that cannot be used."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from obstore.exceptions import GenericError

from owt_pipeline.errors import UserError
from owt_pipeline.storage.folder import Storage
from owt_pipeline.storage.lease import hold, renew
from tests.owt_pipeline.storage.conftest import BUCKETS
from tests.servers.flaky import FlakyWay
from tests.servers.process import free_port
from tests.servers.s3 import s3_bucket


class Breaking:
    """A store of obstore's that raises what obstore raises for a broken connection, once for each `next_fails`."""

    def __init__(self, store: object) -> None:
        self.store, self.next_fails = store, False

    def __getattr__(self, name: str) -> Callable[..., object]:
        def request(*arguments: object, **options: object) -> object:
            if self.next_fails:
                self.next_fails = False
                raise GenericError("Generic error: Error performing a request - HTTP error: error sending request")
            return getattr(self.store, name)(*arguments, **options)

        return request


@pytest.mark.slow
@pytest.mark.parametrize("kind", BUCKETS)
class TestFlakyNetwork:
    @pytest.fixture
    def way(self, kind: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[FlakyWay]:
        """The way to a bucket `bucket`."""
        variable = {"s3": "AWS_ENDPOINT_URL", "gs": "STORAGE_EMULATOR_HOST", "az": "AZURE_STORAGE_ENDPOINT"}[kind]
        with BUCKETS[kind]():
            server = urlsplit(os.environ[variable])
            way = FlakyWay(server.port)
            monkeypatch.setenv(variable, f"http://127.0.0.1:{way.port}{server.path}")
            yield way
            way.close()

    def test_requests_are_made_again_until_the_network_is_back(self, kind: str, way: FlakyWay) -> None:
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
                with way.down_for(1):
                    started = time.monotonic()
                    assert request(), done
                    assert time.monotonic() - started > 0.5
        assert folder.sha256("b") == file.sha256
        folder.delete_all()

    def test_a_request_on_a_connection_that_was_not_ready_is_made_again(self, kind: str, way: FlakyWay) -> None:
        """obstore gives up where a server closes a connection just as a request is sent."""
        if kind == "gs":
            pytest.skip("gs:// has Google's client")
        folder = Storage(f"{kind}://bucket/run")
        with folder._files.request("") as (bucket, _):
            broken = bucket._store = Breaking(bucket._store)
        with folder.spool() as file:
            file.write(b"b" * 100)
            for request in (
                lambda: folder.write("a", b"a" * 10) is None,
                lambda: folder.create("created", b"c"),
                lambda: folder.read("a") == b"a" * 10,
                lambda: folder.read_range("a", 2, 3) == b"aaa",
                lambda: folder.size("a") == 10,
                lambda: file.publish("b") is None,
                lambda: folder.names() == ["a", "b", "created"],
                lambda: folder.delete("a", "b") is None,
            ):
                broken.next_fails = True
                assert request()
                assert not broken.next_fails
        assert folder.names() == ["created"]
        folder.delete_all()

    def test_a_lost_answer_does_not_undo_what_was_written(self, kind: str, way: FlakyWay) -> None:
        folder = Storage(f"{kind}://bucket/run")
        assert folder.names() == []
        way.answers_to_lose = 1
        created = folder.create("record", b"mine")
        assert way.answers_to_lose == 0
        assert not created  # the request was made again, and found what the first one wrote
        assert folder.read("record") == b"mine"
        assert not folder.create("record", b"another's")
        folder.delete_all()

    def test_a_lease_survives_lost_answers(self, kind: str, way: FlakyWay) -> None:
        folder = Storage(f"{kind}://bucket/run")
        assert folder.names() == []
        way.answers_to_lose = 1
        with hold(folder) as held:
            for _ in range(5):
                way.answers_to_lose = 1
                renew(folder, held.owner)
        assert folder.names() == []


class TestUnusableBuckets:
    """Each is one line within ten seconds that says what is missing."""

    @pytest.fixture(autouse=True)
    def _nothing_set(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
        for name in list(os.environ):
            if name.startswith(("AWS_", "GOOGLE_", "AZURE_", "CLOUDSDK_", "STORAGE_")):
                monkeypatch.delenv(name)
        monkeypatch.setenv("HOME", str(tmp_path))
        monkeypatch.setenv("NO_GCE_CHECK", "true")  # or on Google's machines the tests would find credentials
        monkeypatch.setenv("AWS_METADATA_ENDPOINT", "http://127.0.0.1:9")  # the same on Amazon's
        monkeypatch.setenv("AWS_REGION", "us-east-1")

    def fails(self, uri: str, message: str) -> None:
        started = time.monotonic()
        with pytest.raises(UserError, match=message) as error:
            Storage(uri).list()
        assert time.monotonic() - started < 10
        assert "\n" not in str(error.value)

    @pytest.mark.parametrize("uri", ["s3://bucket/run", "gs://bucket/run", "az://bucket/run"])
    def test_no_credentials(self, uri: str) -> None:
        self.fails(uri, f"^{uri[:11]}: no credentials found: (set AWS_ACCESS_KEY_ID|set AZURE_|run `gcloud auth)")

    @pytest.mark.slow
    @pytest.mark.parametrize("kind", BUCKETS)
    def test_no_such_bucket(self, kind: str) -> None:
        with BUCKETS[kind]():
            self.fails(
                f"{kind}://missing/run", f"^{kind}://missing: there is no such bucket: check its name, or make it$"
            )

    def test_a_port_where_nothing_listens(self, monkeypatch: pytest.MonkeyPatch) -> None:
        address = f"http://127.0.0.1:{free_port()}"
        for uri, variable in self.pointed_at(address, monkeypatch):
            self.fails(uri, f"^{uri}: no connection: .*; check the network and {variable}$")

    def test_a_server_that_never_answers(self, monkeypatch: pytest.MonkeyPatch) -> None:
        with socket.create_server(("127.0.0.1", 0)) as server:
            address = f"http://127.0.0.1:{server.getsockname()[1]}"
            for uri, variable in self.pointed_at(address, monkeypatch):
                self.fails(uri, f"^{uri}: no connection: .*; check the network and {variable}$")

    def pointed_at(self, address: str, monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, str]]:
        monkeypatch.setenv("AWS_ACCESS_KEY_ID", "test")
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "test")
        monkeypatch.setenv("AWS_ENDPOINT_URL", address)
        monkeypatch.setenv("STORAGE_EMULATOR_HOST", address)
        return [("s3://bucket", "AWS_ENDPOINT_URL"), ("gs://bucket", "STORAGE_EMULATOR_HOST")]

    @pytest.mark.slow
    def test_wrong_credentials_for_s3(self) -> None:
        with s3_bucket(checks_keys=True) as uri:
            self.fails(
                uri, f"^{uri}: the credentials do not give access: The AWS Access Key Id you provided does not exist"
            )

    @pytest.mark.slow
    def test_keys_of_a_profile_are_found(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
        with s3_bucket() as uri:
            for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
                monkeypatch.delenv(name)
            self.fails(uri, "no credentials found")
            (tmp_path / ".aws").mkdir()
            (tmp_path / ".aws" / "credentials").write_text(
                "[default]\naws_access_key_id=a\naws_secret_access_key=b\n[other]\n"
            )
            monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / ".aws" / "credentials"))
            assert Storage(uri).list() == []
            monkeypatch.setenv("AWS_PROFILE", "other")
            self.fails(uri, "no credentials found")
