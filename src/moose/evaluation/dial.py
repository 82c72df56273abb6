"""A policy with a dial in models that it was not trained on: what each position leads to.

Every position is imagined in models that were fitted for this purpose, from states of episodes that
they have not seen, and so is *hold*, never changing anything. Distances from the log are measured
apart from the models, in situations (:mod:`moose.models.situations`). Only whole situations count:
at the beginning of an episode the first frame stands for all that was before, which looks like
having held still for long. :mod:`moose.evaluation.selection` turns the measurement into advice.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import numpy.typing as npt
from pydantic import Field

from moose.config import Settings
from moose.data.dataset import Dataset
from moose.evaluation.offline import (
    CLONE,
    HOLD,
    NEW,
    Bundle,
    ComparisonSettings,
    Numbers,
    bundle_of,
    common_horizon,
    draw_starts,
    episodes_at,
    logged_bundle,
    make_follow,
    make_roll,
    mean_bias,
    rank,
    returns_of,
    share_at_bounds,
    share_explained,
)
from moose.models.accuracy import segments_at
from moose.models.actor import DialActor, act_at
from moose.models.ensembles import AnyEnsemble, AnyReadyMembers, AnyScales, make_model, ready
from moose.models.rollout import Imagined, imagine, states_of
from moose.models.situations import (
    Situations,
    SituationSettings,
    ages_in,
    beyond_usual,
    measure_situations,
    nearest_by_step,
    points_of,
)
from moose.models.supervised import Segments
from moose.tasks.task import Task, to_box
from moose.types import Key

_MOST_REFERENCES = 2000
"""Situations of hold that others are compared with."""
_FEWEST_FIRST_STATES = 10
_BINS = 5
NOVELTY_QUANTILES = (0.1, 0.5, 0.9)


class DialSettings(Settings):
    """How the positions of a dial are measured."""

    positions: int = Field(default=21, ge=2, le=101)
    """Positions from 0 to 1, evenly spread."""
    starts: Literal["first", "early", "any"] | None = None
    """Where trajectories begin; by default in the first states of episodes, and anywhere if a
    group of models has fewer than ten of them."""
    num_starts: int = Field(default=100, ge=1)
    """Start states for each group of models."""
    num_stretches: int = Field(default=200, ge=5)
    """Stretches of the log, for each group of models, on which promises are compared with deeds."""
    horizon: int | None = Field(default=None, ge=1)
    """Steps of a trajectory; the task's by default, less where no episode is that long."""
    situations: SituationSettings = SituationSettings(references=4000)
    """What a situation is; the distance up to its quantile is called usual."""


class DialWitness(NamedTuple):
    """Models, the episodes they were fitted to, and episodes they have not seen."""

    ensemble: AnyEnsemble
    fitted: Dataset
    held_out: Dataset


@dataclass(frozen=True)
class Course:
    """One way of running the plant in all models (W witnesses, K models each, N starts each).

    Attributes:
        returns: ``[W, K, N]`` imagined returns.
        strayed: Mean distance from log and hold, beyond what is usual in the log.
        apart: Mean distance from the log alone, beyond what is usual in it.
        novelty: ``[T, W, K, N]`` share of the log's own situations that are nearer to the log.
        from_behaviour: Mean squared distance of the actions from the clone's, in the box [−1, 1]^d.
        at_bounds: ``[d]`` share of the steps in which an action is at its bound.
        bundle: The trajectories.
    """

    returns: Numbers
    strayed: float
    apart: float
    novelty: Numbers
    from_behaviour: float
    at_bounds: Numbers
    bundle: Bundle

    @property
    def by_model(self) -> Numbers:
        """The mean return in each model, [W·K]."""
        return np.asarray(self.returns.mean(axis=2).ravel())

    @property
    def new(self) -> float:
        """Share of the imagined situations that are newer than 99 % of the log's own."""
        return float(np.mean(self.novelty > NEW))


@dataclass(frozen=True)
class DialMeasurement:
    """All that was measured.

    Attributes:
        horizon: Steps of a trajectory.
        discount: γ of the returns.
        starts: Where trajectories begin.
        positions: ``[P]`` of the dial, from 0 to 1.
        courses: One for each position.
        hold: Never changing anything, where that is an action.
        logged_returns: ``[W·N]`` what the log earned from the same start states.
        logged: What it did there.
        stretch_returns: ``[2, W·S]`` what stretches of the log were imagined to earn (mean over
            models), and what they did earn.
        over_promise: ``[5]`` the mean of the difference, by fifths of the stretches from the
            nearest to the log to the furthest.
        episodes: ``[W, N]`` the episode of each start state.
    """

    horizon: int
    discount: float
    starts: str
    positions: Numbers
    courses: tuple[Course, ...]
    hold: Course | None
    logged_returns: Numbers
    logged: Bundle
    stretch_returns: Numbers
    over_promise: Numbers
    episodes: npt.NDArray[np.int64]

    @property
    def rivals(self) -> dict[str, Course]:
        """The ways of running the plant that need no policy."""
        return {CLONE: self.courses[0]} | ({} if self.hold is None else {HOLD: self.hold})

    @property
    def best_rival(self) -> str:
        """The better of them, in the models."""
        rivals = self.rivals
        return max(rivals, key=lambda name: float(rivals[name].returns.mean()))

    @property
    def stake(self) -> float:
        """B: the size of what it earns."""
        return float(np.abs(self.rivals[self.best_rival].returns).mean())

    @property
    def explained(self) -> float:
        """Share of the variance of the stretches' returns that the models tell; may be negative."""
        return share_explained(self.stretch_returns)

    @property
    def bias(self) -> float:
        """How much more the models promise for the log's own actions than these have earned."""
        return mean_bias(self.stretch_returns)


