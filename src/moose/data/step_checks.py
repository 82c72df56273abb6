"""Checks of several columns at once: rates of set-points, formulas, copies and leakage."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from moose.data.batches import Batch, Report
from moose.data.findings import make_finding
from moose.data.places import NOWHERE, Place, Places
from moose.data.schema import Numbers, Schema, steps_of

_RATE_SLACK = 1.001  # logs round what they write


class StepCheck:
    """Steps: changes of set-points, and a formula's domain."""

    def __init__(self, schema: Schema) -> None:
        self._schema = schema
        self._tail: list[Numbers] = []
        self._low, self._high = np.inf, -np.inf
        self._first = NOWHERE
        self._num = 0

    def look(self, batch: Batch, starts: Places, is_first: bool, report: Report) -> None:
        """Look at the next rows, some of which do not follow the row before."""
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
        """Report what only the whole log tells."""
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
            is_fast = (np.abs(change) > column.rate * _RATE_SLACK) & is_whole
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


class CopyCheck:
    """Signals that repeat the reward or each other."""

    def __init__(self, schema: Schema) -> None:
        self._schema = schema
        num_signals = len(schema.signals)
        self._pairs = [(i, j) for j in range(num_signals) for i in range(j)]
        self._leaks: list[int] = []
        if schema.reward_column is not None:
            self._leaks = list(range(num_signals))

    def look(self, batch: Batch) -> None:
        """Rule out the pairs that differ."""
        numbers = batch.numbers
        self._pairs = [(i, j) for i, j in self._pairs if _is_same(numbers[i], numbers[j])]
        self._leaks = [
            i
            for i in self._leaks
            if _is_same(numbers[i], numbers[-1]) or _is_same(numbers[i], -numbers[-1])
        ]

    def finish(self, place: Place, is_constant: Sequence[bool], report: Report) -> None:
        """Report the pairs that never differed."""
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
