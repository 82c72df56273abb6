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
    errors_in_turn,
    fit_support,
    init_support,
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

    def learn_support() -> Support:
        return journal.once(
            "support",
            digest(training.fingerprint, task.facts, support, key_numbers(support_key)),
            init_support(training, task, support, support_key),
            lambda: fit_support(
                training, task, support, support_key, progress=progress, journal=journal
            ),
        )

    ensemble = journal.once(
        "models",
        fit_digest(training, task, dynamics, models_key),
        init_ensemble(training, task, dynamics, models_key),
        lambda: fit_ensemble(
            training, task, dynamics, models_key, progress=progress, journal=journal
        ),
        meanwhile=learn_support,
    )
    return ensemble, learn_support()


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
    noise: jax.Array | None,
) -> jax.Array:
    """‖x_t − x̂_t‖² / D of every imagined (state, action): [H, K, N].

    Args:
        imagined: The trajectories.
        autoencoder: The support model; it is not learned from the penalties.
        scales: Its scales.
        frames: How many frames of a state it sees.
        noise: [K, H, N, L] of one sample of the latents for each pair; None for their mean.

    Returns:
        The penalties.
    """
    pairs_of = support_inputs
    for _ in ("N", "K", "H"):
        pairs_of = jax.vmap(pairs_of, (None, 0, 0))
    pairs = pairs_of(scales, states_of(imagined, frames), imagined.actions)
    return errors_in_turn(autoencoder, pairs, None if noise is None else jnp.moveaxis(noise, 0, 1))


def latent_noise(key: Key, like: jax.Array, shape: tuple[int, int, int, int]) -> jax.Array:
    """Standard normal numbers for the latents of imagined pairs, members first.

    Args:
        key: One key; each time step has its own numbers.
        like: An array of the wanted type.
        shape: (K, H, N, L).

    Returns:
        [K, H, N, L].
    """
    members, horizon, *rest = shape

    def draw(time: jax.Array) -> jax.Array:
        return jax.random.normal(jax.random.fold_in(key, time), (members, *rest), like.dtype)

    return jnp.moveaxis(jax.vmap(draw)(jnp.arange(horizon)), 0, 1)
