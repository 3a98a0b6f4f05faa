"""`owt near-duplicates --unique` writes the records that do not repeat another as Parquet."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from owt_pipeline.commands import near_duplicates

TEXTS = [
    f"Entry {number} of the log speaks of {animal}, and of nothing that another entry speaks of."
    for number, animal in enumerate(["a heron", "an otter", "two mice", "the fox", "no birds"])
]


def lines(records: list[dict[str, Any]]) -> bytes:
    """Return records as JSON lines."""
    return "".join(json.dumps(record) + "\n" for record in records).encode()


def find(*arguments: object) -> int:
    """Run the command on files with short texts, in this process."""
    return near_duplicates.main([*map(str, arguments), "--workers", "1", "--quiet"])


def test_parquet_keeps_its_schema_and_other_columns(tmp_path: Path) -> None:
    texts = [TEXTS[number] for number in (0, 1, 0, 2, 2, 1)]
    table = pa.table(
        {
            "text": pa.array(texts, pa.large_string()),
            "kind": pa.array(["a", "b", "a", None, "c", "d"]).dictionary_encode(),
            "view": pa.array(list("uvwxyz")).cast(pa.string_view()),
            "list": [[1], None, [], [2, 3], [4], [5]],
            "map": pa.array([[("k", 1)]] * 6, pa.map_(pa.string(), pa.int8())),
        }
    ).replace_schema_metadata({"source": "a program"})
    pq.write_table(table, tmp_path / "a.parquet", row_group_size=2)
    assert find(tmp_path / "a.parquet", "--unique", tmp_path / "out.parquet") == 0
    copy = pq.read_table(tmp_path / "out.parquet")
    assert copy.schema.equals(pq.read_schema(tmp_path / "a.parquet"), check_metadata=True)
    assert copy.to_pylist() == [table.to_pylist()[number] for number in (0, 1, 3)]


def test_all_formats_are_written_into_one_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "in"
    folder.mkdir()
    posts = [{"text": TEXTS[0], "score": 1}, {"text": TEXTS[1], "tags": ["a"], "of": {"a": 1}}]
    # The last record of many has another field, and a number that is not whole.
    posts += [{"text": TEXTS[0]}] * 100 + [{"text": TEXTS[2], "score": 0.5, "of": {"b": "é"}}]
    (folder / "a.jsonl.gz").write_bytes(gzip.compress(lines(posts)))
    pq.write_table(pa.table({"text": [TEXTS[1], None], "n": [1, 2]}), folder / "b.parquet")
    (folder / "c.csv").write_text(f'text,n\n"{TEXTS[3]}",3\n')
    out = tmp_path / "out.parquet"
    # A field that is a number in one file and a string in another has no column.
    assert find(folder, "--unique", out, "--out", tmp_path / "pairs.parquet") == 1
    assert "incompatible types: int64 vs string" in capsys.readouterr().err
    (folder / "c.csv").write_text(f'text,m\n"{TEXTS[3]}",3\n')
    assert find(folder, "--unique", out, "--out", tmp_path / "pairs.parquet") == 0
    assert f"{out}: 5 records" in capsys.readouterr().out
    rows = pq.read_table(out).to_pylist()
    assert [row["text"] for row in rows] == [*TEXTS[:3], None, TEXTS[3]]
    assert [row["score"] for row in rows] == [1.0, None, 0.5, None, None]
    assert [row["of"] for row in rows[1:3]] == [{"a": 1, "b": None}, {"a": None, "b": "é"}]
    assert [(row["n"], row["m"]) for row in rows[3:]] == [(2, None), (None, "3")]
    assert len(pq.read_table(tmp_path / "pairs.parquet")) == 101
    # No spooled file is left behind.
    assert {path.name for path in tmp_path.iterdir()} == {"in", "out.parquet", "pairs.parquet"}


def test_inputs_are_never_replaced(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "a.parquet"
    pq.write_table(pa.table({"text": TEXTS}), file)
    (tmp_path / "hard.parquet").hardlink_to(file)
    (tmp_path / "soft.parquet").symlink_to(file)
    for target in (file, tmp_path / "x" / ".." / "a.parquet", tmp_path / "hard.parquet",
                   tmp_path / "soft.parquet", tmp_path):  # fmt: skip
        assert find(file, "--unique", target) == 2, target
        assert "name another one" in capsys.readouterr().err
    assert pq.read_table(file)["text"].to_pylist() == TEXTS


@pytest.mark.slow
def test_long_parquet_files_are_copied_in_batches(tmp_path: Path) -> None:
    texts = [f"{number} " + "x" * 1_000_000 for number in range(40)]
    table = pa.table({"text": [*texts, *texts[:3]]})
    pq.write_table(table, tmp_path / "a.parquet")
    assert find(tmp_path / "a.parquet", "--unique", tmp_path / "out.parquet") == 0
    copy = pq.ParquetFile(tmp_path / "out.parquet")
    assert copy.num_row_groups > 1
    assert copy.read()["text"].to_pylist() == texts
