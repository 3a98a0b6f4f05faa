"""Which process wrote a file or holds a lease, and whether it still runs."""

from __future__ import annotations

import functools
import os
import socket
import subprocess
from dataclasses import dataclass


@dataclass(frozen=True)
class Process:
    """A process: its host, its id and when it started, since ids are used again.

    Attributes:
      host: the host's name and, on Linux, its PID namespace: containers may share a name, but not their processes.
      pid: the process id there.
      started: when it started, as the operating system says it; only compared for equality.
    """

    host: str
    pid: int
    started: str

    def __str__(self) -> str:
        return f"{self.host}-{self.pid}-{self.started}"

    @classmethod
    def parse(cls, text: str) -> Process | None:
        """The process that `str()` wrote, or None for another text."""
        parts = text.rsplit("-", 2)
        return cls(parts[0], int(parts[1]), parts[2]) if len(parts) == 3 and parts[1].isdecimal() else None

    @property
    def is_here(self) -> bool:
        """Whether it is or was a process of this host, so that `runs` can be asked."""
        return self.host == _host()

    def runs(self) -> bool:
        """Whether a process of this host still runs; one that has ended and waits for its parent does not."""
        return _started(self.pid) == self.started


def this_process() -> Process:
    """The process that asks."""
    return _process(os.getpid())  # cached by id: a forked child is another process


@functools.cache
def _process(pid: int) -> Process:
    return Process(_host(), pid, _started(pid) or "0")


@functools.cache
def _host() -> str:
    name = socket.gethostname().replace("/", "_")
    try:
        return f"{name}.{os.stat('/proc/self/ns/pid').st_ino}"
    except OSError:
        return name


def _started(pid: int) -> str | None:
    """When the process started, or None where none of this id runs."""
    if os.path.isdir("/proc/self"):
        try:
            with open(f"/proc/{pid}/stat", "rb") as file:
                fields = file.read().rpartition(b")")[2].split()  # the name before it may hold spaces
        except OSError:
            return None
        return None if fields[0] in (b"Z", b"X") else fields[19].decode()
    ps = subprocess.run(["ps", "-o", "stat=,lstart=", "-p", str(pid)], capture_output=True, text=True, check=False)
    state, _, started = ps.stdout.strip().partition(" ")
    return None if not state or state.startswith("Z") else "".join(c for c in started if c.isalnum())
