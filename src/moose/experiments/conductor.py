"""Running a grid: what to start next, who has which run, what to keep of it.

One conductor has an engine and shares the store with any others. It claims runs, gives them to
workers, renews its leases, copies evaluations from run folders into the store as they appear, and
puts every outcome in the books. It may be interrupted or killed at any moment: another start goes
on, and so does a conductor that is at work beside it.
"""

from __future__ import annotations

import contextlib
import itertools
import math
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from moose.config import digest, settings_tree
from moose.data.files import FORMAT, SCHEMA_VERSION
from moose.envs.recipes import any_recipe_of
from moose.errors import RunError
from moose.experiments.cost import estimate
from moose.experiments.engines import Engine
from moose.experiments.grid import Cell, Grid, next_to_start, plan_grid, share_key
from moose.experiments.interrupts import interrupts_put_off
from moose.experiments.journal import Warn
from moose.experiments.known_runs import KnownRuns, take_over, with_other_bits
from moose.experiments.run_folder import EVALUATIONS, read_evaluations, run_digest
from moose.experiments.runner import versions
from moose.experiments.store import (
    LEASE,
    RUNS,
    STORE,
    Evaluation,
    PlannedCell,
    Run,
    State,
    Store,
    make_owner,
    now,
)
from moose.experiments.worker import Job, Outcome
from moose.progress import SILENT, Progress
from moose.storage import read_manifest

LOGS = "logs"
MOST_ATTEMPTS = 3
"""How often a failing run is tried."""
_MOST_CRASHES = 5
"""How many workers in a row may die of a run without it getting any further."""
_LOOK_SECONDS = 1.0
_PAUSE_SECONDS = 2.0
"""Before a run is tried again that another process is still working on."""


@dataclass
class _Claimed:
    """A run that one of our workers is at."""

    run: Run
    worker: int
    begun: float
    known: int
    """Evaluations that the store has of it."""
    seen: int = -1
    """Size of its file of evaluations when last looked at."""


def run_grid(
    grid: Grid,
    source: str,
    out: Path,
    engine: Engine,
    *,
    threads: int | None = None,
    cache: Path | None = None,
    known: Sequence[KnownRuns] = (),
    accepts_other_bits: bool = False,
    is_retrying: bool = False,
    most_attempts: int = MOST_ATTEMPTS,
    lease: float = LEASE,
    progress: Progress = SILENT,
    warn: Warn = lambda text: None,
) -> dict[str, int]:
    """Run a grid until nothing is left to do.

    Args:
        grid: The grid.
        source: The file it came from, to be named in errors.
        out: The grid's folder: its store, and a folder for each run.
        engine: What does the work; it is stopped at the end.
        threads: Threads of each worker, to be compared with those of known runs; by default those
            that this process would train with.
        cache: Cache of data sets and fitted models; the user's own by default.
        known: Runs that were finished elsewhere, which are not trained again.
        accepts_other_bits: Known runs of a data set of the same name count, whatever its bits.
        is_retrying: Try failed runs again, however often they were tried before.
        most_attempts: How often a failing run is tried.
        lease: Seconds after which a run whose conductor is silent may be taken.
        progress: Whom to tell.
        warn: Called with a sentence if known runs are of other versions, or of other data.

    Returns:
        How many runs are in each state.
    """
    try:
        cells = plan_grid(grid, source)
        with Store(out, is_new=True) as store:
            datasets = _prepare_data(store.datasets(), cells, engine, cache, progress)
            planned = [_planned(cell, datasets) for cell in cells]
            if accepts_other_bits:
                planned = with_other_bits(planned, known, store.finished())
            facts = {"grid": settings_tree(grid), "name": grid.name}
            store.plan(facts, datasets, planned)
            here = versions() | ({} if threads is None else {"threads": str(threads)})
            take_over(store, known, planned, here, lease=lease, warn=warn)
            store.retry_failed(None if is_retrying else most_attempts)
            _Conductor(store, engine, out, cache, most_attempts, lease).work(progress)
            return {str(state): count for state, count in store.counts().items()}
    finally:
        engine.stop()


