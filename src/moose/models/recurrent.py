"""An ensemble of recurrent dynamics models, trained to run freely.

Each member has one gated recurrent cell for every signal that the task does not know. A cell sees
the signals that physics gives for the next frame, the last value of its own signal (or of all that
are predicted), and actions whose effect physics does not show; it predicts its signal's change. It
warms up along the history window and then runs on its own predictions, in training as in use:

    g_r, g_z, g_x, g_h = W (x, h) + b        (g_x sees x only, g_h sees h only)
    r, z = sigmoid(g_r), sigmoid(g_z)
    h ← n + z (h − n),   n = tanh(g_x + r g_h)
    y ← y + deviation · (v h + w)

The loss is the squared error of a free run of many steps along logged actions, and a share of the
one-step errors in the warm-up. Members are validated on episodes set apart, and each keeps the
weights that ran best there.

=====  ======================================================
x      inputs of a cell, standardised
h      its state, U numbers
y      its signal
C      cells of a member: signals to predict
I      inputs of a cell
=====  ======================================================
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from pydantic import Field

from moose.config import Settings
from moose.data.dataset import Dataset
from moose.data.draws import Draw, draw_steps, make_draw
from moose.data.normalize import Statistics, clip_to_range, measure, restore, standardise
from moose.data.split import cut_episodes, split_episodes
from moose.data.windows import gather_windows
from moose.models.accuracy import segment_starts
from moose.models.networks import Network, apply_network, init_network, on_device
from moose.models.supervised import TransitionTable, make_table
from moose.progress import SILENT, Progress
from moose.tasks.task import Task, to_box
from moose.training import (
    FORGETFUL,
    Journal,
    Metrics,
    Update,
    falling_rate,
    per_seed,
    repeat_update,
    split_keys,
)
from moose.types import Key

_BLOCKS = 10
"""Episodes, or blocks of time, that there have to be before some are set apart."""
_SCALE_SEGMENTS = 2000
_HEAD_SIZE = 0.1  # of the first predictions: close to "nothing changes"
_BOUND_DEVIATIONS = 4.0  # a signal's physical range, in deviations


class RecurrentSettings(Settings):
    """How recurrent models are built and trained."""

    units: int = Field(default=32, ge=1)
    """U: numbers in the state of a cell."""
    inputs: Literal["own", "all"] = "own"
    """Whether a cell sees the last value of its own signal, or of all predicted signals."""
    reward_hidden: tuple[int, ...] = (64, 64)
    """Widths of the hidden layers of the reward's model, where the task does not know it."""
    horizon: int = Field(default=50, ge=1)
    """Steps of a free run in training; less where no episode is that long."""
    warm_up_weight: float = Field(default=0.2, ge=0)
    """Weight of the one-step errors in the warm-up."""
    early_share: float = Field(default=0.5, ge=0, le=1)
    """Share of the runs that start early in an episode: every doubling of age as likely."""
    updates: int = Field(default=1500, ge=1)
    """Gradient steps."""
    batch_size: int = Field(default=64, ge=1)
    """Free runs of a gradient step, for each member."""
    learning_rate: float = Field(default=3e-3, gt=0)
    """First step size of Adam, from which it falls to 0 along a cosine."""
    gradient_clip: float = Field(default=1.0, gt=0)
    """Largest norm of a member's gradient."""
    held_out: float = Field(default=0.1, gt=0, lt=1)
    """Share of the training episodes on which members are validated."""
    held_out_runs: int = Field(default=512, ge=1)
    """Free runs of a validation."""
    rounds: int = Field(default=30, ge=1)
    """How often, evenly spread, members are validated; each keeps its best weights."""


class RecurrentScales(NamedTuple):
    """Statistics of the training data that recurrent models live in."""

    frame: Statistics
    """Of what is drawn for training, or of a signal's physical range where that is known."""
    predicted: Statistics
    """Of the predicted signals in the whole log; predictions are clipped to this range."""
    unshown: jax.Array
    """[d]: 1 for actions that no signal given by physics responds to, 0 for the others"""
    reward: Statistics


