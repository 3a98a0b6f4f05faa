"""Settings that leave an earlier stage's files as they are: cards and reports show them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.owt_pipeline.runs import ask_owt, copy_of, manifest_of


def parts_of_corpus(run: Path) -> list[str]:
    """Return the names of the corpus' files, which contain digests of their bytes."""
    return sorted(path.name for path in (run / "corpus").iterdir())


# Each leaves the corpus of the demo as it is.
SETTINGS = [
    ("--threshold", "0.81", "threshold = 0.81"),
    ("--min_score", "2", "min_score = 2"),
    ("--max_page_bytes", "9999999", "max_page_bytes = 9999999"),
    ("--min_language_score", "0.01", "min_language_score = 0.01"),
]


@pytest.mark.slow
@pytest.mark.parametrize(("flag", "value", "line"), SETTINGS)
def test_a_card_shows_settings_that_change_no_document(
    small_run: Path, small_config: Path, tmp_path: Path, flag: str, value: str, line: str
) -> None:
    run = copy_of(small_run, tmp_path / "run")
    card = run / "ledger/corpus/README.md"
    before = card.read_text()
    parts = parts_of_corpus(run)
    assert line not in before

    ask_owt("run", run, small_config, flag, value, "--workers", 1)
    assert parts_of_corpus(run) == parts
    assert line in card.read_text()
    assert "no problems found" in ask_owt("verify", run)
    sequence = json.loads((run / "ledger/manifest.json").read_text())["sequence"]
    ask_owt("run", run, small_config, flag, value, "--workers", 1)
    assert json.loads((run / "ledger/manifest.json").read_text())["sequence"] == sequence

    ask_owt("run", run, small_config, "--workers", 1)
    assert card.read_text() == before
    assert parts_of_corpus(run) == parts


@pytest.mark.slow
def test_a_card_of_a_stage_that_was_killed_after_its_inputs_is_renewed(
    small_run: Path, small_config: Path, tmp_path: Path
) -> None:
    run = copy_of(small_run, tmp_path / "run")
    ask_owt("run", run, small_config, "--threshold", ".81", "--until", "dedupe", "--workers", 1)
    card = run / "ledger/corpus/README.md"
    assert "threshold = 0.81" not in card.read_text()
    ask_owt("run", run, small_config, "--threshold", ".81", "--workers", 1)
    assert "threshold = 0.81" in card.read_text()


def test_a_report_shows_limits_that_reject_no_document(
    small_run: Path, small_config: Path, tmp_path: Path
) -> None:
    run = copy_of(small_run, tmp_path / "run")
    settings = tmp_path / "settings.toml"
    limits = "gopher_quality = { max_words = 99999 }\n"
    settings.write_text(small_config.read_text() + limits)
    digest = manifest_of(run, "clean").digest
    ask_owt("run", run, settings, "--workers", 1)
    assert manifest_of(run, "clean").digest == digest
    assert "99999" in (run / "report/stats.json").read_text()
    ask_owt("run", run, small_config, "--workers", 1)
    assert "99999" not in (run / "report/stats.json").read_text()
