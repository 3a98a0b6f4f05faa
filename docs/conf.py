"""Sphinx' settings: `make docs` builds the pages of this folder into build/docs/."""

import re
from pathlib import Path

project = "OpenWebText, rebuilt"
_package = Path(__file__).resolve().parent.parent / "owt_pipeline/version.py"
release = version = re.search(r'__version__ = "(.+)"', _package.read_text())[1]  # type: ignore[index]
extensions = ["myst_parser", "sphinx_copybutton"]
html_theme = "furo"
html_title = f"{project} {release}"
html_static_path = ["_static"]
html_css_files = ["wrap.css"]
exclude_patterns = ["requirements.txt", "constraints.txt"]
smartquotes = False  # `--flag` in a table stays two hyphens
copybutton_prompt_text = "$ "
copybutton_line_continuation_character = "\\"
highlight_language = "none"  # what is a program says so
myst_heading_anchors = 3
suppress_warnings = [
    "misc.highlighting_failure"
]  # the lexer of consoles knows no quotes over several lines
