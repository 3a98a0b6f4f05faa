"""The graph of a run: its shape, its size, and its behaviour outside `owt run`."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import apache_beam as beam
import pytest
from apache_beam.portability.api import beam_runner_api_pb2
from apache_beam.runners.portability.fn_api_runner import FnApiRunner
from google.protobuf.message import Message

from owt_pipeline.engine.graph import RunStage, start
from owt_pipeline.engine.stage import Runtime
from owt_pipeline.errors import UserError
from owt_pipeline.ledger.root import read_root
from owt_pipeline.pipeline import STAGES, Run, build
from owt_pipeline.stages.clean.options import Options as CleanOptions
from owt_pipeline.stages.clean.stage import STAGE as CLEAN
from owt_pipeline.storage.folder import Storage
from tests.owt_pipeline.runs import ask_owt, copy_of, manifest_of, snapshot

pytestmark = pytest.mark.beam

# Dataflow accepts a graph of ten megabytes.
TWO_MEGABYTES = 2 << 20


def graph_of(config: Path, workdir: Path, **run: Any) -> Message:
    """Return the graph of a run as Beam sends it to a runner."""
    pipeline = beam.Pipeline(FnApiRunner())
    build(pipeline, Run.of(str(workdir), str(config), **run))
    return pipeline.to_runner_api()


def leaves(graph: Any) -> dict[str, Any]:
    """Return the transforms that do something.

    They have no transforms of their own, and do not only pass their input on.
    """
    found_leaves = {}
    for name, transform in graph.components.transforms.items():
        passes_input_on = set(transform.outputs.values()) == set(transform.inputs.values())
        if not transform.subtransforms and not passes_input_on:
            found_leaves[name] = transform
    return found_leaves


def test_the_graph_is_one_linear_chain_without_side_inputs(
    small_config: Path, tmp_path: Path
) -> None:
    graph = graph_of(small_config, tmp_path)
    readers: dict[str, list[str]] = {}
    for name, transform in leaves(graph).items():
        assert len(transform.inputs) <= 1, name
        assert len(transform.outputs) <= 1, name
        for collection in transform.inputs.values():
            readers.setdefault(collection, []).append(name)
        if transform.spec.urn == "beam:transform:pardo:v1":
            payload = beam_runner_api_pb2.ParDoPayload.FromString(transform.spec.payload)
            assert not payload.side_inputs, name
    assert [names for names in readers.values() if len(names) > 1] == []
    first_transforms = [name for name, leaf in leaves(graph).items() if not leaf.inputs]
    assert len(first_transforms) == 1
    names = [leaf.unique_name for leaf in leaves(graph).values()]
    assert sum(name.endswith("/Publish") for name in names) == len(STAGES)


def test_no_runner_repeats_a_publish_with_the_plan_after_it(
    small_config: Path, tmp_path: Path
) -> None:
    """A runner repeats fused transforms together, so each DoFn of ours has to be on its own."""
    pipeline = beam.Pipeline()
    build(pipeline, Run.of(str(tmp_path), str(small_config)))
    _, stages = FnApiRunner().create_stages(pipeline.to_runner_api())
    groups = []
    for stage in stages:
        names = [transform.unique_name for transform in stage.transforms]
        group = [name for name in names if re.search(r"(^|/)(Plan|Work\w+|Publish|End)$", name)]
        if group:
            groups.append(group)
    # Only the last publication is fused with another DoFn, the end of the run.
    assert groups.pop() == ["Report/Publish", "End"]
    assert [group for group in groups if len(group) > 1] == []
    num_steps = sum(len(stage.steps) for stage in STAGES.values())
    assert len(groups) == 2 * len(STAGES) + num_steps - 1


def test_the_graph_s_size_does_not_depend_on_the_data(small_config: Path, tmp_path: Path) -> None:
    sizes = []
    for num_shards in (1, 65_535):
        config = tmp_path / f"{num_shards}.toml"
        settings = small_config.read_text()
        config.write_text(settings.replace("num_shards = 3", f"num_shards = {num_shards}"))
        sizes.append(len(graph_of(config, tmp_path).SerializeToString()))
    assert max(sizes) < TWO_MEGABYTES
    # The graph holds compressed pickles with random ids, so that its size varies. One byte for each
    # shard would be 65,534.
    assert sizes[1] - sizes[0] < 1000


def test_a_stage_is_a_transform_of_its_own(small_run: Path, tmp_path: Path) -> None:
    run = copy_of(small_run, tmp_path / "run", without=("clean",))
    options = CleanOptions(min_tokens=64)
    runtime = Runtime(Storage(str(run)))
    _, version = read_root(runtime.workdir)
    with beam.Pipeline(FnApiRunner()) as pipeline:
        _ = start(pipeline, runtime, version=version) | RunStage(CLEAN, options, runtime)
    files = snapshot(run)
    expected = snapshot(small_run)
    assert {name for name in expected if expected[name] != files.get(name)} == set()


def test_a_mistake_is_raised_where_a_pipeline_is_built_by_hand(
    small_config: Path, tmp_path: Path
) -> None:
    config = tmp_path / "config.toml"
    config.write_text(f'{small_config.read_text()}languages = ["zz"]\n')
    with (
        pytest.raises(UserError, match="'zz' is not a known language"),
        beam.Pipeline(FnApiRunner()) as pipeline,
    ):
        build(pipeline, Run.of(str(tmp_path / "run"), str(config)))


def test_a_pipeline_built_by_hand_keeps_imported_text(small_config: Path, tmp_path: Path) -> None:
    post = tmp_path / "post.jsonl"
    run = tmp_path / "run"
    post.write_text(json.dumps({"text": " ".join(map(str, range(99)))}))
    ask_owt("import", run, post, "--workers", 1)
    with beam.Pipeline(FnApiRunner()) as pipeline:
        build(pipeline, Run.of(str(run), str(small_config), until="clean"))
    assert manifest_of(run, "documents").stage == "import"
    assert manifest_of(run, "clean").counts.entered == 1
    assert not (run / "ledger/urls").exists()


WITHOUT_BEAM = """
import sys
# Importing it raises.
sys.modules["apache_beam"] = None
from owt_pipeline.cli import main
code = main(sys.argv[1:])
assert not {"ftfy", "pandas"} & set(sys.modules)
sys.exit(code)
"""


def test_a_run_with_nothing_to_do_imports_no_beam_pandas_or_ftfy(
    small_config: Path, small_run: Path
) -> None:
    run = ["run", str(small_run), str(small_config)]
    for arguments in (run, [*run, "--dry_run"], [*run, "--until", "clean"]):
        process = subprocess.run(
            [sys.executable, "-c", WITHOUT_BEAM, *arguments],
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
        )
        assert process.returncode == 0, process.stdout + process.stderr
