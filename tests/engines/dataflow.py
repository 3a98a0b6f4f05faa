"""A Dataflow service on loopback that executes the jobs it is sent.

    .venv-dependencies/bin/python tests/engines/dataflow.py FOLDER PORT [--workers N] [--image
    NAME=FILE]

It speaks the REST form of `projects.locations.jobs` (create, get, list, update, messages, metrics;
protos of google-cloud-dataflow-client), as Beam's SDK does with
`--dataflow_endpoint=http://dataflow.sandbox` and the environment variable
`http_proxy=http://127.0.0.1:PORT`: Beam takes no endpoint with a port, and speaks gRPC to those of
most names.

A job's staged files are read from the bucket at `STORAGE_EMULATOR_HOST`. What the real service
refuses is refused, with its codes (`check`). A job's workers are processes of an environment of
their own, with what the job has staged and nothing else (`environments.install`), or of an image:
FILE is JSON with its `python` and its `environment` variables. `dataflow_execution.py` runs them.
`flexTemplates:launch` starts an image's launcher as the real one does (`launch`).

Not as on the real service: workers are processes of this machine, a bundle that fails ends the job
and is not tried again, bundles are not split while they run, the graph is fused by Beam's
FnApiRunner, and states follow each other without the minutes that machines take to start.
"""

from __future__ import annotations

import argparse
import hashlib
import http.server
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.parse
import urllib.request
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from environments import InstallError, bare, install
from google.cloud import dataflow
from google.protobuf import json_format

# The largest description of a job: https://cloud.google.com/dataflow/quotas
MAX_GRAPH_BYTES = 10 * 1024 * 1024
STATES = dataflow.JobState
ENDED = (STATES.JOB_STATE_DONE, STATES.JOB_STATE_FAILED, STATES.JOB_STATE_CANCELLED)


class Refused(Exception):
    """A response other than 200. `status` is Google's name of the code."""

    def __init__(self, code: int, status: str, message: str):
        super().__init__(message)
        self.code = code
        self.status = status


def check(job: Any) -> bytes:
    """Return the pipeline that a job has staged; raise Refused for a job that is rejected."""
    (pool,) = job.environment.worker_pools
    bucket = job.environment.temp_storage_prefix.removeprefix("storage.googleapis.com/").partition(
        "/"
    )[0]
    options = json_format.MessageToDict(
        dataflow.Environment.pb(job.environment).sdk_pipeline_options
    )["options"]
    staged = _staged(options.get("pipelineUrl", ""))
    causes = [
        (not _bucket_exists(bucket), f"the bucket {bucket} does not exist"),
        (
            hashlib.sha256(staged).hexdigest() != options.get("pipelineProtoHash"),
            "another pipeline was submitted",
        ),
        (
            len(staged) > MAX_GRAPH_BYTES,
            f"the job graph is too large: {len(staged):,} bytes; the limit is {MAX_GRAPH_BYTES:,}",
        ),
    ]
    for is_wrong, cause in causes:
        if is_wrong:
            raise Refused(
                400,
                "INVALID_ARGUMENT",
                f"(5d1b): The workflow could not be created. Causes: {cause}.",
            )
    for package in pool.packages:
        _staged(package.location.replace("storage.googleapis.com/", "gs://", 1), size_only=True)
    return staged