def measure_dial(
    actor: DialActor,
    witnesses: Sequence[DialWitness],
    task: Task,
    settings: DialSettings,
    key: Key,
    *,
    observe: Callable[[int], None] = lambda done: None,
) -> DialMeasurement:
    """Imagine every position of a dial, and hold, in models the policy was not trained on.

    Args:
        actor: The policy.
        witnesses: Models and the episodes they have not seen; as many members in each.
        task: What is known about the plant.
        settings: How positions are compared.
        key: Which start states and stretches.
        observe: Called after each position with how many are done.

    Returns:
        What was measured.
    """
    starts_key, stretch_key, situation_key = jax.random.split(key, 3)
    held_out = [witness.held_out for witness in witnesses]
    comparison = _where_to_begin(held_out, task, settings)
    horizon = common_horizon(held_out, task, comparison)
    # Witnesses that have not seen the same episodes are asked about the same states of them.
    logs = list({id(one): one for one in held_out}.values())
    drawn = draw_starts(logs, task, comparison, horizon, starts_key)
    states = {id(one): starts for one, starts in zip(logs, drawn, strict=True)}
    chosen = [states[id(one)] for one in held_out]
    segments = [
        segments_at(one, jnp.asarray(starts), task, horizon)
        for one, starts in zip(held_out, chosen, strict=True)
    ]
    situations = [
        measure_situations(
            witness.fitted,
            task,
            settings.situations,
            situation_key,
            other=witness.held_out,
            is_whole=True,
        )
        for witness in witnesses
    ]
    ground = _Ground(task, settings, tuple(witnesses), tuple(segments), tuple(situations))

    hold = None if task.hold_action is None else _Holding(ground, task.hold_action, horizon)
    assess = _make_assess(actor, ground)
    positions = np.linspace(0.0, 1.0, settings.positions)
    roll = _make_turned_roll(actor, task, horizon)
    courses = []
    for number, position in enumerate(positions):
        played = [
            roll(witness.ensemble.scales, members, segment, jnp.asarray(position, jnp.float32))
            for witness, members, segment in zip(witnesses, ground.members, segments, strict=True)
        ]
        courses.append(assess(played, None if hold is None else hold.points))
        observe(number + 1)
    stretches = [*_compare_stretches(ground, horizon, stretch_key)]
    imagined, logged, distance = (np.concatenate(parts) for parts in zip(*stretches, strict=True))
    order = np.argsort(distance, kind="stable")
    return DialMeasurement(
        horizon=horizon,
        discount=task.discount,
        starts=comparison.starts,
        positions=positions,
        courses=tuple(courses),
        hold=None if hold is None else assess(hold.played, hold.points),
        logged_returns=np.concatenate([returns_of(one.rewards, task) for one in segments]),
        logged=logged_bundle(segments),
        stretch_returns=np.stack([imagined, logged]),
        over_promise=np.array(
            [(imagined - logged)[part].mean() for part in np.array_split(order, _BINS)]
        ),
        episodes=np.stack([episodes_at(*pair) for pair in zip(held_out, chosen, strict=True)]),
    )


class _Ground(NamedTuple):
    """What all courses are compared on, for each witness."""

    task: Task
    settings: DialSettings
    witnesses: tuple[DialWitness, ...]
    segments: tuple[Segments, ...]
    situations: tuple[Situations, ...]

    @property
    def members(self) -> tuple[AnyReadyMembers, ...]:
        """The models, ready to roll."""
        return tuple(ready(witness.ensemble.members) for witness in self.witnesses)

    @property
    def first_whole(self) -> int:
        """The first step after which a situation is imagined as a whole, if there is one."""
        horizon = len(self.segments[0].actions)
        return min(ages_in(self.task, self.settings.situations)[-1], horizon - 1)

    def whole_points(self, imagined: Imagined, witness: int) -> jax.Array:
        """The situations of trajectories that are imagined as a whole: [T, K, N, D]."""
        scale = self.situations[witness].scale
        points = points_of(imagined, scale, self.task, self.settings.situations)
        return points[self.first_whole :]


