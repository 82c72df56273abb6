"""How many gradient steps a second the rivals make, against d3rlpy; and what seeds together gain.

Run from the root of the repository, the machine idle otherwise::

    make bench-peers                                   # makes d3rlpy's environment; 2 tables
    python benchmarks/baselines.py --peers build/peers/bin/python
    python benchmarks/baselines.py --peers build/peers/bin/python --json FILE
    python benchmarks/baselines.py --rounds 1 --chunk 2 --seeds 2 --episodes 2 --no-peers   # alone

DDPG, BCQ and BEAR have the sizes of the preset ``paper`` on the Industrial Benchmark (states of 30
frames of 6 numbers, 3 actions, networks of 400-300, autoencoders of 750-750, batches of 100, 10
samples for the target). "td3+bc sizes" is DDPG on both sides, with networks of 256-256 and batches
of 256: TD3+BC itself is not among the rivals.

Ours is ``fit``, the very loop of a training run, in compiled chunks; it gathers history windows
from frames as it goes. d3rlpy, in a process of its own with as many threads, is given the windows
ready made and is spared its logging. Both take turns, round by round, so that they meet the same
machine; the other one waits. The first round of each, in which ours compiles, does not count.

What a step does is the same but for BEAR: d3rlpy's has a learned entropy bonus, no slow copy of the
policy, and one action a state in the policy's value where ours has five.

"At peak" is what the ratio would be if the matrix products of our step ran at the highest rate that
any of JAX and NumPy (and PyTorch, if it is installed) reached in this run on some shapes, and all
else took no time: about what a program that makes these products can hope for here.

Then ten seeds as one program are timed against ten times one seed: ``--seeds-mode``.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np
import optax
from jax.extend import core

from moose.algorithms.critics import make_experience
from moose.algorithms.registry import ALGORITHMS
from moose.config import build_settings, settings_tree
from moose.data.dataset import Dataset
from moose.envs.catalog import make_dataset
from moose.envs.recipes import recipe_of
from moose.tasks.industrial_benchmark import make_task
from moose.tasks.task import Task
from moose.training import FORGETFUL
from policy_update import Peak, Times, Work, note

DATASET = "ib/bad-0.2"
GOAL = 4.0  # times as many steps a second as d3rlpy, on two cores
CONTESTS: Mapping[str, tuple[str, Mapping[str, Any]]] = {
    "ddpg": ("ddpg", {}),
    "bcq": ("bcq", {}),
    "bear": ("bear", {}),
    "td3+bc sizes": ("ddpg", {"hidden": [256, 256], "batch_size": 256}),
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, print, and fail if the goal is missed."""
    options = parse(arguments)
    task, dataset = make_task(), make_dataset(recipe_of(DATASET, episodes=options.episodes))
    report: dict[str, Any] = {"machine": describe_machine(), "options": vars(options)}
    peak = Peak()
    with Peer(options, dataset, task) as peer:
        report["machine"] |= peer.versions
        rows = [time_contest(name, dataset, task, peer, options, peak) for name in CONTESTS]
    report["peak_rate"] = peak.rate
    report["steps"] = [row | bound(row, peak) for row in rows]
    print_steps(report["steps"], peak)
    report["seeds"] = [time_seeds(name, dataset, task, options) for name in CONTESTS]
    print_seeds(report["seeds"], options)
    if options.json is not None:
        options.json.write_text(json.dumps(report, indent=2, default=str) + "\n")
    if options.no_peers:
        return 0
    is_met = all(row["ratio"] >= GOAL for row in report["steps"])
    print(f"\ngoal of {GOAL:g} times {'met' if is_met else 'MISSED'}")
    return 0 if is_met else 1


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5, help="turns that count (%(default)s)")
    parser.add_argument("--chunk", type=int, default=50, help="steps in a turn (%(default)s)")
    parser.add_argument("--seeds", type=int, default=10, help="seeds together (%(default)s)")
    parser.add_argument(
        "--episodes", type=int, default=20, help="episodes of 1,000 steps to learn (%(default)s)"
    )
    parser.add_argument(
        "--peers", type=Path, metavar="PYTHON", help="the Python that has d3rlpy installed"
    )
    parser.add_argument("--no-peers", action="store_true", help="ours alone")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all numbers to FILE")
    options = parser.parse_args(arguments)
    if (options.peers is None) is not options.no_peers:
        parser.error("give either --peers PYTHON or --no-peers")
    return options


