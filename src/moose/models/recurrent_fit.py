"""Training recurrent dynamics models to run freely.

The loss is the squared error of a free run of many steps along logged actions, and a share of the
one-step errors in the warm-up. Members are validated on episodes set apart, and each keeps the
weights that ran best there.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from moose.data.dataset import Dataset
from moose.data.draws import Draw, draw_steps, draw_within
from moose.data.split import cut_episodes, split_episodes
from moose.errors import DataError
from moose.models.networks import on_device
from moose.models.recurrent import (
    RecurrentEnsemble,
    RecurrentMembers,
    RecurrentModel,
    RecurrentSettings,
    init_recurrent,
)
from moose.models.recurrent_scales import RecurrentScales
from moose.models.supervised import Segments, TransitionTable, make_table, segments_of
from moose.progress import SILENT, Progress
from moose.tasks.task import Task
from moose.training import (
    FORGETFUL,
    Journal,
    Metrics,
    Update,
    falling_rate,
    repeat_update,
    split_keys,
)
from moose.types import Key

_BLOCKS = 10
"""Episodes, or blocks of time, that there have to be before some are set apart."""


class _Runs(NamedTuple):
    """B stretches of a log to run along."""

    segments: Segments
    lengths: jax.Array
    """[B] how many of their steps are known"""


class _Log(NamedTuple):
    table: TransitionTable
    remaining: jax.Array
    """[N] how many steps are known from each transition on"""
    draw: Draw


class _Inputs(NamedTuple):
    training: _Log
    validation: _Runs
    scales: RecurrentScales


class _State(NamedTuple):
    members: RecurrentMembers
    optimiser: optax.OptState
    best: RecurrentMembers
    least: jax.Array
    """[K] the least validation error of each member so far"""


def fit_recurrent(
    dataset: Dataset,
    task: Task,
    num_members: int,
    settings: RecurrentSettings,
    key: Key,
    *,
    progress: Progress = SILENT,
    journal: Journal = FORGETFUL,
) -> RecurrentEnsemble:
    """Train the ensemble on free runs along ``dataset``.

    Args:
        dataset: The training episodes.
        task: What is known about the plant.
        num_members: K.
        settings: Sizes and training.
        key: One key, or one for each of several seeds (members then have a leading axis).
        progress: Whom to tell.
        journal: Where checkpoints and metrics go.

    Returns:
        The fitted ensemble.
    """
    untrained = init_recurrent(dataset, task, num_members, settings, key)
    _, train_key = split_keys(key, 2)
    training, validation = _set_apart(dataset, settings)
    horizon = min(settings.horizon, int(_known_steps(training).max()))
    log, other = _make_log(training, horizon), _make_log(validation, horizon)
    chosen = draw_steps(other.draw, settings.held_out_runs, settings.early_share, jax.random.key(0))
    runs = jax.jit(lambda steps: _runs_at(other, steps, task.history, horizon))(chosen)
    is_seeded = bool(key.ndim)
    per_round = -(-settings.updates // settings.rounds)
    optimiser = optax.chain(
        optax.clip_by_global_norm(settings.gradient_clip),
        optax.adam(falling_rate(settings.learning_rate, settings.updates)),
    )
    init = jax.vmap(optimiser.init)
    seeds = (len(key),) if is_seeded else ()
    state = repeat_update(
        "models",
        _make_round(task, settings, optimiser, num_members, horizon, per_round),
        _State(
            untrained.members,
            jax.jit(jax.vmap(init) if is_seeded else init)(untrained.members),
            untrained.members,
            on_device(np.full((*seeds, num_members), np.inf, np.float32)),
        ),
        train_key,
        _Inputs(log, runs, untrained.scales),
        total=-(-settings.updates // per_round),
        chunk=1,
        is_seeded=is_seeded,
        progress=progress,
        journal=journal,
    )
    return untrained._replace(members=state.best)


def _make_round(
    task: Task,
    settings: RecurrentSettings,
    optimiser: optax.GradientTransformation,
    num_members: int,
    horizon: int,
    per_round: int,
) -> Update[_State, Key, _Inputs]:
    """Some steps of gradient descent for every member, and a validation."""

    def train(
        member: RecurrentMembers, state: optax.OptState, inputs: _Inputs, key: Key
    ) -> tuple[RecurrentMembers, optax.OptState, jax.Array]:
        log, model = inputs.training, RecurrentModel(task, inputs.scales)
        steps = draw_steps(log.draw, settings.batch_size, settings.early_share, key)
        runs = _runs_at(log, steps, task.history, horizon)

        def loss(member: RecurrentMembers) -> jax.Array:
            free, warm_up = _squared_errors(member, model, runs)
            return free + settings.warm_up_weight * warm_up

        value, gradients = jax.value_and_grad(loss)(member)
        changes, state = optimiser.update(gradients, state)
        return optax.apply_updates(member, changes), state, value

    def validate(member: RecurrentMembers, inputs: _Inputs) -> jax.Array:
        model = RecurrentModel(task, inputs.scales)
        return _squared_errors(member, model, inputs.validation)[0]

    def run_round(
        state: _State, key: Key, inputs: _Inputs, number: jax.Array
    ) -> tuple[_State, Metrics]:
        def step(
            carry: tuple[RecurrentMembers, optax.OptState], step: jax.Array
        ) -> tuple[tuple[RecurrentMembers, optax.OptState], jax.Array]:
            keys = jax.random.split(jax.random.fold_in(key, step), num_members)
            members, optimisers, losses = jax.vmap(train, (0, 0, None, 0))(*carry, inputs, keys)
            return (members, optimisers), losses

        steps = number * per_round + jnp.arange(per_round)
        (members, optimisers), losses = jax.lax.scan(step, (state.members, state.optimiser), steps)
        errors = jax.vmap(validate, (0, None))(members, inputs)
        is_better = errors < state.least
        best = jax.tree.map(
            lambda new, old: jnp.where(is_better.reshape(-1, *(1,) * (new.ndim - 1)), new, old),
            members,
            state.best,
        )
        least = jnp.minimum(errors, state.least)
        return _State(members, optimisers, best, least), {
            "loss": jnp.mean(losses),
            "validation": jnp.mean(errors),
            "best_validation": jnp.mean(least),
        }

    return run_round


def _squared_errors(
    member: RecurrentMembers, model: RecurrentModel, runs: _Runs
) -> tuple[jax.Array, jax.Array]:
    """Mean squared errors of free runs, with the reward's where it is learned; of the warm-up."""
    free, warm_up = model.run_errors(member, runs.segments)
    is_known = jnp.arange(len(free))[:, None] < runs.lengths[None]
    error = _mean_square(free, is_known)
    if member.reward is not None:
        rewards = jax.vmap(
            lambda *parts: model.reward_errors(member, Segments(*parts)), (0, 1, 1, 1), 1
        )(*runs.segments)
        error = error + _mean_square(rewards[..., None], is_known)
    return error, _mean_square(warm_up, jnp.ones(warm_up.shape[:2], jnp.bool_))


