"""The host loop that every fit shares: compiled chunks, and between them reports and checkpoints.

A fit is a pure ``update(state, step) -> (state, metrics)`` repeated a known number of times. It is
compiled as a chunk (a ``scan`` over steps, with the state donated); between two chunks this loop
reports progress, keeps the state in a :class:`Journal` and stops when a number is no longer finite.
Randomness comes from the step's number, so a resumed fit repeats the stream of an undisturbed one.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Generic, NamedTuple, Protocol, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
import optax

from moose.errors import RunError
from moose.progress import SILENT, Progress
from moose.types import Key, Params

State = TypeVar("State")
Result = TypeVar("Result")
Own = TypeVar("Own")
Shared = TypeVar("Shared")
Metrics = Mapping[str, jax.Array]
Update = Callable[[State, Own, Shared, jax.Array], tuple[State, Metrics]]
"""``update(state, own, shared, step) -> (state, metrics)``: pure. ``own`` is what one seed has for
itself and does not change, its key among it (fold the step in); ``shared`` is what all seeds have
in common, such as the data."""

Observer = Callable[[int, State], None]
"""``observe(step, state)``: looks at the state after ``step`` steps; the copy is its own."""


class Journal(Protocol):
    """Where a run keeps what it must not lose."""

    def restore(self, stage: str, like: State) -> tuple[State, int]:
        """The newest kept state of a stage and its step, or ``(like, 0)``."""

    def keep(self, stage: str, step: int, state: object) -> None:
        """Keep the state after ``step`` steps; it survives the process."""

    def record(self, stage: str, step: int, metrics: Mapping[str, np.ndarray]) -> None:
        """Append the metrics of the steps from ``step`` on."""

    def once(
        self,
        name: str,
        digest: str,
        like: State,
        make: Callable[[], State],
        *,
        meanwhile: Callable[[], object] | None = None,
    ) -> State:
        """The result stored under this digest, or the one that ``make`` gives, stored from now.

        If another process is making it just now, ``meanwhile`` is called before waiting for that.
        """


class _Forgetful:
    def restore(self, stage: str, like: State) -> tuple[State, int]:
        return like, 0

    def keep(self, stage: str, step: int, state: object) -> None:
        pass

    def record(self, stage: str, step: int, metrics: Mapping[str, np.ndarray]) -> None:
        pass

    def once(
        self,
        name: str,
        digest: str,
        like: State,
        make: Callable[[], State],
        *,
        meanwhile: Callable[[], object] | None = None,
    ) -> State:
        return make()


FORGETFUL: Journal = _Forgetful()
"""Keeps nothing: the default in the library."""


def repeat_update(
    stage: str,
    update: Update[State, Own, Shared],
    state: State,
    own: Own,
    shared: Shared,
    *,
    total: int,
    chunk: int,
    is_seeded: bool = False,
    limits: Mapping[str, tuple[float, float]] | None = None,
    is_patient: bool = False,
    progress: Progress = SILENT,
    journal: Journal = FORGETFUL,
    observe: Observer[State] | None = None,
) -> State:
    """Apply ``update`` for the steps 0 … ``total`` − 1.

    Args:
        stage: Name of the stage in progress, metrics and checkpoints.
        update: The pure update of one seed.
        state: The state before step 0.
        own: What belongs to the seed and does not change.
        shared: What is the same for all seeds and steps.
        total: Number of steps.
        chunk: Steps compiled into one program, and between two checkpoints.
        is_seeded: ``state`` and ``own`` have a leading axis of seeds, trained as one program.
        limits: Metrics whose size must stay between two values, or else the fit stops.
        is_patient: A metric may be beyond its limit, but not in all steps of a chunk.
        progress: Whom to tell.
        journal: Where checkpoints and metrics go.
        observe: Called before the first and after every chunk; cannot change anything.

    Returns:
        The state after the last step.

    Raises:
        RunError: When a metric is not finite or beyond its limit; the last checkpoint is the one
            before.
    """
    update_all = jax.vmap(update, in_axes=(0, 0, None, None)) if is_seeded else update

    def run_steps(
        state: State, own: Own, shared: Shared, steps: jax.Array
    ) -> tuple[State, Metrics]:
        return jax.lax.scan(lambda s, step: update_all(s, own, shared, step), state, steps)

    run_chunk = jax.jit(run_steps, donate_argnums=0)
    state, done = journal.restore(stage, state)
    # Donation hands the buffers over; what the caller or an observer holds must stay usable.
    state = _copy(state)
    with progress.stage(stage, total, done) as bar:
        if observe is not None and done == 0:
            observe(0, _copy(state))
        while done < total:
            steps = jnp.arange(done, min(done + chunk, total))
            state, device_metrics = run_chunk(state, own, shared, steps)
            metrics = {name: np.asarray(values) for name, values in device_metrics.items()}
            _require_sane(stage, done, metrics, limits or {}, is_patient)
            journal.record(stage, done, metrics)
            done += len(steps)
            if observe is not None:
                observe(done, _copy(state))
            journal.keep(stage, done, state)
            bar.advance(len(steps), {name: float(v[-1].mean()) for name, v in metrics.items()})
    return state


def chunk_size(total: int, checks: int) -> int:
    """Steps between two looks at the state, for at most ``checks`` of them, evenly spread."""
    return math.ceil(total / checks)


def per_seed(make: Callable[[Key], State], key: Key) -> State:
    """``make(key)``, or the results for several keys stacked along a first axis."""
    if not key.ndim:
        return make(key)
    # In turn: batched random numbers take long to compile, and so the bits are those of one key.
    stacked: State = jax.tree.map(lambda *leaves: jnp.stack(leaves), *map(make, key))
    return stacked


def init_optimiser(
    optimiser: optax.GradientTransformation, params: Params, *, is_seeded: bool
) -> optax.OptState:
    """The optimiser's first state, one for each seed where there are several."""
    init = jax.vmap(optimiser.init) if is_seeded else optimiser.init
    first: optax.OptState = jax.jit(init)(params)  # one program, not one for each shape
    return first


