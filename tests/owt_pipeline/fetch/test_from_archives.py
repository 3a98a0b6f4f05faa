"""`--pages_from`: pages from WARC files, good and broken."""

from __future__ import annotations

import gzip
import io
import shutil
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import pytest
from fastwarc.warc import ArchiveIterator, WarcRecordType

from owt_pipeline.commands.verify import verify
from owt_pipeline.engine.runner import run_stage
from owt_pipeline.engine.stage import Runtime
from owt_pipeline.errors import UserError
from owt_pipeline.formats.captures import COMPLETE, RECOMPRESS, Broken, Capture, captures
from owt_pipeline.formats.warc import (
    gzip_member,
    http_record,
    read_record,
    response_record,
    single_member,
)
from owt_pipeline.stages.fetch import shards
from owt_pipeline.stages.fetch.options import Options
from owt_pipeline.stages.fetch.stage import STAGE
from owt_pipeline.storage.folder import Storage
from schemas.manifest import Manifest
from tests.owt_pipeline.fetch.conftest import Write
from tests.owt_pipeline.fetch.reading import reader, rejects, responses
from tests.owt_pipeline.runs import snapshot
from tests.servers.s3 import s3_bucket

HTML = [("Content-Type", "text/html; charset=utf-8")]

Archive = list[tuple[str, int, str, list[tuple[str, str]], bytes]]


def archive(records: Archive) -> bytes:
    """Return a WARC file with these records."""
    return b"".join(response_record(*record) for record in records)


def fetch(runtime: Runtime, *files: Path, **options: object) -> Manifest:
    """Fetch the pages from archive files."""
    return run_stage(STAGE, Options(pages_from=tuple(map(str, files)), **options), runtime)[0]  # type: ignore[arg-type]


def page(text: str) -> bytes:
    """Return a page with a paragraph."""
    return f"<html><body><p>{text}</p></body></html>".encode()


def test_every_page_of_a_real_archive_is_found_and_copied(
    testdata: Path, write_urls: Write
) -> None:
    file = testdata / "web" / "wcxb-dev.warc.gz"
    urls = [
        record.headers["WARC-Target-URI"] for record in ArchiveIterator(str(file), parse_http=False)
    ]
    runtime = write_urls([*urls, "https://nowhere.example/page"])
    manifest = fetch(runtime, file)
    assert manifest.counts.rejected["not_archived"] == 1
    assert manifest.counts.left >= 1300
    (counts,) = manifest.properties["archives"]
    assert len(counts.pop("digest")) == 64
    assert counts == {"name": "wcxb-dev.warc.gz", "responses": 1308, "broken": 0, "unusable": 0}
    for shard in range(2):
        rows = reader(runtime, manifest).table(shard)
        assert rows["url_id"].to_pylist() == sorted(rows["url_id"].to_pylist())
        copied_records = [
            (record.headers["WARC-Target-URI"], len(record.reader.read()))
            for warc in reader(runtime, manifest).files("warc", shard)
            for record in ArchiveIterator(runtime.workdir.path(warc.path), verify_digests=True)
            if record.record_type == WarcRecordType.response
        ]
        assert copied_records == list(
            zip(rows["final_url"].to_pylist(), rows["body_bytes"].to_pylist(), strict=True)
        )
    assert manifest.totals["warc"].rows == manifest.counts.entered


def test_broken_archives_are_read_as_far_as_they_go(testdata: Path, write_urls: Write) -> None:
    runtime = write_urls(["http://example.com/", "http://www.iana.org/"])
    manifest = fetch(
        runtime, testdata / "warc" / "warcio", testdata / "warc" / "resiliparse", allow_damaged=True
    )
    assert manifest.counts.left == 2
    counts = {
        entry["name"]: (entry["responses"], entry["broken"])
        for entry in manifest.properties["archives"]
    }
    assert counts["clipped.warc.gz"] == (0, 1)
    assert counts["example.arc.gz"] == counts["example.arc"] == (0, 1)
    assert counts["bad.arc"] == counts["example-bad.warc.gz.bad"] == (0, 1)
    assert counts["clueweb-quirk.warc.gz"] == (29, 0)
    assert "LICENSE" not in counts
    assert b"Example Domain" in responses(runtime, manifest)["https://example.com/"].body


