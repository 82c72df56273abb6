"""What a controller has to know of its task, and how a policy's manifest says it. Without JAX."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from moose.errors import StorageError
from moose.storage import MANIFEST

WIDENING = 3.0
"""How far beyond the data's range an input may lie before it is clamped, in widths of it."""

Floats = npt.NDArray[np.float32]


@dataclass(frozen=True)
class TaskFacts:
    """What a controller has to know of its task.

    Attributes:
        name: The task's name.
        observation_names: The n signals of a frame, in order.
        action_names: The d actions, in order.
        action_low: Lower bounds of the actions.
        action_high: Upper bounds of the actions.
        history: Frames that the policy sees.
        discount: Discount factor of the return it was trained for.
        observation_units: Units of the signals, or nothing.
        action_units: Units of the actions, or nothing.
        action_rates: The largest change of each action from one step to the next, if limited.
        hold_action: The action that changes nothing, if there is one.
    """

    name: str
    observation_names: tuple[str, ...]
    action_names: tuple[str, ...]
    action_low: tuple[float, ...]
    action_high: tuple[float, ...]
    history: int
    discount: float
    observation_units: tuple[str, ...] = ()
    action_units: tuple[str, ...] = ()
    action_rates: tuple[float, ...] | None = None
    hold_action: tuple[float, ...] | None = None

    @property
    def window_shape(self) -> tuple[int, int]:
        """[F, n]."""
        return self.history, len(self.observation_names)


class Box(NamedTuple):
    """The bounds of an action in float32, never outside of the task's own."""

    low: Floats
    high: Floats
    middle: Floats
    half: Floats


def box_of(facts: TaskFacts) -> Box:
    """The bounds of the actions, rounded inwards."""
    low, high = np.asarray(facts.action_low), np.asarray(facts.action_high)
    first, last = low.astype(np.float32), high.astype(np.float32)
    two = np.float32(2.0)  # as in training, where all of this is float32
    return Box(
        low=np.where(first < low, np.nextafter(first, np.float32(np.inf)), first),
        high=np.where(last > high, np.nextafter(last, np.float32(-np.inf)), last),
        middle=((last + first) / two).astype(np.float32),
        half=((last - first) / two).astype(np.float32),
    )


def task_tree(facts: TaskFacts) -> dict[str, Any]:
    """The facts as the manifest has them."""
    return {
        "name": facts.name,
        "observations": _columns(facts.observation_names, facts.observation_units),
        "actions": [
            column | {"low": low, "high": high}
            for column, low, high in zip(
                _columns(facts.action_names, facts.action_units),
                facts.action_low,
                facts.action_high,
                strict=True,
            )
        ],
        "action_rates": None if facts.action_rates is None else list(facts.action_rates),
        "hold_action": None if facts.hold_action is None else list(facts.hold_action),
        "history": facts.history,
        "discount": facts.discount,
        "widening": WIDENING,
    }


def facts_in(tree: Any, path: Path) -> TaskFacts:
    """The facts that :func:`task_tree` wrote, or an error if it did not."""
    try:
        observations, actions = tree["observations"], tree["actions"]
        rates, hold = tree["action_rates"], tree["hold_action"]
        facts = TaskFacts(
            name=tree["name"],
            observation_names=tuple(column["name"] for column in observations),
            action_names=tuple(column["name"] for column in actions),
            action_low=_numbers(column["low"] for column in actions),
            action_high=_numbers(column["high"] for column in actions),
            history=tree["history"],
            discount=float(tree["discount"]),
            observation_units=_units_in(observations),
            action_units=_units_in(actions),
            action_rates=None if rates is None else _numbers(rates),
            hold_action=None if hold is None else _numbers(hold),
        )
        is_same = task_tree(facts) == tree
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise not_described(path) from error
    names = [facts.name, *facts.observation_names, *facts.action_names]
    vectors = [v for v in (facts.action_rates, facts.hold_action) if v is not None]
    if not (
        is_same
        and all(isinstance(name, str) and name for name in names)
        and facts.observation_names
        and facts.action_names
        and len({*facts.observation_names}) == len(facts.observation_names)
        and len({*facts.action_names}) == len(facts.action_names)
        and count_in(facts.history) is not None
        and all(map(_is_below, facts.action_low, facts.action_high))
        and all(len(vector) == len(facts.action_names) for vector in vectors)
        and all(rate > 0 for rate in facts.action_rates or ())
    ):
        raise not_described(path)
    return facts


def count_in(value: Any) -> int | None:
    """A value that is a whole number above 0, or None."""
    is_count = isinstance(value, int) and not isinstance(value, bool) and value >= 1
    return value if is_count else None


def _columns(names: Sequence[str], units: Sequence[str]) -> list[dict[str, Any]]:
    shown: Sequence[str | None] = units or [None] * len(names)
    return [{"name": name, "unit": unit} for name, unit in zip(names, shown, strict=True)]


def _units_in(columns: Sequence[Mapping[str, Any]]) -> tuple[str, ...]:
    units = [column["unit"] for column in columns]
    return () if all(unit is None for unit in units) else tuple(units)


def _numbers(values: Any) -> tuple[float, ...]:
    numbers = tuple(float(value) for value in values)
    if not all(map(math.isfinite, numbers)):
        raise ValueError("a number is not finite")
    return numbers


def _is_below(low: float, high: float) -> bool:
    return low < high


def not_described(path: Path) -> StorageError:
    """What to raise where a manifest does not say what it should."""
    return StorageError(
        "The manifest does not describe a policy.",
        where=str(path / MANIFEST),
        advice="restore the policy or train again",
    )
