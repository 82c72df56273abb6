"""Where LION's search begins: with the best of several networks, each improved for a while.

The return of a policy has many hills, and gradient descent climbs the one it stands on. So many
random networks are imagined, and the best of them, and holding still, are improved with the dial
at 1 only, which is cheap; where that leads highest, the search for all positions begins.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from pydantic import Field

from moose.algorithms.dial_loss import (
    Given,
    Knowledge,
    Problem,
    believe,
    draw_starts,
    found_action,
    init_search,
)
from moose.config import Settings
from moose.models.networks import Dense, Network, init_network
from moose.progress import SILENT, Progress
from moose.tasks.task import from_box
from moose.training import (
    FORGETFUL,
    Journal,
    Learner,
    Metrics,
    Update,
    chunk_size,
    descend,
    falling_rate,
    for_each_seed,
    per_seed,
    repeat_update,
    split_keys,
)
from moose.types import Key

_TRIED_AT_ONCE = 50
# Random networks are steep, so that some of them swing: both gains are drawn log-uniformly.
_FIRST_GAINS = (0.5, 5.0)
_LAST_GAINS = (1.0, 50.0)


class StartSettings(Settings):
    """How the network is found with which the search begins."""

    tried: int = Field(default=1000, ge=1)
    """Random networks that are imagined."""
    tried_states: int = Field(default=4, ge=1)
    """Start states in which they are."""
    kept: int = Field(default=3, ge=0)
    """How many of them are improved, beside holding still; with 0, none are tried."""
    updates: int = Field(default=150, ge=1)
    """Gradient steps of an improvement, with the dial at 1."""
    start_states: int = Field(default=12, ge=1)
    """Start states of such a step."""
    first_share: float = Field(default=1.0, ge=0, le=1)
    """Share of these start states, and of those of the tries, that are an episode's first."""
    growth: float = Field(default=0.5, ge=0, le=1)
    """Share of these steps in which the distrust grows from 0 to q."""
    checks: int = Field(default=10, ge=1)
    """How often, evenly spread, the state is kept."""


class Tries(NamedTuple):
    """The best networks so far."""

    networks: Network
    """Stacked along the first axis, best first."""
    returns: jax.Array
    """[R]: what is believed that they earn"""


