"""Fitting networks to the transitions of a data set: epochs, shuffling, Adam, nothing else."""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, NamedTuple, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
import optax
from pydantic import Field

from moose.config import Settings
from moose.data.dataset import Dataset
from moose.data.windows import gather_windows
from moose.progress import SILENT, Progress
from moose.training import (
    FORGETFUL,
    Journal,
    Metrics,
    init_optimiser,
    repeat_update,
    shared_out,
)
from moose.types import Key

ParamsT = TypeVar("ParamsT")
ScalesT = TypeVar("ScalesT")


class FitSettings(Settings):
    """How a network is fitted."""

    epochs: int = Field(default=50, ge=1)
    """Passes over the training transitions."""
    batch_size: int = Field(default=500, ge=1)
    """Transitions per gradient step."""
    learning_rate: float = Field(default=1e-4, gt=0)
    """Step size of Adam."""


class TransitionTable(NamedTuple):
    """A data set on the device, and which of its transitions to learn from."""

    observations: jax.Array
    """[N + E, n]"""
    actions: jax.Array
    """[N, d]"""
    rewards: jax.Array
    """[N]"""
    rows: jax.Array
    """[N] row of each transition's observation"""
    first_rows: jax.Array
    """[N] row of its episode's first observation"""
    transitions: jax.Array
    """[M] the transitions with a known successor"""


class Segments(NamedTuple):
    """N stretches of a log, H steps each, raw units."""

    windows: jax.Array
    """[N, F, n]: the history windows they begin with, newest frame first"""
    actions: jax.Array
    """[H, N, d]: what was done"""
    frames: jax.Array
    """[H, N, n]: what came of it"""
    rewards: jax.Array
    """[H, N]"""


class FitInputs(NamedTuple, Generic[ScalesT]):
    """What a loss sees besides the parameters."""

    table: TransitionTable
    scales: ScalesT


Loss = Callable[[ParamsT, FitInputs[ScalesT], jax.Array, Key], jax.Array]
"""``loss(params, inputs, chosen, key)``: ``chosen`` are transitions, [B], or [K, B] for an ensemble
whose members are shuffled apart."""


def make_table(dataset: Dataset) -> TransitionTable:
    """Copy a data set to the device once; windows are gathered there by index."""
    return TransitionTable(
        observations=jax.device_put(dataset.observations),
        actions=jax.device_put(dataset.actions),
        rewards=jax.device_put(dataset.rewards),
        rows=jax.device_put(dataset.observation_rows),
        first_rows=jax.device_put(dataset.first_rows),
        transitions=jax.device_put(np.flatnonzero(dataset.has_successor).astype(np.int32)),
    )


def windows_of(table: TransitionTable, chosen: jax.Array, history: int) -> jax.Array:
    """History windows [B, F, n] at the chosen transitions [B]."""
    return gather_windows(table.observations, table.rows[chosen], table.first_rows[chosen], history)


def adjoining_windows(
    table: TransitionTable, chosen: jax.Array, history: int
) -> tuple[jax.Array, jax.Array]:
    """History windows [B, F, n] before and after the chosen transitions [B], gathered once."""
    rows = table.rows[chosen] + 1
    frames = gather_windows(table.observations, rows, table.first_rows[chosen], history + 1)
    return frames[:, 1:], frames[:, :-1]


def successors_of(table: TransitionTable, chosen: jax.Array) -> jax.Array:
    """The frames [B, n] that followed the chosen transitions [B]."""
    return table.observations[table.rows[chosen] + 1]


def segments_of(
    table: TransitionTable,
    chosen: jax.Array,
    history: int,
    horizon: int,
    lengths: jax.Array | None = None,
) -> Segments:
    """The stretches that begin at the chosen transitions.

    Args:
        table: The log.
        chosen: ``[N]`` transitions.
        history: F.
        horizon: H.
        lengths: ``[N]`` how many steps are known from each of them on, at least one; the last one
            is repeated beyond. By default all H are.

    Returns:
        The stretches.
    """
    ahead = jnp.arange(horizon, dtype=jnp.int32)[:, None]
    if lengths is not None:
        ahead = jnp.minimum(ahead, lengths[None] - 1)
    return Segments(
        windows_of(table, chosen, history),
        table.actions[chosen[None] + ahead],
        table.observations[table.rows[chosen][None] + 1 + ahead],
        table.rewards[chosen[None] + ahead],
    )


def fit_epochs(
    stage: str,
    loss: Loss[ParamsT, ScalesT],
    params: ParamsT,
    inputs: FitInputs[ScalesT],
    settings: FitSettings,
    key: Key,
    *,
    members: int | None = None,
    progress: Progress = SILENT,
    journal: Journal = FORGETFUL,
) -> ParamsT:
    """Minimise a loss over all transitions for a number of epochs.

    Args:
        stage: Name in progress and metrics.
        loss: The loss of one batch; an ensemble's is the sum over its members.
        params: Initial parameters.
        inputs: The data.
        settings: Epochs, batch size, step size.
        key: One key, or one for each of several seeds.
        members: For an ensemble, how many members are shuffled apart.
        progress: Whom to tell.
        journal: Where checkpoints and metrics go.

    Returns:
        The parameters after the last epoch.
    """
    count = len(inputs.table.transitions)
    batch_size = min(settings.batch_size, count)
    num_batches = count // batch_size
    optimiser = optax.adam(settings.learning_rate)

    def shuffled(key: Key, transitions: jax.Array) -> jax.Array:
        order = jax.random.permutation(key, transitions)
        return order[: num_batches * batch_size].reshape(num_batches, batch_size)

    def run_epoch(
        state: tuple[ParamsT, optax.OptState],
        key: Key,
        inputs: FitInputs[ScalesT],
        epoch: jax.Array,
    ) -> tuple[tuple[ParamsT, optax.OptState], Metrics]:
        order_key, loss_key = jax.random.split(jax.random.fold_in(key, epoch))
        if members is None:
            batches = shuffled(order_key, inputs.table.transitions)
        else:
            keys = jax.random.split(order_key, members)
            batches = jax.vmap(shuffled, (0, None), 1)(keys, inputs.table.transitions)

        def run_batch(
            state: tuple[ParamsT, optax.OptState], batch: tuple[jax.Array, jax.Array]
        ) -> tuple[tuple[ParamsT, optax.OptState], jax.Array]:
            params, optimiser_state = state
            index, chosen = batch
            # Where there are several devices, each has some of the members, or a part of the batch.
            params = params if members is None else shared_out(params)
            value, gradients = jax.value_and_grad(loss)(
                params, inputs, shared_out(chosen), jax.random.fold_in(loss_key, index)
            )
            updates, optimiser_state = optimiser.update(gradients, optimiser_state)
            return (optax.apply_updates(params, updates), optimiser_state), value

        state, losses = jax.lax.scan(run_batch, state, (jnp.arange(num_batches), batches))
        return state, {"loss": jnp.mean(losses) / (members or 1)}

    is_seeded = bool(key.ndim)
    params, _ = repeat_update(
        stage,
        run_epoch,
        (params, init_optimiser(optimiser, params, is_seeded=is_seeded)),
        key,
        inputs,
        total=settings.epochs,
        chunk=1,
        is_seeded=is_seeded,
        progress=progress,
        journal=journal,
    )
    return params
