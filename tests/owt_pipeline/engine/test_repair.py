"""A rerun repairs: whatever is deleted, cut short or changed by a byte, the tree is afterwards
as it was."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from owt_pipeline.commands import run as owt_run
from owt_pipeline.commands import verify
from owt_pipeline.engine.runner import run_stage
from owt_pipeline.engine.stage import Runtime, Stage, StageRun, Step
from owt_pipeline.errors import UserError
from owt_pipeline.ledger.commit import ShardWriter
from owt_pipeline.ledger.exchange import Slice
from owt_pipeline.storage.folder import Storage
from schemas import DATASETS
from schemas.manifest import ROOT
from tests.owt_pipeline.runs import ask_owt, copy_of, differing, manifest_of, table_of

pytestmark = pytest.mark.beam


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
    """Run `owt run` once more; returns its exit code."""
    return owt_run.main([str(run), str(config), "--workers", "1", "--quiet", *flags])


def stages_since(run: Path, log_bytes: int) -> list[tuple[str, int]]:
    """Return the stages that ran since the log had `log_bytes`, and the shards they wrote."""
    entries = [
        json.loads(line) for line in (run / "run-log.jsonl").read_text()[log_bytes:].splitlines()
    ]
    return [(entry["stage"], entry["shards_written"]) for entry in entries if "stage" in entry]


@pytest.fixture
def run(small_run: Path, small_config: Path, tmp_path: Path) -> Path:
    """A copy of a finished run."""
    return copy_of(small_run, tmp_path / "run")


def damaged(run: Path, pattern: str, damage: Callable[[Path], None]) -> Path:
    """Damage the largest of the files that match; returns its path."""
    path = max(run.glob(pattern), key=lambda path: path.stat().st_size)
    damage(path)
    return path


def kinds_of_files(run: Path) -> dict[str, Path]:
    """Return the files of a run by kind: the largest of the files whose names differ in numbers.

    The log, the lock and the copy of the root are left out.
    """
    path_by_kind: dict[str, Path] = {}
    for path in sorted(
        (path for path in run.rglob("*") if path.is_file()), key=lambda path: path.stat().st_size
    ):
        if path.name not in ("run-log.jsonl", ".lock", "manifest.json.copy"):
            place = str(path.relative_to(run))
            path_by_kind[re.sub(r"(part|files|tokenizer|\d{5})-[0-9a-f-]+", r"\1", place)] = path
    return path_by_kind


GROUPS = 2
MADE_FROM_EACH_OTHER = ("urls", "pages", "documents", "clean", "corpus")


@pytest.mark.parametrize("damage", [delete, truncate, flip])
@pytest.mark.slow
def test_any_lost_or_damaged_file_is_found_and_rebuilt(
    small_run: Path, small_config: Path, tmp_path: Path, damage: Callable[[Path], None],
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    """Damage some kinds of files at a time: rows, rejects, WARC files, lists, assets, the root.

    Records are spare copies.
    """
    kinds = kinds_of_files(small_run)
    assert len(kinds) > 30
    # Without a list of files, no file can be judged.
    lists = [kind for kind in kinds if "/files." in kind or kind.endswith(ROOT)]
    # The report is built from the surviving files of other datasets.
    report = [kind for kind in kinds if "report" in kind and kind not in lists]
    rows_and_others = [kind for kind in kinds if kind not in lists + report]
    for damaged_kinds in (lists, report, *(rows_and_others[at::GROUPS] for at in range(GROUPS))):
        run = copy_of(small_run, tmp_path / "run")
        for kind in damaged_kinds:
            damage(run / kinds[kind].relative_to(small_run))
        assert verify.main([str(run), "--repair", "--quiet"]) in (0, 1, 3)
        output = capsys.readouterr().out
        for kind in damaged_kinds:
            is_spare = "/records/" in kind
            is_gone = damage is delete and kind.split("/")[0] not in ("corpus", "tokens", "report")
            # Each reader of the root restores it from its copy.
            is_restored = kind.endswith(ROOT)
            name = str(kinds[kind].relative_to(small_run))
            assert is_spare or is_gone or is_restored or name in output, output
        # Lost files are rebuilt because something needs them: a changed setting, and then the old
        # one.
        assert rerun(small_config, run, "--min_tokens", "65", "--until", "clean") == 0
        assert rerun(small_config, run) == 0
        # Nothing was built from the files of other datasets, perhaps.
        finals = ("corpus", "tokens", "report", "manifest")
        unread = {
            str(kinds[kind].relative_to(small_run)) for kind in damaged_kinds
            if not kind.removeprefix("ledger/").startswith(finals)
        }  # fmt: skip
        changed = {name for name in differing(run, small_run) if "/records/" not in name}
        assert changed <= unread, damaged_kinds
        assert verify.main([str(run), "--quiet"]) == 0
        shutil.rmtree(run)
        capsys.readouterr()


@pytest.mark.slow
def test_a_later_shard_is_rebuilt_without_earlier_rejects(
    small_run: Path, small_config: Path, tmp_path: Path
) -> None:
    """`collect` builds it from the URLs of its earlier shards, which nothing else needs."""
    urls = pq.read_table(small_run / "corpus", columns=["url"])["url"].to_pylist()
    run = tmp_path / "run"
    command = ["--workers", 1, "--num_shards", 1, "--min_tokens", 64]
    command += ["--pages_from", small_config.with_name("demo.warc.gz")]
    for number in (0, 1):
        path = tmp_path / f"{number}.csv"
        path.write_text(
            "url,score\n" + "".join(f"{url},{i % 9}\n" for i, url in enumerate(urls[number::2]))
        )
        ask_owt("run", run, "--links", path, *command, *(["--add"] if number else []))
    complete = copy_of(run, tmp_path / "before")
    for pattern in (
        "ledger/urls/rejects/part-00000-*",
        *(f"{name}/part-00001-*" for name in MADE_FROM_EACH_OTHER),
    ):
        damaged(run, pattern, delete)
    ask_owt("run", run, "--workers", 1)
    assert differing(run, complete) == []


def test_one_listing_finds_missing_files_of_final_datasets(
    small_run: Path, small_config: Path, run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    log = (run / "run-log.jsonl").stat().st_size
    missing = damaged(run, "corpus/part-*", delete)
    cut = damaged(run, "tokens/train/part-*", truncate)
    assert owt_run.main([str(run), str(small_config), "--workers", "1"]) == 0
    output = capsys.readouterr().err
    assert f"corpus/{missing.name} is missing" in output
    assert f"tokens/train/{cut.name} has " in output
    assert differing(run, small_run) == []
    assert stages_since(run, log) == [("export", 1), ("tokenize", 1)]


# Files removed on purpose


@pytest.mark.slow
def test_only_files_that_something_needs_are_rebuilt(
    small_run: Path, small_config: Path, run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    log = (run / "run-log.jsonl").stat().st_size
    for folder in ("warc", "pages", "documents"):
        shutil.rmtree(run / folder)
    assert rerun(small_config, run) == 0
    assert stages_since(run, log) == []
    capsys.readouterr()
    assert verify.main([str(run), "--quiet"]) == 0
    assert capsys.readouterr().out.count("a later run rebuilds them if it needs them") == 2
    assert rerun(small_config, run, "--min_tokens", "65", "--until", "clean") == 0
    assert stages_since(run, log) == [("fetch", 3), ("extract", 3), ("clean", 3)]
    assert rerun(small_config, run) == 0
    assert differing(run, small_run) == []


def test_the_remedy_for_a_shard_with_other_bytes_works(
    small_run: Path,
    small_config: Path,
    run: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    missing = damaged(run, "corpus/part-*", delete)
    from owt_pipeline.stages.export import corpus

    apply = corpus.apply_decisions
    monkeypatch.setattr(
        corpus,
        "apply_decisions",
        lambda *arguments: (apply(*arguments)[0].slice(1), apply(*arguments)[1]),
    )
    monkeypatch.setattr("schemas.manifest.Counts.balanced", True)
    assert rerun(small_config, run) == 1
    output = capsys.readouterr().err
    assert (
        f"shard {int(missing.name[5:10])} of corpus/ was missing, and the rebuilt shard" in output
    )
    assert output.count("pyarrow ") == 2
    advised = re.search(r"or delete (\S+) and (\S+) to make the dataset", output)
    assert advised is not None
    shutil.rmtree(advised[1])
    Path(advised[2]).unlink()
    assert rerun(small_config, run) == 0
    assert manifest_of(run, "corpus").digest != manifest_of(small_run, "corpus").digest
    assert manifest_of(run, "tokens").digest != manifest_of(small_run, "tokens").digest


# An interrupted stage


ROWS = 20


@dataclass(frozen=True)
class NoOptions:
    pass


def write_rows(shard: int, writer: ShardWriter) -> None:
    schema = DATASETS["duplicates"].schema
    writer.enter(ROWS)
    rows = {name: [shard * ROWS + k for k in range(ROWS)] for name in schema.names} | {
        "rule": ["near"] * ROWS
    }
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
    name = "dedupe"
    output = "duplicates"
    options = NoOptions
    version = 1

    def __init__(self, write: Callable[[int, ShardWriter], None]):
        def work(run: StageRun, shard: int, _: Sequence[Slice], writer: ShardWriter) -> None:
            write(shard, writer)

        self.steps = (Step(write_step, "step", keys=two), Step(work))

    def shards_for(self, options: NoOptions, sources: Any) -> int:
        return 5


def test_a_record_names_the_versions_that_made_its_shard(tmp_path: Path) -> None:
    for library, write in (("one", write_until_three), ("two", write_rows)):
        stage = FiveShards(write)
        stage.libraries = (library,)
        with contextlib.suppress(UserError):
            run_stage(stage, NoOptions(), Runtime(Storage(str(tmp_path))))
    table = table_of(tmp_path, "duplicates")
    assert [sorted(record.versions) for record in table.records] == 3 * [["one", "pyarrow"]] + 2 * [
        ["pyarrow", "two"]
    ]


@pytest.mark.parametrize(
    "pattern",
    [
        "duplicates/part-00001-*",
        "ledger/duplicates/rejects/part-00001-*",
        "ledger/dedupe/work/*/plan-*.json",
        "ledger/dedupe/records/00001-*.json",
        "ledger/dedupe/work/*/step/part-00001-*",
        "ledger/dedupe/work/*/step/records/00001.json",
    ],
)
@pytest.mark.parametrize("damage", [delete, truncate])
def test_an_interrupted_stage_ends_with_the_same_bytes(
    tmp_path: Path, pattern: str, damage: Callable[[Path], None]
) -> None:
    finished, interrupted = (
        Runtime(Storage(str(tmp_path / name))) for name in ("finished", "interrupted")
    )
    run_stage(FiveShards(write_rows), NoOptions(), finished)
    with pytest.raises(UserError, match="interrupted"):
        run_stage(FiveShards(write_until_three), NoOptions(), interrupted)
    (path,) = (tmp_path / "interrupted").glob(pattern)
    damage(path)
    run_stage(FiveShards(write_rows), NoOptions(), interrupted)
    assert differing(tmp_path / "interrupted", tmp_path / "finished") == []