def estimate_grid(
    grid: Grid,
    source: str,
    out: Path,
    engine: Engine,
    *,
    threads: int,
    cache: Path | None = None,
    known: Sequence[KnownRuns] = (),
    accepts_other_bits: bool = False,
    progress: Progress = SILENT,
) -> dict[str, Any]:
    """Measure each algorithm of a grid for a moment, and add up what its runs will take.

    Data sets are made, since they have to be there; nothing else is begun.

    Args:
        grid: The grid.
        source: The file it came from.
        out: The grid's folder; what it has done already is left out of the sum.
        engine: What the measurements are made with; it is stopped at the end.
        threads: Threads of each worker.
        cache: Cache of data sets and fitted models; the user's own by default.
        known: Runs that were finished elsewhere, which count as done.
        accepts_other_bits: Known runs of a data set of the same name count, whatever its bits.
        progress: Whom to tell.

    Returns:
        Plain values: ``runs``, how many are ``done``, what is left in core hours, hours and bytes,
        and ``variants``: what was measured of each algorithm.
    """
    try:
        cells = plan_grid(grid, source)
        with contextlib.ExitStack() as stack:
            store = stack.enter_context(Store(out)) if (out / STORE).is_file() else None
            described = store.datasets() if store else {}
            done = store.finished() if store else set[str]()
        datasets = _prepare_data(described, cells, engine, cache, progress)
        plan = [_planned(cell, datasets) for cell in cells]
        if accepts_other_bits:
            plan = with_other_bits(plan, known, done)
        done = done.union(*(runs for _, runs in known))
        planned = {cell.digest: cell for cell in plan}
        left = [cell for name, cell in planned.items() if name not in done]
        variants = {_variant(cell, datasets): cell for cell in reversed(left)}
        jobs: list[Job] = [
            {
                "kind": "measure",
                "variant": variant,
                "label": cell.label,
                "request": settings_tree(cell.request),
                "cache": _text_of(cache),
            }
            for variant, cell in variants.items()
        ]
        costs = {}
        with progress.stage("measuring", len(jobs)) as stage:
            for job, outcome in _done_by(engine, jobs):
                _require_done(outcome, f"'{job['label']}' cannot be measured")
                costs[job["variant"]] = outcome["result"]
                stage.advance()
        runs = [
            {"variant": _variant(cell, datasets), "share": [cell.data, cell.seed]} for cell in left
        ]
        return {
            "name": grid.name,
            "runs": len(planned),
            "done": len(planned) - len(left),
            "left": estimate(runs, costs, workers=engine.slots, threads=threads),
            "workers": engine.slots,
            "threads": threads,
            "variants": [
                {"label": cell.label, "data": cell.data, **costs[variant]}
                for variant, cell in variants.items()
            ],
        }
    finally:
        engine.stop()


