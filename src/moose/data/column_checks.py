"""Checks of one column of numbers: holes, ranges, constants, stuck stretches, outliers, jumps."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from moose.data.batches import Batch, Report
from moose.data.findings import Finding, make_finding
from moose.data.places import NOWHERE, Place, Places, Stretch
from moose.data.schema import Column, Numbers, Schema

_LARGEST = float(np.finfo(np.float32).max)
_SAMPLES_OF_BATCH = 2000
_MOST_SAMPLES = 50_000
_MOST_CANDIDATES = 20_000
_COMMON = 0.01
"""Values that are rarer than this may be outliers; more of them are another way of running."""


@dataclass
class ColumnCheck:
    """What has been seen of one column, in a few numbers."""

    column: Column
    role: str
    schema: Schema
    first: Place = NOWHERE
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
    run: tuple[Place, float, int] = (NOWHERE, np.nan, 0)
    long_runs: list[tuple[Place, float, int]] = field(default_factory=list)
    tail: Numbers = field(default_factory=lambda: np.zeros(0))
    tail_rows: Places = field(default_factory=lambda: np.zeros(0, np.int64))
    jump: tuple[Place, float, str] | None = None

    @property
    def is_constant(self) -> bool:
        """Whether no two values differ."""
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
        """Look at the next values; ``is_text`` marks what was text and is reported already."""
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
        """Report what only the whole column tells."""
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
        """Where the sensor is stuck."""
        return [Stretch(place.position, length) for place, _, length in self._stuck_runs()]

    def outlier_bounds(self) -> tuple[float, float]:
        """The values beyond which an outlier lies."""
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
