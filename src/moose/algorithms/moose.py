"""MOOSE: model-based offline policy search with ensembles.

Swazinna, Udluft, Runkler: Overcoming Model Bias for Robust Offline Deep Reinforcement Learning.

An ensemble of dynamics models and a model of the data's support are learned from one fixed log.
A deterministic policy is then searched by differentiating through imagined trajectories, paid for
imagined reward and penalised for leaving the support:

    L(θ) = −λ E[R] + (1 − λ) E[P]
    E[R] = η min_k R_k + (1 − η) mean_k R_k,     R_k = Σ_t γᵗ r̃(s_t, a_t, f_k(s_t, a_t))
    E[P] = Σ_t ‖x_t − x̂_t‖² / D,                x = standardised (s, a)

======  ====================  ===================================================
symbol  name                  meaning
======  ====================  ===================================================
θ       actor                 parameters of the policy
λ       return_weight         weight of the return; 1 is the unpenalised ablation
η       pessimism             weight of the worst model
γ       discount              discount factor
K       dynamics.members      models
N       start_states          start states of an update
H       horizon               steps of an imagined trajectory
r̃       —                     reward standardised by the data's mean and deviation
D       —                     numbers in (s, a)
======  ====================  ===================================================

What the paper leaves open is a setting: whether the sums over the horizon are means
(``return_reduction``, ``penalty_reduction``), which states trajectories start from (``starts``),
whether the penalty's latent is a sample or the mean (``latent``), the weight of the KL term and
what the support model sees (``support``). docs/reproduction.md tells how the defaults were chosen.
Termination is not modelled, as in the paper.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from pydantic import Field

from moose.algorithms.imagination import (
    discounted_return,
    expected_penalty,
    expected_return,
    latent_noise,
    learn_plant,
    support_penalties,
)
from moose.config import Settings
from moose.data.dataset import Dataset
from moose.data.normalize import standardise
from moose.data.split import split_episodes
from moose.models.actor import Actor, choose_action, init_actor
from moose.models.ensembles import (
    AnyEnsemble,
    AnyReadyMembers,
    AnyScales,
    DynamicsSettings,
    make_model,
    ready,
)
from moose.models.networks import Network
from moose.models.rollout import Imagined, imagine
from moose.models.supervised import TransitionTable, make_table, windows_of
from moose.models.support import (
    Autoencoder,
    Familiarity,
    Support,
    SupportScales,
    SupportSettings,
    familiarity_by_seed,
    frames_seen,
    num_latents,
)
from moose.progress import SILENT, Progress
from moose.tasks.task import Task
from moose.training import (
    FORGETFUL,
    Journal,
    Metrics,
    Observer,
    Update,
    by_shares,
    chunk_size,
    init_optimiser,
    per_seed,
    repeat_update,
    split_keys,
)
from moose.types import Key


class SearchSettings(Settings):
    """How the policy is searched."""

    hidden: tuple[int, ...] = (400, 300)
    """Widths of the policy's hidden layers."""
    updates: int = Field(default=1000, ge=1)
    """Gradient steps."""
    optimiser: Literal["sgd", "adam"] = "sgd"
    """Plain gradient descent, or Adam."""
    learning_rate: float = Field(default=1e-4, gt=0)
    """Step size."""
    return_weight: float = Field(default=0.01, ge=0, le=1)
    """λ: weight of the return; the penalty has 1 − λ."""
    pessimism: float = Field(default=0.5, ge=0, le=1)
    """η: weight of the worst model in the return; the mean of all has 1 − η."""
    start_states: int = Field(default=100, ge=1)
    """N: start states of an update."""
    starts: Literal["first", "early", "any"] = "early"
    """Start states: an episode's first, one of its first ``history`` states, or any."""
    horizon: int | None = Field(default=None, ge=1)
    """H: steps of an imagined trajectory; the task's by default."""
    discount: float | None = Field(default=None, gt=0, le=1)
    """γ: the task's by default."""
    return_reduction: Literal["sum", "mean"] = "sum"
    """Whether the discounted rewards of a trajectory are summed or averaged."""
    penalty_reduction: Literal["sum", "mean"] = "mean"
    """Whether the penalties of a trajectory are summed or averaged."""
    latent: Literal["mean", "sample"] = "sample"
    """z in the penalty: the encoder's mean, or one reparameterised sample."""
    checks: int = Field(default=100, ge=1)
    """How often, evenly spread, the state is kept and the policy shown to an observer."""
    gradient_limit: float = Field(default=1e8, gt=0)
    """A gradient norm beyond this stops the run."""
    gradient_floor: float = Field(default=1e-10, ge=0)
    """A gradient norm below this stops the run: such a policy learns nothing any more."""
    is_rematerialised: bool = False
    """Trade time for memory in the backward pass."""


