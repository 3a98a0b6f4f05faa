"""Prism, Flink and Spark on loopback, from packages alone, and the worker pool that their
workers run in.

`make test-engines` installs the programs into .venv-engines. One that is not there, or does not
start, fails the test.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import time
import urllib.request
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import grpc
from apache_beam.portability.api import beam_job_api_pb2, beam_job_api_pb2_grpc

from tests.engines.environments import DEPENDENCIES, REPOSITORY, bare, install, wheel
from tests.servers.process import free_port

PROGRAMS = REPOSITORY / ".venv-engines"

STARTING_SECONDS = 90

# Flink 1.16 and Spark 3.3 reach into packages that Java closes since version 16.
_OPENED = "lang util nio net io lang.invoke util.concurrent util.concurrent.atomic".split()
OPENED = [*(f"java.base/java.{package}" for package in _OPENED), "java.base/sun.nio.ch"]
EXPORTED = ["java.base/sun.net.util"]
JAVA = [
    "java",
    *(f"--add-opens={package}=ALL-UNNAMED" for package in OPENED),
    *(f"--add-exports={package}=ALL-UNNAMED" for package in EXPORTED),
    "-XX:+UseSerialGC",
    # they live for seconds: what the second compiler does for them is never worth its time
    "-XX:TieredStopAtLevel=1",
]
FLINK_JOB_SERVER = "org.apache.beam.runners.flink.FlinkJobServerDriver"
SPARK_JOB_SERVER = "org.apache.beam.runners.spark.SparkJobServerDriver"

HERE = Path(__file__).parent

# Beam's worker pool serves one engine's process. Here several share one, and most name their worker
# `1-1`: a request to stop it would kill whoever was the last to get this name. Each worker ends by
# itself when its engine hangs up.
WORKER_POOL = """\
from apache_beam.portability.api import beam_fn_api_pb2
from apache_beam.runners.worker import worker_pool_main
worker_pool_main.BeamFnExternalWorkerPoolServicer.StopWorker = lambda *_: beam_fn_api_pb2.StopWorkerResponse()
worker_pool_main.main()
"""


class Process:
    """A program in a process group of its own; what it prints goes to `log`."""

    def __init__(
        self, command: Sequence[object], log: Path, environment: Mapping[str, str] = os.environ
    ):
        with open(log, "ab") as file:
            self._process = subprocess.Popen(
                list(map(str, command)),
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.STDOUT,
                cwd=log.parent,
                env={**environment, "TMPDIR": str(log.parent)},
                start_new_session=True,
            )
        self.log = log

    @property
    def pid(self) -> int:
        return self._process.pid

    def ports(self) -> set[int]:
        """The ports that it listens at."""
        sockets = {
            os.readlink(fd) for fd in Path(f"/proc/{self.pid}/fd").iterdir() if fd.is_symlink()
        }
        tables = [
            Path(f"/proc/{self.pid}/net/{name}").read_text().splitlines()[1:]
            for name in ("tcp", "tcp6")
        ]
        rows = [line.split() for table in tables for line in table]
        return {
            int(row[1].rpartition(":")[2], 16)
            for row in rows
            if row[3] == "0A" and f"socket:[{row[9]}]" in sockets
        }

    def wait_until(self, ready: Callable[[], bool], what: str) -> None:
        """Wait for the program to be ready; raises AssertionError with the end of its log if it
        never is."""
        end = time.monotonic() + STARTING_SECONDS
        while not ready():
            ended = self._process.poll()
            assert ended is None, f"{what} ended with exit code {ended}:\n{self.last_words()}"
            assert time.monotonic() < end, f"{what} does not answer:\n{self.last_words()}"
            time.sleep(0.2)

    def last_words(self) -> str:
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-40:])

    def kill(self) -> None:
        """End it as a power cut would, with the processes it has started."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()


@dataclass(frozen=True)
class WorkerPool:
    """Starts a worker, a process, for each environment that an engine asks for.

    Attributes:
      address: of its service.
      process: the pool itself.
    """

    address: str
    process: Process

    @property
    def flags(self) -> list[str]:
        """What a user gives to `owt` for workers of this pool."""
        return ["--environment_type=EXTERNAL", f"--environment_config={self.address}"]

    def workers(self) -> dict[int, int]:
        """The process id of each worker, and the port of the engine's process that it works for."""
        listed = ["ps", "ww", "--ppid", str(self.process.pid), "-o", "pid=", "-o", "args="]
        lines = subprocess.run(
            listed, capture_output=True, text=True, check=False
        ).stdout.splitlines()
        found = (re.match(r" *(\d+) .*SdkHarness\(.*:(\d+)", line) for line in lines)
        return {int(match[1]): int(match[2]) for match in found if match}


