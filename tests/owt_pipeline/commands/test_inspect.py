"""inspect and sample-documents show what is there, checked against DuckDB."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import duckdb
import pytest

from owt_pipeline.commands import inspect
from schemas import DATASETS
from tests.owt_pipeline.runs import shard_file


def inspected(capsys: pytest.CaptureFixture[str], *arguments: object, code: int = 0) -> str:
    assert inspect.main([str(argument) for argument in arguments]) == code
    output = capsys.readouterr()
    return output.out + output.err


def sampled(capsys: pytest.CaptureFixture[str], *arguments: object, code: int = 0) -> str:
    assert inspect.sample_main([str(argument) for argument in arguments]) == code
    output = capsys.readouterr()
    return output.out + output.err


def query(sql: str, **paths: Path) -> list[tuple]:
    return duckdb.sql(sql.format(**paths)).fetchall()


def test_a_datasets_schema_counts_and_rows_are_shown(small_run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name, dataset in DATASETS.items():
        shown = json.loads(inspected(capsys, small_run / name, "--rows", 2, "--json"))
        assert [field["name"] for field in shown["schema"]] == dataset.schema.names
        assert all(field["description"] for field in shown["schema"])
        assert len(shown["rows_shown"]) == 2
    ((rows,),) = query("select count(*) from '{run}/corpus/part-*.parquet'", run=small_run)
    text = inspected(capsys, small_run / "corpus")
    assert f"rows: {rows:,}\n" in text
    assert "near_duplicate" in text
    assert re.findall(r"^row \d+:$", text, re.MULTILINE) == ["row 0:", "row 1:", "row 2:"]


@pytest.mark.parametrize(
    "where",
    [
        ["score >= 10"],
        ["host = 'garden.demo.test' or score = 5", "url ilike '%notes%'"],
        ["'books' in subreddits"],
        ["url_id > 9223372036854775807"],
    ],
)
def test_conditions_choose_the_rows_that_sql_does(
    where: list[str], small_run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    flags = [flag for condition in where for flag in ("--where", condition)]
    shown = json.loads(inspected(capsys, small_run / "urls", "--json", "--rows", 1000, "--columns", "url_id", *flags))
    sql = " and ".join(f"({condition})" for condition in where)
    expected = query(f"select url_id from '{{run}}/urls/part-*.parquet' where {sql}", run=small_run)
    assert expected
    assert sorted(row["url_id"] for row in shown["rows_shown"]) == sorted(i for (i,) in expected)


def test_a_condition_reads_no_other_file(small_run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    other = shard_file(small_run, "corpus", 0)
    said = inspected(capsys, small_run / "urls", "--where", f"url in (select url from '{other}')", code=2)
    assert "disabled" in said


def test_rejects_single_files_and_warc_records_are_shown(small_run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rejects = inspected(capsys, small_run / "ledger/clean/rejects", "--where", "reason = 'too_short'", "--rows", 1)
    assert "tokens, fewer than 64" in rejects
    arrow = json.loads(inspected(capsys, shard_file(small_run, "tokens", 0, split="train"), "--rows", 1, "--json"))
    assert len(arrow["rows_shown"][0]["tokens"]) == arrow["rows_shown"][0]["n_tokens"]
    records = json.loads(inspected(capsys, shard_file(small_run, "pages", 0, "warc"), "--rows", 999, "--json"))
    offsets = query("select warc_offset from '{pages}'", pages=shard_file(small_run, "pages", 0))
    assert {o for (o,) in offsets} <= {record["offset"] for record in records["rows_shown"]}


def test_what_cannot_be_inspected_says_what_can(
    small_run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    unfinished = tmp_path / "run"
    (unfinished / "ledger").mkdir(parents=True)
    assert f"look into {small_run}/urls" in inspected(capsys, small_run, code=1)
    missing = "is not a run: no stage has written anything there; check the path"
    for name in (small_run / "nothing", small_run / "nothing/corpus"):
        assert missing in inspected(capsys, name, code=3)
    assert "no such file" in inspected(capsys, small_run / "corpus/nothing.parquet", code=3)
    assert "is missing or not finished: run `owt fetch" in inspected(capsys, unfinished / "pages", code=3)
    assert "neither Parquet" in inspected(capsys, small_run / "ledger/corpus/manifest.json", code=1)
    assert 'Candidate bindings: "score"' in inspected(capsys, small_run / "urls", "--where", "scor=1", code=2)
    assert "did you mean 'score'?" in inspected(capsys, small_run / "urls", "--columns", "scor", code=2)
    assert "syntax error" in inspected(capsys, small_run / "urls", "--where", "score >", code=2)
    assert "Could not convert" in inspected(capsys, small_run / "urls", "--where", "score = 'high'", code=2)


def test_a_damaged_file_is_named(small_run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "part.parquet"
    content = bytearray(shard_file(small_run, "corpus", 0).read_bytes())
    content[100:4000] = bytes(3900)
    file.write_bytes(content)
    said = inspected(capsys, file, "--where", "length(text) > 0", code=1)
    assert said.startswith(f"owt: error: {file} ")
    assert len(said.splitlines()) == 1


def rows_of(text: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in text.splitlines()]


def test_a_sample_is_the_seeds_and_of_the_corpus(small_run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    first = sampled(capsys, "--workdir", small_run, "--n", 20, "--json")
    assert first == sampled(capsys, "--workdir", small_run, "--n", 20, "--json")
    ids = {row["url_id"] for row in rows_of(first)}
    assert len(ids) == 20
    assert ids != {
        row["url_id"] for row in rows_of(sampled(capsys, "--workdir", small_run, "--n", 20, "--seed", 1, "--json"))
    }
    assert {len(rows_of(first)[0]["text"])} <= {n for (n,) in query(
        "select length(text) from '{run}/corpus/part-*.parquet'", run=small_run)}  # fmt: skip
    everything = rows_of(sampled(capsys, "--workdir", small_run, "--n", 9999, "--json"))
    assert sorted(row["url_id"] for row in everything) == sorted(
        i for (i,) in query("select url_id from '{run}/corpus/part-*.parquet'", run=small_run)
    )


def test_rejected_documents_can_be_read(small_run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for reason in ("too_short", "near_duplicate"):
        for row in rows_of(sampled(capsys, "--workdir", small_run, "--reason", reason, "--json")):
            assert row["reason"] == reason
            assert row["text"]
    assert "detail: " in sampled(capsys, "--workdir", small_run, "--reason", "low_score")
    hosted = rows_of(sampled(capsys, "--workdir", small_run, "--domain", "garden.demo.test", "--n", 50, "--json"))
    assert hosted
    assert all("garden.demo.test" in row["url"] for row in hosted)
    assert "did you mean 'too_short'?" in sampled(capsys, "--workdir", small_run, "--reason", "to_short", code=2)
    assert "holds no document" in sampled(capsys, "--workdir", small_run, "--domain", "nobody.example", code=3)
