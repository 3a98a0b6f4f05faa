"""`owt init` writes a file that `owt run` reads, with every option explained."""

from __future__ import annotations

from pathlib import Path

import pytest
import tomllib

from owt_pipeline import cli
from owt_pipeline.commands.setup import commented_config, main, preset_names
from owt_pipeline.config import read_config, settings_of, stage_options, with_values
from owt_pipeline.pipeline import STAGES
from owt_pipeline.storage.folder import Storage


@pytest.mark.parametrize("preset", [None, *preset_names()])
def test_a_written_config_is_read_back_without_complaint(
    preset: str | None, tmp_path: Path
) -> None:
    path = tmp_path / "settings.toml"
    assert main([str(tmp_path), *(["--preset", preset] if preset else [])]) == 0
    tables = read_config(str(path))
    for stage in STAGES.values():
        options = stage_options(stage, str(path), tables, {})
        if preset is None:
            assert options == stage_options(stage, None, {}, {})
    if preset:
        package = Path(commented_config.__code__.co_filename).parents[1]
        recipe = read_config(str(package / "presets" / f"{preset}.toml"))
        assert recipe
        assert all(table.items() <= tables[name].items() for name, table in recipe.items())


def test_an_unknown_preset_and_an_existing_file_are_errors(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = str(tmp_path / "run")
    path = tmp_path / "run" / "settings.toml"
    assert main([run, "--preset", "webtxt"]) == 2
    assert "unknown preset 'webtxt'; did you mean 'webtext'?" in capsys.readouterr().err
    assert not path.exists()
    assert main([run]) == 0
    path.write_text("")
    assert main([run]) == 1
    assert f"{path} exists: edit it, or delete it" in capsys.readouterr().err
    path.unlink()
    assert main([run]) == 0
    assert "[collect]" in path.read_text()


@pytest.mark.parametrize(
    ("text", "values", "expected"),
    [
        ("", {"clean": {"min_tokens": 5}}, "[clean]\nmin_tokens = 5\n"),
        ("[run]\nworkers = 2\n", {"clean": {"min_tokens": 5}},
         "[run]\nworkers = 2\n\n[clean]\nmin_tokens = 5\n"),
        ("[clean]\n# the least (a number)\n# min_tokens = 128\n", {"clean": {"min_tokens": 5}},
         "[clean]\n# the least (a number)\nmin_tokens = 5\n"),
        ("[clean]\n# min_tokens = 128\nmin_tokens = 7  # ours\n", {"clean": {"min_tokens": 5}},
         "[clean]\n# min_tokens = 128\nmin_tokens = 5\n"),
        ("[clean]\nlanguages = "
        "['en']\n[dedupe]\n", {"clean": {"languages": ("de", "fr")}, "dedupe": {}},
         "[clean]\nlanguages = [\"de\", \"fr\"]\n[dedupe]\n"),
        ("[collect]\nmin_score = 3\n[clean]\n", {"clean": {"min_score": 1}},
         "[collect]\nmin_score = 3\n[clean]\nmin_score = 1\n"),
        ("[clean]\nlanguages = [\n  'en',  # ours\n]\n", {"clean": {"languages": ("de",)}},
         "[clean]\nlanguages = [\"de\"]\n"),
        ("clean = {languages = ['en']}\n", {"clean": {"languages": ("de",), "min_tokens": 5}},
         "clean = {languages = [\"de\"], min_tokens = 5}\n"),
        ("[clean]\n# a\n# min_tokens = 1\n\n[clean.gopher_quality]\n# min_words = 50\n",
         {"clean": {"min_tokens": 5, "max_x": None}},
         "[clean]\nmax_x = \"\"\n# a\nmin_tokens = 5\n\n[clean.gopher_quality]\n# min_words = 50\n"),
        ("[ 'clean' ]\r\n# min_tokens = 1\r\n", {"clean": {"min_tokens": 5}},
         "[ 'clean' ]\r\nmin_tokens = 5\n"),
        ("[clean]\n", {"clean": {"signals": ("a:b", 'say "so"\\n')}},
         "[clean]\nsignals = [\"a:b\", \"say \\\"so\\\"\\\\n\"]\n"),
    ],
)  # fmt: skip
def test_a_setting_is_changed_and_the_comments_stay(
    text: str, values: dict[str, dict[str, object]], expected: str
) -> None:
    assert with_values(text, values) == expected


@pytest.mark.parametrize("preset", [None, *preset_names()])
def test_values_take_the_places_of_the_lines_that_init_writes(preset: str | None) -> None:
    text = commented_config(preset)
    values = {"clean": {"min_tokens": 5, "languages": ("de", "fr")}, "dedupe": {"threshold": 0.7}}
    changed = with_values(text, values)
    assert changed.count("\n") == text.count("\n")
    tables = tomllib.loads(text)
    tables["clean"] |= {"min_tokens": 5, "languages": ["de", "fr"]}
    tables["dedupe"] |= {"threshold": 0.7}
    assert tomllib.loads(changed) == tables
    assert with_values(changed, values) == changed


def test_a_run_keeps_its_flags_and_a_failed_one_does_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for month, number in (("01", 1), ("02", 2)):
        Path(f"{month}.txt").write_text(f"https://h.example/{number}\n")
    collect = ["run", "run", "--until", "collect", "--quiet", "--workers", "1"]
    assert cli.main([*collect, "--links", "01.txt", "--num_shards", "2", "--dry_run"]) == 0
    assert not Path("run").exists()
    assert cli.main([*collect, "--links", "none.txt"]) == 1
    assert settings_of(Storage("run")) is None
    assert cli.main([*collect, "--links", "01.txt", "--num_shards", "2", "--retry_failed"]) == 0
    path = settings_of(Storage("run"))
    tables = read_config(path)
    assert tables["collect"] == {"links": ["01.txt"], "num_shards": 2}
    assert tables["fetch"] == {}
    # It has every other option as a comment, with its help.
    assert Path("run/settings.toml").read_text().count("\n") > 100
    assert cli.main(collect) == 0
    # The first source is not named.
    assert cli.main([*collect, "--links", "02.txt"]) == 1
    assert read_config(path) == tables
    assert cli.main([*collect, "--links", "02.txt", "--add"]) == 0
    assert read_config(path)["collect"] == {"links": ["01.txt", "02.txt"], "num_shards": 2}
    assert cli.main(["why", "run", "h.example/2"]) == 0
    Path("other.toml").write_text("[collect]\nlinks = ['01.txt', '02.txt']\n")
    # A file that the command names is not changed.
    assert cli.main([*collect, "other.toml", "--min_score", "9"]) == 0
    assert "min_score" not in read_config(path)["collect"]
    assert "min_score" not in Path("other.toml").read_text()
