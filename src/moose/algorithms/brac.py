"""BRAC: actor and critics, regularised towards a clone of the log's behaviour.

Wu, Tucker, Nachum: Behavior Regularized Offline Reinforcement Learning; the agent with the primal
form of the KL divergence and a value penalty.

First the behaviour is cloned as a tanh-Gaussian b, and its entropy kept from collapsing:

    L(ψ) = mean [κ log b_ψ(ã | s) − log b_ψ(a | s)],   ã ~ b_ψ(s)
    J(κ) = κ (H − H̄), descended, κ ≥ 0,                H = −mean log b_ψ(ã | s)

Then, with b frozen, policy and critics are learned:

    D(s) = mean_i [log π(a_i | s) − log b(a_i | s)],   a_i ~ π(s)
    y    = r + γ m (min_c Q′_c(s′, a′) − α D(s′)),     a′ ~ π(s′)
    L(φ) = Σ_c mean (Q_c(s, a) − y)²
    L(θ) = mean [α D(s) − min_c Q_c(s, ã)],            ã ~ π(s)

=======  =================  ========================================================
symbol   name               meaning
=======  =================  ========================================================
ψ        behaviour          parameters of the clone b
κ        multiplier         price of the clone's entropy
H̄        —                  entropy that is wanted: −d
θ        actor              parameters of the policy π
φ        critics            parameters of the critics Q_1, Q_2
α        divergence_weight  price of the divergence D
Q′       target_critics     slow copies
m        continues          0 after a true end of the plant, else 1
γ        discount           discount factor
τ        target_rate        speed of the slow copies
=======  =================  ========================================================

Slow copies first, then critics, then policy, all on the same batch. Densities of logged actions and
of the policy's actions under the clone are taken at actions moved 1e-3 inside of the box; those of
a policy's own samples at what tanh was applied to. In the first part of the training,
``warm_start``, the policy is not paid for Q. It acts by its mode.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import optax
from pydantic import Field

from moose.algorithms.critics import (
    Critics,
    CriticSettings,
    Experience,
    critic_loss,
    draw_batch,
    init_critics,
    make_experience,
    polyak,
    q_values,
    td_target,
)
from moose.config import Settings, digest
from moose.data.dataset import Dataset
from moose.models.actor import Actor, mode_actor, num_features
from moose.models.gaussian import (
    Gaussian,
    bounded_gaussian,
    draw_before_tanh,
    log_density,
    log_density_of_sample,
)
from moose.models.networks import Network, apply_network, init_network
from moose.progress import SILENT, Progress
from moose.tasks.task import Task
from moose.training import (
    FORGETFUL,
    Journal,
    Learner,
    Metrics,
    Observer,
    Update,
    chunk_size,
    descend,
    for_each_seed,
    init_learner,
    key_numbers,
    per_seed,
    repeat_update,
    split_keys,
)
from moose.types import Key

FEWEST_CLONING_UPDATES = 10_000


class CloneSettings(Settings):
    """How the behaviour is cloned."""

    hidden: tuple[int, ...] = (400, 300)
    """Widths of the clone's hidden layers."""
    updates: int | None = Field(default=None, ge=1)
    """Gradient steps; by default as many as the policy's, and at least 10,000."""
    batch_size: int = Field(default=256, ge=1)
    """Transitions per gradient step."""
    learning_rate: float = Field(default=5e-4, gt=0)
    """Step size of Adam, for the clone and the price of its entropy."""
    checks: int = Field(default=10, ge=1)
    """How often, evenly spread, the state is kept."""


class Config(CriticSettings):
    """All settings of BRAC."""

    batch_size: int = Field(default=256, ge=1)
    """Transitions per gradient step."""
    policy_learning_rate: float = Field(default=3e-4, gt=0)
    """Step size of Adam for the policy; ``learning_rate`` is the critics'."""
    regularisation: Literal["value_penalty", "policy"] = "value_penalty"
    """Whether the divergence is paid for in policy and targets, or in the policy only."""
    divergence_weight: float = Field(default=0.1, ge=0)
    """α: price of the divergence from the clone."""
    divergence_samples: int = Field(default=4, ge=1)
    """Actions over which the divergence in a state is averaged."""
    warm_start: float = Field(default=0.2, ge=0, le=1)
    """Share of the updates in which the policy learns the divergence only."""
    clone: CloneSettings = CloneSettings()


