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
d_t     distance          from the nearest logged situation, beyond what is usual in the log
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
has not been, so that λ = 1 has its limits too.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from pydantic import Field

from moose.algorithms.imagination import (
    discounted_return,
    learn_plant,
    pessimistic_return,
    support_penalties,
)
from moose.config import Settings
from moose.data.dataset import Dataset
from moose.data.draws import Draw, draw_first_steps, draw_steps, draw_within
from moose.data.normalize import Statistics, standardise
from moose.data.split import split_episodes
from moose.models.actor import DialActor
from moose.models.behaviour import (
    BehaviourSettings,
    behaviour_action,
    fit_behaviour,
    measure_drawn,
)
from moose.models.ensembles import (
    AnyEnsemble,
    AnyReadyMembers,
    AnyScales,
    DynamicsSettings,
    make_model,
    ready,
)
from moose.models.networks import Dense, Network, apply_network, init_network
from moose.models.recurrent import given_columns, physical_scale
from moose.models.rollout import Imagined, imagine_each, states_of
from moose.models.situations import (
    Situations,
    SituationSettings,
    distances,
    measure_situations,
)
from moose.models.supervised import TransitionTable, make_table, windows_of
from moose.models.support import (
    Autoencoder,
    Familiarity,
    Support,
    SupportScales,
    SupportSettings,
    familiarity_by_seed,
    frames_seen,
)
from moose.progress import SILENT, Progress
from moose.tasks.task import Task, from_box, to_box
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

_FIRST_SIZE = 0.01  # of what an untrained search adds to holding still
_MOST_STILL = 0.95  # an action at its bound has no slope to leave it by


class SearchSettings(Settings):
    """How the policy is searched."""

    hidden: tuple[int, ...] = (64, 64)
    """Widths of the hidden layers of μ."""
    updates: int = Field(default=300, ge=1)
    """Gradient steps."""
    learning_rate: float = Field(default=3e-3, gt=0)
    """First step size of Adam, from which it falls to 0 along a cosine."""
    gradient_clip: float = Field(default=1.0, gt=0)
    """Largest norm of a gradient."""
    beta: float = Field(default=0.3, gt=0)
    """β: λ is drawn from Beta(β, β); below 1 its ends are more likely than its middle."""
    sees: Literal["given", "all"] = "given"
    """Whether μ sees the signals that physics gives (all, where it gives none), or all."""
    pessimism: float = Field(default=0.5, ge=0, le=1)
    """η: weight of the worst model in the return; the mean of all has 1 − η."""
    distrust: float = Field(default=0.6, ge=0)
    """q: share of a usual reward that is not believed, for a unit of distance from the log."""
    growth: float = Field(default=0.5, ge=0, le=1)
    """Share of the updates in which the distrust grows from 0 to q."""
    behaviour_weight: float = Field(default=1.0, ge=0)
    """w_b: weight of the distance from the behaviour's actions."""
    support_weight: float = Field(default=0.0, ge=0)
    """w_p: weight of MOOSE's support penalty."""
    start_states: int = Field(default=100, ge=1)
    """N: start states of an update."""
    first_share: float = Field(default=0.5, ge=0, le=1)
    """Share of them that are an episode's first."""
    early_share: float = Field(default=1.0, ge=0, le=1)
    """Share of the others from early in an episode: every doubling of age as likely."""
    horizon: int | None = Field(default=None, ge=1)
    """H: steps of an imagined trajectory; the task's by default."""
    discount: float | None = Field(default=None, gt=0, le=1)
    """γ: the task's by default."""
    checks: int = Field(default=100, ge=1)
    """How often, evenly spread, the state is kept and the policy shown to an observer."""
    gradient_limit: float = Field(default=1e8, gt=0)
    """A gradient norm beyond this stops the run."""
    is_rematerialised: bool = True
    """Compute a step's values again in the backward pass; on a CPU the quicker way too."""


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
            "search": {"updates": 100, "start_states": 50, "checks": 20},
        },
    }
)


class Fitted(NamedTuple):
    """What a fit leaves behind; with several seeds, a leading axis on networks."""

    actor: DialActor
    ensemble: AnyEnsemble
    support: Support


class Knowledge(NamedTuple):
    """What one seed has learned about the plant and its behaviour, and its key."""

    members: AnyReadyMembers
    autoencoder: Autoencoder
    behaviour: Network
    key: Key


