"""A task: everything a person knows about the plant that the log does not say."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal, Protocol

import jax
import jax.numpy as jnp

from moose.data.dataset import Dataset
from moose.errors import DataError

Physics = Callable[[jax.Array, jax.Array, jax.Array], jax.Array]
"""``(frame [n], action [d], predicted [m]) -> next frame [n]``, raw units, differentiable."""

Reward = Callable[[jax.Array, jax.Array, jax.Array], jax.Array]
"""``(frame [n], action [d], next frame [n]) -> scalar``, raw units, differentiable."""


@dataclass(frozen=True)
class Task:
    """Prior knowledge about a plant.

    Attributes:
        name: What to call it.
        observation_names: The n signals of a frame, in the data's order.
        action_names: The d actions, in the data's order.
        action_low: Lower bounds of the actions.
        action_high: Upper bounds of the actions.
        history: Frames in the state that models and policies see, newest first.
        discount: Discount factor γ of the return.
        horizon: Steps of an imagined trajectory, and of an evaluation.
        target: What models learn: the next value of a signal, or its change.
        predicted_names: The signals models must learn; known physics gives the rest.
        physics: Assembles the next frame from the frame, the action and the predicted signals.
        reward: The reward, or None where it has to be learned from the log.
        hold_action: The action that changes nothing, or None where there is none.
        definition: The text of the task file it came from; None for a task that is part of the
            program.
        observation_units: Units of the signals, or nothing where they are not known.
        action_units: Units of the actions, likewise.
        action_rates: The largest change of each action from one step to the next that the plant
            may be asked for; a guard enforces it.
        observation_limits: The least and greatest value of each signal that is physically
            possible, None where it is not known; nothing where none is.
    """

    name: str
    observation_names: tuple[str, ...]
    action_names: tuple[str, ...]
    action_low: tuple[float, ...]
    action_high: tuple[float, ...]
    history: int
    discount: float
    horizon: int
    target: Literal["direct", "delta"]
    predicted_names: tuple[str, ...]
    physics: Physics
    reward: Reward | None
    hold_action: tuple[float, ...] | None = None
    definition: str | None = field(default=None, repr=False)
    observation_units: tuple[str, ...] = ()
    action_units: tuple[str, ...] = ()
    action_rates: tuple[float, ...] | None = None
    observation_limits: tuple[tuple[float | None, float | None], ...] = ()

    @property
    def observation_ranges(self) -> tuple[tuple[float | None, float | None], ...]:
        """The physical limits of every signal."""
        return self.observation_limits or ((None, None),) * len(self.observation_names)

    @property
    def predicted(self) -> tuple[int, ...]:
        """Columns of a frame that the models predict."""
        return tuple(self.observation_names.index(name) for name in self.predicted_names)

    @property
    def facts(self) -> list[object]:
        """What a fitted model depends on besides data and settings, for digests."""
        is_reward_known = self.reward is not None
        return [self.name, self.history, self.target, self.predicted_names, is_reward_known]

    def require(self, dataset: Dataset) -> None:
        """Raise a :class:`DataError` unless the data set has this task's columns."""
        for kind, expected, found in (
            ("observation", self.observation_names, dataset.observation_names),
            ("action", self.action_names, dataset.action_names),
        ):
            if expected != found:
                raise DataError(
                    f"The data set's {kind} columns are {', '.join(found)}; "
                    f"the task expects {', '.join(expected)}.",
                    where=f"task '{self.name}'",
                    advice="give the data set that belongs to this task, or mend the task",
                )


class Bounded(Protocol):
    """Whatever knows the bounds of actions."""

    @property
    def action_low(self) -> tuple[float, ...]:
        """Lower bounds."""

    @property
    def action_high(self) -> tuple[float, ...]:
        """Upper bounds."""


def to_box(actions: jax.Array, task: Bounded) -> jax.Array:
    """Map raw actions to [−1, 1] by the task's bounds."""
    low = jnp.asarray(task.action_low, actions.dtype)
    high = jnp.asarray(task.action_high, actions.dtype)
    return jnp.subtract(actions, (high + low) / 2) / ((high - low) / 2)


def from_box(actions: jax.Array, task: Bounded) -> jax.Array:
    """Map actions in [−1, 1] to the task's bounds."""
    low = jnp.asarray(task.action_low, actions.dtype)
    high = jnp.asarray(task.action_high, actions.dtype)
    return (high + low) / 2 + actions * ((high - low) / 2)
