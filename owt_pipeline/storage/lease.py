"""The lease on a working directory: one run at a time, on a disk or in a bucket.

`.lease` names its holder. It is created only if absent, and renewed every five seconds by compare-and-swap: of many
processes that see it due, one renews it. A lease that has not been renewed for 30 seconds is dead. The process that
watches the lease measures that time; clocks of two machines are never compared. A second run therefore waits until the
first one renews its lease, and then refuses to start, or it takes the lease over. On the same machine it need not wait,
because it can see whether the holder is still running.

With `owt run`, the launcher holds the lease (`hold`). A graph made by `build` takes it in its first step, renews it
while a step is at work, and releases it at its end (`take`, `keeping`, `release`).

A run whose lease was taken over stops. It renews the lease before it writes a manifest (`renew`), so a run that was
suspended publishes nothing when it wakes up. Other files that it may write by then do no harm: data files are named by
their content, and records are created only if absent.
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import logging
import os
import signal
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, NamedTuple, TypeVar

import msgspec

from owt_pipeline.errors import JobRuns, UserError
from owt_pipeline.storage.disk import Process, this_process
from owt_pipeline.storage.folder import Storage, in_thread

logger = logging.getLogger("owt")

LEASE_NAME = ".lease"
TERM_SECONDS = 30.0
"""A lease is dead if it has not been renewed for this long."""
RENEW_SECONDS = 5.0
_STOP_SECONDS = 20.0
"""How long a run that has lost its lease may take to stop by itself."""
_RELEASE_SECONDS = 10.0


class Job(msgspec.Struct, frozen=True):
    """A job on a cluster: Beam's name of the runner, and the runner's id of the job. It continues when the process that
    started it ends."""

    runner: str
    id: str


class Holder(msgspec.Struct, frozen=True):
    """Content of a file that one run or attempt holds: created only if absent, changed by compare-and-swap.

    Attributes:
      owner: a random id.
      renewals: number of renewals, which makes each content unique.
    """

    owner: str
    renewals: int


class Lease(Holder, frozen=True):
    """Content of `.lease`; `owner` is a run.

    Attributes:
      host, pid, started: its process (see `Process`).
      command: the command, such as `owt run`.
      expires: when it ends unless it is renewed, in seconds since 1970 by its host's clock; only processes of that host
        use it.
      job: the job that does the work, unless the process itself does it.
    """

    host: str
    pid: int
    started: str
    command: str
    expires: float
    job: Job | None = None

    @property
    def process(self) -> Process:
        return Process(self.host, self.pid, self.started)

    def __str__(self) -> str:
        holder = f"`{self.command}` (process {self.pid} on {self.host.partition('.')[0]})"
        if self.job:
            holder = f"job {self.job.id} on {self.job.runner}, started by {holder}"
        return f"{holder}, until {time.strftime('%Y-%m-%d %H:%M:%S', time.localtime(self.expires))} unless renewed"


H = TypeVar("H", bound=Holder)


class LeaseLost(UserError):
    """Another run has taken the working directory over."""


class Held(NamedTuple):
    """A lease that this process holds: its owner, a random id; and, if the lease was taken over from a job that nobody
    waited for, that job, which has ended."""

    owner: str
    ended: Job | None


@contextlib.contextmanager
def hold(
    workdir: Storage, take_over: bool = False, job_runs: Callable[[Job], bool | None] | None = None
) -> Iterator[Held]:
    """Hold the lease on a working directory until the block ends.

    Args:
      workdir: the working directory; created if missing.
      take_over: take the lease even from a live holder.
      job_runs: asks a runner whether a job is still running; returns None if that is unknown. A lease that names a job
        is taken over only if it returns False.

    Raises UserError, which names the holder, if another run holds the lease. If another run takes it over, interrupts
    the main thread, and raises LeaseLost at the end of the block.
    """
    owner, lost = uuid.uuid4().hex, list[LeaseLost]()
    before = take(workdir, owner, take_over, job_runs)
    try:
        try:
            with keeping(workdir, owner, lost.append):
                yield Held(owner, before.job if before else None)
        finally:
            with contextlib.suppress(TimeoutError, concurrent.futures.TimeoutError):  # without a network, it expires
                in_thread(partial(release, workdir, owner)).result(_RELEASE_SECONDS)
    except KeyboardInterrupt:
        if not lost:
            raise
    if lost:
        raise lost[0] from None


def renew(workdir: Storage, owner: str, every: float = 0.0) -> None:
    """Renew the lease of the run `owner`, in its own process or in another one that works for it.

    Workers on a cluster call this for each record that they write. With `every` (seconds), a process reads the lease at
    most that often, and renews it only if it has not changed for that long by its own clock. It tries once: of many
    processes that see the same lease, one renews it, because buckets allow about one write per second and object.

    Raises LeaseLost if another run holds the lease.
    """
    key, now = (workdir.uri, owner), time.monotonic()
    before = _looks.get(key)
    if every and before and now < before.at + every:
        return
    lease, version = _read(workdir)
    since = before.since if before and before.version == version else now
    if lease is not None and version is not None and lease.owner == owner and now >= since + every:
        expires = time.time() + TERM_SECONDS if lease.process.is_here else lease.expires
        changed = msgspec.structs.replace(lease, renewals=lease.renewals + 1, expires=expires)
        swapped = workdir.swap(LEASE_NAME, msgspec.json.encode(changed), version)
        if swapped is None:  # another process of the run was first, or another run
            lease, swapped = _read(workdir)
        version, since = swapped, now
    if lease is None or lease.owner != owner:
        raise _lost(workdir)
    _looks[key] = _Look(now, version, since)


class _Look(NamedTuple):
    """When this process last read a lease, the version it saw, and since when it has seen this version."""

    at: float
    version: str | None
    since: float


def is_held(workdir: Storage, owner: str) -> bool:
    """Renew the lease, and return whether the run `owner` holds it; True without an owner."""
    try:
        if owner:
            renew(workdir, owner)
    except LeaseLost:
        return False
    return True


@contextlib.contextmanager
def keeping(workdir: Storage, owner: str, lose: Callable[[LeaseLost], object] | None = None) -> Iterator[None]:
    """Renew the lease in a thread while the block runs.

    If the lease is lost, call `lose` and interrupt the main thread; without `lose`, the block has to notice it.
    """
    ended = threading.Event()

    def keep() -> None:
        while not ended.wait(RENEW_SECONDS):
            try:
                renew(workdir, owner, every=RENEW_SECONDS)
            except LeaseLost as error:
                if lose is not None:
                    lose(error)
                    signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)
                    if not ended.wait(_STOP_SECONDS):
                        print(f"owt: error: {error}", file=sys.stderr, flush=True)
                        os._exit(1)
                return
            except (OSError, UserError) as error:  # without the storage, no other run can take it over either
                logger.warning("the lease on %s could not be renewed, trying again: %s", workdir, error)

    keeper = threading.Thread(target=keep, name="lease", daemon=True)
    keeper.start()
    try:
        yield
    except BaseException:
        _held.discard(owner)  # the run has ended, unless a runner retries the block
        raise
    finally:
        ended.set()
        keeper.join(_RELEASE_SECONDS)


def release(workdir: Storage, owner: str) -> None:
    """Delete the lease of the run `owner`, unless its job continues or another run has taken it over."""
    _held.discard(owner)
    with contextlib.suppress(LeaseLost, OSError, UserError):
        renew(workdir, owner)  # so that no other run takes it over before it is deleted
        lease = _read(workdir)[0]
        if lease and lease.owner == owner and not lease.job:
            workdir.remove_dead_spools()
            workdir.delete(LEASE_NAME)


def name_job(workdir: Storage, owner: str, job: Job | None) -> None:
    """Write into the lease which job works for the run `owner`; None if the job has ended. Raises LeaseLost."""
    if not rewrite(workdir, LEASE_NAME, Lease, owner, job=job):
        raise _lost(workdir)


_looks: dict[tuple[str, str], _Look] = {}  # this process's last look, by working directory and owner
_held: set[str] = set()  # owners of the runs that began in this process and have not ended


def is_in_sight(workdir: Storage) -> bool:
    """Whether this process sees the run's lease; not if the path leads to another disk here."""
    return _read(workdir)[1] is not None