class Job:
    """One job: its description, its state and messages, and the process that executes it."""

    def __init__(self, service: Service, description: Any, location: str, staged: bytes):
        now = datetime.now(timezone.utc)
        self.id = f"{now:%Y-%m-%d_%H_%M_%S}-{time.time_ns()}"
        self.service = service
        self.description = description
        self.location = location
        self.staged = staged
        self.created = now
        self.state = STATES.JOB_STATE_PENDING
        self.messages: list[dict[str, Any]] = []
        self.folder = service.folder / self.id
        self.process: subprocess.Popen | None = None

    def run(self) -> None:
        """Prepare the workers' environment, execute the job, and record its end."""
        self.folder.mkdir(parents=True)
        try:
            python = self._environment()
        except InstallError as error:
            self.message(
                f"Error: failed to install packages on the workers: {error}", "JOB_MESSAGE_ERROR"
            )
            self._end(STATES.JOB_STATE_FAILED)
            return
        options = dataflow.Environment.pb(self.description.environment).sdk_pipeline_options
        pool = self.description.environment.worker_pools[0]
        workers = min(pool.num_workers or self.service.workers, self.service.workers)
        job = {
            "python": str(python),
            "options": _integers(json_format.MessageToDict(options)),
            "workers": workers,
        }
        (self.folder / "job.json").write_text(json.dumps(job))
        (self.folder / "pipeline.pb").write_bytes(self.staged)
        command = [sys.executable, Path(__file__).with_name("dataflow_execution.py"), self.folder]
        printed = self.folder / "printed"
        with open(printed, "w") as file, self.service.lock:
            if self.state in ENDED:
                # It was cancelled meanwhile.
                return
            self.process = subprocess.Popen(
                [*map(str, command)],
                # This pipe closes when this process ends, which ends the job, too.
                stdin=subprocess.PIPE,
                stdout=file,
                stderr=file,
                env=bare(),
                cwd=self.folder,
                start_new_session=True,
            )
            self.state = STATES.JOB_STATE_RUNNING
        self.message(f"Starting {workers} workers in {self.location}...", "JOB_MESSAGE_BASIC")
        self.process.wait()
        if self.process.returncode:
            self.message(printed.read_text()[-2000:], "JOB_MESSAGE_ERROR")
        self._end(STATES.JOB_STATE_FAILED if self.process.returncode else STATES.JOB_STATE_DONE)

    def cancel(self) -> None:
        """Stop the job as a user does. Committed files stay."""
        self._end(STATES.JOB_STATE_CANCELLED)
        if self.process:
            os.killpg(self.process.pid, signal.SIGKILL)

    def message(self, text: str, importance: str) -> None:
        """Add a message to the job's log."""
        now = datetime.now(timezone.utc).isoformat()
        level = dataflow.JobMessageImportance[importance].value
        message = {
            "id": str(len(self.messages)),
            "time": now,
            "messageText": text,
            "messageImportance": level,
        }
        self.messages.append(message)

    def as_json(self) -> dict[str, Any]:
        """Return the job as the API describes it."""
        return {
            "id": self.id,
            "projectId": self.service.project,
            "name": self.description.name,
            "type": self.description.type_.value,
            "currentState": self.state.value,
            "createTime": self.created.isoformat(),
            "clientRequestId": self.description.client_request_id,
            "location": self.location,
        }

    def _environment(self) -> Path:
        """Return the Python of the workers, whose environment has the job's staged packages."""
        pool = self.description.environment.worker_pools[0]
        (image,) = {harness.container_image for harness in pool.sdk_harness_container_images}
        image_description = self.service.images.get(image)
        if image_description is None and not re.search(r"/beam_python3\.\d+_sdk:", image):
            raise InstallError(f"image {image} cannot be pulled: not found")
        staged = self.folder / "staged"
        staged.mkdir()
        for package in pool.packages:
            content = _staged(package.location.replace("storage.googleapis.com/", "gs://", 1))
            (staged / package.name).write_bytes(content)
        if (staged / "pickled_main_session").exists():
            raise InstallError(
                "this service loads no pickled main session; --no_save_main_session submits "
                "without one"
            )
        extra = staged / "extra_packages.txt"
        requirements: list[str | Path] = []
        if (staged / "requirements.txt").exists():
            requirements += (staged / "requirements.txt").read_text().split()
        if extra.exists():
            requirements += [staged / name for name in extra.read_text().split()]
        if image_description and not requirements:
            return Path(image_description["python"])
        return install(self.folder / "environment", requirements)

    def _end(self, state: Any) -> None:
        with self.service.lock:
            if self.state not in ENDED:
                self.state = state