class Config(Settings):
    """All settings of MOOSE."""

    held_out: float = Field(default=0.1, gt=0, lt=1)
    """Share of the episodes kept from training, to measure models on."""
    split_seed: int = Field(default=0, ge=0)
    """Seed of that split: the same for all training seeds."""
    dynamics: DynamicsSettings = DynamicsSettings()
    support: SupportSettings = SupportSettings()
    search: SearchSettings = SearchSettings()


PRESETS: Mapping[str, Mapping[str, Any]] = MappingProxyType(
    {
        # The paper's figures for the Industrial Benchmark: the defaults above.
        "paper": {},
        # The paper's figures for MuJoCo.
        "paper-mujoco": {
            "search": {"optimiser": "adam", "learning_rate": 1e-5, "updates": 5000},
        },
        # Small networks and short fits: for the demo, tests and a first look at one's own data.
        "quick": {
            "dynamics": {"hidden": [64, 64], "epochs": 10, "learning_rate": 1e-3},
            "support": {"width": 128, "epochs": 10, "learning_rate": 1e-3},
            "search": {
                "hidden": [64, 64],
                "updates": 200,
                "start_states": 50,
                "optimiser": "adam",
                "learning_rate": 1e-3,
            },
        },
    }
)


class Fitted(NamedTuple):
    """What a fit leaves behind; with several seeds, a leading axis on networks."""

    actor: Actor
    ensemble: AnyEnsemble
    support: Support


class Knowledge(NamedTuple):
    """What one seed has learned about the plant, ready for rollouts, and its key."""

    members: AnyReadyMembers
    autoencoder: Autoencoder
    key: Key


class Given(NamedTuple):
    """What all seeds have in common: the data, its scales, and where trajectories may start."""

    table: TransitionTable
    scales: AnyScales
    support_scales: SupportScales
    starts: jax.Array
    """Transitions whose states a trajectory may start from."""


class State(NamedTuple):
    """What an update changes."""

    actor: Actor
    optimiser: optax.OptState


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
    """Learn models and support from a log, then search a policy.

    Args:
        dataset: The log.
        task: What is known about the plant.
        config: All settings.
        key: One key, or one for each of several seeds.
        progress: Whom to tell.
        journal: Where checkpoints, metrics and shared results go.
        observe: Called with the number of updates done and the policy; cannot change it.

    Returns:
        The policy and the models behind it.
    """
    task.require(dataset)
    train, _ = split_episodes(dataset.num_episodes, config.held_out, config.split_seed)
    training = dataset.select_episodes(train)
    models_key, support_key, search_key = split_keys(key, 3)
    ensemble, support = learn_plant(
        training,
        task,
        config.dynamics,
        config.support,
        models_key,
        support_key,
        progress=progress,
        journal=journal,
    )
    actor = search_policy(
        training,
        task,
        config,
        ensemble,
        support,
        search_key,
        progress=progress,
        journal=journal,
        observe=observe,
    )
    return Fitted(actor, ensemble, support)


def familiarity(
    fitted: Fitted, dataset: Dataset, task: Task, config: Config
) -> Iterator[Familiarity]:
    """For each seed, what its controller needs to tell what is new to it; see :func:`fit`."""
    train, _ = split_episodes(dataset.num_episodes, config.held_out, config.split_seed)
    return familiarity_by_seed(fitted.support, dataset.select_episodes(train), task, config.support)


def search_policy(
    training: Dataset,
    task: Task,
    config: Config,
    ensemble: AnyEnsemble,
    support: Support,
    key: Key,
    *,
    progress: Progress = SILENT,
    journal: Journal = FORGETFUL,
    observe: Observer[Actor] | None = None,
) -> Actor:
    """Search a policy by gradient descent through imagined trajectories; see :func:`fit`."""
    search, is_seeded = config.search, bool(key.ndim)
    init_key, update_key = split_keys(key, 2)
    # The policy sees frames as the models do. Of recurrent models that is a signal's physical range
    # where it is known: imagined set-points leave a log in which they hardly moved, and in its
    # deviations they would be huge. Minimum and maximum are those of the log for either kind.
    actor = per_seed(
        lambda one: init_actor(task, ensemble.scales.frame, search.hidden, one), init_key
    )
    make = {"sgd": optax.sgd, "adam": optax.adam}[search.optimiser]
    optimiser = make(search.learning_rate)
    members = jax.vmap(ready)(ensemble.members) if is_seeded else ready(ensemble.members)
    state = repeat_update(
        "policy",
        make_update(task, config, optimiser),
        State(actor, init_optimiser(optimiser, actor.network, is_seeded=is_seeded)),
        Knowledge(members, support.autoencoder, update_key),
        Given(
            make_table(training),
            ensemble.scales,
            support.scales,
            start_transitions(training, task, search.starts),
        ),
        total=search.updates,
        chunk=chunk_size(search.updates, search.checks),
        is_seeded=is_seeded,
        limits={"gradient_norm": (search.gradient_floor, search.gradient_limit)},
        progress=progress,
        journal=journal,
        observe=None if observe is None else lambda step, state: observe(step, state.actor),
    )
    return state.actor


