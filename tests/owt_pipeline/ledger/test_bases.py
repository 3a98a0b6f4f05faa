"""A chain of runs: pinned by its manifests, followed from the oldest, and refused where it is not what it was."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path

import pytest

from owt_pipeline.errors import UserError
from owt_pipeline.ledger.bases import (
    begin_revision,
    dependents_of,
    described,
    end_revision,
    folders_of_chain,
    open_chain,
    pin,
    read_pinned,
)
from owt_pipeline.storage.folder import Storage
from tests.owt_pipeline.making import publish_rows
from tests.servers.s3 import s3_bucket


def make(workdir: Storage, dataset: str, rows: int) -> None:
    reads = {"urls": ("clean",), "duplicates": ("clean", "duplicates"), "corpus": ("forgotten.jsonl",)}
    sources = described(open_chain(workdir), reads.get(dataset, ()))
    if dataset == "corpus" and workdir.exists("forgotten.jsonl"):
        sources.append({"name": "forgotten.jsonl", "sha256": workdir.sha256("forgotten.jsonl")})
    publish_rows(workdir, dataset, [{"url_id": number} for number in range(rows)], sources=sources)


def month(folder: Storage, rows: int = 3, bases: Sequence[Storage] = ()) -> Storage:
    """A finished run, as far as a base needs it."""
    pin(folder, [base.uri for base in bases])
    for dataset in ("clean", "duplicates", "corpus"):
        make(folder, dataset, rows)
    return folder


@pytest.fixture
def runs(tmp_path: Path) -> Storage:
    return Storage(str(tmp_path))


def test_a_chain_is_followed_from_the_oldest_run_each_once(runs: Storage) -> None:
    first = month(runs / "1")
    second, other = month(runs / "2", bases=[first]), month(runs / "other", bases=[first])
    month(runs / "3", bases=[second, other])
    chain = open_chain(runs / "3")
    assert [base.name for base in chain] == ["1", "2", "other"]
    assert [base.uri for base in folders_of_chain(runs / "3")] == [base.workdir.uri for base in chain]
    assert [base.reader("clean").rows() for base in chain] == [3, 3, 3]
    assert [dependent.uri for dependent in dependents_of(first)] == [f"{runs}/2", f"{runs}/other", f"{runs}/3"]
    assert open_chain(first) == ()


def test_a_chain_can_be_moved_as_one(runs: Storage, tmp_path: Path) -> None:
    month(runs / "all/2", bases=[month(runs / "all/1")])
    shutil.move(tmp_path / "all", tmp_path / "moved")
    assert [base.workdir.uri for base in open_chain(runs / "moved/2")] == [f"{runs}/moved/1"]


def test_what_a_stage_reads_of_its_bases_is_in_its_fingerprint(runs: Storage) -> None:
    month(runs / "2", bases=[month(runs / "1")])
    (source,) = described(open_chain(runs / "2"), ("urls", "clean", "forgotten.jsonl"))
    clean = (runs / "1").read("ledger/clean/manifest.json")
    assert source == {
        "kind": "base", "name": "1", "clean": open_chain(runs / "2")[0].manifests["clean"].digest, "forgotten.jsonl": ""
    }  # fmt: skip
    assert source["clean"].encode() in clean
    with pytest.raises(UserError, match=r"base .*/1 has no finished tokens/: run `owt tokenize"):
        described(open_chain(runs / "2"), ("tokens",))


def test_a_base_that_has_changed_is_refused_with_what_changed(runs: Storage) -> None:
    month(runs / "2", bases=[month(runs / "1")])
    make(runs / "1", "clean", 4)
    for look in (open_chain, lambda run: pin(run, [])):
        with pytest.raises(UserError, match=r"has changed since: clean/ has other files \(3 rows then, 4 now\)"):
            look(runs / "2")
    (runs / "2").delete("bases.json")
    assert open_chain(runs / "2") == ()


def test_a_dataset_that_a_base_gets_later_is_pinned_too(runs: Storage) -> None:
    month(runs / "2", bases=[month(runs / "1")])
    make(runs / "1", "urls", 5)
    assert "urls" not in open_chain(runs / "2")[0].manifests
    assert pin(runs / "2", [])[0].manifests["urls"].counts.left == 5


def test_a_revision_is_accepted_by_each_dependent_in_turn(runs: Storage) -> None:
    first = month(runs / "1")
    second = month(runs / "2", bases=[first])
    third = month(runs / "3", bases=[second])
    for number, why in enumerate(("notice 7", "notice 8")):
        begin_revision(first, why)
        first.write("forgotten.jsonl", f"{number}".encode())
        end_revision(first)  # as a command that is none of the revision's does
        with pytest.raises(
            UserError, match=r"1 is not finished: its forgotten.jsonl has changed since corpus/ was made"
        ):
            open_chain(second)
        begin_revision(first, "a killed one continues")
        make(first, "corpus", 2 - number)
        with pytest.raises(
            UserError, match=rf"1 is not finished: a revision has begun \(notice {7 + number}\); finish"
        ):
            pin(second, [])
        end_revision(first)
    with pytest.raises(UserError, match=r"/1, a base of .*/2, was revised \(notice 7; notice 8\): run `owt run` for"):
        open_chain(second)
    with pytest.raises(UserError, match=r"base of .*/2, was revised"):
        pin(third, [])
    pin(second, [])
    make(second, "corpus", 2)
    end_revision(second)
    assert [base.manifests["corpus"].counts.left for base in open_chain(second)] == [1]
    pin(third, [])
    assert [base.manifests["corpus"].counts.left for base in open_chain(third)] == [1, 2]


def test_a_list_of_takedowns_edited_by_hand_is_a_revision_too(runs: Storage) -> None:
    first = month(runs / "1")
    second = month(runs / "2", bases=[first])
    first.write("forgotten.jsonl", b"1")
    pin(first, [])  # as each command that makes something does
    make(first, "corpus", 2)
    end_revision(first)
    with pytest.raises(UserError, match=r"was revised \(forgotten.jsonl was edited\): run `owt run` for"):
        open_chain(second)
    pin(second, [])
    assert open_chain(second)[0].manifests["corpus"].counts.left == 2


def test_what_cannot_be_a_base_is_refused_in_one_line(runs: Storage, tmp_path: Path) -> None:
    first = month(runs / "1")
    second = month(runs / "2", bases=[first])
    make(runs / "begun", "clean", 1)
    month(runs / "old")
    manifest = tmp_path / "old/ledger/clean/manifest.json"
    manifest.write_text(manifest.read_text().replace('"schema_version": 2', '"schema_version": 1'))
    month(runs / "stale", rows=4)
    for run, base, message in (
        (runs / "x", runs / "x", r"is the run itself"),
        (
            runs / "x",
            runs / "nowhere",
            r"nowhere is not a run: .*; where the base was moved, give --base with its new place",
        ),
        (runs / "x", runs / "begun", r"begun is not finished: it has no duplicates/; finish it"),
        (runs / "x", runs / "old", r"base .*old cannot be used: .* schema version 1"),
        (first, second, r"--base .*2 builds on .*1 itself: a chain of runs cannot be a circle"),
        (second, runs / "stale", r"2 builds on .*1, not on .*stale: give the same --base"),
    ):
        with pytest.raises(UserError, match=message):
            pin(run, [base.uri])
    assert not read_pinned(runs / "x")
    first.write("bases.json", second.read("bases.json").replace(b"../1", b"../2"))
    with pytest.raises(UserError, match=r"bases.json is damaged"):
        open_chain(second)


def test_a_chain_in_a_bucket_is_followed_as_on_a_disk() -> None:
    with s3_bucket() as bucket:
        runs = Storage(bucket)
        second = month(runs / "2", bases=[month(runs / "1")])
        assert [base.uri for base in read_pinned(second)] == ["../1"]
        assert [base.workdir.uri for base in open_chain(second)] == [f"{bucket}/1"]
        assert [dependent.uri for dependent in dependents_of(runs / "1")] == [f"{bucket}/2"]