@contextlib.contextmanager
def worker_pool(
    folder: Path,
    python: Path | None = None,
    hidden: Path | None = None,
    environment: Mapping[str, str] | None = None,
) -> Iterator[WorkerPool]:
    """A pool of workers that have nothing of this project but its wheel.

    They find the buckets that this process's environment names.

    Args:
      folder: for its log and temporary files.
      python: of another environment.
      hidden: a folder of this machine that the workers do not see: theirs is empty, and on another
        disk.
      environment: further variables.
    """
    python, port = (
        python or install(folder / "worker", [wheel()], _installed(DEPENDENCIES)),
        free_port(),
    )
    # The pool starts a worker as `python`, whichever comes first on the path.
    variables = bare(PATH=f"{python.parent}:{os.environ['PATH']}", **(environment or {}))
    command = [python, "-c", WORKER_POOL, f"--service_port={port}"]
    if hidden:
        mount = f'mount -t tmpfs none "{hidden}" && exec "$@"'
        command = ["unshare", "--map-root-user", "--mount", "sh", "-c", mount, "sh", *command]
    pool = Process(command, folder / "workers.log", variables)
    try:
        pool.wait_until(lambda: listens(port), "the worker pool")
        yield WorkerPool(f"localhost:{port}", pool)
    finally:
        pool.kill()


@dataclass
class Engine:
    """A running engine.

    Attributes:
      name: for the tests' names.
      runner: flags of the runner that starts a job server of its own.
      port: of the job service that runs.
      processes: by name, the engine's programs.
    """

    name: str
    runner: list[str]
    port: int = field(default_factory=free_port)
    processes: dict[str, Process] = field(default_factory=dict)

    @property
    def flags(self) -> list[str]:
        """What a user gives to `owt run` to submit a job to it, but for the workers' flags."""
        return ["--runner=PortableRunner", f"--job_endpoint=localhost:{self.port}"]

    def jobs(self) -> int:
        """How many jobs were submitted to it."""
        with grpc.insecure_channel(f"localhost:{self.port}") as channel:
            service = beam_job_api_pb2_grpc.JobServiceStub(channel)
            return len(service.GetJobs(beam_job_api_pb2.GetJobsRequest()).job_info)

    def kill(self, name: str) -> None:
        """Kill one of its programs."""
        self.processes.pop(name).kill()

    def last_words(self) -> str:
        """The end of each program's log."""
        return "\n".join(
            f"{name}:\n{process.last_words()}" for name, process in self.processes.items()
        )


@contextlib.contextmanager
def prism(folder: Path) -> Iterator[Engine]:
    """Prism as a server."""
    program = _installed(PROGRAMS / "bin/prism")
    with _ending(
        Engine("prism", ["--runner=PrismRunner", f"--prism_location={program}"])
    ) as engine:
        command = [program, f"-job_port={engine.port}", f"-web_port={free_port()}"]
        engine.processes["prism"] = server = Process(command, folder / "prism.log")
        server.wait_until(lambda: listens(engine.port), "Prism")
        yield engine


def spark(folder: Path) -> Engine:
    """Spark as its runner starts it: a job server, which runs the jobs itself on two threads."""
    jars = [_python_package("pyspark") / "jars", _installed(PROGRAMS / "spark-job-server")]
    jar = _executable_jar(folder / "spark-job-server.jar", SPARK_JOB_SERVER, jars)
    return Engine(
        "spark",
        ["--runner=SparkRunner", "--spark_master_url=local[2]", f"--spark_job_server_jar={jar}"],
    )


