"""Finds the references of texts: files, modules, commands, flags, settings and names.

The texts are the pages, the docstrings, comments and string literals of the code, and the comments
of other files. `references` finds the names in a text; `Project` knows what exists.
"""

from __future__ import annotations

import argparse
import ast
import io
import re
import tokenize
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from typing import Any

import tomllib

PACKAGES = ("owt_pipeline", "trainer", "schemas", "dags", "benchmarks", "tests", "flex")
PACKAGES += ("examples",)
FOLDERS = (*PACKAGES, "docs", "presets", "tools")
CODE_SUFFIXES = (".py", ".md", ".toml", ".sql", ".txt", ".html", ".css", ".js", ".xml")

PATH = re.compile(rf"(?<![\w./${{}}>-])(?:{'|'.join(FOLDERS)})/[\w./*-]*[\w*]")
FILE = re.compile(r"(?<![\w./*{}-])[\w./-]*\w\.py\b(?!\.)")
MODULE = re.compile(
    rf"(?<![\w./@-])(?:{'|'.join(PACKAGES)})(?:\.[A-Za-z_]\w*)+(?::\w+)?(?![\w/*-])"
)
COMMAND = re.compile(r"(?<![\w/.-])owt ([a-z][a-z-]*)")
PROGRAM = re.compile(r"python3? -m ([A-Za-z_][\w.]*\w)(?![.*])|(?<![\w/])(benchmarks/\w+\.py)")
TARGET = re.compile(r"(?<![\w-])make ((?:[A-Z_]+=\S+ )*)([a-z][a-z-]*)")
FLAG = re.compile(r"(?<![\w\-(])--([a-z][\w-]*\w)")
LINK = re.compile(r"\]\(([^)#:\s]*)(?:#([^)\s]+))?\)")
QUOTED = re.compile(r"(?<!`)`([^`\n]+)`(?!`)")
FENCE = re.compile(r"^[ >]*```(\w*)\n(.*?)^[ >]*```$", re.MULTILINE | re.DOTALL)
SETTING = re.compile(r"^([a-z]\w*) = (?:[\"\[\d-]|true|false)")
NAMED_SETTING = re.compile(r"\b(?:setting|option|key) `([a-z_]+)`|`([a-z_]+)` under `\[")
TABLE = re.compile(r"^\[([a-z_]+(?:\.[a-z_]+)*)\]$")
# A snake_case or CamelCase word: plain lower-case words are also words of English.
NAME = re.compile(r"^_?[A-Za-z]\w*(?:_\w+|[a-z][A-Z]\w*)$")
STYLE = re.compile(r"<style>.*?</style>", re.DOTALL)
OWN_FILE = re.compile(r"^`([\w./-]+)`:$", re.MULTILINE)
END_OF_COMMAND = re.compile(r"`|\n|&&|\|\||[|;]|\s#\s")


@dataclass(frozen=True)
class Text:
    """A text that may refer to something.

    Attributes:
      path: the file that has it.
      line: its first line in that file.
      text: the text; `*` stands for each value that an f-string puts in.
      is_page: whether it is Markdown.
    """

    path: Path
    line: int
    text: str
    is_page: bool = False


@dataclass(frozen=True, order=True)
class Reference:
    """One reference: its kind, its target, and the place that has it.

    Attributes:
      kind: path, file, module, program, command, target, flag, setting, table, name or link.
      target: the name. A flag in a command line has its program ("owt ls --json"), a setting
        in a block of TOML its table ("clean.filters").
    """

    kind: str
    target: str
    path: Path
    line: int


