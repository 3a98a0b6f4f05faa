"""`owt page` and `owt near-duplicates` work on the user's files, without a working directory."""

from __future__ import annotations

import gzip
import io
import json
from pathlib import Path

import pyarrow.parquet as pq
import pytest

import owt_pipeline as owt
from owt_pipeline.commands import near_duplicates, page
from tests.owt_pipeline.dedupe.corpora import corpus_with_copies

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
    assert "no such file" in capsys.readouterr().err
    (tmp_path / "empty.html").write_text("")
    assert page.main([str(tmp_path / "empty.html")]) == 3
    assert "no_text" in capsys.readouterr().err


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
