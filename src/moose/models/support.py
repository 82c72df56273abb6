"""The support of the data: a variational autoencoder over standardised (state, action).

What it reconstructs badly, the log has not seen: the mean squared reconstruction error of a pair is
the penalty of a policy search and the novelty score of a controller.

=====  ===========================================================
x      standardised (state, action), D numbers
z      latent, L = 2 d numbers by default, prior N(0, 1)
x̂      reconstruction of x
w      weight of the KL term (see :func:`kl_weight_of`)
=====  ===========================================================
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Annotated, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from pydantic import Field

from moose.data.dataset import Dataset
from moose.data.normalize import Array, Statistics, measure, standardise
from moose.models.networks import Dense, Network, apply_dense, apply_network, init_network
from moose.models.supervised import FitInputs, FitSettings, fit_epochs, make_table, windows_of
from moose.progress import SILENT, Progress
from moose.tasks.task import Task
from moose.training import FORGETFUL, Journal, per_seed, split_keys
from moose.types import Key

LOG_DEVIATION_RANGE = (-4.0, 15.0)
"""Bounds of an encoder's log-deviations."""
NOVELTY_QUANTILES = (0.01, 0.05, 0.1, 0.25, 0.5, 0.75, 0.9, 0.95, 0.98, 0.99, 0.995, 0.999, 1.0)
"""Where the errors on the training data are kept, as the scale of what is new."""
_ACTION_DEVIATION_FLOOR = 1e-2  # a log without exploration has almost constant actions


class SupportSettings(FitSettings):
    """How the support model is built and trained."""

    width: int = Field(default=750, ge=1)
    """Width of the encoder's one and the decoder's two hidden layers."""
    latents: int | None = Field(default=None, ge=1)
    """Latent numbers L; twice the action's by default."""
    kl_weight: Annotated[float, Field(ge=0)] | Literal["elbo"] = "elbo"
    """Weight w of the mean KL beside the mean squared error; "elbo": the unit-variance bound."""
    sees: Literal["window", "frame"] = "window"
    """Whether a pair's state is the whole history or its newest frame."""


class SupportScales(NamedTuple):
    """Statistics of the training data that the support model lives in."""

    frame: Statistics
    action: Statistics


class Autoencoder(NamedTuple):
    """Encoder (one hidden layer, two heads) and decoder."""

    encoder: Dense
    mean_head: Dense
    log_deviation_head: Dense
    decoder: Network


class Support(NamedTuple):
    """A fitted support model."""

    autoencoder: Autoencoder
    scales: SupportScales


class Familiarity(NamedTuple):
    """A support model and what its errors are on the data it was fitted to."""

    support: Support
    errors: Array
    """``[Q]``: reconstruction errors at :data:`NOVELTY_QUANTILES` of the training data."""


def fit_support(
    dataset: Dataset,
    task: Task,
    settings: SupportSettings,
    key: Key,
    *,
    progress: Progress = SILENT,
    journal: Journal = FORGETFUL,
) -> Support:
    """Train the autoencoder on the pairs of ``dataset``.

    Args:
        dataset: The training episodes.
        task: What is known about the plant.
        settings: Sizes and training.
        key: One key, or one for each of several seeds.
        progress: Whom to tell.
        journal: Where checkpoints and metrics go.

    Returns:
        The fitted support model.
    """
    untrained = init_support(dataset, task, settings, key)
    _, train_key = split_keys(key, 2)
    weight = kl_weight_of(task, settings)

    def loss(
        autoencoder: Autoencoder, inputs: FitInputs[SupportScales], chosen: jax.Array, key: Key
    ) -> jax.Array:
        table, scales = inputs
        windows = windows_of(table, chosen, frames_seen(task, settings))
        pairs = jax.vmap(support_inputs, (None, 0, 0))(scales, windows, table.actions[chosen])
        return autoencoder_loss(autoencoder, pairs, weight, key)

    autoencoder = fit_epochs(
        "support",
        loss,
        untrained.autoencoder,
        FitInputs(make_table(dataset), untrained.scales),
        settings,
        train_key,
        progress=progress,
        journal=journal,
    )
    return untrained._replace(autoencoder=autoencoder)


