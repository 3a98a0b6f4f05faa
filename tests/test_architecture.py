"""Who imports whom: one way, from commands down to schemas, and never in a circle.

The imports are read from the source: those within functions and those for a type checker, too. Left out is what runs
only where a module is started as a program, and what the package itself shows a type checker of its library.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = ("owt_pipeline", "trainer", "schemas", "dags")
STAGES = ("collect", "fetch", "extract", "import_text", "clean", "dedupe", "export", "tokenize", "report")

FLOORS = (
    ("schemas",),
    ("errors", "progress"),
    ("storage",),
    ("ledger",),
    ("engine", "formats"),
    STAGES,
    ("library", "transforms"),
    ("pipeline", "stages", "config", "command_line", "cli"),
    ("commands", "demo", "flex_template", "__main__"),
)
"""The rooms of `owt_pipeline`, from the lowest floor up. A module imports its own room and those on lower floors, and
but for STAGES also those next to it. `pipeline` and `cli` load stages and commands by name."""


class Import(NamedTuple):
    """`importer` takes `name` of the module `module`; "" for all of it."""

    importer: str
    module: str
    name: str


@cache
def modules() -> dict[str, ast.Module]:
    """The syntax trees of the packages' modules, by name."""
    paths = [path for package in PACKAGES for path in sorted((ROOT / package).rglob("*.py"))]
    return {_name_of(path): ast.parse(path.read_text(encoding="utf-8")) for path in paths}


def _name_of(path: Path) -> str:
    return ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


@cache
def imports() -> list[Import]:
    return [found for name, tree in modules().items() for found in _imports_of(name, tree)]


def _imports_of(importer: str, node: ast.AST) -> Iterator[Import]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.If) and ast.unparse(child.test) == "__name__ == '__main__'":
            continue
        if isinstance(child, ast.If) and ast.unparse(child.test) == "TYPE_CHECKING" and importer == "owt_pipeline":
            continue
        if isinstance(child, ast.Import):
            yield from (Import(importer, alias.name, "") for alias in child.names)
        elif isinstance(child, ast.ImportFrom):
            assert child.level == 0, f"{importer}: a relative import"
            for alias in child.names:
                is_module = f"{child.module}.{alias.name}" in modules()
                yield Import(importer, f"{child.module}.{alias.name}" if is_module else str(child.module),
                             "" if is_module else alias.name)  # fmt: skip
        yield from _imports_of(importer, child)


def own_imports() -> list[Import]:
    """Those of a module of ours."""
    return [found for found in imports() if found.module in modules() and found.module != found.importer]


def room(module: str) -> str:
    """`schemas`, or the folder or module right below `owt_pipeline` or its `stages`; "" for all others."""
    package, _, rest = module.partition(".")
    if package != "owt_pipeline":
        return package if package == "schemas" else ""
    first, _, rest = rest.partition(".")
    return rest.partition(".")[0] if first == "stages" and rest else first


def floor(module: str) -> int:
    (found,) = (number for number, rooms in enumerate(FLOORS) if room(module) in rooms)
    return found


def test_imports_go_down_the_floors() -> None:
    wrong = [
        f"{found.importer} (floor {floor(found.importer)}) imports {found.module} (floor {floor(found.module)})"
        for found in own_imports()
        if room(found.importer) and room(found.module) and floor(found.module) > floor(found.importer)
    ]
    assert not wrong, "\n".join(wrong)


def test_stages_do_not_import_each_other() -> None:
    wrong = [
        f"{found.importer} imports {found.module}"
        for found in own_imports()
        if room(found.importer) in STAGES
        and room(found.module) in STAGES
        and room(found.importer) != room(found.module)
    ]
    assert not wrong, "\n".join(wrong)


def test_a_training_step_needs_none_of_the_trainers_tools() -> None:
    wrong = [
        f"{found.importer} imports {found.module}"
        for found in own_imports()
        if found.importer.startswith("trainer.")
        and not found.importer.startswith("trainer.tools")
        and found.module.startswith("trainer.tools")
    ]
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize(
    ("package", "forbidden"),
    [
        ("owt_pipeline", {"torch", "trainer"}),
        ("trainer", {"apache_beam", "owt_pipeline"}),
        ("schemas", {"apache_beam", "owt_pipeline", "torch", "trainer"}),
        ("dags", {"apache_beam", "owt_pipeline", "schemas", "torch", "trainer"}),
    ],
)
def test_packages_do_not_import_what_they_must_not(package: str, forbidden: set[str]) -> None:
    wrong = [
        f"{found.importer} imports {found.module}"
        for found in imports()
        if found.importer.split(".")[0] == package and found.module.split(".")[0] in forbidden
    ]
    assert not wrong, "\n".join(wrong)


def test_no_circle_between_files() -> None:
    graph: dict[str, set[str]] = {name: set() for name in modules()}
    for found in own_imports():
        graph[found.importer].add(found.module)
    assert not list(circles(graph))


def test_no_circle_between_folders() -> None:
    """Modules next to the folders count as folders: `owt_pipeline.cli` is above the stages, `config` below them."""

    def folder(module: str) -> str:
        is_package = (ROOT / module.replace(".", "/") / "__init__.py").exists()
        return module if is_package or module.count(".") < 2 else module.rpartition(".")[0]

    graph: dict[str, set[str]] = {}
    for found in own_imports():
        here, there = folder(found.importer), folder(found.module)
        if here != there:
            graph.setdefault(here, set()).add(there)
    assert not list(circles(graph))


def circles(graph: Mapping[str, set[str]]) -> Iterator[list[str]]:
    """Each a list of nodes in which every one reaches the next and the last one the first."""
    done: set[str] = set()

    def visit(node: str, path: list[str]) -> Iterator[list[str]]:
        if node in path:
            yield [*path[path.index(node) :], node]
        elif node not in done:
            for other in sorted(graph.get(node, ())):
                yield from visit(other, [*path, node])
            done.add(node)

    for node in sorted(graph):
        yield from visit(node, [])


def test_a_private_name_is_imported_by_nobody() -> None:
    def is_private(name: str) -> bool:
        return name.startswith("_") and not name.startswith("__")

    wrong = [
        f"{found.importer} imports {found.module}.{found.name}"
        for found in own_imports()
        if any(map(is_private, (found.name, *found.module.split("."))))
    ]
    for name, tree in modules().items():
        aliases = {
            alias.asname or alias.name
            for node in ast.walk(tree)
            if isinstance(node, ast.ImportFrom)
            for alias in node.names
            if f"{node.module}.{alias.name}" in modules()
        }
        wrong += [
            f"{name}:{node.lineno} uses {ast.unparse(node)}"
            for node in ast.walk(tree)
            if isinstance(node, ast.Attribute) and is_private(node.attr)
            and isinstance(node.value, ast.Name) and node.value.id in aliases
        ]  # fmt: skip
    assert not wrong, "\n".join(wrong)


def test_a_module_is_named_by_its_subject_and_has_at_most_500_lines() -> None:
    wrong = [name for name in modules() if name.rpartition(".")[2] in ("utils", "util", "helpers", "common", "misc")]
    for name in modules():
        path = ROOT / name.replace(".", "/")
        path = path / "__init__.py" if (path / "__init__.py").exists() else path.with_suffix(".py")
        lines = len(path.read_text(encoding="utf-8").splitlines())
        wrong += [f"{name} has {lines} lines"] if lines > 500 else []
    assert not wrong, "\n".join(wrong)
