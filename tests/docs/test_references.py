"""Pages, docstrings, comments and messages name only files, commands and flags that exist."""

from __future__ import annotations

import dataclasses
import importlib
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest
from apache_beam.options.pipeline_options import PipelineOptions

from owt_pipeline import cli, config
from owt_pipeline.pipeline import STAGES
from owt_pipeline.stages.import_text.stage import STAGE as IMPORT
from schemas.settings import tables_of
from tests.conftest import REPOSITORY
from tests.docs.references import (
    Project,
    Text,
    flags_in_source,
    flags_of_main,
    texts_of,
)

pytest.importorskip("torch", reason="the trainer's programs need torch: pip install torch")

from trainer.config import TrainConfig

# Beam has no list of the flags that only the Go and Java sides of a job know.
BEAM = frozenset(PipelineOptions([]).get_all_options()) | {"parallelism", "sdk_worker_parallelism"}

# Names of other projects, and of files that commands write. Look a name up in the other project
# before you add it.
ELSEWHERE = {
    # Made by `make docs`.
    "path": {"docs/api.md", "docs/options"}
    # Made by `make gpu-check`.
    | {"benchmarks/gpu.md"},
    # Made by `make docs`.
    "link": {"api.md#", "options/index.md#"}
    # A replacement of sed, in CONTRIBUTING.md.
    | {"$PROJECT/blob/$VERSION/\\1#"},
    "file": {"create_tfrecords.py", "datasets/openwebtext/create_tfrecords.py", "url_utils.py"}
    # TensorFlow Datasets
    | {"c4_utils.py"}
    # nanoGPT
    | {"config/train_shakespeare_char.py"}
    # nanoGPT
    | {"data/openwebtext/prepare.py", "data/shakespeare_char/prepare.py"}
    # openwebtext2
    | {"cleaning/generate_minhashes.py", "cleaning/minhash_lsh_dedupe.py"}
    # openwebtext2
    | {"scraping/filter.py"}
    | {"datasketch/minhash.py"}
    | {"nanochat/dataset.py"}
    | {"preprocess_data.py"}
    # A module of a user's program.
    | {"schemas.py"},
    # The example of a page.
    "module": {"schemas.py", "trainer.NAME"}
    # Groups of entry points.
    | {f"owt_pipeline.{group}" for group in ("archives", "extractors", "filters", "sources")}
    | {"owt_pipeline.stages.fetch.archives.library:LibraryClient"},
    "program": {"trainer.NAME"},
    # Any table.
    "table": {"x", "x.y"},
    # Words after "owt" in prose, such as "every owt command".
    "command": {
        "and",
        "command",
        "commands",
        "has",
        "is",
        "needs",
        "without",
        "writes",
    },
    # A flag of `owt` itself.
    "flag": {"version"}
    # Any flag.
    | {"no_", "no_x", "flag"}
    # git
    | {"abbrev", "always", "dirty", "exclude", "message", "sign"}
    # nanoGPT
    | {"always_save_checkpoint", "batch_size", "block_size", "dataset", "eval_iters"}
    # nanoGPT
    | {"log_interval", "lr_decay_iters", "max_iters", "n_embd", "n_head", "n_layer"}
    # Megatron-LM
    | {"append-eod", "input", "output-prefix", "tokenizer-type", "workers"}
    # airflow
    | {"conf"}
    # pytest
    | {"confcutdir", "import-mode"}
    # An alias of Beam's.
    | {"extra_package"}
    # pip
    | {"force-reinstall", "no-deps", "wheel-dir"}
    # gcloud
    | {"freshness"}
    # hf
    | {"local-dir", "revision"}
    # tensorboard
    | {"logdir"}
    # xz
    | {"long"}
    | {"max-restarts", "nnodes", "nproc-per-node", "rdzv-backend", "rdzv-endpoint", "standalone"}
    # Beam's, which has another name in its list.
    | {"no_use_public_ips"}
    # syft, cosign, docker
    | {"output", "predicate", "tag", "type"}
    # nvidia-smi
    | {"query-gpu"},
    "name": {"AIRFLOW_VAR_OWT_PYTHON", "AIRFLOW__CORE__DAGS_FOLDER"}
    # Amazon
    | {"AWS_SESSION_TOKEN", "AbortIncompleteMultipartUpload"}
    # Google
    | {"FLEX_TEMPLATE_PYTHON_PY_FILE", "GOOGLE_APPLICATION_CREDENTIALS"}
    # obstore
    | {"GOOGLE_BEARER_TOKEN"}
    # nanochat
    | {"DATA_DIR"}
    | {"PIP_INDEX_URL", "UV_DEFAULT_INDEX"}
    # Beam
    | {"RequiresStableInput"}
    # TensorFlow Datasets
    | {"clean_page"}
    # ConnorJL's GPT2
    | {"openwebtext_longbiased"}
    # Examples of names.
    | {"name_by_id", "sorted_ids", "library_collection"}
    # Samples of names in pages and of a file.
    | {"PhD", "codeLine_x8a", "language_CODE", "mainNav"},
}


