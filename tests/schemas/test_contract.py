"""The contract's promises: documented fields, a manifest that reads back, a reference that is not stale."""

from __future__ import annotations

import dataclasses
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from schemas import DATASETS, REJECTS, Counts, Manifest, ManifestError, Reason, ShardFile
from schemas.reasons import http_reason
from schemas.reference import data_reference
from tests.conftest import REPOSITORY

names = st.text("abcdefghij_/.-0123456789", min_size=1, max_size=12)
files = st.builds(ShardFile, names, st.sampled_from(["data", "rejects"]), st.integers(0, 9), *[st.integers(0, 9)] * 2)


def test_every_field_of_every_dataset_is_described() -> None:
    for schema in [REJECTS, *(dataset.schema for dataset in DATASETS.values())]:
        for field in schema:
            assert len(field.metadata[b"description"].decode()) > 5, field.name


def test_the_data_reference_is_not_stale() -> None:
    written = (REPOSITORY / "docs" / "data.md").read_text()
    assert written == data_reference(), "run: python -m schemas.reference > docs/data.md"


def test_every_reason_belongs_to_a_stage_and_is_described() -> None:
    for reason in Reason:
        assert reason.stage
        assert reason.description
        assert Reason.of(reason.value) is reason
        assert str(reason) == reason.value


@pytest.mark.parametrize(
    ("status", "reason"),
    [
        (404, Reason.HTTP_404),
        (418, Reason.HTTP_4XX),
        (503, Reason.HTTP_503),
        (599, Reason.HTTP_5XX),
        (304, "http_other"),
    ],
)
def test_an_http_status_has_a_reason(status: int, reason: str) -> None:
    assert http_reason(status) == reason


@given(
    st.lists(st.tuples(names, st.integers(0, 99), st.text("0123456789abcdef", min_size=8, max_size=8))),
    st.dictionaries(names, st.integers(0, 1000)),
    st.integers(0, 1000),
)
def test_a_manifest_reads_back_as_it_was_written(
    entries: list[tuple[str, int, str]], rejected: dict[str, int], left: int
) -> None:
    manifest = Manifest(
        dataset="clean",
        stage="clean",
        stage_version=1,
        fingerprint="f" * 64,
        num_shards=2,
        counts=Counts(left + sum(rejected.values()), left, rejected),
        files=[ShardFile(path, "data", 0, rows, rows, sha) for path, rows, sha in entries],
    )
    assert Manifest.from_json(manifest.to_json()) == manifest


def a_manifest(**changes: object) -> Manifest:
    manifest = Manifest("clean", "clean", 1, "f", 1, Counts(3, 2, {"too_short": 1}))
    return dataclasses.replace(manifest, **changes)  # type: ignore[arg-type]


def test_a_manifest_whose_sum_does_not_hold_is_not_written() -> None:
    with pytest.raises(ManifestError, match="3 in ≠ 1 out"):
        a_manifest(counts=Counts(3, 1, {"too_short": 1})).to_json()


def test_a_manifest_of_another_schema_version_is_refused_with_what_to_do() -> None:
    record = json.loads(a_manifest().to_json()) | {"schema_version": 99}
    with pytest.raises(ManifestError, match=r"schema version 99.*delete the folder to make it anew"):
        Manifest.from_json(json.dumps(record), "clean/manifest.json")


def test_a_manifest_changed_by_hand_is_refused() -> None:
    record = json.loads(a_manifest(files=[ShardFile("a", "data", 0, 1, 1, "00")]).to_json())
    record["files"][0]["sha256"] = "11"
    with pytest.raises(ManifestError, match="changed by hand"):
        Manifest.from_json(json.dumps(record))


@pytest.mark.parametrize("text", ["", "{}", "[]", '{"schema_version": 1}', "\x00"])
def test_what_is_no_manifest_is_refused(text: str) -> None:
    with pytest.raises(ManifestError, match="not a manifest"):
        Manifest.from_json(text)