PRESETS: Mapping[str, Mapping[str, Any]] = MappingProxyType(
    {
        # The paper's figures for the Industrial Benchmark: the defaults above.
        "paper": {},
        "paper-mujoco": {"inputs": "raw", "updates": 100_000},
        "quick": {
            "hidden": [64, 64],
            "updates": 2000,
            "policy_learning_rate": 1e-3,
            "clone": {"hidden": [64, 64], "updates": 2000, "learning_rate": 1e-3},
        },
    }
)


class Fitted(NamedTuple):
    """What a fit leaves behind."""

    actor: Actor
    behaviour: Network


class CloneState(NamedTuple):
    """What an update of the clone changes."""

    behaviour: Learner[Network]
    multiplier: Learner[jax.Array]


class Own(NamedTuple):
    """What one seed has for itself while its policy is learned."""

    behaviour: Network
    key: Key


class State(NamedTuple):
    """What an update of the policy changes."""

    actor: Learner[Network]
    critics: Learner[Critics]
    target_critics: Critics


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
    """Clone the behaviour of a log, then learn critics and a policy.

    Args:
        dataset: The log.
        task: What is known about the plant.
        config: All settings.
        key: One key, or one for each of several seeds.
        progress: Whom to tell.
        journal: Where checkpoints, metrics and shared results go.
        observe: Called with the number of updates done and the policy; cannot change it.

    Returns:
        The policy and the clone behind it.
    """
    task.require(dataset)
    clone_key, policy_key = split_keys(key, 2)
    experience = make_experience(dataset, config.inputs)
    bounds = [task.action_low, task.action_high]
    training = [config.inputs, cloning_updates(config)]
    behaviour = journal.once(
        "clone",
        digest(
            dataset.fingerprint, task.facts, bounds, training, config.clone, key_numbers(clone_key)
        ),
        init_behaviour(task, config, clone_key),
        lambda: clone_behaviour(
            experience, task, config, clone_key, progress=progress, journal=journal
        ),
    )
    actor = learn_policy(
        experience,
        task,
        config,
        behaviour,
        policy_key,
        progress=progress,
        journal=journal,
        observe=observe,
    )
    return Fitted(actor, behaviour)


def clone_behaviour(
    experience: Experience,
    task: Task,
    config: Config,
    key: Key,
    *,
    progress: Progress = SILENT,
    journal: Journal = FORGETFUL,
) -> Network:
    """Fit the clone b to a log; see :func:`fit`."""
    _, update_key = split_keys(key, 2)
    is_seeded = bool(key.ndim)
    optimiser = optax.adam(config.clone.learning_rate)
    network = init_behaviour(task, config, key)
    total = cloning_updates(config)
    state = repeat_update(
        "clone",
        make_clone_update(task, config, optimiser),
        CloneState(
            init_learner(network, optimiser, is_seeded=is_seeded),
            init_learner(jnp.ones(key.shape), optimiser, is_seeded=is_seeded),
        ),
        update_key,
        experience,
        total=total,
        chunk=chunk_size(total, config.clone.checks),
        is_seeded=is_seeded,
        progress=progress,
        journal=journal,
    )
    return state.behaviour.params


