"""Executes one job of the Dataflow service of `dataflow.py`, in a process of its own.

    .venv-dependencies/bin/python dataflow_execution.py JOB_FOLDER

reads `job.json` (see `Job.start`) and the staged pipeline, and writes a line of JSON to standard output for each thing
that the service should know: a message, the metrics, the end.

Beam's FnApiRunner schedules the stages. Their bundles run in SDK processes of the job's environment, as on Dataflow:
one bundle at a time in each; what a bundle emits is committed when it has succeeded; a bundle that fails, or whose
process dies, is tried four times in all, each time by whichever process is free, and then the job fails.
"""

from __future__ import annotations

import json
import logging
import os
import queue
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

from apache_beam.coders.coder_impl import create_InputStream
from apache_beam.options.pipeline_options import PipelineOptions
from apache_beam.portability import common_urns
from apache_beam.portability.api import beam_fn_api_pb2, beam_runner_api_pb2
from apache_beam.runners.portability.fn_api_runner import fn_runner
from apache_beam.runners.portability.fn_api_runner.worker_handlers import GrpcWorkerHandler, WorkerHandler
from environments import bare

ATTEMPTS = 4
BUNDLES_PER_WORKER = 4
"""Into how many bundles a collection is divided; Dataflow decides that by time."""

_saying = threading.Lock()
_service = os.dup(1)
os.dup2(2, 1)  # what a worker prints is no message to the service


def say(**what: Any) -> None:
    """A line for the service."""
    with _saying:
        os.write(_service, json.dumps(what).encode() + b"\n")


def main(folder: Path) -> int:
    """Execute the job of `folder`; returns 1 where it failed."""
    threading.Thread(target=_end_with_the_service, daemon=True).start()
    logging.basicConfig(filename=folder / "worker.log", level=logging.INFO)
    job = json.loads((folder / "job.json").read_bytes())
    pipeline = beam_runner_api_pb2.Pipeline.FromString((folder / "pipeline.pb").read_bytes())
    pool = _Pool(job["python"], json.dumps(job["options"]), folder)
    WorkerHandler.register_environment(common_urns.environments.DOCKER.urn, beam_runner_api_pb2.DockerPayload)(
        pool.start
    )
    fn_runner.BundleManager = _bundle_manager(fn_runner.BundleManager, pool)
    fn_runner.ParallelBundleManager.__init__ = _divide_finely(fn_runner.ParallelBundleManager.__init__)
    runner = fn_runner.FnApiRunner()
    runner._num_workers = job["workers"]
    try:
        result = runner.run_via_runner_api(pipeline, PipelineOptions([]))
    except _BundleFailed as error:
        say(message=str(error), importance="JOB_MESSAGE_ERROR")
        return 1
    say(metrics=_metrics(result, pipeline))
    return 0


def _end_with_the_service() -> None:
    sys.stdin.read()
    os._exit(2)


class _BundleFailed(Exception):
    """A bundle has failed four times."""


class _Pool:
    """The job's SDK processes: which are free, and new ones for those that died."""

    def __init__(self, python: str, options: str, folder: Path):
        self.python, self.options, self.folder = python, options, folder
        self._free: queue.Queue[_SdkProcess] = queue.Queue()

    def start(self, payload: Any, state: Any, provision_info: Any, grpc_server: Any) -> _SdkProcess:
        """For Beam, which asks for as many as the job has workers, and starts them."""
        worker = _SdkProcess(self, payload, state, provision_info, grpc_server)
        self._free.put(worker)
        return worker

    def take(self, manager: Any) -> _SdkProcess:
        """A process with nothing to do, which is waited for."""
        worker = self._free.get()
        if worker.alive:
            return worker
        again = _SdkProcess(self, worker.payload, worker.state, worker.provision_info, worker._grpc_server)
        manager._workers_by_id[again.worker_id] = again
        next(iter(manager._cached_handlers.values())).append(again)  # so that it is closed at the end
        again.start_worker()
        return again

    def give(self, worker: _SdkProcess) -> None:
        self._free.put(worker)


