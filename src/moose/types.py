"""Records and protocols that every layer shares, and the letters used for shapes.

Shape letters, used in docstrings and comments throughout:

====  =====================================================
B     batch
E     episodes
F     frames in a history window, newest first
H     horizon of an imagined trajectory
K     members of an ensemble
N     transitions of a data set, or start states
T     time steps of an episode
n     numbers in a frame (observation)
d     numbers in an action
====  =====================================================
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import jax

Key = jax.Array
"""A JAX random key."""

Params = Any
"""A pytree of arrays."""

Act = Callable[[Params, jax.Array, Key], jax.Array]
"""``act(params, window [F, n], key) -> action [d]``: pure; raw units in, raw units out."""


@dataclass(frozen=True)
class Plant:
    """A true plant (simulator) as pure functions, for collecting data and for evaluation only.

    Attributes:
        name: What to call it.
        frame_names: Names of the n numbers in a frame.
        action_names: Names of the d numbers in an action.
        reset: ``reset(key) -> state``.
        step: ``step(state, action [d], key) -> state``.
        observe: ``observe(state) -> frame [n]``.
        reward: ``reward(frame, action, next_frame) -> scalar``, scaled as results are reported.
    """

    name: str
    frame_names: tuple[str, ...]
    action_names: tuple[str, ...]
    reset: Callable[[Key], Any]
    step: Callable[[Any, jax.Array, Key], Any]
    observe: Callable[[Any], jax.Array]
    reward: Callable[[jax.Array, jax.Array, jax.Array], jax.Array]


Carry = Any
"""What a dynamics model remembers between two steps: a pytree of arrays."""


class DynamicsModel(Protocol):
    """A learned model of a plant is a carry: rollouts know only these functions.

    Everything is raw units. ``member`` holds the parameters of one member of an ensemble.
    """

    def start(self, member: Params, window: jax.Array) -> Carry:
        """The carry after having seen ``window [F, n]``."""

    def step(self, member: Params, carry: Carry, action: jax.Array) -> tuple[Carry, jax.Array]:
        """One imagined step: the next carry and the next frame ``[n]``."""

    def reward(
        self, member: Params, window: jax.Array, action: jax.Array, frame: jax.Array
    ) -> jax.Array:
        """The reward of ``action [d]`` in the state ``window [F, n]`` that led to ``frame [n]``."""
