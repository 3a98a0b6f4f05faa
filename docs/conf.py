"""Sphinx' settings: `make docs` builds the pages of this folder into build/docs/."""

import re
from pathlib import Path

_ROOT = Path(__file__).resolve().parent.parent
_version_file = (_ROOT / "owt_pipeline/version.py").read_text()
_version = re.search(r'__version__ = "(.+)"', _version_file)
assert _version, "owt_pipeline/version.py has no version"

project = "OpenWebText, rebuilt"
release = _version[1]
version = release
extensions = ["myst_parser", "sphinx_copybutton"]
html_theme = "furo"
html_title = f"{project} {release}"
html_static_path = ["_static"]
html_css_files = ["wrap.css"]
exclude_patterns = ["requirements.txt", "constraints.txt"]
# `--flag` in a table stays two hyphens.
smartquotes = False
copybutton_prompt_text = "$ "
copybutton_line_continuation_character = "\\"
# A block of a programming language names it; the others stay as they are.
highlight_language = "none"
myst_heading_anchors = 3
# The lexer of consoles does not know quotes over several lines.
suppress_warnings = ["misc.highlighting_failure"]
