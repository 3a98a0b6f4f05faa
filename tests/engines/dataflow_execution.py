"""Execute one job of the Dataflow service of `dataflow.py`, in a process of its own.

    .venv-dependencies/bin/python dataflow_execution.py JOB_FOLDER

It reads `job.json` (see `Job.run`) and the staged pipeline. If a bundle fails, it ends with 1 and
the error, and retries nothing. Beam's FnApiRunner schedules the stages. Their bundles run in SDK
processes of the job's environment.
"""

from __future__ import annotations

import json
import os
import shlex
import sys
import threading
from pathlib import Path

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
    command = (
        f"PIPELINE_OPTIONS={options} exec {job['python']} -m "
        f"apache_beam.runners.worker.sdk_worker_main"
    )
    for environment in pipeline.components.environments.values():
        assert environment.urn == common_urns.environments.DOCKER.urn
        environment.urn = python_urns.SUBPROCESS_SDK
        environment.payload = command.encode()
    runner = FnApiRunner()
    runner._num_workers = job["workers"]
    runner.run_via_runner_api(pipeline, PipelineOptions([]))


def _end_with_the_service() -> None:
    """Stop this process when the service closes the pipe to it."""
    sys.stdin.read()
    os._exit(2)


if __name__ == "__main__":
    try:
        main(Path(sys.argv[1]))
    except RuntimeError as failure:
        print(failure, file=sys.stderr, flush=True)
        # Threads of Beam still wait for workers, so an exit would not end this process.
        os._exit(1)
