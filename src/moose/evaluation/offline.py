"""What can be said of a policy without its plant.

A policy is imagined in models that were fitted for this purpose and did not take part in its
training, from states of episodes that those models have not seen. Beside it stand rivals in the
same models from the same states: the cloned behaviour, holding still, and the log's own actions
followed once more. Every number is a comparison with the log itself:

* models: how far they stray when they follow logged actions, and how much of what stretches of the
  log earned they can tell;
* gain: the policy's return less a rival's, paired by start state and model;
* novelty: how far imagined situations are from the log, as the share of the log's own situations
  that are nearer to it;
* actions: how often they are at their bounds.

Models that agree may still be wrong together where the log has never been. Novelty is therefore
measured apart from them, and a return above everything the log has seen is a warning, not a
success. :mod:`moose.evaluation.verdict` turns the numbers into a verdict.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import numpy.typing as npt
from pydantic import Field

from moose.config import Settings
from moose.data.dataset import Dataset
from moose.evaluation.protocol import discounted_sum
from moose.evaluation.statistics import CONFIDENCE, Interval, paired_interval
from moose.models.accuracy import (
    ModelErrors,
    model_errors,
    reached_horizon,
    segment_starts,
    segments_at,
)
from moose.models.ensembles import AnyEnsemble, AnyReadyMembers, AnyScales, make_model, ready
from moose.models.rollout import Imagined, Policy, follow, imagine, states_of
from moose.models.supervised import Segments
from moose.models.support import (
    Support,
    SupportSettings,
    errors_of_pairs,
    frames_seen,
    reconstruction_error,
    support_inputs,
)
from moose.tasks.task import Task, to_box
from moose.types import Key

POLICY, CLONE, HOLD, LOG = "policy", "clone", "hold", "log"
"""The controllers of a judgement; ``log`` follows the logged actions in the models."""

SPREAD = (0.1, 0.5, 0.9)
"""Quantiles that describe many trajectories at one step."""
_AT_BOUND = 0.99
"""An action at least this far from the middle of its range is at its bound."""
NEW = 0.99
"""A situation further from the log than this share of the log's own is called new."""
_SITUATIONS = 6

Numbers = npt.NDArray[np.float64]


class ComparisonSettings(Settings):
    """Where imagined trajectories begin, and how many there are."""

    starts: Literal["first", "early", "any"] = "early"
    """Begin in an episode's first state, in one of as many first states as a history has, or in
    any state."""
    num_starts: int = Field(default=100, ge=2)
    """Start states for each group of models."""
    horizon: int | None = Field(default=None, ge=1)
    """Steps of a trajectory; the task's by default, less where no episode is that long."""


class Witness(NamedTuple):
    """Models that have not seen some episodes, and these episodes."""

    ensemble: AnyEnsemble
    support: Support
    held_out: Dataset


class Gain(NamedTuple):
    """How much more the policy is imagined to earn than a rival."""

    mean: float
    interval: Interval


class Bundle(NamedTuple):
    """Many trajectories at every step: quantiles :data:`SPREAD`, raw units."""

    frames: Numbers
    """[3, H + 1, n], the start first"""
    actions: Numbers
    """[3, H, d]"""


@dataclass(frozen=True)
class Performance:
    """One controller in all models (W witnesses, K models each, N start states each).

    Attributes:
        returns: ``[W, K, N]`` imagined returns.
        novelty: ``[H, W, K, N]`` share of the log's own situations that are more familiar.
        at_bounds: ``[d]`` share of the steps in which an action is at its bound.
        bundle: The trajectories.
    """

    returns: Numbers
    novelty: Numbers
    at_bounds: Numbers
    bundle: Bundle


class Situation(NamedTuple):
    """An imagined situation: the newest frame, the action chosen in it, and how new it is."""

    step: int
    novelty: float
    excess: float
    """Its distance from the log, in units of the 99 % quantile of the log's own."""
    frame: Numbers
    action: Numbers


