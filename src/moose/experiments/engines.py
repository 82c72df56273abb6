"""Where the jobs of a grid are done: in processes of this machine, or on a Ray cluster.

An engine has a number of slots. It takes a job when a slot is free and gives back its outcome,
or says that the worker was lost. It keeps no books and never tries a job twice.
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import secrets
import selectors
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any, Protocol, cast

from moose.errors import MissingExtraError, RunError
from moose.experiments.interrupts import interrupts_put_off
from moose.experiments.worker import CORES_VARIABLE, Job, Outcome, perform
from moose.storage import named_os_errors

_GRACE_SECONDS = 5.0
_PASSED_ON = ("PYTHONPATH", "MOOSE_CACHE", "JAX_COMPILATION_CACHE_DIR")
"""Of our environment, what workers of a cluster need as well."""
_LOG_TAIL = 2000


class Engine(Protocol):
    """Something that does jobs."""

    slots: int
    """How many jobs are done at once."""

    def submit(self, job: Job) -> int:
        """Begin a job, while fewer than ``slots`` are under way; the ticket names it."""

    def wait(self, timeout: float) -> list[tuple[int, Outcome]]:
        """Tickets and outcomes of jobs that have ended, as soon as there is one.

        The ``state`` of an outcome may be ``lost``: the worker died.
        """

    def stop(self) -> None:
        """End all workers and whatever they are doing."""


def pinned(threads: int) -> dict[str, str]:
    """The environment in which a worker computes with so many threads, whatever the library."""
    # XLA splits sums by the number of threads that NPROC fixes, so that the bits depend on it.
    names = ("NPROC", "OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
    return dict.fromkeys(names, str(threads))


class LocalEngine:
    """Worker processes on this machine, each with its own cores if together they use all.

    Args:
        workers: How many.
        threads: Threads of each.
        logs: The folder for what workers print.
    """

    def __init__(self, workers: int, threads: int, logs: Path) -> None:
        self.slots = workers
        with named_os_errors(logs):
            logs.mkdir(parents=True, exist_ok=True)
        cores = _cores_of(workers, threads)
        self._workers = [
            _LocalWorker(pinned(threads) | {CORES_VARIABLE: cores[i]}, logs / f"worker-{i}.log")
            for i in range(workers)
        ]
        self._last_ticket = 0

    def submit(self, job: Job) -> int:
        """Give the job to a worker that has none."""
        worker = next(worker for worker in self._workers if worker.ticket is None)
        self._last_ticket += 1
        worker.begin(self._last_ticket, job)
        return self._last_ticket

    def wait(self, timeout: float) -> list[tuple[int, Outcome]]:
        """Outcomes of workers that have answered or died."""
        busy = [worker for worker in self._workers if worker.ticket is not None]
        if not busy:
            time.sleep(timeout)
            return []
        with selectors.DefaultSelector() as selector:
            for worker in busy:
                selector.register(worker.answers, selectors.EVENT_READ, worker)
            ready = [key.data for key, _ in selector.select(timeout)]
        return [worker.end() for worker in ready]

    def stop(self) -> None:
        """Ask all workers to stop, and end those that do not within a few seconds."""
        for worker in self._workers:
            worker.ask_to_stop()
        deadline = time.monotonic() + _GRACE_SECONDS
        for worker in self._workers:
            worker.stop(deadline)

    @property
    def processes(self) -> list[int]:
        """The ids of the workers that are alive."""
        return [worker.process.pid for worker in self._workers if worker.is_alive]


class _LocalWorker:
    """One process, started when there is something to do and again after it has died."""

    def __init__(self, environment: Mapping[str, str], log: Path) -> None:
        self.ticket: int | None = None
        self._environment = environment
        self._log = log
        self._process: subprocess.Popen[str] | None = None
        self._begun = 0.0

    @property
    def process(self) -> subprocess.Popen[str]:
        assert self._process is not None  # noqa: S101 (for the type checker)
        return self._process

    @property
    def is_alive(self) -> bool:
        return self._process is not None and self._process.poll() is None

    @property
    def answers(self) -> IO[str]:
        return cast(IO[str], self.process.stdout)

    def begin(self, ticket: int, job: Job) -> None:
        if not self.is_alive:
            self._start()
        self.ticket, self._begun = ticket, time.monotonic()
        # A worker that died just now is found out when its answer is waited for.
        with contextlib.suppress(BrokenPipeError):
            jobs = cast(IO[str], self.process.stdin)
            jobs.write(json.dumps(job) + "\n")
            jobs.flush()

    def end(self) -> tuple[int, Outcome]:
        """The answer that is there, or what the death of the process tells."""
        ticket, self.ticket = cast(int, self.ticket), None
        line = self.answers.readline()
        if line.endswith("\n"):
            return ticket, json.loads(line)
        code = self.process.wait()
        self._close()
        how = f"signal {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
        return ticket, {
            "state": "lost",
            "message": f"The worker process died ({how}).",
            "traceback": self._log_tail(),
            "seconds": time.monotonic() - self._begun,
        }

    def ask_to_stop(self) -> None:
        if self.is_alive:
            self.process.send_signal(signal.SIGINT)

    def stop(self, deadline: float) -> None:
        if self._process is None:
            return
        try:
            self.process.wait(max(0.0, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            self.process.kill()  # runs are safe from this; see the journal
            self.process.wait()
        self._close()
        self.ticket = None

    def _start(self) -> None:
        if self._process is not None:
            self._close()
        # An interrupt between the birth of the process and its name would leave an orphan.
        with interrupts_put_off(), open(self._log, "a", encoding="utf-8") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "moose.experiments.worker"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                env=os.environ | self._environment,
                # Ctrl-C in a terminal reaches every process of the group: it is for us to decide.
                start_new_session=True,
            )

    def _close(self) -> None:
        for stream in (self.process.stdin, self.process.stdout):
            with contextlib.suppress(BrokenPipeError):
                cast(IO[str], stream).close()
        self._process = None

    def _log_tail(self) -> str:
        with contextlib.suppress(OSError):
            return self._log.read_text(encoding="utf-8", errors="replace")[-_LOG_TAIL:]
        return ""


def _cores_of(workers: int, threads: int) -> list[str]:
    """Which cores each worker may use: its own if together they use all, else no list.

    A grid that leaves cores free may run beside another: both would keep to the same first ones.
    """
    if not hasattr(os, "sched_getaffinity"):
        return [""] * workers
    cores = sorted(os.sched_getaffinity(0))
    if workers * threads != len(cores):
        return [""] * workers
    return [",".join(map(str, cores[i * threads : (i + 1) * threads])) for i in range(workers)]


class RayEngine:
    """Tasks on a Ray cluster; every machine of it sees the same folders under the same paths.

    A cluster of our own is reached from this machine only, by token: Ray listens on all interfaces
    whatever it is told, so that the token is what keeps others out. It has no dashboard and sends
    no statistics.

    Args:
        workers: How many jobs at once.
        threads: Threads of each, and the cores that Ray reckons with.
        address: An existing cluster, whose token is in ``RAY_AUTH_TOKEN`` or in Ray's own file;
            None for a cluster of our own that ends with this engine.
    """

    def __init__(self, workers: int, threads: int, address: str | None = None) -> None:
        if importlib.util.find_spec("ray") is None:
            raise MissingExtraError("ray", "ray", "Running a grid with --engine ray")
        self.slots = workers
        os.environ.setdefault("RAY_AUTH_MODE", "token")
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        own: dict[str, Any] = {}
        if address is None:
            # In the environment, not in a file: it is gone with the cluster.
            os.environ["RAY_AUTH_TOKEN"] = secrets.token_hex(32)
            own = {"num_cpus": workers * threads, "_node_ip_address": "127.0.0.1"}
        import ray  # noqa: PLC0415 (an optional dependency, and its environment is set first)

        self._ray = ray
        variables = pinned(threads) | {
            name: os.environ[name] for name in _PASSED_ON if name in os.environ
        }
        try:
            ray.init(
                address=address or "local",
                include_dashboard=False,
                log_to_driver=False,
                runtime_env={"env_vars": variables},
                **own,
            )
        except (ConnectionError, RuntimeError, ValueError, ray.exceptions.RayError) as error:
            raise RunError(
                f"The Ray cluster cannot be had: {error}",
                where=address or "a cluster on this machine",
                advice="check the address, and that its token is in RAY_AUTH_TOKEN",
            ) from error
        self._perform = ray.remote(perform_text).options(num_cpus=threads, max_retries=0)
        self._jobs: dict[Any, tuple[int, float]] = {}
        self._last_ticket = 0

    def submit(self, job: Job) -> int:
        """Hand the job to the cluster."""
        self._last_ticket += 1
        reference = self._perform.remote(json.dumps(job))
        self._jobs[reference] = (self._last_ticket, time.monotonic())
        return self._last_ticket

    def wait(self, timeout: float) -> list[tuple[int, Outcome]]:
        """Outcomes of tasks that have ended."""
        if not self._jobs:
            time.sleep(timeout)
            return []
        ready, _ = self._ray.wait(list(self._jobs), timeout=timeout)
        return [self._end(reference) for reference in ready]

    def stop(self) -> None:
        """Cancel all tasks; end a cluster of our own, let go of another one."""
        if not self._ray.is_initialized():
            return
        for reference in self._jobs:
            self._ray.cancel(reference, force=True)
        self._jobs.clear()
        self._ray.shutdown()

    def _end(self, reference: Any) -> tuple[int, Outcome]:
        ticket, begun = self._jobs.pop(reference)
        try:
            outcome: Outcome = json.loads(self._ray.get(reference))
        except self._ray.exceptions.RayError as error:
            return ticket, {
                "state": "lost",
                "message": f"The worker was lost ({type(error).__name__}).",
                "traceback": str(error)[-_LOG_TAIL:],
                "seconds": time.monotonic() - begun,
            }
        return ticket, outcome


def perform_text(job: str) -> str:
    """:func:`~moose.experiments.worker.perform` from text to text, as it travels."""
    return json.dumps(perform(json.loads(job)))


def make_engine(
    name: str, workers: int, threads: int, logs: Path, *, address: str | None = None
) -> Engine:
    """The engine of that name.

    Args:
        name: ``local`` or ``ray``.
        workers: How many jobs at once.
        threads: Threads of each.
        logs: Where local workers write what they print.
        address: For Ray, an existing cluster.

    Returns:
        The engine, whose workers are ready or start when they are needed.
    """
    if name == "ray":
        return RayEngine(workers, threads, address)
    return LocalEngine(workers, threads, logs)