class Flink(Engine):
    """A JobManager, some TaskManagers of one slot each, and Beam's job server."""

    def __init__(self, folder: Path, slots: int = 2):
        self.slots = slots
        self.rest, rpc = free_port(), free_port()
        jars = [_installed(PROGRAMS / "flink-job-server")]
        jar = _executable_jar(folder / "flink-job-server.jar", FLINK_JOB_SERVER, jars)
        master = f"--flink_master=localhost:{self.rest}"
        runner = [
            "--runner=FlinkRunner",
            master,
            f"--flink_job_server_jar={jar}",
            f"--parallelism={slots}",
        ]
        super().__init__("flink", runner)
        self._folder = folder
        self._started = 0
        home = _python_package("pyflink")
        self._jars = home / "lib"
        settings = (
            (HERE / "flink-conf.yaml").read_text().format(rpc=rpc, rest=self.rest, tmp=folder)
        )
        (folder / "flink-conf.yaml").write_text(settings)
        shutil.copy(HERE / "log4j.properties", folder)
        self._environment = {
            **os.environ,
            "FLINK_PLUGINS_DIR": str(home / "plugins"),
            "FLINK_CONF_DIR": str(folder),
        }

    @property
    def flags(self) -> list[str]:
        return [*super().flags, f"--parallelism={self.slots}"]

    def start(self) -> None:
        """Start them all, and wait until the cluster has its slots."""
        main = "org.apache.flink.runtime.entrypoint.StandaloneSessionClusterEntrypoint"
        manager = self._java(
            "jobmanager", "-Xmx512m", [self._jars], main, f"--configDir={self._folder}"
        )
        manager.wait_until(lambda: listens(self.rest), "Flink's JobManager")
        for _ in range(self.slots):
            self.start_task_manager()
        self._wait_for_slots()
        self.start_job_server()

    def restore(self) -> None:
        """Have the TaskManagers of its beginning, all registered, and a job server; no job runs."""
        for name in self.task_managers()[self.slots :]:
            self.kill(name)
        while len(self.task_managers()) < self.slots:
            self.start_task_manager()
        if "job server" not in self.processes:
            self.start_job_server()
        for job in self.rest_api("/jobs/overview")["jobs"]:
            if job["state"] not in ("FINISHED", "FAILED", "CANCELED"):
                address = f"http://localhost:{self.rest}/jobs/{job['jid']}"
                urllib.request.urlopen(
                    urllib.request.Request(address, method="PATCH"), timeout=30
                ).close()
        self._wait_for_slots()

    def start_task_manager(self) -> None:
        """One more TaskManager."""
        self._started += 1
        main = "org.apache.flink.runtime.taskexecutor.TaskManagerRunner"
        name = f"taskmanager-{self._started}"
        memory = "-Xmx384m -XX:MaxDirectMemorySize=256m"
        self._java(name, memory, [self._jars], main, f"--configDir={self._folder}")

    def start_job_server(self) -> None:
        """Beam's job server, which submits jobs to the JobManager."""
        # Its own Flink first: the logger alone is the cluster's.
        jars = [_installed(PROGRAMS / "flink-job-server"), *sorted(self._jars.glob("log4j-*.jar"))]
        flags = [f"--flink-master=localhost:{self.rest}", *_job_server_ports(self)]
        server = self._java("job server", "-Xmx512m", jars, FLINK_JOB_SERVER, *flags)
        server.wait_until(lambda: listens(self.port), "Flink's job server")

    def rest_api(self, path: str) -> Any:
        """What the JobManager answers."""
        with urllib.request.urlopen(f"http://localhost:{self.rest}{path}", timeout=30) as answer:
            return json.load(answer)

    def _wait_for_slots(self) -> None:
        def are_free() -> bool:
            with contextlib.suppress(
                OSError
            ):  # an error or a closed connection, while the JobManager starts
                found = self.rest_api("/overview")
                return bool(found["slots-total"] == found["slots-available"] == self.slots)
            return False

        for name in self.task_managers():
            self.processes[name].wait_until(are_free, f"Flink's {name}")

    def task_managers(self) -> list[str]:
        """The names of the TaskManagers that run."""
        return [name for name in self.processes if name.startswith("taskmanager")]

    def _java(
        self, name: str, memory: str, jars: Sequence[Path], main: str, *flags: str
    ) -> Process:
        folders = [
            f"-Djava.io.tmpdir={self._folder}",
            f"-Dlog4j.configurationFile={self._folder}/log4j.properties",
        ]
        command = [*JAVA, *memory.split(), *folders, "-cp", _class_path(jars), main, *flags]
        log = self._folder / f"flink-{name.replace(' ', '-')}.log"
        self.processes[name] = process = Process(command, log, self._environment)
        return process


@contextlib.contextmanager
def flink(folder: Path, slots: int = 2) -> Iterator[Flink]:
    """A Flink cluster with as many TaskManagers, and its job server."""
    engine = Flink(folder, slots)
    with _ending(engine):
        engine.start()
        yield engine


def listens(port: int) -> bool:
    """Whether a program takes connections on a port of this machine."""
    try:
        socket.create_connection(("localhost", port), timeout=5).close()
    except OSError:
        return False
    return True


_AnyEngine = TypeVar("_AnyEngine", bound=Engine)


@contextlib.contextmanager
def _ending(engine: _AnyEngine) -> Iterator[_AnyEngine]:
    try:
        yield engine
    finally:
        for process in engine.processes.values():
            process.kill()


def _job_server_ports(engine: Engine) -> list[str]:
    return [
        f"--job-port={engine.port}",
        f"--artifact-port={free_port()}",
        f"--expansion-port={free_port()}",
    ]


def _class_path(places: Sequence[Path]) -> str:
    return ":".join(map(str, _jars(places)))


def _jars(places: Sequence[Path]) -> list[Path]:
    """Folders give all their jars, in an order that does not depend on the file system."""
    return [
        jar
        for place in places
        for jar in (sorted(place.glob("*.jar")) if place.is_dir() else [place])
    ]


def _executable_jar(path: Path, main: str, places: Sequence[Path]) -> Path:
    """A jar for `java -jar`, which names those it needs: what Beam's runners start a job server
    from."""
    attributes = {
        "Manifest-Version": "1.0",
        "Main-Class": main,
        "Class-Path": " ".join(jar.as_uri() for jar in _jars(places)),
        "Add-Opens": " ".join(OPENED),
        "Add-Exports": " ".join(EXPORTED),
    }
    lines = (f"{name}: {value}" for name, value in attributes.items())
    folded = (
        "\n ".join(re.findall(".{1,70}", line)) for line in lines
    )  # a line has 72 bytes at most
    with zipfile.ZipFile(path, "w") as jar:
        jar.writestr("META-INF/MANIFEST.MF", "\n".join(folded) + "\n")
    return path


def _python_package(name: str) -> Path:
    (folder,) = (_installed(PROGRAMS) / "lib").glob(f"python3.*/site-packages/{name}")
    return folder


def _installed(path: Path) -> Path:
    assert path.exists(), f"{path} is not installed: run `make test-engines`"
    return path
