"""Formulas of a page as LaTeX, from:

- MathML with its source: KaTeX, LaTeXML, Wikipedia, MathJax 3 with assistive markup (`<annotation>`, `alttext`);
- MathML without its source, converted to LaTeX element by element;
- scripts of MathJax 2 (`<script type="math/tex">`), whose drawings are skipped;
- images with the source as alternative text (Wikipedia, WordPress, CodeCogs).
"""

from __future__ import annotations

import re
from importlib import resources

from lxml import etree

from owt_pipeline.stages.extract.names import finder

_TEX_ENCODINGS = ("application/x-tex", "application/x-latex", "latex", "tex", "text/x-tex")
_NAMES_FORMULA = finder(
    re.compile(r"(?:^|\s)(?:mwe-math|latex|tex|math|katex|mathjax|equation)(?=[\s_-]|$)", re.IGNORECASE)
)
_IMAGE_SOURCE = re.compile(r"latex\.codecogs\.com|chart\?cht=tx|/latex\.php|quicklatex\.com")
_LATEX = re.compile(r"[\\^_=]")
_STYLE = re.compile(r"^\{\s*\\(?:display|text)style\s*(.*)\}$|^\\(?:display|text)style\b\s*(.*)$", re.DOTALL)
_SPACE = re.compile(r"\s+")
_COMMAND_AT_END = re.compile(r"\\[A-Za-z]+\Z")
_LONGEST_COMMAND = 40  # a longer end is not looked at, so that the time is linear in the text's length

# MathML's operators and letters that are commands in LaTeX; others are copied.
_COMMANDS = dict(
    map(str.split, resources.files("owt_pipeline.stages.extract").joinpath("latex.txt").read_text("utf-8").splitlines())
)
_COMMANDS |= {**dict.fromkeys("\u2061\u2062\u2063\u2064", ""), "\u00a0": " "}
_ACCENTS = {"^": "hat", "ˆ": "hat", "¯": "bar", "‾": "overline", "→": "vec", "˙": "dot", "¨": "ddot", "~": "tilde",
            "˜": "tilde", "⏞": "overbrace"}  # fmt: skip
_MAX_DEPTH = 100  # of elements in a formula; Python's recursion has a limit
_FUNCTIONS = frozenset("sin cos tan cot sec csc log ln exp lim max min sup inf det dim ker arg gcd deg".split())


def formula_of(element: etree._Element, tag: str) -> tuple[str, bool] | None:
    """(LaTeX of `element`, a `math`, `script` or `img`; whether it is displayed on its own lines); None if none."""
    get = element.get
    if tag == "math":
        return _clean(_of_math(element)), _is_display(element)
    if tag == "script":
        kind = (get("type") or "").lower()
        if not kind.startswith("math/tex"):
            return None
        return _clean(element.text or ""), "mode=display" in kind
    alt, classes = get("alt"), get("class")
    if not alt or not (
        (classes and _NAMES_FORMULA[classes]) or (_LATEX.search(alt) and _IMAGE_SOURCE.search(get("src") or ""))
    ):
        return None
    return _clean(alt), classes is not None and "display" in classes


def is_drawn(element: etree._Element) -> bool:
    """Whether `element`, which has a class of MathJax 2, is the drawing of the formula in the script after it."""
    following = element.getnext()
    for _ in range(3):  # a preview and the drawing in other formats
        if following is None or not (following.get("class") or "").startswith("MathJax"):
            break
        following = following.getnext()
    return following is not None and following.tag == "script" and (following.get("type") or "").startswith("math/tex")


def _is_display(math: etree._Element) -> bool:
    if math.get("display") == "block" or math.get("mode") == "display":
        return True
    above = math.getparent()
    for _ in range(3):
        if above is None:
            return False
        if "katex-display" in (above.get("class") or "") or above.get("display") == "true":
            return True
        above = above.getparent()
    return False


def _of_math(math: etree._Element) -> str:
    for annotation in math.iter("annotation"):
        if (annotation.get("encoding") or "").lower() in _TEX_ENCODINGS:
            return "".join(annotation.itertext())
    return math.get("alttext") or _joined([_write(child, 0) for child in math])


def _clean(latex: str) -> str:
    latex = _SPACE.sub(" ", latex).strip()
    if match := _STYLE.match(latex):
        latex = (match[1] or match[2] or "").strip()
    if len(latex) > 4 and latex.startswith("$$") and latex.endswith("$$"):
        latex = latex[2:-2].strip()
    elif len(latex) > 2 and latex.startswith("$") and latex.endswith("$") and "$" not in latex[1:-1]:
        latex = latex[1:-1].strip()
    return latex


def _joined(parts: list[str]) -> str:
    """The parts joined, with a space between a command and a letter."""
    text = ""
    for part in parts:
        if part and text and part[0].isalpha() and _COMMAND_AT_END.search(text, len(text) - _LONGEST_COMMAND):
            text += " "
        text += part
    return text


def _write(element: etree._Element, depth: int) -> str:
    """A MathML element as LaTeX; the content of an unknown element."""
    if depth > _MAX_DEPTH:
        return "".join(element.itertext())
    tag = element.tag
    parts = [_write(child, depth + 1) for child in element]
    if not parts:
        return _leaf(tag, (element.text or "").strip())
    if tag == "mfrac" and len(parts) == 2:
        if (element.get("linethickness") or "").strip() in ("0", "0px", "0pt"):
            return rf"{{{parts[0]} \atop {parts[1]}}}"
        return rf"\frac{{{parts[0]}}}{{{parts[1]}}}"
    if tag == "msqrt":
        return rf"\sqrt{{{_joined(parts)}}}"
    if tag == "mroot" and len(parts) == 2:
        return rf"\sqrt[{parts[1]}]{{{parts[0]}}}"
    if tag in ("msup", "msub") and len(parts) == 2:
        return f"{_base(parts[0])}{'^' if tag == 'msup' else '_'}{{{parts[1]}}}"
    if tag in ("msubsup", "munderover") and len(parts) == 3:
        return f"{_base(parts[0])}_{{{parts[1]}}}^{{{parts[2]}}}"
    if tag == "mover" and len(parts) == 2:
        accent = _ACCENTS.get("".join(element[1].itertext()).strip())
        return rf"\{accent}{{{parts[0]}}}" if accent else f"{_base(parts[0])}^{{{parts[1]}}}"
    if tag == "munder" and len(parts) == 2:
        return f"{_base(parts[0])}_{{{parts[1]}}}"
    if tag == "mtable":
        return r"\begin{matrix}" + r" \\ ".join(parts) + r"\end{matrix}"
    if tag in ("mtr", "mlabeledtr"):
        return " & ".join(parts)
    if tag == "mfenced":
        return rf"{element.get('open') or '('}{', '.join(parts)}{element.get('close') or ')'}"
    if tag == "semantics":
        return parts[0]
    if tag in ("annotation", "annotation-xml"):
        return ""
    return _joined(parts)


def _leaf(tag: str, text: str) -> str:
    if tag == "mtext":
        return rf"\text{{{text}}}" if text else " "
    if tag == "mspace":
        return " "
    if tag in ("annotation", "annotation-xml"):
        return ""
    if tag == "mi" and text in _FUNCTIONS:
        return f"\\{text}"
    if len(text) > 1 and tag == "mi" and text.isalpha() and text.isascii():
        return rf"\mathrm{{{text}}}"
    return _joined([_COMMANDS.get(char, char) for char in text])


def _base(text: str) -> str:
    return text if len(text) == 1 or re.fullmatch(r"\\[A-Za-z]+", text) else f"{{{text}}}"
