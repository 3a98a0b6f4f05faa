"""Submit a job to a cluster: check and complete Beam's options, name the packages that its workers
install, and tell its launcher why it failed.

A runner shows the launcher the end of a traceback at best, so a worker writes the outcome to a file
in the run's folder, `.outcome`.

A runner installs a staged wheel of this project (`--extra_package`) with its dependencies but
without its extras, and in the newest versions. So a requirements file of the job names all packages
and versions.
"""

from __future__ import annotations

import dataclasses
import logging
import os
import socket
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from owt_pipeline.engine.stage import Runtime
from owt_pipeline.errors import UsageError, UserError, without_traceback
from owt_pipeline.storage.folder import Storage
from schemas.settings import did_you_mean

if TYPE_CHECKING:
    from apache_beam.options.pipeline_options import PipelineOptions
import contextlib
import functools
import importlib.metadata
import re
import tempfile
import traceback
from importlib.metadata import PackageNotFoundError

import msgspec

from owt_pipeline.errors import (
    OUT_OF_MEMORY,
    WorkerError,
    explain_os_error,
    is_out_of_memory,
)
from schemas.settings import ExitCode

logger = logging.getLogger("owt")

DATAFLOW = "DataflowRunner"
CONNECT_SECONDS = 5.0

CACHE_MILLISECONDS = 60_000
"""How long Flink and Spark keep an idle worker. By default, they start new ones for each of 30
shuffles."""

# Metavars of options whose values are paths.
_PATHS = ("GLOB", "FILE", "DIR")

# Masters that run in the job server itself.
_THIS_MACHINE = ("[local]", "[auto]", "[collection]", "local")


def options_for(
    flags: Sequence[str], workdir: Storage, stages: Sequence[tuple[Any, Any]] = ()
) -> PipelineOptions:
    """Return Beam's options from its flags, with the defaults that this pipeline needs.

    `stages` are (stage, options) pairs. Raises UsageError for wrong flags, and for files that the
    workers cannot read.
    """
    from apache_beam.options.pipeline_options import PipelineOptions, StandardOptions

    given = PipelineOptions(list(flags)).get_all_options()
    runner, known = (
        given["runner"] or "",
        {*StandardOptions.KNOWN_RUNNER_NAMES, *StandardOptions.LOCAL_RUNNERS},
    )
    if runner and "." not in runner and runner not in known:
        raise UsageError(f"--runner {runner}: there is no such runner{did_you_mean(runner, known)}")
    defaults = {
        "save_main_session": False,  # Dataflow's default is True; workers import the package
        "number_of_worker_harness_threads": given["number_of_worker_harness_threads"]
        or 1,  # a part at a time
    }
    if runner in ("PortableRunner", "FlinkRunner", "SparkRunner"):
        _check_portable(given, runner)
        defaults["environment_cache_millis"] = (
            given["environment_cache_millis"] or CACHE_MILLISECONDS
        )
    defaults |= package_options(given)
    options = PipelineOptions(list(flags), **defaults)
    if _is_dataflow(given):
        _check_dataflow(options, given, workdir, stages)
    return options


def with_absolute_paths(options: Any) -> Any:
    """Return a stage's options with absolute paths for local files.

    Workers start in another folder.
    """
    changed = {}
    for field in dataclasses.fields(options):
        value = getattr(options, field.name)
        if value and field.metadata.get("metavar") in _PATHS:
            paths = value if isinstance(value, tuple) else (value,)
            paths = tuple(path if "://" in path else os.path.abspath(path) for path in paths)
            changed[field.name] = paths if isinstance(value, tuple) else paths[0]
    return dataclasses.replace(options, **changed)


def _is_dataflow(given: Mapping[str, Any]) -> bool:
    """Return whether the runner is Dataflow's, with or without its module's name."""
    return (given["runner"] or "").rpartition(".")[2] == DATAFLOW


def submits_later(options: PipelineOptions) -> bool:
    """Return whether the job is written to a file.

    The launcher of a Flex Template submits it after this program has ended.
    """
    given = options.get_all_options()
    return _is_dataflow(given) and bool(given["template_location"])


def is_detached(options: PipelineOptions) -> bool:
    """Return whether this program ends once the job is submitted.

    That is Beam's --no_wait_until_finish, for Dataflow. The same command then reports that the job
    is running, or its outcome.
    """
    given = options.get_all_options()
    return _is_dataflow(given) and bool(given["no_wait_until_finish"])


def job_of(result: Any) -> str:
    """Return the runner's id of a submitted job."""
    job_id = getattr(result, "job_id", None) or "without an id"
    # Some runners have a method, others an attribute.
    if callable(job_id):
        job_id = job_id()
    return str(job_id)