@pytest.mark.slow
def test_a_bucket_gives_the_bytes_of_a_local_folder(
    testdata: Path, tmp_path: Path, write_urls: Write
) -> None:
    folders = [testdata / "warc" / name for name in ("warcio", "resiliparse")]
    runtime = write_urls(["http://example.com/", "http://www.iana.org/"])
    file_by_name = {name: runtime.workdir.read(name) for name in runtime.workdir.names()}
    expected = fetch(runtime, *folders, allow_damaged=True)
    with s3_bucket() as bucket:
        files = Storage(f"{bucket}/archives")
        for path in [path for folder in folders for path in folder.iterdir()]:
            files.write(path.name, path.read_bytes())
        remote = Runtime(Storage(f"{bucket}/run"))
        for name, content in file_by_name.items():
            remote.workdir.write(name, content)
        options = Options(
            pages_from=(f"{bucket}/archives/*.warc*", f"{bucket}/archives/*.arc*"),
            allow_damaged=True,
        )
        manifest = run_stage(STAGE, options, remote)[0]
        digests = [reader(*dataset).table_of_files.digest_of(("data", "rejects"))
                   for dataset in ((remote, manifest), (runtime, expected))]  # fmt: skip
        assert digests[0] == digests[1]
        counts = {entry["name"]: entry for entry in expected.properties["archives"]}
        assert len(manifest.properties["archives"]) > 20
        assert all(entry == counts[entry["name"]] for entry in manifest.properties["archives"])
        assert responses(remote, manifest) == responses(runtime, expected)
        assert not [line for finding in verify(remote.workdir) for line in finding.problems]


def five_records() -> list[bytes]:
    """Return records of five pages, which are large enough to be damaged in the middle."""
    return [
        response_record(f"http://a.example/{i}", i, "HTTP/1.1 200 OK", HTML, page(f"{i} " * 999))
        for i in range(5)
    ]


def found_in(data: bytes) -> list[str | None]:
    """Return the name of each capture, read by its own bytes; None for a broken one."""

    def text(capture: Capture) -> str:
        _, record = single_member(
            bytes(data[capture.offset : capture.offset + capture.length]), 1 << 20
        )
        response = read_record(record)
        assert response.url == capture.url
        assert response.body == page(f"{capture.url[-1]} " * 999)
        return capture.url[-1]

    found_captures = captures(io.BytesIO(data), len(data))
    return [None if isinstance(capture, Broken) else text(capture) for capture in found_captures]


@pytest.mark.parametrize("damaged", range(5))
@pytest.mark.parametrize("compressed", [True, False])
def test_all_records_before_a_damaged_one_are_read(damaged: int, compressed: bool) -> None:
    records = five_records()
    if not compressed:
        records = [single_member(record, 1 << 20)[1] for record in records]
    middle = len(records[damaged]) // 2
    records[damaged] = records[damaged][:middle] + records[damaged][middle + 90 :]
    assert found_in(b"".join(records)) == [*map(str, range(damaged)), None]


@pytest.mark.parametrize("name", ["example.arc", "example.arc.gz"])
def test_an_arc_file_is_refused_with_advice_that_works(
    name: str, testdata: Path, tmp_path: Path, write_urls: Write
) -> None:
    file = testdata / "warc" / "warcio" / name
    copy = tmp_path / "copy.warc.gz"
    runtime = write_urls(["http://example.com/"], num_shards=1)
    with pytest.raises(UserError, match=r"an ARC file: .*\(warcio recompress .*\)$"):
        fetch(runtime, file)
    warcio = [sys.executable, "-m", "warcio.cli", "recompress", str(file), str(copy)]
    subprocess.run(warcio, check=True, capture_output=True)
    (response,) = responses(runtime, fetch(runtime, copy)).values()
    assert (response.url, response.date) == ("http://example.com/", 1392526941)
    assert b"Example Domain" in response.body


def with_lf_head(record: bytes) -> bytes:
    head, _, block = single_member(record, 1 << 20)[1].partition(b"\r\n\r\n")
    head = head.replace(b"\r\n", b"\n")
    return head + b"\n\n" + block.removesuffix(b"\r\n\r\n") + b"\n\n"


@pytest.mark.parametrize("compressed", [True, False])
@pytest.mark.parametrize("lf_heads", [{0}, {1}, {4}, {0, 1, 2, 3, 4}])
def test_a_head_of_lf_lines_is_refused_with_advice_that_works(
    compressed: bool, lf_heads: set[int], tmp_path: Path
) -> None:
    records = []
    for number, record in enumerate(five_records()):
        content = record if compressed else single_member(record, 1 << 20)[1]
        if number in lf_heads:
            content = with_lf_head(record)
            content = gzip_member(content) if compressed else content
        records.append(content)
    data = b"".join(records)
    *before, broken = captures(io.BytesIO(data), len(data))
    assert len(before) == min(lf_heads)
    assert isinstance(broken, Broken)
    assert broken.remedy == RECOMPRESS
    source = tmp_path / "a.warc"
    copy = tmp_path / "copy.warc.gz"
    source.write_bytes(data)
    warcio = [sys.executable, "-m", "warcio.cli", "recompress", str(source), str(copy)]
    subprocess.run(warcio, check=True, capture_output=True)
    assert found_in(copy.read_bytes()) == list("01234")