@dataclass(frozen=True)
class OfflineJudgement:
    """All that was measured.

    Attributes:
        horizon: Steps of a trajectory.
        discount: γ of the returns.
        errors: Of the models along logged actions, mean over the witnesses.
        stretch_returns: ``[2, W·N]`` what stretches of the log were imagined to earn (mean over
            models), and what they did earn.
        performances: By controller.
        gains: Of the policy over each of the others.
        logged: The log from the same start states.
        logged_at_bounds: ``[d]`` how often the log's actions are at their bounds.
        situations: The policy's newest ones.
        ended: Share of the held-out episodes that the plant itself ended.
    """

    horizon: int
    discount: float
    errors: ModelErrors
    stretch_returns: Numbers
    performances: Mapping[str, Performance]
    gains: Mapping[str, Gain]
    logged: Bundle
    logged_at_bounds: Numbers
    situations: tuple[Situation, ...]
    ended: float = 0.0

    @property
    def explained(self) -> float:
        """Share of the variance of the stretches' returns that the models tell; may be negative."""
        return share_explained(self.stretch_returns)

    @property
    def bias(self) -> float:
        """How much more the models promise for the log's own actions than these have earned."""
        return mean_bias(self.stretch_returns)


def share_explained(stretch_returns: Numbers) -> float:
    """Of returns ``[2, N]``, imagined and logged: the share of variance told; may be negative."""
    imagined, logged = stretch_returns
    variance = float(logged.var())
    return 1.0 - float(((imagined - logged) ** 2).mean()) / variance if variance > 0 else 0.0


def mean_bias(stretch_returns: Numbers) -> float:
    """Of the same: how much more was imagined than logged."""
    imagined, logged = stretch_returns
    return float((imagined - logged).mean())


def judge(
    policy: Policy,
    rivals: Mapping[str, Policy],
    witnesses: Sequence[Witness],
    task: Task,
    support: SupportSettings,
    settings: ComparisonSettings,
    key: Key,
) -> OfflineJudgement:
    """Imagine a policy and its rivals in models that the policy was not trained on.

    Args:
        policy: The policy.
        rivals: Other controllers by name.
        witnesses: Models and the episodes they have not seen.
        task: What is known about the plant.
        support: The settings that the witnesses' support models were fitted with.
        settings: Where trajectories begin, and how many there are.
        key: Which start states.

    Returns:
        What was measured.
    """
    held_out = [witness.held_out for witness in witnesses]
    horizon = common_horizon(held_out, task, settings)
    chosen = draw_starts(held_out, task, settings, horizon, key)
    segments = [
        segments_at(one, jnp.asarray(starts), task, horizon)
        for one, starts in zip(held_out, chosen, strict=True)
    ]
    scales = [
        np.sort(errors_of_pairs(witness.support, witness.held_out, task, support))
        for witness in witnesses
    ]
    distance = make_distance(task, support)

    def perform(roll: Roll) -> _Played:
        imagined = [
            roll(witness.ensemble.scales, ready(witness.ensemble.members), segment)
            for witness, segment in zip(witnesses, segments, strict=True)
        ]
        distances = [
            np.asarray(distance(witness.support, one))
            for witness, one in zip(witnesses, imagined, strict=True)
        ]
        return _Played(imagined, distances)

    played = {POLICY: perform(make_roll(policy, task, horizon))}
    played |= {name: perform(make_roll(rival, task, horizon)) for name, rival in rivals.items()}
    played[LOG] = perform(make_follow(task))
    performances = {name: _performance(one, scales, task) for name, one in played.items()}
    returns = {name: one.returns for name, one in performances.items()}
    episodes = np.stack([episodes_at(*pair) for pair in zip(held_out, chosen, strict=True)])
    return OfflineJudgement(
        horizon=horizon,
        discount=task.discount,
        errors=mean_errors(
            [model_errors(*pair, task) for pair in zip(played[LOG].imagined, segments, strict=True)]
        ),
        stretch_returns=np.stack(
            [
                returns[LOG].mean(axis=1).ravel(),
                np.concatenate([returns_of(one.rewards, task) for one in segments]),
            ]
        ),
        performances=performances,
        gains={
            name: measure_gain(returns[POLICY] - other, episodes)
            for name, other in returns.items()
            if name != POLICY
        },
        logged=logged_bundle(segments),
        logged_at_bounds=share_at_bounds(np.concatenate([one.actions for one in held_out]), task),
        situations=_newest(played[POLICY], performances[POLICY].novelty, scales),
        ended=float(np.concatenate([one.terminated for one in held_out]).mean()),
    )