class _Conductor:
    def __init__(
        self,
        store: Store,
        engine: Engine,
        out: Path,
        cache: Path | None,
        most_attempts: int,
        lease: float,
    ) -> None:
        self._store = store
        self._engine = engine
        self._runs = Path(os.path.abspath(out)) / RUNS
        self._cache = cache
        self._most_attempts = most_attempts
        self._lease = lease
        self._owner = make_owner()
        self._claimed: dict[int, _Claimed] = {}
        self._pauses: dict[int, float] = {}
        self._renewed = 0.0

    def work(self, progress: Progress) -> None:
        """Claim and settle until every run is done or has failed."""
        told = self._store.counts()
        with (
            progress.stage("runs", sum(told.values()), _num_ended(told)) as stage,
            self._given_back(),
        ):
            while self._start_what_can_be_started() or self._claimed:
                for ticket, outcome in self._engine.wait(_LOOK_SECONDS):
                    with interrupts_put_off():
                        self._settle(self._claimed.pop(ticket), outcome)
                self._keep_up()
                counts = self._store.counts()
                if counts != told:
                    numbers = {"running": counts["running"], "failed": counts["failed"]}
                    stage.advance(_num_ended(counts) - _num_ended(told), numbers)
                    told = counts

    def _start_what_can_be_started(self) -> bool:
        """Fill the free slots; whether there is anything left that may be started later."""
        while len(self._claimed) < self._engine.slots:
            time = now()
            open_runs = self._store.open_runs()
            free = [
                run
                for run in open_runs
                if not self._is_mine(run)
                and not run.is_leased(time, self._lease)
                and self._pauses.get(run.id, -math.inf) <= time
            ]
            fitting = [
                share_key(run.request)
                for run in open_runs
                if run.state == "running" and not run.evaluations and run not in free
            ]
            index = next_to_start([share_key(run.request) for run in free], fitting)
            if index is None:
                return bool(open_runs)
            self._start(free[index], time)
        return True

    def _start(self, run: Run, time: float) -> None:
        # Engines give a job to the first worker that has none, so that this is its number.
        taken = {claimed.worker for claimed in self._claimed.values()}
        worker = next(number for number in itertools.count() if number not in taken)
        job: Job = {
            "kind": "train",
            "folder": str(self._folder(run)),
            "request": run.request,
            "cache": _text_of(self._cache),
        }
        with interrupts_put_off():  # what is claimed is known to be, and will be given back
            if not self._store.claim(run, self._owner, f"worker-{worker}", time):
                return  # another conductor was quicker
            ticket = self._engine.submit(job)
            self._claimed[ticket] = _Claimed(run, worker, time, run.evaluations)

    def _settle(self, claimed: _Claimed, outcome: Outcome) -> None:
        """Put in the books how a run ended."""
        run, seconds, time = claimed.run, float(outcome["seconds"]), now()
        if outcome["state"] == "done":
            evaluations = evaluations_of(self._folder(run))
            if run.request["evaluation_episodes"] and not evaluations:
                self._fail(run, _unseen(self._folder(run)), seconds, is_over=True)
            else:
                self._store.finish(run.id, self._owner, evaluations, seconds, time)
        elif outcome["state"] == "busy":
            self._pauses[run.id] = time + _PAUSE_SECONDS
            self._store.release(run.id, self._owner, seconds=0.0, crashes=run.crashes)
        elif outcome["state"] == "lost":
            self._copy_evaluations(claimed)
            crashes = 1 if claimed.known > run.evaluations else run.crashes + 1
            if crashes < _MOST_CRASHES:
                self._store.release(run.id, self._owner, seconds=seconds, crashes=crashes)
            else:
                self._fail(run, outcome, seconds, is_over=True)
        else:
            is_over = bool(outcome["is_final"]) or run.attempts + 1 >= self._most_attempts
            self._fail(run, outcome, seconds, is_over=is_over)

    def _fail(self, run: Run, outcome: Outcome, seconds: float, *, is_over: bool) -> None:
        self._store.fail(
            run.id,
            self._owner,
            message=outcome["message"],
            traceback=outcome["traceback"],
            seconds=seconds,
            now=now(),
            is_over=is_over,
        )

    def _keep_up(self) -> None:
        """Renew the leases and copy what the runs have measured since."""
        time = now()
        if time - self._renewed >= self._lease / 6:
            self._store.renew(self._owner, time)
            self._renewed = time
        for claimed in self._claimed.values():
            self._copy_evaluations(claimed)

    def _copy_evaluations(self, claimed: _Claimed) -> None:
        size = _size_of(self._folder(claimed.run) / EVALUATIONS)
        if size == claimed.seen:
            return
        evaluations = evaluations_of(self._folder(claimed.run))
        self._store.record(claimed.run.id, self._owner, evaluations)
        claimed.seen, claimed.known = size, max(claimed.known, len(evaluations))

    @contextlib.contextmanager
    def _given_back(self) -> Iterator[None]:
        """Whatever ends the work, what is claimed by then is for others to take."""
        try:
            yield
        finally:
            if self._claimed:
                self._engine.stop()
            for claimed in self._claimed.values():
                self._copy_evaluations(claimed)
                self._store.release(
                    claimed.run.id,
                    self._owner,
                    seconds=now() - claimed.begun,
                    crashes=claimed.run.crashes,
                )

    def _is_mine(self, run: Run) -> bool:
        return run.state == "running" and run.owner == self._owner

    def _folder(self, run: Run) -> Path:
        return self._runs / run.digest


