"""What the algorithms with critics share: batches of transitions and the equations of Q-learning.

States are history windows, scaled and flattened to S numbers; actions are in the box [−1, 1]^d.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from pydantic import Field

from moose.config import Settings
from moose.data.dataset import Dataset
from moose.data.normalize import Statistics, standardise
from moose.errors import DataError
from moose.models.actor import input_scale, num_features
from moose.models.networks import Network, apply_network, apply_to_pairs, init_network
from moose.models.supervised import TransitionTable, adjoining_windows, make_table
from moose.tasks.task import Task, to_box
from moose.training import Metrics
from moose.types import Key, Params

MIN_WEIGHT = 0.75
"""Weight of the lower of two critics in the soft-clipped value; the higher one has the rest."""


class CriticSettings(Settings):
    """Settings that all algorithms with critics have."""

    hidden: tuple[int, ...] = (400, 300)
    """Widths of the hidden layers of policy and critics."""
    inputs: Literal["standardised", "raw"] = "standardised"
    """What the networks see: standardised states, or raw ones as the original code."""
    updates: int = Field(default=10_000, ge=1)
    """Gradient steps."""
    batch_size: int = Field(default=100, ge=1)
    """Transitions per gradient step."""
    learning_rate: float = Field(default=1e-3, gt=0)
    """Step size of Adam."""
    target_rate: float = Field(default=0.005, gt=0, le=1)
    """τ: how far target networks move towards the learned ones at each step."""
    discount: float | None = Field(default=None, gt=0, le=1)
    """γ: the task's by default."""
    checks: int = Field(default=100, ge=1)
    """How often, evenly spread, the state is kept and the policy shown to an observer."""


Critics = tuple[Network, ...]
"""One or more networks Q(s, a)."""


class Experience(NamedTuple):
    """What all seeds learn from: the log, and the scale of its frames."""

    table: TransitionTable
    usable: jax.Array
    """[M] the transitions with a known successor, or after which there is none"""
    continues: jax.Array
    """[N] m: 0 where the plant reached an end of its own, 1 elsewhere"""
    scale: Statistics


class Batch(NamedTuple):
    """Transitions as the networks see them."""

    states: jax.Array
    """[B, S]"""
    actions: jax.Array
    """[B, d]"""
    rewards: jax.Array
    """[B]"""
    next_states: jax.Array
    """[B, S]"""
    continues: jax.Array
    """[B]"""


def make_experience(dataset: Dataset, inputs: Literal["raw", "standardised"]) -> Experience:
    """Copy a log to the device."""
    usable = np.flatnonzero(dataset.has_successor | dataset.is_terminal)
    if usable.size == 0:
        raise DataError(
            "It is not known of any transition what followed it.",
            where="the data set's last observations",
            advice="give episodes of at least two observations",
        )
    return Experience(
        table=make_table(dataset),
        usable=jnp.asarray(usable, dtype=jnp.int32),
        continues=jnp.asarray(~dataset.is_terminal, dtype=jnp.float32),
        scale=input_scale(dataset, inputs),
    )


def draw_batch(experience: Experience, task: Task, size: int, key: Key) -> Batch:
    """Random transitions, each as likely as any other."""
    table, scale = experience.table, experience.scale
    chosen = jax.random.choice(key, experience.usable, (size,))
    windows, next_windows = adjoining_windows(table, chosen, task.history)
    return Batch(
        states=standardise(windows, scale).reshape(size, -1),
        actions=to_box(table.actions[chosen], task),
        rewards=table.rewards[chosen],
        next_states=standardise(next_windows, scale).reshape(size, -1),
        continues=experience.continues[chosen],
    )


def init_critics(task: Task, hidden: Sequence[int], count: int, key: Key) -> Critics:
    """Untrained critics."""
    sizes = (num_features(task) + len(task.action_names), *hidden, 1)
    return tuple(init_network(one, sizes) for one in jax.random.split(key, count))


def q_values(critics: Critics, states: jax.Array, actions: jax.Array) -> jax.Array:
    """Q_c(s, a) for states [B, S] and actions [B, d]: [C, B]."""
    pairs = jnp.concatenate([states, actions], axis=-1)
    return jnp.stack([apply_network(critic, pairs)[..., 0] for critic in critics])


def q_values_of_many(critics: Critics, states: jax.Array, actions: jax.Array) -> jax.Array:
    """Q_c(s, a) for states [B, S] and N actions in each [B, N, d]: [C, B, N]."""
    return jnp.stack([apply_to_pairs(critic, states, actions)[..., 0] for critic in critics])


def td_target(batch: Batch, next_values: jax.Array, discount: float) -> jax.Array:
    """The target y = r + γ m V(s′) for values [B]."""
    return batch.rewards + discount * batch.continues * next_values


def soft_clipped(values: jax.Array) -> jax.Array:
    """0.75 min_c Q_c + 0.25 max_c Q_c for values [C, ...]: [...]."""
    lowest, highest = jnp.min(values, axis=0), jnp.max(values, axis=0)
    return MIN_WEIGHT * lowest + (1.0 - MIN_WEIGHT) * highest


def best_soft_clipped(critics: Critics, states: jax.Array, actions: jax.Array) -> jax.Array:
    """The highest soft-clipped value [B] among N actions [B, N, d]: first mixed, then the best."""
    return jnp.max(soft_clipped(q_values_of_many(critics, states, actions)), axis=-1)


def critic_loss(critics: Critics, batch: Batch, targets: jax.Array) -> tuple[jax.Array, Metrics]:
    """Σ_c mean (Q_c(s, a) − y)²; its metrics include the mean size of Q."""
    values = q_values(critics, batch.states, batch.actions)
    loss = jnp.sum(jnp.mean((values - targets[None]) ** 2, axis=-1))
    return loss, {"critic_loss": loss, "mean_absolute_q": jnp.mean(jnp.abs(values))}


def polyak(targets: Params, sources: Params, rate: float) -> Params:
    """Targets moved towards their sources: (1 − τ) target + τ source."""
    return jax.tree.map(lambda t, s: (1.0 - rate) * t + rate * s, targets, sources)


def mean_discrepancy(
    first: jax.Array, second: jax.Array, kernel: Literal["laplacian", "gaussian"], width: float
) -> jax.Array:
    """MMD of two sets of samples [B, N, d] in each state: [B].

    √(mean k(x, x′) + mean k(y, y′) − 2 mean k(x, y) + 1e-6), pairs of a sample with itself
    included; k is exp(−‖x − y‖₁ / 2σ) (Laplacian) or exp(−‖x − y‖² / 2σ) (Gaussian).
    """

    def mean_kernel(one: jax.Array, other: jax.Array) -> jax.Array:
        gaps = one[:, :, None] - other[:, None, :]
        sizes = jnp.abs(gaps) if kernel == "laplacian" else gaps**2
        return jnp.mean(jnp.exp(-jnp.sum(sizes, axis=-1) / (2.0 * width)), axis=(1, 2))

    squared = mean_kernel(first, first) + mean_kernel(second, second)
    return jnp.sqrt(squared - 2.0 * mean_kernel(first, second) + 1e-6)
