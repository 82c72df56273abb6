"""What algorithms that imagine share: learning the plant, returns and penalties of trajectories.

======  =========  =============================================
symbol  name       meaning
======  =========  =============================================
η       pessimism  weight of the worst model
γ       discount   discount factor
H       —          steps of an imagined trajectory
K       —          models
N       —          start states
D       —          numbers in a pair x = standardised (s, a)
======  =========  =============================================
"""

from __future__ import annotations

import jax
import jax.numpy as jnp

from moose.config import digest
from moose.data.dataset import Dataset
from moose.models.ensembles import (
    AnyEnsemble,
    DynamicsSettings,
    fit_digest,
    fit_ensemble,
    init_ensemble,
)
from moose.models.rollout import Imagined, states_of
from moose.models.support import (
    Autoencoder,
    Support,
    SupportScales,
    SupportSettings,
    fit_support,
    init_support,
    reconstruction_error,
    support_inputs,
)
from moose.progress import SILENT, Progress
from moose.tasks.task import Task
from moose.training import FORGETFUL, Journal, key_numbers
from moose.types import Key


def learn_plant(
    training: Dataset,
    task: Task,
    dynamics: DynamicsSettings,
    support: SupportSettings,
    models_key: Key,
    support_key: Key,
    *,
    progress: Progress = SILENT,
    journal: Journal = FORGETFUL,
) -> tuple[AnyEnsemble, Support]:
    """Fit dynamics models and support model, or find them where an earlier run has left them.

    Args:
        training: The training episodes.
        task: What is known about the plant.
        dynamics: Settings of the models.
        support: Settings of the support model.
        models_key: One key, or one for each of several seeds.
        support_key: Likewise.
        progress: Whom to tell.
        journal: Where checkpoints, metrics and shared results go.

    Returns:
        Both.
    """
    ensemble = journal.once(
        "models",
        fit_digest(training, task, dynamics, models_key),
        init_ensemble(training, task, dynamics, models_key),
        lambda: fit_ensemble(
            training, task, dynamics, models_key, progress=progress, journal=journal
        ),
    )
    autoencoder = journal.once(
        "support",
        digest(training.fingerprint, task.facts, support, key_numbers(support_key)),
        init_support(training, task, support, support_key),
        lambda: fit_support(
            training, task, support, support_key, progress=progress, journal=journal
        ),
    )
    return ensemble, autoencoder


def discounted_return(rewards: jax.Array, discount: float) -> jax.Array:
    """R_k = Σ_t γᵗ r_t for rewards [H, K, N]: [K, N]."""
    weights = discount ** jnp.arange(len(rewards), dtype=rewards.dtype)
    return jnp.tensordot(weights, rewards, axes=1)


def expected_return(returns: jax.Array, pessimism: float) -> jax.Array:
    """E[R]: the mean over start states of :func:`pessimistic_return`; returns [K, N]."""
    return jnp.mean(pessimistic_return(returns, pessimism))


def pessimistic_return(returns: jax.Array, pessimism: float) -> jax.Array:
    """η min_k R_k + (1 − η) mean_k R_k of each start state, [N]; returns [K, N]."""
    worst, mean = jnp.min(returns, axis=0), jnp.mean(returns, axis=0)
    return pessimism * worst + (1.0 - pessimism) * mean


def expected_penalty(penalties: jax.Array) -> jax.Array:
    """E[P] = Σ_t P_t, mean over models and start states; penalties [H, K, N]."""
    return jnp.sum(jnp.mean(penalties, axis=(1, 2)))


def support_penalties(
    imagined: Imagined,
    autoencoder: Autoencoder,
    scales: SupportScales,
    *,
    frames: int,
    num_latents: int | None,
    key: Key,
) -> jax.Array:
    """‖x_t − x̂_t‖² / D of every imagined (state, action): [H, K, N].

    One time step after the other, each a batch of K·N pairs: large enough for the processor's
    peak, small enough for its cache.

    Args:
        imagined: The trajectories.
        autoencoder: The support model.
        scales: Its scales.
        frames: How many frames of a state it sees.
        num_latents: Its latents, to draw one sample of them for each pair; None for their mean.
        key: For the samples.

    Returns:
        The penalties.
    """
    states = states_of(imagined, frames)
    pair_of = jax.vmap(jax.vmap(support_inputs, (None, 0, 0)), (None, 0, 0))

    def penalties_at(step: tuple[jax.Array, jax.Array, jax.Array]) -> jax.Array:
        time, windows, actions = step
        pairs = pair_of(scales, windows, actions)
        noise = None
        if num_latents is not None:
            shape = (*pairs.shape[:-1], num_latents)
            noise = jax.random.normal(jax.random.fold_in(key, time), shape, pairs.dtype)
        return reconstruction_error(autoencoder, pairs, noise)

    penalties: jax.Array = jax.lax.map(
        penalties_at, (jnp.arange(len(states)), states, imagined.actions)
    )
    return penalties