def test_field_names_may_have_other_letters() -> None:
    _, record, *_ = five_records()
    content = single_member(record, 1 << 20)[1]
    for name in (b"WARC-Type", b"WARC-Target-URI", b"Content-Length"):
        content = content.replace(name, name.lower())
    assert found_in(content) == found_in(gzip_member(content)) == ["1"]


def test_a_capture_that_is_not_http_is_a_reject(tmp_path: Path, write_urls: Write) -> None:
    blocks = {
        "old": b"<html>A page of HTTP/0.9</html>",
        "ssh": b"SSH-2.0-OpenSSH_9.6\r\n",
        "nothing": b"",
        "unversioned": b"HTTP 200 Document follows\r\nContent-Type: text/html\r\n\r\n" + page("a"),
        "good": b"HTTP/1.0 200 OK\r\nContent-Type: text/html\r\n\r\n" + page("b"),
    }
    file = tmp_path / "odd.warc.gz"
    file.write_bytes(
        b"".join(http_record(f"{HOST}/{name}", 1, block, b"") for name, block in blocks.items())
    )
    runtime = write_urls([f"{HOST}/{name}" for name in blocks])
    manifest = fetch(runtime, file)
    assert {url.rpartition("/")[2] for url in responses(runtime, manifest)} == {
        "unversioned",
        "good",
    }
    assert {reason for reason, _ in rejects(runtime, manifest).values()} == {"bad_response"}


def test_the_capture_nearest_to_the_submission_is_taken(tmp_path: Path, write_urls: Write) -> None:
    day = 86_400
    file = tmp_path / "captures.warc.gz"
    dates = [
        ("x", 90),
        ("x", 110),
        ("x", 50),
        ("y", 90),
        ("y", 110),
        ("y", 200),
        ("z", 70),
        ("z", 60),
    ]
    records = [
        (f"http://a.example/{x}", at * day, "HTTP/1.1 200 OK", HTML, page(f"day {at}"))
        for x, at in dates
    ]
    file.write_bytes(
        archive([*records, (records[0][0], 101 * day, "HTTP/1.1 503 Busy", HTML, page("busy"))])
    )
    posted = [
        ("http://a.example/x", 105 * day),
        ("http://a.example/y", 100 * day),
        ("http://a.example/z", None),
    ]
    runtime = write_urls(posted)
    body_by_name = {
        url[-1]: response.body for url, response in responses(runtime, fetch(runtime, file)).items()
    }
    assert body_by_name == {"x": page("day 110"), "y": page("day 90"), "z": page("day 60")}


@pytest.mark.parametrize("num_shards", [1, 7])
def test_redirects_lead_to_files_and_hosts_of_other_shards(
    tmp_path: Path, write_urls: Write, monkeypatch: pytest.MonkeyPatch, num_shards: int
) -> None:
    # A part indexes several files, and a range has several shards.
    monkeypatch.setattr(shards, "MAX_INDEX_PARTS", 2)
    monkeypatch.setattr(shards, "_MAX_RANGES", 3)
    urls = [f"https://host-{i}.example/" for i in range(9)]
    files = []
    for number, (url, target) in enumerate(pairwise(urls)):
        header = ("Location", target)
        files.append(tmp_path / f"{number}.warc")
        files[-1].write_bytes(archive([(url, 1, "HTTP/1.1 301 Moved", [header], b"")]))
    files[0].write_bytes(
        files[0].read_bytes() + archive([(urls[-1], 1, "HTTP/1.1 200 OK", HTML, page("end"))])
    )
    runtime = write_urls([*urls[:-1], "https://absent.example/"], num_shards=num_shards)
    manifest = fetch(runtime, *files)
    bodies = {url: found.body for url, found in responses(runtime, manifest).items()}
    assert bodies == dict.fromkeys(urls[:-1], page("end"))
    absent = rejects(runtime, manifest)["https://absent.example/"]
    assert absent == ("not_archived", "no capture of a page in 8 archive files")
    counts = {entry["name"]: entry["responses"] for entry in manifest.properties["archives"]}
    assert counts == {file.name: 1 + (file is files[0]) for file in files}


