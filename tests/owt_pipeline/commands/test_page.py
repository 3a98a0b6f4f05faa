"""`owt page` and `owt near-duplicates` work on the user's files, without a working directory."""

from __future__ import annotations

import gzip
import io
import json
import re
import shlex
import subprocess
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard

import owt_pipeline as owt
from owt_pipeline.commands import near_duplicates, page
from owt_pipeline.formats.warc import response_record
from tests.owt_pipeline.dedupe.corpora import corpus_with_copies
from tests.owt_pipeline.remedies import COMMAND, attempt
from tests.servers.web import WebServer, answer

PROSE = (
    "This sentence is prose, and long enough to be taken for a part of an article about something. "
    * 6
)
HTML = (
    "<html><head><title>A page</title></head><body><article>"
    f"<h1>A page</h1><p>{PROSE}</p></article></body></html>"
)


def test_text_of_a_file_is_printed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "page.html").write_text(HTML)
    file = str(tmp_path / "page.html")
    assert page.main([file]) == 0
    assert capsys.readouterr().out.strip() == owt.extract(HTML).text  # type: ignore[union-attr]
    assert page.main([file, "--text_format", "markdown", "--favor", "recall"]) == 0
    assert capsys.readouterr().out.startswith("# A page")


def test_a_page_of_standard_input_is_printed_as_json(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(HTML.encode())))
    assert page.main(["-", "--json", "--url", "https://example.org/2020/01/02/x"]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert (printed["title"], printed["date"]) == ("A page", "2020-01-02")


def test_an_unreadable_page_is_reported_in_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert page.main([str(tmp_path / "nowhere.html")]) == 1
    assert "No such file" in capsys.readouterr().err
    (tmp_path / "empty.html").write_text("")
    assert page.main([str(tmp_path / "empty.html")]) == 3
    assert "no_text" in capsys.readouterr().err


NO_PAGES: dict[str, tuple[bytes, str]] = {
    "rows.jsonl": (b'{"text": "a"}\n', "owt import"),
    "array.json": (b'\xef\xbb\xbf[\n  {\n "text": "a"}]', "owt import"),
    "rows.jsonl.gz": (gzip.compress(b'{"text": "a"}\n'), "owt import"),
    "RS.zst": (zstandard.compress(b'{"id": "a1"}\n'), "owt run RUN --dumps"),
    "links.tsv": (b"url\tscore\nhttps://example.org/\t3\n", "owt run RUN --links"),
    "a.warc": (b"WARC/1.0\r\n", "owt run RUN --warcs"),
    "a.warc.gz": (gzip.compress(b"WARC/1.1\r\n"), "owt run RUN --warcs"),
    "rows.parquet": (b"PAR1\x15\x00", "owt import"),
    "paper.html": (b"%PDF-1.7\n", "a PDF; expected HTML or plain text"),
    "paper.docx": (b"PK\x03\x04\x14\x00", "a ZIP archive, or a document such as DOCX"),
    "pages.tar": (b"page.html".ljust(257, b"\0") + b"ustar\x0000", "a tar archive"),
    "pages.tgz": (gzip.compress(b"a".ljust(257, b"\0") + b"ustar  "), "a tar archive"),
    "picture": (b"\x89PNG\r\n\x1a\n", "an image"),
}


@pytest.mark.parametrize("name", NO_PAGES)
def test_what_is_not_a_page_is_named_with_its_command(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    content, expected = NO_PAGES[name]
    (tmp_path / name).write_bytes(content)
    assert page.main([str(tmp_path / name)]) == 1
    output = capsys.readouterr()
    assert output.err.startswith(f"owt: error: {tmp_path / name} is not a web page, but ")
    assert (output.out, expected in output.err, output.err.count("\n")) == ("", True, 1)


SUBMISSION = {
    "id": "a1", "url": "https://example.org/1", "score": 9, "is_self": False, "over_18": False,
    "created_utc": 1_546_300_800, "subreddit": "a", "title": "t", "text": PROSE,
}  # fmt: skip
FOR_OTHER_COMMANDS = {
    "submissions.jsonl": json.dumps(SUBMISSION).encode() + b"\n",
    "my links.csv": b"url,score\nhttps://example.org/1,9\n",
    "links.parquet": None,
    "pages.warc.gz": response_record(
        "https://example.org/", 0, "HTTP/1.1 200 OK", [], HTML.encode()
    ),
}


@pytest.mark.parametrize("name", FOR_OTHER_COMMANDS)
def test_the_named_command_takes_the_file(name: str, tmp_path: Path) -> None:
    content = FOR_OTHER_COMMANDS[name]
    file = tmp_path / name
    if content is None:
        pq.write_table(pa.table({"url": ["https://example.org/1"], "text": [PROSE]}), file)
    else:
        file.write_bytes(content)
    _, output = attempt(["page", file])
    commands = COMMAND.findall(output)
    assert commands, output
    for number, command in enumerate(commands):
        words = [word.replace("RUN", f"{tmp_path}/run{number}") for word in shlex.split(command)]
        until = ["--until", "collect"] if words[1] == "run" else []
        code, output = attempt([*words[1:], *until, "--workers", "1"])
        assert (code, "1 in = 1 out" in output) == (0, True), output


@pytest.mark.parametrize("start", ["{{Infobox}} ", "{ ", "[1] ", "https://example.org/ ", "url. "])
def test_a_text_that_begins_like_data_is_a_page(
    start: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "page.txt").write_text(f"{start}{PROSE}")
    assert page.main([str(tmp_path / "page.txt")]) == 0
    assert capsys.readouterr().out.strip() == f"{start}{PROSE}".strip()


def test_a_compressed_page_is_decompressed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    content = gzip.compress(HTML.encode())
    (tmp_path / "page").write_bytes(content)
    assert page.main([str(tmp_path / "page")]) == 0
    assert capsys.readouterr().out.count(owt.extract(HTML).text) == 1  # type: ignore[union-attr]
    (tmp_path / "page").write_bytes(content[:-9])
    assert page.main([str(tmp_path / "page")]) == 1
    assert "is damaged or incomplete" in capsys.readouterr().err


def test_a_url_is_not_a_file(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with WebServer({"": answer(HTML.encode())}) as server:
        url = f"http://127.0.0.1:{server.port}/a?b=1&c=2"
        assert page.main([url]) == 1
        advice = re.search(r"\(`(curl .*) \| owt (page .*)`\)", capsys.readouterr().err)
        assert advice is not None
        body = subprocess.run(shlex.split(advice[1]), capture_output=True, check=True).stdout
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(body)))
    assert page.main(shlex.split(advice[2])[1:]) == 0
    assert PROSE.strip() in capsys.readouterr().out


def test_pairs_of_files_are_written_and_summed_up(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    texts = corpus_with_copies(seed=8, documents=60)
    with gzip.open(tmp_path / "a.jsonl.gz", "wt") as file:
        file.writelines(json.dumps({"body": text}) + "\n" for text in texts)
    out = tmp_path / "pairs.parquet"
    words = [str(tmp_path / "a.jsonl.gz"), "--text_field", "body", "--out", str(out)]
    words += ["--workers", "1", "--quiet", "--threshold", "0.7"]
    assert near_duplicates.main(words) == 0
    expected = owt.near_duplicates(texts, threshold=0.7, workers=1)
    assert pq.read_table(out).equals(expected)
    output = capsys.readouterr().out
    assert f"60 records: {len(expected)} repeat another one" in output
    assert f"{len(set(expected['cluster'].to_pylist()))} clusters" in output


def test_file_without_the_field_is_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "a.jsonl").write_text('{"body": "a"}\n')
    assert near_duplicates.main([str(tmp_path / "a.jsonl")]) == 1
    assert "a.jsonl:1: no field 'text'; it has body" in capsys.readouterr().err
    assert near_duplicates.main([str(tmp_path / "b.jsonl")]) == 1
    assert "b.jsonl" in capsys.readouterr().err


def test_pairs_replace_no_input_folder_link_or_device(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    texts = tmp_path / "texts.jsonl"
    texts.write_text('{"text": "a"}\n')
    (tmp_path / "link").symlink_to(tmp_path / "elsewhere")
    for out in (texts, tmp_path, tmp_path / "link", "/dev/stdout"):
        assert near_duplicates.main([str(tmp_path / "*.jsonl"), "--out", str(out)]) == 2
        assert "name another one" in capsys.readouterr().err
    assert texts.read_text() == '{"text": "a"}\n'
    assert (tmp_path / "link").is_symlink()


@pytest.mark.parametrize("name", ["page.html", "page.htm.gz", "pages.warc", "pages.warc.gz"])
def test_a_file_of_records_is_not_a_page_or_an_archive(name: str, tmp_path: Path) -> None:
    file = tmp_path / name
    content = response_record("https://example.org/", 0, "HTTP/1.1 200 OK", [], HTML.encode())
    if "htm" in name:
        content = gzip.compress(HTML.encode())
    elif not name.endswith(".gz"):
        content = gzip.decompress(content)
    file.write_bytes(content)
    for words in (["near-duplicates", file], ["import", tmp_path / "run", file]):
        code, output = attempt(words)
        (command,) = COMMAND.findall(output)
        assert code == 1
        assert "takes tables or texts, but this is a " in output
    advised = [word.replace("RUN", f"{tmp_path}/pages") for word in shlex.split(command)[1:]]
    until = ["--until", "collect"] if advised[0] == "run" else []
    assert attempt([*advised, *until])[0] == 0