class Peer:
    """d3rlpy in a process of its own, which works when it is asked to."""

    def __init__(self, options: argparse.Namespace, dataset: Dataset, task: Task) -> None:
        self._python, self._folder = options.peers, tempfile.TemporaryDirectory()
        self._dataset, self._task = dataset, task
        self.versions: dict[str, str] = {}

    def __enter__(self) -> Peer:
        if self._python is not None:
            program = [self._python, Path(__file__).with_name("d3rlpy_rival.py")]
            self._process = subprocess.Popen(
                list(map(str, program)),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                text=True,
            )
            file = Path(self._folder.name) / "data.npz"
            np.savez(file, **stacked(self._dataset, self._task))
            self.versions = self.ask(data=str(file), threads=num_threads())
        return self

    def __exit__(self, *error: object) -> None:
        if self._python is not None:
            self._process.stdin.close()
            self._process.wait()
        self._folder.cleanup()

    @property
    def is_there(self) -> bool:
        """Whether there is somebody to compare with."""
        return self._python is not None

    def ask(self, **question: Any) -> dict[str, Any]:
        """One question, one answer."""
        self._process.stdin.write(json.dumps(question) + "\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        if not line:
            raise SystemExit(f"{self._python} gave up; is d3rlpy installed there?")
        return dict(json.loads(line))


def stacked(dataset: Dataset, task: Task) -> dict[str, np.ndarray]:
    """What d3rlpy is given: the windows of all transitions, flat."""
    ages = np.arange(task.history)
    rows = np.maximum(dataset.observation_rows[:, None] - ages, dataset.first_rows[:, None])
    timeouts = np.zeros(dataset.num_transitions, np.float32)
    timeouts[dataset.offsets[1:] - 1] = 1.0
    return {
        "states": dataset.observations[rows].reshape(dataset.num_transitions, -1),
        "actions": dataset.actions,
        "rewards": dataset.rewards[:, None],
        "timeouts": timeouts,
    }


class Turns:
    """A journal that keeps nothing; after every chunk of ours it lets another do as much.

    Args:
        times: Where our times go.
        other: What another does in between.
    """

    def __init__(self, times: Times, other: Work) -> None:
        self._times, self._other = times, other
        self._start = time.perf_counter()

    restore = staticmethod(FORGETFUL.restore)
    keep = staticmethod(FORGETFUL.keep)
    once = staticmethod(FORGETFUL.once)

    def record(self, stage: str, step: int, metrics: Mapping[str, np.ndarray]) -> None:
        """Called by the training loop when a chunk is done."""
        note(self._times, time.perf_counter() - self._start)
        self._other()
        self._start = time.perf_counter()


def time_contest(
    name: str, dataset: Dataset, task: Task, peer: Peer, options: argparse.Namespace, peak: Peak
) -> dict[str, Any]:
    """Seconds a step of ours and of d3rlpy, and the operations of our products."""
    algorithm, changes = CONTESTS[name]
    ours, theirs = Times(options.chunk), Times(options.chunk)
    config = make_config(algorithm, changes, options)
    if peer.is_there:
        tree = settings_tree(config)
        peer.ask(make=tree | {"algorithm": algorithm, "discount": task.discount})

    def other() -> None:
        if peer.is_there:
            note(theirs, peer.ask(steps=options.chunk)["seconds"])

    fit(algorithm, config, dataset, task, jax.random.key(0), Turns(ours, other))
    peak.measure()
    row = {"name": name, "ours": ours.median, "ours_least": ours.least, "compiling": ours.first}
    row["operations"] = operations_of_step(algorithm, config, dataset, task)
    if peer.is_there:
        row |= {"theirs": theirs.median, "theirs_least": theirs.least}
        row["ratio"] = theirs.median / ours.median
    return row


def operations_of_step(algorithm: str, config: Any, dataset: Dataset, task: Task) -> int:
    """Floating-point operations of the matrix products in one of our gradient steps."""
    module = sys.modules[ALGORITHMS[algorithm].fit.__module__]
    optimiser, key = optax.adam(config.learning_rate), jax.random.key(0)
    state = module.init_state(task, config, optimiser, key)
    experience = make_experience(dataset, config.inputs)
    update = module.make_update(task, config, optimiser)
    return operations_of(jax.make_jaxpr(update)(state, key, experience, 0).jaxpr)


def operations_of(program: core.Jaxpr) -> int:
    """Operations of all matrix products in a program without loops, and in what it calls."""
    total = 0
    for equation in program.eqns:
        if equation.primitive.name in ("scan", "while"):
            raise ValueError("a loop's products cannot be counted without its length")
        if equation.primitive.name == "dot_general":
            (contracted, _), _ = equation.params["dimension_numbers"]
            left, result = equation.invars[0].aval.shape, equation.outvars[0].aval.size
            total += 2 * result * math.prod(left[axis] for axis in contracted)
        total += sum(map(operations_of, core.jaxprs_in_params(equation.params)))
    return total


def bound(row: Mapping[str, Any], peak: Peak) -> dict[str, float]:
    """Seconds of a step's products at the machine's peak, and what ratio that would be."""
    seconds = row["operations"] / peak.rate
    answer = {"products_at_peak": seconds, "share_of_peak": seconds / row["ours"]}
    return answer | ({"ratio_at_peak": row["theirs"] / seconds} if "theirs" in row else {})


def time_seeds(
    name: str, dataset: Dataset, task: Task, options: argparse.Namespace
) -> dict[str, Any]:
    """Seconds a step of one seed, and of several as one program."""
    algorithm, changes = CONTESTS[name]
    config = make_config(algorithm, changes, options)
    alone, together = Times(options.chunk), Times(options.chunk)
    keys = jax.random.split(jax.random.key(0), options.seeds)
    for times, key in ((alone, keys[0]), (together, keys)):
        fit(algorithm, config, dataset, task, key, Turns(times, lambda: None))
    gain = options.seeds * alone.median / together.median
    return {"name": name, "alone": alone.median, "together": together.median, "gain": gain}


def make_config(algorithm: str, changes: Mapping[str, Any], options: argparse.Namespace) -> Any:
    """The preset ``paper``, with as many chunks as there are rounds, and one to compile in."""
    length = {"updates": (options.rounds + 1) * options.chunk, "checks": options.rounds + 1}
    # BEAR's warm start leaves work out in d3rlpy, so there is none on either side.
    warm = {"warm_start": 0.0} if algorithm == "bear" else {}
    return build_settings(ALGORITHMS[algorithm].config, {**changes, **length, **warm})


def fit(
    algorithm: str, config: Any, dataset: Dataset, task: Task, key: jax.Array, journal: Turns
) -> None:
    """One training run, timed by its journal."""
    ALGORITHMS[algorithm].fit(dataset, task, config, key, journal=journal)


def print_steps(rows: Sequence[Mapping[str, Any]], peak: Peak) -> None:
    """The table of steps a second."""
    titles = (
        f"{'ours':>10}{'d3rlpy':>10}{'ratio':>8}{'at peak':>9}{'our share':>11}{'compiling':>12}"
    )
    print(f"{'gradient steps a second':<26}{titles}")
    for row in rows:
        theirs = (
            f"{1 / row['theirs']:>10.1f}{row['ratio']:>8.2f}{row['ratio_at_peak']:>9.2f}"
            if "theirs" in row
            else " " * 27
        )
        ours = f"{row['share_of_peak']:>11.0%}{row['compiling']:>10.1f} s"
        print(f"{row['name']:<26}{1 / row['ours']:>10.1f}{theirs}{ours}")
    print(f"peak {peak.rate / 1e9:.0f} G operations a second")
    if all("ratio" in row for row in rows):
        mean = statistics.geometric_mean([row["ratio"] for row in rows])
        print(f"{'geometric mean':<46}{mean:>8.2f}")


def print_seeds(rows: Sequence[Mapping[str, Any]], options: argparse.Namespace) -> None:
    """The table of seeds together."""
    title = f"{options.seeds} seeds together"
    print(f"\n{title:<26}{'one seed':>12}{'together':>12}{'gain over in turn':>20}")
    for row in rows:
        alone, together = 1e3 * row["alone"], 1e3 * row["together"]
        print(f"{row['name']:<26}{alone:>9.1f} ms{together:>9.1f} ms{row['gain']:>19.2f}x")


def describe_machine() -> dict[str, Any]:
    """Where and with what the numbers were made."""
    return {
        "machine": platform.machine(),
        "threads": num_threads(),
        "load": os.getloadavg(),
        "python": platform.python_version(),
        "jax": jax.__version__,
    }


def num_threads() -> int:
    """Threads of each contestant."""
    return int(os.environ.get("NPROC", os.cpu_count() or 1))


if __name__ == "__main__":
    sys.exit(main())
