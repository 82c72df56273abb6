"""From checked rows to a data set: collect them, mend what was asked for, cut them into episodes.

Row t of a table holds what was observed at t and the action chosen then; its effect is in row
t + 1. So an episode of R rows has R − 1 transitions, and the last row gives the final observation.
Where actions are set-points (``Schema.has_setpoints``), a frame has the set-point of the row before
and the action is its change: the first row then only tells what was in force.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from moose.data.batches import NO_TIME, Batch, Table
from moose.data.checks import Checker
from moose.data.dataset import Dataset
from moose.data.findings import Finding, require_none, unfixed
from moose.data.schema import Column, Fixes, Schema, asked_for, steps_of
from moose.data.tables import find_files, open_table
from moose.errors import DataError
from moose.progress import SILENT, Progress

Floats = npt.NDArray[np.float32]
Flags = npt.NDArray[np.bool_]
_SECOND = 1e9
_CHUNK = 1 << 20


class Loaded(NamedTuple):
    """A data set, and what was found on the way."""

    dataset: Dataset
    findings: list[Finding]


def check_tables(
    sources: Iterable[Any], schema: Schema, *, progress: Progress = SILENT
) -> list[Finding]:
    """Look at every row of a log and tell what is wrong or odd; memory does not grow with it.

    Args:
        sources: Files, folders, or Arrow-compatible frames.
        schema: What the columns mean.
        progress: Whom to tell.

    Returns:
        The findings, errors first.
    """
    checker = Checker(schema)
    _read(_tables(sources), schema, checker, lambda batch, starts: None, progress)
    return checker.finish()


def load_tables(
    sources: Iterable[Any],
    schema: Schema,
    fixes: Fixes,
    provenance: Mapping[str, Any],
    *,
    progress: Progress = SILENT,
) -> Loaded:
    """Check a log, mend what was asked for, and make a data set of it.

    Args:
        sources: Files, folders, or Arrow-compatible frames.
        schema: What the columns mean.
        fixes: What to do about findings.
        provenance: Where the data come from; what was done is added.
        progress: Whom to tell.

    Returns:
        The data set and the findings.

    Raises:
        DataError: Something is wrong that no fix was asked for.
    """
    checker, rows = Checker(schema), _Rows(schema)
    labels = _read(_tables(sources), schema, checker, rows.add, progress)
    findings = checker.finish()
    require_none(unfixed(findings, asked_for(fixes)))
    rows.trim()
    done = _Mender(schema, fixes, checker, rows).mend()
    record = {
        "files": labels,
        "rows": checker.num_rows,
        "fixes": asked_for(fixes),
        "changed": done,
        "findings": _counts(findings),
    }
    return Loaded(_dataset(schema, rows, dict(provenance) | record), findings)


def _tables(sources: Iterable[Any]) -> list[Any]:
    found: list[Any] = []
    for source in sources:
        found += find_files([source]) if isinstance(source, str | Path) else [source]
    if not found:
        find_files([])  # which complains
    return found


def _read(
    sources: Sequence[Any],
    schema: Schema,
    checker: Checker,
    keep: Callable[[Batch, npt.NDArray[np.int64]], None],
    progress: Progress,
) -> list[str]:
    labels = []
    with progress.stage("reading", len(sources)) as stage:
        for source in sources:
            table: Table = open_table(source, schema.text, checker.report)
            labels.append(Path(table.label).name)
            wanted = checker.begin(table)
            if wanted is not None:
                for batch in table.batches(wanted, checker.report):
                    if len(batch.rows):
                        keep(batch, checker.look(batch))
                    stage.advance(0, {"rows": checker.num_rows})
            stage.advance(1)
    return labels


class _Rows:
    """All rows of a log as arrays that grow; NaN is missing."""

    def __init__(self, schema: Schema) -> None:
        self._schema = schema
        self.count = 0
        self.values: Floats = np.empty((0, len(schema.columns)), np.float32)
        self.times = np.empty(0, np.int64)
        self.begins: Flags = np.empty(0, np.bool_)
        """Whether an episode begins at this row."""
        self._last_row = 0

    def add(self, batch: Batch, starts: npt.NDArray[np.int64]) -> None:
        """Append a batch, in which episodes begin at ``starts``."""
        start, stop = self.count, self.count + len(batch.rows)
        if stop > len(self.begins):
            self._resize(max(stop, 3 * len(self.begins) // 2))
        with np.errstate(over="ignore", invalid="ignore"):
            for i, column in enumerate(batch.numbers):
                self.values[start:stop, i] = column
        if batch.times is not None:
            self.times[start:stop] = batch.times
        begins = self.begins[start:stop]
        # Rows that were left out of the file leave a hole in the numbering.
        begins[0] = int(batch.rows[0]) != self._last_row + 1
        begins[1:] = np.diff(batch.rows) != 1
        begins[starts] = True
        self._last_row = int(batch.rows[-1])
        self.count = stop

    def trim(self) -> None:
        """Give back the room that was not needed."""
        self._resize(self.count)

    def select(self, kept: Flags) -> None:
        """Keep some rows; an episode begins after each one that is left out."""
        left_out = np.concatenate([[False], ~kept[:-1]])
        self.begins |= left_out
        # Several rows in a row may be left out; the first that is kept begins.
        self.replace(self.values[kept], self.times[kept], self.begins[kept])

    def replace(self, values: Floats, times: npt.NDArray[np.int64], begins: Flags) -> None:
        """Put other rows in the place of all."""
        self.values, self.times, self.begins = values, times, begins
        self.count = len(values)

    def _resize(self, room: int) -> None:
        # In place: a copy would need the room twice.
        self.values.resize((room, self.values.shape[1]), refcheck=False)
        self.begins.resize(room, refcheck=False)
        if self._schema.time is not None:
            self.times.resize(room, refcheck=False)


class _Mender:
    """Applies the fixes that were asked for, in a fixed order, and counts."""

    def __init__(self, schema: Schema, fixes: Fixes, checker: Checker, rows: _Rows) -> None:
        self._schema, self._fixes, self._checker, self._rows = schema, fixes, checker, rows
        self._done: dict[str, int] = {}

    def mend(self) -> dict[str, int]:
        """Mend the rows in place; returns how many values or rows each fix changed."""
        self._mend_values()
        if self._schema.time is not None:
            self._mend_times()
        self._mend_holes()
        self._drop_short()
        return self._done

    def _mend_values(self) -> None:
        fixes, schema, values = self._fixes, self._schema, self._rows.values
        num_signals = len(schema.signals)
        if fixes.stuck is not None:
            for start, length in self._checker.stuck_rows():
                values[start : start + length] = np.nan
                self._count("stuck", length)
        for i, column in enumerate(schema.columns):
            is_action = num_signals <= i < num_signals + len(schema.actions)
            if fixes.ranges is not None and i < num_signals:
                self._blank("ranges", i, column)
            if fixes.bounds is not None and is_action:
                if fixes.bounds == "clip":
                    outside = _outside(values[:, i], column.low, column.high)
                    self._count("bounds", int(outside.sum()))
                    np.clip(values[:, i], column.low, column.high, out=values[:, i])
                else:
                    self._blank("bounds", i, column)
        if fixes.outliers is not None:
            for i, (low, high) in enumerate(self._checker.outlier_bounds()):
                self._blank("outliers", i, Column("", "", low, high))

    def _blank(self, fix: str, i: int, bounds: Column) -> None:
        values = self._rows.values
        outside = _outside(values[:, i], bounds.low, bounds.high)
        self._count(fix, int(outside.sum()))
        values[outside, i] = np.nan

    def _mend_times(self) -> None:
        rows, fixes = self._rows, self._fixes
        steps = np.diff(rows.times, prepend=rows.times[:1])
        inside = ~rows.begins
        if fixes.duplicates is not None:
            is_repeated = (steps == 0) & inside
            self._count("duplicates", int(is_repeated.sum()))
            if fixes.duplicates == "last":
                is_repeated = np.concatenate([is_repeated[1:], [False]])
                rows.begins[1:] |= is_repeated[:-1] & rows.begins[:-1]
            kept = ~is_repeated
            rows.replace(rows.values[kept], rows.times[kept], rows.begins[kept])
            steps = np.diff(rows.times, prepend=rows.times[:1])
            inside = ~rows.begins
        if fixes.order is not None:
            is_backward = (steps < 0) & inside
            self._count("order", int(is_backward.sum()))
            rows.begins |= is_backward
            inside = ~rows.begins
        interval = self._checker.interval
        if fixes.gaps is None or interval is None:
            return
        is_gap = (steps > self._schema.checks.gap * interval * _SECOND) & inside
        self._count("gaps", int(is_gap.sum()))
        if fixes.gaps == "split":
            rows.begins |= is_gap
        else:
            self._fill_gaps(is_gap, steps, interval, _limit_of(fixes.gaps))

    def _fill_gaps(
        self, is_gap: Flags, steps: npt.NDArray[np.int64], interval: float, limit: int
    ) -> None:
        """Insert rows on a straight line; set-points stay as they are until they change."""
        rows = self._rows
        missing = np.where(is_gap, np.rint(steps / (interval * _SECOND)) - 1, 0).astype(np.int64)
        rows.begins |= missing > limit
        missing[missing > limit] = 0
        self._count("interpolated rows", int(missing.sum()))
        places = np.arange(rows.count) + np.cumsum(missing)
        count = rows.count + int(missing.sum())
        values = np.empty((count, rows.values.shape[1]), np.float32)
        times, begins = np.empty(count, np.int64), np.zeros(count, np.bool_)
        values[places], times[places], begins[places] = rows.values, rows.times, rows.begins
        num_signals = len(self._schema.signals)
        setpoints = slice(num_signals, num_signals + len(self._schema.actions))
        for at in np.flatnonzero(missing):
            number, stop = int(missing[at]), int(places[at])
            share = (np.arange(1, number + 1) / (number + 1))[:, None]
            before, after = rows.values[at - 1], rows.values[at]
            values[stop - number : stop] = before + share * (after - before)
            if self._schema.has_setpoints:
                values[stop - number : stop, setpoints] = before[setpoints]
            since = rows.times[at - 1]
            times[stop - number : stop] = since + share[:, 0] * (rows.times[at] - since)
        rows.replace(values, times, begins)

    def _mend_holes(self) -> None:
        """Fill short holes if asked to; leave out the rows of all others and cut there."""
        rows, rule = self._rows, self._fixes.missing
        if rule is not None and rule != "split":
            episode = np.cumsum(rows.begins, dtype=np.int64)
            for i in range(rows.values.shape[1]):
                self._fill_column(rows.values[:, i], episode, rule)
        is_whole = np.ones(rows.count, np.bool_)
        for i in range(rows.values.shape[1]):
            is_whole &= np.isfinite(rows.values[:, i])
        if self._schema.time is not None:
            is_whole &= rows.times != NO_TIME
        if not is_whole.all():
            self._count("rows left out", int((~is_whole).sum()))
            rows.select(is_whole)

    def _fill_column(self, column: Floats, episode: npt.NDArray[np.int64], rule: str) -> None:
        is_hole = ~np.isfinite(column)
        if not is_hole.any():
            return
        edges = np.flatnonzero(np.diff(np.concatenate([[False], is_hole, [False]]).astype(np.int8)))
        starts, stops = edges[::2], edges[1::2]
        is_short = (stops - starts) <= _limit_of(rule)
        needs_end = rule.startswith("interpolate")
        for start, stop in zip(starts[is_short], stops[is_short], strict=True):
            if start == 0 or episode[start - 1] != episode[stop - 1]:
                continue
            if not needs_end:
                column[start:stop] = column[start - 1]
            elif stop < len(column) and episode[stop] == episode[start - 1]:
                share = np.arange(1, stop - start + 1) / (stop - start + 1)
                before, after = column[start - 1], column[stop]
                column[start:stop] = before + share * (after - before)
            else:
                continue
            self._count("missing", int(stop - start))

    def _drop_short(self) -> None:
        """Leave out episodes without a transition, and short ones if asked to."""
        rows, schema = self._rows, self._schema
        if rows.count == 0:
            return
        rows.begins[0] = True
        starts = np.flatnonzero(rows.begins)
        lengths = np.diff(np.append(starts, rows.count))
        least = 3 if schema.has_setpoints else 2
        if self._fixes.short is not None:
            least = max(least, schema.shortest)
        is_kept = lengths >= least
        if not is_kept.all():
            self._count("short", int((~is_kept).sum()))
            rows.select(np.repeat(is_kept, lengths))

    def _count(self, fix: str, number: int) -> None:
        if number:
            self._done[fix] = self._done.get(fix, 0) + number


def _dataset(schema: Schema, rows: _Rows, provenance: dict[str, Any]) -> Dataset:
    """Cut the rows into episodes."""
    if rows.count == 0:
        raise DataError(
            "Nothing is left of the log.",
            where=", ".join(provenance["files"][:3]),
            advice="'moose check' tells what is wrong with it; mend the log or the task file",
        )
    num_signals, num_actions = len(schema.signals), len(schema.actions)
    rows.begins[0] = True
    starts = np.flatnonzero(rows.begins)
    lengths = np.diff(np.append(starts, rows.count))
    values = rows.values
    is_last = np.zeros(rows.count, np.bool_)
    is_last[starts + lengths - 1] = True
    if not schema.has_setpoints:
        observations = values[:, :num_signals]
        acting = np.flatnonzero(~is_last)
        actions = values[acting, num_signals : num_signals + num_actions]
        steps = lengths - 1
    else:
        setpoints = values[:, num_signals : num_signals + num_actions]
        inside = np.flatnonzero(~rows.begins)
        observations = np.concatenate([values[inside, :num_signals], setpoints[inside - 1]], axis=1)
        acting = np.flatnonzero(~rows.begins & ~is_last)
        actions = setpoints[acting] - setpoints[acting - 1]
        steps = lengths - 2
    if schema.reward_column is not None:
        rewards = np.ascontiguousarray(values[acting, -1])
    else:
        rewards = _rewards(schema, values, acting)
    num_episodes = len(starts)
    return Dataset(
        observations=np.ascontiguousarray(observations),
        actions=np.ascontiguousarray(actions),
        rewards=rewards,
        lengths=steps.astype(np.int64),
        terminated=np.zeros(num_episodes, np.bool_),
        truncated=np.zeros(num_episodes, np.bool_),
        final_observed=np.ones(num_episodes, np.bool_),
        observation_names=schema.observation_names,
        action_names=schema.action_names,
        provenance=provenance,
    )


def _rewards(schema: Schema, values: Floats, acting: npt.NDArray[np.int64]) -> Floats:
    """The formula's reward of each step, a million at a time."""
    assert schema.reward_of_step is not None  # noqa: S101 (a schema has one or a column)
    rewards = np.empty(len(acting), np.float32)
    reach = 1 if schema.has_setpoints else 0
    for first in range(0, len(acting), _CHUNK):
        chosen = acting[first : first + _CHUNK]
        low, high = int(chosen[0]) - reach, int(chosen[-1]) + 2
        columns = [values[low:high, i].astype(np.float64) for i in range(values.shape[1])]
        all_steps = schema.reward_of_step(*steps_of(schema, columns))
        rewards[first : first + len(chosen)] = all_steps[chosen - low - reach]
    return rewards


def _outside(values: Floats, low: float | None, high: float | None) -> Flags:
    with np.errstate(invalid="ignore"):
        outside = np.zeros(len(values), np.bool_)
        if low is not None:
            outside |= values < low
        if high is not None:
            outside |= values > high
    return outside


def _limit_of(rule: str) -> int:
    return int(rule.partition(":")[2])


def _counts(findings: Iterable[Finding]) -> dict[str, int]:
    counts: dict[str, int] = {}
    for finding in findings:
        counts[finding.code] = counts.get(finding.code, 0) + finding.count
    return counts
