"""A rerun repairs: whatever is deleted, cut short or changed by a byte, the tree is afterwards as it was."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pytest

from owt_pipeline.commands import run as owt_run
from owt_pipeline.commands import verify
from owt_pipeline.engine.runner import run_stage
from owt_pipeline.engine.stage import Runtime, Stage, StageRun, Step
from owt_pipeline.ledger.commit import ShardWriter
from owt_pipeline.ledger.exchange import Slice
from owt_pipeline.ledger.plan import ALWAYS
from owt_pipeline.stages import ORDER
from owt_pipeline.storage.folder import Storage
from schemas import DATASETS
from schemas.manifest import Manifest
from tests.owt_pipeline.runs import copy_of, differing

MOST_FILES = 6  # that one stage has, but for those that are alike


def delete(path: Path) -> None:
    path.unlink()


def truncate(path: Path) -> None:
    os.truncate(path, path.stat().st_size // 2)


def flip(path: Path) -> None:
    """Change a bit as a bad disk does: the file's size and times stay as they are."""
    status = path.stat()
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    with path.open("r+b") as file:
        file.write(content)
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))


def rerun(config: Path, run: Path, *flags: str) -> int:
    return owt_run.main([str(config), "--workdir", str(run), "--workers", "1", "--quiet", *flags])


def stages_since(run: Path, before: int) -> list[tuple[str, int]]:
    """(stage, shards written) of what ran since the log had `before` bytes."""
    entries = [json.loads(line) for line in (run / "run-log.jsonl").read_text()[before:].splitlines()]
    return [(entry["stage"], entry["shards_written"]) for entry in entries if "stage" in entry]


@pytest.fixture
def run(small_run: Path, small_config: Path, tmp_path: Path) -> Path:
    """A copy of a finished run, with its files' versions known."""
    copy = copy_of(small_run, tmp_path / "run")
    assert rerun(small_config, copy) == 0
    return copy


def damaged(run: Path, pattern: str, damage: Callable[[Path], None]) -> Path:
    path = max(run.glob(pattern), key=lambda path: path.stat().st_size)
    damage(path)
    return path


def files_of_stages(run: Path) -> dict[str, list[Path]]:
    """Every file of a run by its stage, but for the log and the listings; of those that are alike, the largest."""
    found: dict[str, dict[str, Path]] = {stage: {} for stage in ORDER}
    for path in sorted((path for path in run.rglob("*") if path.is_file()), key=lambda path: path.stat().st_size):
        place = path.relative_to(run)
        if path.name not in (".listing", "run-log.jsonl"):
            dataset = place.parts[1 if place.parts[0] == "ledger" else 0]
            stage = "report" if dataset == "report" else DATASETS["pages" if dataset == "warc" else dataset].stage
            found[stage][re.sub(r"(part|files|tokenizer)-[0-9a-f-]+", r"\1", str(place))] = path
    return {stage: list(files.values()) for stage, files in found.items()}


