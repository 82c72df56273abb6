"""What the columns of a table mean, how to check them, and which fixes were asked for."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
from pydantic import Field

from moose.config import Settings

Numbers = npt.NDArray[np.float64]

Columns = Sequence[Numbers]
"""Columns of equal length, in the order of the names."""

RewardOfStep = Callable[[Columns, Columns, Columns], Numbers]
"""``(frames, actions, next frames) -> rewards [B]`` by columns ``[B]``; NaN where undefined."""


class TextSettings(Settings):
    """How CSV files are written; what is not given is detected."""

    delimiter: str | None = Field(default=None, min_length=1, max_length=1)
    """What separates columns, such as ";"."""
    decimal: Literal[".", ","] | None = None
    """The decimal point or comma."""
    encoding: Literal["utf-8", "latin-1", "utf-16"] | None = None
    """utf-8, latin-1 or utf-16."""
    skip: int = Field(default=0, ge=0, le=10_000)
    """Lines above the header."""
    missing: tuple[str, ...] = ("", "NaN", "nan", "NA", "N/A", "#N/A", "null", "NULL", "None", "-")
    """Texts that stand for a missing value."""
    time_format: str | None = Field(default=None, min_length=2)
    """How times are written, such as "%d.%m.%Y %H:%M:%S"; numbers are seconds."""


class CheckSettings(Settings):
    """What is worth a finding."""

    gap: float = Field(default=1.5, gt=1)
    """A step longer than this many sampling intervals is a gap."""
    stuck: int = Field(default=50, ge=3)
    """So many equal values in a row are a stuck sensor, where the signal moves otherwise."""
    outlier: float = Field(default=10.0, gt=0)
    """Distance from the middle half of the data, in its own width, of an outlier."""
    shortest: int | None = Field(default=None, ge=2)
    """Rows of the shortest useful episode; by default the history and one more."""


_GAPS = r"^(split|interpolate:[1-9][0-9]{0,3})$"
_MISSING = r"^(split|(interpolate|last):[1-9][0-9]{0,3})$"


class Fixes(Settings):
    """What to do about findings; nothing by default, and what is done is recorded."""

    gaps: str | None = Field(default=None, pattern=_GAPS, examples=["split", "interpolate:5"])
    """split: cut the episode at a gap. interpolate:N: fill up to N missing samples, else cut."""
    missing: str | None = Field(
        default=None, pattern=_MISSING, examples=["split", "interpolate:5", "last:5"]
    )
    """Missing values. split: leave the rows out and cut there. interpolate:N or last:N: fill up to
    N in a row by a straight line or the value before, else cut."""
    text: Literal["missing"] | None = None
    """Text among numbers. missing: take it for missing values."""
    duplicates: Literal["first", "last"] | None = None
    """Rows with the time of the row before. first or last: keep that one."""
    order: Literal["split"] | None = None
    """Times that run backwards. split: begin a new episode there."""
    ragged: Literal["drop"] | None = None
    """Rows with too many or too few columns. drop: leave them out and cut there."""
    bounds: Literal["clip", "split"] | None = None
    """Actions outside their bounds. clip: move them to the bound. split: as for missing."""
    ranges: Literal["missing"] | None = None
    """Signals outside their possible range. missing: take them for missing values."""
    outliers: Literal["missing"] | None = None
    """Outliers. missing: take them for missing values."""
    stuck: Literal["split"] | None = None
    """Stuck sensors. split: leave the stretch out and cut there."""
    short: Literal["drop"] | None = None
    """Episodes that are too short. drop: leave them out."""


@dataclass(frozen=True)
class Column:
    """A column of numbers.

    Attributes:
        name: What the task calls it.
        source: Its header in the table.
        low: The least value that is possible (signals) or allowed (actions), if known.
        high: The greatest one.
        rate: For set-points, the largest change in one step.
    """

    name: str
    source: str
    low: float | None = None
    high: float | None = None
    rate: float | None = None


@dataclass(frozen=True)
class Schema:
    """What the columns of a table mean.

    Attributes:
        signals: The observations.
        actions: The actions.
        reward_column: The reward's header; None where a formula gives it.
        reward_of_step: The formula.
        time: The header of the time, if there is one.
        interval: The sampling interval in seconds, if known.
        episode: The header of the column that tells episodes apart, if there is one.
        has_setpoints: Actions are set-points that stay in force: see :mod:`moose.data.assemble`.
        history: Frames that a state has.
        text: How CSV files are written.
        checks: What is worth a finding.
    """

    signals: tuple[Column, ...]
    actions: tuple[Column, ...]
    reward_column: str | None = None
    reward_of_step: RewardOfStep | None = None
    time: str | None = None
    interval: float | None = None
    episode: str | None = None
    has_setpoints: bool = False
    history: int = 1
    text: TextSettings = field(default_factory=TextSettings)
    checks: CheckSettings = field(default_factory=CheckSettings)

    @property
    def columns(self) -> tuple[Column, ...]:
        """All columns of numbers: signals, actions and, if it is one, the reward."""
        reward = () if self.reward_column is None else (Column("reward", self.reward_column),)
        return (*self.signals, *self.actions, *reward)

    @property
    def observation_names(self) -> tuple[str, ...]:
        """The names in a frame of the data set: signals, then set-points in force."""
        held = self.actions if self.has_setpoints else ()
        return tuple(column.name for column in (*self.signals, *held))

    @property
    def action_names(self) -> tuple[str, ...]:
        """The names of the data set's actions; of a set-point, its change."""
        return tuple(
            change_name(column.name) if self.has_setpoints else column.name
            for column in self.actions
        )

    @property
    def shortest(self) -> int:
        """Rows of the shortest useful episode."""
        return self.checks.shortest or self.history + 1


def steps_of(
    schema: Schema, numbers: Columns
) -> tuple[list[Numbers], list[Numbers], list[Numbers]]:
    """Consecutive rows as steps: the columns of frames, actions and next frames, as views.

    Row t holds what was observed at t and the action that was chosen then. Of set-points, the
    frame has the one of the row before, and the action is the change; so the first row has no
    step of its own.

    Args:
        schema: What the columns are.
        numbers: The columns of consecutive rows: signals, actions.

    Returns:
        One row less than given, with set-points two.
    """
    signals = list(numbers[: len(schema.signals)])
    actions = list(numbers[len(schema.signals) : len(schema.signals) + len(schema.actions)])
    if not schema.has_setpoints:
        return [s[:-1] for s in signals], [a[:-1] for a in actions], [s[1:] for s in signals]
    frames = [s[1:-1] for s in signals] + [a[:-2] for a in actions]
    changes = [a[1:-1] - a[:-2] for a in actions]
    return frames, changes, [s[2:] for s in signals] + [a[1:-1] for a in actions]


def change_name(setpoint: str) -> str:
    """What the change of a set-point is called."""
    return f"d_{setpoint}"


def asked_for(fixes: Fixes) -> dict[str, Any]:
    """The fixes that were asked for, by name."""
    return {name: value for name, value in fixes.model_dump().items() if value is not None}