def evaluations_of(folder: Path) -> list[Evaluation]:
    """What the store keeps of the evaluations in a run folder."""
    found = []
    for line in read_evaluations(folder):
        returns = np.asarray(line["returns"], np.float64)
        found.append(
            Evaluation(int(line["step"]), float(returns.mean()), float(returns.std()), returns.size)
        )
    return found


def _prepare_data(
    known: Mapping[str, Any],
    cells: Sequence[Cell],
    engine: Engine,
    cache: Path | None,
    progress: Progress,
) -> dict[str, Any]:
    """What is known of each data set; those that are new are made and measured by workers."""
    sources = {cell.data: cell.request.data for cell in cells}
    episodes = dict.fromkeys(sources, 0)
    for cell in cells:
        episodes[cell.data] = max(episodes[cell.data], cell.request.evaluation_episodes)
    current = {
        name: facts
        for name, facts in known.items()
        if name in sources and _is_current(sources[name], facts, episodes[name])
    }
    jobs: list[Job] = [
        {
            "kind": "prepare",
            "name": name,
            "data": source,
            "episodes": episodes[name],
            "cache": _text_of(cache),
        }
        for name, source in sources.items()
        if name not in current
    ]
    with progress.stage("data sets", len(sources), len(current)) as stage:
        for job, outcome in _done_by(engine, jobs):
            _require_done(outcome, f"The data set '{job['name']}' cannot be had")
            current[job["name"]] = outcome["result"]
            stage.advance()
    return current


def _require_done(outcome: Outcome, complaint: str) -> None:
    if outcome["state"] != "done":
        is_ours = not outcome.get("is_final")  # a defect, or a death: the traceback tells more
        raise RunError(
            f"{complaint}: {outcome['message']}",
            where=str(outcome.get("traceback", "")) if is_ours else "",
            advice="mend what the message names and try again",
        )


def _variant(cell: PlannedCell, datasets: Mapping[str, Mapping[str, Any]]) -> str:
    """What runs have in common that take the same time."""
    request = cell.request
    size = datasets[cell.data]["transitions"]
    return digest(request.algorithm, request.config, request.evaluation_episodes, size)


def _done_by(engine: Engine, jobs: Sequence[Job]) -> Iterator[tuple[Job, Outcome]]:
    """Jobs and their outcomes, in the order in which they end; a lost one is begun again."""
    waiting = [(job, 0) for job in jobs]
    claimed: dict[int, tuple[Job, int]] = {}
    while waiting or claimed:
        while waiting and len(claimed) < engine.slots:
            job, crashes = waiting.pop(0)
            claimed[engine.submit(job)] = (job, crashes)
        for ticket, outcome in engine.wait(_LOOK_SECONDS):
            job, crashes = claimed.pop(ticket)
            if outcome["state"] == "lost" and crashes + 1 < _MOST_CRASHES:
                waiting.append((job, crashes + 1))
            else:
                yield job, outcome


def _is_current(source: str, facts: Mapping[str, Any], episodes: int) -> bool:
    """Whether what is known of a data set still holds: it has the same bits as ever."""
    if facts["evaluation_episodes"] != episodes:
        return False
    if not os.path.isdir(source):
        # A store of before this was written down is of before any version was raised.
        return bool(facts.get("generator_version", 1) == any_recipe_of(source).generator_version)
    manifest = read_manifest(Path(source), FORMAT, SCHEMA_VERSION)
    return bool(manifest["fingerprint"] == facts["fingerprint"])


def _planned(cell: Cell, datasets: Mapping[str, Mapping[str, Any]]) -> PlannedCell:
    name = run_digest(cell.request, datasets[cell.data]["fingerprint"], None)
    return PlannedCell(cell.label, cell.data, cell.seed, name, cell.request)


def _unseen(folder: Path) -> Outcome:
    return {
        "message": f"A worker says it is done, but {folder} holds no evaluations: workers on other "
        "machines have to see the grid's folder and the cache under the same paths.",
        "traceback": "",
    }


def _num_ended(counts: Mapping[State, int]) -> int:
    return counts["done"] + counts["failed"]


def _size_of(file: Path) -> int:
    try:
        return file.stat().st_size
    except OSError:
        return -1


def _text_of(path: Path | None) -> str | None:
    # A worker may have another working directory.
    return None if path is None else os.path.abspath(path)
