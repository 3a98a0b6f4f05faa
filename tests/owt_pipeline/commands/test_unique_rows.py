"""`owt near-duplicates --unique` copies files without the records that repeat another."""

from __future__ import annotations

import bz2
import gzip
import json
import lzma
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard

from owt_pipeline.commands import near_duplicates
from owt_pipeline.formats.records import read_records

TEXTS = [
    f"Entry {number} of the log speaks of {animal}, and of nothing that another entry speaks of."
    for number, animal in enumerate(["a heron", "an otter", "two mice", "the fox", "no birds"])
]


def lines(texts: list[str], line_end: str = "\n") -> bytes:
    """Return texts as JSON lines."""
    return "".join(json.dumps({"text": text}) + line_end for text in texts).encode()


def find(*arguments: object) -> int:
    """Run the command on files with short texts, in this process."""
    return near_duplicates.main([*map(str, arguments), "--workers", "1", "--quiet"])


def files_below(folder: Path) -> list[str]:
    """Return the paths of the files below a folder, relative to it."""
    return sorted(
        path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()
    )


def test_kept_lines_are_copied_byte_for_byte(tmp_path: Path) -> None:
    content = b"\xef\xbb\xbf" + lines(TEXTS[:2], "\r\n") + b"\n" + lines([TEXTS[0]])
    last = b'{ "text" : "%s", "n": 1.50 }' % TEXTS[2].encode()
    (tmp_path / "a.jsonl").write_bytes(content + last)
    assert find(tmp_path / "a.jsonl", "--unique", tmp_path / "out") == 0
    expected = b"\xef\xbb\xbf" + lines(TEXTS[:2], "\r\n") + b"\n" + last
    assert (tmp_path / "out" / "a.jsonl").read_bytes() == expected


@pytest.mark.parametrize(
    ("ending", "compress", "decompress"),
    [
        ("gz", gzip.compress, gzip.decompress),
        ("bz2", bz2.compress, bz2.decompress),
        ("xz", lzma.compress, lzma.decompress),
        ("zst", zstandard.compress, lambda data: zstandard.ZstdDecompressor().decompressobj().decompress(data)),
    ],
)  # fmt: skip
def test_copies_are_compressed_as_their_names_declare(
    tmp_path: Path,
    ending: str,
    compress: Callable[[bytes], bytes],
    decompress: Callable[[bytes], bytes],
) -> None:
    name = f"a.jsonl.{ending}"
    (tmp_path / name).write_bytes(compress(lines([TEXTS[0], TEXTS[1], TEXTS[0]])))
    assert find(tmp_path / name, "--unique", tmp_path / "out") == 0
    assert decompress((tmp_path / "out" / name).read_bytes()) == lines(TEXTS[:2])


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
    assert find(tmp_path / "a.parquet", "--unique", tmp_path / "out") == 0
    copy = pq.read_table(tmp_path / "out" / "a.parquet")
    assert copy.schema.equals(pq.read_schema(tmp_path / "a.parquet"), check_metadata=True)
    assert copy.schema.metadata == {b"source": b"a program"}
    assert copy.to_pylist() == [table.to_pylist()[number] for number in (0, 1, 3)]


def test_each_input_has_one_copy_also_without_rows(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "in"
    (folder / "b").mkdir(parents=True)
    (folder / "a.jsonl").write_bytes(lines(TEXTS[:3]))
    (folder / "b" / "a.jsonl").write_bytes(lines([TEXTS[1], TEXTS[3]]))
    pq.write_table(pa.table({"text": [TEXTS[0], None]}), folder / "c.parquet")
    (folder / "d.jsonl").write_bytes(lines(TEXTS[2:3]))
    out = tmp_path / "out"
    pairs = tmp_path / "pairs.parquet"
    assert find(folder, "--unique", out, "--out", pairs) == 0
    assert f"{out}: 5 records in 4 files" in capsys.readouterr().out
    assert files_below(out) == files_below(folder)
    assert (out / "a.jsonl").read_bytes() == lines(TEXTS[:3])
    assert (out / "b" / "a.jsonl").read_bytes() == lines(TEXTS[3:4])
    assert pq.read_table(out / "c.parquet")["text"].to_pylist() == [None]
    assert (out / "d.jsonl").read_bytes() == b""
    num_removed = len(pq.read_table(pairs))
    num_left = 0
    for kind in ("jsonl", "parquet"):
        for path in out.rglob(f"*.{kind}"):
            num_left += len(list(read_records(str(path), path.name, kind, columns=None)))
    assert (num_removed, num_left) == (3, 5)


def test_nothing_hidden_stays_in_the_folders(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("a.jsonl").write_bytes(lines([TEXTS[0], TEXTS[0]]))
    assert find("a.jsonl", "--out", "pairs.parquet", "--unique", "out") == 0
    assert sorted(path.name for path in tmp_path.rglob("*")) == [
        "a.jsonl",
        "a.jsonl",
        "out",
        "pairs.parquet",
    ]


def test_inputs_are_never_replaced(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "in"
    folder.mkdir()
    file = folder / "a.jsonl"
    file.write_bytes(lines([TEXTS[0], TEXTS[0]]))
    (tmp_path / "link").symlink_to(folder)
    (tmp_path / "hard").mkdir()
    (tmp_path / "hard" / "a.jsonl").hardlink_to(file)
    (tmp_path / "soft").mkdir()
    (tmp_path / "soft" / "a.jsonl").symlink_to(file)
    for out in (folder, f"{folder}/", f"{folder}/../in", tmp_path / "link", tmp_path / "hard",
                tmp_path / "soft", file):  # fmt: skip
        assert find(folder, "--unique", out) == 2, out
        assert "name another one" in capsys.readouterr().err
    # The copies of an earlier run are inputs of the next, which would write over them.
    assert find(folder, "--unique", folder / "out") == 0
    assert find(folder, "--unique", folder / "out") == 2
    assert file.read_bytes() == lines([TEXTS[0], TEXTS[0]])


def test_pairs_and_copies_must_not_share_a_name(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pq.write_table(pa.table({"text": TEXTS}), tmp_path / "a.parquet")
    out = tmp_path / "out"
    assert find(tmp_path / "a.parquet", "--unique", out, "--out", out / "a.parquet") == 2
    assert "would replace a file that --unique writes" in capsys.readouterr().err
    assert not out.exists()


@pytest.mark.parametrize("name", ["a.csv", "a.tsv.gz", "a.txt"])
def test_other_formats_are_refused_before_any_work(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    (tmp_path / name).write_text("not read")
    assert find(tmp_path / name, "--unique", tmp_path / "out") == 2
    message = capsys.readouterr().err
    assert "--unique writes JSON Lines and Parquet" in message
    assert name in message
    assert not (tmp_path / "out").exists()


@pytest.mark.slow
def test_long_parquet_files_are_copied_in_batches(tmp_path: Path) -> None:
    texts = [f"{number} " + "x" * 1_000_000 for number in range(40)]
    table = pa.table({"text": [*texts, *texts[:3]]})
    pq.write_table(table, tmp_path / "a.parquet")
    assert find(tmp_path / "a.parquet", "--unique", tmp_path / "out") == 0
    copy = pq.ParquetFile(tmp_path / "out" / "a.parquet")
    assert copy.num_row_groups > 1
    assert copy.read()["text"].to_pylist() == texts
