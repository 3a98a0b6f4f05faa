"""Executes one job of the Dataflow service of `dataflow.py`, in a process of its own.

    .venv-dependencies/bin/python dataflow_execution.py JOB_FOLDER

reads `job.json` (see `Job.run`) and the staged pipeline, and writes `outcome.json`: the metrics, or an error. Beam's
FnApiRunner schedules the stages; their bundles run in SDK processes of the job's environment. A bundle that fails ends
the job: nothing is tried again.
"""

from __future__ import annotations

import json
import os
import shlex
import sys
import threading
from pathlib import Path
from typing import Any

from apache_beam.coders.coder_impl import create_InputStream
from apache_beam.options.pipeline_options import PipelineOptions
from apache_beam.portability import common_urns, python_urns
from apache_beam.portability.api import beam_runner_api_pb2
from apache_beam.runners.portability.fn_api_runner.fn_runner import FnApiRunner


def main(folder: Path) -> None:
    """Execute the job of `folder`."""
    threading.Thread(target=_end_with_the_service, daemon=True).start()
    job = json.loads((folder / "job.json").read_bytes())
    pipeline = beam_runner_api_pb2.Pipeline.FromString((folder / "pipeline.pb").read_bytes())
    options = shlex.quote(json.dumps(job["options"]))
    command = f"PIPELINE_OPTIONS={options} exec {job['python']} -m apache_beam.runners.worker.sdk_worker_main"
    for environment in pipeline.components.environments.values():
        assert environment.urn == common_urns.environments.DOCKER.urn
        environment.urn, environment.payload = python_urns.SUBPROCESS_SDK, command.encode()
    runner = FnApiRunner()
    runner._num_workers = job["workers"]
    outcome: dict[str, Any]
    try:
        outcome = {"metrics": _metrics(runner.run_via_runner_api(pipeline, PipelineOptions([])), pipeline)}
    except RuntimeError as error:
        outcome = {"error": str(error)}
    (folder / "outcome.json").write_text(json.dumps(outcome))


def _end_with_the_service() -> None:
    sys.stdin.read()
    os._exit(2)


def _metrics(result: Any, pipeline: Any) -> list[dict[str, Any]]:
    """The users' metrics as the service reports them, committed and attempted."""
    steps = {transform.unique_name: name for name, transform in pipeline.components.transforms.items()}
    found = []
    for info in result.monitoring_infos():
        labels, stream = info.labels, create_InputStream(info.payload)
        value: dict[str, Any]
        if info.urn == "beam:metric:user:sum_int64:v1":
            value = {"scalar": stream.read_var_int64()}
        elif info.urn == "beam:metric:user:distribution_int64:v1":
            value = {"distribution": {name: stream.read_var_int64() for name in ("count", "sum", "min", "max")}}
        else:
            continue
        context = {"step": steps.get(labels["PTRANSFORM"], labels["PTRANSFORM"]), "namespace": labels["NAMESPACE"]}
        for said in (context, {**context, "tentative": "true"}):
            found.append({"name": {"origin": "user", "name": labels["NAME"], "context": said}, **value})
    return found


if __name__ == "__main__":
    main(Path(sys.argv[1]))
    os._exit(0)  # after a failure, threads of Beam's wait for workers
