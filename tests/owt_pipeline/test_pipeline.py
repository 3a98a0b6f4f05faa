"""The graph of a run: its shape, its size, and what it does outside `owt run`."""

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

from owt_pipeline.engine.graph import RunStage, Start
from owt_pipeline.engine.stage import Runtime
from owt_pipeline.errors import UserError
from owt_pipeline.ledger.root import read_root
from owt_pipeline.pipeline import STAGES, Run, build
from owt_pipeline.stages.clean.options import Options as CleanOptions
from owt_pipeline.stages.clean.stage import STAGE as CLEAN
from owt_pipeline.storage.folder import Storage
from tests.owt_pipeline.runs import ask_owt, copy_of, manifest_of, snapshot

TWO_MEGABYTES = 2 << 20  # Dataflow takes ten


def graph_of(config: Path, workdir: Path, **run: Any) -> Message:
    pipeline = beam.Pipeline(FnApiRunner())
    build(pipeline, Run.of(str(workdir), str(config), **run))
    return pipeline.to_runner_api()


def leaves(graph: Any) -> dict[str, Any]:
    """The transforms that do something: those without transforms of their own that do not just
    pass their input on."""
    return {
        name: transform
        for name, transform in graph.components.transforms.items()
        if not transform.subtransforms
        and set(transform.outputs.values()) != set(transform.inputs.values())
    }


def test_the_graph_is_one_linear_chain_without_side_inputs(
    small_config: Path, tmp_path: Path
) -> None:
    graph = graph_of(small_config, tmp_path)
    readers: dict[str, list[str]] = {}
    for name, transform in leaves(graph).items():
        assert len(transform.inputs) <= 1, name
        assert len(transform.outputs) <= 1, name
        for read in transform.inputs.values():
            readers.setdefault(read, []).append(name)
        if transform.spec.urn == "beam:transform:pardo:v1":
            payload = beam_runner_api_pb2.ParDoPayload.FromString(transform.spec.payload)
            assert not payload.side_inputs, name
    assert [(read, names) for read, names in readers.items() if len(names) > 1] == []
    assert sum(not transform.inputs for transform in leaves(graph).values()) == 1  # one beginning
    published = [
        found for found in leaves(graph).values() if found.unique_name.endswith("/Publish")
    ]
    assert len(published) == len(STAGES)


def test_no_runner_repeats_a_publish_with_the_plan_after_it(
    small_config: Path, tmp_path: Path
) -> None:
    """Of the optimised graph of a cluster, what is fused is run again together: each DoFn of
    ours is by itself."""
    pipeline = beam.Pipeline()
    build(pipeline, Run.of(str(tmp_path), str(small_config)))
    _, stages = FnApiRunner().create_stages(pipeline.to_runner_api())
    names = [[found.unique_name for found in stage.transforms] for stage in stages]
    ours = [
        [name for name in fused if re.search(r"/(Plan|Work\w+|Publish|_End)$", name)]
        for fused in names
    ]
    fused = [group for group in ours if group]
    assert fused.pop() == ["Report/Publish", "End/_End"]
    assert [group for group in fused if len(group) > 1] == []
    steps = sum(len(stage.steps) for stage in STAGES.values())
    assert len(fused) == 2 * len(STAGES) + steps - 1


def test_the_graph_s_size_does_not_depend_on_the_data(small_config: Path, tmp_path: Path) -> None:
    sizes = []
    for shards in (1, 65_535):
        config = tmp_path / f"{shards}.toml"
        config.write_text(
            small_config.read_text().replace("num_shards = 3", f"num_shards = {shards}")
        )
        sizes.append(len(graph_of(config, tmp_path).SerializeToString()))
    assert max(sizes) < TWO_MEGABYTES
    assert (
        sizes[1] - sizes[0] < 1000
    )  # of compressed pickles that hold random ids; one byte per shard would be 65,534


def test_a_stage_is_a_transform_that_can_be_used_alone(small_run: Path, tmp_path: Path) -> None:
    without = copy_of(small_run, tmp_path / "run", without=("clean",))
    options, runtime = CleanOptions(min_tokens=64), Runtime(Storage(str(without)))
    version = read_root(runtime.workdir)[1]
    with beam.Pipeline(FnApiRunner()) as pipeline:
        _ = pipeline | Start(runtime, version=version) | RunStage(CLEAN, options, runtime)
    ours, theirs = snapshot(without), snapshot(small_run)
    assert {name for name in theirs if theirs[name] != ours.get(name)} == set()


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
    post, run = tmp_path / "post.jsonl", tmp_path / "run"
    post.write_text(json.dumps({"text": " ".join(map(str, range(99)))}))
    ask_owt("import", run, post, "--workers", 1)
    with beam.Pipeline(FnApiRunner()) as pipeline:
        build(pipeline, Run.of(str(run), str(small_config), until="clean"))
    assert manifest_of(run, "documents").stage == "import"
    assert manifest_of(run, "clean").counts.entered == 1
    assert not (run / "ledger/urls").exists()


WITHOUT_BEAM = """
import sys
sys.modules["apache_beam"] = None  # an import of it raises
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
        done = subprocess.run(
            [sys.executable, "-c", WITHOUT_BEAM, *arguments],
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
        )
        assert done.returncode == 0, done.stdout + done.stderr
