"""An ensemble of dynamics models on stacked frames.

Each of the K members maps a standardised history window and action to the standardised next value
(or change) of the signals that the task does not know. Members see the same training episodes and
differ in initialisation and shuffling only; they are trained together, as one compiled program.

A fitted ensemble is rolled through a :class:`StackedModel`, one member at a time under ``vmap``. A
model of another kind has another carry and the same functions; :mod:`moose.models.ensembles` is the
door to all kinds.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import jax
import jax.numpy as jnp
from pydantic import Field

from moose.data.dataset import Dataset
from moose.data.normalize import Statistics, clip_to_range, measure, restore, standardise
from moose.models.networks import (
    Network,
    NormedNetwork,
    apply_network,
    init_network,
    normed,
    plain,
)
from moose.models.supervised import (
    FitInputs,
    FitSettings,
    fit_epochs,
    make_table,
    successors_of,
    windows_of,
)
from moose.progress import SILENT, Progress
from moose.tasks.task import Task
from moose.training import FORGETFUL, Journal, per_seed, split_keys
from moose.types import Key


class StackedSettings(FitSettings):
    """How the ensemble is built and trained."""

    members: int = Field(default=4, ge=1)
    """Number of models K."""
    hidden: tuple[int, ...] = (400, 300)
    """Widths of the hidden layers."""


class Scales(NamedTuple):
    """Statistics of the training data that the models live in."""

    frame: Statistics
    action: Statistics
    target: Statistics
    """Of the predicted signals' next values, or of their changes for delta targets."""
    predicted: Statistics
    """Of the predicted signals themselves; predictions are clipped to this range."""
    reward: Statistics


class Members(NamedTuple):
    """K networks stacked along the first axis."""

    dynamics: NormedNetwork
    reward: NormedNetwork | None
    """On (state, action, next frame), where the task does not know the reward."""


class Ensemble(NamedTuple):
    """A fitted ensemble."""

    members: Members
    scales: Scales


class ReadyMember(NamedTuple):
    """A member whose weights are normalised, ready to roll."""

    dynamics: Network
    reward: Network | None


def fit_stacked(
    dataset: Dataset,
    task: Task,
    settings: StackedSettings,
    key: Key,
    *,
    progress: Progress = SILENT,
    journal: Journal = FORGETFUL,
) -> Ensemble:
    """Train the ensemble on every transition of ``dataset`` that has a known successor.

    Args:
        dataset: The training episodes.
        task: What is known about the plant.
        settings: Sizes and training.
        key: One key, or one for each of several seeds (members then have a leading axis).
        progress: Whom to tell.
        journal: Where checkpoints and metrics go.

    Returns:
        The fitted ensemble.
    """
    untrained = init_stacked(dataset, task, settings, key)
    _, train_key = split_keys(key, 2)

    def loss(members: Members, inputs: FitInputs[Scales], chosen: jax.Array, key: Key) -> jax.Array:
        return jnp.sum(jax.vmap(_member_loss, (0, None, 0, None))(members, inputs, chosen, task))

    members = fit_epochs(
        "models",
        loss,
        untrained.members,
        FitInputs(make_table(dataset), untrained.scales),
        settings,
        train_key,
        members=settings.members,
        progress=progress,
        journal=journal,
    )
    return untrained._replace(members=members)


def init_stacked(dataset: Dataset, task: Task, settings: StackedSettings, key: Key) -> Ensemble:
    """The ensemble before training; see :func:`fit_stacked`."""
    init_key, _ = split_keys(key, 2)
    members = per_seed(lambda one: init_members(task, settings, one), init_key)
    return Ensemble(members, measure_scales(dataset, task))


def measure_scales(dataset: Dataset, task: Task) -> Scales:
    """Statistics of the training data; constant columns get deviation 1."""
    values = dataset.observations[dataset.is_observed][:, list(task.predicted)]
    successors = dataset.observation_rows[dataset.has_successor] + 1
    targets = dataset.observations[successors][:, list(task.predicted)]
    if task.target == "delta":
        targets = targets - dataset.observations[successors - 1][:, list(task.predicted)]
    return Scales(
        frame=measure(dataset.observations[dataset.is_observed]),
        action=measure(dataset.actions),
        target=measure(targets),
        predicted=measure(values),
        reward=measure(dataset.rewards),
    )


