"""`owt`, and `python -m owt_pipeline`."""

from __future__ import annotations

import importlib.util
import os
import sys


def main() -> int:
    """Run `owt`; prints one line where `schemas` or `trainer` is another project's package."""
    ours = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    for name, module in (("schemas", "settings.py"), ("trainer", "samplers.py")):
        found = importlib.util.find_spec(name)
        folder = (
            os.path.dirname(os.path.abspath(found.origin)) if found and found.origin else "nowhere"
        )
        if folder != os.path.join(ours, name) or not os.path.exists(os.path.join(folder, module)):
            print(
                f"owt: error: the package {name} is another project's ({folder}), not "
                f"owt-pipeline's: install "
                "owt-pipeline in an environment of its own, and start it where no folder has that "
                "name",
                file=sys.stderr,
            )
            return 1
    # As `python -m` does, so that a module of the user's is found whichever way owt is started.
    # At the end: no file of the current folder takes the place of a package.
    if not {"", os.getcwd()}.intersection(sys.path):
        sys.path.append(os.getcwd())
    from owt_pipeline.cli import main as run  # which imports schemas

    return run()


if __name__ == "__main__":
    sys.exit(main())
