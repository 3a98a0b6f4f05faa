"""The Flex Template's metadata is what the options say, and its parameters become the flags of `owt run`."""

from __future__ import annotations

import dataclasses
import json
import re
import typing
from typing import Any

import pytest

from owt_pipeline.commands.run import build_parser
from owt_pipeline.flex_template import arguments, metadata
from owt_pipeline.stages import ORDER, load
from schemas.settings import flags_given, from_table, scalar_type
from tests.conftest import REPOSITORY

PARAMETERS = {parameter["name"]: parameter for parameter in metadata()["parameters"]}


def accepts(name: str, value: str) -> bool:
    return all(re.search(pattern, value) for pattern in PARAMETERS[name]["regexes"])


def fields() -> list[tuple[str, dataclasses.Field[Any], Any]]:
    found = []
    for stage in ORDER:
        cls = load(stage).options
        kinds = typing.get_type_hints(cls)
        fields = [field for field in dataclasses.fields(cls) if field.name != "times" and field.metadata["is_flag"]]
        found += [(stage, field, kinds[field.name]) for field in fields]
    return found


def parameter_of(stage: str, field: dataclasses.Field[Any]) -> str:
    return field.name if field.name in PARAMETERS else f"{stage}_{field.name}"


def as_text(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return " ".join(map(str, value)) if isinstance(value, tuple) else str(value)


def some_value(field: dataclasses.Field[Any], kind: Any) -> Any:
    """A value that is allowed, other than the default where there is one."""
    scalar, many = scalar_type(kind)
    choices = field.metadata.get("choices")
    if choices:
        found: Any = choices[-1]
    elif scalar is bool:
        found = not field.default
    elif scalar is str:
        found = "gs://bucket/a-*.zst" if many else "two words"
    else:
        low, high = field.metadata.get("minimum"), field.metadata.get("maximum")
        found = scalar(high if high is not None else (low or 0) + 2)
    return (found, found) if many and not choices else (found,) if many else found


def test_the_file_is_what_the_options_give() -> None:
    """Made again by `python -m owt_pipeline.flex_template > flex/metadata.json`."""
    assert json.loads((REPOSITORY / "flex/metadata.json").read_text()) == metadata()


def test_every_parameter_has_a_label_a_help_text_and_patterns_of_egrep() -> None:
    for name, parameter in PARAMETERS.items():
        assert re.fullmatch(r"[a-zA-Z][a-zA-Z0-9_]*", name)
        assert parameter["label"]
        assert len(parameter["helpText"]) > 8, name
        for pattern in parameter["regexes"]:
            assert pattern.startswith("^")
            assert pattern.endswith("$")
            assert not re.search(r"\\[dws]|\(\?", pattern), pattern
    assert [name for name, parameter in PARAMETERS.items() if not parameter["isOptional"]] == ["workdir"]


@pytest.mark.parametrize(("stage", "field", "kind"), fields(), ids=lambda value: getattr(value, "name", ""))
def test_a_parameter_takes_what_the_option_takes_and_arrives(stage: str, field: Any, kind: Any) -> None:
    name, value = parameter_of(stage, field), some_value(field, kind)
    if field.default is not dataclasses.MISSING and field.default not in (None, (), ""):
        assert accepts(name, as_text(field.default))
    assert accepts(name, as_text(value))
    given = arguments([f"--{name}={as_text(value)}", "--workdir=gs://bucket/run", "--runner=DataflowRunner"])
    namespace, rest = build_parser().parse_known_args(given)
    assert rest == ["--runner=DataflowRunner"]
    flags = flags_given(load(stage).options, namespace, prefix=f"{stage}.")
    options = from_table(load(stage).options, {**required(stage), **flags}, stage)
    assert getattr(options, field.name) == value


def required(stage: str) -> dict[str, Any]:
    return {
        field.name: some_value(field, typing.get_type_hints(load(stage).options)[field.name])
        for field in dataclasses.fields(load(stage).options)
        if field.default is dataclasses.MISSING
    }


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("workdir", "/tmp/run"),
        ("workdir", "gs://bucket"),
        ("config", "config.toml"),
        ("until", "publish"),
        ("num_shards", "many"),
        ("num_shards", "1.5"),
        ("over_18", "yes"),
        ("score_policy", "mean"),
        ("dumps", ""),
    ],
)
def test_a_parameter_refuses_invalid_values(name: str, value: str) -> None:
    assert not accepts(name, value)


def test_the_configuration_and_beams_flags_stay() -> None:
    beam = ["--project=p", "--template_location=gs://bucket/job", "--labels={}"]
    given = arguments([*beam, "--config=gs://bucket/config.toml", "--take_over=true", "--over_18=false"])
    assert given == [*beam, "--config=gs://bucket/config.toml", "--take_over", "--collect.no_over_18"]


def test_an_empty_parameter_counts_as_absent() -> None:
    assert arguments(["--dumps=", "--config="]) == []
