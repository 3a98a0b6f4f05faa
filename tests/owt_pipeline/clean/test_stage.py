"""The stage clean in complete runs."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest

from owt_pipeline.engine.runner import run_stage
from owt_pipeline.engine.stage import Runtime
from owt_pipeline.errors import UsageError
from owt_pipeline.ledger.commit import ShardWriter
from owt_pipeline.ledger.dataset import DatasetReader
from owt_pipeline.stages.clean.options import Options
from owt_pipeline.stages.clean.stage import STAGE
from owt_pipeline.storage.folder import Storage
from tests.owt_pipeline.making import add_rows, write_dataset
from tests.owt_pipeline.runs import drop, snapshot

SENTENCE = "The river ran past the old mill, and nobody in the village could say how long it had done so. "
ENGLISH = SENTENCE * 10
FRENCH = "La rivière coulait devant le vieux moulin, et personne au village ne savait depuis combien de temps. " * 10


def write_documents(texts: list[str], shard: int, writer: ShardWriter) -> None:
    rows = [{"url_id": 100 * shard + n, "url": f"http://h/{shard}/{n}", "text": text} for n, text in enumerate(texts)]
    add_rows(writer, "documents", rows)


@pytest.fixture
def workdir(tmp_path: Path) -> Path:
    texts = [ENGLISH, FRENCH, "short", ENGLISH + "Ã©", *(f"{ENGLISH} {n}" for n in range(150))]
    write_dataset(Storage(str(tmp_path)), "documents", partial(write_documents, texts), num_shards=2)
    return tmp_path


def test_the_stage_writes_the_same_bytes_with_any_number_of_workers(workdir: Path) -> None:
    written = []
    for workers in (1, 2):
        manifest, ran = run_stage(STAGE, Options(), Runtime(Storage(str(workdir)), workers))
        assert ran
        written.append(snapshot(workdir))
        drop(workdir, "clean")
    assert written[0] == written[1]
    assert str(manifest.counts) == "308 in = 304 out + 2 too_short + 2 wrong_language"
    assert manifest.stats["changed_texts"] == 4  # the others had nothing to repair
    row = DatasetReader(Storage(str(workdir)), manifest).table().to_pylist()[1]
    assert row["url"] == "http://h/0/3"
    assert row["text"].endswith("é")


def test_changed_evaluation_set_runs_the_stage_again(workdir: Path) -> None:
    path = workdir / "set.txt"
    path.write_text("nothing of it is anywhere in the documents that this test wrote to disk before\n")
    options = Options(decontaminate=(str(path),))
    assert run_stage(STAGE, options, Runtime(Storage(str(workdir))))[0].counts.left == 304
    assert not run_stage(STAGE, options, Runtime(Storage(str(workdir))))[1]
    path.write_text(SENTENCE)
    manifest, ran = run_stage(STAGE, options, Runtime(Storage(str(workdir))))
    assert ran
    assert manifest.counts.rejected["contaminated"] == 304


UNTIDY = "\ufb01rst “quoted” Ã© \u00a0 &amp; \t \n\n\n\n" + ENGLISH + " \n "


def test_text_that_is_not_to_be_fixed_is_byte_for_byte_the_same(tmp_path: Path) -> None:
    write = partial(write_documents, [UNTIDY, "short \n"])
    write_dataset(Storage(str(tmp_path)), "documents", write)
    for options, wanted in ((Options(fix_text=False), True), (Options(), False)):
        manifest, _ = run_stage(STAGE, options, Runtime(Storage(str(tmp_path))))
        rows = DatasetReader(Storage(str(tmp_path)), manifest).table().to_pylist()
        assert [row["text"] == UNTIDY for row in rows] == [wanted]
        assert manifest.counts.rejected == {"too_short": 1}
        assert manifest.stats["changed_texts"] == (not wanted)


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        (Options(fix_text=False, uncurl_quotes=True), "uncurl_quotes changes text, but no_fix_text keeps it as it is"),
        (Options(languages=("eng",)), "'eng' is not a known language; did you mean 'en'"),
    ],
)
def test_a_mistaken_option_is_one_clear_error(options: Options, problem: str) -> None:
    with pytest.raises(UsageError, match=problem):
        STAGE.outside(options)  # before the stages that come first