def _mean_square(errors: jax.Array, is_counted: jax.Array) -> jax.Array:
    """The mean of squares [T, B, C] at the places [T, B] that count; 0 where there are none."""
    count = jnp.maximum(jnp.sum(is_counted), 1).astype(errors.dtype) * errors.shape[-1]
    return jnp.sum(jnp.where(is_counted[..., None], errors, 0.0) ** 2) / count


def _runs_at(log: _Log, steps: jax.Array, history: int, horizon: int) -> _Runs:
    lengths = jnp.minimum(log.remaining[steps], horizon)
    return _Runs(segments_of(log.table, steps, history, horizon, lengths), lengths)


def _set_apart(dataset: Dataset, settings: RecurrentSettings) -> tuple[Dataset, Dataset]:
    """Episodes, or blocks of time where there are too few, to train on and to validate on."""
    if dataset.num_transitions > 1:
        cut = cut_episodes(dataset, min(_BLOCKS, dataset.num_transitions))
        train, other = split_episodes(cut.num_episodes, settings.held_out, 0)
        training, validation = cut.select_episodes(train), cut.select_episodes(other)
        if training.has_successor.any() and validation.has_successor.any():
            return training, validation
    raise DataError(
        f"Of {dataset.num_transitions} transitions none can be set apart to validate models on.",
        where="recurrent models",
        advice="add more of the log, or use --set dynamics.kind=stacked",
    )


def _make_log(dataset: Dataset, horizon: int) -> _Log:
    """A log from which runs are drawn that are known in full, or begin in a short episode."""
    known = _known_steps(dataset)
    episodes = np.repeat(np.arange(dataset.num_episodes), dataset.lengths)
    remaining = (dataset.offsets[:-1] + known)[episodes] - np.arange(dataset.num_transitions)
    longest = np.minimum(known, horizon)[episodes]
    is_start = (remaining >= longest) | (longest < horizon)
    steps = np.flatnonzero(is_start & (remaining > 0))
    return _Log(
        make_table(dataset),
        on_device(remaining.astype(np.int32)),
        draw_within(dataset, steps),
    )


def _known_steps(dataset: Dataset) -> np.ndarray:
    """[E] transitions of each episode that have a known successor."""
    return dataset.lengths - ~dataset.final_observed
