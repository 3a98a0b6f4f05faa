"""Submitting a job to a cluster: check and complete Beam's options."""

from __future__ import annotations

import dataclasses
import logging
import os
import socket
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from owt_pipeline.errors import UsageError, UserError
from owt_pipeline.storage.folder import Storage
from schemas.settings import did_you_mean

if TYPE_CHECKING:
    from apache_beam.options.pipeline_options import PipelineOptions

logger = logging.getLogger("owt")

DATAFLOW = "DataflowRunner"
_PATHS = ("GLOB", "FILE", "DIR")  # metavars of options whose values are paths
CONNECT_SECONDS = 5.0
CACHE_MILLISECONDS = 60_000
"""How long Flink and Spark keep an idle worker. By default, they start new ones for each of 30 shuffles."""
_THIS_MACHINE = ("[local]", "[auto]", "[collection]", "local")  # masters that run in the job server itself


def options_for(flags: Sequence[str], workdir: Storage, stages: Sequence[tuple[Any, Any]] = ()) -> PipelineOptions:
    """Beam's options from its flags, with the defaults that this pipeline needs.

    `stages` are (stage, options) pairs. Raises UsageError for wrong flags, and for files that the workers cannot read.
    """
    from apache_beam.options.pipeline_options import PipelineOptions

    options = PipelineOptions(list(flags))
    standard = _view(options, "StandardOptions")
    runner, known = standard.runner or "", {*standard.KNOWN_RUNNER_NAMES, *standard.LOCAL_RUNNERS}
    if runner and "." not in runner and runner not in known:
        raise UsageError(f"--runner {runner}: there is no such runner{did_you_mean(runner, known)}")
    _view(options, "SetupOptions").save_main_session = False  # Dataflow's default; workers import the package
    debug = _view(options, "DebugOptions")
    debug.number_of_worker_harness_threads = debug.number_of_worker_harness_threads or 1  # a part at a time
    if is_dataflow(options):
        _check_dataflow(options, workdir, stages)
    elif runner in ("PortableRunner", "FlinkRunner", "SparkRunner"):
        _check_portable(options, runner)
        portable = _view(options, "PortableOptions")
        portable.environment_cache_millis = portable.environment_cache_millis or CACHE_MILLISECONDS
    return options


def _view(options: PipelineOptions, name: str) -> Any:
    """Beam's options of the class `name`; imported here, so that a run without Beam does not import it."""
    from apache_beam.options import pipeline_options

    return options.view_as(getattr(pipeline_options, name))


def with_absolute_paths(options: Any) -> Any:
    """A stage's options with absolute paths for local files, because workers start in another folder."""
    changed = {}
    for field in dataclasses.fields(options):
        value = getattr(options, field.name)
        if value and field.metadata.get("metavar") in _PATHS:
            paths = value if isinstance(value, tuple) else (value,)
            paths = tuple(path if "://" in path else os.path.abspath(path) for path in paths)
            changed[field.name] = paths if isinstance(value, tuple) else paths[0]
    return dataclasses.replace(options, **changed)


def is_dataflow(options: PipelineOptions) -> bool:
    """Whether the runner is Dataflow's, with or without its module's name."""
    return (_view(options, "StandardOptions").runner or "").rpartition(".")[2] == DATAFLOW


def describe_runner(options: PipelineOptions) -> dict[str, Any]:
    """Where the stages run, for the run's log: the runner as `host`."""
    return {"host": str(_view(options, "StandardOptions").runner)}


def submits_later(options: PipelineOptions) -> bool:
    """Whether the job is written to a file, which a Flex Template's launcher submits after this program has ended."""
    return is_dataflow(options) and bool(_view(options, "GoogleCloudOptions").template_location)


def is_detached(options: PipelineOptions) -> bool:
    """Whether this program ends once the job is submitted (Beam's --no_wait_until_finish, for Dataflow). The same
    command then reports that the job is running, or its outcome."""
    return is_dataflow(options) and bool(_view(options, "StandardOptions").no_wait_until_finish)


def job_of(result: Any) -> str:
    """The runner's id of a submitted job."""
    found = getattr(result, "job_id", None) or "without an id"
    return str(found() if callable(found) else found)


