"""LION: a policy with a dial between what the log did and what the models promise.

After Swazinna, Udluft, Runkler: User-Interactive Offline Reinforcement Learning. A policy is
searched for all positions λ of a dial at once, by differentiating through imagined trajectories:

    π(s, λ) = (1 − λ) b(s) + λ μ(s, λ)
    L(θ)    = mean_λ [ −λ E[R] / R₀ + (1 − λ) (w_b C + w_p P) ],      λ ~ Beta(β, β)
    R_k     = Σ_t γᵗ (r_t − q r₀ d_t),     E[R] = η min_k R_k + (1 − η) mean_k R_k
    C       = mean_t γᵗ ‖π(s_t, λ) − b(s_t)‖²

======  ================  ===================================================================
symbol  name              meaning
======  ================  ===================================================================
λ       position          where the dial stands: 0 is the behaviour, 1 all that was found
θ       search            parameters of μ
b       behaviour         a clone of what the log did
d_t     distance          from the log's situations and ranges, beyond what is usual in it
q       distrust          share of a usual reward r₀ that is not believed, for a unit of distance
w_b     behaviour_weight  weight of the distance C from the behaviour's actions
w_p     support_weight    weight of MOOSE's penalty P, averaged over a trajectory
η       pessimism         weight of the worst model
β       beta              shape of the distribution of λ
R₀, r₀  —                 size of the log's mean return, and the reward that would make it
======  ================  ===================================================================

Where this is another algorithm than the paper's: λ = 0 is the clone by construction and not by a
term of the loss; μ sees only signals that known physics gives (where it gives any), so that in the
plant they go where they went in the models; and the return itself is believed less where the log
has not been, so that λ = 1 has its limits too. The loss is in :mod:`moose.algorithms.dial_loss`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from pydantic import Field

from moose.algorithms.dial_loss import (
    Given,
    Knowledge,
    Problem,
    SearchSettings,
    draw_starts,
    init_search,
    policy_loss,
    widened,
)
from moose.algorithms.imagination import learn_plant
from moose.config import Settings
from moose.data.dataset import Dataset
from moose.data.draws import draw_within
from moose.data.normalize import Statistics
from moose.data.split import split_episodes
from moose.models.actor import DialActor
from moose.models.behaviour import BehaviourSettings, fit_behaviour, measure_drawn
from moose.models.ensembles import AnyEnsemble, DynamicsSettings, ready
from moose.models.networks import Network
from moose.models.recurrent_scales import physical_scale
from moose.models.situations import SituationSettings, measure_situations
from moose.models.supervised import make_table
from moose.models.support import Familiarity, Support, SupportSettings, familiarity_by_seed
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
    falling_rate,
    init_learner,
    per_seed,
    repeat_update,
    split_keys,
)
from moose.types import Key


class Config(Settings):
    """All settings of LION."""

    held_out: float = Field(default=0.1, gt=0, lt=1)
    """Share of the episodes kept from training, to measure models on."""
    split_seed: int = Field(default=0, ge=0)
    """Seed of that split: the same for all training seeds."""
    position: float = Field(default=0.9, ge=0, le=1)
    """λ of the policy that is left behind, until somebody turns the dial."""
    dynamics: DynamicsSettings = DynamicsSettings(kind="recurrent")
    support: SupportSettings = SupportSettings(width=128, epochs=8, learning_rate=1e-3)
    situations: SituationSettings = SituationSettings()
    behaviour: BehaviourSettings = BehaviourSettings()
    search: SearchSettings = SearchSettings()


PRESETS: Mapping[str, Mapping[str, Any]] = MappingProxyType(
    {
        # Minutes on two cores: the defaults above, where they are not those of their parts.
        "fast": {
            "dynamics": {"kind": "recurrent"},
            "support": {"width": 128, "epochs": 8, "learning_rate": 1e-3},
        },
        # For tests and a first look.
        "quick": {
            "dynamics": {
                "kind": "recurrent",
                "members": 2,
                "recurrent": {"units": 16, "updates": 300, "rounds": 6},
            },
            "support": {"width": 64, "epochs": 4, "learning_rate": 1e-3},
            "behaviour": {"updates": 1000},
            "search": {
                "hidden": [64, 64],
                "updates": 100,
                "start_states": 50,
                "checks": 20,
            },
        },
    }
)


class Fitted(NamedTuple):
    """What a fit leaves behind; with several seeds, a leading axis on networks."""

    actor: DialActor
    ensemble: AnyEnsemble
    support: Support


def fit(
    dataset: Dataset,
    task: Task,
    config: Config,
    key: Key,
    *,
    progress: Progress = SILENT,
    journal: Journal = FORGETFUL,
    observe: Observer[DialActor] | None = None,
) -> Fitted:
    """Learn models, support and behaviour from a log, then search a policy for every position.

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
    models_key, support_key, behaviour_key, search_key = split_keys(key, 4)
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
    frame = measure_drawn(training, config.behaviour.early_share)
    behaviour = fit_behaviour(
        training, task, config.behaviour, frame, behaviour_key, progress=progress, journal=journal
    )
    actor = search_policy(
        training,
        task,
        config,
        ensemble,
        support,
        behaviour,
        frame,
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
    training = dataset.select_episodes(train)
    return familiarity_by_seed(fitted.support, training, task, config.support)


def search_policy(
    training: Dataset,
    task: Task,
    config: Config,
    ensemble: AnyEnsemble,
    support: Support,
    behaviour: Network,
    frame: Statistics,
    key: Key,
    *,
    progress: Progress = SILENT,
    journal: Journal = FORGETFUL,
    observe: Observer[DialActor] | None = None,
) -> DialActor:
    """Search μ by gradient descent through imagined trajectories; see :func:`fit`."""
    search, is_seeded = config.search, bool(key.ndim)
    problem = Problem(task, search, config.situations, config.support)
    init_key, update_key = split_keys(key, 2)
    known = physical_scale(frame, task)
    return_size = _size_of(training.discounted_returns(problem.discount, problem.horizon))
    weight = np.sum(problem.discount ** np.arange(problem.horizon), dtype=np.float64)
    knowledge = Knowledge(
        jax.vmap(ready)(ensemble.members) if is_seeded else ready(ensemble.members),
        support.autoencoder,
        behaviour,
        update_key,
    )
    given = Given(
        make_table(training),
        draw_within(training),
        ensemble.scales,
        support.scales,
        measure_situations(training, task, config.situations, jax.random.key(0)),
        frame,
        known,
        return_size=jnp.asarray(return_size),
        reward_size=jnp.asarray(np.float32(return_size / weight)),
    )
    inputs = task.history * len(problem.columns) + 1
    sizes = (inputs, *search.hidden, len(task.action_names))
    network = per_seed(lambda one: init_search(one, sizes, task), init_key)

    def actor_of_one(network: Network, behaviour: Network) -> DialActor:
        whole = widened(network, frame, known, task, problem.columns)
        return DialActor(behaviour, whole, frame, position=config.position)

    actor_of = jax.jit(jax.vmap(actor_of_one) if is_seeded else actor_of_one)
    optimiser = optax.chain(
        optax.clip_by_global_norm(search.gradient_clip),
        optax.adam(falling_rate(search.learning_rate, search.updates)),
    )
    learner = repeat_update(
        "policy",
        make_update(problem, optimiser),
        init_learner(network, optimiser, is_seeded=is_seeded),
        knowledge,
        given,
        total=search.updates,
        chunk=chunk_size(search.updates, search.checks),
        is_seeded=is_seeded,
        limits={"gradient_norm": (0.0, search.gradient_limit)},
        is_patient=True,
        progress=progress,
        journal=journal,
        observe=None
        if observe is None
        else lambda step, learner: observe(step, actor_of(learner.params, behaviour)),
    )
    actor: DialActor = actor_of(learner.params, behaviour)
    return actor


def make_update(
    problem: Problem, optimiser: optax.GradientTransformation
) -> Update[Learner[Network], Knowledge, Given]:
    """One step of gradient descent on the policy's loss, at random positions of the dial."""
    search = problem.search

    def update(
        learner: Learner[Network], knowledge: Knowledge, given: Given, step: jax.Array
    ) -> tuple[Learner[Network], Metrics]:
        # Of three, so that runs have the start states and positions that they always had.
        start_key, position_key, _ = jax.random.split(jax.random.fold_in(knowledge.key, step), 3)
        starts = draw_starts(given, problem, start_key)
        positions = jax.random.beta(position_key, search.beta, search.beta, (len(starts),))
        growing = max(search.growth * search.updates, 1.0)
        grown = jnp.minimum(step.astype(jnp.float32) / growing, 1.0)

        def loss(network: Network) -> tuple[jax.Array, Metrics]:
            return policy_loss(network, knowledge, given, problem, starts, positions, grown)

        gradients, metrics = jax.grad(loss, has_aux=True)(learner.params)
        size = optax.tree.norm(gradients)
        changes, state = optimiser.update(gradients, learner.optimiser)
        following = Learner(optax.apply_updates(learner.params, changes), state)
        # Of one trajectory that has become chaotic the slope can be anything, and the sum with it.
        is_followed = size <= search.gradient_limit
        learner = jax.tree.map(
            lambda new, old: jnp.where(is_followed, new, old), following, learner
        )
        largest = float(np.finfo(np.float32).max)
        return learner, {**metrics, "gradient_norm": jnp.nan_to_num(size, nan=largest)}

    return update


def _size_of(returns: np.ndarray) -> np.float32:
    """The mean size of returns; 1 if all are 0."""
    return np.float32(np.mean(np.abs(returns), dtype=np.float64) or 1.0)
