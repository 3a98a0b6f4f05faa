"""`owt`, and `python -m owt_pipeline`."""

from __future__ import annotations

import importlib.util
import os
import sys

PACKAGES_OF_COMMANDS = (
    "aiohttp",
    "apache_beam",
    "brotli",
    "duckdb",
    "huggingface_hub",
    "isal",
    "jinja2",
    "lxml_html_clean",
    "praw",
    "prawcore",
    "protego",
    "tld",
    "tokenizers",
    "tomlkit",
    "trafilatura",
    "yarl",
)
"""Import names of the packages in the extra `pipeline`."""


def main() -> int:
    """Run `owt`; return its exit code.

    Prints one line if `schemas` or `trainer` is another project's package, or if a package of the
    extra `pipeline` is missing.
    """
    problem = _hidden_package() or _missing_packages()
    if problem is not None:
        print(f"owt: error: {problem}", file=sys.stderr)
        return 1
    # `python -m` adds the current folder. The command adds it too, so that the user's modules are
    # found whichever way it is started. It comes last, so that no file in it takes the place of a
    # package.
    if not {"", os.getcwd()}.intersection(sys.path):
        sys.path.append(os.getcwd())
    # This imports `schemas`, so it comes after the checks.
    from owt_pipeline.cli import main as run

    return run()


def _hidden_package() -> str | None:
    """Return what to do about another project's `schemas` or `trainer`; None if both are ours."""
    folder_of_owt = os.path.dirname(os.path.abspath(__file__))
    expected_parent = os.path.dirname(folder_of_owt)
    for name, module in (("schemas", "settings.py"), ("trainer", "model.py")):
        spec = importlib.util.find_spec(name)
        folder = "nowhere"
        if spec is not None and spec.origin:
            folder = os.path.dirname(os.path.abspath(spec.origin))
        is_ours = folder == os.path.join(expected_parent, name)
        if not is_ours or not os.path.exists(os.path.join(folder, module)):
            return (
                f"the package {name} is another project's ({folder}), not owt-pipeline's: install "
                "owt-pipeline in an environment of its own, and start it where no folder has that "
                "name"
            )
    return None


def _missing_packages() -> str | None:
    """Return how to install the packages that the commands need; None if none is missing.

    pip finds owt-pipeline installed, so it downloads only the missing packages.
    """
    missing = [name for name in PACKAGES_OF_COMMANDS if importlib.util.find_spec(name) is None]
    if not missing:
        return None
    names = ", ".join(missing[:3])
    if len(missing) > 3:
        names += f" and {len(missing) - 3} more"
    return (
        f"only the library is installed; the commands also need {names}: "
        "pip install 'owt-pipeline[pipeline]'"
    )


if __name__ == "__main__":
    sys.exit(main())
