"""BEAR: Q-learning with a policy whose samples have to look like those of the log.

Kumar, Fu, Soh, Tucker, Levine: Stabilizing Off-Policy Q-Learning via Bootstrapping Error Reduction.

A tanh-Gaussian policy is held to the support of the log by the maximum mean discrepancy between its
samples and those of a conditional autoencoder, at a price α that is learned:

    L(ω)  = mean (â − a)² + ½ mean KL(q_ω(z | s, a) ‖ N(0, 1))
    V(s′) = max_i [¾ min_c Q′_c(s′, a_i) + ¼ max_c Q′_c(s′, a_i)],   a_i ~ π′(s′)
    L(φ)  = Σ_c mean (Q_c(s, a) − r − γ m V(s′))²
    L(θ)  = mean [−min_c mean_i Q_c(s, tanh u_i) + α MMD(w, u)]
    J(α)  = α (mean MMD(w, u) − ε), ascended in log α

=======  ==============  =================================================================
symbol   name            meaning
=======  ==============  =================================================================
ω        vae             parameters of the actions' autoencoder
θ        actor           parameters of the policy π
φ        critics         parameters of the critics Q_1, Q_2
u        —               policy's samples before tanh, their noise clipped to ±0.5
w        —               decoded samples before tanh, latents N(0, 1) clipped to ±0.5
α        log_multiplier  price of the discrepancy, exp of what is learned
ε        threshold       discrepancy that is free
π′, Q′   target_*        slow copies
m        continues       0 after a true end of the plant, else 1
γ        discount        discount factor
τ        target_rate     speed of the slow copies
=======  ==============  =================================================================

In this order, all on the same batch, each with what was learned before it; the slow copies last.
In the first part of the training, ``warm_start``, the policy is not paid for Q. It acts by the best
of several samples, which needs a key; ``acting: deterministic`` is the mode of the policy instead,
which is not in the paper.
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
    best_soft_clipped,
    critic_loss,
    draw_batch,
    init_critics,
    make_experience,
    mean_discrepancy,
    polyak,
    q_values_of_many,
    td_target,
)
from moose.data.dataset import Dataset
from moose.data.normalize import Statistics
from moose.models.action_vae import (
    ActionVae,
    action_vae_loss,
    init_action_vae,
    samples_before_tanh,
)
from moose.models.actor import Actor, SampledActor, mode_actor, num_features
from moose.models.gaussian import clipped_gaussian, draw_before_tanh
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

NOISE_LIMIT = 0.5
"""How far from 0 the noise of a sample may lie that is compared with the log's."""
LOG_MULTIPLIER_RANGE = (-5.0, 10.0)


class Config(CriticSettings):
    """All settings of BEAR."""

    vae_width: int = Field(default=750, ge=1)
    """Width of the two hidden layers of the actions' encoder and decoder."""
    kernel: Literal["laplacian", "gaussian"] = "laplacian"
    """Kernel of the discrepancy."""
    kernel_width: float = Field(default=10.0, gt=0)
    """σ of the kernel."""
    threshold: float = Field(default=0.05, ge=0)
    """ε: discrepancy that is free."""
    samples: int = Field(default=5, ge=1)
    """Samples of policy and log that are compared in each state."""
    target_samples: int = Field(default=10, ge=1)
    """Actions among which the target looks for the best."""
    warm_start: float = Field(default=0.2, ge=0, le=1)
    """Share of the updates in which the policy learns the discrepancy only."""
    acting: Literal["sampled", "deterministic"] = "sampled"
    """Acting by the best of several samples, or by the policy's mode."""
    acting_samples: int = Field(default=10, ge=1, le=100_000)
    """Samples among which the policy looks for the best."""


PRESETS: Mapping[str, Mapping[str, Any]] = MappingProxyType(
    {
        # The paper's figures for the Industrial Benchmark: the defaults above.
        "paper": {},
        # On Walker2d the kernel is Gaussian: --set kernel=gaussian --set kernel_width=20
        "paper-mujoco": {"inputs": "raw", "updates": 100_000},
        "quick": {"hidden": [64, 64], "updates": 2000, "vae_width": 128},
    }
)


class Fitted(NamedTuple):
    """What a fit leaves behind."""

    actor: Actor | SampledActor


class State(NamedTuple):
    """What an update changes."""

    vae: Learner[ActionVae]
    critics: Learner[Critics]
    actor: Learner[Network]
    log_multiplier: Learner[jax.Array]
    target_critics: Critics
    target_actor: Network


