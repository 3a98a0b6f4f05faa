"""`owt run` as a Dataflow Flex Template: how the template's launcher starts it.

The launcher (`/opt/google/dataflow/python_template_launcher`, in an image of Google's) runs the
file that `FLEX_TEMPLATE_PYTHON_PY_FILE` names, here `flex/launch.py`, with `--NAME=VALUE` for each
of the template's parameters (`flex/metadata.json`) and for what Beam needs: the project, the
region, `--template_location`, and so on. With the last, the SDK writes the job there instead of
submitting it; the launcher submits it when the program has ended.
"""

from __future__ import annotations

import shlex
from collections.abc import Sequence


def arguments(given: Sequence[str]) -> list[str]:
    """The arguments of `owt run` for what the launcher gives; what is no parameter of the
    template is Beam's flag."""
    words: dict[str, str] = {}
    flags: list[str] = []
    for argument in given:
        name, _, value = argument.removeprefix("--").partition("=")
        if name in ("run", "settings"):
            words[name] = value
        elif name == "beam_flags":
            flags += shlex.split(value)
        else:
            flags.append(argument)
    return [
        *filter(None, (words.get("run"), words.get("settings"))),
        *flags,
    ]  # an empty parameter is none


def main(given: Sequence[str]) -> int:
    """Write the job of a run to `--template_location`; returns the exit code."""
    from owt_pipeline.commands.run import main as run

    return run(arguments(given))