class _SdkProcess(GrpcWorkerHandler):
    """Beam's SDK harness in the job's environment, started as a worker's container starts it."""

    def __init__(self, pool: _Pool, payload: Any, state: Any, provision_info: Any, grpc_server: Any):
        super().__init__(state, provision_info, grpc_server)
        self.pool, self.payload = pool, payload
        self.alive = True
        self._closed = threading.Event()

    def start_worker(self) -> None:
        home = self.pool.folder / self.worker_id
        home.mkdir()
        environment = bare(
            CONTROL_API_SERVICE_DESCRIPTOR=str(self.control_api_service_descriptor()),
            LOGGING_API_SERVICE_DESCRIPTOR=str(self.logging_api_service_descriptor()),
            PIPELINE_OPTIONS=self.pool.options,
            WORKER_ID=self.worker_id,
            HOME=str(home),
        )
        command = [self.pool.python, "-m", "apache_beam.runners.worker.sdk_worker_main"]
        self.process = subprocess.Popen(command, env=environment, cwd=home)
        threading.Thread(target=self._watch, daemon=True).start()

    def _watch(self) -> None:
        """Answer for a process that has died: Beam would wait for it forever."""
        code = self.process.wait()
        self.alive = False
        error = f"The worker {self.worker_id} lost contact with the service: its process ended with exit code {code}."
        while not self._closed.wait(0.2):
            for name in list(self.control_conn._futures_by_id):
                if future := self.control_conn._futures_by_id.pop(name, None):
                    future.set(beam_fn_api_pb2.InstructionResponse(instruction_id=name, error=error))

    def stop_worker(self) -> None:
        self._closed.set()
        try:
            self.process.wait(10)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


class _Attempt:
    """In place of a bundle's context for one attempt at it: one worker, and outputs that are kept back."""

    def __init__(self, context: Any, worker: _SdkProcess):
        self._context = context
        self._outputs: dict[tuple[Any, str], list[bytes]] = {}
        self.worker_handlers = [worker]

    def __getattr__(self, name: str) -> Any:
        return getattr(self._context, name)

    def get_buffer(self, buffer_id: Any, transform: str) -> list[bytes]:
        return self._outputs.setdefault((buffer_id, transform), [])

    def commit(self) -> None:
        for (buffer_id, transform), outputs in self._outputs.items():
            buffer = self._context.get_buffer(buffer_id, transform)
            for output in outputs:
                buffer.append(output)


def _bundle_manager(plain: type, pool: _Pool) -> type:
    """Beam's manager of a bundle, with attempts."""

    class BundleManager(plain):  # type: ignore[valid-type,misc]
        def process_bundle(self, inputs: Any, *arguments: Any, **options: Any) -> Any:
            context = self.bundle_context_manager
            context.worker_handlers  # noqa: B018  the first look starts them
            for attempt in range(1, ATTEMPTS + 1):
                worker = pool.take(context.execution_context.worker_handler_manager)
                self.bundle_context_manager = tried = _Attempt(context, worker)
                try:
                    result = super().process_bundle(inputs, *arguments, **options)
                except RuntimeError as error:
                    say(message=str(error), importance="JOB_MESSAGE_ERROR", attempt=attempt, worker=worker.worker_id)
                else:
                    with BundleManager._lock:
                        tried.commit()
                    return result
                finally:
                    self.bundle_context_manager = context
                    pool.give(worker)
            raise _BundleFailed(
                f"Workflow failed. Causes: {context.stage.name} failed., The job failed because a work item has failed "
                f"{ATTEMPTS} times. Look in previous log entries for the cause of each one of the {ATTEMPTS} failures. "
                f"The work item was attempted on these workers."
            )

    return BundleManager


def _divide_finely(plain: Any) -> Any:
    def __init__(self: Any, *arguments: Any, **options: Any) -> None:
        plain(self, *arguments, **options)
        self._num_workers *= BUNDLES_PER_WORKER

    return __init__


def _metrics(result: Any, pipeline: Any) -> list[dict[str, Any]]:
    """The users' metrics as the service reports them, committed and attempted."""
    steps = {transform.unique_name: name for name, transform in pipeline.components.transforms.items()}
    found = []
    for info in result.monitoring_infos():
        labels = info.labels
        if not info.urn.startswith("beam:metric:user:"):
            continue
        step = steps.get(labels["PTRANSFORM"], labels["PTRANSFORM"])
        value: dict[str, Any]
        if info.type == "beam:metrics:sum_int64:v1":
            value = {"scalar": _integers(info.payload, 1)[0]}
        elif info.type == "beam:metrics:distribution_int64:v1":
            count, total, least, most = _integers(info.payload, 4)
            value = {"distribution": {"count": count, "sum": total, "min": least, "max": most}}
        else:
            continue
        context = {"step": step, "namespace": labels["NAMESPACE"]}
        for said in (context, {**context, "tentative": "true"}):
            found.append({"name": {"origin": "user", "name": labels["NAME"], "context": said}, **value})
    return found


def _integers(payload: bytes, count: int) -> list[int]:
    """The integers of a metric's payload: varints."""
    stream = create_InputStream(payload)
    return [stream.read_var_int64() for _ in range(count)]


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
