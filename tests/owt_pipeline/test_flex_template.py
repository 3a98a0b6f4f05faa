"""The Flex Template's three parameters become the flags of `owt run`."""

from __future__ import annotations

import json
import re

import pytest

from owt_pipeline.commands.run import build_parser
from owt_pipeline.flex_template import arguments
from tests.conftest import REPOSITORY

PARAMETERS = {p["name"]: p for p in json.loads((REPOSITORY / "flex/metadata.json").read_text())["parameters"]}


@pytest.mark.parametrize(
    ("name", "value", "holds"),
    [
        ("run", "gs://bucket/run", True),
        ("run", "/tmp/run", False),
        ("settings", "config.toml", False),
        ("beam_flags", "--num_workers=2 --sdk_container_image=a/b:c", True),
        ("beam_flags", "num_workers", False),
    ],
)
def test_a_parameter_refuses_invalid_values(name: str, value: str, holds: bool) -> None:
    assert all(bool(re.search(pattern, value)) == holds for pattern in PARAMETERS[name]["regexes"])


def test_parameters_become_flags_and_those_of_the_launcher_stay() -> None:
    beam = ["--project=p", "--template_location=gs://bucket/job", "--labels={}"]
    given = arguments([*beam, "--run=gs://b/run", "--settings=gs://b/c.toml", "--beam_flags=--a=1 '--b=2'"])
    _, words, rest = build_parser().parse_with_files(given)
    assert words == ["gs://b/run", "gs://b/c.toml"]
    assert rest == [*beam, "--a=1", "--b=2"]
    assert arguments(["--settings=", "--beam_flags="]) == []