@pytest.mark.parametrize("number", range(MOST_FILES))
@pytest.mark.parametrize("damage", [delete, truncate, flip])
@pytest.mark.slow
def test_any_file_that_is_lost_or_damaged_is_made_again_as_it_was(
    small_run: Path, small_config: Path, run: Path, number: int, damage: Callable[[Path], None],
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    """One file of each stage at a time, until each was damaged: manifests, lists, rejects, WARC files, all others."""
    log = (run / "run-log.jsonl").stat().st_size
    files = files_of_stages(run)
    assert max(map(len, files.values())) == MOST_FILES
    expected = []
    for stage, paths in files.items():
        if number < len(paths):
            damage(paths[number])
            name = paths[number].name
            shards = 1 if name.startswith("part-") else 0
            if name == "manifest.json" or name.startswith("files-"):
                shards = 0 if stage == "report" else 3  # what is complete can no longer be known
            expected.append((stage, shards))
    assert verify.main(["--workdir", str(run), "--repair", "--quiet"]) == 1
    said = capsys.readouterr().out
    assert [
        paths[number].name for paths in files.values() if number < len(paths) and paths[number].name not in said
    ] == []
    assert rerun(small_config, run) == 0
    assert differing(run, small_run) == []
    assert verify.main(["--workdir", str(run), "--quiet"]) == 0
    assert stages_since(run, log) == expected


def test_missing_short_and_changed_files_are_found_by_one_listing_and_repaired(
    small_run: Path, small_config: Path, run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    log = (run / "run-log.jsonl").stat().st_size
    gone = damaged(run, "clean/part-*", delete)
    short = damaged(run, "tokens/train/part-*", truncate)
    other = damaged(run, "corpus/part-*", lambda path: path.write_bytes(bytes(path.stat().st_size)))
    assert owt_run.main([str(small_config), "--workdir", str(run), "--workers", "1"]) == 0
    said = capsys.readouterr().err
    assert f"clean/{gone.name} is missing" in said
    assert f"tokens/train/{short.name} has " in said
    assert f"corpus/{other.name} was changed after it was written" in said
    assert differing(run, small_run) == []
    assert stages_since(run, log) == [("clean", 1), ("export", 1), ("tokenize", 1)]


def test_a_lost_or_damaged_listing_costs_hashing_and_nothing_else(
    small_run: Path, small_config: Path, run: Path
) -> None:
    log = (run / "run-log.jsonl").stat().st_size
    (run / "ledger/clean/.listing").unlink()
    truncate(run / "ledger/corpus/.listing")
    flip(run / "ledger/tokens/.listing")
    flip(damaged(run, "clean/part-*", lambda path: None))
    assert rerun(small_config, run) == 0
    assert stages_since(run, log) == [("clean", 1)], "a file whose version is unknown is hashed"
    assert differing(run, small_run) == []


def test_a_copied_run_is_hashed_once_and_nothing_runs(small_config: Path, small_run: Path, tmp_path: Path) -> None:
    copy = copy_of(small_run, tmp_path / "copy")
    log = (copy / "run-log.jsonl").stat().st_size
    assert rerun(small_config, copy) == 0
    assert stages_since(copy, log) == []


def test_a_flipped_byte_in_the_users_own_list_is_one_clear_error(
    small_config: Path, run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (run / "forgotten.jsonl").write_text('{"url_id": 7, "detail": "asked"}\n{"url_id": se\n')
    assert rerun(small_config, run) == 1
    assert "forgotten.jsonl:2:" in capsys.readouterr().err


# An interrupted stage


ROWS = 20


@dataclass(frozen=True)
class NoOptions:
    pass


def write_rows(shard: int, writer: ShardWriter) -> None:
    schema = DATASETS["duplicates"].schema
    writer.enter(ROWS)
    rows = {name: [shard * ROWS + k for k in range(ROWS)] for name in schema.names} | {"rule": ["near"] * ROWS}
    writer.write(pa.RecordBatch.from_pydict(rows, schema=schema))


def write_until_three(shard: int, writer: ShardWriter) -> None:
    if shard == 3:
        raise OSError("interrupted")
    write_rows(shard, writer)


STEP = pa.schema([("n", pa.int64())])


def write_step(run: StageRun, key: int, _: Sequence[Slice], writer: ShardWriter) -> None:
    writer.send(key, pa.RecordBatch.from_pydict({"n": list(range(1000))}, schema=STEP))


def two(run: StageRun) -> range:
    return range(2)


class FiveShards(Stage):
    name, output, options, version = "dedupe", "duplicates", NoOptions, 1

    def __init__(self, write: Callable[[int, ShardWriter], None]):
        def work(run: StageRun, shard: int, _: Sequence[Slice], writer: ShardWriter) -> None:
            write(shard, writer)

        self.steps = (Step(write_step, "step", keys=two), Step(work))

    def num_shards(self, options: NoOptions) -> int:
        return 5


def test_the_manifest_names_the_versions_of_shards_that_an_earlier_attempt_made(tmp_path: Path) -> None:
    def run(write: Callable[[int, ShardWriter], None], library: str) -> Manifest:
        stage = FiveShards(write)
        stage.libraries = (library,)
        return run_stage(stage, NoOptions(), Runtime(Storage(str(tmp_path))))[0]

    with pytest.raises(OSError, match="interrupted"):
        run(write_until_three, "one")
    earlier = []
    for library in ("two", "two"):  # continued with another version, then repaired
        manifest = run(write_rows, library)
        earlier.append(manifest.properties["version_skew"]["workers"])
        assert library in manifest.versions
        next(tmp_path.glob("duplicates/part-00004-*")).unlink()
    assert earlier == 2 * [[{**{name: manifest.versions[name] for name in ALWAYS}, "one": "not installed"}]]


@pytest.mark.parametrize(
    "pattern",
    [
        "duplicates/part-00001-*",
        "ledger/duplicates/rejects/part-00001-*",
        "ledger/duplicates/.work/*/plan.json",
        "ledger/duplicates/.work/*/shards/part-00001.json",
        "ledger/duplicates/.work/*/step/part-00001-*",
        "ledger/duplicates/.work/*/step/records/part-00001.json",
    ],
)
@pytest.mark.parametrize("damage", [delete, truncate, flip])
def test_an_interrupted_stage_ends_with_the_same_bytes_whatever_of_it_is_damaged(
    tmp_path: Path, pattern: str, damage: Callable[[Path], None]
) -> None:
    finished, interrupted = (Runtime(Storage(str(tmp_path / name))) for name in ("finished", "interrupted"))
    run_stage(FiveShards(write_rows), NoOptions(), finished)
    with pytest.raises(OSError, match="interrupted"):
        run_stage(FiveShards(write_until_three), NoOptions(), interrupted)
    (path,) = (tmp_path / "interrupted").glob(pattern)
    damage(path)
    run_stage(FiveShards(write_rows), NoOptions(), interrupted)
    assert differing(tmp_path / "interrupted", tmp_path / "finished") == []