class Service:
    """The jobs of a project."""

    def __init__(self, folder: Path, workers: int, images: dict[str, dict[str, Any]]):
        self.folder = folder
        self.workers = workers
        self.images = images
        self.project = ""
        self.lock = threading.RLock()
        self.jobs: dict[str, Job] = {}

    def create(self, region: str, body: bytes) -> dict[str, Any]:
        """Create a job, or return the active one of the same name."""
        if len(body) > MAX_GRAPH_BYTES:
            message = f"Request payload size exceeds the limit: {MAX_GRAPH_BYTES} bytes."
            raise Refused(413, "OUT_OF_RANGE", message)
        description = _parsed(body)
        with self.lock:
            for job in self.jobs.values():
                if job.description.name == description.name and job.state not in ENDED:
                    # The SDK sees by the id of its request that it did not create this job.
                    return job.as_json()
        staged = check(description)
        job = Job(self, description, region, staged)
        self.jobs[job.id] = job
        threading.Thread(target=job.run, daemon=True).start()
        return job.as_json()

    def launch(self, region: str, body: bytes) -> dict[str, Any]:
        """Launch a Flex Template: run its launcher, and create the job that it wrote.

        The launcher runs the file that the image's FLEX_TEMPLATE_PYTHON_PY_FILE names. Its flags
        are the parameters, the machines of the request, and `--template_location`, where the SDK
        writes the job.
        """
        request = json.loads(body)["launchParameter"]
        spec = json.loads(_staged(request["containerSpecGcsPath"]))
        image = self.images.get(spec["image"])
        if image is None:
            raise Refused(
                400,
                "INVALID_ARGUMENT",
                f"(7d01): image {spec['image']} cannot be pulled: not found",
            )
        environment = request["environment"]
        location = f"{environment['stagingLocation']}/template_launches/{time.time_ns()}/job_object"
        flags = {
            "runner": "DataflowRunner",
            "project": self.project,
            "region": region,
            "job_name": request["jobName"],
            "template_location": location,
            "temp_location": environment["tempLocation"],
            "staging_location": environment["stagingLocation"],
            "sdk_container_image": environment.get("sdkContainerImage", spec["image"]),
            "num_workers": environment.get("numWorkers", 1),
            "machine_type": environment.get("machineType", "n1-standard-1"),
            **request.get("parameters", {}),
        }
        program = [image["python"], image["environment"]["FLEX_TEMPLATE_PYTHON_PY_FILE"]]
        credentials = {
            name: value for name, value in os.environ.items() if name.startswith("GOOGLE_")
        }
        process = subprocess.run(
            [*program, *(f"--{name}={value}" for name, value in flags.items())],
            env=bare(**credentials, **image["environment"]),
            cwd=self.folder.parent,
            capture_output=True,
            text=True,
            check=False,
        )
        if process.returncode:
            raise Refused(
                400,
                "FAILED_PRECONDITION",
                f"Template launch failed: exit status {process.returncode}\n{process.stderr}",
            )
        return {"job": self.create(region, _staged(location))}

    def answer(self, method: str, path: str, query: dict[str, str], body: bytes) -> dict[str, Any]:
        """Return the response to a request; raise Refused."""
        # The credentials of a service account ask for a token here.
        if path == "/token":
            return {"access_token": "token", "expires_in": 3600, "token_type": "Bearer"}
        if launched := re.fullmatch(
            r"/v1b3/projects/([^/]+)/locations/([^/]+)/flexTemplates:launch", path
        ):
            self.project, region = launched.groups()
            return self.launch(region, body)
        match = re.fullmatch(
            r"/v1b3/projects/([^/]+)/locations/([^/]+)/jobs(?:/([^/]+)(?:/(messages|metrics|seen))?)?",
            path,
        )
        if not match:
            raise Refused(404, "NOT_FOUND", f"no such method: {method} {path}")
        self.project, region, name, of_job = match.groups()
        if method == "POST" and name is None:
            return self.create(region, body)
        if name is None:
            jobs = list(self.jobs.values())
            if query.get("filter") == str(dataflow.ListJobsRequest.Filter.ACTIVE.value):
                jobs = [job for job in jobs if job.state not in ENDED]
            return {"jobs": [job.as_json() for job in jobs]}
        job = self.jobs.get(name)
        if job is None or job.location != region:
            raise Refused(
                404,
                "NOT_FOUND",
                f"(c6a3): Information about job {name} could not be found in our system.",
            )
        if method == "PUT":
            if _parsed(body).requested_state != STATES.JOB_STATE_CANCELLED:
                raise Refused(
                    400, "INVALID_ARGUMENT", "only a batch job's cancellation can be requested"
                )
            job.cancel()
        if of_job == "messages":
            since = _moment(query.get("startTime", ""))
            messages = [message for message in job.messages if _moment(message["time"]) >= since]
            return {"jobMessages": messages}
        if of_job == "metrics":
            return {"metrics": []}
        # The real service has no such page. It shows a test the description of the job.
        if of_job == "seen":
            description = json_format.MessageToDict(dataflow.Job.pb(job.description))
            return {"description": description, "folder": str(job.folder)}
        return job.as_json()


