"""What a worker of a grid does, in whatever process it lives: one job after the other.

A job is plain JSON values and so is its outcome. A worker knows nothing of the store: whoever gave
it the job keeps the books. Started as a program, it reads one job a line from standard input and
writes one outcome a line; when its input ends, since whoever started it has died or is done, it
stops at once, whatever it is doing. Runs survive that.
"""

from __future__ import annotations

import json
import os
import queue
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

Job = dict[str, Any]
Outcome = dict[str, Any]

CORES_VARIABLE = "MOOSE_WORKER_CORES"
_TRACEBACK_LINES = 30


def perform(job: Mapping[str, Any]) -> Outcome:
    """Do a job and tell how it ended.

    Args:
        job: ``kind`` names what to do; the rest are its arguments.

    Returns:
        ``state`` is ``done``, ``failed`` or ``busy`` (another process is at it), ``seconds`` the
        time it took. What is done has a ``result``; what failed has a ``message``, a ``traceback``
        and whether another attempt would end the same (``is_final``).
    """
    from moose.errors import StorageError, UserError  # noqa: PLC0415 (threads are pinned first)
    from moose.experiments.run_folder import RunBusyError  # noqa: PLC0415

    started = time.monotonic()
    outcome: Outcome
    try:
        result = _KINDS[job["kind"]](job)
        outcome = {"state": "done", "result": result}
    except RunBusyError as error:
        outcome = {"state": "busy", "message": str(error)}
    except Exception as error:
        is_final = isinstance(error, UserError) and not isinstance(error, StorageError)
        message = str(error) if isinstance(error, UserError) else f"{type(error).__name__}: {error}"
        lines = traceback.format_exc().splitlines()[-_TRACEBACK_LINES:]
        outcome = {
            "state": "failed",
            "message": message,
            "traceback": "\n".join(lines),
            "is_final": is_final,
        }
    return outcome | {"seconds": time.monotonic() - started}


def _train(job: Mapping[str, Any]) -> Any:
    """Begin a run or go on with it, until it is finished."""
    import jax  # noqa: PLC0415

    from moose.config import build_settings  # noqa: PLC0415
    from moose.experiments import runner  # noqa: PLC0415
    from moose.experiments.run_folder import Request  # noqa: PLC0415
    from moose.storage import MANIFEST  # noqa: PLC0415

    folder, cache = Path(job["folder"]), _cache_of(job)
    warnings: list[str] = []
    try:
        if not (folder / MANIFEST).exists():
            request = build_settings(Request, job["request"], source="the grid's store")
            runner.begin_run(request, folder, cache=cache)
        runner.resume_run(folder, cache=cache, warn=warnings.append)
    finally:
        # Compiled programs of a run are of no use to the next.
        jax.clear_caches()  # type: ignore[no-untyped-call]
    return {"warnings": warnings}


def _prepare(job: Mapping[str, Any]) -> Any:
    """Make sure that a data set is there, and measure what the rows of references need."""
    from moose.experiments.references import describe_data  # noqa: PLC0415

    return describe_data(job["data"], job["episodes"], cache=_cache_of(job))


def _measure(job: Mapping[str, Any]) -> Any:
    """Measure what a run will take."""
    from moose.config import build_settings  # noqa: PLC0415
    from moose.experiments.cost import measure_cost  # noqa: PLC0415
    from moose.experiments.run_folder import Request  # noqa: PLC0415

    request = build_settings(Request, job["request"], source="the grid")
    return measure_cost(request, cache=_cache_of(job))


_KINDS: Mapping[str, Callable[[Mapping[str, Any]], Any]] = {
    "train": _train,
    "prepare": _prepare,
    "measure": _measure,
}


def _cache_of(job: Mapping[str, Any]) -> Path | None:
    return Path(job["cache"]) if job.get("cache") else None


def main() -> None:
    """Serve jobs from standard input until it ends."""
    pin_to_cores(os.environ.get(CORES_VARIABLE, ""))
    # Answers have a line of their own: whatever a library prints goes to the log.
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    jobs: queue.Queue[Job] = queue.Queue()
    threading.Thread(target=_read_jobs, args=(jobs,), daemon=True).start()
    try:
        while True:
            outcome = perform(jobs.get())
            answers.write(json.dumps(outcome) + "\n")
            answers.flush()
    except (KeyboardInterrupt, BrokenPipeError):
        os._exit(0)


def pin_to_cores(cores: str) -> None:
    """Keep this process to the cores listed, where the system can do that."""
    if cores and hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {int(core) for core in cores.split(",")})


def _read_jobs(jobs: queue.Queue[Job]) -> None:
    for line in sys.stdin:
        jobs.put(json.loads(line))
    os._exit(0)


if __name__ == "__main__":
    main()