def _check_dataflow(
    options: PipelineOptions,
    given: Mapping[str, Any],
    workdir: Storage,
    stages: Sequence[tuple[Any, Any]],
) -> None:
    _require_google()
    import google.auth
    import google.auth.exceptions
    from apache_beam.io.gcp import gcsio
    from google.api_core.exceptions import GoogleAPICallError

    if not given["no_auth"]:
        try:
            google.auth.default()
        except google.auth.exceptions.GoogleAuthError as error:
            raise UserError(
                f"no credentials for Google Cloud ({_one_line(str(error))}): run "
                "`gcloud auth application-default login`"
            ) from None
    if not workdir.uri.startswith("gs://"):
        raise UsageError(
            f"Dataflow's workers cannot read {workdir}; give a bucket, gs://BUCKET/FOLDER"
        )
    for stage, settings in stages:
        for field in dataclasses.fields(settings):
            value = getattr(settings, field.name)
            if field.metadata.get("metavar") in _PATHS:
                for path in value if isinstance(value, tuple) else [value or "://"]:
                    if "://" not in path:
                        existence = ""
                        if not os.path.exists(path):
                            existence = ", and it does not exist on this machine either"
                        raise UsageError(
                            f"{stage.name}: {field.name}: Dataflow's workers cannot read the local "
                            f"path {path}{existence}; give a URI such as gs://BUCKET/FILE"
                        )
    if not (_stages_package(given) or given["sdk_container_image"]):
        raise UsageError(
            "Dataflow's workers need this package: give --sdk_container_image, an image that is "
            "built from Dockerfile"
        )
    for place in (given["temp_location"], given["staging_location"]):
        if place and place.startswith("gs://"):
            # The SDK would try a missing or forbidden bucket for ten minutes.
            try:
                gcsio.create_storage_client(options, not given["no_auth"]).get_bucket(
                    place.split("/")[2]
                )
            except GoogleAPICallError as error:
                raise UserError(
                    f"Google Cloud refused {place}: {_one_line(error.message)}"
                ) from None


def _check_portable(given: Mapping[str, Any], runner: str) -> None:
    """Raise UserError if nothing answers, UsageError if the workers would not have this package."""
    flag, address = "--job_endpoint", given["job_endpoint"]
    if not address and runner == "PortableRunner":
        raise UsageError(
            "--runner PortableRunner needs --job_endpoint HOST:PORT, the address of a running job "
            "server"
        )
    if not address and runner == "FlinkRunner":
        flag, address = "--flink_master", given["flink_master"]
    elif not address:
        flag, address = "--spark_master_url", given["spark_master_url"]
    if address.partition("[")[0] in _THIS_MACHINE or address in _THIS_MACHINE:
        return
    _check_answers(flag, address)
    kind, named = (
        given["environment_type"] or "DOCKER",
        given["environment_config"] or given["environment_options"],
    )
    if kind == "EXTERNAL" and not named:
        raise UsageError(
            "--environment_type EXTERNAL needs --environment_config HOST:PORT, the address of a "
            "worker pool"
        )
    if kind == "DOCKER" and not (named or _stages_package(given) or given["sdk_container_image"]):
        raise UsageError(
            "the workers need this package: start a worker pool in an environment with the wheel "
            "and give --environment_type=EXTERNAL --environment_config=HOST:PORT, or give an image "
            "(see Dockerfile) with --environment_config=IMAGE"
        )


def _stages_package(given: Mapping[str, Any]) -> bool:
    """Return whether the job brings a package for its workers to install."""
    return any(given[name] for name in ("extra_packages", "setup_file", "requirements_file"))


def _check_answers(flag: str, address: str) -> None:
    """Raise UserError if nothing answers at an address."""
    host, _, port = address.rpartition("//")[2].strip("/").rpartition(":")
    if not host or not port.isdecimal():
        raise UsageError(f"{flag} {address}: expected HOST:PORT")
    try:
        socket.create_connection((host, int(port)), CONNECT_SECONDS).close()
    except OSError as error:
        raise UserError(
            f"{flag} {address}: no server responds ({error.strerror or error}): check the address, "
            "and that the server is running"
        ) from None


def _require_google() -> None:
    try:
        import google.cloud.dataflow  # noqa: F401
    except ImportError:
        raise UsageError(
            "Dataflow needs Google's clients: pip install 'apache-beam[gcp]'"
        ) from None


def failure(error: Exception) -> UserError:
    """Return a runner's error as one line, for a job that left no outcome."""
    text = _one_line(without_traceback(str(error)))
    if len(text) > 600:
        text = f"{text[:300]} … {text[-300:]}"
    return UserError(f"the job failed ({type(error).__name__}: {text}): see the runner's log")


