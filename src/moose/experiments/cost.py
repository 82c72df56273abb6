"""What a grid will cost, from a short measurement of each of its algorithms.

A fit is stages of a known number of steps (:func:`moose.training.repeat_update`), done in chunks.
The measurement calls the fit itself, once for each stage, with a journal that claims every other
stage to be finished, and breaks off after a few chunks: the true code on the true data, for a
fiftieth of the time. The first chunk, which has to be compiled, is told apart from the others.
Nothing is written, and what comes out is thrown away. Time is processor time, of all threads
together: core-seconds that do not depend on what else the machine is doing.
"""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import jax
import numpy as np

from moose.algorithms.registry import find_algorithm
from moose.config import build_settings
from moose.envs import catalog
from moose.evaluation.protocol import Evaluator
from moose.experiments.evaluate import evaluation_key, make_act, make_measure
from moose.experiments.run_folder import Request
from moose.experiments.runner import key_of
from moose.progress import Stage
from moose.tasks.registry import task_of

TreeT = TypeVar("TreeT")

_ENOUGH_SECONDS = 1.0
"""Of chunks that were compiled before: then a stage is measured well enough."""
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
    measured = {name: _SkippingJournal(name) for name in survey.totals}
    for journal in measured.values():
        with contextlib.suppress(_EnoughSeenError):
            fit(journal)
    evaluation = 0.0
    if request.evaluation_episodes:
        measure = make_measure(
            dataset.provenance,
            make_act(task),
            task,
            request.evaluation_episodes,
            task.horizon,
        )
        evaluation = _second_call_seconds(measure, fitted.actor)
    seconds = {
        name: journal.compiling + survey.totals[name] * journal.seconds_per_step
        for name, journal in measured.items()
    }
    own = sum(seconds[name] for name in seconds if name not in survey.shared)
    lines = sum(survey.totals[name] * journal.line_bytes for name, journal in measured.items())
    checkpoints = sum(journal.state_bytes for journal in measured.values())
    records = _EVALUATIONS * _BYTES_OF_EVALUATION if request.evaluation_episodes else 0
    return {
        "shared": sum(seconds[name] for name in survey.shared),
        "own": preparation + own + _EVALUATIONS * evaluation,
        "evaluations": _EVALUATIONS * evaluation,
        "run_bytes": checkpoints + lines + records + _tree_bytes(fitted.actor),
        "shared_bytes": sum(survey.result_bytes.values()),
        "stages": {
            name: {"steps": survey.totals[name], "seconds_per_step": journal.seconds_per_step}
            for name, journal in measured.items()
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


class _EnoughSeenError(Exception):
    """Breaks off a fit whose stage has been measured."""


class _SkippingJournal:
    """Says of every stage but one that it is finished, and takes the time of that one.

    Args:
        stage: The stage to measure; None to skip them all.
    """

    def __init__(self, stage: str | None = None) -> None:
        self._stage = stage
        self.totals: dict[str, int] = {}
        self.shared: set[str] = set()
        self.result_bytes: dict[str, int] = {}
        self.state_bytes = 0
        self.line_bytes = 0
        self._is_shared = False
        self._begun = 0.0
        self._chunks: list[tuple[int, float]] = []

    @property
    def seconds_per_step(self) -> float:
        """Without what is needed once only, where there was more than one chunk."""
        counted = self._chunks[1:] or self._chunks
        return sum(seconds for _, seconds in counted) / sum(steps for steps, _ in counted)

    @property
    def compiling(self) -> float:
        """What the first chunk took longer than its steps."""
        steps, seconds = self._chunks[0]
        return max(0.0, seconds - steps * self.seconds_per_step)

    def restore(self, stage: str, like: TreeT) -> tuple[TreeT, int]:
        if self._is_shared:
            self.shared.add(stage)
        return like, 0 if stage == self._stage else _BEYOND_ANY_TOTAL

    def keep(self, stage: str, step: int, state: object) -> None:
        self.state_bytes = _tree_bytes(state)

    def record(self, stage: str, step: int, metrics: Mapping[str, np.ndarray[Any, Any]]) -> None:
        numbers = {name: v[0].tolist() for name, v in metrics.items()}
        self.line_bytes = len(json.dumps({"stage": stage, "step": step, **numbers})) + 1

    def once(
        self,
        name: str,
        digest: str,
        like: TreeT,
        make: Callable[[], TreeT],
        *,
        meanwhile: Callable[[], object] | None = None,
    ) -> TreeT:
        self._is_shared = True
        try:
            result = make()
        finally:
            self._is_shared = False
        self.result_bytes[name] = _tree_bytes(result)
        return result

    @contextlib.contextmanager
    def stage(self, name: str, total: int, done: int = 0) -> Iterator[Stage]:
        """As a progress: learn the total."""
        self.totals[name] = total
        self._begun = time.process_time()
        yield self

    def advance(self, steps: int = 1, numbers: Mapping[str, float] | None = None) -> None:
        """As a stage: take the time of a chunk, and break off when that is enough."""
        now = time.process_time()
        self._chunks.append((steps, now - self._begun))
        self._begun = now
        if sum(seconds for _, seconds in self._chunks[1:]) >= _ENOUGH_SECONDS:
            raise _EnoughSeenError


def _second_call_seconds(measure: Evaluator, actor: object) -> float:
    np.asarray(measure(actor, evaluation_key(0)))  # compiles
    begun = time.process_time()
    np.asarray(measure(actor, evaluation_key(1)))
    return time.process_time() - begun


def _tree_bytes(tree: object) -> int:
    leaves = jax.tree.leaves(tree)
    return sum(leaf.nbytes for leaf in leaves if hasattr(leaf, "nbytes"))
