"""A working directory of schema version 1 is converted: no file changes a byte, and nothing is computed again."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import msgspec
import pytest

from owt_pipeline.commands import migrate, verify
from owt_pipeline.commands import run as owt_run
from owt_pipeline.engine.storage import Storage
from schemas import DATASETS
from schemas.manifest import FileTable, Manifest, ShardFile, ledger_of
from tests.owt_pipeline.runs import copy_of, manifest_of, snapshot, table_of

SHARD_BY_SHARD = {"documents", "clean", "corpus", "tokens"}


def as_version_1(run: Path) -> None:
    """Give a run the layout of version 1: names without digests, one manifest, all of a dataset in its own folder."""
    for name in (*DATASETS, "report"):
        manifest, table = manifest_of(run, name), table_of(run, name)
        files = [_old_name(name, file) for file in table.files]
        for file, old in zip(table.files, files, strict=True):
            (run / name / old["path"]).parent.mkdir(parents=True, exist_ok=True)
            (run / file.path).rename(run / name / old["path"])
        record = msgspec.to_builtins(manifest) | {"schema_version": 1, "digest": f"old digest of {name}"}
        record["inputs"] = {name: f"old digest of {name}" for name in record["inputs"]}
        record["fingerprint"] = "0" * 64
        record["files"] = sorted(files, key=lambda file: file["path"])
        record["shards"] = [_old_part(part) for part in table.records] if name in SHARD_BY_SHARD else []
        if name == "tokens":
            record["properties"]["tokenizer"]["file"] = "tokenizer.json"
        del record["totals"]
        (run / name / "manifest.json").write_text(json.dumps(record))
    shutil.rmtree(run / "ledger")
    shutil.rmtree(run / "warc")


def _old_name(dataset: str, file: ShardFile) -> dict[str, object]:
    name = file.path.rpartition("/")[2]
    stem = f"part-{file.shard:05d}"
    path = {
        "data": f"{stem}.parquet",
        "rejects": f"rejects/{stem}.parquet",
        "warc": f"{stem}.warc.gz",
        "sketches": f"sketches/{stem}.sketches",
        "asset": "tokenizer.json" if dataset == "tokens" else name,
    }[file.kind]
    if dataset == "tokens" and file.kind == "data":
        path = f"{file.path.split('/')[1]}/{stem}.arrow"
    return msgspec.structs.asdict(file) | {"path": path}


def _old_part(part: object) -> dict[str, object]:
    record = msgspec.to_builtins(part)
    return {key: record[key] for key in ("shard", "made_from", "counts", "stats")}


def contents(run: Path) -> dict[str, bytes]:
    """Every file but for the lists of files and the manifests that name them."""
    return {
        path: content
        for path, content in snapshot(run).items()
        if not path.rpartition("/")[2].startswith(("files-", "manifest.json"))
    }


def test_a_run_of_version_1_is_converted_and_every_stage_is_finished(
    small_run: Path, small_config: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = copy_of(small_run, tmp_path / "run")
    as_version_1(run)
    before = (run / "run-log.jsonl").read_text()
    assert owt_run.main([str(small_config), "--workdir", str(run), "--quiet"]) == 1
    assert f"run `owt migrate --workdir {run}` once" in capsys.readouterr().err
    assert migrate.main(["--workdir", str(run)]) == 0
    assert contents(run) == contents(small_run)
    for name in (*DATASETS, "report"):
        ours, theirs = manifest_of(run, name), manifest_of(small_run, name)
        assert msgspec.structs.replace(ours, files=theirs.files) == theirs
        assert [r.counts for r in table_of(run, name).records] == [r.counts for r in table_of(small_run, name).records]
    assert owt_run.main([str(small_config), "--workdir", str(run), "--quiet"]) == 0
    assert (run / "run-log.jsonl").read_text() == before, "no stage ran"
    assert verify.main(["--workdir", str(run), "--quiet"]) == 0
    capsys.readouterr()
    assert migrate.main(["--workdir", str(run)]) == 0
    assert "needs no conversion" in capsys.readouterr().out


@pytest.mark.parametrize("dataset", ["urls", "clean", "duplicates"])
def test_a_converted_run_is_repaired_to_the_same_totals(
    small_run: Path, small_config: Path, tmp_path: Path, dataset: str
) -> None:
    run = copy_of(small_run, tmp_path / "run")
    as_version_1(run)
    assert migrate.main(["--workdir", str(run)]) == 0
    next(run.glob(f"{dataset}/part-00001-*")).unlink()
    assert owt_run.main([str(small_config), "--workdir", str(run), "--quiet", "--workers", "1"]) == 0
    ours, theirs = manifest_of(run, dataset), manifest_of(small_run, dataset)
    assert (ours.counts, ours.digest) == (theirs.counts, theirs.digest)
    assert contents(run) == contents(small_run)


@pytest.mark.parametrize("steps", [1, 5, 40, 90])
def test_a_killed_conversion_continues(
    small_run: Path, tmp_path: Path, steps: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = copy_of(small_run, tmp_path / "run")
    as_version_1(run)
    left = iter(range(steps))
    delete, link = Storage.delete, migrate._link

    def counted(change):  # type: ignore[no-untyped-def]
        def call(*arguments):  # type: ignore[no-untyped-def]
            if next(left, None) is None:
                raise KeyboardInterrupt
            return change(*arguments)

        return call

    with monkeypatch.context() as patch:
        patch.setattr(Storage, "delete", counted(delete))
        patch.setattr(migrate, "_link", counted(link))
        with pytest.raises(KeyboardInterrupt):
            migrate.migrate(Storage(str(run)))
    migrate.migrate(Storage(str(run)))
    assert contents(run) == contents(small_run)


def test_unfinished_work_and_its_journals_are_kept(small_run: Path, tmp_path: Path) -> None:
    run = copy_of(small_run, tmp_path / "run")
    as_version_1(run)
    old = json.loads((run / "pages/manifest.json").read_text())
    work = run / "pages/.work"
    for folder in ("shards", "index/records", "journal"):
        (work / folder).mkdir(parents=True)
    plan = {key: old[key] for key in ("stage", "stage_version", "options", "inputs", "sources", "versions")}
    (work / "plan.json").write_text(json.dumps(plan | {"fingerprint": "0" * 64, "made_from": []}))
    files = [file for file in old["files"] if file["shard"] == 0]
    record = {"shard": 0, "counts": {"entered": 1, "left": 1, "rejected": {}}, "files": files, "stats": {}}
    (work / "shards/part-00000.json").write_text(json.dumps(record))
    (work / "index/part-00000.index").write_bytes(b"index")
    step = [{"path": "part-00000.index", "kind": "index", "shard": 0, "rows": 0, "bytes": 5, "sha256": "00"}]
    (work / "index/records/part-00000.json").write_text(json.dumps(record | {"files": step}))
    (work / "journal/part-00001.live.journal").write_bytes(b"pages that were fetched")
    (run / "pages/manifest.json").unlink()
    migrate.migrate(Storage(str(run)))
    (work,) = (run / ledger_of("pages") / ".work").iterdir()
    assert (work / "journal/part-00001.live.journal").read_bytes() == b"pages that were fetched"
    assert (work / "index/part-00000.index").read_bytes() == b"index"
    original = {file.path for file in table_of(small_run, "pages").records[0].files}
    assert {file["path"] for file in json.loads((work / "shards/part-00000.json").read_text())["files"]} == original
    assert all((run / path).read_bytes() == (small_run / path).read_bytes() for path in original)
    assert not (run / "pages/.work").exists()


def test_a_missing_file_is_named_and_nothing_is_lost(small_run: Path, tmp_path: Path) -> None:
    run = copy_of(small_run, tmp_path / "run")
    as_version_1(run)
    before = snapshot(run)
    (run / "clean/part-00001.parquet").unlink()
    with pytest.raises(Exception, match=r"clean/part-00001\.parquet is missing: restore it"):
        migrate.migrate(Storage(str(run)))
    (run / "clean/part-00001.parquet").write_bytes(before["clean/part-00001.parquet"])
    migrate.migrate(Storage(str(run)))
    assert contents(run) == contents(small_run)


def test_the_lists_of_files_read_back_as_they_were_written(small_run: Path) -> None:
    for name in DATASETS:
        table = table_of(small_run, name)
        again = FileTable.from_parquet(table.to_parquet(), "test")
        assert (again.files, again.records, again.assets) == (table.files, table.records, table.assets)
        manifest = manifest_of(small_run, name)
        assert Manifest.from_json(manifest.to_json()) == manifest