def _one_line(text: str) -> str:
    return " ".join(text.split())


_OUTCOME = ".outcome"


class JobOutcome(msgspec.Struct, frozen=True):
    """Why a job failed.

    Attributes:
      message: one line.
      run: id of the run.
      exit_code: the command's exit code.
      bug: the traceback, unless the error is the user's.
    """

    message: str
    run: str = ""
    exit_code: ExitCode = ExitCode.ERROR
    bug: str = ""

    @classmethod
    def of(cls, place: str, error: Exception, run: str = "") -> JobOutcome:
        """Return the outcome of an error of a run; `place` names the stage and part."""
        if isinstance(error, UserError):
            return cls(str(error), run, error.exit_code)
        if is_out_of_memory(error):
            return cls(f"{place}: {OUT_OF_MEMORY}", run)
        if isinstance(error, OSError):
            return cls(f"{place}: {explain_os_error(error)}", run)
        return cls(
            f"{place}: {error or type(error).__name__}",
            run,
            bug="".join(traceback.format_exception(error)),
        )

    def error(self) -> Exception:
        """Return the error for which the job failed."""
        if self.bug:
            return WorkerError(f"{self.message}\n{self.bug}")
        error = UserError(self.message)
        error.exit_code = self.exit_code
        return error


# The outcomes of runs of this process. A full or read-only disk must not hide why a run stopped.
_outcome_by_run: dict[str, JobOutcome] = {}


def keep_outcome(runtime: Runtime, outcome: JobOutcome) -> None:
    """Keep the outcome of a run; the first failure in a process counts.

    On a cluster, it is stored in the run's folder for the launcher. If that fails, the launcher
    shows the runner's own message.
    """
    _outcome_by_run.setdefault(outcome.run, outcome)
    if runtime.on_cluster:
        with contextlib.suppress(OSError, UserError):
            runtime.workdir.write(_OUTCOME, msgspec.json.encode(outcome))


def take_outcome(workdir: Storage, run: str | None = None) -> JobOutcome | None:
    """Return the outcome that a job has kept, and remove it.

    Returns None if there is none, or none that can be read. With `run`, the outcome of another run
    stays, and None is returned.
    """
    if run in _outcome_by_run:
        return _outcome_by_run.pop(run)
    try:
        outcome = msgspec.json.decode(workdir.read(_OUTCOME), type=JobOutcome)
    except FileNotFoundError:
        return None
    except (msgspec.MsgspecError, UnicodeDecodeError):
        outcome = None
    if run is not None and (outcome is None or outcome.run != run):
        return None
    workdir.delete(_OUTCOME)
    return outcome


_OURS = "owt-pipeline"
_BEAM = "apache-beam"
_EXTRAS_OF_WORKERS = ("pipeline", "aws", "azure", "gcp")

_REQUIREMENT_NAME = re.compile(r"[A-Za-z0-9._-]+")
_EXTRA = re.compile(r"""extra\s*==\s*["']([\w-]+)["']""")


def package_options(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return Beam's options with which workers install the packages that a staged wheel needs.

    Returns an empty dict if the job stages no wheel of this project, or if the job has its own
    requirements file, which then has to name the packages. The options name a temporary file, which
    is removed when this process ends.

    Args:
      given: all of Beam's options.
    """
    packages = given.get("extra_packages") or ()
    is_staged = any(os.path.basename(path).startswith("owt_pipeline-") for path in packages)
    if not is_staged or given.get("requirements_file"):
        return {}
    path = os.path.join(_folder().name, "requirements.txt")
    with open(path, "w", encoding="utf-8") as file:
        file.writelines(f"{line}\n" for line in worker_requirements())
    # With a cache, Beam would download every package to this machine and upload it.
    return {"requirements_file": path, "requirements_cache": "skip"}


@functools.cache
def _folder() -> tempfile.TemporaryDirectory[str]:
    return tempfile.TemporaryDirectory(prefix="owt-")


def worker_requirements() -> list[str]:
    """Return what workers need besides the wheel, as `NAME==VERSION` of this environment.

    Workers of other versions refuse a run. Beam is not among them: it is in the worker's image.
    """
    versions: dict[str, str] = {}
    for line in importlib.metadata.requires(_OURS) or []:
        name_match = _REQUIREMENT_NAME.match(line)
        extra = _EXTRA.search(line)
        if name_match is None or (extra and extra[1] not in _EXTRAS_OF_WORKERS):
            continue
        name = name_match[0]
        if name in (_OURS, _BEAM):
            continue
        try:
            versions[name] = importlib.metadata.version(name)
        except PackageNotFoundError:
            # A client of a bucket that this run does not use.
            continue
    return [f"{name}=={version}" for name, version in versions.items()]