def learn_policy(
    experience: Experience,
    task: Task,
    config: Config,
    behaviour: Network,
    key: Key,
    *,
    progress: Progress = SILENT,
    journal: Journal = FORGETFUL,
    observe: Observer[Actor] | None = None,
) -> Actor:
    """Learn critics and a policy beside a frozen clone; see :func:`fit`."""
    init_key, update_key = split_keys(key, 2)
    is_seeded = bool(key.ndim)

    def actor_of_one(state: State) -> Actor:
        return mode_actor(state.actor.params, experience.scale)

    actor_of = for_each_seed(actor_of_one, is_seeded=is_seeded)
    state = repeat_update(
        "policy",
        make_update(task, config),
        init_state(task, config, init_key),
        Own(behaviour, update_key),
        experience,
        total=config.updates,
        chunk=chunk_size(config.updates, config.checks),
        is_seeded=is_seeded,
        progress=progress,
        journal=journal,
        observe=None if observe is None else lambda step, state: observe(step, actor_of(state)),
    )
    return actor_of(state)


def init_behaviour(task: Task, config: Config, key: Key) -> Network:
    """The clone before training, of one seed or several."""
    init_key, _ = split_keys(key, 2)
    sizes = (num_features(task), *config.clone.hidden, 2 * len(task.action_names))
    return per_seed(lambda one: init_network(one, sizes), init_key)


def init_state(task: Task, config: Config, key: Key) -> State:
    """Untrained policy and critics, of one seed or several."""

    def init_networks(key: Key) -> tuple[Network, Critics]:
        actor_key, critic_key = jax.random.split(key)
        sizes = (num_features(task), *config.hidden, 2 * len(task.action_names))
        return init_network(actor_key, sizes), init_critics(task, config.hidden, 2, critic_key)

    actor, critics = per_seed(init_networks, key)
    actor_optimiser, critic_optimiser = make_optimisers(config)
    is_seeded = bool(key.ndim)
    return State(
        init_learner(actor, actor_optimiser, is_seeded=is_seeded),
        init_learner(critics, critic_optimiser, is_seeded=is_seeded),
        target_critics=critics,
    )


def make_clone_update(
    task: Task, config: Config, optimiser: optax.GradientTransformation
) -> Update[CloneState, Key, Experience]:
    """One step of the clone, and of the price of its entropy, on a random batch."""
    wanted_entropy = -float(len(task.action_names))

    def update(
        state: CloneState, key: Key, experience: Experience, step: jax.Array
    ) -> tuple[CloneState, Metrics]:
        batch_key, sample_key = jax.random.split(jax.random.fold_in(key, step))
        batch = draw_batch(experience, task, config.clone.batch_size, batch_key)
        price = state.multiplier.params
        behaviour, metrics = descend(
            state.behaviour,
            optimiser,
            lambda network: cloning_loss(network, batch.states, batch.actions, price, sample_key),
        )
        multiplier = lower_price(state.multiplier, optimiser, metrics["entropy"], wanted_entropy)
        return CloneState(behaviour, multiplier), {**metrics, "multiplier": price}

    return update


def make_update(task: Task, config: Config) -> Update[State, Own, Experience]:
    """One step on a random batch: targets, critics, policy."""
    discount = config.discount or task.discount
    num_warm = round(config.warm_start * config.updates)
    actor_optimiser, critic_optimiser = make_optimisers(config)

    def update(
        state: State, own: Own, experience: Experience, step: jax.Array
    ) -> tuple[State, Metrics]:
        batch_key, next_key, policy_key = jax.random.split(jax.random.fold_in(own.key, step), 3)
        batch = draw_batch(experience, task, config.batch_size, batch_key)
        target_critics = polyak(state.target_critics, state.critics.params, config.target_rate)
        next_values = next_value(
            state.actor.params, target_critics, own.behaviour, batch.next_states, config, next_key
        )
        targets = td_target(batch, next_values, discount)
        critics, critic_metrics = descend(
            state.critics, critic_optimiser, lambda critics: critic_loss(critics, batch, targets)
        )
        value_weight = jnp.where(step >= num_warm, 1.0, 0.0)
        actor, policy_metrics = descend(
            state.actor,
            actor_optimiser,
            lambda actor: policy_loss(
                actor,
                critics.params,
                own.behaviour,
                batch.states,
                value_weight,
                config,
                policy_key,
            ),
        )
        return State(actor, critics, target_critics), {**critic_metrics, **policy_metrics}

    return update