class Given(NamedTuple):
    """What all seeds have in common."""

    table: TransitionTable
    log: Draw
    scales: AnyScales
    support_scales: SupportScales
    situations: Situations
    frame: Statistics
    """Scale of the behaviour's inputs."""
    known: Statistics
    """Scale of the search's inputs."""
    return_size: jax.Array
    """R₀"""
    reward_size: jax.Array
    """r₀"""


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
    init_key, update_key = split_keys(key, 2)
    inputs = task.history * len(seen_columns(task, search)) + 1
    sizes = (inputs, *search.hidden, len(task.action_names))
    network = per_seed(lambda one: init_search(one, sizes, task), init_key)
    optimiser = optax.chain(
        optax.clip_by_global_norm(search.gradient_clip),
        optax.adam(falling_rate(search.learning_rate, search.updates)),
    )
    known = physical_scale(frame, task)

    def actor_of_one(network: Network, behaviour: Network) -> DialActor:
        whole = widened(network, frame, known, task, seen_columns(task, search))
        return DialActor(behaviour, whole, frame, position=config.position)

    actor_of = jax.jit(jax.vmap(actor_of_one) if is_seeded else actor_of_one)
    horizon, discount = search.horizon or task.horizon, search.discount or task.discount
    return_size = _size_of(training.discounted_returns(discount, horizon))
    weight = np.sum(discount ** np.arange(horizon), dtype=np.float64)
    learner = repeat_update(
        "policy",
        make_update(task, config, optimiser),
        init_learner(network, optimiser, is_seeded=is_seeded),
        Knowledge(
            jax.vmap(ready)(ensemble.members) if is_seeded else ready(ensemble.members),
            support.autoencoder,
            behaviour,
            update_key,
        ),
        Given(
            make_table(training),
            draw_within(training),
            ensemble.scales,
            support.scales,
            measure_situations(training, task, config.situations, jax.random.key(0)),
            frame,
            known,
            return_size=jnp.asarray(return_size),
            reward_size=jnp.asarray(np.float32(return_size / weight)),
        ),
        total=search.updates,
        chunk=chunk_size(search.updates, search.checks),
        is_seeded=is_seeded,
        limits={"gradient_norm": (0.0, search.gradient_limit)},
        progress=progress,
        journal=journal,
        observe=None
        if observe is None
        else lambda step, learner: observe(step, actor_of(learner.params, behaviour)),
    )
    actor: DialActor = actor_of(learner.params, behaviour)
    return actor


def init_search(key: Key, sizes: Sequence[int], task: Task) -> Network:
    """An untrained μ, which holds still: the search begins with doing nothing, nearly everywhere.

    Where holding is no action, it begins in the middle of the actions' range.
    """
    *hidden, last = init_network(key, sizes)
    still = jnp.zeros_like(last.bias)
    if task.hold_action is not None:
        still = to_box(jnp.asarray(task.hold_action, last.bias.dtype), task)
    bias = jnp.arctanh(jnp.clip(still, -_MOST_STILL, _MOST_STILL)) + _FIRST_SIZE * last.bias
    return (*hidden, Dense(_FIRST_SIZE * last.weight, bias))


def make_update(
    task: Task, config: Config, optimiser: optax.GradientTransformation
) -> Update[Learner[Network], Knowledge, Given]:
    """One step of gradient descent on the policy's loss, at random positions of the dial."""
    search = config.search

    def update(
        learner: Learner[Network], knowledge: Knowledge, given: Given, step: jax.Array
    ) -> tuple[Learner[Network], Metrics]:
        start_key, position_key, latent_key = jax.random.split(
            jax.random.fold_in(knowledge.key, step), 3
        )
        first_key, other_key = jax.random.split(start_key)
        num_first = round(search.first_share * search.start_states)
        firsts = draw_first_steps(given.log, num_first, first_key)
        num_others = search.start_states - num_first
        others = draw_steps(given.log, num_others, search.early_share, other_key)
        chosen = jnp.concatenate([firsts, others])
        starts = windows_of(given.table, chosen, task.history)
        positions = jax.random.beta(position_key, search.beta, search.beta, (len(starts),))
        growing = max(search.growth * search.updates, 1.0)
        grown = jnp.minimum(step.astype(jnp.float32) / growing, 1.0)

        def loss(network: Network) -> tuple[jax.Array, Metrics]:
            return policy_loss(
                network, knowledge, given, task, config, starts, positions, grown, latent_key
            )

        gradients, metrics = jax.grad(loss, has_aux=True)(learner.params)
        changes, state = optimiser.update(gradients, learner.optimiser)
        metrics = {**metrics, "gradient_norm": optax.tree.norm(gradients)}
        return Learner(optax.apply_updates(learner.params, changes), state), metrics

    return update


