"""Prism, Flink and Spark on loopback, and the worker pool that runs their workers.

They come from packages only: `make test-engines` installs the programs into .venv-engines. A
program that is missing, or does not start, fails the test.
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
    # The JVMs live for seconds, in which the second compiler costs more time than it saves.
    "-XX:TieredStopAtLevel=1",
]
FLINK_JOB_SERVER = "org.apache.beam.runners.flink.FlinkJobServerDriver"
SPARK_JOB_SERVER = "org.apache.beam.runners.spark.SparkJobServerDriver"

SETTINGS_FOLDER = Path(__file__).parent

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
    """A program in a process group of its own, whose output goes to `log`."""

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
        """The process id."""
        return self._process.pid

    def ports(self) -> set[int]:
        """Return the ports where the program listens."""
        descriptors = Path(f"/proc/{self.pid}/fd").iterdir()
        sockets = {os.readlink(path) for path in descriptors if path.is_symlink()}
        ports = set()
        for name in ("tcp", "tcp6"):
            table = Path(f"/proc/{self.pid}/net/{name}").read_text()
            for line in table.splitlines()[1:]:
                columns = line.split()
                # The state 0A is LISTEN.
                if columns[3] == "0A" and f"socket:[{columns[9]}]" in sockets:
                    ports.add(int(columns[1].rpartition(":")[2], 16))
        return ports

    def wait_until(self, ready: Callable[[], bool], title: str) -> None:
        """Wait until the program is ready.

        Raises AssertionError with the end of its log if it never is.
        """
        end = time.monotonic() + STARTING_SECONDS
        while not ready():
            code = self._process.poll()
            assert code is None, f"{title} ended with exit code {code}:\n{self.last_words()}"
            assert time.monotonic() < end, f"{title} does not answer:\n{self.last_words()}"
            time.sleep(0.2)

    def last_words(self) -> str:
        """Return the end of the log."""
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-40:])

    def kill(self) -> None:
        """Stop the program as a power cut would, with the processes that it has started."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()


@dataclass(frozen=True)
class WorkerPool:
    """A service that starts a worker process for each environment that an engine requests.

    Attributes:
      address: the address of the service.
      process: the process of the service.
    """

    address: str
    process: Process

    @property
    def flags(self) -> list[str]:
        """The flags that a user gives to `owt` for workers of this pool."""
        return ["--environment_type=EXTERNAL", f"--environment_config={self.address}"]

    def workers(self) -> dict[int, int]:
        """Return the port of the engine's process by the process id of its worker."""
        command = ["ps", "ww", "--ppid", str(self.process.pid), "-o", "pid=", "-o", "args="]
        ps = subprocess.run(command, capture_output=True, text=True, check=False)
        matches = re.finditer(r"^ *(\d+) .*SdkHarness\(.*:(\d+)", ps.stdout, re.MULTILINE)
        return {int(match[1]): int(match[2]) for match in matches}


@contextlib.contextmanager
def worker_pool(
    folder: Path,
    python: Path | None = None,
    hidden: Path | None = None,
    environment: Mapping[str, str] | None = None,
) -> Iterator[WorkerPool]:
    """Start a pool whose workers have nothing of this project except its wheel.

    The workers find the buckets that the environment of this process names.

    Args:
      folder: the folder of its log and temporary files.
      python: the Python of another environment.
      hidden: a folder that is empty for the workers, and on another disk.
      environment: further variables.
    """
    if python is None:
        python = install(folder / "worker", [wheel()], _installed(DEPENDENCIES))
    port = free_port()
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
      name: its name in the tests.
      runner: the flags of the runner that starts a job server of its own.
      port: the port of the job service.
      processes: the engine's programs by name.
    """

    name: str
    runner: list[str]
    port: int = field(default_factory=free_port)
    processes: dict[str, Process] = field(default_factory=dict)

    @property
    def flags(self) -> list[str]:
        """The flags of `owt run` that submit a job to the engine, without the workers' flags."""
        return ["--runner=PortableRunner", f"--job_endpoint=localhost:{self.port}"]

    def jobs(self) -> int:
        """Return the number of jobs that were submitted."""
        with grpc.insecure_channel(f"localhost:{self.port}") as channel:
            service = beam_job_api_pb2_grpc.JobServiceStub(channel)
            return len(service.GetJobs(beam_job_api_pb2.GetJobsRequest()).job_info)

    def kill(self, name: str) -> None:
        """Stop one of the programs as a power cut would."""
        self.processes.pop(name).kill()

    def last_words(self) -> str:
        """Return the end of each program's log."""
        return "\n".join(
            f"{name}:\n{process.last_words()}" for name, process in self.processes.items()
        )


