"""Behaviour cloning: do what the log did.

The policy π_θ is fitted to the logged actions by least squares:

    L(θ) = mean ‖π_θ(s) − a‖²

======  ==========  =====================================
symbol  name        meaning
======  ==========  =====================================
θ       actor       parameters of the policy
s, a    —           logged state and action (in [−1, 1]^d)
======  ==========  =====================================

It knows nothing of rewards. What it earns is what any learner has to beat.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import optax
from pydantic import Field

from moose.config import Settings
from moose.data.dataset import Dataset
from moose.models.actor import Actor, choose_action, init_actor, input_scale
from moose.models.networks import Network
from moose.models.supervised import TransitionTable, make_table, windows_of
from moose.progress import SILENT, Progress
from moose.tasks.task import Task, to_box
from moose.training import (
    FORGETFUL,
    Journal,
    Metrics,
    Observer,
    Update,
    chunk_size,
    init_optimiser,
    per_seed,
    repeat_update,
    split_keys,
)
from moose.types import Key


class Config(Settings):
    """All settings of behaviour cloning."""

    hidden: tuple[int, ...] = (400, 300)
    """Widths of the policy's hidden layers."""
    inputs: Literal["standardised", "raw"] = "standardised"
    """What the policy sees: standardised states, or raw ones as the rivals' original code."""
    updates: int = Field(default=10_000, ge=1)
    """Gradient steps."""
    batch_size: int = Field(default=100, ge=1)
    """Transitions per gradient step."""
    learning_rate: float = Field(default=1e-3, gt=0)
    """Step size of Adam."""
    checks: int = Field(default=100, ge=1)
    """How often, evenly spread, the state is kept and the policy shown to an observer."""


PRESETS: Mapping[str, Mapping[str, Any]] = MappingProxyType(
    {
        # The rivals' figures for the Industrial Benchmark: the defaults above.
        "paper": {},
        "paper-mujoco": {"inputs": "raw", "updates": 100_000},
        "quick": {"hidden": [64, 64], "updates": 2000},
    }
)


class Fitted(NamedTuple):
    """What a fit leaves behind."""

    actor: Actor


class State(NamedTuple):
    """What an update changes."""

    actor: Actor
    optimiser: optax.OptState


def fit(
    dataset: Dataset,
    task: Task,
    config: Config,
    key: Key,
    *,
    progress: Progress = SILENT,
    journal: Journal = FORGETFUL,
    observe: Observer[Actor] | None = None,
) -> Fitted:
    """Fit a policy to the logged actions.

    Args:
        dataset: The log.
        task: What is known about the plant.
        config: All settings.
        key: One key, or one for each of several seeds.
        progress: Whom to tell.
        journal: Where checkpoints and metrics go.
        observe: Called with the number of updates done and the policy; cannot change it.

    Returns:
        The policy.
    """
    task.require(dataset)
    init_key, update_key = split_keys(key, 2)
    scale = input_scale(dataset, config.inputs)
    actor = per_seed(lambda one: init_actor(task, scale, config.hidden, one), init_key)
    optimiser = optax.adam(config.learning_rate)
    is_seeded = bool(key.ndim)
    state = repeat_update(
        "policy",
        make_update(task, config, optimiser),
        State(actor, init_optimiser(optimiser, actor.network, is_seeded=is_seeded)),
        update_key,
        make_table(dataset),
        total=config.updates,
        chunk=chunk_size(config.updates, config.checks),
        is_seeded=is_seeded,
        progress=progress,
        journal=journal,
        observe=None if observe is None else lambda step, state: observe(step, state.actor),
    )
    return Fitted(state.actor)


def make_update(
    task: Task, config: Config, optimiser: optax.GradientTransformation
) -> Update[State, Key, TransitionTable]:
    """One step of gradient descent on a random batch."""

    def update(
        state: State, key: Key, table: TransitionTable, step: jax.Array
    ) -> tuple[State, Metrics]:
        count = len(table.actions)
        chosen = jax.random.randint(
            jax.random.fold_in(key, step), (config.batch_size,), 0, count, jnp.int32
        )

        def loss(network: Network) -> jax.Array:
            return cloning_loss(state.actor._replace(network=network), table, task, chosen)

        value, gradients = jax.value_and_grad(loss)(state.actor.network)
        changes, optimiser_state = optimiser.update(gradients, state.optimiser)
        network = optax.apply_updates(state.actor.network, changes)
        return State(state.actor._replace(network=network), optimiser_state), {"loss": value}

    return update


def cloning_loss(actor: Actor, table: TransitionTable, task: Task, chosen: jax.Array) -> jax.Array:
    """L(θ) = mean ‖π_θ(s) − a‖² over the chosen transitions [B], actions in [−1, 1]^d."""
    windows = windows_of(table, chosen, task.history)
    actions = jax.vmap(lambda window: choose_action(actor, task, window))(windows)
    errors = to_box(actions, task) - to_box(table.actions[chosen], task)
    return jnp.mean(errors**2)