def init_support(dataset: Dataset, task: Task, settings: SupportSettings, key: Key) -> Support:
    """The support model before training; see :func:`fit_support`."""
    init_key, _ = split_keys(key, 2)
    autoencoder = per_seed(lambda one: init_autoencoder(task, settings, one), init_key)
    return Support(autoencoder, measure_support_scales(dataset))


def measure_novelty(
    support: Support,
    dataset: Dataset,
    task: Task,
    settings: SupportSettings,
    quantiles: Sequence[float],
) -> np.ndarray:
    """Quantiles of the reconstruction error over a data set: the scale of what is familiar.

    Args:
        support: The fitted support model.
        dataset: Episodes to look at.
        task: What is known about the plant.
        settings: The settings it was fitted with.
        quantiles: Which quantiles, each in [0, 1].

    Returns:
        One error a quantile.
    """
    return np.asarray(np.quantile(errors_of_pairs(support, dataset, task, settings), quantiles))


def errors_of_pairs(
    support: Support, dataset: Dataset, task: Task, settings: SupportSettings
) -> np.ndarray:
    """The reconstruction error of every pair of a data set, [N]; see :func:`measure_novelty`."""
    table = make_table(dataset)
    frames = frames_seen(task, settings)

    @jax.jit
    def errors_of(chosen: jax.Array) -> jax.Array:
        windows = windows_of(table, chosen, frames)
        pairs = jax.vmap(support_inputs, (None, 0, 0))(
            support.scales, windows, table.actions[chosen]
        )
        return reconstruction_error(support.autoencoder, pairs)

    # In pieces, so that a long log does not have to fit into memory as windows.
    chosen = np.arange(dataset.num_transitions, dtype=np.int32)
    pieces = np.array_split(chosen, max(1, len(chosen) // 10_000))
    return np.concatenate([np.asarray(errors_of(jnp.asarray(piece))) for piece in pieces])


def measure_familiarity(
    support: Support, dataset: Dataset, task: Task, settings: SupportSettings
) -> Familiarity:
    """What a controller needs to tell what is new to it; ``dataset``: the training episodes."""
    errors = measure_novelty(support, dataset, task, settings, NOVELTY_QUANTILES)
    return Familiarity(support, errors.astype(np.float32))


def familiarity_by_seed(
    support: Support, dataset: Dataset, task: Task, settings: SupportSettings
) -> Iterator[Familiarity]:
    """The same for each seed of a support model that may have a leading axis of seeds."""
    autoencoder = support.autoencoder
    is_seeded = autoencoder.encoder.bias.ndim > 1
    for i in range(len(autoencoder.encoder.bias) if is_seeded else 1):
        own = jax.tree.map(lambda leaf, i=i: leaf[i], autoencoder) if is_seeded else autoencoder
        yield measure_familiarity(support._replace(autoencoder=own), dataset, task, settings)


def measure_support_scales(dataset: Dataset) -> SupportScales:
    """Statistics of the training data; hardly varying actions are not blown up."""
    return SupportScales(
        frame=measure(dataset.observations[dataset.is_observed]),
        action=measure(dataset.actions, floor=_ACTION_DEVIATION_FLOOR),
    )


def init_autoencoder(task: Task, settings: SupportSettings, key: Key) -> Autoencoder:
    """An untrained autoencoder of the right shapes."""
    size, latents, width = num_inputs(task, settings), num_latents(task, settings), settings.width
    encoder_key, mean_key, deviation_key, decoder_key = jax.random.split(key, 4)
    return Autoencoder(
        encoder=init_network(encoder_key, (size, width))[0],
        mean_head=init_network(mean_key, (width, latents))[0],
        log_deviation_head=init_network(deviation_key, (width, latents))[0],
        decoder=init_network(decoder_key, (latents, width, width, size)),
    )


def support_inputs(scales: SupportScales, window: jax.Array, action: jax.Array) -> jax.Array:
    """x: the standardised frames the model sees [F', n] and the action [d] as one vector."""
    return jnp.concatenate(
        [standardise(window, scales.frame).reshape(-1), standardise(action, scales.action)]
    )


def autoencoder_loss(
    autoencoder: Autoencoder, pairs: jax.Array, kl_weight: float, key: Key
) -> jax.Array:
    """Mean squared error plus w times the mean KL to the prior, for pairs [B, D]."""
    mean, log_deviation = encode(autoencoder, pairs)
    latents = mean + jnp.exp(log_deviation) * jax.random.normal(key, mean.shape, mean.dtype)
    errors = apply_network(autoencoder.decoder, latents) - pairs
    return jnp.mean(errors**2) + kl_weight * jnp.mean(kl_to_prior(mean, log_deviation))


def kl_to_prior(mean: jax.Array, log_deviation: jax.Array) -> jax.Array:
    """KL(N(mean, deviation²) ‖ N(0, 1)) of every latent number."""
    return -0.5 * (1.0 + 2.0 * log_deviation - mean**2 - jnp.exp(2.0 * log_deviation))


def reconstruction_error(
    autoencoder: Autoencoder, pairs: jax.Array, noise: jax.Array | None = None
) -> jax.Array:
    """‖x − x̂‖² / D for pairs [..., D]; z is the mean, or a sample if noise [..., L] is given."""
    mean, log_deviation = encode(autoencoder, pairs)
    latents = mean if noise is None else mean + jnp.exp(log_deviation) * noise
    return jnp.mean((apply_network(autoencoder.decoder, latents) - pairs) ** 2, axis=-1)


@jax.custom_vjp
def errors_in_turn(
    autoencoder: Autoencoder, pairs: jax.Array, noise: jax.Array | None
) -> jax.Array:
    """:func:`reconstruction_error` of pairs [H, ..., D], one batch [..., D] after the other.

    A batch's slope is computed along with its errors, while what it takes is in the processor's
    cache; until a backward pass, which units of 40,000 pairs are active alone would be 90 MB. Only
    the pairs have a slope; autoencoder and noise are taken as given.
    """
    errors: jax.Array = jax.lax.map(
        lambda batch: reconstruction_error(autoencoder, *batch), (pairs, noise)
    )
    return errors


def _errors_and_slopes(
    autoencoder: Autoencoder, pairs: jax.Array, noise: jax.Array | None
) -> tuple[jax.Array, jax.Array]:
    def at(batch: tuple[jax.Array, jax.Array | None]) -> tuple[jax.Array, jax.Array]:
        pairs, noise = batch
        errors, pull_back = jax.vjp(lambda x: reconstruction_error(autoencoder, x, noise), pairs)
        (slopes,) = pull_back(jnp.ones_like(errors))
        return errors, slopes

    errors, slopes = jax.lax.map(at, (pairs, noise))
    return errors, slopes


def _pull_back_errors(slopes: jax.Array, cotangents: jax.Array) -> tuple[None, jax.Array, None]:
    return None, jax.vmap(jnp.multiply, (-1, None), -1)(slopes, cotangents), None


errors_in_turn.defvjp(_errors_and_slopes, _pull_back_errors)


def encode(autoencoder: Autoencoder, pairs: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Mean and log-deviation of the latents, [..., L] each."""
    hidden = jax.nn.relu(apply_dense(autoencoder.encoder, pairs))
    log_deviation = apply_dense(autoencoder.log_deviation_head, hidden)
    return apply_dense(autoencoder.mean_head, hidden), jnp.clip(log_deviation, *LOG_DEVIATION_RANGE)


def kl_weight_of(task: Task, settings: SupportSettings) -> float:
    """w: as set, or 2 L / D, which makes the loss proportional to the unit-variance bound."""
    if settings.kl_weight == "elbo":
        return 2.0 * num_latents(task, settings) / num_inputs(task, settings)
    return settings.kl_weight


def num_latents(task: Task, settings: SupportSettings) -> int:
    """L."""
    return settings.latents or 2 * len(task.action_names)


def num_inputs(task: Task, settings: SupportSettings) -> int:
    """D."""
    frames = frames_seen(task, settings)
    return frames * len(task.observation_names) + len(task.action_names)


def frames_seen(task: Task, settings: SupportSettings) -> int:
    """How many frames of the history the support model sees."""
    return task.history if settings.sees == "window" else 1
