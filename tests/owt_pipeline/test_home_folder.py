"""A `~` that no shell has expanded is the home folder, wherever a path is given."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from owt_pipeline.engine.stage import Stage
from owt_pipeline.pipeline import STAGES
from owt_pipeline.stages.import_text.stage import STAGE as IMPORT
from owt_pipeline.storage.folder import Storage, folder_of
from owt_pipeline.storage.matching import expand_globs
from schemas.settings import from_table
from tests.owt_pipeline.runs import ask_owt, manifest_of

TEXT = "A text of some words, which is long enough to be a document of the run. " * 20


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the home folder. The current folder is another one, and stays empty."""
    folder = tmp_path / "home"
    folder.mkdir()
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    monkeypatch.setenv("HOME", str(folder))
    return folder


def write_texts(path: Path) -> None:
    path.write_text(json.dumps({"text": TEXT}) + "\n")


def test_words_flags_and_settings_name_files_of_the_home(home: Path) -> None:
    (home / "texts").mkdir()
    write_texts(home / "texts/a.jsonl")
    write_texts(home / "b.jsonl")
    (home / "set.toml").write_text('[import]\nfiles = ["~/texts", "~/b.jsonl"]\n')
    ask_owt("import", "~/run", "~/set.toml", "--workers", 1)
    assert manifest_of(home / "run", "documents").counts.entered == 2
    printed = ask_owt("import", "~/run", "~/texts", "--files=~/b.jsonl", "--workers", 1)
    assert f"owt run {home}/run" in printed
    assert (home / "run/settings.toml").exists()
    assert "finished" in ask_owt("ls", "~/run")
    assert "no problems found" in ask_owt("verify", "~/run")
    (home / "gone.txt").write_text("1\n")
    ask_owt("forget", "~/run", "~/gone.txt", "--dry_run")
    assert list(Path().iterdir()) == []


def test_commands_on_files_read_and_write_in_the_home(home: Path) -> None:
    pq.write_table(pa.table({"text": [TEXT, TEXT]}), home / "a.parquet")
    words = ("--out=~/pairs.parquet", "--unique=~/unique.parquet", "--workers", 1)
    ask_owt("near-duplicates", "~/*.parquet", *words)
    assert len(pq.read_table(home / "pairs.parquet")) == 1
    assert len(pq.read_table(home / "unique.parquet")) == 1
    (home / "a.html").write_text(f"<html><body><p>{TEXT}</p></body></html>")
    assert TEXT.strip() in ask_owt("page", "~/a.html")
    ask_owt("demo", "--write_inputs=~/inputs")
    assert (home / "inputs/demo.warc.gz").exists()
    assert list(Path().iterdir()) == []


@pytest.mark.parametrize("stage", [*STAGES.values(), IMPORT], ids=lambda stage: stage.name)
def test_options_that_name_files_expand_the_home(stage: Stage, home: Path) -> None:
    for field in dataclasses.fields(stage.options):
        takes_files = field.metadata.get("metavar") in ("FILE", "GLOB", "DIR", "URI")
        assert bool(field.metadata.get("is_path")) >= takes_files, field.name
        if not field.metadata.get("is_path"):
            continue
        for given, expected in [
            ("~/a b*.x", f"{home}/a b*.x"),
            ("~", str(home)),
            ("gs://bucket/~/x", "gs://bucket/~/x"),
            ("s3://~/x", "s3://~/x"),
            ("./~/x", "./~/x"),
            ("a~", "a~"),
        ]:
            options = from_table(stage.options, {field.name: given}, "settings")
            value = getattr(options, field.name)
            assert value == (expected if isinstance(value, str) else (expected,))


def test_a_folder_named_like_a_home_is_reached_by_its_path(home: Path) -> None:
    Path("~").mkdir()
    Path("~/x").write_text("of the folder")
    (home / "x").write_text("of the home")
    assert Storage("./~").read("x") == b"of the folder"
    assert Storage("~").read("x") == b"of the home"
    folder, name = folder_of("~/x")
    assert folder.read(name) == b"of the home"
    assert expand_globs(("~/*",), "files") == [f"{home}/x"]
    assert expand_globs(("./~/*",), "files") == ["./~/x"]