class Learner(NamedTuple, Generic[State]):
    """Parameters that are learned, and the state of their optimiser."""

    params: State
    optimiser: optax.OptState


def init_learner(
    params: State, optimiser: optax.GradientTransformation, *, is_seeded: bool
) -> Learner[State]:
    """A learner before its first step."""
    return Learner(params, init_optimiser(optimiser, params, is_seeded=is_seeded))


def descend(
    learner: Learner[State],
    optimiser: optax.GradientTransformation,
    loss: Callable[[State], tuple[jax.Array, Metrics]],
) -> tuple[Learner[State], Metrics]:
    """One step of gradient descent on ``loss(params) -> (loss, metrics)``."""
    gradients, metrics = jax.grad(loss, has_aux=True)(learner.params)
    changes, optimiser_state = optimiser.update(gradients, learner.optimiser)
    return Learner(optax.apply_updates(learner.params, changes), optimiser_state), metrics


def falling_rate(first: float, total: int) -> Callable[[jax.Array], jax.Array]:
    """A step size that falls from ``first`` to 0 along a cosine in ``total`` steps."""

    def rate(step: jax.Array) -> jax.Array:
        share = jnp.minimum(step.astype(jnp.float32) / total, 1.0)
        return 0.5 * first * (1.0 + jnp.cos(jnp.pi * share))

    return rate


def shared_out(members: State) -> State:
    """The same members, each device working with an equal share of them and all that comes of it.

    With one device, or where the members cannot be shared out equally, nothing changes; with
    several, results differ by rounding.

    Args:
        members: A tree of arrays ``[K, ...]``, within a compiled program.

    Returns:
        The members.
    """
    mesh = _mesh_for(members)
    if mesh is None:
        return members
    sharding = jax.sharding.NamedSharding(mesh, _spec(_MEMBERS))
    shared: State = jax.lax.with_sharding_constraint(members, sharding)  # type: ignore[no-untyped-call]
    return shared