def find_start(
    problem: Problem,
    settings: StartSettings,
    sizes: Sequence[int],
    knowledge: Knowledge,
    given: Given,
    key: Key,
    *,
    progress: Progress = SILENT,
    journal: Journal = FORGETFUL,
) -> Network:
    """The network μ with which to begin.

    Args:
        problem: What is searched for.
        settings: How many are tried and how they are improved.
        sizes: Of μ: inputs, hidden widths, outputs.
        knowledge: Of the seed, or of several with a leading axis; its key is not used.
        given: Of all seeds.
        key: One key, or one for each of several seeds.
        progress: Whom to tell.
        journal: Where checkpoints and metrics go.

    Returns:
        The network, or one for each of several seeds.
    """
    is_seeded = bool(key.ndim)
    still_key, try_key, improve_key, judge_key = split_keys(key, 4)
    still = per_seed(lambda one: init_search(one, sizes, problem.task), still_key)
    axis = 1 if is_seeded else 0
    networks = jax.tree.map(lambda leaf: jnp.expand_dims(leaf, axis), still)
    if settings.kept:
        tries = repeat_update(
            "tries",
            make_trial(problem, settings, sizes),
            Tries(
                jax.tree.map(lambda leaf: jnp.repeat(leaf, settings.kept, axis), networks),
                jnp.full((*key.shape, settings.kept), -jnp.inf, jnp.float32),
            ),
            knowledge._replace(key=try_key),
            given,
            total=-(-settings.tried // _TRIED_AT_ONCE),
            chunk=chunk_size(-(-settings.tried // _TRIED_AT_ONCE), settings.checks),
            is_seeded=is_seeded,
            progress=progress,
            journal=journal,
        )
        networks = jax.tree.map(
            lambda one, others: jnp.concatenate([one, others], axis), networks, tries.networks
        )
    optimiser = optax.chain(
        optax.clip_by_global_norm(problem.search.gradient_clip),
        optax.adam(falling_rate(problem.search.learning_rate, settings.updates)),
    )
    init = for_each_seed(jax.vmap(optimiser.init), is_seeded=is_seeded)
    improved = repeat_update(
        "starts",
        make_improvement(problem, settings, optimiser),
        Learner(networks, jax.jit(init)(networks)),
        knowledge._replace(key=improve_key),
        given,
        total=settings.updates,
        chunk=chunk_size(settings.updates, settings.checks),
        is_seeded=is_seeded,
        progress=progress,
        journal=journal,
    )

    def best_of(networks: Network, knowledge: Knowledge, given: Given) -> Network:
        starts = _draw(given, problem, settings, 4 * settings.start_states, knowledge.key)
        returns = jax.vmap(
            lambda network: believed_return(network, knowledge, given, problem, starts)
        )(networks)
        best = jnp.argmax(_finite(returns))
        chosen: Network = jax.tree.map(lambda leaf: leaf[best], networks)
        return chosen

    choose = jax.vmap(best_of, (0, 0, None)) if is_seeded else best_of
    chosen: Network = jax.jit(choose)(improved.params, knowledge._replace(key=judge_key), given)
    return chosen


def make_trial(
    problem: Problem, settings: StartSettings, sizes: Sequence[int]
) -> Update[Tries, Knowledge, Given]:
    """Imagine some more random networks, all from the same start states, and keep the best."""

    def update(
        tries: Tries, knowledge: Knowledge, given: Given, step: jax.Array
    ) -> tuple[Tries, Metrics]:
        network_key, start_key = jax.random.split(knowledge.key)
        starts = _draw(given, problem, settings, settings.tried_states, start_key)
        keys = jax.random.split(jax.random.fold_in(network_key, step), _TRIED_AT_ONCE)
        networks = jax.vmap(lambda key: random_search(key, sizes, problem))(keys)
        returns = jax.vmap(
            lambda network: believed_return(network, knowledge, given, problem, starts)
        )(networks)
        all_returns = jnp.concatenate([tries.returns, _finite(returns)])
        best_returns, best = jax.lax.top_k(all_returns, settings.kept)
        all_networks = jax.tree.map(
            lambda old, new: jnp.concatenate([old, new])[best], tries.networks, networks
        )
        return Tries(all_networks, best_returns), {"best_return": best_returns[0]}

    return update


def make_improvement(
    problem: Problem, settings: StartSettings, optimiser: optax.GradientTransformation
) -> Update[Learner[Network], Knowledge, Given]:
    """One step of gradient descent for each of several networks, with the dial at 1."""

    def update(
        learners: Learner[Network], knowledge: Knowledge, given: Given, step: jax.Array
    ) -> tuple[Learner[Network], Metrics]:
        key = jax.random.fold_in(knowledge.key, step)
        starts = _draw(given, problem, settings, settings.start_states, key)
        growing = max(settings.growth * settings.updates, 1.0)
        grown = jnp.minimum(step.astype(jnp.float32) / growing, 1.0)

        def loss(network: Network) -> tuple[jax.Array, Metrics]:
            value = believed_return(network, knowledge, given, problem, starts, grown)
            return -value / given.return_size, {"return": value}

        learners, metrics = jax.vmap(lambda one: descend(one, optimiser, loss))(learners)
        return learners, {"best_return": jnp.max(_finite(metrics["return"]))}

    return update


def random_search(key: Key, sizes: Sequence[int], problem: Problem) -> Network:
    """A network μ that does something, around holding still."""
    network_key, gain_key = jax.random.split(key)
    first, *middle, last = init_network(network_key, sizes)
    low, high = np.log(np.asarray([_FIRST_GAINS, _LAST_GAINS], np.float32)).T
    gains = jnp.exp(jax.random.uniform(gain_key, (2,), minval=low, maxval=high))
    still = init_search(network_key, sizes, problem.task)[-1].bias
    return (
        first._replace(weight=first.weight * gains[0]),
        *middle,
        Dense(last.weight * gains[1], still),
    )


def believed_return(
    network: Network,
    knowledge: Knowledge,
    given: Given,
    problem: Problem,
    starts: jax.Array,
    grown: jax.Array | None = None,
) -> jax.Array:
    """Mean E[R] of start states [N, F, n] with the dial at 1; all distrust unless said."""

    def choose(window: jax.Array, position: jax.Array) -> jax.Array:
        found = found_action(network, given.known, window, problem.columns, position)
        return from_box(found, problem.task)

    grown = jnp.float32(1.0) if grown is None else grown
    positions = jnp.ones(len(starts), starts.dtype)
    belief = believe(choose, knowledge, given, problem, starts, positions, grown)
    return jnp.mean(belief.returns)


def _draw(
    given: Given, problem: Problem, settings: StartSettings, count: int, key: Key
) -> jax.Array:
    return draw_starts(given, problem, count, key, settings.first_share)


def _finite(returns: jax.Array) -> jax.Array:
    """Returns; the least there is for what is not a number."""
    least = float(np.finfo(np.float32).min)
    return jnp.where(jnp.isfinite(returns), returns, jnp.full_like(returns, least))
