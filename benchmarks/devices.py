"""How MOOSE gains from a second core, as a thread and as a device: updates and fits.

Run from the root of the repository, the machine idle otherwise::

    python benchmarks/devices.py                          # the Industrial Benchmark, a table
    python benchmarks/devices.py --data gym/Swimmer-v4    # a plant of which nothing is known
    python benchmarks/devices.py --work models            # a batch of the models' fit, or support
    python benchmarks/devices.py --json FILE              # the numbers for a program as well
    python benchmarks/devices.py --rounds 1 --chunk 1 --episodes 2   # does it work at all?

The rival is the way a processor is used unless JAX is told otherwise: one device with as many
threads as cores. Each arrangement has a process of its own, since it is settled when JAX starts;
they take turns, one chunk of updates or epoch of a fit at a time, so that they meet the same
machine. The first two turns of each, which compile, are not counted.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

CORES = 2
WIDE = "--xla_cpu_prefer_vector_width=512 --xla_cpu_experimental_ynn_fusion_type="
DEVICES = f"--xla_force_host_platform_device_count={CORES} --xla_cpu_multi_thread_eigen=false"
RIVAL = "two threads"
ARRANGEMENTS: Mapping[str, Mapping[str, str]] = {
    "one thread": {"NPROC": "1", "XLA_FLAGS": ""},
    RIVAL: {"NPROC": str(CORES), "XLA_FLAGS": ""},
    "two devices": {"NPROC": str(CORES), "XLA_FLAGS": DEVICES},
    "two threads, wide vectors": {"NPROC": str(CORES), "XLA_FLAGS": WIDE},
    "two devices, wide vectors": {"NPROC": str(CORES), "XLA_FLAGS": f"{DEVICES} {WIDE}"},
}
UNITS = {"update": "an update", "models": "a batch of models", "support": "a batch of support"}
_COMPILING = 2  # the second time because what is learned is on all devices then


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and print; as a child, take turns when told to."""
    options = parse(arguments)
    if options.child:
        take_turns(options)
        return 0
    seconds = measure(options)
    report = {
        name: {
            "seconds": each,
            "median": statistics.median(each),
            "ratio": statistics.median(seconds[RIVAL]) / statistics.median(each),
            **ARRANGEMENTS[name],
        }
        for name, each in seconds.items()
    }
    print(f"{UNITS[options.work]:<28}{'median':>10}{'least':>10}{'as fast as ' + RIVAL:>26}")
    for name, row in report.items():
        least = min(row["seconds"])
        print(f"{name:<28}{row['median']:>8.4f} s{least:>8.4f} s{row['ratio']:>25.2f}x")
    if options.json is not None:
        content = {
            "work": UNITS[options.work],
            "data": options.data,
            "cores": os.cpu_count(),
            "arrangements": report,
        }
        options.json.write_text(json.dumps(content, indent=2) + "\n")
    return 0


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument(
        "--work", choices=UNITS, default="update", help="what is measured (%(default)s)"
    )
    parser.add_argument("--rounds", type=int, default=5, help="turns of each (%(default)s)")
    parser.add_argument("--chunk", type=int, default=4, help="updates in a turn (%(default)s)")
    parser.add_argument("--data", default="ib/bad-0.2", help="ib/… or gym/… (%(default)s)")
    parser.add_argument(
        "--episodes", type=int, default=5, help="thousands of steps of it (%(default)s)"
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all numbers to FILE")
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    return parser.parse_args(arguments)


def measure(options: argparse.Namespace) -> dict[str, list[float]]:
    """Seconds of an update or a batch in every counted round, by arrangement."""
    names = ("work", "rounds", "chunk", "data", "episodes")
    words = [f"--{name}={getattr(options, name)}" for name in names]
    command = [sys.executable, __file__, "--child", *words]
    pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    children = {
        name: subprocess.Popen(command, env=os.environ | settings, **pipes)
        for name, settings in ARRANGEMENTS.items()
    }
    try:
        for child in children.values():
            answer(child)  # ready
        rounds = [
            {name: float(answer(child, "go")) for name, child in children.items()}
            for _ in range(options.rounds + _COMPILING)
        ]
    finally:
        for child in children.values():
            child.kill()
            child.wait()
    return {name: [each[name] for each in rounds[_COMPILING:]] for name in children}


def answer(child: subprocess.Popen[str], request: str | None = None) -> str:
    """What a child says, after it was asked."""
    assert child.stdin is not None
    assert child.stdout is not None
    if request is not None:
        child.stdin.write(request + "\n")
        child.stdin.flush()
    line = child.stdout.readline()
    if not line:
        raise SystemExit("A process of the benchmark has ended early; its message is above.")
    return line.strip()


def take_turns(options: argparse.Namespace) -> None:
    """A chunk or an epoch for each line on standard input; its seconds a unit are printed."""
    from moose.training import FORGETFUL
    from policy_update import fit_models_ours, fit_support_ours, make_problem, search_ours

    class Turns:
        restore, keep, once = FORGETFUL.restore, FORGETFUL.keep, FORGETFUL.once

        def __init__(self, units: int) -> None:
            self.units = units
            self.start = self.wait()

        def wait(self) -> float:
            sys.stdin.readline()
            return time.perf_counter()

        def record(self, stage: str, step: int, metrics: Mapping[str, Any]) -> None:
            print((time.perf_counter() - self.start) / self.units, flush=True)
            self.start = self.wait()

    problem = make_problem(options)
    print("ready", flush=True)
    options.rounds += _COMPILING
    if options.work == "update":
        search_ours(problem, options, Turns(options.chunk))
        return
    fit = {"models": fit_models_ours, "support": fit_support_ours}[options.work]
    settings = {"models": problem.config.dynamics, "support": problem.config.support}[options.work]
    count = len(problem.given.table.transitions)
    fit(problem, options.rounds + 1, Turns(max(count // settings.batch_size, 1)))


if __name__ == "__main__":
    sys.exit(main())