@contextlib.contextmanager
def prism(folder: Path) -> Iterator[Engine]:
    """Start Prism as a server."""
    program = _installed(PROGRAMS / "bin/prism")
    with _ending(
        Engine("prism", ["--runner=PrismRunner", f"--prism_location={program}"])
    ) as engine:
        command = [program, f"-job_port={engine.port}", f"-web_port={free_port()}"]
        engine.processes["prism"] = server = Process(command, folder / "prism.log")
        server.wait_until(lambda: listens(engine.port), "Prism")
        yield engine


def spark(folder: Path) -> Engine:
    """Return Spark as its runner starts it: a job server, which runs jobs itself on two threads."""
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
        self.rest_port = free_port()
        rpc = free_port()
        jars = [_installed(PROGRAMS / "flink-job-server")]
        jar = _executable_jar(folder / "flink-job-server.jar", FLINK_JOB_SERVER, jars)
        master = f"--flink_master=localhost:{self.rest_port}"
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
            (SETTINGS_FOLDER / "flink-conf.yaml")
            .read_text()
            .format(rpc=rpc, rest=self.rest_port, tmp=folder)
        )
        (folder / "flink-conf.yaml").write_text(settings)
        shutil.copy(SETTINGS_FOLDER / "log4j.properties", folder)
        self._environment = {
            **os.environ,
            "FLINK_PLUGINS_DIR": str(home / "plugins"),
            "FLINK_CONF_DIR": str(folder),
        }

    @property
    def flags(self) -> list[str]:
        """The flags of an engine, with the parallelism of the slots."""
        return [*super().flags, f"--parallelism={self.slots}"]

    def start(self) -> None:
        """Start all programs, and wait until the cluster has its slots."""
        main = "org.apache.flink.runtime.entrypoint.StandaloneSessionClusterEntrypoint"
        manager = self._java(
            "jobmanager", "-Xmx512m", [self._jars], main, f"--configDir={self._folder}"
        )
        manager.wait_until(lambda: listens(self.rest_port), "Flink's JobManager")
        for _ in range(self.slots):
            self.start_task_manager()
        self._wait_for_slots()
        self.start_job_server()

    def restore(self) -> None:
        """Restore the first number of TaskManagers and the job server, and cancel all jobs."""
        for name in self.task_managers()[self.slots :]:
            self.kill(name)
        while len(self.task_managers()) < self.slots:
            self.start_task_manager()
        if "job server" not in self.processes:
            self.start_job_server()
        for job in self.rest_api("/jobs/overview")["jobs"]:
            if job["state"] not in ("FINISHED", "FAILED", "CANCELED"):
                address = f"http://localhost:{self.rest_port}/jobs/{job['jid']}"
                urllib.request.urlopen(
                    urllib.request.Request(address, method="PATCH"), timeout=30
                ).close()
        self._wait_for_slots()

    def start_task_manager(self) -> None:
        """Start one more TaskManager."""
        self._started += 1
        main = "org.apache.flink.runtime.taskexecutor.TaskManagerRunner"
        name = f"taskmanager-{self._started}"
        memory = "-Xmx384m -XX:MaxDirectMemorySize=256m"
        self._java(name, memory, [self._jars], main, f"--configDir={self._folder}")

    def start_job_server(self) -> None:
        """Start Beam's job server, which submits jobs to the JobManager."""
        # Its own version of Flink comes first. Only the logger is the cluster's.
        jars = [_installed(PROGRAMS / "flink-job-server"), *sorted(self._jars.glob("log4j-*.jar"))]
        flags = [f"--flink-master=localhost:{self.rest_port}", *_job_server_ports(self)]
        server = self._java("job server", "-Xmx512m", jars, FLINK_JOB_SERVER, *flags)
        server.wait_until(lambda: listens(self.port), "Flink's job server")

    def rest_api(self, path: str) -> Any:
        """Return the JobManager's response to a request."""
        address = f"http://localhost:{self.rest_port}{path}"
        with urllib.request.urlopen(address, timeout=30) as response:
            return json.load(response)

    def _wait_for_slots(self) -> None:
        def are_free() -> bool:
            # While the JobManager starts, it responds with an error or closes the connection.
            with contextlib.suppress(OSError):
                overview = self.rest_api("/overview")
                return bool(overview["slots-total"] == overview["slots-available"] == self.slots)
            return False

        for name in self.task_managers():
            self.processes[name].wait_until(are_free, f"Flink's {name}")

    def task_managers(self) -> list[str]:
        """Return the names of the TaskManagers that run."""
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
    """Start a Flink cluster with a TaskManager for each slot, and its job server."""
    engine = Flink(folder, slots)
    with _ending(engine):
        engine.start()
        yield engine


