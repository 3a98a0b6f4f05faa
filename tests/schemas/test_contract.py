"""The contract: documented fields, manifests that read back, and a reference that is not stale."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from schemas import DATASETS, REJECTS, Reason
from schemas.datasets import is_validation
from schemas.manifest import (
    Counts,
    FileList,
    FileTable,
    Manifest,
    ManifestError,
    Root,
    ShardFile,
    ShardRecord,
    Total,
)
from schemas.reasons import http_reason
from schemas.reference import data_reference
from tests.conftest import REPOSITORY

names = st.text("abcdefghij_/.-0123456789", min_size=1, max_size=12)
digests = st.text("0123456789abcdef", min_size=64, max_size=64)
counts = st.builds(
    lambda left, rejected: Counts(left + sum(rejected.values()), left, rejected),
    st.integers(0, 1000),
    st.dictionaries(names, st.integers(0, 1000)),
)
numbers = st.integers(0, 2**62)


@st.composite
def file_tables(draw: st.DrawFn) -> FileTable:
    """Draw the files of a few shards, at least one of each, and of the complete dataset."""
    paths = draw(st.lists(names, min_size=1, max_size=12, unique=True))
    files = [
        ShardFile(
            path,
            draw(st.sampled_from(["data", "rejects", "warc"])),
            shard,
            *[draw(numbers)] * 2,
            draw(digests),
        )
        for path, shard in zip(paths, sorted(draw(st.integers(-1, 3)) for _ in paths), strict=True)
    ]
    shards = sorted({file.shard for file in files} - {-1})
    return FileTable(
        [
            ShardRecord(
                shard,
                draw(counts),
                [file for file in files if file.shard == shard],
                draw(st.dictionaries(names, numbers)),
                draw(digests),
            )
            for shard in shards
        ],
        [file for file in files if file.shard == -1],
    )


def test_every_field_and_every_reason_is_described() -> None:
    for schema in [REJECTS, *(dataset.schema for dataset in DATASETS.values())]:
        for field in schema:
            assert len(field.metadata[b"description"].decode()) > 5, field.name
    for reason in Reason:
        assert reason.stage
        assert reason.description
        assert Reason.of(str(reason)) is reason


def test_the_data_reference_is_not_stale() -> None:
    written = (REPOSITORY / "docs" / "data.md").read_text()
    assert written == data_reference(), "run: python -m schemas.reference > docs/data.md"


STATUSES = {
    404: Reason.HTTP_404,
    418: Reason.HTTP_4XX,
    503: Reason.HTTP_503,
    599: Reason.HTTP_5XX,
    304: "http_other",
}


def test_an_http_status_has_a_reason() -> None:
    assert {status: http_reason(status) for status in STATUSES} == STATUSES


@given(file_tables())
def test_a_list_of_files_reads_back_as_it_was_written(table: FileTable) -> None:
    content = table.to_parquet()
    assert content == table.to_parquet()
    read = FileTable.from_parquet(content, "files.parquet")
    assert read.files == table.files == sorted_by_path(table.files)
    assert (read.digest, read.totals) == (table.digest, table.totals)
    for record, original in zip(read.records, table.records, strict=True):
        assert record == replace(original, files=sorted_by_path(original.files))
    assert read.assets == sorted_by_path(table.assets)


def sorted_by_path(files: list[ShardFile]) -> list[ShardFile]:
    """Return files in the order of their paths."""
    return sorted(files, key=lambda file: file.path)


def a_manifest(**changes: object) -> Manifest:
    """Return a manifest of clean with some fields changed."""
    manifest = Manifest(
        dataset="clean",
        stage="clean",
        stage_version=1,
        num_shards=1,
        counts=Counts(3, 2, {"too_short": 1}),
        totals={"data": Total(1, 2, 3)},
        files=FileList("ledger/clean/files-00000000.parquet", 3, "0" * 64, 1),
        digest="1" * 64,
    )
    return replace(manifest, **changes)


def a_root(**changes: object) -> Root:
    """Return a root with one manifest, with some of its fields changed."""
    return Root(datasets={"clean": a_manifest(**changes)})


@given(
    counts,
    st.dictionaries(names, numbers),
    st.dictionaries(names, st.lists(numbers) | names | st.booleans()),
)
def test_a_manifest_and_a_record_read_back_as_they_were_written(
    of_stage: Counts, stats: dict[str, int], options: dict[str, object]
) -> None:
    root = a_root(counts=of_stage, stats=stats, options=options)
    assert Root.from_json(root.to_json()) == root
    record = ShardRecord(
        7, of_stage, [ShardFile("clean/part-00007.parquet", "data", 7, 1, 1, "0" * 64)], stats
    )
    assert ShardRecord.from_json(record.to_json()) == record


def test_a_manifest_whose_sum_is_wrong_is_not_written() -> None:
    with pytest.raises(ManifestError, match="3 in ≠ 1 out"):
        a_root(counts=Counts(3, 1, {"too_short": 1})).to_json()


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        (b'{"schema_version": 1}', r"manifest.json has schema version 1, .*use the release that"),
        (b'{"schema_version": 99}', r"manifest.json has schema version 99, .*use the release that"),
        (a_root().to_json().replace(b'"too_short"', b'"too_long"'), "changed by hand"),
        *(
            (text, r"manifest\.json is damaged")
            for text in (b"", b"[]", b'{"schema_version": 3}', b"\x00", b"\xff")
        ),
    ],
)
def test_another_file_is_refused_as_a_manifest(changed: bytes, message: str) -> None:
    with pytest.raises(ManifestError, match=message):
        Root.from_json(changed)


RECORD = ShardRecord(0, Counts(3, 2, {"too_short": 1}), [ShardFile("a", "data", 0, 1, 1, "0" * 64)])


@pytest.mark.parametrize("sealed", [a_root(), RECORD], ids=["root", "record"])
@given(data=st.data())
def test_a_changed_byte_of_a_manifest_or_a_record_is_noticed(
    sealed: Root | ShardRecord, data: st.DataObject
) -> None:
    content = bytearray(sealed.to_json())
    content[data.draw(st.integers(0, len(content) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    with pytest.raises(ManifestError):
        sealed.from_json(bytes(content))
    with pytest.raises(ManifestError):
        sealed.from_json(bytes(content[: data.draw(st.integers(0, len(content) - 1))]))


IDS = st.lists(st.integers(0, 2**64 - 1), max_size=50)


@given(IDS, IDS, st.floats(0, 1), st.floats(0, 1))
def test_a_document_never_moves_out_of_validation(
    ids: list[int], other_ids: list[int], fraction: float, other_fraction: float
) -> None:
    all_ids = np.array(other_ids + ids, np.uint64)
    smaller = min(fraction, other_fraction)
    in_smaller = is_validation(all_ids, smaller)
    in_larger = is_validation(all_ids, max(fraction, other_fraction))
    assert not (in_smaller & ~in_larger).any()
    # The decision about a document does not depend on the other documents.
    without_others = is_validation(np.array(ids, np.uint64), smaller)
    assert without_others.tolist() == in_smaller[len(other_ids) :].tolist()


def test_the_fraction_is_met_for_ids_of_any_kind() -> None:
    num_ids = 200_000
    deviation = (0.01 * 0.99 / num_ids) ** 0.5
    numbers_from_0 = np.arange(num_ids)
    for ids in (numbers_from_0, numbers_from_0 << 32, numbers_from_0 * 64 + 5):
        share = is_validation(ids.astype(np.uint64), 0.01).mean()
        assert abs(share - 0.01) < 4 * deviation
    assert not is_validation(np.arange(num_ids, dtype=np.uint64), 0.0).any()
    assert is_validation(np.arange(num_ids, dtype=np.uint64), 1.0).all()
