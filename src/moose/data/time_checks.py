"""Checks of times and episodes: order, gaps, sampling, names, lengths, idle actions."""

from __future__ import annotations

import itertools

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from moose.data.batches import NO_TIME, Batch, Report
from moose.data.findings import Finding, make_finding
from moose.data.places import NOWHERE, Place, Places
from moose.data.schema import Schema

_SECOND = 1e9


class TimeCheck:
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
        """Report gaps, or that the interval is another one."""
        if self._schema.interval is not None and self._steps:
            typical = float(np.median(np.concatenate(self._steps))) / _SECOND
            if typical > 0 and abs(typical / self._schema.interval - 1.0) > 0.1:
                place = (self._gaps or self._fast or [(NOWHERE, 0.0)])[0][0]
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


class EpisodeCheck:
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
        self._first = NOWHERE

    def look(self, batch: Batch, first_index: int, is_first: bool, report: Report) -> Places:
        """Look at the next rows; returns those that begin an episode."""
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
        """Report short episodes and idle actions."""
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