@cache
def flags_of(program: str) -> frozenset[str] | None:
    """Return the flags of a program of this project; None for any other."""
    if program.startswith("owt "):
        command = program.removeprefix("owt ")
        flags = flags_of_main(lambda: cli.main([command]))
        return flags | BEAM if command == "run" else flags
    if program == "trainer":
        program = "trainer.__main__"
    file = REPOSITORY / f"{program.replace('.', '/')}.py"
    if not file.is_file():
        return None
    if not program.startswith("trainer."):
        return flags_in_source(file)
    main = getattr(importlib.import_module(program), "main", None)
    return flags_of_main(lambda: main([])) if main else None


def keys_of_tables() -> dict[str, frozenset[str]]:
    """Return the keys of each table of a settings file."""
    kinds = {stage.name: stage.options for stage in (*STAGES.values(), IMPORT)}
    kinds["train"] = TrainConfig
    for name, kind in list(kinds.items()):
        kinds.update({f"{name}.{inner}": table for inner, table in tables_of(kind).items()})
    keys = {
        name: frozenset(field.name for field in dataclasses.fields(kind))
        for name, kind in kinds.items()
    }
    return keys | {"run": frozenset(config.RUN_KEYS), "beam": BEAM}


@pytest.fixture(scope="module")
def project() -> Project:
    elsewhere = {kind: frozenset(targets) for kind, targets in ELSEWHERE.items()}
    return Project(REPOSITORY, flags_of, frozenset(cli.COMMANDS), keys_of_tables(), elsewhere)


def files() -> Iterator[Path]:
    """Return the files whose texts are checked. Those of benchmarks/peers call other projects."""
    yield from REPOSITORY.glob("*.md")
    for name in (".ci/run", "Dockerfile", "Makefile", "pyproject.toml"):
        yield REPOSITORY / name
    folders = ["benchmarks", "dags", "docs", "examples", "flex"]
    folders += ["owt_pipeline", "presets", "schemas", "trainer"]
    for folder in folders:
        for path in sorted((REPOSITORY / folder).rglob("*")):
            is_generated = path.is_relative_to(REPOSITORY / "docs/options") or path.name == "api.md"
            if is_generated or "peers" in path.parts:
                continue
            if path.suffix in (".html", ".md", ".py", ".sql", ".toml", ".txt"):
                yield path


