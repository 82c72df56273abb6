"""DDPG on a fixed log: Q-learning with a deterministic policy, free to leave the data.

Lillicrap et al.: Continuous Control with Deep Reinforcement Learning; sizes and rates as in the
comparison of Fujimoto, Meger, Precup: Off-Policy Deep Reinforcement Learning without Exploration.

    y     = r + γ m Q′(s′, μ′(s′))
    L(φ)  = mean (Q_φ(s, a) − y)²
    L(θ)  = −mean Q_φ(s, μ_θ(s))

======  ==============  ============================================
symbol  name            meaning
======  ==============  ============================================
θ       actor           parameters of the policy μ
φ       critics         parameters of the critic Q (one)
μ′, Q′  target_*        slow copies of both
m       continues       0 after a true end of the plant, else 1
γ       discount        discount factor
τ       target_rate     speed of the slow copies
======  ==============  ============================================

In the order of the equations, all on the same batch, the slow copies last. On a log that it cannot
add to, Q is asked about actions that nobody took; it grows beyond all that can be earned, and the
policy runs into a corner of the box. That is the finding, and nothing here mends it.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from moose.algorithms.critics import (
    Batch,
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
from moose.data.dataset import Dataset
from moose.models.actor import Actor, num_features
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
    per_seed,
    repeat_update,
    split_keys,
)
from moose.types import Key


class Config(CriticSettings):
    """All settings of DDPG."""


PRESETS: Mapping[str, Mapping[str, Any]] = MappingProxyType(
    {
        # The paper's figures for the Industrial Benchmark: the defaults above.
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

    actor: Learner[Network]
    critics: Learner[Critics]
    target_actor: Network
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
    """Learn a policy and its critic from a log.

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
    is_seeded = bool(key.ndim)
    init_key, update_key = split_keys(key, 2)
    experience = make_experience(dataset, config.inputs)
    optimiser = optax.adam(config.learning_rate)

    def actor_of_one(state: State) -> Actor:
        return Actor(state.actor.params, experience.scale)

    actor_of = for_each_seed(actor_of_one, is_seeded=is_seeded)
    state = repeat_update(
        "policy",
        make_update(task, config, optimiser),
        init_state(task, config, optimiser, init_key),
        update_key,
        experience,
        total=config.updates,
        chunk=chunk_size(config.updates, config.checks),
        is_seeded=is_seeded,
        progress=progress,
        journal=journal,
        observe=None if observe is None else lambda step, state: observe(step, actor_of(state)),
    )
    return Fitted(actor_of(state))


def init_state(
    task: Task, config: Config, optimiser: optax.GradientTransformation, key: Key
) -> State:
    """Untrained networks, of one seed or several."""

    def init_networks(key: Key) -> tuple[Network, Critics]:
        actor_key, critic_key = jax.random.split(key)
        sizes = (num_features(task), *config.hidden, len(task.action_names))
        return init_network(actor_key, sizes), init_critics(task, config.hidden, 1, critic_key)

    actor, critics = per_seed(init_networks, key)
    is_seeded = bool(key.ndim)
    return State(
        init_learner(actor, optimiser, is_seeded=is_seeded),
        init_learner(critics, optimiser, is_seeded=is_seeded),
        target_actor=actor,
        target_critics=critics,
    )


def make_update(
    task: Task, config: Config, optimiser: optax.GradientTransformation
) -> Update[State, Key, Experience]:
    """One step on a random batch."""
    discount = config.discount or task.discount

    def update(
        state: State, key: Key, experience: Experience, step: jax.Array
    ) -> tuple[State, Metrics]:
        batch = draw_batch(experience, task, config.batch_size, jax.random.fold_in(key, step))
        return learn(state, batch, optimiser, discount, config.target_rate)

    return update


def learn(
    state: State,
    batch: Batch,
    optimiser: optax.GradientTransformation,
    discount: float,
    target_rate: float,
) -> tuple[State, Metrics]:
    """Critic, then policy, then targets, on one batch."""
    next_values = target_value(state.target_actor, state.target_critics, batch.next_states)
    targets = td_target(batch, next_values, discount)
    critics, critic_metrics = descend(
        state.critics, optimiser, lambda critics: critic_loss(critics, batch, targets)
    )
    actor, actor_metrics = descend(
        state.actor, optimiser, lambda actor: policy_loss(actor, critics.params, batch.states)
    )
    return (
        State(
            actor,
            critics,
            target_actor=polyak(state.target_actor, actor.params, target_rate),
            target_critics=polyak(state.target_critics, critics.params, target_rate),
        ),
        {**critic_metrics, **actor_metrics},
    )


def target_value(actor: Network, critics: Critics, states: jax.Array) -> jax.Array:
    """Q′(s, μ′(s)) of states [B, S]: [B]."""
    return q_values(critics, states, policy_actions(actor, states))[0]


def policy_loss(actor: Network, critics: Critics, states: jax.Array) -> tuple[jax.Array, Metrics]:
    """L(θ) = −mean Q(s, μ_θ(s))."""
    loss = -jnp.mean(q_values(critics, states, policy_actions(actor, states))[0])
    return loss, {"policy_loss": loss}


def policy_actions(actor: Network, states: jax.Array) -> jax.Array:
    """μ(s) = tanh of the network, [B, d]."""
    return jnp.tanh(apply_network(actor, states))
