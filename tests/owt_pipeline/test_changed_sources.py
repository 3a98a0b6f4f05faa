"""A run notices any edit of a source, and hashes an unchanged source only once."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest

from owt_pipeline.formats.warc import response_record
from tests.owt_pipeline.runs import ask_owt, rows_of

_HTML = [("Content-Type", "text/html; charset=utf-8")]
# With this padding, the middle record is more than a MiB from both ends of the file.
_PADDING = "x" * 100_000
_NUM_RECORDS = 31
_WORD = "before"
_EDITED_WORD = "edited"


def _name(number: int) -> str:
    """Return a word that is in one record: `before` in the middle one."""
    return _WORD if number == _NUM_RECORDS // 2 else f"page{number}"


def _dump() -> bytes:
    """Return a dump in which each submission has a word of `_name` and much padding."""
    submissions = [
        {
            "id": f"x{number}", "url": f"https://site.example/{_name(number)}", "score": 5,
            "is_self": False, "over_18": False, "created_utc": 1300000000, "num_comments": 1,
            "subreddit": "test", "title": "Title", "padding": _PADDING,
        }
        for number in range(_NUM_RECORDS)
    ]  # fmt: skip
    return "".join(json.dumps(submission) + "\n" for submission in submissions).encode()


def _warc() -> bytes:
    """Return a WARC file in which each page has a word of `_name` and much padding."""
    content = b""
    for number in range(_NUM_RECORDS):
        sentence = f"This page is about {_name(number)}, and says little else that anyone reads."
        page = f"<html><body><p>{sentence}</p><!-- {_PADDING} --></body></html>"
        url = f"https://site.example/{number}"
        record = response_record(url, 1_700_000_000, "HTTP/1.1 200 OK", _HTML, page.encode())
        content += gzip.decompress(record)
    return content


def _texts() -> bytes:
    """Return JSON lines in which each text has a word of `_name` and much padding."""
    texts = [{"text": _name(number), "padding": _PADDING} for number in range(_NUM_RECORDS)]
    return "".join(json.dumps(text) + "\n" for text in texts).encode()


def _links() -> bytes:
    """Return a table in which each URL has a word of `_name`, and each row much padding."""
    rows = [f"https://site.example/{_name(number)},{_PADDING}\n" for number in range(_NUM_RECORDS)]
    return f"url,padding\n{''.join(rows)}".encode()


def _run_dump(path: Path) -> str:
    """Collect a dump; return the URLs as one text."""
    ask_owt("run", path.parent / "run", "--dumps", path, "--until", "collect", "--num_shards", 1)
    return str(rows_of(path.parent / "run", "urls"))


def _run_links(path: Path) -> str:
    """Collect a table of links; return the URLs as one text."""
    ask_owt("run", path.parent / "run", "--links", path, "--until", "collect", "--num_shards", 1)
    return str(rows_of(path.parent / "run", "urls"))


def _run_texts(path: Path) -> str:
    """Import texts; return the documents as one text."""
    ask_owt("import", path.parent / "run", path, "--num_shards", 1)
    return str(rows_of(path.parent / "run", "documents"))


def _run_archive(path: Path) -> str:
    """Extract the pages of a WARC file; return their texts as one text."""
    run = path.parent / "run"
    links = path.parent / "links.txt"
    links.write_text("".join(f"https://site.example/{n}\n" for n in range(_NUM_RECORDS)))
    flags = ("--num_shards", 1, "--until", "extract", "--favor", "recall")
    ask_owt("run", run, "--links", links, "--pages_from", path, *flags)
    return str([row["text"] for row in rows_of(run, "documents")])


_KINDS = {
    "dump.ndjson": (_dump, _run_dump),
    "links.csv": (_links, _run_links),
    "texts.jsonl": (_texts, _run_texts),
    "pages.warc": (_warc, _run_archive),
}


def edit_middle(path: Path) -> None:
    """Change a word in the middle of a file, whose length and ends stay the same."""
    content = path.read_bytes()
    position = content.index(_WORD.encode())
    assert 1 << 20 < position < len(content) - (1 << 20)
    path.write_bytes(content.replace(_WORD.encode(), _EDITED_WORD.encode()))


@pytest.mark.parametrize("name", _KINDS)
def test_an_edit_in_the_middle_of_a_plain_file_is_noticed(
    name: str, tmp_path: Path, hashed: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    make, run = _KINDS[name]
    path = tmp_path / name
    path.write_bytes(make())
    rows_before = run(path)
    hashed.clear()
    monkeypatch.setattr("owt_pipeline.storage.folder._sha256_by_file", {})
    assert run(path) == rows_before
    assert name not in hashed
    edit_middle(path)
    assert run(path) != rows_before
    assert name in hashed