def fit(
    dataset: Dataset,
    task: Task,
    config: Config,
    key: Key,
    *,
    progress: Progress = SILENT,
    journal: Journal = FORGETFUL,
    observe: Observer[Actor | SampledActor] | None = None,
) -> Fitted:
    """Learn the log's actions, critics and a policy from a log.

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

    def actor_of_one(state: State) -> Actor | SampledActor:
        return make_actor(state, config, experience.scale)

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


def make_actor(state: State, config: Config, scale: Statistics) -> Actor | SampledActor:
    """The policy as it acts, of one seed."""
    network = state.actor.params
    if config.acting == "deterministic":
        return mode_actor(network, scale)
    return SampledActor(network, state.critics.params[0], scale, samples=config.acting_samples)


def init_state(
    task: Task, config: Config, optimiser: optax.GradientTransformation, key: Key
) -> State:
    """Untrained networks, of one seed or several."""
    num_state, num_action = num_features(task), len(task.action_names)

    def init_networks(key: Key) -> tuple[ActionVae, Critics, Network, jax.Array]:
        vae_key, critic_key, actor_key, multiplier_key = jax.random.split(key, 4)
        return (
            init_action_vae(num_state, num_action, config.vae_width, vae_key),
            init_critics(task, config.hidden, 2, critic_key),
            init_network(actor_key, (num_state, *config.hidden, 2 * num_action)),
            jax.random.normal(multiplier_key),
        )

    vae, critics, actor, log_multiplier = per_seed(init_networks, key)
    is_seeded = bool(key.ndim)
    return State(
        init_learner(vae, optimiser, is_seeded=is_seeded),
        init_learner(critics, optimiser, is_seeded=is_seeded),
        init_learner(actor, optimiser, is_seeded=is_seeded),
        init_learner(log_multiplier, optimiser, is_seeded=is_seeded),
        target_critics=critics,
        target_actor=actor,
    )


def make_update(
    task: Task, config: Config, optimiser: optax.GradientTransformation
) -> Update[State, Key, Experience]:
    """One step on a random batch: autoencoder, critics, policy, multiplier, targets."""
    discount, rate = config.discount or task.discount, config.target_rate
    num_warm = round(config.warm_start * config.updates)

    def update(
        state: State, key: Key, experience: Experience, step: jax.Array
    ) -> tuple[State, Metrics]:
        batch_key, vae_key, next_key, log_key, policy_key = jax.random.split(
            jax.random.fold_in(key, step), 5
        )
        batch = draw_batch(experience, task, config.batch_size, batch_key)
        vae, vae_metrics = descend(
            state.vae,
            optimiser,
            lambda vae: action_vae_loss(vae, batch.states, batch.actions, vae_key),
        )
        next_actions = policy_samples(
            state.target_actor, batch.next_states, config.target_samples, next_key
        )
        next_values = best_soft_clipped(state.target_critics, batch.next_states, next_actions)
        targets = td_target(batch, next_values, discount)
        critics, critic_metrics = descend(
            state.critics, optimiser, lambda critics: critic_loss(critics, batch, targets)
        )
        decoder = vae.params.decoder
        logged = samples_before_tanh(decoder, batch.states, config.samples, log_key)
        multiplier = jnp.exp(state.log_multiplier.params)
        value_weight = jnp.where(step >= num_warm, 1.0, 0.0)
        actor, policy_metrics = descend(
            state.actor,
            optimiser,
            lambda actor: policy_loss(
                actor,
                critics.params,
                batch.states,
                logged,
                multiplier,
                value_weight,
                config,
                policy_key,
            ),
        )
        log_multiplier = raise_price(
            state.log_multiplier, optimiser, policy_metrics["mmd"], config.threshold
        )
        state = State(
            vae,
            critics,
            actor,
            log_multiplier,
            target_critics=polyak(state.target_critics, critics.params, rate),
            target_actor=polyak(state.target_actor, actor.params, rate),
        )
        metrics = {**vae_metrics, **critic_metrics, **policy_metrics, "multiplier": multiplier}
        return state, metrics

    return update


def policy_samples(actor: Network, states: jax.Array, count: int, key: Key) -> jax.Array:
    """Actions [B, N, d] drawn from the policy in states [B, S]."""
    gaussian = clipped_gaussian(apply_network(actor, states))
    return jnp.tanh(draw_before_tanh(gaussian, count, key))


def policy_loss(
    actor: Network,
    critics: Critics,
    states: jax.Array,
    logged: jax.Array,
    multiplier: jax.Array,
    value_weight: jax.Array,
    config: Config,
    key: Key,
) -> tuple[jax.Array, Metrics]:
    """L(θ) = mean [−min_c mean_i Q_c(s, tanh u_i) + α MMD(w, u)], for the log's samples w."""
    gaussian = clipped_gaussian(apply_network(actor, states))
    samples = draw_before_tanh(gaussian, logged.shape[1], key, noise_limit=NOISE_LIMIT)
    discrepancy = mean_discrepancy(logged, samples, config.kernel, config.kernel_width)
    values = lowest_mean_value(critics, states, jnp.tanh(samples))
    loss = jnp.mean(multiplier * discrepancy - value_weight * values)
    return loss, {"policy_loss": loss, "mmd": jnp.mean(discrepancy)}


def lowest_mean_value(critics: Critics, states: jax.Array, actions: jax.Array) -> jax.Array:
    """min_c mean_i Q_c(s, a_i) of actions [B, N, d]: first the mean, then the lower critic; [B]."""
    return jnp.min(jnp.mean(q_values_of_many(critics, states, actions), axis=-1), axis=0)


def raise_price(
    log_multiplier: Learner[jax.Array],
    optimiser: optax.GradientTransformation,
    discrepancy: jax.Array,
    threshold: float,
) -> Learner[jax.Array]:
    """One step up J = α (MMD − ε) in log α, which is then clipped."""

    def negated(log_multiplier: jax.Array) -> tuple[jax.Array, Metrics]:
        return -jnp.exp(log_multiplier) * (discrepancy - threshold), {}

    stepped, _ = descend(log_multiplier, optimiser, negated)
    return stepped._replace(params=jnp.clip(stepped.params, *LOG_MULTIPLIER_RANGE))