def response(
    status: int, headers: str = "Content-Type: text/html", body: bytes | None = None
) -> bytes:
    """Return an HTTP response, with a page by default."""
    return f"HTTP/1.1 {status} X\r\n{headers}\r\n\r\n".encode() + (
        page("a") if body is None else body
    )


ZIPPED = gzip.compress(page("zipped"))
INTERIM = b"HTTP/1.1 100 Continue\r\n\r\n"
HOST = "http://a.example"
ODD: dict[str, tuple[bytes, str | None]] = {
    "list": (response(200, "Content-Type: text/plain, text/html"), None),
    "any": (response(200, "Content-Type: */*"), None),
    "untyped": (response(200, "Server: x"), None),
    "deflate": (
        response(200, "Content-Type: text/html\r\nContent-Encoding: deflate", ZIPPED),
        None,
    ),
    "continue": (INTERIM + response(200), None),
    "hints": (b"HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\n" + response(200), None),
    "relative": (response(301, "Location: /any", b""), None),
    "words": (response(200, "Content-Type: html", b"just words"), "not_html"),
    "pdf": (response(200, body=b"%PDF-1.4"), "not_html"),
    "gone": (INTERIM + response(404, "Server: x"), "http_404"),
    "cut": (
        response(200, "Content-Type: text/html\r\nContent-Encoding: gzip", ZIPPED[:-12]),
        "bad_response",
    ),
    "empty": (response(200, body=b""), "empty_body"),
    "large": (response(200, body=page("x" * 5000)), "too_large"),
    "nowhere": (response(301, "Server: x", b""), "bad_redirect"),
    "absent": (b"", "not_archived"),
    # Any reason will do.
    "only": (INTERIM, ""),
}
"""Blocks of records, each with the reason that there is no page."""


def test_whatever_an_archive_has_is_a_page_or_a_reject(tmp_path: Path, write_urls: Write) -> None:
    file = tmp_path / "odd.warc.gz"
    for name, (block, _) in ODD.items():
        head, end, body = block.partition(b"\r\n\r\n")
        with file.open("ab") as stream:
            stream.write(http_record(f"{HOST}/{name}", 1, head + end, body) if block else b"")
    with file.open("rb") as records:
        assert all(record.verify_payload_digest() for record in ArchiveIterator(records))
    damaged = response_record(f"{HOST}/damaged", 1, "HTTP/1.1 200 OK", HTML, page("x" * 3000))
    with file.open("ab") as stream:
        stream.write(damaged[:200] + b"?" + damaged[201:])
    runtime = write_urls([f"{HOST}/{name}" for name in (*ODD, "damaged")])
    manifest = fetch(runtime, file, max_page_bytes=4000, allow_damaged=True)
    response_by_name = {
        url.rpartition("/")[2]: response for url, response in responses(runtime, manifest).items()
    }
    assert response_by_name.keys() == {name for name, (_, reason) in ODD.items() if reason is None}
    assert all(response.body.startswith(b"<") for response in response_by_name.values())
    reasons = {
        url.rpartition("/")[2]: reason for url, (reason, _) in rejects(runtime, manifest).items()
    }
    assert reasons.keys() == {"damaged"} | {
        name for name, (_, reason) in ODD.items() if reason is not None
    }
    assert reasons["damaged"] == "not_archived"
    assert all(reasons[name] == reason for name, (_, reason) in ODD.items() if reason)
    assert manifest.properties["archives"][0]["broken"] == 1


def member(kind: str, content_type: str = "text/plain") -> bytes:
    """Return a record of another type than a response, as a gzip member."""
    head = f"WARC/1.0\r\nWARC-Type: {kind}\r\nWARC-Record-ID: <urn:uuid:1>\r\nWARC-Target-URI: http://a.example/\r\n"
    head += (
        f"WARC-Date: 2014-01-01T00:00:00Z\r\nContent-Type: {content_type}\r\nContent-Length: "
        f"4\r\n\r\n"
    )
    return gzip_member(head.encode() + b"text\r\n\r\n")