def cloning_loss(
    behaviour: Network, states: jax.Array, actions: jax.Array, price: jax.Array, key: Key
) -> tuple[jax.Array, Metrics]:
    """L(ψ) = mean [κ log b(ã | s) − log b(a | s)] for logged actions [B, d]."""
    gaussian = bounded_gaussian(apply_network(behaviour, states))
    own = draw_before_tanh(gaussian, 1, key)
    entropy = -jnp.mean(log_density_of_sample(gaussian, own))
    loss = -price * entropy - jnp.mean(log_density(gaussian, actions[:, None]))
    return loss, {"loss": loss, "entropy": entropy}


def lower_price(
    multiplier: Learner[jax.Array],
    optimiser: optax.GradientTransformation,
    entropy: jax.Array,
    wanted: float,
) -> Learner[jax.Array]:
    """One step down J = κ (H − H̄) in κ, which is then kept at 0 or above."""

    def cost(price: jax.Array) -> tuple[jax.Array, Metrics]:
        return price * (entropy - wanted), {}

    stepped, _ = descend(multiplier, optimiser, cost)
    return stepped._replace(params=jnp.maximum(stepped.params, 0.0))


def next_value(
    actor: Network,
    critics: Critics,
    behaviour: Network,
    states: jax.Array,
    config: Config,
    key: Key,
) -> jax.Array:
    """min_c Q′_c(s′, a′) − α D(s′), or without the penalty under policy regularisation: [B]."""
    gaussian = bounded_gaussian(apply_network(actor, states))
    action_key, divergence_key = jax.random.split(key)
    actions = jnp.tanh(draw_before_tanh(gaussian, 1, action_key)[:, 0])
    values = jnp.min(q_values(critics, states, actions), axis=0)
    if config.regularisation == "policy":
        return values
    clone = bounded_gaussian(apply_network(behaviour, states))
    divergence = sample_divergence(gaussian, clone, config.divergence_samples, divergence_key)
    return values - config.divergence_weight * divergence


def policy_loss(
    actor: Network,
    critics: Critics,
    behaviour: Network,
    states: jax.Array,
    value_weight: jax.Array,
    config: Config,
    key: Key,
) -> tuple[jax.Array, Metrics]:
    """L(θ) = mean [α D(s) − min_c Q_c(s, ã)]."""
    gaussian = bounded_gaussian(apply_network(actor, states))
    clone = bounded_gaussian(apply_network(behaviour, states))
    action_key, divergence_key = jax.random.split(key)
    divergence = sample_divergence(gaussian, clone, config.divergence_samples, divergence_key)
    actions = jnp.tanh(draw_before_tanh(gaussian, 1, action_key)[:, 0])
    values = jnp.min(q_values(critics, states, actions), axis=0)
    loss = jnp.mean(config.divergence_weight * divergence - value_weight * values)
    return loss, {"policy_loss": loss, "kl": jnp.mean(divergence)}


def sample_divergence(policy: Gaussian, clone: Gaussian, count: int, key: Key) -> jax.Array:
    """D(s) = mean_i [log π(a_i | s) − log b(a_i | s)], a_i ~ π(s): [B]."""
    own = draw_before_tanh(policy, count, key)
    ratios = log_density_of_sample(policy, own) - log_density(clone, jnp.tanh(own))
    return jnp.mean(ratios, axis=-1)


def make_optimisers(
    config: Config,
) -> tuple[optax.GradientTransformation, optax.GradientTransformation]:
    """Of the policy, and of the critics."""
    return optax.adam(config.policy_learning_rate), optax.adam(config.learning_rate)


def cloning_updates(config: Config) -> int:
    """Gradient steps of the clone: as set, or as many as the policy's and at least 10,000."""
    return config.clone.updates or max(FEWEST_CLONING_UPDATES, config.updates)