def by_shares(
    function: Callable[[Own, State], Result], common: Own, members: State, *, axis: int
) -> Result:
    """``function(common, members)``, each device computing it for its share of the members.

    As with :func:`shared_out`, but within the function devices never wait for each other: the
    slope for ``common`` is added up once, behind all loops, and not in every step of them.

    Args:
        function: Independent for each member.
        common: What all members have in common.
        members: A tree of arrays ``[K, ...]``, within a compiled program.
        axis: Where members stand in every array that the function returns.

    Returns:
        What the function gives for all members.
    """
    mesh = _mesh_for(members)
    if mesh is None:
        return function(common, members)
    shared: Callable[[Own, State], Result] = jax.shard_map(
        function,
        mesh=mesh,
        in_specs=(_spec(), _spec(_MEMBERS)),
        out_specs=_spec(*[None] * axis, _MEMBERS),
        check_vma=False,  # loops begin with what is the same on all devices
    )
    return shared(common, members)


_MEMBERS = "members"


def _spec(*axes: str | None) -> jax.sharding.PartitionSpec:
    return jax.sharding.PartitionSpec(*axes)  # type: ignore[no-untyped-call]


def _mesh_for(members: object) -> jax.sharding.Mesh | None:
    """All devices, if there are several and each gets as many members as the others."""
    devices = jax.local_devices()
    if len(devices) == 1 or any(len(leaf) % len(devices) for leaf in jax.tree.leaves(members)):
        return None
    return jax.sharding.Mesh(devices, (_MEMBERS,))


def for_each_seed(function: Callable[[State], Result], *, is_seeded: bool) -> Callable[..., Result]:
    """``function`` of one seed's state, made to take the states of several where there are."""
    return jax.vmap(function) if is_seeded else function


def key_numbers(key: Key) -> list[int]:
    """The numbers behind a key, for digests."""
    return [int(number) for number in np.asarray(jax.random.key_data(key)).reshape(-1)]


def split_keys(key: Key, count: int) -> tuple[Key, ...]:
    """Split one key, or each of several, into ``count`` keys of the same shape."""
    split = jax.vmap(lambda k: jax.random.split(k, count))(key) if key.ndim else None
    parts = jax.random.split(key, count) if split is None else jnp.moveaxis(split, 1, 0)
    return tuple(parts)


def _copy(state: State) -> State:
    copy: State = jax.device_put(state, may_alias=False)
    return copy


def _require_sane(
    stage: str,
    first: int,
    metrics: Mapping[str, np.ndarray],
    limits: Mapping[str, tuple[float, float]],
    is_patient: bool,
) -> None:
    """Raise a :class:`RunError` that names the metrics that went wrong, and the step."""
    # Sizes [steps, seeds] of each metric.
    sizes = {name: np.abs(v).reshape(len(v), -1) for name, v in metrics.items()}
    low = {name: size < limits[name][0] for name, size in sizes.items() if name in limits}
    high = {name: size > limits[name][1] for name, size in sizes.items() if name in limits}
    if is_patient:
        low, high = (
            {name: bad & bad.all(axis=0) for name, bad in trouble.items()}
            for trouble in (low, high)
        )
    high = {name: high.get(name, False) | ~np.isfinite(size) for name, size in sizes.items()}
    troubles = [
        (
            high,
            "not finite or beyond its limit",
            "lower the learning rate, shorten the horizon or ",
        ),
        (
            low,
            "vanished: nothing can be learned any more",
            "lower the learning rate (a large step "
            "drives every action to its bound, where the slope is zero) or ",
        ),
    ]
    for trouble, problem, remedy in troubles:
        wrong = {name: bad.any(axis=1) for name, bad in trouble.items() if bad.any()}
        if not wrong:
            continue
        step = min(int(np.argmax(bad)) for bad in wrong.values())
        culprits = [name for name, bad in wrong.items() if bad[step]]
        largest = {name: np.argmax(size[step]) for name, size in sizes.items()}
        values = ", ".join(
            f"{name} {metrics[name][step].flat[i]:.4g}" for name, i in largest.items()
        )
        raise RunError(
            f"Training went astray: {', '.join(culprits)} {problem}.",
            where=f"stage '{stage}', step {first + step} ({values})",
            advice=remedy + "check the data's ranges; the last checkpoint is from before this step",
        )
