"""Settings are the same from TOML and flags, and errors name the key and the allowed values."""

from __future__ import annotations

import argparse
from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from schemas import SettingsError, option
from schemas.settings import add_flags, flags_given, from_table, shaping_options, to_toml


@dataclass(frozen=True)
class Options:
    dumps: tuple[str, ...] = option((), "files", metavar="GLOB")
    min_tokens: int = option(128, "fewest tokens", minimum=0)
    threshold: float = option(0.8, "similarity", minimum=0, maximum=1)
    languages: tuple[str, ...] = option(("en",), "kept", choices=["en", "de"])
    seed: int | None = option(None, "seed")
    fix: bool = option(True, "repair")
    timeout: float = option(10.0, "seconds", shapes_bytes=False)


def parse(*flags: str) -> Options:
    """Return the options that flags give."""
    parser = argparse.ArgumentParser(allow_abbrev=False)
    add_flags(parser, Options)
    return from_table(Options, flags_given(Options, parser.parse_args(flags)), "flags")


def test_flags_and_a_table_give_the_same_options() -> None:
    lists = ["--dumps", "a", "b", "--dumps", "c", "--languages", "de"]
    flags = [*lists, "--min_tokens", "5", "--threshold", "1", "--no_fix", "--seed", "3"]
    table = {
        "dumps": ["a", "b", "c"],
        "min_tokens": 5,
        "threshold": 1,
        "languages": ["de"],
        "fix": False,
        "seed": 3,
    }
    assert parse(*flags) == from_table(Options, table, "[clean]")
    assert parse() == from_table(Options, {}, "[clean]") == Options()


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ({"min_token": 1}, r"\[clean\]: unknown key 'min_token'; did you mean 'min_tokens'\?"),
        ({"min_tokens": "many"}, r"min_tokens: 'many' is not a whole number of at least 0"),
        ({"min_tokens": True}, r"min_tokens: True is not a whole number"),
        ({"min_tokens": -1}, r"min_tokens: -1 is not a whole number of at least 0"),
        ({"threshold": 1.5}, r"threshold: 1.5 is not a number from 0 to 1"),
        (
            {"threshold": float("nan")},
            r"threshold: nan is not finite; expected a number from 0 to 1",
        ),
        ({"threshold": 10**400}, r"threshold: 1000*\d* is not a number from 0 to 1"),
        ({"min_tokens": 1 << 63}, "min_tokens: 9223372036854775808 does not fit into 64 bits"),
        (
            {"languages": ["en", "dee"]},
            r"languages: 'dee' is not one of en, de; did you mean 'de'\?",
        ),
        ({"fix": 1}, r"fix: 1 is not true or false"),
    ],
)
def test_a_wrong_value_names_the_key_and_the_allowed_values(table: dict, message: str) -> None:
    with pytest.raises(SettingsError, match=message):
        from_table(Options, table, "[clean]")


def test_choices_may_be_joined_by_commas() -> None:
    assert from_table(Options, {"languages": ["de,en"]}, "[clean]").languages == ("de", "en")
    with pytest.raises(SettingsError, match="'fr' is not one of en, de"):
        from_table(Options, {"languages": ["en,fr"]}, "[clean]")


def test_a_missing_required_option_is_explained() -> None:
    @dataclass(frozen=True)
    class Needy:
        data: str = option(help="the folder of token shards")

    with pytest.raises(SettingsError, match="data is required: the folder of token shards"):
        from_table(Needy, {}, "[train]")


def test_only_options_that_shape_bytes_are_in_the_key() -> None:
    assert "timeout" not in shaping_options(Options())
    assert shaping_options(Options())["languages"] == ["en"]


@given(
    st.one_of(
        st.booleans(),
        st.integers(),
        st.text(st.characters(codec="utf-8", exclude_categories=["Cc"])),
    )
)
def test_a_value_written_as_toml_reads_back(value: object) -> None:
    tomllib = pytest.importorskip(
        "tomllib", reason="the standard library reads TOML from Python 3.11 on"
    )
    assert tomllib.loads(f"key = {to_toml(value)}")["key"] == value


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (float("inf"), "threshold: inf is not finite; expected a number from 0 to 1"),
        (True, "threshold: True is not a number from 0 to 1"),
        ("0.5", "threshold: '0.5' is not a number from 0 to 1"),
        ([0.5], r"threshold: \[0.5\] is not a number from 0 to 1"),
    ],
)
def test_a_text_or_an_infinite_number_is_refused(value: object, message: str) -> None:
    with pytest.raises(SettingsError, match=message):
        from_table(Options, {"threshold": value}, "[clean]")


def test_a_number_without_bounds_is_finite() -> None:
    assert from_table(Options, {"timeout": 1 << 40}, "[clean]").timeout == float(1 << 40)
    for value in (float("nan"), float("inf"), float("-inf")):
        with pytest.raises(SettingsError, match=r"timeout: .* is not finite; expected a number$"):
            from_table(Options, {"timeout": value}, "[clean]")


@pytest.mark.parametrize("value", [1.0, "1", None, {}, -(1 << 63) - 1])
def test_a_whole_number_is_written_as_one(value: object) -> None:
    with pytest.raises(SettingsError, match=r"min_tokens: .* is not a whole number of at least 0"):
        from_table(Options, {"min_tokens": value}, "[clean]")


def test_a_list_is_explained_by_its_wrong_item() -> None:
    with pytest.raises(SettingsError, match=r"^x: dumps: 3 is not a string$"):
        from_table(Options, {"dumps": ["a", 3]}, "x")
    with pytest.raises(SettingsError, match=r"^x: dumps: 3 is not a list, each a string$"):
        from_table(Options, {"dumps": 3}, "x")