def common_horizon(held_out: Sequence[Dataset], task: Task, settings: ComparisonSettings) -> int:
    """The horizon asked for, or as far as every witness has episodes to compare with."""
    wanted = settings.horizon or task.horizon
    return min(reached_horizon(one, wanted) for one in held_out)


def draw_starts(
    held_out: Sequence[Dataset], task: Task, settings: ComparisonSettings, horizon: int, key: Key
) -> list[npt.NDArray[np.int32]]:
    """For each witness as many start transitions, each followed by a whole horizon."""
    allowed = []
    for one in held_out:
        starts = segment_starts(one, horizon)
        age = (one.observation_rows - one.first_rows)[starts]
        oldest = {"first": 0, "early": task.history - 1, "any": age.max()}[settings.starts]
        allowed.append(starts[age <= oldest])
    count = min(settings.num_starts, *(len(starts) for starts in allowed))
    keys = jax.random.split(key, len(held_out))
    return [
        np.sort(np.asarray(jax.random.choice(k, starts.astype(np.int32), (count,), replace=False)))
        for k, starts in zip(keys, allowed, strict=True)
    ]


def measure_gain(
    gains: Numbers, clusters: npt.NDArray[np.int64], *, confidence: float = CONFIDENCE
) -> Gain:
    """The mean of paired gains ``[W, K, N]`` and its bootstrap interval.

    Args:
        gains: The policy's return less the rival's.
        clusters: ``[W, N]`` the episode of each start state; those of one are drawn together.
        confidence: Of the interval.
    """
    return Gain(float(gains.mean()), paired_interval(gains, clusters, confidence=confidence))


def rank(errors: npt.NDArray[np.floating], own: npt.NDArray[np.floating]) -> Numbers:
    """For each error the share of the sorted ``own`` ones that are below it."""
    return np.searchsorted(own, errors) / len(own)


def share_at_bounds(actions: npt.NDArray[np.floating], task: Task) -> Numbers:
    """For each action the share of the rows ``[..., d]`` in which it is at a bound."""
    sizes = np.abs(np.asarray(to_box(jnp.asarray(actions).reshape(-1, actions.shape[-1]), task)))
    return np.asarray((sizes >= _AT_BOUND).mean(axis=0))


Roll = Callable[[AnyScales, AnyReadyMembers, Segments], Imagined]
"""Trajectories of one controller in one witness's models, from the segments' start states."""


def make_roll(choose: Policy, task: Task, horizon: int) -> Roll:
    """Compile a controller's imagination once for all witnesses."""

    @jax.jit
    def roll(scales: AnyScales, members: AnyReadyMembers, segments: Segments) -> Imagined:
        return imagine(choose, make_model(task, scales), members, segments.windows, horizon)

    return roll


def make_follow(task: Task) -> Roll:
    """The same for the logged actions."""

    @jax.jit
    def roll(scales: AnyScales, members: AnyReadyMembers, segments: Segments) -> Imagined:
        return follow(make_model(task, scales), members, segments.windows, segments.actions)

    return roll


