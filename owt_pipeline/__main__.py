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
    "fastwarc",
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
"""What the extra `pipeline` brings, by the names that are imported."""


def main() -> int:
    """Run `owt`; return its exit code.

    Prints one line if `schemas` or `trainer` is another project's package, or if a package of the
    extra `pipeline` is missing.
    """
    problem = _hidden_package() or _missing_packages()
    if problem is not None:
        print(f"owt: error: {problem}", file=sys.stderr)
        return 1
    # As `python -m` does, so that a module of the user's is found whichever way owt is started.
    # At the end: no file of the current folder takes the place of a package.
    if not {"", os.getcwd()}.intersection(sys.path):
        sys.path.append(os.getcwd())
    from owt_pipeline.cli import main as run  # which imports schemas

    return run()


def _hidden_package() -> str | None:
    """Return what to do about another project's `schemas` or `trainer`; None if both are ours."""
    ours = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    for name, module in (("schemas", "settings.py"), ("trainer", "samplers.py")):
        spec = importlib.util.find_spec(name)
        origin = spec.origin if spec is not None else None
        folder = os.path.dirname(os.path.abspath(origin)) if origin else "nowhere"
        if folder != os.path.join(ours, name) or not os.path.exists(os.path.join(folder, module)):
            return (
                f"the package {name} is another project's ({folder}), not owt-pipeline's: install "
                "owt-pipeline in an environment of its own, and start it where no folder has that "
                "name"
            )
    return None


def _missing_packages() -> str | None:
    """Return how to install what the commands need; None if nothing is missing.

    pip takes the installed owt-pipeline for this, so no index is asked for one.
    """
    missing = [name for name in PACKAGES_OF_COMMANDS if importlib.util.find_spec(name) is None]
    if not missing:
        return None
    more = f" and {len(missing) - 3} more" if len(missing) > 3 else ""
    return (
        f"only the library is installed; the commands also need {', '.join(missing[:3])}{more}: "
        "pip install 'owt-pipeline[pipeline]'"
    )


if __name__ == "__main__":
    sys.exit(main())
