"""Checks of a log, streamed: each looks at a batch of rows and remembers a little.

    checker = Checker(schema)
    wanted = checker.begin(table)          # the header
    for batch in table.batches(wanted, checker.report):
        checker.look(batch)
    findings = checker.finish()

Sums, extremes and comparisons over whole columns decide whether anything is worth a second look, so
that a sound log costs a few passes over its numbers. Memory does not grow with the log.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from moose.data.findings import Finding, Findings, make_finding
from moose.data.schema import Column, Numbers, Schema, steps_of
from moose.data.tables import NO_TIME, Batch, Report, Table, Wanted
from moose.errors import nearest

_LARGEST = float(np.finfo(np.float32).max)
_SECOND = 1e9
_SAMPLES_OF_BATCH = 2000
_MOST_SAMPLES = 50_000
_MOST_CANDIDATES = 20_000
_COMMON = 0.01
"""Values that are rarer than this may be outliers; more of them are another way of running."""

Places = npt.NDArray[np.int64]


class Place(NamedTuple):
    """A row of a file, and its number among all rows looked at."""

    file: str
    row: int
    position: int


_NOWHERE = Place("", 0, 0)


class Stretch(NamedTuple):
    """Consecutive rows, numbered among all rows looked at."""

    start: int
    length: int


class Checker:
    """Looks at the tables of one log, one after the other."""

    def __init__(self, schema: Schema) -> None:
        self.schema = schema
        self.num_rows = 0
        self._found = Findings()
        self._wanted = Wanted(
            tuple(column.source for column in schema.columns), schema.time, schema.episode
        )
        self._columns = [
            _ColumnCheck(column, self._role(position), schema)
            for position, column in enumerate(schema.columns)
        ]
        self._times = _TimeCheck(schema)
        self._episodes = _EpisodeCheck(schema)
        self._steps = _StepCheck(schema)
        self._copies = _CopyCheck(schema)
        self._file = ""
        self._rows_of_file = 0

    def report(self, finding: Finding) -> None:
        """Add a finding that somebody else has made."""
        self._found.add(finding)

    def begin(self, table: Table) -> Wanted | None:
        """Look at a table's header.

        Args:
            table: The next table of the log.

        Returns:
            The columns to read, or None if some are not there.
        """
        self._end_file()
        self._file, self._rows_of_file = "", 0
        header, row = table.header, _header_row(table)
        is_complete = True
        for name in self._wanted.headers:
            if name not in header:
                is_complete = False
                what = f"There is no column {name!r}."
                advice = nearest(name, header)
                self.report(
                    make_finding(
                        "missing-column", table.label, what, row=row, column=name, advice=advice
                    )
                )
        for name in dict.fromkeys(header):
            count = header.count(name)
            if count > 1:
                code = "duplicate-header" if name in self._wanted.headers else "odd-header"
                what = f"{count} columns are called {name!r}."
                self.report(make_finding(code, table.label, what, row=row, column=name))
                is_complete &= code == "odd-header"
            elif not name.strip() or not name.isprintable():
                position = header.index(name) + 1
                what = f"Column {position} has no plain name."
                self.report(make_finding("odd-header", table.label, what, row=row, column=name))
        others = [name for name in dict.fromkeys(header) if name not in self._wanted.headers]
        if others:
            what = f"The task does not use {len(others)} columns: {', '.join(others)[:100]}."
            self.report(
                make_finding(
                    "other-columns", table.label, what, row=row, column=others[0], count=len(others)
                )
            )
        if not is_complete:
            return None
        self._file = table.label
        return self._wanted

    def look(self, batch: Batch) -> Places:
        """Look at the next rows.

        Args:
            batch: Consecutive rows of the table begun last.

        Returns:
            ``[S]``: which rows of the batch begin an episode, by file or by name.
        """
        count = len(batch.rows)
        if count == 0:
            return np.zeros(0, np.int64)
        is_first = self._rows_of_file == 0
        starts = self._episodes.look(batch, self.num_rows, is_first, self.report)
        cuts = starts
        if batch.times is not None:
            odd = self._times.look(batch, batch.times, starts, is_first, self.report)
            cuts = np.union1d(starts, odd)
        for i, (column, values) in enumerate(zip(self._columns, batch.numbers, strict=True)):
            is_text = batch.texts.get(i)
            column.look(values, is_text, batch, self.num_rows, is_first, self.report)
        self._steps.look(batch, cuts, is_first, self.report)
        self._copies.look(batch)
        self.num_rows += count
        self._rows_of_file += count
        return starts

    def finish(self) -> list[Finding]:
        """What was found, errors first."""
        self._end_file()
        if self.num_rows:
            self._episodes.finish(self.report)
            self._times.finish(self.report)
            for column in self._columns:
                column.finish(self.report)
                if column.num_values == 0:  # which says more than that values are missing
                    self._found.withdraw("missing", column.column.source)
            self._steps.finish(self.report)
            is_constant = [column.is_constant for column in self._columns]
            self._copies.finish(self._first_place(), is_constant, self.report)
        return self._found.listed()

    @property
    def interval(self) -> float | None:
        """The sampling interval in seconds: as said, or as seen."""
        return self._times.interval

    def stuck_rows(self) -> list[Stretch]:
        """Where sensors are stuck."""
        return [stretch for column in self._columns for stretch in column.stuck_stretches()]

    def outlier_bounds(self) -> list[tuple[float, float]]:
        """For each column, the values beyond which an outlier lies."""
        return [column.outlier_bounds() for column in self._columns]

    def _first_place(self) -> Place:
        return self._columns[0].first

    def _end_file(self) -> None:
        if self._file and not self._rows_of_file:
            self.report(make_finding("empty-file", self._file, "The file has no rows."))
        if self._file and self._rows_of_file:
            self._episodes.end_episode(self.num_rows)

    def _role(self, position: int) -> str:
        num_signals, num_actions = len(self.schema.signals), len(self.schema.actions)
        if position < num_signals:
            return "signal"
        return "action" if position < num_signals + num_actions else "reward"


@dataclass
class _ColumnCheck:
    """One column of numbers: missing, infinite, out of range, constant, stuck, outliers, jumps."""

    column: Column
    role: str
    schema: Schema
    first: Place = _NOWHERE
    low: float = np.inf
    high: float = -np.inf
    num_values: int = 0
    num_missing: int = 0
    num_equal: int = 0
    samples: list[Numbers] = field(default_factory=list)
    candidates: list[tuple[Place, float]] = field(default_factory=list)
    num_beyond: int = 0
    bounds: tuple[float, float] = (-np.inf, np.inf)
    num_batches: int = 0
    run: tuple[Place, float, int] = (_NOWHERE, np.nan, 0)
    long_runs: list[tuple[Place, float, int]] = field(default_factory=list)
    tail: Numbers = field(default_factory=lambda: np.zeros(0))
    tail_rows: Places = field(default_factory=lambda: np.zeros(0, np.int64))
    jump: tuple[Place, float, str] | None = None

    @property
    def is_constant(self) -> bool:
        return self.low >= self.high

    def look(
        self,
        values: Numbers,
        is_text: npt.NDArray[np.bool_] | None,
        batch: Batch,
        first_index: int,
        is_first: bool,
        report: Report,
    ) -> None:
        if self.num_batches == 0:
            self.first = Place(batch.file, int(batch.rows[0]), first_index)
        self.num_batches += 1
        with np.errstate(invalid="ignore", over="ignore"):
            self._look(values, is_text, batch, first_index, is_first, report)

    def _look(
        self,
        values: Numbers,
        is_text: npt.NDArray[np.bool_] | None,
        batch: Batch,
        first_index: int,
        is_first: bool,
        report: Report,
    ) -> None:
        finite = values
        # A sum is finite only if all its parts are; that is the cheapest way to know.
        if not np.isfinite(values.sum()):
            finite = self._look_at_holes(values, is_text, batch, report)
        self.num_values += len(finite)
        if len(finite) == 0:
            return
        low, high = float(finite.min()), float(finite.max())
        self.low, self.high = min(self.low, low), max(self.high, high)
        self._look_at_range(values, low, high, batch, report)
        if self.role == "signal":
            self._look_for_runs(values, batch, first_index, is_first)
            self._look_for_jumps(values, batch, first_index, is_first)
        self._look_for_outliers(values, finite, low, high, batch, first_index)

    def finish(self, report: Report) -> None:
        if self.num_values == 0:
            what = "The column is empty: it has no value at all."
            report(self._finding("empty-column", self.first, what, None, self.num_missing))
            return
        if self.is_constant:
            code = {"signal": "constant", "action": "constant-action"}.get(
                self.role, "constant-reward"
            )
            what = f"The {self.role} never changes."
            report(self._finding(code, self.first, what, self.low, self.num_values))
            return
        self._end_run()
        stuck = self._stuck_runs()
        if stuck:
            place, value, _ = stuck[0]
            length = max(run[2] for run in stuck)
            what = f"The signal stays at one value for up to {length} rows; it moves otherwise."
            report(self._finding("stuck", place, what, value, len(stuck)))
        self._tell_outliers(report)
        if self.jump is not None:
            place, value, factor = self.jump
            what = f"From here on the values are as in another unit ({factor})."
            report(self._finding("unit-jump", place, what, value, 1))

    def stuck_stretches(self) -> list[Stretch]:
        return [Stretch(place.position, length) for place, _, length in self._stuck_runs()]

    def outlier_bounds(self) -> tuple[float, float]:
        if self.role == "reward" or not self.samples:
            return -np.inf, np.inf
        return self._bounds_of_samples(self.schema.checks.outlier)

    def _look_at_holes(
        self,
        values: Numbers,
        is_text: npt.NDArray[np.bool_] | None,
        batch: Batch,
        report: Report,
    ) -> Numbers:
        is_hole, is_infinite = np.isnan(values), np.isinf(values)
        is_missing = is_hole if is_text is None else is_hole & ~is_text
        for code, chosen, what in (
            ("missing", is_missing, "The value is missing."),
            ("infinite", is_infinite, "The value is not finite."),
        ):
            if chosen.any():
                at = int(np.argmax(chosen))
                value = None if code == "missing" else float(values[at])
                place = Place(batch.file, int(batch.rows[at]), 0)
                report(self._finding(code, place, what, value, int(chosen.sum())))
        self.num_missing += int(is_missing.sum())
        return values[~(is_hole | is_infinite)]

    def _look_at_range(
        self, values: Numbers, low: float, high: float, batch: Batch, report: Report
    ) -> None:
        if max(-low, high) > _LARGEST:
            self._tell_where(
                "too-large",
                "The value is too large.",
                np.abs(values) > _LARGEST,
                values,
                batch,
                report,
            )
        least = -np.inf if self.column.low is None else self.column.low
        most = np.inf if self.column.high is None else self.column.high
        # What is written in decimals is not exact.
        slack = 1e-6 * (most - least) if np.isfinite(most - least) else 0.0
        if low < least - slack or high > most + slack:
            is_outside = (values < least - slack) | (values > most + slack)
            if self.role == "action":
                code, what = "action-bounds", f"The action is outside {least:g} to {most:g}."
            else:
                code, what = "out-of-range", f"The signal is outside {least:g} to {most:g}."
            self._tell_where(code, what, is_outside, values, batch, report)

    def _look_for_runs(
        self, values: Numbers, batch: Batch, first_index: int, is_first: bool
    ) -> None:
        """Find stretches of equal values, also across batches."""
        if is_first:
            self._end_run()
        place, value, length = self.run
        is_equal = values[1:] == values[:-1]
        num_equal = int(np.count_nonzero(is_equal))
        self.num_equal += num_equal
        if values[0] == value:
            self.num_equal += 1
        else:
            self._end_run()
            place, value, length = Place(batch.file, int(batch.rows[0]), first_index), values[0], 0
        if num_equal == 0:
            self.run = (place, float(value), length + 1)
            if len(values) > 1:
                self._end_run()
                last = len(values) - 1
                self.run = (self._place(batch, last, first_index), float(values[-1]), 1)
            return
        edges = np.concatenate([[0], np.flatnonzero(~is_equal) + 1, [len(values)]])
        lengths = np.diff(edges)
        self.run = (place, float(value), length + int(lengths[0]))
        if len(lengths) == 1:
            return
        self._end_run()
        for at in np.flatnonzero(lengths[1:-1] >= self.schema.checks.stuck) + 1:
            start = int(edges[at])
            run = (self._place(batch, start, first_index), float(values[start]), int(lengths[at]))
            self.long_runs.append(run)
        start = int(edges[-2])
        self.run = (self._place(batch, start, first_index), float(values[start]), int(lengths[-1]))

    def _end_run(self) -> None:
        if self.run[2] >= self.schema.checks.stuck:
            self.long_runs.append(self.run)
        self.run = (self.run[0], np.nan, 0)

    def _stuck_runs(self) -> list[tuple[Place, float, int]]:
        """The long runs, if the signal moves outside of them."""
        in_runs = sum(length for _, _, length in self.long_runs)
        outside = self.num_values - in_runs
        moves = outside - (self.num_equal - (in_runs - len(self.long_runs)))
        is_moving = outside > 0 and moves > 0.8 * outside
        return self.long_runs if self.role == "signal" and is_moving else []

    def _look_for_jumps(
        self, values: Numbers, batch: Batch, first_index: int, is_first: bool
    ) -> None:
        """Compare the means of neighbouring blocks; a jump by a unit's factor stays."""
        if is_first:
            self.tail, self.tail_rows = values[:0], batch.rows[:0]
        joined = np.concatenate([self.tail, values]) if len(self.tail) else values
        rows = np.concatenate([self.tail_rows, batch.rows]) if len(self.tail) else batch.rows
        num_blocks = len(joined) // _BLOCK
        kept = 2 * _SPAN * _BLOCK + len(joined) % _BLOCK
        self.tail, self.tail_rows = joined[-kept:], rows[-kept:]
        if num_blocks <= 2 * _SPAN or self.jump is not None:
            return
        means = joined[: num_blocks * _BLOCK].reshape(num_blocks, _BLOCK).mean(axis=1)
        found = _first_unit_jump(means)
        if found is None:
            return
        block, factor = found
        start, stop = max(block - 1, 0) * _BLOCK, min(block + 2, num_blocks) * _BLOCK
        change = np.abs(np.diff(joined[start:stop]))
        at = start + int(np.nanargmax(change)) + 1
        place = Place(batch.file, int(rows[at]), first_index)
        self.jump = (place, float(joined[at]), factor)

    def _look_for_outliers(
        self, values: Numbers, finite: Numbers, low: float, high: float, batch: Batch, first: int
    ) -> None:
        if self.role == "reward":
            return
        stride = -(-len(finite) // _SAMPLES_OF_BATCH)
        if len(self.samples) < _MOST_SAMPLES // _SAMPLES_OF_BATCH:
            self.samples.append(finite[::stride].copy())
            # Half as far as will count in the end, since the end is not known yet.
            self.bounds = self._bounds_of_samples(self.schema.checks.outlier / 2)
        if low >= self.bounds[0] and high <= self.bounds[1]:
            return
        is_beyond = (values < self.bounds[0]) | (values > self.bounds[1])
        self.num_beyond += int(is_beyond.sum())
        room = _MOST_CANDIDATES - len(self.candidates)
        for at in np.flatnonzero(is_beyond)[:room]:
            self.candidates.append((self._place(batch, int(at), first), float(values[at])))

    def _bounds_of_samples(self, distance: float) -> tuple[float, float]:
        samples = np.concatenate(self.samples)
        lower, upper = np.quantile(samples, [0.25, 0.75])
        width = upper - lower
        if width <= 0:  # mostly one value: nothing can be said
            return -np.inf, np.inf
        return float(lower - distance * width), float(upper + distance * width)

    def _tell_outliers(self, report: Report) -> None:
        low, high = self.outlier_bounds()
        beyond = [(p, v) for p, v in self.candidates if v < low or v > high]
        if beyond and self.num_beyond <= max(_COMMON * self.num_values, 3) and self.jump is None:
            place, value = beyond[0]
            what = f"The value is far from the middle half of the data ({low:.4g} to {high:.4g})."
            report(self._finding("outlier", place, what, value, len(beyond)))

    def _tell_where(
        self,
        code: str,
        what: str,
        chosen: npt.NDArray[np.bool_],
        values: Numbers,
        batch: Batch,
        report: Report,
    ) -> None:
        at = int(np.argmax(chosen))
        place = self._place(batch, at, 0)
        report(self._finding(code, place, what, float(values[at]), int(chosen.sum())))

    def _place(self, batch: Batch, at: int, first_index: int) -> Place:
        return Place(batch.file, int(batch.rows[at]), first_index + at)

    def _finding(
        self, code: str, place: Place, what: str, value: float | None, count: int
    ) -> Finding:
        return make_finding(
            code,
            place.file,
            what,
            row=place.row,
            column=self.column.source,
            value=value,
            count=count,
        )


_BLOCK = 32
_SPAN = 4
_FACTORS = (10.0, 60.0, 100.0, 1000.0, 3600.0, 1e6)
_FACTOR_SLACK = 0.15


def _first_unit_jump(means: Numbers) -> tuple[int, str] | None:
    """The block from which on the means differ by a unit's factor, for good, and the factor."""
    windows = np.lib.stride_tricks.sliding_window_view(means, _SPAN)
    smallest, largest = windows.min(axis=1), windows.max(axis=1)
    middle = (windows.sum(axis=1) - smallest - largest) / (_SPAN - 2)
    # The block between the two windows is the one that the jump may cut in two.
    apart = _SPAN + 1
    before, after = middle[:-apart], middle[apart:]
    spread = (largest - smallest)[:-apart] + (largest - smallest)[apart:]
    is_jump = np.abs(after - before) > 4.0 * spread
    for block in np.flatnonzero(is_jump):
        factor = _unit_factor(float(before[block]), float(after[block]))
        if factor is not None:
            return int(block) + _SPAN, factor
    return None


def _unit_factor(before: float, after: float) -> str | None:
    for factor in _FACTORS:
        for first, second, sign in ((before, after, "×"), (after, before, "÷")):
            if first and abs(second / first / factor - 1.0) < _FACTOR_SLACK:
                return f"{sign} {factor:g}"
    if abs(after - (1.8 * before + 32.0)) < 0.02 * abs(after) and abs(before) > 1.0:
        return "°C to °F"
    if abs(before - (1.8 * after + 32.0)) < 0.02 * abs(before) and abs(after) > 1.0:
        return "°F to °C"
    if abs(abs(after - before) - 273.15) < 3.0:
        return "°C and K"
    return None


class _TimeCheck:
    """Times: duplicate, backward, gaps, sampling."""

    def __init__(self, schema: Schema) -> None:
        self.interval = schema.interval
        self._schema = schema
        self._last = NO_TIME
        self._steps: list[Places] = []
        self._gaps: list[tuple[Place, float]] = []
        self._fast: list[tuple[Place, float]] = []
        self._num_gaps: dict[str, int] = {}
        self._num_fast: dict[str, int] = {}
        self._num_steps = 0

    def look(
        self, batch: Batch, times: Places, starts: Places, is_first: bool, report: Report
    ) -> Places:
        """Look at the times; returns the rows that do not follow the row before at once."""
        before = NO_TIME if is_first else self._last
        steps = np.diff(times, prepend=before)
        steps[starts] = 0
        is_known = None
        if before == NO_TIME or times.min() == NO_TIME:
            is_known = (times != NO_TIME) & (np.concatenate([[before], times[:-1]]) != NO_TIME)
        counted = np.ones(len(times), np.bool_) if is_known is None else is_known
        counted[starts] = False
        self._last = int(times[-1])
        sound = steps[counted]
        if len(sound) == 0:
            return starts
        self._num_steps += len(sound)
        if len(self._steps) < 50:
            self._steps.append(sound[:10_000])
        if self.interval is None:
            positive = sound[sound > 0]
            self.interval = float(np.median(positive)) / _SECOND if len(positive) else None
        least, most = int(sound.min()), int(sound.max())
        if least <= 0:
            self._tell("duplicate-time", counted & (steps == 0), steps, batch, report)
            self._tell("backward-time", counted & (steps < 0), steps, batch, report)
        if self.interval is None:
            return np.flatnonzero(counted & (steps <= 0))
        gap, fast = self.interval * self._schema.checks.gap * _SECOND, 0.5 * self.interval * _SECOND
        for is_odd, places, counts in (
            (counted & (steps > gap) if most > gap else None, self._gaps, self._num_gaps),
            (counted & (steps > 0) & (steps < fast), self._fast, self._num_fast),
        ):
            if is_odd is not None and is_odd.any():
                at = int(np.argmax(is_odd))
                if batch.file not in counts:
                    places.append((Place(batch.file, int(batch.rows[at]), 0), steps[at] / _SECOND))
                counts[batch.file] = counts.get(batch.file, 0) + int(is_odd.sum())
        if least > 0 and most <= gap:
            return starts
        return np.flatnonzero(counted & ((steps <= 0) | (steps > gap)))

    def finish(self, report: Report) -> None:
        if self._schema.interval is not None and self._steps:
            typical = float(np.median(np.concatenate(self._steps))) / _SECOND
            if typical > 0 and abs(typical / self._schema.interval - 1.0) > 0.1:
                place = (self._gaps or self._fast or [(_NOWHERE, 0.0)])[0][0]
                what = (
                    f"Rows are {typical:g} s apart; "
                    f"the task's interval is {self._schema.interval:g} s."
                )
                report(self._finding("wrong-interval", place, what, typical, 1))
                return
        for place, seconds in self._gaps:
            missing = round(seconds / (self.interval or seconds)) - 1
            what = f"{seconds:g} s are between this row and the one before ({missing} missing)."
            report(self._finding("gap", place, what, seconds, self._num_gaps[place.file]))
        for place, seconds in self._fast:
            what = f"Only {seconds:g} s are between this row and the one before."
            report(self._finding("fast-sampling", place, what, seconds, self._num_fast[place.file]))

    def _tell(
        self, code: str, chosen: npt.NDArray[np.bool_], steps: Places, batch: Batch, report: Report
    ) -> None:
        if chosen.any():
            at = int(np.argmax(chosen))
            what = {
                "duplicate-time": "The row has the time of the row before.",
                "backward-time": "The time runs backwards.",
            }[code]
            place = Place(batch.file, int(batch.rows[at]), 0)
            value = steps[at] / _SECOND
            report(self._finding(code, place, what, value, int(chosen.sum())))

    def _finding(self, code: str, place: Place, what: str, value: float, count: int) -> Finding:
        return make_finding(
            code,
            place.file,
            what,
            row=place.row,
            column=self._schema.time,
            value=float(value),
            count=count,
        )


class _EpisodeCheck:
    """Episodes: where they begin, by file or by name; short ones, idle actions."""

    def __init__(self, schema: Schema) -> None:
        self._schema = schema
        self._names: set[str] = set()
        self._name: str | None = None
        self._start: Place | None = None
        self._num_episodes = 0
        self._short: list[tuple[Place, int]] = []
        self._num_short: dict[str, int] = {}
        num_actions = len(schema.actions)
        self._low = np.full(num_actions, np.inf)
        self._high = np.full(num_actions, -np.inf)
        self._idle: list[tuple[Place | None, int]] = [(None, 0)] * num_actions
        self._first = _NOWHERE

    def look(self, batch: Batch, first_index: int, is_first: bool, report: Report) -> Places:
        starts = np.zeros(1 if is_first else 0, np.int64)
        if batch.episodes is not None:
            starts = self._named_starts(batch, batch.episodes, is_first, report)
        count = len(batch.rows)
        edges = [0, *(int(start) for start in starts if start > 0), count]
        position = len(self._schema.signals)
        actions = batch.numbers[position : position + len(self._schema.actions)]
        for number, (start, stop) in enumerate(itertools.pairwise(edges)):
            if number > 0 or is_first or (len(starts) and starts[0] == 0):
                if self._start is not None:
                    self.end_episode(first_index + start)
                place = Place(batch.file, int(batch.rows[start]), first_index + start)
                self._start = place
                self._num_episodes += 1
                self._first = place if self._num_episodes == 1 else self._first
            with np.errstate(invalid="ignore"):
                for i, values in enumerate(actions):
                    part = values[start:stop]
                    self._low[i] = np.fmin(self._low[i], np.fmin.reduce(part))
                    self._high[i] = np.fmax(self._high[i], np.fmax.reduce(part))
        return starts

    def end_episode(self, stop: int) -> None:
        """The current episode ends before the row ``stop``."""
        if self._start is None:
            return
        length = stop - self._start.position
        file = self._start.file
        if length < self._schema.shortest:
            if file not in self._num_short:
                self._short.append((self._start, length))
            self._num_short[file] = self._num_short.get(file, 0) + 1
        is_idle = (self._low >= self._high) & (length >= self._schema.shortest)
        for i in np.flatnonzero(is_idle).tolist():
            place, count = self._idle[i]
            self._idle[i] = (place or self._start, count + 1)
        self._low[:], self._high[:] = np.inf, -np.inf
        self._start = None

    def finish(self, report: Report) -> None:
        for place, length in self._short:
            what = f"The episode has {length} rows; the task needs {self._schema.shortest}."
            count = self._num_short[place.file]
            report(
                make_finding(
                    "short-episode",
                    place.file,
                    what,
                    row=place.row,
                    value=float(length),
                    count=count,
                )
            )
        for column, (idle, count) in zip(self._schema.actions, self._idle, strict=True):
            if idle is not None and count < self._num_episodes:
                what = f"The action never changes in {count} of {self._num_episodes} episodes."
                report(
                    make_finding(
                        "idle-action",
                        idle.file,
                        what,
                        row=idle.row,
                        column=column.source,
                        count=count,
                    )
                )
        if self._num_episodes == 1:
            what = "The log is one single episode; training has to hold some out."
            report(make_finding("one-episode", self._first.file, what, row=self._first.row))

    def _named_starts(
        self, batch: Batch, episodes: pa.DictionaryArray, is_first: bool, report: Report
    ) -> Places:
        """Rows at which the episode's name changes."""
        dictionary = episodes.dictionary.to_pylist()
        codes = episodes.indices
        if codes.null_count:
            is_missing = np.asarray(codes.is_null())
            at = int(np.argmax(is_missing))
            report(
                make_finding(
                    "missing-episode",
                    batch.file,
                    "The row does not say to which episode it belongs.",
                    row=int(batch.rows[at]),
                    column=self._schema.episode,
                    count=int(is_missing.sum()),
                )
            )
        numbers = codes.fill_null(-1).to_numpy(zero_copy_only=False)
        changes = np.flatnonzero(numbers[1:] != numbers[:-1]) + 1
        first_name = dictionary[numbers[0]] if numbers[0] >= 0 else None
        if is_first or first_name != self._name:
            changes = np.concatenate([[0], changes])
        for at in changes.tolist():
            name = dictionary[numbers[at]] if numbers[at] >= 0 else None
            if name is not None and name in self._names:
                report(
                    make_finding(
                        "returning-episode",
                        batch.file,
                        "An episode goes on after another one; it is taken for a new one.",
                        row=int(batch.rows[at]),
                        column=self._schema.episode,
                        value=name[:40],
                    )
                )
            if name is not None:
                self._names.add(name)
        self._name = dictionary[numbers[-1]] if numbers[-1] >= 0 else None
        return np.asarray(changes, np.int64)


class _StepCheck:
    """Steps: changes of set-points, and a formula's domain."""

    def __init__(self, schema: Schema) -> None:
        self._schema = schema
        self._tail: list[Numbers] = []
        self._low, self._high = np.inf, -np.inf
        self._first = _NOWHERE
        self._num = 0

    def look(self, batch: Batch, starts: Places, is_first: bool, report: Report) -> None:
        schema = self._schema
        num_columns = len(schema.signals) + len(schema.actions)
        numbers = batch.numbers[:num_columns]
        if schema.reward_of_step is None and not schema.has_setpoints:
            return
        overlap = 2 if schema.has_setpoints else 1
        num_old = 0
        if not is_first and self._tail:
            num_old = len(self._tail[0])
            numbers = tuple(
                np.concatenate([old, new]) for old, new in zip(self._tail, numbers, strict=True)
            )
        self._tail = [values[-overlap:].copy() for values in numbers]
        frames, actions, next_frames = steps_of(schema, numbers)
        if len(frames[0]) == 0:
            return
        # Row of the step's action, as a position in the batch; the step needs its successor.
        at_first = overlap - 1 - num_old
        is_whole = self._is_inside_episode(len(frames[0]), at_first, starts, overlap)
        if schema.has_setpoints:
            self._look_at_rates(actions, is_whole, at_first, batch, report)
        if schema.reward_of_step is not None:
            rewards = schema.reward_of_step(frames, actions, next_frames)
            self._look_at_rewards(
                rewards, (frames, actions, next_frames), is_whole, at_first, batch, report
            )

    def finish(self, report: Report) -> None:
        if self._schema.reward_of_step is not None and self._num and self._low >= self._high:
            what = "The formula gives the same reward everywhere."
            report(
                make_finding(
                    "constant-reward",
                    self._first.file,
                    what,
                    row=self._first.row,
                    value=self._low,
                    count=self._num,
                )
            )

    def _is_inside_episode(
        self, count: int, at_first: int, starts: Places, overlap: int
    ) -> npt.NDArray[np.bool_]:
        is_whole = np.ones(count, np.bool_)
        for start in starts:
            # The rows of a step: its action's, the next, and with set-points the one before.
            last = int(start) - 1 - at_first
            for position in range(last, last + overlap):
                if 0 <= position < count:
                    is_whole[position] = False
        return is_whole

    def _look_at_rates(
        self,
        changes: Sequence[Numbers],
        is_whole: npt.NDArray[np.bool_],
        at_first: int,
        batch: Batch,
        report: Report,
    ) -> None:
        for column, change in zip(self._schema.actions, changes, strict=True):
            if column.rate is None:
                continue
            is_fast = (np.abs(change) > column.rate * (1 + 1e-6)) & is_whole
            if is_fast.any():
                at = int(np.argmax(is_fast))
                report(
                    make_finding(
                        "action-rate",
                        batch.file,
                        f"The set-point changes by more than {column.rate:g} in one step.",
                        row=self._row(batch, at + at_first),
                        column=column.source,
                        value=float(change[at]),
                        count=int(is_fast.sum()),
                    )
                )

    def _look_at_rewards(
        self,
        rewards: Numbers,
        steps: tuple[Sequence[Numbers], ...],
        is_whole: npt.NDArray[np.bool_],
        at_first: int,
        batch: Batch,
        report: Report,
    ) -> None:
        if np.isfinite(rewards.sum()):
            chosen = rewards if is_whole.all() else rewards[is_whole]
        else:
            is_known = is_whole.copy()
            for columns in steps:
                for values in columns:
                    is_known &= np.isfinite(values)
            is_bad = is_known & ~np.isfinite(rewards)
            if is_bad.any():
                at = int(np.argmax(is_bad))
                report(
                    make_finding(
                        "formula-domain",
                        batch.file,
                        "The reward's formula has no finite value for this row and the next.",
                        row=self._row(batch, at + at_first),
                        value=str(rewards[at]),
                        count=int(is_bad.sum()),
                    )
                )
            chosen = rewards[is_known & ~is_bad]
        if len(chosen):
            if self._num == 0:
                self._first = Place(batch.file, self._row(batch, max(at_first, 0)), 0)
            self._num += len(chosen)
            self._low = min(self._low, float(chosen.min()))
            self._high = max(self._high, float(chosen.max()))

    def _row(self, batch: Batch, position: int) -> int:
        # A step that began in the batch before has the number of the row before this one.
        first = int(batch.rows[0])
        return int(batch.rows[position]) if position >= 0 else first + position


class _CopyCheck:
    """Signals that repeat the reward or each other."""

    def __init__(self, schema: Schema) -> None:
        self._schema = schema
        num_signals = len(schema.signals)
        self._pairs = [(i, j) for j in range(num_signals) for i in range(j)]
        self._leaks: list[int] = []
        if schema.reward_column is not None:
            self._leaks = list(range(num_signals))

    def look(self, batch: Batch) -> None:
        numbers = batch.numbers
        self._pairs = [(i, j) for i, j in self._pairs if _is_same(numbers[i], numbers[j])]
        self._leaks = [
            i
            for i in self._leaks
            if _is_same(numbers[i], numbers[-1]) or _is_same(numbers[i], -numbers[-1])
        ]

    def finish(self, place: Place, is_constant: Sequence[bool], report: Report) -> None:
        signals = self._schema.signals
        for i in self._leaks:
            if not is_constant[i]:
                what = f"The signal equals the reward in column {self._schema.reward_column!r}."
                report(
                    make_finding(
                        "leakage", place.file, what, row=place.row, column=signals[i].source
                    )
                )
        for i, j in self._pairs:
            if not is_constant[i]:
                what = f"The signal equals the one in column {signals[i].source!r}."
                report(
                    make_finding(
                        "copied-signal", place.file, what, row=place.row, column=signals[j].source
                    )
                )


def _is_same(first: Numbers, second: Numbers) -> bool:
    # A look at the first few tells most pairs apart.
    if not np.array_equal(first[:100], second[:100], equal_nan=True):
        return False
    return np.array_equal(first, second, equal_nan=True)


def _header_row(table: Table) -> int | None:
    dialect = getattr(table, "dialect", None)
    return None if dialect is None else dialect.skip + 1
