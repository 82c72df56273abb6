"""Runs the command line again and again in processes that are killed, or die at a write.

JAX and moose are imported once, before any backend starts; every run is a fork of that state. Each
line of standard input is a request as JSON, each line of standard output the answer:

    argv        the words after ``moose``
    kill_after  seconds after which the process is sent SIGKILL
    kill_worker   the number of a grid's worker that is sent SIGKILL as soon as it is there
    worker_after  seconds for which that worker is left alone
    signal      a signal to send as soon as the file ``when`` is there
    roots       folders whose writes count: the process dies right before the first kind of write
                that the file ``seen`` does not list yet, and lists it
    only        a regular expression that such a write's label has to match
    file_limit  greatest size of a file in bytes, as a full disk would have it
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import resource
import signal
import sys
import tempfile
import time
from pathlib import Path

import jax
import optax

import moose.cli
import moose.experiments.conductor
import moose.experiments.evaluate
import moose.experiments.runner
from shared_programs import share_programs

MODULES = (jax, optax, moose)  # imported here so that no fork has to
# What a shell starts in the background ignores Ctrl-C, and would hand that down to here.
signal.signal(signal.SIGINT, signal.default_int_handler)
LONGEST_SECONDS = 600


class WriteWatch:
    """Ends the process before a kind of write it has not yet died at."""

    def __init__(self, roots, seen, only=""):
        self._roots = [os.path.realpath(root) for root in roots]
        self._seen = set(Path(seen).read_text().splitlines())
        self._only = re.compile(only)
        self._list = os.open(seen, os.O_WRONLY | os.O_APPEND)
        self._last_place = ""

    def __call__(self, event, arguments):
        label = self._label(event, arguments)
        if label is None or label in self._seen or not self._only.match(label):
            return
        os.write(self._list, f"{label}\n".encode())
        os._exit(9)

    def _label(self, event, arguments):
        if event == "ctypes.dlsym":  # how two folders are swapped
            return f"swap {self._last_place}" if arguments[1] == "renameat2" else None
        if event == "open":
            path, mode = arguments[0], arguments[1]
            kind = "flush" if mode is None else "write" if set(mode) & set("wax+") else None
        else:
            path = arguments[0] if arguments else None
            kind = {
                "os.mkdir": "make folder",
                "os.rename": "rename",
                "os.remove": "remove",
                "shutil.rmtree": "remove folder",
            }.get(event)
        if kind is None or not isinstance(path, str | os.PathLike):
            return None
        name = os.path.realpath(path)
        for number, root in enumerate(self._roots):
            if name.startswith(root + os.sep):
                place = re.sub(r"-[0-9a-f]{8}(?=/|$)", "", os.path.relpath(name, root))
                self._last_place = f"{number}:{place}"
                # Nothing of the run changes here: once for all stages will do.
                if kind in {"make folder", "remove folder"}:
                    place = re.sub(r"(?<=/\.tmp-)[^/]*", "*", place)
                if kind == "flush":
                    return f"flush {os.path.basename(place)}"
                return f"{kind} {number}:{place}"
        return None


def run(request):
    """Fork, run the command line there, wait for its end."""
    with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as errors:
        started = time.monotonic()
        child = os.fork()
        if child == 0:
            os.dup2(os.open(os.devnull, os.O_RDONLY), 0)  # requests are not for it to read
            os.dup2(out.fileno(), 1)
            os.dup2(errors.fileno(), 2)
            _run_in_child(request)
        killed = []
        if request.get("kill_worker") is not None:
            number, end = request["kill_worker"], started + request.get("worker_after", 0.0)
            worker = _wait_for(lambda: time.monotonic() >= end and _worker_of(child, number), child)
            with contextlib.suppress(ProcessLookupError):
                if worker:
                    os.kill(worker, signal.SIGKILL)
                    killed = [number]
        if request.get("signal") is not None and _wait_for(
            lambda: os.path.exists(request["when"]), child
        ):
            os.kill(child, request["signal"])
        # Whatever hangs is ended as well, and seen by its code and by what it had printed.
        kill_after = request.get("kill_after")
        end = started + (LONGEST_SECONDS if kill_after is None else kill_after)
        if _wait_for(lambda: time.monotonic() >= end, child):
            os.kill(child, signal.SIGKILL)
        _, status = os.waitpid(child, 0)
        for stream in (out, errors):
            stream.seek(0)
        return {
            "code": os.waitstatus_to_exitcode(status),
            "seconds": time.monotonic() - started,
            "out": out.read(),
            "errors": errors.read(),
            "killed": killed,
        }


def _worker_of(process, number):
    """The id of a grid's worker, known by its log; None if it is not there."""
    for each in filter(str.isdigit, os.listdir("/proc")):
        with contextlib.suppress(OSError):
            # After the name, which may hold anything: state, parent.
            parent = Path(f"/proc/{each}/stat").read_text().rpartition(")")[2].split()[1]
            if int(parent) == process and os.readlink(f"/proc/{each}/fd/2").endswith(
                f"/worker-{number}.log"
            ):
                return int(each)
    return None


def _run_in_child(request):
    code = 1
    try:
        if request.get("roots"):
            sys.addaudithook(WriteWatch(request["roots"], request["seen"], request.get("only", "")))
        if request.get("file_limit") is not None:
            _, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
            resource.setrlimit(resource.RLIMIT_FSIZE, (request["file_limit"], hard))
        sys.argv = ["moose", *request["argv"]]
        try:
            moose.cli.main()
            code = 0
        except SystemExit as stop:
            code = stop.code if isinstance(stop.code, int) else 0
        sys.stdout.flush()
        sys.stderr.flush()
    finally:
        os._exit(code)


def _wait_for(condition, child):
    """The condition's value as soon as it holds; None if the child has ended before."""
    while not (value := condition()):
        time.sleep(0.002)
        if os.waitid(os.P_PID, child, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None:
            return None
    return value


if __name__ == "__main__":
    share_programs()
    print(json.dumps({"ready": True}), flush=True)
    for text in sys.stdin:
        print(json.dumps(run(json.loads(text))), flush=True)
