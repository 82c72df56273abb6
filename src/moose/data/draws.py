"""Drawing steps of a log to learn from.

Policies are judged from the beginning of an episode, and a log of long episodes has almost nothing
of their beginning. A share of the draws is therefore spread evenly over the logarithm of a step's
age, so that every doubling of age is as likely as any other.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import numpy.typing as npt

from moose.data.dataset import Dataset
from moose.types import Key


class Draw(NamedTuple):
    """Steps of a log, those of an episode in a row."""

    steps: jax.Array
    """[M] the steps that may be drawn"""
    first: jax.Array
    """[M] where the steps of the same episode begin in ``steps``"""
    length: jax.Array
    """[M] how many they are"""


def make_draw(steps: npt.ArrayLike, episodes: npt.ArrayLike) -> Draw:
    """Prepare steps for drawing.

    Args:
        steps: ``[M]`` steps of a log, ascending.
        episodes: ``[M]`` the episode of each.

    Returns:
        What :func:`draw_steps` needs.
    """
    _, first, inverse, length = np.unique(
        np.asarray(episodes), return_index=True, return_inverse=True, return_counts=True
    )
    columns = (np.asarray(steps), first[inverse], length[inverse])
    return Draw(*(jax.device_put(column.astype(np.int32)) for column in columns))


def draw_steps(draw: Draw, count: int, early_share: float, key: Key) -> jax.Array:
    """Draw steps ``[count]`` with replacement.

    Args:
        draw: What may be drawn.
        count: How many.
        early_share: Share of the draws whose age is even in its logarithm; the others are uniform.
        key: Random key.

    Returns:
        The steps.
    """
    step_key, choice_key, age_key = jax.random.split(key, 3)
    places = jax.random.randint(step_key, (count,), 0, len(draw.steps), jnp.int32)
    is_early = jax.random.uniform(choice_key, (count,)) < early_share
    # The integer part of a number whose logarithm is uniform, from 1 to one more than there are.
    length = draw.length[places]
    number = jnp.exp(jax.random.uniform(age_key, (count,)) * jnp.log1p(length.astype(jnp.float32)))
    age = jnp.clip(number.astype(jnp.int32) - 1, 0, length - 1)
    return draw.steps[jnp.where(is_early, draw.first[places] + age, places)]


def draw_first_steps(draw: Draw, count: int, key: Key) -> jax.Array:
    """Draw first steps ``[count]`` of episodes, those of long episodes more often."""
    places = jax.random.randint(key, (count,), 0, len(draw.steps), jnp.int32)
    return draw.steps[draw.first[places]]


def draw_within(dataset: Dataset, steps: npt.NDArray[np.integer] | None = None) -> Draw:
    """The same for steps of a data set, all of them by default."""
    chosen = np.arange(dataset.num_transitions) if steps is None else steps
    return make_draw(chosen, np.searchsorted(dataset.offsets, chosen, side="right") - 1)