def policy_loss(
    network: Network,
    knowledge: Knowledge,
    given: Given,
    task: Task,
    config: Config,
    starts: jax.Array,
    positions: jax.Array,
    grown: jax.Array,
    key: Key,
) -> tuple[jax.Array, Metrics]:
    """L(θ) for start states [N, F, n] and a position for each [N], and its parts as metrics."""
    search = config.search
    discount = search.discount or task.discount
    columns = seen_columns(task, search)

    def choose(window: jax.Array, position: jax.Array) -> jax.Array:
        known = behaviour_action(knowledge.behaviour, given.frame, window)
        found = found_action(network, given.known, window, columns, position)
        return from_box(known + position * (found - known), task)

    imagined = imagine_each(
        choose,
        make_model(task, given.scales),
        knowledge.members,
        starts,
        positions,
        search.horizon or task.horizon,
        is_rematerialised=search.is_rematerialised,
    )
    apart = distances(given.situations, imagined, task, config.situations)
    believed = imagined.rewards - grown * search.distrust * given.reward_size * apart
    returns = pessimistic_return(discounted_return(believed, discount), search.pessimism)
    penalty = jnp.zeros_like(returns)
    if search.behaviour_weight:
        strayed = behaviour_distances(imagined, knowledge.behaviour, given.frame, task, discount)
        penalty = penalty + search.behaviour_weight * strayed
    if search.support_weight:
        errors = support_penalties(
            imagined,
            knowledge.autoencoder,
            given.support_scales,
            frames=frames_seen(task, config.support),
            num_latents=None,
            key=key,
        )
        penalty = penalty + search.support_weight * jnp.mean(errors, axis=(0, 1))
    losses = -positions * returns / given.return_size + (1.0 - positions) * penalty
    loss = jnp.mean(losses)
    raw_returns = discounted_return(imagined.rewards, discount)
    return loss, {
        "loss": loss,
        "imagined_return": jnp.mean(raw_returns),
        "model_spread": jnp.mean(jnp.std(raw_returns, axis=0)),
        "distance": jnp.mean(apart),
        "penalty": jnp.mean(penalty),
    }


def found_action(
    network: Network,
    scale: Statistics,
    window: jax.Array,
    columns: tuple[int, ...],
    position: jax.Array,
) -> jax.Array:
    """μ(s, λ) in the box [−1, 1]^d, for a raw window [F, n]."""
    seen = standardise(window, scale)[:, jnp.asarray(columns)].reshape(-1)
    return jnp.tanh(apply_network(network, jnp.concatenate([seen, position[None]])))


def behaviour_distances(
    imagined: Imagined, behaviour: Network, scale: Statistics, task: Task, discount: float
) -> jax.Array:
    """C = mean_t γᵗ ‖π − b‖² of the trajectories of each start state, mean over models: [N]."""

    def at_step(step: tuple[jax.Array, jax.Array]) -> jax.Array:
        windows, actions = step
        known = jax.vmap(jax.vmap(lambda window: behaviour_action(behaviour, scale, window)))(
            windows
        )
        chosen = jax.vmap(jax.vmap(lambda action: to_box(action, task)))(actions)
        return jnp.sum((chosen - known) ** 2, axis=-1)

    strayed: jax.Array = jax.lax.map(at_step, (states_of(imagined, task.history), imagined.actions))
    return jnp.mean(discounted_return(strayed, discount), axis=0) / len(strayed)


def seen_columns(task: Task, search: SearchSettings) -> tuple[int, ...]:
    """The signals that μ sees."""
    given = given_columns(task) if search.sees == "given" else ()
    return given or tuple(range(len(task.observation_names)))


def widened(
    network: Network, frame: Statistics, known: Statistics, task: Task, columns: tuple[int, ...]
) -> Network:
    """μ as a network of all signals on the behaviour's scale; those it does not see weigh 0."""
    first, *rest = network
    signals, history, seen = len(task.observation_names), task.history, jnp.asarray(columns)
    weight = first.weight[:-1].reshape(history, len(columns), -1)
    ratio = (jnp.asarray(frame.deviation) / jnp.asarray(known.deviation))[seen]
    shift = ((jnp.asarray(frame.mean) - jnp.asarray(known.mean)) / jnp.asarray(known.deviation))[
        seen
    ]
    whole = jnp.zeros((history, signals, weight.shape[-1]), weight.dtype)
    whole = whole.at[:, seen].set(weight * ratio[None, :, None])
    flat = jnp.concatenate([whole.reshape(history * signals, -1), first.weight[-1:]])
    return (Dense(flat, first.bias + jnp.einsum("hco,c->o", weight, shift)), *rest)


def _size_of(returns: np.ndarray) -> np.float32:
    """The mean size of returns; 1 if all are 0."""
    return np.float32(np.mean(np.abs(returns), dtype=np.float64) or 1.0)