def _parsed(body: bytes) -> Any:
    """Return a job's description; raise Refused for a field that the published API lacks."""
    description = dataflow.Job()
    try:
        json_format.Parse(body, dataflow.Job.pb(description))
    except json_format.ParseError as error:
        raise Refused(400, "INVALID_ARGUMENT", f"Invalid JSON payload received. {error}") from error
    return description


def _integers(value: Any) -> Any:
    """Return JSON with integers restored: in a Struct, all numbers are floats."""
    if isinstance(value, dict):
        return {name: _integers(inner) for name, inner in value.items()}
    if isinstance(value, list):
        return [_integers(inner) for inner in value]
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _staged(url: str, size_only: bool = False) -> bytes:
    """Return an object of the bucket; raise Refused if it is missing."""
    bucket, _, name = url.removeprefix("gs://").partition("/")
    objects = f"{os.environ['STORAGE_EMULATOR_HOST']}/storage/v1/b/{bucket}/o"
    address = f"{objects}/{urllib.parse.quote(name, safe='')}"
    if not size_only:
        address += "?alt=media"
    try:
        with urllib.request.urlopen(address) as response:
            return bytes(response.read())
    except urllib.error.HTTPError as error:
        raise Refused(
            400, "INVALID_ARGUMENT", f"(2a80): The staged file {url} cannot be read: {error}"
        ) from error


def _bucket_exists(bucket: str) -> bool:
    """Return whether the emulator has a bucket."""
    address = f"{os.environ['STORAGE_EMULATOR_HOST']}/storage/v1/b/{bucket}"
    try:
        urllib.request.urlopen(address).close()
    except urllib.error.HTTPError:
        return False
    return True


def _moment(text: str) -> datetime:
    """Return a time of JSON, such as 2026-01-31T12:00:00.123Z; the earliest time if it is empty."""
    text = re.sub(r"(\.\d{6})\d+", r"\1", text.replace("Z", "+00:00"))
    return datetime.fromisoformat(text) if text else datetime.min.replace(tzinfo=timezone.utc)


class _Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    service: Service

    def _answer(self) -> None:
        address = urllib.parse.urlsplit(self.path)
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        query = dict(urllib.parse.parse_qsl(address.query))
        code = 200
        response = {}
        try:
            response = self.service.answer(self.command, address.path, query, body)
        except Refused as error:
            code = error.code
            response = {
                "error": {"code": error.code, "message": str(error), "status": error.status}
            }
        content = json.dumps(response).encode()
        self.send_response(code)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    do_GET = do_POST = do_PUT = _answer

    def log_message(self, format: str, *arguments: Any) -> None:
        pass


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path)
    parser.add_argument("port", type=int)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--image", action="append", default=[], metavar="NAME=FILE")
    arguments = parser.parse_args()
    named = (image.rpartition("=") for image in arguments.image)
    images = {name: json.loads(Path(file).read_bytes()) for name, _, file in named}
    _Handler.service = Service(arguments.folder, arguments.workers, images)
    http.server.ThreadingHTTPServer(("127.0.0.1", arguments.port), _Handler).serve_forever()


if __name__ == "__main__":
    main()