def listens(port: int) -> bool:
    """Return whether a program accepts connections on a port of this machine."""
    try:
        socket.create_connection(("localhost", port), timeout=5).close()
    except OSError:
        return False
    return True


_AnyEngine = TypeVar("_AnyEngine", bound=Engine)


@contextlib.contextmanager
def _ending(engine: _AnyEngine) -> Iterator[_AnyEngine]:
    """Yield the engine, and kill its programs at the end."""
    try:
        yield engine
    finally:
        for process in engine.processes.values():
            process.kill()


def _job_server_ports(engine: Engine) -> list[str]:
    """Return the flags for free ports of a job server."""
    return [
        f"--job-port={engine.port}",
        f"--artifact-port={free_port()}",
        f"--expansion-port={free_port()}",
    ]


def _class_path(places: Sequence[Path]) -> str:
    """Return jars and the jars of folders as a class path."""
    return ":".join(map(str, _jars(places)))


def _jars(places: Sequence[Path]) -> list[Path]:
    """Return jars and the jars of folders, in an order that does not depend on the file system."""
    jars = []
    for place in places:
        jars += sorted(place.glob("*.jar")) if place.is_dir() else [place]
    return jars


def _executable_jar(path: Path, main: str, places: Sequence[Path]) -> Path:
    """Write a jar that names the jars it needs, from which Beam's runners start a job server."""
    attributes = {
        "Manifest-Version": "1.0",
        "Main-Class": main,
        "Class-Path": " ".join(jar.as_uri() for jar in _jars(places)),
        "Add-Opens": " ".join(OPENED),
        "Add-Exports": " ".join(EXPORTED),
    }
    lines = (f"{name}: {value}" for name, value in attributes.items())
    # A line of a manifest has 72 bytes at most.
    folded = ("\n ".join(re.findall(".{1,70}", line)) for line in lines)
    with zipfile.ZipFile(path, "w") as jar:
        jar.writestr("META-INF/MANIFEST.MF", "\n".join(folded) + "\n")
    return path


def _python_package(name: str) -> Path:
    """Return the folder of a package in the engines' environment."""
    (folder,) = (_installed(PROGRAMS) / "lib").glob(f"python3.*/site-packages/{name}")
    return folder


def _installed(path: Path) -> Path:
    """Return a path of an installed program; fail if it is missing."""
    assert path.exists(), f"{path} is not installed: run `make test-engines`"
    return path
