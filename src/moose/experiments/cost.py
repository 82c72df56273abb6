"""What a grid will cost, from a short measurement of each of its algorithms.

A fit is stages of a known number of steps (:func:`moose.training.repeat_update`). The measurement
calls the fit itself with a journal that claims every stage to be finished but for its last few
steps: the true code on the true data, for seconds instead of hours. Nothing is written, and
what comes out is thrown away. Time is processor time, of all threads together: core-seconds that do
not depend on what else the machine is doing.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import jax
import numpy as np

from moose.algorithms.registry import find_algorithm
from moose.config import build_settings
from moose.envs import catalog
from moose.experiments.evaluate import evaluation_key, make_act, make_measure, plant_of
from moose.experiments.run_folder import Request
from moose.experiments.runner import key_of
from moose.progress import Stage
from moose.tasks.registry import task_of

TreeT = TypeVar("TreeT")

_ENOUGH_SECONDS = 1.0
"""A stage that took so much longer than its shortest measurement is measured well enough."""
_GROWTH = 8
_BEYOND_ANY_TOTAL = 2**40
_EVALUATIONS = 101
_BYTES_OF_EVALUATION = 250


def measure_cost(request: Request, *, cache: Path | None = None) -> dict[str, Any]:
    """Measure the core-seconds that a run will take on this machine, with this number of threads.

    Args:
        request: The run; its data set has to be there.
        cache: Cache of data sets; the user's own by default.

    Returns:
        Plain values: seconds of ``shared`` fits (done once for all runs that need them), ``own``
        seconds of the run besides, of which ``evaluations``; ``run_bytes`` and ``shared_bytes`` on
        disk; and the ``stages`` with their steps and seconds a step.
    """
    dataset = catalog.find_dataset(request.data, cache=cache)
    task = task_of(dataset.provenance)
    algorithm = find_algorithm(request.algorithm)
    config = build_settings(algorithm.config, request.config)

    def fit(journal: _SkippingJournal) -> Any:
        return algorithm.fit(
            dataset, task, config, key_of(request.seed), progress=journal, journal=journal
        )

    begun = time.process_time()
    survey = _SkippingJournal()
    fitted = fit(survey)  # nothing but preparations: every stage is skipped
    preparation = time.process_time() - begun
    shortest = _SkippingJournal(dict.fromkeys(survey.totals, 1), survey.totals)
    fit(shortest)
    per_step = _seconds_per_step(survey.totals, shortest.seconds, fit)
    evaluation = 0.0
    if request.evaluation_episodes:
        measure = make_measure(
            plant_of(dataset.provenance),
            make_act(task),
            task,
            request.evaluation_episodes,
            task.horizon,
        )
        evaluation = _second_call_seconds(measure, fitted.actor)
    compiling = {
        name: max(0.0, seconds - per_step[name]) for name, seconds in shortest.seconds.items()
    }
    seconds = {
        name: compiling[name] + total * per_step[name] for name, total in survey.totals.items()
    }
    own = sum(seconds[name] for name in seconds if name not in survey.shared)
    lines = sum(total * shortest.line_bytes.get(name, 0) for name, total in survey.totals.items())
    checkpoints = sum(shortest.state_bytes.values())
    return {
        "shared": sum(seconds[name] for name in survey.shared),
        "own": preparation + own + _EVALUATIONS * evaluation,
        "evaluations": _EVALUATIONS * evaluation,
        "run_bytes": checkpoints
        + lines
        + _tree_bytes(fitted.actor)
        + (_EVALUATIONS * _BYTES_OF_EVALUATION if request.evaluation_episodes else 0),
        "shared_bytes": sum(survey.result_bytes.values()),
        "stages": {
            name: {"steps": total, "seconds_per_step": per_step[name]}
            for name, total in survey.totals.items()
        },
    }


def estimate(
    runs: Sequence[Mapping[str, Any]],
    costs: Mapping[str, Mapping[str, Any]],
    *,
    workers: int,
    threads: int,
) -> dict[str, Any]:
    """Add up what the runs that are left will take.

    Args:
        runs: For each run its ``variant`` (the key into ``costs``) and ``share``: runs with the
            same variant and share need the same fits.
        costs: What :func:`measure_cost` gave, by variant.
        workers: How many runs at once.
        threads: Threads of each.

    Returns:
        Number of runs, core hours, hours with these workers if all threads are kept busy, and bytes
        on disk.
    """
    shared = {(run["variant"], json.dumps(run["share"])): run["variant"] for run in runs}
    seconds = sum(costs[run["variant"]]["own"] for run in runs)
    seconds += sum(costs[variant]["shared"] for variant in shared.values())
    size = sum(costs[run["variant"]]["run_bytes"] for run in runs)
    size += sum(costs[variant]["shared_bytes"] for variant in shared.values())
    return {
        "runs": len(runs),
        "core_hours": seconds / 3600,
        "hours": seconds / (workers * threads) / 3600,
        "bytes": int(size),
    }


class _SkippingJournal:
    """Says of every stage that all but its last steps are done, and takes the time of those.

    Args:
        left: How many steps of each stage are left; none of a stage that is not listed.
        totals: How many steps the stages have.
    """

    def __init__(
        self, left: Mapping[str, int] | None = None, totals: Mapping[str, int] | None = None
    ) -> None:
        self._left, self._known = left or {}, totals or {}
        self.totals: dict[str, int] = {}
        self.seconds: dict[str, float] = {}
        self.shared: set[str] = set()
        self.state_bytes: dict[str, int] = {}
        self.line_bytes: dict[str, int] = {}
        self.result_bytes: dict[str, int] = {}
        self._is_shared = False

    def restore(self, stage: str, like: TreeT) -> tuple[TreeT, int]:
        if self._is_shared:
            self.shared.add(stage)
        if not self._left.get(stage):
            return like, _BEYOND_ANY_TOTAL  # the stage is over before it begins
        return like, self._known[stage] - self._left[stage]

    def keep(self, stage: str, step: int, state: object) -> None:
        self.state_bytes[stage] = _tree_bytes(state)

    def record(self, stage: str, step: int, metrics: Mapping[str, np.ndarray[Any, Any]]) -> None:
        numbers = {name: v[0].tolist() for name, v in metrics.items()}
        self.line_bytes[stage] = len(json.dumps({"stage": stage, "step": step, **numbers})) + 1

    def once(self, name: str, digest: str, like: TreeT, make: Callable[[], TreeT]) -> TreeT:
        self._is_shared = True
        try:
            result = make()
        finally:
            self._is_shared = False
        self.result_bytes[name] = _tree_bytes(result)
        return result

    @contextmanager
    def stage(self, name: str, total: int, done: int = 0) -> Iterator[Stage]:
        """As a progress: learn the total, take the time."""
        self.totals[name] = total
        begun = time.process_time()
        yield _NoStage()
        self.seconds[name] = time.process_time() - begun


class _NoStage:
    def advance(self, steps: int = 1, numbers: Mapping[str, float] | None = None) -> None:
        pass


def _seconds_per_step(
    totals: Mapping[str, int],
    shortest: Mapping[str, float],
    fit: Callable[[_SkippingJournal], Any],
) -> dict[str, float]:
    """Seconds of a step without compilation: what more steps take longer than one step."""
    found: dict[str, float] = {}
    steps = 2
    while len(found) < len(totals):
        left = {name: min(total, steps) for name, total in totals.items() if name not in found}
        longer = _SkippingJournal(left, totals)
        fit(longer)
        for name, count in left.items():
            extra = longer.seconds[name] - shortest[name]
            if extra >= _ENOUGH_SECONDS or count >= totals[name]:
                found[name] = max(extra, 0.0) / max(1, count - 1)
        steps *= _GROWTH
    return found


def _second_call_seconds(measure: Callable[..., jax.Array], actor: object) -> float:
    measure(actor, evaluation_key(0)).block_until_ready()  # compiles
    begun = time.process_time()
    measure(actor, evaluation_key(1)).block_until_ready()
    return time.process_time() - begun


def _tree_bytes(tree: object) -> int:
    leaves = jax.tree.leaves(tree)
    return sum(leaf.nbytes for leaf in leaves if hasattr(leaf, "nbytes"))
