"""Settings that leave an earlier stage's files as they are: the report shows them."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.owt_pipeline.runs import ask_owt, copy_of, manifest_of


@pytest.mark.slow
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