def init_members(task: Task, settings: StackedSettings, key: Key) -> Members:
    """Untrained members of the right shapes."""
    num_frame, num_action = len(task.observation_names), len(task.action_names)
    num_inputs = task.history * num_frame + num_action
    sizes = (num_inputs, *settings.hidden, len(task.predicted))
    reward_sizes = (num_inputs + num_frame, *settings.hidden, 1)

    def init_plain(key: Key) -> ReadyMember:
        dynamics_key, reward_key = jax.random.split(key)
        return ReadyMember(
            init_network(dynamics_key, sizes),
            init_network(reward_key, reward_sizes) if task.reward is None else None,
        )

    members = per_seed(init_plain, jax.random.split(key, settings.members))
    return Members(
        jax.vmap(normed)(members.dynamics),
        None if members.reward is None else jax.vmap(normed)(members.reward),
    )


def ready_stacked(members: Members) -> ReadyMember:
    """All members with their weights normalised once; map over the first axis."""
    return ReadyMember(
        jax.vmap(plain)(members.dynamics),
        None if members.reward is None else jax.vmap(plain)(members.reward),
    )


@dataclass(frozen=True)
class StackedModel:
    """How a member is rolled: the carry is the raw history window.

    Attributes:
        task: Physics, reward and kind of target.
        scales: The data's statistics.
    """

    task: Task
    scales: Scales

    def start(self, member: ReadyMember, window: jax.Array) -> jax.Array:
        """The carry after having seen ``window [F, n]``: the window itself."""
        return window

    def step(
        self, member: ReadyMember, carry: jax.Array, action: jax.Array
    ) -> tuple[jax.Array, jax.Array]:
        """One imagined step of one member.

        Args:
            member: The member.
            carry: Raw window [F, n].
            action: Raw action [d].

        Returns:
            The next carry, and the next frame [n]: raw, predictions clipped to the data's range.
        """
        output = apply_network(member.dynamics, model_inputs(self.scales, carry, action))
        predicted = restore(output, self.scales.target)
        if self.task.target == "delta":
            predicted = predicted + carry[0, jnp.asarray(self.task.predicted)]
        predicted = clip_to_range(predicted, self.scales.predicted)
        frame = self.task.physics(carry[0], action, predicted)
        return jnp.concatenate([frame[None], carry[:-1]]), frame

    def reward(
        self, member: ReadyMember, window: jax.Array, action: jax.Array, frame: jax.Array
    ) -> jax.Array:
        """The known reward, or the member's learned one clipped to the data's range; a scalar."""
        if self.task.reward is not None:
            return self.task.reward(window[0], action, frame)
        assert member.reward is not None  # noqa: S101 (init_members made it)
        output = apply_network(member.reward, reward_inputs(self.scales, window, action, frame))[0]
        return clip_to_range(restore(output, self.scales.reward), self.scales.reward)


def model_inputs(scales: Scales, window: jax.Array, action: jax.Array) -> jax.Array:
    """Standardised window [F, n] and action [d] as one vector."""
    return jnp.concatenate(
        [standardise(window, scales.frame).reshape(-1), standardise(action, scales.action)]
    )


def reward_inputs(
    scales: Scales, window: jax.Array, action: jax.Array, frame: jax.Array
) -> jax.Array:
    """Standardised (state, action, next frame) as one vector."""
    return jnp.concatenate([model_inputs(scales, window, action), standardise(frame, scales.frame)])


def _member_loss(
    member: Members, inputs: FitInputs[Scales], chosen: jax.Array, task: Task
) -> jax.Array:
    """Mean squared error in standardised units, of signals and (where learned) of the reward."""
    table, scales = inputs
    windows = windows_of(table, chosen, task.history)
    actions, frames = table.actions[chosen], successors_of(table, chosen)
    columns = jnp.asarray(task.predicted)
    targets = frames[:, columns]
    if task.target == "delta":
        targets = targets - windows[:, 0, columns]
    features = jax.vmap(model_inputs, (None, 0, 0))(scales, windows, actions)
    outputs = apply_network(plain(member.dynamics), features)
    errors = outputs - jax.vmap(standardise, (0, None))(targets, scales.target)
    loss = jnp.mean(errors**2)
    if member.reward is not None:
        reward_features = jax.vmap(reward_inputs, (None, 0, 0, 0))(scales, windows, actions, frames)
        rewards = apply_network(plain(member.reward), reward_features)[:, 0]
        reward_errors = rewards - jax.vmap(standardise, (0, None))(
            table.rewards[chosen], scales.reward
        )
        loss = loss + jnp.mean(reward_errors**2)
    return loss
