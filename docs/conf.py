"""Sphinx' settings: `make docs` builds the pages of this folder into build/docs/."""

project = "OpenWebText, rebuilt"
extensions = ["myst_parser"]
html_theme = "furo"
html_title = project
exclude_patterns = ["requirements.txt", "constraints.txt"]
highlight_language = "none"  # what is a program says so
myst_heading_anchors = 3
suppress_warnings = ["misc.highlighting_failure"]  # the lexer of consoles knows no quotes over several lines