class _Holding:
    """Never changing anything, in all models, and the situations that this leads to."""

    def __init__(self, ground: _Ground, hold_action: Sequence[float], horizon: int) -> None:
        task = ground.task
        roll = make_roll(lambda window: jnp.asarray(hold_action, window.dtype), task, horizon)
        self.played = [
            roll(witness.ensemble.scales, members, segment)
            for witness, members, segment in zip(
                ground.witnesses, ground.members, ground.segments, strict=True
            )
        ]
        self.points = []
        for number, imagined in enumerate(self.played):
            points = np.asarray(ground.whole_points(imagined, number))
            distinct = np.unique(points.reshape(-1, points.shape[-1]).round(3), axis=0)
            every = -(-len(distinct) // _MOST_REFERENCES)
            self.points.append(jnp.asarray(distinct[::every]))


_Assess = Callable[[Sequence[Imagined], Sequence[jax.Array] | None], Course]


def _make_assess(actor: DialActor, ground: _Ground) -> _Assess:
    """Compile all that is asked of the trajectories of one course."""
    task = ground.task
    distance = jax.jit(nearest_by_step)

    @jax.jit
    def margin(situations: Situations, points: jax.Array, found: jax.Array) -> jax.Array:
        return beyond_usual(situations, points, found, ground.settings.situations)

    @jax.jit
    def from_behaviour(imagined: Imagined) -> jax.Array:
        def clone_at(window: jax.Array) -> jax.Array:
            return to_box(act_at(actor, task, window, jnp.zeros((), window.dtype)), task)

        def at_step(step: tuple[jax.Array, jax.Array]) -> jax.Array:
            windows, actions = step
            known = jax.vmap(jax.vmap(clone_at))(windows)
            done = jax.vmap(jax.vmap(lambda action: to_box(action, task)))(actions)
            return jnp.mean(jnp.sum((done - known) ** 2, axis=-1))

        steps = (states_of(imagined, task.history), imagined.actions)
        return jnp.mean(jax.lax.map(at_step, steps))

    def assess(played: Sequence[Imagined], holding: Sequence[jax.Array] | None) -> Course:
        apart, strayed, novelty = [], [], []
        for number, imagined in enumerate(played):
            situations = ground.situations[number]
            points = ground.whole_points(imagined, number)
            found = distance(situations.references, points)
            beyond = np.asarray(margin(situations, points, found))
            apart.append(beyond.mean())
            if holding is not None:
                beyond = np.minimum(beyond, np.asarray(distance(holding[number], points)))
            strayed.append(beyond.mean())
            novelty.append(rank(np.asarray(found), situations.own))
        frames = [np.asarray(one.frames)[-len(one.actions) - 1 :] for one in played]
        actions = [np.asarray(one.actions) for one in played]
        return Course(
            returns=np.stack([returns_of(one.rewards, task) for one in played]),
            strayed=float(np.mean(strayed)),
            apart=float(np.mean(apart)),
            novelty=np.stack(novelty, axis=1),
            from_behaviour=float(np.mean([from_behaviour(one) for one in played])),
            at_bounds=share_at_bounds(np.stack(actions), task),
            bundle=bundle_of(np.stack(frames, axis=1), np.stack(actions, axis=1)),
        )

    return assess


def _make_turned_roll(
    actor: DialActor, task: Task, horizon: int
) -> Callable[[AnyScales, AnyReadyMembers, Segments, jax.Array], Imagined]:
    """Compile the imagination of a policy with a dial, once for all positions."""

    @jax.jit
    def roll(
        scales: AnyScales, members: AnyReadyMembers, segments: Segments, position: jax.Array
    ) -> Imagined:
        return imagine(
            lambda window: act_at(actor, task, window, position),
            make_model(task, scales),
            members,
            segments.windows,
            horizon,
        )

    return roll


def _where_to_begin(
    held_out: Sequence[Dataset], task: Task, settings: DialSettings
) -> ComparisonSettings:
    asked = ComparisonSettings(
        starts=settings.starts or "first", num_starts=settings.num_starts, horizon=settings.horizon
    )
    if settings.starts is not None:
        return asked
    horizon = common_horizon(held_out, task, asked)
    firsts = [int((one.lengths - ~one.final_observed >= horizon).sum()) for one in held_out]
    if min(firsts) >= _FEWEST_FIRST_STATES:
        return asked
    return asked.model_copy(update={"starts": "any"})


def _compare_stretches(
    ground: _Ground, horizon: int, key: Key
) -> Iterator[tuple[Numbers, Numbers, Numbers]]:
    """For each witness: what held-out stretches were imagined to earn, did earn, and distances."""
    follow = make_follow(ground.task)
    anywhere = ComparisonSettings(starts="any", num_starts=ground.settings.num_stretches)
    held_out = [witness.held_out for witness in ground.witnesses]
    chosen = draw_starts(held_out, ground.task, anywhere, horizon, key)
    for number, witness in enumerate(ground.witnesses):
        stretches = segments_at(witness.held_out, jnp.asarray(chosen[number]), ground.task, horizon)
        imagined = follow(witness.ensemble.scales, ground.members[number], stretches)
        points = ground.whole_points(imagined, number)
        found = jax.jit(nearest_by_step)(ground.situations[number].references, points)
        yield (
            returns_of(imagined.rewards, ground.task).mean(axis=0),
            returns_of(stretches.rewards, ground.task),
            np.asarray(found, np.float64).mean(axis=(0, 1)),
        )
