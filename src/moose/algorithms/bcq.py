"""BCQ: Q-learning among actions that the log might have taken.

Fujimoto, Meger, Precup: Off-Policy Deep Reinforcement Learning without Exploration.

A conditional autoencoder proposes actions, a small network perturbs them, two critics choose:

    L(ω)  = mean (â − a)² + ½ mean KL(q_ω(z | s, a) ‖ N(0, 1))
    V(s′) = max_i [¾ min_c Q′_c(s′, ã_i) + ¼ max_c Q′_c(s′, ã_i)],   ã_i = a_i + ξ′(s′, a_i, Φ)
    L(φ)  = Σ_c mean (Q_c(s, a) − r − γ m V(s′))²
    L(ξ)  = −mean Q_1(s, a + ξ(s, a, Φ))

=======  ==================  ==========================================================
symbol   name                meaning
=======  ==================  ==========================================================
ω        vae                 parameters of the actions' autoencoder
a_i      —                   decoded actions, latents N(0, 1) clipped to ±0.5
ξ        perturbation        perturbation network, at most Φ
Φ        perturbation_limit  size of the largest perturbation
φ        critics             parameters of the critics Q_1, Q_2
ξ′, Q′   target_*            slow copies
m        continues           0 after a true end of the plant, else 1
γ        discount            discount factor
τ        target_rate         speed of the slow copies
=======  ==================  ==========================================================

In this order, all on the same batch, each with what was learned before it; the slow copies last.
It acts by the best of many decoded and perturbed samples, which needs a key; ``acting:
deterministic`` decodes the latent 0 instead, which is not in the paper.
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
    polyak,
    q_values_of_many,
    td_target,
)
from moose.data.dataset import Dataset
from moose.data.normalize import Statistics
from moose.models.action_vae import (
    ActionVae,
    action_vae_loss,
    decoded_samples,
    init_action_vae,
    perturbed_actions,
)
from moose.models.actor import DecodedActor, SampledDecodedActor, num_features
from moose.models.networks import Network, init_network
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

AnyDecodedActor = DecodedActor | SampledDecodedActor


class Config(CriticSettings):
    """All settings of BCQ."""

    vae_width: int = Field(default=750, ge=1)
    """Width of the two hidden layers of the actions' encoder and decoder."""
    perturbation_limit: float = Field(default=0.05, gt=0, le=2)
    """Φ: size of the largest perturbation, in a box of −1 to 1."""
    target_samples: int = Field(default=10, ge=1)
    """Actions among which the target looks for the best."""
    acting: Literal["sampled", "deterministic"] = "sampled"
    """Acting by the best of many samples, or by what the latent 0 decodes to."""
    acting_samples: int = Field(default=100, ge=1, le=100_000)
    """Samples among which the policy looks for the best."""


PRESETS: Mapping[str, Mapping[str, Any]] = MappingProxyType(
    {
        # The paper's figures for the Industrial Benchmark: the defaults above.
        "paper": {},
        "paper-mujoco": {"inputs": "raw", "updates": 100_000},
        "quick": {"hidden": [64, 64], "updates": 2000, "vae_width": 128},
    }
)


class Fitted(NamedTuple):
    """What a fit leaves behind."""

    actor: AnyDecodedActor


class State(NamedTuple):
    """What an update changes."""

    vae: Learner[ActionVae]
    critics: Learner[Critics]
    perturbation: Learner[Network]
    target_critics: Critics
    target_perturbation: Network


def fit(
    dataset: Dataset,
    task: Task,
    config: Config,
    key: Key,
    *,
    progress: Progress = SILENT,
    journal: Journal = FORGETFUL,
    observe: Observer[AnyDecodedActor] | None = None,
) -> Fitted:
    """Learn proposals, critics and perturbations from a log.

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

    def actor_of_one(state: State) -> AnyDecodedActor:
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


def make_actor(state: State, config: Config, scale: Statistics) -> AnyDecodedActor:
    """The policy as it acts, of one seed."""
    decoder, perturbation = state.vae.params.decoder, state.perturbation.params
    limit = config.perturbation_limit
    if config.acting == "deterministic":
        return DecodedActor(decoder, perturbation, scale, limit)
    critic = state.critics.params[0]
    return SampledDecodedActor(
        decoder, perturbation, critic, scale, limit=limit, samples=config.acting_samples
    )


def init_state(
    task: Task, config: Config, optimiser: optax.GradientTransformation, key: Key
) -> State:
    """Untrained networks, of one seed or several."""
    num_state, num_action = num_features(task), len(task.action_names)

    def init_networks(key: Key) -> tuple[ActionVae, Critics, Network]:
        vae_key, critic_key, perturbation_key = jax.random.split(key, 3)
        return (
            init_action_vae(num_state, num_action, config.vae_width, vae_key),
            init_critics(task, config.hidden, 2, critic_key),
            init_network(perturbation_key, (num_state + num_action, *config.hidden, num_action)),
        )

    vae, critics, perturbation = per_seed(init_networks, key)
    is_seeded = bool(key.ndim)
    return State(
        init_learner(vae, optimiser, is_seeded=is_seeded),
        init_learner(critics, optimiser, is_seeded=is_seeded),
        init_learner(perturbation, optimiser, is_seeded=is_seeded),
        target_critics=critics,
        target_perturbation=perturbation,
    )


def make_update(
    task: Task, config: Config, optimiser: optax.GradientTransformation
) -> Update[State, Key, Experience]:
    """One step on a random batch: autoencoder, critics, perturbation, targets."""
    discount = config.discount or task.discount
    limit, rate = config.perturbation_limit, config.target_rate

    def update(
        state: State, key: Key, experience: Experience, step: jax.Array
    ) -> tuple[State, Metrics]:
        batch_key, vae_key, next_key, policy_key = jax.random.split(
            jax.random.fold_in(key, step), 4
        )
        batch = draw_batch(experience, task, config.batch_size, batch_key)
        vae, vae_metrics = descend(
            state.vae,
            optimiser,
            lambda vae: action_vae_loss(vae, batch.states, batch.actions, vae_key),
        )
        decoder = vae.params.decoder
        next_actions = decoded_samples(decoder, batch.next_states, config.target_samples, next_key)
        next_actions = perturbed_actions(
            state.target_perturbation, batch.next_states, next_actions, limit
        )
        next_values = best_soft_clipped(state.target_critics, batch.next_states, next_actions)
        targets = td_target(batch, next_values, discount)
        critics, critic_metrics = descend(
            state.critics, optimiser, lambda critics: critic_loss(critics, batch, targets)
        )
        proposed = decoded_samples(decoder, batch.states, 1, policy_key)
        perturbation, policy_metrics = descend(
            state.perturbation,
            optimiser,
            lambda network: perturbation_loss(
                network, critics.params, batch.states, proposed, limit
            ),
        )
        state = State(
            vae,
            critics,
            perturbation,
            target_critics=polyak(state.target_critics, critics.params, rate),
            target_perturbation=polyak(state.target_perturbation, perturbation.params, rate),
        )
        return state, {**vae_metrics, **critic_metrics, **policy_metrics}

    return update


def perturbation_loss(
    perturbation: Network, critics: Critics, states: jax.Array, actions: jax.Array, limit: float
) -> tuple[jax.Array, Metrics]:
    """L(ξ) = −mean Q_1(s, a + ξ(s, a, Φ)) for proposed actions [B, N, d]."""
    shifted = perturbed_actions(perturbation, states, actions, limit)
    loss = -jnp.mean(q_values_of_many(critics[:1], states, shifted))
    return loss, {"policy_loss": loss}