def out_of_sight(workdir: Storage) -> UserError:
    """The error of a run whose workers see another folder."""
    return UserError(
        f"--workdir {workdir}: the workers do not see what is written there; give a bucket (gs://, s3://, az://), or a "
        "folder with the same path on a disk that all machines share"
    )


def running(workdir: Storage) -> Lease | None:
    """The lease of the run at work in this working directory, as far as one look can tell; None if there is none."""
    lease = _read(workdir)[0]
    if lease is None or (lease.process.is_here and not lease.job and not lease.process.runs()):
        return None
    return lease if lease.job or not lease.process.is_here or lease.expires > time.time() else None


def mention_running(workdir: Storage) -> None:
    """Log a warning if a run is at work, for commands that read a working directory."""
    if lease := running(workdir):
        logger.warning("%s is in use by %s: what it has not finished is not there yet", workdir, lease)


def take(
    workdir: Storage, owner: str, take_over: bool = False, job_runs: Callable[[Job], bool | None] | None = None
) -> Lease | None:
    """Take the lease for the run `owner`; a repeated call has no effect. Arguments and errors are those of `hold`.
    Returns the lease that was taken over, if any."""
    process = this_process()
    _held.add(owner)

    def mine() -> bytes:
        expires = time.time() + TERM_SECONDS
        return msgspec.json.encode(Lease(owner, 0, process.host, process.pid, process.started, _command(), expires))

    while not workdir.create(LEASE_NAME, mine()):
        lease, version = _read(workdir)
        if version is None:
            continue  # released just now
        if lease and lease.owner == owner:
            break  # created or swapped, but the answer was lost
        if not take_over and not _is_dead(workdir, lease, version, job_runs):
            continue
        if workdir.swap(LEASE_NAME, mine(), version) is not None:
            logger.info("%s: took the lease over from %s", workdir, lease or "nobody known")
            return lease
    return None