def make_distance(
    task: Task, settings: SupportSettings
) -> Callable[[Support, Imagined], jax.Array]:
    """Compile the distance of imagined situations from the log, [H, K, N]."""
    pairs_of = jax.vmap(jax.vmap(support_inputs, (None, 0, 0)), (None, 0, 0))

    @jax.jit
    def distance(support: Support, imagined: Imagined) -> jax.Array:
        states = states_of(imagined, frames_seen(task, settings))

        def at_step(step: tuple[jax.Array, jax.Array]) -> jax.Array:
            return reconstruction_error(support.autoencoder, pairs_of(support.scales, *step))

        distances: jax.Array = jax.lax.map(at_step, (states, imagined.actions))
        return distances

    return distance


def returns_of(rewards: jax.Array, task: Task) -> Numbers:
    """Discounted returns of rewards [H, ...], in double precision."""
    return np.asarray(discounted_sum(jnp.moveaxis(rewards, 0, -1), task.discount), np.float64)


def mean_errors(errors: Sequence[ModelErrors]) -> ModelErrors:
    """The errors of several groups of models, averaged."""
    return ModelErrors(*(np.mean(parts, axis=0) for parts in zip(*errors, strict=True)))


class _Played(NamedTuple):
    """For each witness the trajectories of a controller, and their distances [H, K, N]."""

    imagined: Sequence[Imagined]
    distances: Sequence[npt.NDArray[np.floating]]


def _performance(
    played: _Played, scales: Sequence[npt.NDArray[np.floating]], task: Task
) -> Performance:
    frames = [np.asarray(one.frames)[-len(one.actions) - 1 :] for one in played.imagined]
    actions = [np.asarray(one.actions) for one in played.imagined]
    shares = [rank(*pair) for pair in zip(played.distances, scales, strict=True)]
    return Performance(
        returns=np.stack([returns_of(one.rewards, task) for one in played.imagined]),
        novelty=np.stack(shares, axis=1),
        at_bounds=share_at_bounds(np.stack(actions), task),
        bundle=bundle_of(np.stack(frames, axis=1), np.stack(actions, axis=1)),
    )


def bundle_of(frames: npt.NDArray[np.floating], actions: npt.NDArray[np.floating]) -> Bundle:
    """Quantiles over everything between the first axis, time, and the last one, signals."""
    between = tuple(range(1, frames.ndim - 1))
    return Bundle(np.quantile(frames, SPREAD, between), np.quantile(actions, SPREAD, between))


def logged_bundle(segments: Sequence[Segments]) -> Bundle:
    """What the log itself did from the segments' start states."""
    firsts = [np.asarray(one.windows)[None, :, 0] for one in segments]
    frames = [np.concatenate([first, s.frames]) for first, s in zip(firsts, segments, strict=True)]
    actions = [np.asarray(one.actions) for one in segments]
    return bundle_of(np.stack(frames, axis=1), np.stack(actions, axis=1))


def _newest(
    played: _Played, novelty: Numbers, scales: Sequence[npt.NDArray[np.floating]]
) -> tuple[Situation, ...]:
    """Of each trajectory its newest situation, and of these the newest, one for each start."""
    excess = np.stack(
        [d / np.quantile(own, NEW) for d, own in zip(played.distances, scales, strict=True)],
        axis=1,
    )
    by_start = excess.max(axis=(0, 2))  # [W, N]
    order = np.argsort(-by_start, axis=None)[:_SITUATIONS]
    found = []
    for witness, start in zip(*np.unravel_index(order, by_start.shape), strict=True):
        own = excess[:, witness, :, start]
        step, member = (int(i) for i in np.unravel_index(np.argmax(own), own.shape))
        imagined = played.imagined[witness]
        frames = imagined.frames[-len(imagined.actions) - 1 :]
        found.append(
            Situation(
                step=step,
                novelty=float(novelty[step, witness, member, start]),
                excess=float(own[step, member]),
                frame=np.asarray(frames[step, member, start], np.float64),
                action=np.asarray(imagined.actions[step, member, start], np.float64),
            )
        )
    return tuple(found)


def episodes_at(dataset: Dataset, transitions: npt.NDArray[np.int32]) -> npt.NDArray[np.int64]:
    """The episode of each transition."""
    return np.searchsorted(dataset.offsets, transitions, side="right") - 1