def texts_of_code(path: Path) -> Iterator[Text]:
    """Return the comments, docstrings and string literals of a Python file."""
    source = path.read_text(encoding="utf-8")
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            yield Text(path, token.start[0], token.string)
    tree = ast.parse(source)
    parts_of_f_strings = {
        id(part)
        for node in ast.walk(tree)
        if isinstance(node, ast.JoinedStr)
        for part in node.values
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            parts = [
                str(part.value) if isinstance(part, ast.Constant) else "*" for part in node.values
            ]
            yield Text(path, node.lineno, "".join(parts))
        elif id(node) not in parts_of_f_strings and isinstance(node, ast.Constant):
            yield Text(path, node.lineno, node.value if isinstance(node.value, str) else "")


def texts_of(path: Path) -> Iterator[Text]:
    """Return the texts of a file."""
    if path.suffix == ".py":
        yield from texts_of_code(path)
    else:
        # The package's Markdown is a template: its blocks of code are Jinja's.
        is_page = path.suffix == ".md" and "owt_pipeline" not in path.parts
        text = path.read_text(encoding="utf-8")
        # Recipes call other programs in nearly every line: only their comments are texts.
        if not path.suffix or path.suffix == ".toml":
            text = re.sub(r"^(?!.*#).*$|^[^#\n]+", _blank, text, flags=re.MULTILINE)
        yield Text(path, 1, text, is_page)


def references(text: Text) -> Iterator[Reference]:
    """Return the references of a text."""

    def refer(kind: str, target: str, position: int) -> Reference:
        num_lines = text.text.count("\n", 0, position)
        return Reference(kind, target, text.path, text.line + num_lines)

    # Every replacement keeps the length, so that positions still give the line.
    body = STYLE.sub(_blank, text.text).replace("\\\n", "  ")
    for kind, pattern in (("path", PATH), ("file", FILE), ("module", MODULE)):
        for match in pattern.finditer(body):
            yield refer(kind, match[0], match.start())
    for match in COMMAND.finditer(body):
        yield refer("command", match[1], match.start())
        for flag in FLAG.findall(_rest_of_command(body, match.end())):
            yield refer("flag", f"owt {match[1]} --{flag}", match.start())
    for match in PROGRAM.finditer(body):
        program = match[1] or match[2].removesuffix(".py").replace("/", ".")
        yield refer("program", program, match.start())
        for flag in FLAG.findall(_rest_of_command(body, match.end())):
            yield refer("flag", f"{program} --{flag}", match.start())
    prose = FENCE.sub(_blank, body) if text.is_page else body
    for match in FLAG.finditer(prose):
        yield refer("flag", f"--{match[1]}", match.start())
    for match in NAMED_SETTING.finditer(prose):
        yield refer("setting", match[1] or match[2], match.start())
    for match in QUOTED.finditer(prose):
        quoted = match[1]
        if target := TARGET.match(quoted):
            yield refer("target", target[2], match.start())
        if setting := SETTING.match(quoted):
            yield refer("setting", setting[1], match.start())
        if table := TABLE.match(quoted):
            yield refer("table", table[1], match.start())
        if NAME.match(quoted.removesuffix("()")):
            yield refer("name", quoted.removesuffix("()"), match.start())
    if text.is_page:
        yield from _references_of_page(text, refer)


def _blank(match: re.Match[str]) -> str:
    """Return spaces and the line breaks of a match."""
    return re.sub(r"[^\n]", " ", match[0])


def _rest_of_command(text: str, start: int) -> str:
    """Return the words that follow a command's name on its line."""
    end = END_OF_COMMAND.search(text, start)
    return text[start : end.start()] if end else text[start:]


def _references_of_page(
    page: Text, refer: Callable[[str, str, int], Reference]
) -> Iterator[Reference]:
    """Return the links and the settings of a page's TOML."""
    for match in LINK.finditer(page.text):
        yield refer("link", f"{match[1]}#{match[2] or ''}", match.start())
    for match in FENCE.finditer(page.text):
        if match[1] == "toml":
            tables = tomllib.loads(match[2])
            # The pyproject.toml of a package has no settings.
            for setting in _settings_of({} if "project" in tables else tables):
                yield refer("setting", setting, match.start())
        for line in match[2].splitlines():
            if target := TARGET.match(line.strip().removeprefix("$ ")):
                yield refer("target", target[2], match.start())


def _settings_of(tables: dict[str, Any], prefix: str = "") -> Iterator[str]:
    """Return the keys of TOML tables, each with its table: "clean.filters"."""
    for key, value in tables.items():
        if isinstance(value, dict):
            yield from _settings_of(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}"


@dataclass
class Project:
    """What exists.

    Attributes:
      root: the repository's folder.
      flags_of: returns the flags of a program, such as "owt run" or "trainer"; None if they
        are not known.
      commands: the commands of `owt`.
      tables: the keys of each table of a settings file, such as "clean" and "clean.c4".
      elsewhere: by kind, names outside of this project: names, flags and files of others, and files
        that commands write.
    """

    root: Path
    flags_of: Callable[[str], frozenset[str] | None]
    commands: frozenset[str]
    tables: dict[str, frozenset[str]]
    elsewhere: dict[str, frozenset[str]]

    def dead(self, texts: Iterable[Text]) -> list[Reference]:
        """Return the references whose target does not exist."""
        dead = set()
        for text in texts:
            files_of_page = OWN_FILE.findall(text.text) if text.is_page else []
            for reference in references(text):
                if reference.target not in files_of_page and not self.has(reference):
                    dead.add(reference)
        return sorted(dead)

    def has(self, reference: Reference) -> bool:
        """Return whether the target of a reference exists, here or elsewhere."""
        kind = reference.kind
        target = reference.target
        if kind == "flag":
            target = target.rpartition("--")[2]
        if target in self.elsewhere.get(kind, ()):
            return True
        if kind == "link":
            return self._has_link(target, reference.path)
        check: Callable[[str], bool] = getattr(self, f"_has_{kind}")
        return check(reference.target)

    def _has_path(self, path: str) -> bool:
        path = path.rstrip("/.")
        # Pages name each other from their folder, and the package its data from its own.
        folders = (self.root, self.root / "docs", self.root / "owt_pipeline")
        return any((at / path).exists() or any(at.glob(path)) for at in folders)

    def _has_file(self, path: str) -> bool:
        """Return whether a path is the end of a Python file's path."""
        return any(f"/{file}".endswith(f"/{path.lstrip('./')}") for file in self._files)

    def _has_module(self, name: str) -> bool:
        parts = name.replace(":", ".").split(".")
        for length in range(len(parts), 0, -1):
            base = self.root.joinpath(*parts[:length])
            file = base.with_suffix(".py")
            if not file.is_file():
                file = base / "__init__.py"
            if file.is_file():
                names = _names_bound_in(file)
                return all(part in names for part in parts[length:])
            if base.is_dir():
                # A folder without __init__.py has no names of its own.
                return length == len(parts)
        return False

    def _has_program(self, name: str) -> bool:
        if name.partition(".")[0] not in PACKAGES:
            return True
        base = self.root.joinpath(*name.split("."))
        return base.with_suffix(".py").is_file() or (base / "__main__.py").is_file()

    def _has_command(self, name: str) -> bool:
        return name in self.commands

    def _has_target(self, name: str) -> bool:
        return bool(re.search(rf"^{name}:", (self.root / "Makefile").read_text(), re.MULTILINE))

    def _has_flag(self, flag: str) -> bool:
        program, _, name = flag.rpartition("--")
        if not program:
            return any(name in flags for flags in self._all_flags)
        flags = self.flags_of(program.strip())
        return flags is None or name in flags

    def _has_setting(self, name: str) -> bool:
        table, _, key = name.rpartition(".")
        if table:
            return key in self.tables.get(table, ())
        return any(key in keys for keys in self.tables.values())

    def _has_table(self, name: str) -> bool:
        return name in self.tables

    def _has_name(self, name: str) -> bool:
        return name in self._words

    def _has_link(self, link: str, page: Path) -> bool:
        path, _, anchor = link.partition("#")
        target = page.parent / path if path else page
        if not target.exists():
            return False
        return not anchor or anchor in anchors(target.read_text(encoding="utf-8"))

    @cached_property
    def _files(self) -> list[str]:
        return [
            file.relative_to(self.root).as_posix()
            for folder in FOLDERS
            for file in (self.root / folder).rglob("*.py")
        ]

    @cached_property
    def _all_flags(self) -> list[frozenset[str]]:
        programs = [f"owt {command}" for command in self.commands]
        programs += [
            file.removesuffix(".py").replace("/", ".")
            for file in self._files
            if file.startswith(("trainer/", "benchmarks/", "tests/", "owt_pipeline/flex"))
        ]
        return [flags for program in programs if (flags := self.flags_of(program)) is not None]

    @cached_property
    def _words(self) -> set[str]:
        """Return the names of all code, and the words of its literals outside of backticks."""
        words: set[str] = set()
        for file in self._files:
            # A test's literals have samples and planted mistakes.
            has_literals = not file.startswith("tests/")
            for node in ast.walk(ast.parse((self.root / file).read_text(encoding="utf-8"))):
                if has_literals or not isinstance(node, ast.Constant):
                    words.update(_names_in(node))
        for suffix in ("*.sql", "*.toml", "*.js", "*.xml", "*.txt"):
            for path in (self.root / "owt_pipeline").rglob(suffix):
                words.update(re.findall(r"\w+", path.read_text(encoding="utf-8")))
        return words


@cache
def _names_bound_in(file: Path) -> frozenset[str]:
    """Return every name that a module binds, also in its classes and for a type checker."""
    names = set()
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            names.add(node.name)
        elif isinstance(node, ast.alias):
            names.add((node.asname or node.name).partition(".")[0])
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            names.add(node.id)
    return frozenset(names)


def _names_in(node: ast.AST) -> Iterator[str]:
    """Return the names that a node has, and the words of a literal that is not a docstring."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        # A docstring, or a message: a word with backticks there is a reference, not a name.
        if "\n" not in node.value and "`" not in node.value:
            yield from re.findall(r"\w+", node.value)
        return
    for attribute in ("id", "attr", "arg", "name", "asname", "module"):
        value = getattr(node, attribute, None)
        if isinstance(value, str):
            yield from value.split(".")


def anchors(page: str) -> set[str]:
    """Return the anchors of a page's headings, as GitHub and MyST make them."""
    prose = FENCE.sub("", page)
    headings = re.findall(r"^#+ (.+)$", prose, re.MULTILINE)
    return {
        re.sub(r"[^\w -]", "", heading.strip().lower()).replace(" ", "-") for heading in headings
    }


class _Caught(BaseException):
    """The parser of a program, caught before it reads its arguments."""


def flags_of_main(main: Callable[[], object]) -> frozenset[str]:
    """Return the flags of the parser that a program makes, without running the program."""
    flags: set[str] = set()

    def catch(parser: argparse.ArgumentParser, *_: object, **__: object) -> None:
        flags.update(parser._option_string_actions)
        raise _Caught

    original = argparse.ArgumentParser.parse_known_args
    argparse.ArgumentParser.parse_known_args = catch  # type: ignore[assignment,method-assign]
    try:
        main()
    except _Caught:
        pass
    finally:
        argparse.ArgumentParser.parse_known_args = original  # type: ignore[method-assign]
    return frozenset(flag.removeprefix("--") for flag in flags if flag.startswith("--"))


def flags_in_source(file: Path) -> frozenset[str]:
    """Return the flags that a script gives to `add_argument`."""
    flags = set()
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Call) and getattr(node.func, "attr", "") == "add_argument":
            for argument in node.args:
                if isinstance(argument, ast.Constant) and str(argument.value).startswith("--"):
                    flags.add(str(argument.value)[2:])
    return frozenset(flags)