def test_whatever_a_text_names_exists(project: Project) -> None:
    dead = project.dead(text for file in files() for text in texts_of(file))
    places = [f"{r.path.relative_to(REPOSITORY)}:{r.line}: {r.kind} {r.target}" for r in dead]
    assert not places, "\n".join(places)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("docs/options/nowhere.md has them", "path docs/options/nowhere.md"),
        ("see `tests/nowhere/*.py`", "path tests/nowhere/*.py"),
        ("`engine/nowhere.py` does it", "file engine/nowhere.py"),
        ("by owt_pipeline.nowhere", "module owt_pipeline.nowhere"),
        ("by `schemas.datasets.Nothing`", "module schemas.datasets.Nothing"),
        ("owt_pipeline.pipeline:nothing", "module owt_pipeline.pipeline:nothing"),
        ("what `owt fetch` wrote", "command fetch"),
        ("run: owt nothing RUN", "command nothing"),
        ("python -m trainer.nothing", "program trainer.nothing"),
        ("benchmarks/nothing.py --all", "program benchmarks.nothing"),
        ("run `make nothing` first", "target nothing"),
        ("or `make TORCH=none nothing`", "target nothing"),
        ("give --no_such_flag", "flag --no_such_flag"),
        ("owt ls RUN --threshold 0.5", "flag owt ls --threshold"),
        ("python -m trainer --dumps X", "flag trainer --dumps"),
        ("the setting `no_such_setting`", "setting no_such_setting"),
        ("`max_pages` under `[clean]`", "setting max_pages"),
        ("`filtres = ['c4']`", "setting filtres"),
        ("a key of `[cleaning]`", "table cleaning"),
        ("as `no_such_function` does", "name no_such_function"),
        ("as `NoSuchClass()` does", "name NoSuchClass"),
        ("[page](nowhere.md)", "link nowhere.md#"),
        ("[page](../README.md#nowhere)", "link ../README.md#nowhere"),
        ("```toml\n[clean]\nmin_score = 1\n```\n", "setting clean.min_score"),
        ("```toml\n[clean.c4]\nmin_score = 1\n```\n", "setting clean.c4.min_score"),
        ("```\nmake nothing\n```\n", "target nothing"),
        ("```\nowt run run \\\n    --nothing\n```\n", "flag owt run --nothing"),
    ],
)
def test_a_dead_reference_is_found(project: Project, text: str, expected: str) -> None:
    page = Text(REPOSITORY / "docs/planted.md", line=1, text=text, is_page=True)
    dead = [f"{reference.kind} {reference.target}" for reference in project.dead([page])]
    assert expected in dead


@pytest.mark.parametrize(
    "text",
    [
        "docs/how-to/*.md and `engine/graph.py`, by owt_pipeline.pipeline:build",
        "`owt run RUN --until fetch`, then `owt ls RUN`; `python -m trainer --data run/tokens`",
        "--dry_run shows it; `make test TORCH=none` is without torch",
        "`filters = ['c4']` under `[clean]`, or `max_word_length` in `[clean.gopher_quality]`",
        "[Design](design.md#the-ledger), `DatasetReader`, `owt run RUN --runner=FlinkRunner`",
        "`owt ls RUN`, and --threshold of another command",
        "```toml\n[clean.gopher_quality]\nmax_word_length = 12\n```\n",
    ],
)
def test_a_reference_that_exists_is_not_found(project: Project, text: str) -> None:
    page = Text(REPOSITORY / "docs/planted.md", line=1, text=text, is_page=True)
    assert project.dead([page]) == []


def test_a_reference_is_found_in_each_text_of_a_module(project: Project, tmp_path: Path) -> None:
    module = tmp_path / "module.py"
    module.write_text(
        '"""Of `owt docstring`."""\n\n'
        "# `owt comment`\n"
        "def work(name):\n"
        '    """Say `owt function`."""\n'
        '    raise ValueError("run owt message " f"{name}, or " f"owt {name} or owt joined")\n'
    )
    dead = project.dead(texts_of(module))
    assert [(reference.target, reference.line) for reference in dead] == [
        ("comment", 3),
        ("docstring", 1),
        ("function", 5),
        ("joined", 6),
        ("message", 6),
    ]


def test_the_page_of_trials_has_at_most_800_words() -> None:
    page = REPOSITORY / "docs/benchmarks/tried.md"
    assert len(page.read_text(encoding="utf-8").split()) <= 800
