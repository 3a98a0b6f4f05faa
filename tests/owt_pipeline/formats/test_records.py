"""JSON Lines, Parquet and text have one reader.

It reads the files that programs write, not only those that the standards allow.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from owt_pipeline.errors import UserError
from owt_pipeline.formats.dates import UnreadDates
from owt_pipeline.formats.parquet import bounded_batches
from owt_pipeline.formats.records import Record, parse_json, read_records
from owt_pipeline.library import near_duplicates
from owt_pipeline.stages.clean.contamination import texts_of
from owt_pipeline.stages.collect.submissions import Submission, decode
from owt_pipeline.stages.import_text.splits import held_out_files
from owt_pipeline.storage.folder import open_source

LENIENT = [
    (rb'{"text": "cut \ud83d"}', {"text": "cut ?"}),
    (rb'{"text": "\udc00 half", "other": {"\ud800": 1}}', {"text": "? half", "other": {"?": 1}}),
    (
        rb'{"text": "pair \ud83d\ude00 and \ud83d", "x": [NaN]}',
        {"text": "pair \N{GRINNING FACE} and ?", "x": [...]},
    ),
    (b'{"text": "a", "score": NaN}', {"text": "a", "score": ...}),
    (b'{"text": "a", "score": -Infinity}', {"text": "a", "score": ...}),
    (b'{"text": "a", "score": 1e999}', {"text": "a", "score": ...}),
]


def written(path: Path, content: bytes) -> Path:
    """Write a file; return its path."""
    path.write_bytes(content)
    return path


@pytest.mark.parametrize(("line", "expected"), LENIENT)
def test_surrogates_and_values_like_nan_lose_no_document(
    tmp_path: Path, line: bytes, expected: dict
) -> None:
    value = parse_json(line)
    assert value.keys() == expected.keys()
    assert value["text"] == expected["text"]
    path = written(tmp_path / "a.jsonl", line + b"\n" + b'{"text": "next"}\n')
    (first, second) = read_records(str(path), "a", "jsonl", columns=())
    assert first.fields is not None
    assert first.fields["text"] == expected["text"]
    assert second == Record("a:2", {"text": "next"})
    assert next(iter(texts_of(str(path))))[0] == expected["text"]
    assert near_duplicates(path).num_rows == 0
    submission = decode(line.replace(b"text", b"title"))
    assert isinstance(submission, Submission)
    assert submission.title == expected["text"]


@pytest.mark.parametrize(
    "line", [b"{'a': 1}", b'{"a": 1', b"[" * 100_000, b'{"a": nan}', b'{"a": "\xff"}']
)
def test_invalid_json_is_a_record_with_its_place(tmp_path: Path, line: bytes) -> None:
    path = written(tmp_path / "a.jsonl", b'{"a": 2}\n' + line)
    *_, last = read_records(str(path), "a", "jsonl", columns=())
    assert (last.where, last.fields) == ("a:2", None)
    assert last.problem


# The second string is not UTF-8.
STRINGS = pa.array([b"one", b"bad \xff\xfe", b"three"], pa.binary()).view(pa.string())
GOOD = pa.array(["a", "b", "c"])
OFFSETS = pa.array([0, 1, 2, 3], pa.int32())
INVALID = {
    "text": {"text": STRINGS},
    "large": {"text": STRINGS.view(pa.binary()).cast(pa.large_binary()).view(pa.large_string())},
    "another column": {"text": GOOD, "title": STRINGS},
    "in a struct": {"text": GOOD, "meta": pa.StructArray.from_arrays([STRINGS], ["url"])},
    "in a list": {"text": GOOD, "tags": pa.ListArray.from_arrays(OFFSETS, STRINGS)},
    "in a dictionary": {"text": pa.DictionaryArray.from_arrays(OFFSETS[:3], STRINGS)},
}


@pytest.mark.parametrize("kind", INVALID)
def test_a_string_of_parquet_that_is_not_utf8_is_an_error(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table(INVALID[kind]), path)
    column = list(INVALID[kind])[-1]
    message = rf"a\.parquet cannot be read as Parquet: column {column}, rows 1 to 3: .*UTF"
    with pytest.raises(UserError, match=message):
        list(read_records(str(path), "a", "parquet", columns=None))
    if column == "text":
        with pytest.raises(ValueError, match=message):
            near_duplicates(path)
    pq.write_table(pa.table({**INVALID[kind], column: GOOD}), path)
    assert len(list(read_records(str(path), "a", "parquet", columns=None))) == 3


def test_a_time_that_python_does_not_have_is_an_error_in_a_structure(tmp_path: Path) -> None:
    times = pa.array([1 << 50], pa.timestamp("s"))
    nested = pa.StructArray.from_arrays([times], ["at"])
    for name, column in (("in", nested), ("at", times.cast(pa.timestamp("s", "Mars/Olympus")))):
        pq.write_table(pa.table({"text": ["a"], name: column}), tmp_path / "a.parquet")
        with pytest.raises(UserError, match=r"a\.parquet cannot be read as Parquet: "):
            list(read_records(str(tmp_path / "a.parquet"), "a", "parquet", columns=None))


@pytest.mark.parametrize(
    "content",
    [
        '[\n {"text": "a"},\n {"text": "b"}\n]',
        '[{"text": "a"}, {"text": "b"}]',
        '[{"text": "a"},\n{"text": "b"}]',
        '{\n "text": "a"\n}\n{\n "text": "b"\n}\n',
        '\ufeff\n{"text": "a",\n "x": 1}\n{"text": "b", "x": 2}\n',
    ],
)
def test_json_that_is_not_an_object_a_line_is_refused(tmp_path: Path, content: str) -> None:
    path = written(tmp_path / "a b.json", content.encode())
    with pytest.raises(UserError, match="expected JSON Lines") as error:
        list(read_records(str(path), "a", "jsonl", columns=()))
    if shutil.which("jq") and not content.startswith("\ufeff"):
        (command,) = re.findall(r"\((jq .*)\)", str(error.value))
        subprocess.run(command, shell=True, check=True)
        records = read_records(str(tmp_path / "a b-lines.jsonl"), "a", "jsonl", columns=())
        assert [record.fields["text"] for record in records if record.fields] == ["a", "b"]


def test_splits_next_to_a_training_split_are_held_out() -> None:
    def held_out(*names: str, patterns: tuple[str, ...] = ("in",)) -> list[str]:
        return held_out_files(patterns, {name: name for name in names})

    assert held_out("data/train-0.parquet", "data/test-0.parquet") == ["data/test-0.parquet"]
    assert held_out("train/0.jsonl", "validation/0.jsonl", "x.jsonl") == ["validation/0.jsonl"]
    names = [f"{name}.jsonl" for name in ("held_out", "hold-out", "holdout", "devtest", "testset")]
    assert held_out("trainset.jsonl", *names) == names
    assert held_out("train.jsonl", "held.jsonl", "cash-out.jsonl", "attest.jsonl") == []
    assert held_out("test.jsonl", "posts.jsonl") == []
    assert held_out("train.jsonl", "contest.jsonl", "latest-train.jsonl") == []
    assert held_out("train.jsonl", "dev.jsonl", patterns=("train.jsonl", "dev.jsonl")) == []


@pytest.mark.parametrize(
    ("kind", "value", "expected"),
    [
        (pa.timestamp("ns"), 1714557600123456789, "2024-05-01"),
        (pa.timestamp("ns", "Europe/Berlin"), 1714598000123456789, "2024-05-01"),
        (pa.timestamp("s"), 1 << 50, None),
        (pa.timestamp("us"), -(1 << 62), None),
        (pa.date32(), 4_000_000, None),
        (pa.date32(), 19844, "2024-05-01"),
        (pa.time64("ns"), 5, None),
    ],
)
def test_a_date_is_one_of_any_unit_or_none(
    tmp_path: Path, kind: pa.DataType, value: int, expected: str | None
) -> None:
    from owt_pipeline.stages.import_text.documents import FIELDS, place

    dates = pa.array([value], pa.int32() if kind == pa.date32() else pa.int64()).view(kind)
    pq.write_table(pa.table({"text": ["a"], "date": dates}), tmp_path / "a.parquet")
    (record,) = read_records(str(tmp_path / "a.parquet"), "a", "parquet", columns=None)
    names = {field: field for field in FIELDS}
    assert place(record, names, UnreadDates())["date"] == expected


@pytest.mark.parametrize("end", ["\n", "\r\n"])
@pytest.mark.parametrize("inside", ["\u2028", "\u2029", "\x85", "\x0c", "\x0b", "\x1c"])
def test_only_newlines_end_a_line_of_an_evaluation_set(
    tmp_path: Path, inside: str, end: str
) -> None:
    texts = [f"Which river{inside}flows here", "and the next"]
    path = written(tmp_path / "set.txt", end.join(texts).encode())
    assert list(texts_of(str(path))) == [[text] for text in texts]
    path = written(
        tmp_path / "set.jsonl",
        end.join(json.dumps({"q": t}, ensure_ascii=False) for t in texts).encode(),
    )
    assert list(texts_of(str(path))) == [[text] for text in texts]


@pytest.mark.parametrize("name", ["a.jsonl.gz", "a.txt.zst", "A.JSON.XZ", "a.jsonl.bz2"])
def test_a_compressed_file_of_no_bytes_is_an_error(tmp_path: Path, name: str) -> None:
    with pytest.raises(UserError, match="has no bytes"):
        list(read_records(str(written(tmp_path / name, b"")), "a", "jsonl", columns=()))


def test_long_texts_of_parquet_come_in_bounded_batches(tmp_path: Path) -> None:
    texts = [f"{number} " + "x" * 3_000_000 for number in range(20)]
    path = tmp_path / "texts.parquet"
    pq.write_table(pa.table({"text": texts}), path)
    with open_source(str(path)) as source:
        batches = list(bounded_batches(pq.ParquetFile(source), ["text"]))
    assert sum(batch.num_rows for batch in batches) == 20
    assert max(batch.nbytes for batch in batches) < 8 << 20


def test_short_repeated_texts_of_parquet_come_in_large_batches(tmp_path: Path) -> None:
    path = tmp_path / "texts.parquet"
    pq.write_table(pa.table({"text": ["a text", "another"] * 320}), path)
    with open_source(str(path)) as source:
        batches = list(bounded_batches(pq.ParquetFile(source), ["text"]))
    assert [batch.num_rows for batch in batches] == [64] * 10


def test_many_columns_with_dictionaries_come_in_large_batches(tmp_path: Path) -> None:
    path = tmp_path / "wide.parquet"
    values = [f"{number:04d} " + "y" * 900 for number in range(640)]
    names = [f"column_{number}" for number in range(80)]
    pq.write_table(pa.table(dict.fromkeys(names, values)), path)
    with open_source(str(path)) as source:
        batches = list(bounded_batches(pq.ParquetFile(source), names))
    assert len(batches) < 30