DAMAGED = {
    "cut.warc.gz": (lambda content: content[:-200], "the record at byte "),
    "cut.warc": (lambda content: gzip.decompress(content)[:-2000], "the record at byte "),
    "cut_request.warc.gz": (lambda content: content + member("request")[:-30], "the record at "
    "byte "),
    "cut_request.warc": (lambda content: gzip.decompress(content + member("request"))[:-6], "the "
    "record at byte "),
    "corrupt.warc.gz": (lambda content: content[:900] + bytes(60) + content[960:], "the record at "
    "byte "),
    "cut_head.warc": (lambda content: gzip.decompress(content + member("request"))[:-90], "the "
    "record at byte "),
    "cut_head.warc.gz": (lambda content: content + member("request")[:40], "the record at byte "),
    "CC.warc.wet.gz": (
        lambda content: member("warcinfo") + 9 * member("conversion"),
        "no response among its records (conversion, warcinfo): WET and WAT files have no pages, "
        "their WARC files do",
    ),
    "warc.paths.gz": (lambda content: gzip_member(b"crawl-data/1.warc.gz\n" * 50), "not a WARC "
    "file, since it begins with"),
    "shared.warc.gz": (lambda content: gzip_member(gzip.decompress(content)), "has more "
    "than one record"),
    "some.warc.gz": (lambda content: content + gzip_member(gzip.decompress(content) * 2), "the "
    "record at byte "),
    "RS_2013-01.zst": (lambda content: b"\x28\xb5\x2f\xfd" + bytes(50), "not a WARC file, "
    "since it begins with"),
}  # fmt: skip


@pytest.mark.parametrize("name", DAMAGED)
def test_a_damaged_archive_is_an_error_without_allow_damaged(
    name: str, write_urls: Write, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    damage, expected = DAMAGED[name]
    (tmp_path / name).write_bytes(damage(b"".join(five_records())))
    runtime = write_urls([f"http://a.example/{i}" for i in range(5)])
    with pytest.raises(UserError) as error:
        fetch(runtime, tmp_path / name)
    message = str(error.value)
    assert message.startswith(str(tmp_path / name))
    assert expected in message
    assert "\n" not in message
    remedy = RECOMPRESS if name in ("shared.warc.gz", "some.warc.gz") else COMPLETE
    assert message.endswith(f"; {remedy}, or take what can be read with --allow_damaged")
    with caplog.at_level("WARNING", logger="owt"):
        manifest = fetch(runtime, tmp_path / name, allow_damaged=True)
    (archive,) = manifest.properties["archives"]
    assert expected in archive["problem"]
    assert archive["problem"] in caplog.text
    assert archive["responses"] == manifest.counts.left
    # What comes before the damaged record is read, and nothing of a file that is no archive.
    num_readable = (2, 4, 5) if expected.startswith("the record") else (0,)
    assert archive["responses"] in num_readable


def test_a_copy_by_warcio_can_be_read(testdata: Path, tmp_path: Path) -> None:
    source = testdata / "warc" / "warcio" / "example-bad.warc.gz.bad"
    copy = tmp_path / "copy.warc.gz"
    with source.open("rb") as file:
        (broken,) = captures(file, source.stat().st_size)
    assert isinstance(broken, Broken)
    assert broken.remedy == RECOMPRESS
    subprocess.run(
        [sys.executable, "-m", "warcio.cli", "recompress", str(source), str(copy)], check=True
    )
    with copy.open("rb") as file:
        readable = list(captures(file, copy.stat().st_size))
    assert [isinstance(capture, Capture) for capture in readable] == [True, True]


def test_archives_may_be_deleted_once_their_pages_are_published(
    write_urls: Write, tmp_path: Path
) -> None:
    folder = tmp_path / "archives"
    folder.mkdir()
    for number, record in enumerate(five_records()[:2]):
        (folder / f"{number}.warc.gz").write_bytes(record)
    runtime = write_urls(["http://a.example/0", "http://a.example/1"])
    files = folder / "*.warc.gz"
    manifest = fetch(runtime, files)
    files_of_run = snapshot(Path(runtime.workdir.uri))
    (folder / "0.warc.gz").unlink()
    assert fetch(runtime, files) == fetch(runtime, folder) == manifest
    shutil.rmtree(folder)
    assert fetch(runtime, files) == manifest
    for misspelt in (tmp_path / "archivse" / "*.warc.gz", tmp_path / "archivse"):
        with pytest.raises(UserError, match=r"--pages_from: no file matches .*archivse"):
            fetch(runtime, misspelt)
    with pytest.raises(UserError, match=r"0\.warc\.gz is missing"):
        fetch(runtime, files, max_page_bytes=9)
    folder.mkdir()
    (folder / "1.warc.gz").write_bytes(five_records()[1])
    with pytest.raises(UserError, match=r"0\.warc\.gz is missing"):
        fetch(runtime, files, max_page_bytes=9)
    assert snapshot(Path(runtime.workdir.uri)) == files_of_run
