"""The task of a Gymnasium environment: nothing is known but its columns."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax

from moose.errors import DataError
from moose.tasks.task import Task

PLANT = "gymnasium"
"""What the provenance of such a data set calls its plant."""
DISCOUNT = 0.99
HORIZON = 100


def task_of_environment(provenance: Mapping[str, Any]) -> Task:
    """The task of a data set that was made in an environment.

    One frame is the state, models learn its change, and the reward has to be learned. An evaluation
    is the first 100 steps with discount 0.99.

    Args:
        provenance: The data set's; the environment itself is not needed.

    Returns:
        The task.
    """
    try:
        environment, columns = str(provenance["environment"]), provenance["columns"]
        observations = tuple(map(str, columns["observation_names"]))
        return Task(
            name=f"gym/{environment}",
            observation_names=observations,
            action_names=tuple(map(str, columns["action_names"])),
            action_low=tuple(map(float, columns["action_low"])),
            action_high=tuple(map(float, columns["action_high"])),
            history=1,
            discount=DISCOUNT,
            horizon=HORIZON,
            target="delta",
            predicted_names=observations,
            physics=_next_frame,
            reward=None,
        )
    except (KeyError, TypeError, ValueError) as error:
        raise DataError(
            f"What is said of the environment cannot be read: {error!r}.",
            where="the data set's provenance",
            advice="make the data set again with 'moose data make'",
        ) from error


def _next_frame(frame: jax.Array, action: jax.Array, predicted: jax.Array) -> jax.Array:
    """All of it is predicted."""
    return predicted
