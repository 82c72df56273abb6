"""Memory of a guarded policy over a million steps, in one process and without a service.

    python benchmarks/controller_memory.py [--calls 1000000] [--json]

The policy has the paper's sizes. Every seventh step a sensor is missing, every ten-thousandth a new
episode begins, and one action in a few is held back by its rate, so that interventions are written
down all the time. The service's memory is measured by service_load.py.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ[name] = "1"

import numpy as np

from moose.policies.guard import Guard, GuardSettings
from moose.policies.plain import load_policy

ROUNDS = 10
WARM_UP = 5000
"""Steps after which everything that is bounded is full."""


def resident_mib() -> float:
    """Of this process."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return round(pages * os.sysconf("SC_PAGE_SIZE") / 2**20, 2)


def run(guard: Guard, frames: np.ndarray, calls: int) -> None:
    """Make so many steps."""
    for i in range(calls):
        frame = frames[i % len(frames)].tolist()
        if i % 7 == 0:
            frame[i % 6] = None
        if i % 10_000 == 0:
            guard.reset()
        guard.act(frame)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--calls", type=int, default=1_000_000)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as place:
        maker = str(Path(__file__).with_name("paper_policies.py"))
        subprocess.run([sys.executable, maker, place], check=True)
        guard = Guard(load_policy(Path(place) / "action"), GuardSettings(action_rates=(0.1,) * 3))
    frames = np.random.default_rng(0).uniform(0, 100, (1000, 6)).astype(np.float32)
    run(guard, frames, WARM_UP)
    memory, start = [resident_mib()], time.perf_counter()
    for done in range(ROUNDS):
        run(guard, frames, options.calls // ROUNDS)
        memory.append(resident_mib())
        print(f"round {done + 1} of {ROUNDS}", file=sys.stderr, flush=True)
    result = {
        "steps": guard.steps,
        "interventions": dict(guard.counts),
        "us_per_step": round(1e6 * (time.perf_counter() - start) / options.calls, 1),
        "memory_mib": memory,
    }
    if options.json:
        print(json.dumps(result, indent=2))
        return
    print(f"{result['steps']} steps, {result['us_per_step']} µs each: {result['interventions']}")
    print("resident MiB:", *memory)


if __name__ == "__main__":
    main()