def _check_dataflow(options: PipelineOptions, workdir: Storage, stages: Sequence[tuple[Any, Any]]) -> None:
    _require_google()
    import google.auth
    import google.auth.exceptions
    from apache_beam.io.gcp import gcsio
    from google.api_core.exceptions import GoogleAPICallError

    places = _view(options, "GoogleCloudOptions")
    if not places.no_auth:
        try:
            google.auth.default()
        except google.auth.exceptions.GoogleAuthError as error:
            raise UserError(
                f"no credentials for Google Cloud (`gcloud auth application-default login`): {_one_line(str(error))}"
            ) from None
    if not workdir.uri.startswith("gs://"):
        raise UsageError(f"{workdir}: Dataflow's workers cannot read it; give a bucket, gs://BUCKET/FOLDER")
    for stage, given in stages:
        for field in dataclasses.fields(given):
            value = getattr(given, field.name)
            if field.metadata.get("metavar") in _PATHS:
                for path in value if isinstance(value, tuple) else [value or "://"]:
                    if "://" not in path:
                        there = "" if os.path.exists(path) else ", and it is not here either"
                        raise UsageError(
                            f"{stage.name}: {field.name}: {path} is a path of this machine, which Dataflow's workers "
                            f"cannot read{there}"
                        )
    setup = _view(options, "SetupOptions")
    image = _view(options, "WorkerOptions").sdk_container_image
    if not (setup.extra_packages or setup.setup_file or setup.requirements_file or image):
        raise UsageError(
            "Dataflow's workers need this package: give --sdk_container_image (see Dockerfile), or the wheel with "
            "--extra_package (`pip wheel --no-deps --wheel-dir dist .` makes it)"
        )
    for place in (places.temp_location, places.staging_location):
        if place and place.startswith("gs://"):
            try:  # the SDK would try a missing or forbidden bucket for ten minutes
                gcsio.create_storage_client(options, not places.no_auth).get_bucket(place.split("/")[2])
            except GoogleAPICallError as error:
                raise UserError(f"Google Cloud refused {place}: {_one_line(error.message)}") from None


def _check_portable(options: PipelineOptions, runner: str) -> None:
    """Raise UserError if nothing answers, UsageError if the workers would not have this package."""
    portable = _view(options, "PortableOptions")
    flag, address = "--job_endpoint", portable.job_endpoint
    if not address and runner == "PortableRunner":
        raise UsageError(
            "--runner PortableRunner needs --job_endpoint HOST:PORT, the address of a job server that runs"
        )
    if not address and runner == "FlinkRunner":
        flag, address = "--flink_master", _view(options, "FlinkRunnerOptions").flink_master
    elif not address:
        flag, address = "--spark_master_url", _view(options, "SparkRunnerOptions").spark_master_url
    if address.partition("[")[0] in _THIS_MACHINE or address in _THIS_MACHINE:
        return
    _check_answers(flag, address)
    setup, kind = _view(options, "SetupOptions"), portable.environment_type or "DOCKER"
    staged = setup.extra_packages or setup.setup_file or setup.requirements_file
    named = portable.environment_config or portable.environment_options
    if kind == "EXTERNAL" and not named:
        raise UsageError(
            "--environment_type EXTERNAL needs --environment_config HOST:PORT, the address of a worker pool"
        )
    if kind == "DOCKER" and not (named or staged or _view(options, "WorkerOptions").sdk_container_image):
        raise UsageError(
            "the workers need this package: start a worker pool in an environment with the wheel and give "
            "--environment_type=EXTERNAL --environment_config=HOST:PORT, or give an image (see Dockerfile) with "
            "--environment_config=IMAGE"
        )


def _check_answers(flag: str, address: str) -> None:
    host, _, port = address.rpartition("//")[2].strip("/").rpartition(":")
    if not host or not port.isdecimal():
        raise UsageError(f"{flag} {address}: expected HOST:PORT")
    try:
        socket.create_connection((host, int(port)), CONNECT_SECONDS).close()
    except OSError as error:
        raise UserError(
            f"{flag} {address}: nothing answers there ({error.strerror or error}); is it running?"
        ) from None


def _require_google() -> None:
    try:
        import google.cloud.dataflow  # noqa: F401
    except ImportError:
        raise UsageError("Dataflow needs Google's clients: pip install 'apache-beam[gcp]'") from None


def failure(error: Exception) -> UserError:
    """A runner's error as one line, for a job that left no outcome; its log has more."""
    text = _one_line(str(error))
    if len(text) > 600:  # a traceback's cause is at its end
        text = f"{text[:300]} … {text[-300:]}"
    return UserError(f"the job failed ({type(error).__name__}: {text}); see the runner's log")


def _one_line(text: str) -> str:
    return " ".join(text.split())
