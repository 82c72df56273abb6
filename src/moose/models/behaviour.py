"""A clone of what a log did, for those who search beside it.

b minimises the mean of ‖b(s) − a‖² over the log, with actions in the box [−1, 1]^d; a share of the
transitions is drawn from early in an episode.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import optax
from pydantic import Field

from moose.config import Settings
from moose.data.dataset import Dataset
from moose.data.draws import Draw, draw_steps, draw_within
from moose.data.normalize import Statistics, measure, standardise
from moose.models.actor import num_features
from moose.models.networks import Network, apply_network, init_network
from moose.models.supervised import TransitionTable, make_table, windows_of
from moose.progress import SILENT, Progress
from moose.tasks.task import Task, to_box
from moose.training import (
    FORGETFUL,
    Journal,
    Learner,
    Metrics,
    chunk_size,
    descend,
    falling_rate,
    init_learner,
    per_seed,
    repeat_update,
    split_keys,
)
from moose.types import Key


class BehaviourSettings(Settings):
    """How the log's behaviour is cloned."""

    hidden: tuple[int, ...] = (64, 64)
    """Widths of the hidden layers."""
    updates: int = Field(default=3000, ge=1)
    """Gradient steps."""
    batch_size: int = Field(default=256, ge=1)
    """Transitions per gradient step."""
    learning_rate: float = Field(default=1e-3, gt=0)
    """First step size of Adam, from which it falls to 0 along a cosine."""
    early_share: float = Field(default=0.5, ge=0, le=1)
    """Share of the transitions from early in an episode: every doubling of age as likely."""
    checks: int = Field(default=10, ge=1)
    """How often, evenly spread, the state is kept."""


def fit_behaviour(
    training: Dataset,
    task: Task,
    settings: BehaviourSettings,
    frame: Statistics,
    key: Key,
    *,
    progress: Progress = SILENT,
    journal: Journal = FORGETFUL,
) -> Network:
    """Clone what the log did.

    Args:
        training: The training episodes.
        task: What is known about the plant.
        settings: Sizes and training.
        frame: The scale of its inputs, from :func:`measure_drawn`.
        key: One key, or one for each of several seeds.
        progress: Whom to tell.
        journal: Where checkpoints and metrics go.

    Returns:
        The network b, for :func:`behaviour_action`.
    """
    init_key, update_key = split_keys(key, 2)
    sizes = (num_features(task), *settings.hidden, len(task.action_names))
    network = per_seed(lambda one: init_network(one, sizes), init_key)
    optimiser = optax.adam(falling_rate(settings.learning_rate, settings.updates))
    is_seeded = bool(key.ndim)

    def update(
        learner: Learner[Network],
        key: Key,
        log: tuple[TransitionTable, Draw, Statistics],
        step: jax.Array,
    ) -> tuple[Learner[Network], Metrics]:
        table, draw, frame = log
        key = jax.random.fold_in(key, step)
        chosen = draw_steps(draw, settings.batch_size, settings.early_share, key)
        windows, actions = windows_of(table, chosen, task.history), table.actions[chosen]

        def loss(network: Network) -> tuple[jax.Array, Metrics]:
            chosen = jax.vmap(lambda window: behaviour_action(network, frame, window))(windows)
            value = jnp.mean((chosen - jax.vmap(lambda a: to_box(a, task))(actions)) ** 2)
            return value, {"loss": value}

        return descend(learner, optimiser, loss)

    learner = repeat_update(
        "behaviour",
        update,
        init_learner(network, optimiser, is_seeded=is_seeded),
        update_key,
        (make_table(training), draw_within(training), frame),
        total=settings.updates,
        chunk=chunk_size(settings.updates, settings.checks),
        is_seeded=is_seeded,
        progress=progress,
        journal=journal,
    )
    return learner.params


def behaviour_action(network: Network, scale: Statistics, window: jax.Array) -> jax.Array:
    """b(s) in the box [−1, 1]^d, for a raw window [F, n]."""
    return jnp.tanh(apply_network(network, standardise(window, scale).reshape(-1)))


def measure_drawn(training: Dataset, early_share: float) -> Statistics:
    """Statistics of frames as they are drawn for the behaviour."""
    count = max(20_000, training.num_transitions // 10)
    steps = draw_steps(draw_within(training), count, early_share, jax.random.key(0))
    drawn = measure(training.observations[training.observation_rows[np.asarray(steps)]])
    whole = measure(training.observations[training.is_observed])
    return Statistics(drawn.mean, drawn.deviation, whole.minimum, whole.maximum)
