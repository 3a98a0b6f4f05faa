"""Prism, Flink and Spark on loopback, from packages alone, and the worker pool that their workers run in.

`make test-engines` installs the programs into .venv-engines. One that is not there, or does not start, fails the test.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import time
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.engines.environments import DEPENDENCIES, REPOSITORY, bare, install, wheel
from tests.servers.process import free_port

PROGRAMS = REPOSITORY / ".venv-engines"

STARTING_SECONDS = 90

# Flink 1.16 and Spark 3.3 reach into packages that Java closes since version 16.
_OPENED = "lang util nio net io lang.invoke util.concurrent util.concurrent.atomic".split()
JAVA = [
    "java",
    *(f"--add-opens=java.base/java.{package}=ALL-UNNAMED" for package in _OPENED),
    "--add-opens=java.base/sun.nio.ch=ALL-UNNAMED",
    "--add-exports=java.base/sun.net.util=ALL-UNNAMED",
    "-XX:+UseSerialGC",
]

# Without their start-up scripts, Flink's processes have no default for the sizes of memory.
FLINK_CONF = """\
jobmanager.rpc.address: localhost
jobmanager.rpc.port: {rpc}
jobmanager.memory.process.size: 1024m
rest.address: localhost
rest.bind-address: 127.0.0.1
rest.port: {rest}
taskmanager.host: localhost
taskmanager.numberOfTaskSlots: 1
taskmanager.cpu.cores: 1
taskmanager.memory.framework.heap.size: 128m
taskmanager.memory.framework.off-heap.size: 128m
taskmanager.memory.task.heap.size: 256m
taskmanager.memory.task.off-heap.size: 64m
taskmanager.memory.network.min: 64m
taskmanager.memory.network.max: 64m
taskmanager.memory.managed.size: 128m
taskmanager.memory.jvm-metaspace.size: 256m
taskmanager.memory.jvm-overhead.min: 192m
taskmanager.memory.jvm-overhead.max: 192m
restart-strategy: fixed-delay
restart-strategy.fixed-delay.attempts: 10
restart-strategy.fixed-delay.delay: 1 s
heartbeat.interval: 1000
heartbeat.timeout: 6000
io.tmp.dirs: {tmp}
"""

LOG4J = """\
rootLogger.level = INFO
rootLogger.appenderRef.console.ref = Console
appender.console.name = Console
appender.console.type = Console
appender.console.layout.type = PatternLayout
appender.console.layout.pattern = %d{HH:mm:ss.SSS} %-5p %c{1} %m%n
"""


class Process:
    """A program in a process group of its own; what it prints goes to `log`."""

    def __init__(self, command: Sequence[object], log: Path, environment: Mapping[str, str] = os.environ):
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

    def wait_until(self, ready: Callable[[], bool], what: str) -> None:
        """Wait for the program to be ready; raises AssertionError with the end of its log where it never is."""
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


@contextlib.contextmanager
def worker_pool(folder: Path) -> Iterator[str]:
    """The address of a pool of workers that have nothing of this project but its wheel.

    They find the buckets that this process's environment names.
    """
    python, port = install(folder / "worker", [wheel()], _installed(DEPENDENCIES)), free_port()
    # The pool starts a worker as `python`, whichever comes first on the path.
    environment = bare(PATH=f"{python.parent}:{os.environ['PATH']}")
    command = [python, "-m", "apache_beam.runners.worker.worker_pool_main", f"--service_port={port}"]
    pool = Process(command, folder / "workers.log", environment)
    try:
        pool.wait_until(lambda: listens(port), "the worker pool")
        yield f"localhost:{port}"
    finally:
        pool.kill()


@dataclass
class Engine:
    """A running engine.

    Attributes:
      name: for the tests' names.
      flags: what a user gives to `owt run` to submit a job to it, but for the workers' flags.
      processes: by name, the engine's programs.
    """

    name: str
    flags: tuple[str, ...]
    processes: dict[str, Process] = field(default_factory=dict)

    def kill(self, name: str) -> None:
        """Kill one of its programs."""
        self.processes.pop(name).kill()

    def last_words(self) -> str:
        """The end of each program's log."""
        return "\n".join(f"{name}:\n{process.last_words()}" for name, process in self.processes.items())


@contextlib.contextmanager
def prism(folder: Path) -> Iterator[Engine]:
    """Prism as a server."""
    port, page = free_port(), free_port()
    with _engine("prism", f"--job_endpoint=localhost:{port}") as engine:
        command = [_installed(PROGRAMS / "bin/prism"), f"-job_port={port}", f"-web_port={page}"]
        engine.processes["prism"] = server = Process(command, folder / "prism.log")
        server.wait_until(lambda: listens(port), "Prism")
        yield engine