class Cells(NamedTuple):
    """The C cells of a member."""

    weight: jax.Array
    """[C, I + U, 4 U]: reset, update, candidate from inputs, candidate from state"""
    bias: jax.Array
    """[C, 4 U]"""
    head: jax.Array
    """[C, U]"""
    head_bias: jax.Array
    """[C]"""


class RecurrentMembers(NamedTuple):
    """K members stacked along the first axis, ready to roll."""

    cells: Cells
    reward: Network | None
    """On (frame, action, next frame), where the task does not know the reward."""


class RecurrentEnsemble(NamedTuple):
    """A fitted ensemble."""

    members: RecurrentMembers
    scales: RecurrentScales


class Memory(NamedTuple):
    """The carry of a rollout."""

    states: jax.Array
    """[C, U]"""
    frame: jax.Array
    """[n] the newest frame, raw"""


class _Runs(NamedTuple):
    """Stretches of a log to run along, raw units."""

    windows: jax.Array
    """[B, F, n], newest first"""
    actions: jax.Array
    """[B, H, d]"""
    frames: jax.Array
    """[B, H, n]"""
    rewards: jax.Array
    """[B, H]"""


class _Log(NamedTuple):
    table: TransitionTable
    draw: Draw


class _Inputs(NamedTuple):
    training: _Log
    validation: _Runs
    scales: RecurrentScales


class _State(NamedTuple):
    members: RecurrentMembers
    optimiser: optax.OptState
    best: RecurrentMembers
    least: jax.Array
    """[K] the least validation error of each member so far"""