def _is_dead(
    workdir: Storage, lease: Lease | None, version: str, job_runs: Callable[[Job], bool | None] | None
) -> bool:
    """Whether a lease is dead; False if it is gone. Raises UserError if it is alive."""
    if lease and lease.job:
        runs = job_runs(lease.job) if job_runs else None
        if runs is None:
            raise UserError(
                f"{workdir} is in use by {lease}; whether the job still runs cannot be seen from here: if it has "
                "ended, run the same command with --take_over"
            )
        if runs:
            raise _in_use(workdir, lease)
        return True
    if lease and lease.process.is_here:
        if not lease.process.runs() or (lease.process == this_process() and lease.owner not in _held):
            return True
        if lease.expires > time.time():
            raise _in_use(workdir, lease)
    logger.warning("%s is in use by %s: waiting up to %.0f s for a sign of life", workdir, lease, TERM_SECONDS)
    end = time.monotonic() + TERM_SECONDS
    while time.monotonic() < end:
        time.sleep(min(1.0, TERM_SECONDS / 10))
        seen, seen_version = _read(workdir)
        if seen_version is None:
            return False
        if seen_version != version:
            raise _in_use(workdir, seen)
    return True


def _in_use(workdir: Storage, lease: Lease | None) -> UserError:
    kind = JobRuns if lease and lease.job else UserError
    return kind(f"{workdir} is in use by {lease}: wait for it to end, or stop it")


def _lost(workdir: Storage) -> LeaseLost:
    return LeaseLost(f"{workdir} was taken over by {_read(workdir)[0] or 'nobody known'}; this run stops")


def _read(workdir: Storage) -> tuple[Lease | None, str | None]:
    return read_holder(workdir, LEASE_NAME, Lease)


def rewrite(folder: Storage, name: str, kind: type[Holder], owner: str, **changes: Any) -> bool:
    """Renew and change the file that `owner` holds; returns False if another owner holds it, or it is gone."""

    def renewed(content: bytes | None) -> bytes | None:
        holder = _holder(content or b"", kind)
        if holder is None or holder.owner != owner:
            return None
        return msgspec.json.encode(msgspec.structs.replace(holder, renewals=holder.renewals + 1, **changes))

    return folder.change(name, renewed)


def read_holder(folder: Storage, name: str, kind: type[H]) -> tuple[H | None, str | None]:
    """The holder of a file, and the file's version; no holder if the content is damaged, as after a power failure."""
    found = folder.read_version(name)
    return (_holder(found[0], kind), found[1]) if found else (None, None)


def _holder(content: bytes, kind: type[H]) -> H | None:
    with contextlib.suppress(msgspec.MsgspecError, UnicodeDecodeError):
        return msgspec.json.decode(content, type=kind)
    return None


def _command() -> str:
    """The command without its flags, which may contain secrets."""
    program = os.path.basename(sys.argv[0])
    words = ["owt" if program == "__main__.py" else program, *sys.argv[1:2]]
    return " ".join(word for word in words if not word.startswith("-"))
