"""`owt init` writes a file that `owt run` reads, with every option explained."""

from __future__ import annotations

from pathlib import Path

import pytest

from owt_pipeline.commands.setup import commented_config, main, preset_names
from owt_pipeline.config import read_config, stage_options
from owt_pipeline.stages import ORDER, load
from schemas.settings import describe


@pytest.mark.parametrize("preset", [None, *preset_names()])
def test_a_written_config_is_read_back_without_complaint(preset: str | None, tmp_path: Path) -> None:
    path = tmp_path / "config.toml"
    assert main([str(path), *(["--preset", preset] if preset else [])]) == 0
    tables = read_config(str(path))
    for name in ORDER:
        stage = load(name)
        options = stage_options(stage, str(path), tables, {})
        if preset is None:
            assert options == stage_options(stage, None, {}, {})
    if preset:
        recipe = read_config(str(Path(commented_config.__code__.co_filename).parents[1] / "presets" / f"{preset}.toml"))
        assert recipe
        assert all(table.items() <= tables[name].items() for name, table in recipe.items())


@pytest.mark.parametrize("preset", preset_names())
def test_every_value_of_a_preset_is_used_and_says_where_it_comes_from(preset: str) -> None:
    text = (Path(commented_config.__code__.co_filename).parents[1] / "presets" / f"{preset}.toml").read_text()
    written = commented_config(preset)
    values = [line for line in text.splitlines() if line and not line.startswith(("#", "["))]
    assert values
    for line in values:
        assert "  # " in line, line
        assert line in written


@pytest.mark.parametrize("preset", preset_names())
def test_presets_drop_wikipedia_as_webtext_did(preset: str) -> None:
    assert 'blocked_domains = ["wikipedia.org"]  # ' in commented_config(preset)


def test_every_option_of_every_stage_is_in_the_config_with_its_help() -> None:
    text = commented_config()
    for name in ORDER:
        for option, _, _, help_text in describe(load(name).options):
            assert f"# {option} = " in text
            assert help_text
            assert help_text in text


def test_an_unknown_preset_and_a_file_that_is_there_are_clear_errors(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([str(tmp_path / "c.toml"), "--preset", "webtxt"]) == 2
    assert "unknown preset 'webtxt'; did you mean 'webtext'?" in capsys.readouterr().err
    assert not (tmp_path / "c.toml").exists()
    (tmp_path / "c.toml").write_text("")
    assert main([str(tmp_path / "c.toml")]) == 1
    assert "exists; name another file, or replace it with --force" in capsys.readouterr().err
    assert main([str(tmp_path / "c.toml"), "--force"]) == 0
    assert "[collect]" in (tmp_path / "c.toml").read_text()
