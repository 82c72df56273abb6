"""What LION's search minimises: the loss of a policy with a dial on imagined trajectories.

The equations and their symbols are those of :mod:`moose.algorithms.lion`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp
from pydantic import Field

from moose.algorithms.imagination import (
    discounted_return,
    pessimistic_return,
    support_penalties,
)
from moose.config import Settings
from moose.data.draws import Draw, draw_first_steps, draw_steps
from moose.data.normalize import Statistics, standardise
from moose.models.behaviour import behaviour_action
from moose.models.ensembles import AnyReadyMembers, AnyScales, make_model
from moose.models.networks import Dense, Network, apply_network, init_network
from moose.models.recurrent_scales import given_columns
from moose.models.rollout import imagine_each
from moose.models.situations import Situations, SituationSettings, distances
from moose.models.supervised import TransitionTable, windows_of
from moose.models.support import Autoencoder, SupportScales, SupportSettings, frames_seen
from moose.tasks.task import Task, from_box, to_box
from moose.training import Metrics
from moose.types import Key

_FIRST_SIZE = 0.01  # of what an untrained search adds to holding still
_MOST_STILL = 0.95  # an action at its bound has no slope to leave it by


class SearchSettings(Settings):
    """How the policy is searched."""

    hidden: tuple[int, ...] = (128, 128)
    """Widths of the hidden layers of μ."""
    updates: int = Field(default=300, ge=1)
    """Gradient steps."""
    learning_rate: float = Field(default=3e-3, gt=0)
    """First step size of Adam, from which it falls to 0 along a cosine."""
    gradient_clip: float = Field(default=1.0, gt=0)
    """Largest norm of a gradient."""
    beta: float = Field(default=0.3, gt=0)
    """β: λ is drawn from Beta(β, β); below 1 its ends are more likely than its middle."""
    sees: Literal["given", "all"] = "given"
    """Whether μ sees the signals that physics gives (all, where it gives none), or all."""
    pessimism: float = Field(default=0.5, ge=0, le=1)
    """η: weight of the worst model in the return; the mean of all has 1 − η."""
    distrust: float = Field(default=0.6, ge=0)
    """q: share of a usual reward that is not believed, for a unit of distance from the log."""
    growth: float = Field(default=0.5, ge=0, le=1)
    """Share of the updates in which the distrust grows from 0 to q."""
    behaviour_weight: float = Field(default=1.0, ge=0)
    """w_b: weight of the distance from the behaviour's actions."""
    support_weight: float = Field(default=0.0, ge=0)
    """w_p: weight of MOOSE's support penalty."""
    start_states: int = Field(default=50, ge=1)
    """N: start states of an update."""
    first_share: float = Field(default=0.5, ge=0, le=1)
    """Share of them that are an episode's first."""
    early_share: float = Field(default=1.0, ge=0, le=1)
    """Share of the others from early in an episode: every doubling of age as likely."""
    horizon: int | None = Field(default=None, ge=1)
    """H: steps of an imagined trajectory; the task's by default."""
    discount: float | None = Field(default=None, gt=0, le=1)
    """γ: the task's by default."""
    checks: int = Field(default=100, ge=1)
    """How often, evenly spread, the state is kept and the policy shown to an observer."""
    gradient_limit: float = Field(default=1e8, gt=0)
    """A gradient of a larger norm is not followed; all of them between two checks stop the run."""
    is_rematerialised: bool = True
    """Compute a step's values again in the backward pass; on a CPU the quicker way too."""


class Knowledge(NamedTuple):
    """What one seed has learned about the plant and its behaviour, and its key."""

    members: AnyReadyMembers
    autoencoder: Autoencoder
    behaviour: Network
    key: Key


class Given(NamedTuple):
    """What all seeds have in common."""

    table: TransitionTable
    log: Draw
    scales: AnyScales
    support_scales: SupportScales
    situations: Situations
    frame: Statistics
    """Scale of the behaviour's inputs."""
    known: Statistics
    """Scale of the search's inputs."""
    return_size: jax.Array
    """R₀"""
    reward_size: jax.Array
    """r₀"""


class Problem(NamedTuple):
    """What is searched for, where: all that is fixed before a program is compiled."""

    task: Task
    search: SearchSettings
    situations: SituationSettings
    support: SupportSettings

    @property
    def horizon(self) -> int:
        """H: steps of an imagined trajectory."""
        return self.search.horizon or self.task.horizon

    @property
    def discount(self) -> float:
        """γ: the discount."""
        return self.search.discount or self.task.discount

    @property
    def columns(self) -> tuple[int, ...]:
        """The signals that μ sees."""
        return seen_columns(self.task, self.search)


def draw_starts(given: Given, problem: Problem, key: Key) -> jax.Array:
    """Windows [N, F, n] to start from: first ones of episodes, and others."""
    search = problem.search
    first_key, other_key = jax.random.split(key)
    num_first = round(search.first_share * search.start_states)
    firsts = draw_first_steps(given.log, num_first, first_key)
    num_others = search.start_states - num_first
    others = draw_steps(given.log, num_others, search.early_share, other_key)
    chosen = jnp.concatenate([firsts, others])
    return windows_of(given.table, chosen, problem.task.history)