@contextlib.contextmanager
def spark(folder: Path) -> Iterator[Engine]:
    """Spark's job server, which runs the jobs itself on two threads."""
    port = free_port()
    jars = [_python_package("pyspark") / "jars", _installed(PROGRAMS / "spark-job-server")]
    with _engine("spark", f"--job_endpoint=localhost:{port}") as engine:
        main = ["org.apache.beam.runners.spark.SparkJobServerDriver", "--spark-master-url=local[2]"]
        command = [*JAVA, "-Xmx1g", "-cp", _class_path(jars), *main, *_job_server_ports(port)]
        engine.processes["job server"] = server = Process(command, folder / "spark-job-server.log")
        server.wait_until(lambda: listens(port), "Spark's job server")
        yield engine


class Flink(Engine):
    """A JobManager, two TaskManagers of one slot each, and Beam's job server."""

    def __init__(self, folder: Path):
        self.port, self.rest, rpc = free_port(), free_port(), free_port()
        super().__init__("flink", (*_PORTABLE, f"--job_endpoint=localhost:{self.port}", "--parallelism=2"))
        self._folder = folder
        self._started = 0
        home = _python_package("pyflink")
        self._jars = home / "lib"
        (folder / "flink-conf.yaml").write_text(FLINK_CONF.format(rpc=rpc, rest=self.rest, tmp=folder))
        (folder / "log4j.properties").write_text(LOG4J)
        self._environment = {**os.environ, "FLINK_PLUGINS_DIR": str(home / "plugins"), "FLINK_CONF_DIR": str(folder)}

    def start(self) -> None:
        """Start all four, and wait until the cluster has its slots."""
        main = "org.apache.flink.runtime.entrypoint.StandaloneSessionClusterEntrypoint"
        manager = self._java("jobmanager", "-Xmx512m", [self._jars], main, f"--configDir={self._folder}")
        manager.wait_until(lambda: listens(self.rest), "Flink's JobManager")
        for _ in range(2):
            self.start_task_manager()
        for name in self.task_managers():
            self.processes[name].wait_until(lambda: self.rest_api("/overview")["slots-total"] == 2, f"Flink's {name}")
        self.start_job_server()

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
        main = "org.apache.beam.runners.flink.FlinkJobServerDriver"
        flags = [f"--flink-master=localhost:{self.rest}", *_job_server_ports(self.port)]
        server = self._java("job server", "-Xmx512m", jars, main, *flags)
        server.wait_until(lambda: listens(self.port), "Flink's job server")

    def rest_api(self, path: str) -> Any:
        """What the JobManager answers."""
        with urllib.request.urlopen(f"http://localhost:{self.rest}{path}", timeout=30) as answer:
            return json.load(answer)

    def task_managers(self) -> list[str]:
        """The names of the TaskManagers that run."""
        return [name for name in self.processes if name.startswith("taskmanager")]

    def _java(self, name: str, memory: str, jars: Sequence[Path], main: str, *flags: str) -> Process:
        folders = [f"-Djava.io.tmpdir={self._folder}", f"-Dlog4j.configurationFile={self._folder}/log4j.properties"]
        command = [*JAVA, *memory.split(), *folders, "-cp", _class_path(jars), main, *flags]
        log = self._folder / f"flink-{name.replace(' ', '-')}.log"
        self.processes[name] = process = Process(command, log, self._environment)
        return process


@contextlib.contextmanager
def flink(folder: Path) -> Iterator[Flink]:
    """A Flink cluster with two TaskManagers, and its job server."""
    engine = Flink(folder)
    try:
        engine.start()
        yield engine
    finally:
        for process in engine.processes.values():
            process.kill()


def listens(port: int) -> bool:
    """Whether a program takes connections on a port of this machine."""
    try:
        socket.create_connection(("localhost", port), timeout=5).close()
    except OSError:
        return False
    return True


_PORTABLE = ("--runner=PortableRunner",)


@contextlib.contextmanager
def _engine(name: str, *flags: str) -> Iterator[Engine]:
    engine = Engine(name, (*_PORTABLE, *flags))
    try:
        yield engine
    finally:
        for process in engine.processes.values():
            process.kill()


def _job_server_ports(port: int) -> list[str]:
    return [f"--job-port={port}", f"--artifact-port={free_port()}", f"--expansion-port={free_port()}"]


def _class_path(places: Sequence[Path]) -> str:
    """Folders give all their jars, in an order that does not depend on the file system."""
    jars = [jar for place in places for jar in (sorted(place.glob("*.jar")) if place.is_dir() else [place])]
    return ":".join(map(str, jars))


def _python_package(name: str) -> Path:
    (folder,) = (_installed(PROGRAMS) / "lib").glob(f"python3.*/site-packages/{name}")
    return folder


def _installed(path: Path) -> Path:
    assert path.exists(), f"{path} is not installed: run `make test-engines`"
    return path
