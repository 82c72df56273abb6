"""The store of a grid: who does what, and one small record for each evaluation.

One SQLite file in write-ahead mode. Several processes may write to it, and any of them may be
killed at any moment: a transaction is there or it is not. Keys are unique, so that nothing is there
twice. Runs are claimed by lease: a claim holds as long as its owner renews it and, on the same
machine, lives. The run folders remain the truth; a store that is lost is filled again from them,
but for runs that were taken over from another grid, which have none.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import sqlite3
import time
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple, Self

from pydantic import Field

from moose.config import Settings, build_settings, settings_tree
from moose.errors import StorageError
from moose.evaluation.statistics import TAIL_SHARE
from moose.experiments.run_folder import Request
from moose.experiments.store_schema import prepare, transaction
from moose.storage import named_os_errors

STORE = "store.sqlite"
RUNS = "runs"
"""The folder beside it that holds the run folders, named by digest."""
LEASE = 60.0
"""Seconds after which a claim that is not renewed has lapsed."""

State = Literal["waiting", "running", "done", "failed"]
STATES: tuple[State, ...] = ("waiting", "running", "done", "failed")

_BUSY_SECONDS = 60.0


class Evaluation(NamedTuple):
    """What is kept of one evaluation."""

    step: int
    mean: float
    deviation: float
    episodes: int


class PlannedCell(NamedTuple):
    """A cell of the grid and the run that fills it."""

    label: str
    data: str
    seed: int
    digest: str
    request: Request


class Run(NamedTuple):
    """What the store knows of a run."""

    id: int
    digest: str
    request: dict[str, Any]
    """As plain values."""
    state: State
    attempts: int
    crashes: int
    owner: str | None
    worker: str | None
    heartbeat: float | None
    seconds: float
    evaluations: int

    def is_leased(self, now: float, lease: float = LEASE) -> bool:
        """Whether somebody who is still there works on it."""
        if self.state != "running" or self.owner is None or self.heartbeat is None:
            return False
        return now - self.heartbeat < lease and not _is_gone(self.owner)


class Failure(NamedTuple):
    """Why a run failed."""

    digest: str
    label: str
    data: str
    seed: int
    attempts: int
    message: str
    traceback: str


class FinishedRun(Settings):
    """All that is kept of a finished run when its folder is not at hand."""

    digest: str
    request: Request
    fingerprint: str
    """Of its data; with the request it makes the digest."""
    versions: dict[str, str] | None
    """What it was made with, threads and machine included; None if nobody knows."""
    seconds: float = Field(ge=0.0)
    """Time spent on it."""
    updates: int | None = Field(ge=0)
    """The last step that was evaluated."""
    evaluations: tuple[Evaluation, ...]


class Store:
    """The open store of one grid.

    Args:
        folder: The grid's folder.
        is_new: Make the store if there is none, and bring one of an earlier version up to date.
    """

    def __init__(self, folder: Path, *, is_new: bool = False) -> None:
        self.path = folder / STORE
        if not is_new and not self.path.is_file():
            raise StorageError(
                "There is no grid in this folder.",
                where=str(folder),
                advice="give the folder that 'moose grid run … --out' filled",
            )
        with named_os_errors(folder):
            folder.mkdir(parents=True, exist_ok=True)
        with self._named_errors():
            # Transactions are opened by hand, so that each says what belongs together.
            self._connection = sqlite3.connect(
                self.path, timeout=_BUSY_SECONDS, isolation_level=None
            )
            self._connection.execute("PRAGMA synchronous = NORMAL")
            prepare(self._connection, self.path, is_writer=is_new)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Let go of the file."""
        self._connection.close()

    # Planning

    def plan(
        self,
        facts: Mapping[str, Any],
        datasets: Mapping[str, Mapping[str, Any]],
        cells: Sequence[PlannedCell],
    ) -> None:
        """Make these the cells of the grid; runs that are there already keep what they have.

        Args:
            facts: What to remember of the grid, plain values by name.
            datasets: What is known of each data set, by the name the cells use.
            cells: All cells, in the order in which their runs are to start.
        """
        with self._writing() as connection:
            connection.executemany(
                "INSERT INTO facts VALUES (?, ?) ON CONFLICT DO UPDATE SET value = excluded.value",
                [(name, _text(value)) for name, value in facts.items()],
            )
            connection.executemany(
                "INSERT INTO datasets VALUES (?, ?) "
                "ON CONFLICT DO UPDATE SET facts = excluded.facts",
                [(name, _text(value)) for name, value in datasets.items()],
            )
            connection.executemany(
                "INSERT INTO runs (digest, request, state) VALUES (?, ?, 'waiting') "
                "ON CONFLICT DO NOTHING",
                [(cell.digest, _text(settings_tree(cell.request))) for cell in cells],
            )
            connection.execute("DELETE FROM cells")
            connection.executemany(
                "INSERT INTO cells (position, label, data, seed, run) "
                "SELECT ?, ?, ?, ?, id FROM runs WHERE digest = ?",
                [
                    (position, cell.label, cell.data, cell.seed, cell.digest)
                    for position, cell in enumerate(cells)
                ],
            )

    def retry_failed(self, most_attempts: int | None) -> None:
        """Let failed runs wait for another attempt; deaths of workers are counted anew for all.

        Args:
            most_attempts: Only those that were tried less often; None for all, whose count then
                begins anew.
        """
        with self._writing() as connection:
            connection.execute("UPDATE runs SET crashes = 0")
            if most_attempts is None:
                connection.execute(
                    "UPDATE runs SET state = 'waiting', attempts = 0 WHERE state = 'failed'"
                )
            else:
                connection.execute(
                    "UPDATE runs SET state = 'waiting' WHERE state = 'failed' AND attempts < ?",
                    (most_attempts,),
                )

    # Working

    def claim(self, run: Run, owner: str, worker: str, now: float) -> bool:
        """Take a run, unless somebody else has been quicker.

        Args:
            run: The run as it was when last looked at: waiting, or left by an owner who is gone.
            owner: Who claims it, from :func:`make_owner`.
            worker: What to call the worker that is to do it.
            now: The time.

        Returns:
            Whether the run is now the claimer's.
        """
        with self._writing() as connection:
            changed = connection.execute(
                "UPDATE runs SET state = 'running', owner = ?, worker = ?, heartbeat = ?, "
                "begun = coalesce(begun, ?) "
                "WHERE id = ? AND state = ? AND owner IS ? AND heartbeat IS ?",
                (owner, worker, now, now, run.id, run.state, run.owner, run.heartbeat),
            )
            return changed.rowcount == 1

    def renew(self, owner: str, now: float) -> None:
        """Renew all leases of an owner."""
        with self._writing() as connection:
            connection.execute(
                "UPDATE runs SET heartbeat = ? WHERE owner = ? AND state = 'running'", (now, owner)
            )

    def record(self, run: int, owner: str, evaluations: Iterable[Evaluation]) -> None:
        """Keep evaluations of a run that is not finished; those that are there stay single."""
        with self._writing() as connection:
            if self._is_owner(run, owner):
                _insert_evaluations(connection, run, evaluations)

    def finish(
        self, run: int, owner: str, evaluations: Sequence[Evaluation], seconds: float, now: float
    ) -> None:
        """Mark a run as done and let the store hold exactly these evaluations of it."""
        with self._writing() as connection:
            if not self._is_owner(run, owner):
                return  # it was taken for dead; whoever has the run now will finish it
            connection.execute("DELETE FROM evaluations WHERE run = ?", (run,))
            _insert_evaluations(connection, run, evaluations)
            updates = max((evaluation.step for evaluation in evaluations), default=None)
            connection.execute(
                "UPDATE runs SET state = 'done', owner = NULL, heartbeat = NULL, ended = ?, "
                "seconds = seconds + ?, updates = ? WHERE id = ?",
                (now, seconds, updates, run),
            )

    def fail(
        self,
        run: int,
        owner: str,
        *,
        message: str,
        traceback: str,
        seconds: float,
        now: float,
        is_over: bool,
    ) -> None:
        """Keep why an attempt failed; the run waits for another one unless it ``is_over``."""
        with self._writing() as connection:
            if not self._is_owner(run, owner):
                return
            connection.execute(
                "INSERT INTO failures SELECT ?, count(*), ?, ?, ? FROM failures WHERE run = ?",
                (run, now, message, traceback, run),
            )
            connection.execute(
                "UPDATE runs SET state = ?, owner = NULL, heartbeat = NULL, ended = ?, "
                "seconds = seconds + ?, attempts = attempts + 1 WHERE id = ?",
                ("failed" if is_over else "waiting", now, seconds, run),
            )

    def release(self, run: int, owner: str, *, seconds: float, crashes: int) -> None:
        """Give a run back that was neither finished nor failed.

        Args:
            run: The run.
            owner: Who had it.
            seconds: Time spent on it.
            crashes: How many workers in a row have died of it without getting any further.
        """
        with self._writing() as connection:
            if self._is_owner(run, owner):
                connection.execute(
                    "UPDATE runs SET state = 'waiting', owner = NULL, heartbeat = NULL, "
                    "seconds = seconds + ?, crashes = ? WHERE id = ?",
                    (seconds, crashes, run),
                )

    def take_over(
        self, runs: Iterable[FinishedRun], source: str, now: float, *, lease: float = LEASE
    ) -> list[FinishedRun]:
        """Count runs of the grid's cells as done that were finished elsewhere.

        Those that are done here keep their own record, and so do those that somebody works on.

        Args:
            runs: What is known of them.
            source: Where that is written.
            now: The time.
            lease: Seconds after which a run whose conductor is silent is nobody's.

        Returns:
            Those that were taken over.
        """
        taken = []
        with self._writing() as connection:
            busy = {run.id for run in self.open_runs() if run.is_leased(now, lease)}
            rows = connection.execute(
                "SELECT digest, id FROM runs WHERE state != 'done' "
                "AND id IN (SELECT run FROM cells)"
            )
            free = {digest: run for digest, run in rows if run not in busy}
            for finished in runs:
                run = free.pop(finished.digest, None)
                if run is None:
                    continue
                connection.execute("DELETE FROM evaluations WHERE run = ?", (run,))
                _insert_evaluations(connection, run, finished.evaluations)
                connection.execute(
                    "UPDATE runs SET state = 'done', owner = NULL, worker = NULL, "
                    "heartbeat = NULL, ended = ?, seconds = ?, updates = ? WHERE id = ?",
                    (now, finished.seconds, finished.updates, run),
                )
                connection.execute(
                    "INSERT INTO taken_over (run, source, versions, time, fingerprint) "
                    "VALUES (?, ?, ?, ?, ?)",
                    (run, source, _text(finished.versions), now, finished.fingerprint),
                )
                taken.append(finished)
        return taken

    # Looking

    def facts(self) -> dict[str, Any]:
        """What :meth:`plan` was told of the grid."""
        return {name: json.loads(value) for name, value in self._rows("SELECT * FROM facts")}

    def datasets(self) -> dict[str, dict[str, Any]]:
        """What is known of each data set."""
        return {name: json.loads(value) for name, value in self._rows("SELECT * FROM datasets")}

    def cells(self) -> list[tuple[str, str, int, str]]:
        """Label, data set, seed and state of every cell, in order."""
        return self._rows(
            "SELECT c.label, c.data, c.seed, r.state FROM cells c JOIN runs r ON r.id = c.run "
            "ORDER BY c.position"
        )

    def open_runs(self) -> list[Run]:
        """The runs of the grid's cells that wait or are being worked on, in order."""
        rows = self._rows(
            "SELECT r.id, r.digest, r.request, r.state, r.attempts, r.crashes, r.owner, r.worker, "
            "r.heartbeat, r.seconds, (SELECT count(*) FROM evaluations e WHERE e.run = r.id) "
            "FROM runs r JOIN (SELECT run, min(position) AS position FROM cells GROUP BY run) c "
            "ON c.run = r.id AND r.state IN ('waiting', 'running') ORDER BY c.position"
        )
        return [Run._make([*row[:2], json.loads(row[2]), *row[3:]]) for row in rows]

    def counts(self) -> dict[State, int]:
        """How many runs of the grid's cells are in each state."""
        rows = self._rows(
            "SELECT state, count(*) FROM runs WHERE id IN (SELECT run FROM cells) GROUP BY state"
        )
        found = dict(rows)
        return {state: int(found.get(state, 0)) for state in STATES}

    def finished(self) -> set[str]:
        """The digests of all runs that are done, of the grid's cells or not."""
        return {digest for (digest,) in self._rows("SELECT digest FROM runs WHERE state = 'done'")}

    def finished_runs(self) -> list[FinishedRun]:
        """The finished runs of the grid's cells, in order; versions of those taken over only."""
        rows = self._rows(
            "SELECT r.id, r.digest, r.request, "
            "coalesce(t.fingerprint, json_extract(d.facts, '$.fingerprint')), "
            "coalesce(t.versions, 'null'), r.seconds, r.updates FROM runs r "
            "JOIN (SELECT run, data, min(position) AS position FROM cells GROUP BY run) c "
            "ON c.run = r.id AND r.state = 'done' JOIN datasets d ON d.source = c.data "
            "LEFT JOIN taken_over t ON t.run = r.id ORDER BY c.position"
        )
        evaluations: dict[int, list[Any]] = {}
        for run, *evaluation in self._rows("SELECT * FROM evaluations ORDER BY run, step"):
            evaluations.setdefault(run, []).append(evaluation)
        found = []
        for run, digest, request, fingerprint, versions, seconds, updates in rows:
            tree = {
                "digest": digest,
                "request": json.loads(request),
                "fingerprint": fingerprint,
                "versions": json.loads(versions),
                "seconds": seconds,
                "updates": updates,
                "evaluations": evaluations.get(run, []),
            }
            found.append(build_settings(FinishedRun, tree, source=str(self.path)))
        return found

    def taken_over(self) -> dict[str, str]:
        """The digests of the runs of the grid's cells that were taken over, and where from."""
        return dict(
            self._rows(
                "SELECT r.digest, t.source FROM taken_over t JOIN runs r ON r.id = t.run "
                "WHERE r.id IN (SELECT run FROM cells) ORDER BY r.id"
            )
        )

    def timings(self, abandoned: Sequence[int] = ()) -> list[tuple[str, State, int, float, int]]:
        """For each label and state: runs, their seconds, and their evaluations so far.

        Args:
            abandoned: Running runs that nobody works on any more, which count as waiting.
        """
        return self._rows(
            "SELECT min_label, state, count(*), sum(seconds), sum(evaluations) FROM ("
            " SELECT CASE WHEN r.id IN (SELECT value FROM json_each(?)) THEN 'waiting'"
            "  ELSE r.state END AS state, r.seconds AS seconds,"
            " (SELECT min(label) FROM cells c WHERE c.run = r.id) AS min_label,"
            " CASE WHEN r.state = 'done' THEN 0 ELSE"
            "  (SELECT count(*) FROM evaluations e WHERE e.run = r.id) END AS evaluations"
            " FROM runs r WHERE r.id IN (SELECT run FROM cells)"
            ") GROUP BY min_label, state",
            (json.dumps(list(abandoned)),),
        )

    def typical_evaluations(self) -> dict[str, int]:
        """How many evaluations a finished run of each label has, by the example of one."""
        rows = self._rows(
            "SELECT label, (SELECT count(*) FROM evaluations e WHERE e.run = example) FROM ("
            " SELECT c.label AS label, min(r.id) AS example FROM cells c"
            " JOIN runs r ON r.id = c.run AND r.state = 'done' GROUP BY c.label)"
        )
        return {label: int(count) for label, count in rows if count}

    def failures(self) -> list[Failure]:
        """The newest failure of every cell whose run has failed."""
        rows = self._rows(
            "SELECT r.digest, c.label, c.data, c.seed, r.attempts, f.message, f.traceback "
            "FROM cells c JOIN runs r ON r.id = c.run JOIN failures f ON f.run = r.id "
            "WHERE r.state = 'failed' AND "
            "f.number = (SELECT max(number) FROM failures WHERE run = r.id) ORDER BY c.position"
        )
        return [Failure(*row) for row in rows]

    def tails(self) -> list[tuple[str, str, int, int, float]]:
        """Label, data set, seed, step and mean of the tail of every finished run."""
        # As moose.evaluation.statistics.tail_values has it, in whole numbers.
        return self._rows(
            "SELECT c.label, c.data, c.seed, e.step, e.mean FROM cells c "
            "JOIN runs r ON r.id = c.run AND r.state = 'done' "
            "JOIN evaluations e ON e.run = r.id AND e.step > r.updates * ? / ? "
            "ORDER BY c.position, e.step",
            (TAIL_SHARE - 1, TAIL_SHARE),
        )

    def curves(self) -> list[tuple[str, str, int, int, float]]:
        """Label, data set, seed, step and mean of every evaluation of finished runs."""
        return self._rows(
            "SELECT c.label, c.data, c.seed, e.step, e.mean FROM cells c "
            "JOIN runs r ON r.id = c.run AND r.state = 'done' JOIN evaluations e ON e.run = r.id "
            "ORDER BY c.position, e.step"
        )

    def num_evaluations(self) -> int:
        """How many records there are."""
        (row,) = self._rows("SELECT count(*) FROM evaluations")
        return int(row[0])

    def _rows(self, query: str, values: Sequence[Any] = ()) -> list[Any]:
        with self._named_errors():
            return self._connection.execute(query, values).fetchall()

    def _is_owner(self, run: int, owner: str) -> bool:
        found = self._connection.execute(
            "SELECT 1 FROM runs WHERE id = ? AND owner = ? AND state = 'running'", (run, owner)
        )
        return found.fetchone() is not None

    @contextlib.contextmanager
    def _writing(self) -> Iterator[sqlite3.Connection]:
        """One transaction: all of it or, whatever happens, nothing."""
        with self._named_errors(), transaction(self._connection):
            yield self._connection

    @contextlib.contextmanager
    def _named_errors(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.OperationalError as error:
            raise StorageError(
                f"The store cannot be read or written: {error}.",
                where=str(self.path),
                advice="free some space, check the permissions, or try again when others are done",
            ) from error
        except sqlite3.DatabaseError as error:
            raise StorageError(
                f"The store is damaged: {error}.",
                where=str(self.path),
                advice="move the file away and start the grid again: finished runs are taken from "
                "their folders and are not trained again",
            ) from error


def make_owner() -> str:
    """A name for this process that no other one has."""
    return f"{socket.gethostname()}:{os.getpid()}:{uuid.uuid4().hex[:8]}"


def now() -> float:
    """The time that leases are measured by."""
    return time.time()


def _is_gone(owner: str) -> bool:
    """Whether an owner is known to be dead: a process of this machine that is no longer there."""
    host, _, rest = owner.rpartition(":")[0].rpartition(":")
    if host != socket.gethostname() or not rest.isdigit():
        return False
    try:
        os.kill(int(rest), 0)
    except ProcessLookupError:
        return True
    except OSError:  # somebody else's process
        return False
    return False


def _insert_evaluations(
    connection: sqlite3.Connection, run: int, evaluations: Iterable[Evaluation]
) -> None:
    connection.executemany(
        "INSERT INTO evaluations VALUES (?, ?, ?, ?, ?) ON CONFLICT DO UPDATE SET "
        "mean = excluded.mean, deviation = excluded.deviation, episodes = excluded.episodes",
        [(run, *evaluation) for evaluation in evaluations],
    )


def _text(value: Any) -> str:
    return json.dumps(value, sort_keys=True, allow_nan=False)