def fit_recurrent(
    dataset: Dataset,
    task: Task,
    num_members: int,
    settings: RecurrentSettings,
    key: Key,
    *,
    progress: Progress = SILENT,
    journal: Journal = FORGETFUL,
) -> RecurrentEnsemble:
    """Train the ensemble on free runs along ``dataset``.

    Args:
        dataset: The training episodes.
        task: What is known about the plant.
        num_members: K.
        settings: Sizes and training.
        key: One key, or one for each of several seeds (members then have a leading axis).
        progress: Whom to tell.
        journal: Where checkpoints and metrics go.

    Returns:
        The fitted ensemble.
    """
    untrained = init_recurrent(dataset, task, num_members, settings, key)
    _, train_key = split_keys(key, 2)
    training, validation = _set_apart(dataset, settings)
    horizon = _horizon_in(training, validation, settings)
    log, other = _make_log(training, horizon), _make_log(validation, horizon)
    chosen = draw_steps(other.draw, settings.held_out_runs, settings.early_share, jax.random.key(0))
    runs = jax.jit(lambda steps: _runs_at(other.table, steps, task.history, horizon))(chosen)
    is_seeded = bool(key.ndim)
    per_round = -(-settings.updates // settings.rounds)
    optimiser = optax.chain(
        optax.clip_by_global_norm(settings.gradient_clip),
        optax.adam(falling_rate(settings.learning_rate, settings.updates)),
    )
    init = jax.vmap(optimiser.init)
    seeds = (len(key),) if is_seeded else ()
    state = repeat_update(
        "models",
        _make_round(task, settings, optimiser, num_members, horizon, per_round),
        _State(
            untrained.members,
            jax.jit(jax.vmap(init) if is_seeded else init)(untrained.members),
            untrained.members,
            on_device(np.full((*seeds, num_members), np.inf, np.float32)),
        ),
        train_key,
        _Inputs(log, runs, untrained.scales),
        total=-(-settings.updates // per_round),
        chunk=1,
        is_seeded=is_seeded,
        progress=progress,
        journal=journal,
    )
    return untrained._replace(members=state.best)


def init_recurrent(
    dataset: Dataset, task: Task, num_members: int, settings: RecurrentSettings, key: Key
) -> RecurrentEnsemble:
    """The ensemble before training; see :func:`fit_recurrent`."""
    init_key, _ = split_keys(key, 2)
    members = per_seed(
        lambda seed: per_seed(
            lambda one: init_member(task, settings, one), jax.random.split(seed, num_members)
        ),
        init_key,
    )
    return RecurrentEnsemble(members, measure_recurrent_scales(dataset, task, settings))


def init_member(task: Task, settings: RecurrentSettings, key: Key) -> RecurrentMembers:
    """An untrained member."""
    cells, units, inputs = len(task.predicted), settings.units, num_inputs(task, settings)
    weight_key, head_key, reward_key = jax.random.split(key, 3)
    # As a network's layer, which is drawn without being compiled for every shape.
    (layer,) = init_network(weight_key, (inputs + units, cells * 4 * units))
    weight = np.moveaxis(np.asarray(layer.weight).reshape(inputs + units, cells, 4, units), 0, 1)
    weight = weight * np.sqrt((inputs + units) / units).astype(np.float32)
    weight[:, inputs:, 2] = 0.0
    weight[:, :inputs, 3] = 0.0
    (head,) = init_network(head_key, (units, cells))
    sizes = (2 * len(task.observation_names) + len(task.action_names), *settings.reward_hidden, 1)
    return RecurrentMembers(
        Cells(
            weight=on_device(weight.reshape(cells, inputs + units, 4 * units)),
            bias=on_device(np.zeros((cells, 4 * units), np.float32)),
            head=on_device(_HEAD_SIZE * np.asarray(head.weight).T),
            head_bias=on_device(np.zeros(cells, np.float32)),
        ),
        init_network(reward_key, sizes) if task.reward is None else None,
    )


def num_inputs(task: Task, settings: RecurrentSettings) -> int:
    """I: the numbers that a cell sees."""
    values = 1 if settings.inputs == "own" else len(task.predicted)
    return len(given_columns(task)) + values + len(task.action_names)


def given_columns(task: Task) -> tuple[int, ...]:
    """Columns of a frame that known physics gives."""
    return tuple(i for i in range(len(task.observation_names)) if i not in task.predicted)


def measure_recurrent_scales(
    dataset: Dataset, task: Task, settings: RecurrentSettings
) -> RecurrentScales:
    """Statistics of what is drawn for training, and physical ranges where the task has them."""
    steps = make_draw(*_steps_of(dataset, np.arange(dataset.num_transitions)))
    count = min(_SCALE_SEGMENTS * 10, 20 * dataset.num_transitions)
    chosen = np.asarray(draw_steps(steps, count, settings.early_share, jax.random.key(0)))
    frames = dataset.observations[dataset.observation_rows[chosen]]
    values = dataset.observations[dataset.is_observed][:, list(task.predicted)]
    return RecurrentScales(
        frame=physical_scale(measure(frames), task),
        predicted=measure(values),
        unshown=on_device(_unshown_actions(frames, task)),
        reward=measure(dataset.rewards),
    )


def physical_scale(statistics: Statistics, task: Task) -> Statistics:
    """The statistics, but those of a range of four deviations where the task knows a range."""
    mean, deviation = np.array(statistics.mean), np.array(statistics.deviation)
    for i, (low, high) in enumerate(task.observation_ranges):
        if low is not None and high is not None and i not in task.predicted:
            mean[i], deviation[i] = (low + high) / 2, (high - low) / _BOUND_DEVIATIONS
    return Statistics(mean, deviation, statistics.minimum, statistics.maximum)


@dataclass(frozen=True)
class RecurrentModel:
    """How a member is rolled: the carry is the cells' states and the newest frame.

    Attributes:
        task: Physics and reward.
        scales: The data's statistics.
    """

    task: Task
    scales: RecurrentScales

    def start(self, member: RecurrentMembers, window: jax.Array) -> Memory:
        """The carry after having seen ``window [F, n]``."""
        states, _ = self._warm_up(member, window)
        return Memory(states, window[0])

    def step(
        self, member: RecurrentMembers, carry: Memory, action: jax.Array
    ) -> tuple[Memory, jax.Array]:
        """One imagined step of one member: the next carry, and the next frame [n]."""
        last = carry.frame[jnp.asarray(self.task.predicted)]
        # What physics gives does not depend on the predictions, or else on the last values here.
        given = self.task.physics(carry.frame, action, last)
        unshown = to_box(action, self.task) * self.scales.unshown
        inputs = self._inputs(member.cells, given, last, unshown)
        states, change = step_cells(member.cells, carry.states, inputs)
        predicted = clip_to_range(last + change * self._deviation, self.scales.predicted)
        frame = self.task.physics(carry.frame, action, predicted)
        return Memory(states, frame), frame

    def reward(
        self, member: RecurrentMembers, window: jax.Array, action: jax.Array, frame: jax.Array
    ) -> jax.Array:
        """The known reward, or the member's learned one clipped to the data's range; a scalar."""
        if self.task.reward is not None:
            return self.task.reward(window[0], action, frame)
        output = self._reward_output(member, window[0], action, frame)
        return clip_to_range(restore(output, self.scales.reward), self.scales.reward)

    def run_errors(self, member: RecurrentMembers, run: _Runs) -> tuple[jax.Array, jax.Array]:
        """Errors along one logged stretch, in deviations: free [H, C], and in the warm-up [F, C].

        The warm-up has one transition less than frames; its first row is 0.
        """
        columns = jnp.asarray(self.task.predicted)
        states, first = self._warm_up(member, run.windows)

        @jax.checkpoint
        def step(carry: Memory, action: jax.Array) -> tuple[Memory, jax.Array]:
            return self.step(member, carry, action)

        _, frames = jax.lax.scan(step, Memory(states, run.windows[0]), run.actions)
        errors = (frames - run.frames)[:, columns]
        return errors / jnp.broadcast_to(self._deviation, errors.shape), first

    def reward_errors(self, member: RecurrentMembers, run: _Runs) -> jax.Array:
        """Errors of a learned reward along one logged stretch, [H], standardised."""
        frames = jnp.concatenate([run.windows[:1], run.frames])
        outputs = jax.vmap(self._reward_output, (None, 0, 0, 0))(
            member, frames[:-1], run.actions, frames[1:]
        )
        return outputs - standardise(run.rewards, self.scales.reward)

    @property
    def _deviation(self) -> jax.Array:
        return jnp.asarray(self.scales.frame.deviation)[jnp.asarray(self.task.predicted)]

    def _warm_up(self, member: RecurrentMembers, window: jax.Array) -> tuple[jax.Array, jax.Array]:
        """States after the window [F, n], and the one-step errors on the way [F, C]."""
        columns = jnp.asarray(self.task.predicted)
        frames = window[::-1]
        # What was done is not in a window; the middle of an action's range stands for it.
        unshown = jnp.zeros(len(self.task.action_names), window.dtype)

        @jax.checkpoint
        def step(
            states: jax.Array, pair: tuple[jax.Array, jax.Array]
        ) -> tuple[jax.Array, jax.Array]:
            before, after = pair
            inputs = self._inputs(member.cells, after, before[columns], unshown)
            states, change = step_cells(member.cells, states, inputs)
            return states, change - (after - before)[columns] / self._deviation

        cells, units = member.cells.head.shape
        states = jnp.zeros((cells, units), window.dtype)
        states, errors = jax.lax.scan(step, states, (frames[:-1], frames[1:]))
        return states, jnp.concatenate([jnp.zeros((1, cells), window.dtype), errors])

    def _inputs(
        self, cells: Cells, given: jax.Array, last: jax.Array, unshown: jax.Array
    ) -> jax.Array:
        """X [C, I]: what physics gives for the next frame [n], last values [C], actions [d]."""
        columns = jnp.asarray(given_columns(self.task), jnp.int32)
        mean = jnp.asarray(self.scales.frame.mean)[jnp.asarray(self.task.predicted)]
        shared = jnp.concatenate([standardise(given, self.scales.frame)[columns], unshown])
        values = (last - mean) / self._deviation
        count, units = cells.head.shape
        sees_all = cells.weight.shape[-2] - units > len(shared) + 1
        own = jnp.broadcast_to(values, (count, count)) if sees_all else values[:, None]
        return jnp.concatenate([jnp.broadcast_to(shared, (count, len(shared))), own], axis=1)

    def _reward_output(
        self, member: RecurrentMembers, frame: jax.Array, action: jax.Array, after: jax.Array
    ) -> jax.Array:
        assert member.reward is not None  # noqa: S101 (init_member made it)
        parts = [standardise(frame, self.scales.frame), to_box(action, self.task)]
        features = jnp.concatenate([*parts, standardise(after, self.scales.frame)])
        return apply_network(member.reward, features)[0]


def step_cells(cells: Cells, states: jax.Array, inputs: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Next states [C, U] and predicted changes [C], for states [C, U] and inputs [C, I]."""
    units = states.shape[-1]
    joined = jnp.concatenate([inputs, states], axis=-1)
    gates = jnp.einsum("ci,cij->cj", joined, cells.weight) + cells.bias
    reset_update = jax.nn.sigmoid(gates[:, : 2 * units])
    reset, update = reset_update[:, :units], reset_update[:, units:]
    candidate = jnp.tanh(gates[:, 2 * units : 3 * units] + reset * gates[:, 3 * units :])
    states = candidate + update * (states - candidate)
    return states, jnp.sum(states * cells.head, axis=-1) + cells.head_bias


def _make_round(
    task: Task,
    settings: RecurrentSettings,
    optimiser: optax.GradientTransformation,
    num_members: int,
    horizon: int,
    per_round: int,
) -> Update[_State, Key, _Inputs]:
    """Some steps of gradient descent for every member, and a validation."""

    def train(
        member: RecurrentMembers, state: optax.OptState, inputs: _Inputs, key: Key
    ) -> tuple[RecurrentMembers, optax.OptState, jax.Array]:
        table, draw = inputs.training
        steps = draw_steps(draw, settings.batch_size, settings.early_share, key)
        runs = _runs_at(table, steps, task.history, horizon)
        model = RecurrentModel(task, inputs.scales)
        value, gradients = jax.value_and_grad(
            lambda member: _member_loss(member, model, runs, settings.warm_up_weight)
        )(member)
        changes, state = optimiser.update(_within_gates(gradients), state)
        return optax.apply_updates(member, changes), state, value

    def validate(member: RecurrentMembers, inputs: _Inputs) -> jax.Array:
        model = RecurrentModel(task, inputs.scales)
        errors, _ = jax.vmap(model.run_errors, (None, 0))(member, inputs.validation)
        return jnp.mean(errors**2)

    def run_round(
        state: _State, key: Key, inputs: _Inputs, number: jax.Array
    ) -> tuple[_State, Metrics]:
        def step(
            carry: tuple[RecurrentMembers, optax.OptState], step: jax.Array
        ) -> tuple[tuple[RecurrentMembers, optax.OptState], jax.Array]:
            keys = jax.random.split(jax.random.fold_in(key, step), num_members)
            members, optimisers, losses = jax.vmap(train, (0, 0, None, 0))(*carry, inputs, keys)
            return (members, optimisers), losses

        steps = number * per_round + jnp.arange(per_round)
        (members, optimisers), losses = jax.lax.scan(step, (state.members, state.optimiser), steps)
        errors = jax.vmap(validate, (0, None))(members, inputs)
        is_better = errors < state.least
        best = jax.tree.map(
            lambda new, old: jnp.where(is_better.reshape(-1, *(1,) * (new.ndim - 1)), new, old),
            members,
            state.best,
        )
        least = jnp.minimum(errors, state.least)
        return _State(members, optimisers, best, least), {
            "loss": jnp.mean(losses),
            "validation": jnp.mean(errors),
            "best_validation": jnp.mean(least),
        }

    return run_round


def _member_loss(
    member: RecurrentMembers, model: RecurrentModel, runs: _Runs, warm_up_weight: float
) -> jax.Array:
    """Mean squared errors: free, in the warm-up, and of the reward where it is learned."""
    free, first = jax.vmap(model.run_errors, (None, 0))(member, runs)
    loss = jnp.mean(free**2) + warm_up_weight * jnp.mean(first**2)
    if member.reward is not None:
        rewards = jax.vmap(model.reward_errors, (None, 0))(member, runs)
        loss = loss + jnp.mean(rewards**2)
    return loss


def _within_gates(gradients: RecurrentMembers) -> RecurrentMembers:
    """Gradients that leave the candidate's two parts apart: one sees inputs, one the state."""
    weight, units = gradients.cells.weight, gradients.cells.head.shape[-1]
    inputs = weight.shape[-2] - units
    is_state = jnp.arange(weight.shape[-2])[:, None] >= inputs
    part = jnp.arange(weight.shape[-1])[None, :] // units
    is_apart = ((part == 2) & is_state) | ((part == 3) & ~is_state)
    weight = jnp.where(is_apart[None], jnp.zeros_like(weight), weight)
    return gradients._replace(cells=gradients.cells._replace(weight=weight))


def _runs_at(table: TransitionTable, steps: jax.Array, history: int, horizon: int) -> _Runs:
    rows = table.rows[steps]
    ahead = jnp.arange(horizon, dtype=jnp.int32)[None]
    return _Runs(
        gather_windows(table.observations, rows, table.first_rows[steps], history),
        table.actions[steps[:, None] + ahead],
        table.observations[rows[:, None] + 1 + ahead],
        table.rewards[steps[:, None] + ahead],
    )


def _set_apart(dataset: Dataset, settings: RecurrentSettings) -> tuple[Dataset, Dataset]:
    """Episodes, or blocks of time where there are too few, to train on and to validate on."""
    cut = cut_episodes(dataset, min(_BLOCKS, dataset.num_transitions))
    train, other = split_episodes(cut.num_episodes, settings.held_out, 0)
    return cut.select_episodes(train), cut.select_episodes(other)


def _horizon_in(training: Dataset, validation: Dataset, settings: RecurrentSettings) -> int:
    longest = [int((one.lengths - ~one.final_observed).max()) for one in (training, validation)]
    return max(1, min(settings.horizon, *longest))


def _make_log(dataset: Dataset, horizon: int) -> _Log:
    return _Log(
        make_table(dataset), make_draw(*_steps_of(dataset, segment_starts(dataset, horizon)))
    )


def _steps_of(dataset: Dataset, steps: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Steps and their episodes."""
    return steps, np.searchsorted(dataset.offsets, steps, side="right") - 1


def _unshown_actions(frames: np.ndarray, task: Task) -> np.ndarray:
    """1 for every action that no signal given by physics responds to, at any of some frames."""
    columns = jnp.asarray(given_columns(task), jnp.int32)
    count = len(task.action_names)
    if not len(columns):
        return np.ones(count, np.float32)
    low, high = (np.asarray(bound, np.float32) for bound in (task.action_low, task.action_high))

    def given(action: jax.Array, frame: jax.Array) -> jax.Array:
        last = frame[jnp.asarray(task.predicted)]
        return task.physics(frame, action, last)[columns]

    responses = jax.jit(jax.vmap(jax.jacobian(given), (None, 0)))(
        jnp.asarray((low + high) / 2), jnp.asarray(frames[:256])
    )
    is_shown = (np.abs(np.asarray(responses)) > 0).any(axis=(0, 1))
    return np.asarray(~is_shown, np.float32)
