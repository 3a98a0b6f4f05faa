"""Reading single rows of a dataset by their ids."""

from __future__ import annotations

import errno
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from owt_pipeline.errors import UserError
from owt_pipeline.ledger.dataset import DatasetReader, _file_table
from owt_pipeline.storage.folder import Storage
from schemas.manifest import ShardFile

# Above the range of signed integers.
BIG = (1 << 64) - 1
IDS = [5, 9, BIG, 5, 7, 2]
ROWS = pa.table({"url_id": pa.array(IDS, pa.uint64()), "text": list("abcdef")})


class ReaderOfOneFile(DatasetReader):
    """A reader of a shard that consists of one file."""

    def __init__(self, folder: Path, name: str):
        self.workdir = Storage(str(folder))
        self._file = ShardFile(name, "data", 0, len(IDS), (folder / name).stat().st_size, "")

    def files(self, kind: str, shard: int | None = None) -> list[ShardFile]:
        return [self._file] if (kind, shard) == ("data", 0) else []


@pytest.fixture(params=["parquet", "arrow"])
def reader(request: pytest.FixtureRequest, tmp_path: Path) -> ReaderOfOneFile:
    """Return a reader of IDS in row groups of two rows."""
    name = f"rows.{request.param}"
    if request.param == "parquet":
        pq.write_table(ROWS, tmp_path / name, row_group_size=2)
    else:
        with pa.ipc.new_file(tmp_path / name, ROWS.schema) as file:
            file.write_table(ROWS, max_chunksize=2)
    return ReaderOfOneFile(tmp_path, name)


@pytest.mark.parametrize(
    ("ids", "rows"),
    [
        ([5], {0: "a", 3: "d"}),
        ([BIG, 2], {2: "c", 5: "f"}),
        ([1, 3], {}),
        ([], {}),
        (IDS, dict(enumerate("abcdef"))),
    ],
)
def test_rows_are_found_by_id_in_every_row_group(
    reader: ReaderOfOneFile, ids: list[int], rows: dict[int, str]
) -> None:
    located = list(reader.rows_by_id(0, ids))
    assert {row.number: row.row["text"] for row in located} == rows
    assert [row.row["url_id"] for row in located] == [IDS[number] for number in rows]


def test_rows_by_id_have_the_requested_columns(reader: ReaderOfOneFile) -> None:
    (row,) = reader.rows_by_id(0, [7], columns=["text"])
    assert row.row == {"text": "e"}
    assert not list(reader.rows_by_id(0, [7], kind="rejects"))


def test_a_damaged_file_is_an_error_that_names_verify(reader: ReaderOfOneFile) -> None:
    path = Path(reader.workdir.path(reader.files("data", 0)[0].path))
    path.write_bytes(b"damaged")
    with pytest.raises(UserError, match=r"owt verify .* --repair"):
        list(reader.rows_by_id(0, [7]))


def test_a_list_of_files_that_cannot_be_opened_is_not_told_as_a_lost_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    error = OSError(errno.EMFILE, "Too many open files")
    monkeypatch.setattr(Storage, "read", lambda self, path: (_ for _ in ()).throw(error))
    with pytest.raises(OSError, match="Too many open files"):
        _file_table(Storage(str(tmp_path)), "files-1.parquet", "", "repair it")
