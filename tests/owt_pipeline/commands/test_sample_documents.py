"""sample-documents shows what is there, checked against DuckDB."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import duckdb
import pytest

from owt_pipeline.commands import sample_documents


def sampled(capsys: pytest.CaptureFixture[str], *arguments: object, code: int = 0) -> str:
    assert sample_documents.main([str(argument) for argument in arguments]) == code
    output = capsys.readouterr()
    return output.out + output.err


def query(sql: str, **paths: Path) -> list[tuple]:
    return duckdb.sql(sql.format(**paths)).fetchall()


def rows_of(text: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in text.splitlines()]


def test_a_sample_is_the_seeds_and_of_the_corpus(small_run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    first = sampled(capsys, small_run, "--n", 20, "--json")
    assert first == sampled(capsys, small_run, "--n", 20, "--json")
    ids = {row["url_id"] for row in rows_of(first)}
    assert len(ids) == 20
    assert ids != {row["url_id"] for row in rows_of(sampled(capsys, small_run, "--n", 20, "--seed", 1, "--json"))}
    assert {len(rows_of(first)[0]["text"])} <= {n for (n,) in query(
        "select length(text) from '{run}/corpus/part-*.parquet'", run=small_run)}  # fmt: skip
    everything = rows_of(sampled(capsys, small_run, "--n", 9999, "--json"))
    assert sorted(row["url_id"] for row in everything) == sorted(
        i for (i,) in query("select url_id from '{run}/corpus/part-*.parquet'", run=small_run)
    )


def test_rejected_documents_can_be_read(small_run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for reason in ("too_short", "near_duplicate"):
        for row in rows_of(sampled(capsys, small_run, "--reason", reason, "--json")):
            assert row["reason"] == reason
            assert row["text"]
    assert "detail: " in sampled(capsys, small_run, "--reason", "low_score")
    hosted = rows_of(sampled(capsys, small_run, "--domain", "garden.demo.test", "--n", 50, "--json"))
    assert hosted
    assert all("garden.demo.test" in row["url"] for row in hosted)
    assert "did you mean 'too_short'?" in sampled(capsys, small_run, "--reason", "to_short", code=2)
    assert "holds no document" in sampled(capsys, small_run, "--domain", "nobody.example", code=3)