def policy_loss(
    network: Network,
    knowledge: Knowledge,
    given: Given,
    problem: Problem,
    starts: jax.Array,
    positions: jax.Array,
    grown: jax.Array,
) -> tuple[jax.Array, Metrics]:
    """L(θ) and its parts as metrics.

    Args:
        network: μ
        knowledge: Of the seed.
        given: Of all seeds.
        problem: What is searched for.
        starts: Start states [N, F, n].
        positions: λ of the trajectories of each, [N].
        grown: How much of the distrust q there is by now, 0 to 1.

    Returns:
        Both.
    """
    task, search, discount = problem.task, problem.search, problem.discount

    def choose(window: jax.Array, position: jax.Array) -> tuple[jax.Array, jax.Array]:
        known = behaviour_action(knowledge.behaviour, given.frame, window)
        found = found_action(network, given.known, window, problem.columns, position)
        return between(known, found, position, task)

    imagined, strayed = imagine_each(
        choose,
        make_model(task, given.scales),
        knowledge.members,
        starts,
        positions,
        problem.horizon,
        is_rematerialised=search.is_rematerialised,
    )
    apart = distances(given.situations, imagined, task, problem.situations)
    believed = imagined.rewards - grown * search.distrust * given.reward_size * apart
    returns = pessimistic_return(discounted_return(believed, discount), search.pessimism)
    penalty = jnp.zeros_like(returns)
    if search.behaviour_weight:
        penalty = penalty + search.behaviour_weight * mean_strayed(strayed, discount)
    if search.support_weight:
        errors = support_penalties(
            imagined,
            knowledge.autoencoder,
            given.support_scales,
            frames=frames_seen(task, problem.support),
            noise=None,
        )
        penalty = penalty + search.support_weight * jnp.mean(errors, axis=(0, 1))
    losses = -positions * returns / given.return_size + (1.0 - positions) * penalty
    loss = jnp.mean(losses)
    raw_returns = discounted_return(imagined.rewards, discount)
    return loss, {
        "loss": loss,
        "imagined_return": jnp.mean(raw_returns),
        "model_spread": jnp.mean(jnp.std(raw_returns, axis=0)),
        "distance": jnp.mean(apart),
        "penalty": jnp.mean(penalty),
    }


def init_search(key: Key, sizes: Sequence[int], task: Task) -> Network:
    """An untrained μ, which holds still: the search begins with doing nothing, nearly everywhere.

    Where holding is no action, it begins in the middle of the actions' range.
    """
    *hidden, last = init_network(key, sizes)
    still = jnp.zeros_like(last.bias)
    if task.hold_action is not None:
        still = to_box(jnp.asarray(task.hold_action, last.bias.dtype), task)
    bias = jnp.arctanh(jnp.clip(still, -_MOST_STILL, _MOST_STILL)) + _FIRST_SIZE * last.bias
    return (*hidden, Dense(_FIRST_SIZE * last.weight, bias))


def found_action(
    network: Network,
    scale: Statistics,
    window: jax.Array,
    columns: tuple[int, ...],
    position: jax.Array,
) -> jax.Array:
    """μ(s, λ) in the box [−1, 1]^d, for a raw window [F, n]."""
    seen = standardise(window, scale)[:, jnp.asarray(columns)].reshape(-1)
    return jnp.tanh(apply_network(network, jnp.concatenate([seen, position[None]])))


def between(
    known: jax.Array, found: jax.Array, position: jax.Array, task: Task
) -> tuple[jax.Array, jax.Array]:
    """π between b and μ, all in the box, as a raw action; and ‖π − b‖² in the box."""
    change = position * (found - known)
    return from_box(known + change, task), jnp.sum(change**2)


def mean_strayed(strayed: jax.Array, discount: float) -> jax.Array:
    """C = mean_t γᵗ ‖π − b‖² of the trajectories of each start state, mean over models: [N].

    Args:
        strayed: ‖π − b‖² at every step, [H, K, N].
        discount: γ
    """
    return jnp.mean(discounted_return(strayed, discount), axis=0) / len(strayed)


def seen_columns(task: Task, search: SearchSettings) -> tuple[int, ...]:
    """The signals that μ sees."""
    given = given_columns(task) if search.sees == "given" else ()
    return given or tuple(range(len(task.observation_names)))


def widened(
    network: Network, frame: Statistics, known: Statistics, task: Task, columns: tuple[int, ...]
) -> Network:
    """μ as a network of all signals on the behaviour's scale; those it does not see weigh 0."""
    first, *rest = network
    signals, history, seen = len(task.observation_names), task.history, jnp.asarray(columns)
    weight = first.weight[:-1].reshape(history, len(columns), -1)
    ratio = (jnp.asarray(frame.deviation) / jnp.asarray(known.deviation))[seen]
    shift = ((jnp.asarray(frame.mean) - jnp.asarray(known.mean)) / jnp.asarray(known.deviation))[
        seen
    ]
    whole = jnp.zeros((history, signals, weight.shape[-1]), weight.dtype)
    whole = whole.at[:, seen].set(weight * ratio[None, :, None])
    flat = jnp.concatenate([whole.reshape(history * signals, -1), first.weight[-1:]])
    return (Dense(flat, first.bias + jnp.einsum("hco,c->o", weight, shift)), *rest)
