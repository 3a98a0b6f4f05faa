"""Formulas of a page as LaTeX, where the page has their source:

- MathML with an `<annotation>` or `alttext`: KaTeX, LaTeXML, Wikipedia, MathJax 3 with assistive markup;
- scripts of MathJax 2 (`<script type="math/tex">`), whose drawings are skipped;
- images with the source as alternative text (Wikipedia, WordPress, CodeCogs).
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from owt_pipeline.stages.extract.names import finder

_TEX_ENCODINGS = ("application/x-tex", "application/x-latex", "latex", "tex", "text/x-tex")
_NAMES_FORMULA = finder(
    re.compile(r"(?:^|\s)(?:mwe-math|latex|tex|math|katex|mathjax|equation)(?=[\s_-]|$)", re.IGNORECASE)
)
_IMAGE_SOURCE = re.compile(r"latex\.codecogs\.com|chart\?cht=tx|/latex\.php|quicklatex\.com")
_LATEX = re.compile(r"[\\^_=]")
_STYLE = re.compile(r"^\{\s*\\(?:display|text)style\s*(.*)\}$|^\\(?:display|text)style\b\s*(.*)$", re.DOTALL)


class Formula:
    """An open `<math>`, from the parser's events in it; `depth` is the number of open elements, with itself."""

    def __init__(self, attributes: Mapping[str, str]) -> None:
        self.depth = 1
        self.is_large = attributes.get("display") == "block" or attributes.get("mode") == "display"
        self._alternative = attributes.get("alttext") or ""
        self._pieces: list[str] = []
        self._source: list[str] = []
        self._annotation = 0  # depth of an annotation
        self._is_source = False

    def start(self, tag: str, attributes: Mapping[str, str]) -> None:
        self.depth += 1
        if tag in ("annotation", "annotation-xml"):
            self._annotation = self.depth
            self._is_source = (attributes.get("encoding") or "").lower() in _TEX_ENCODINGS and not self._source

    def add(self, text: str) -> None:
        if not self._annotation or self.depth < self._annotation:
            self._pieces.append(text)
        elif self._is_source:
            self._source.append(text)

    def latex(self) -> str:
        """Its source; "" if the page does not have it."""
        return cleaned("".join(self._source) or self._alternative)

    def text(self) -> str:
        """What it shows, in one line."""
        return " ".join("".join(self._pieces).split())


def of_image(attributes: Mapping[str, str]) -> tuple[str, bool] | None:
    """(LaTeX, whether it is displayed on its own lines) of an image; None for any other image."""
    alternative, classes = attributes.get("alt"), attributes.get("class")
    if not alternative or not (
        (classes and _NAMES_FORMULA[classes])
        or (_LATEX.search(alternative) and _IMAGE_SOURCE.search(attributes.get("src") or ""))
    ):
        return None
    return cleaned(alternative), classes is not None and "display" in classes


def cleaned(latex: str) -> str:
    latex = " ".join(latex.split())
    if match := _STYLE.match(latex):
        latex = (match[1] or match[2] or "").strip()
    if len(latex) > 4 and latex.startswith("$$") and latex.endswith("$$"):
        return latex[2:-2].strip()
    if len(latex) > 2 and latex.startswith("$") and latex.endswith("$") and "$" not in latex[1:-1]:
        return latex[1:-1].strip()
    return latex