def make_update(
    task: Task, config: Config, optimiser: optax.GradientTransformation
) -> Update[State, Knowledge, Given]:
    """One step of gradient descent on the policy's loss."""

    def update(
        state: State, knowledge: Knowledge, given: Given, step: jax.Array
    ) -> tuple[State, Metrics]:
        start_key, latent_key = jax.random.split(jax.random.fold_in(knowledge.key, step))
        starts = draw_starts(given, task, config.search.start_states, start_key)

        def loss(network: Network) -> tuple[jax.Array, Metrics]:
            actor = state.actor._replace(network=network)
            return policy_loss(actor, knowledge, given, task, config, starts, latent_key)

        gradients, metrics = jax.grad(loss, has_aux=True)(state.actor.network)
        changes, optimiser_state = optimiser.update(gradients, state.optimiser)
        network = optax.apply_updates(state.actor.network, changes)
        norm = optax.tree.norm(gradients)
        return (
            State(state.actor._replace(network=network), optimiser_state),
            {**metrics, "gradient_norm": norm},
        )

    return update


def policy_loss(
    actor: Actor,
    knowledge: Knowledge,
    given: Given,
    task: Task,
    config: Config,
    starts: jax.Array,
    key: Key,
) -> tuple[jax.Array, Metrics]:
    """L(θ) = −λ E[R] + (1 − λ) E[P], and its parts as metrics."""
    search = config.search
    horizon = search.horizon or task.horizon
    discount = search.discount or task.discount
    shares = {"sum": 1.0, "mean": 1.0 / horizon}

    noise = None
    if search.latent == "sample":
        num_members = len(jax.tree.leaves(knowledge.members)[0])
        latents = num_latents(task, config.support)
        noise = latent_noise(key, starts, (num_members, horizon, len(starts), latents))

    def imagine_with(
        actor: Actor, share: tuple[AnyReadyMembers, jax.Array | None]
    ) -> tuple[Imagined, jax.Array]:
        members, noise = share
        imagined = imagine(
            lambda window: choose_action(actor, task, window),
            make_model(task, given.scales),
            members,
            starts,
            horizon,
            is_rematerialised=search.is_rematerialised,
        )
        penalties = support_penalties(
            imagined,
            knowledge.autoencoder,
            given.support_scales,
            frames=frames_seen(task, config.support),
            noise=noise,
        )
        return imagined, penalties

    imagined, penalties = by_shares(imagine_with, actor, (knowledge.members, noise), axis=1)
    rewards = standardise(imagined.rewards, given.scales.reward)
    returns = shares[search.return_reduction] * discounted_return(rewards, discount)
    penalty = shares[search.penalty_reduction] * expected_penalty(penalties)
    weight = search.return_weight
    loss = -weight * expected_return(returns, search.pessimism) + (1.0 - weight) * penalty
    raw_returns = discounted_return(imagined.rewards, discount)
    return loss, {
        "loss": loss,
        "imagined_return": jnp.mean(raw_returns),
        "model_spread": jnp.mean(jnp.std(raw_returns, axis=0)),
        "penalty": penalty,
    }


def draw_starts(given: Given, task: Task, count: int, key: Key) -> jax.Array:
    """Raw history windows [N, F, n] of states drawn from the allowed ones."""
    chosen = jax.random.choice(key, given.starts, (count,))
    return windows_of(given.table, chosen, task.history)


def start_transitions(training: Dataset, task: Task, rule: str) -> jax.Array:
    """Transitions whose states a trajectory may start from, by the rule's name."""
    age = training.observation_rows - training.first_rows
    oldest = {"first": 0, "early": task.history - 1, "any": age.max()}[rule]
    return jnp.asarray(np.flatnonzero(age <= oldest), dtype=jnp.int32)
