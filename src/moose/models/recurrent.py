"""An ensemble of recurrent dynamics models, which run freely.

Each member has one gated recurrent cell for every signal that the task does not know. A cell sees
the signals that physics gives for the next frame, what it makes of them in the frames before (a
plant's answer may come many steps late), the last value of its own signal (or of all that are
predicted), and actions whose effect physics does not show; it predicts its signal's change. It
warms up along the history window, from the episode's first frame on, and then runs on its own
predictions, in training as in use:

    x = (u₀, y, a, tanh(A u + e))            (u = u₀ … u₋₍D₋₁₎: a delay line)
    x_r, x_z, x_n = V x + b
    h_r, h_z, h_n = W h
    r, z = sigmoid(x_r + h_r), sigmoid(x_z + h_z)
    h ← n + z (h − n),   n = tanh(x_n + r (h_n + c))
    y ← y + deviation · (v h + w)

How they are trained is in :mod:`moose.models.recurrent_fit`, the scales they live in are in
:mod:`moose.models.recurrent_scales`.

=====  ======================================================
x      inputs of a cell, standardised
u      signals that physics gives, of the next frame and of those before it
a      actions that no such signal shows
h      its state, U numbers
y      its signal
B      trajectories that are run together
C      cells of a member: signals to predict
I      inputs of a cell
G      signals that physics gives
D, J   frames of a delay line, and numbers that a cell makes of them
=====  ======================================================
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from pydantic import Field

from moose.config import Settings
from moose.data.dataset import Dataset
from moose.data.normalize import clip_to_range, restore, standardise
from moose.models.networks import Network, apply_network, init_network, on_device
from moose.models.recurrent_scales import (
    RecurrentScales,
    given_columns,
    measure_recurrent_scales,
)
from moose.models.supervised import Segments
from moose.tasks.task import Task, to_box
from moose.training import per_seed, split_keys
from moose.types import Key

_HEAD_SIZE = 0.1  # of the first predictions: close to "nothing changes"


class RecurrentSettings(Settings):
    """How recurrent models are built and trained."""

    units: int = Field(default=32, ge=1)
    """U: numbers in the state of a cell."""
    inputs: Literal["own", "all"] = "own"
    """Whether a cell sees the last value of its own signal, or of all predicted signals."""
    delays: int = Field(default=12, ge=0)
    """D: of so many frames a cell sees at once what physics gives, a delay line; 0 for none."""
    features: int = Field(default=16, ge=1)
    """J: numbers that a cell makes of its delay line."""
    delayed_share: float = Field(default=0.5, ge=0, le=1)
    """Share of the members that have a delay line; the others have nothing but their memory."""
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
    learning_rate: float = Field(default=8e-3, gt=0)
    """First step size of Adam, from which it falls to 0 along a cosine."""
    gradient_clip: float = Field(default=1.0, gt=0)
    """Largest norm of a member's gradient."""
    held_out: float = Field(default=0.1, gt=0, lt=1)
    """Share of the training episodes on which members are validated."""
    held_out_runs: int = Field(default=512, ge=1)
    """Free runs of a validation."""
    rounds: int = Field(default=30, ge=1)
    """How often, evenly spread, members are validated; each keeps its best weights."""


class Cells(NamedTuple):
    """The C cells of a member."""

    input_weight: jax.Array
    """[C, I, 3 U]: V, of reset, update and candidate"""
    input_bias: jax.Array
    """[C, 3 U]: b"""
    state_weight: jax.Array
    """[C, U, 3 U]: W, likewise"""
    state_bias: jax.Array
    """[C, U]: c, of the candidate"""
    head: jax.Array
    """[C, U]"""
    head_bias: jax.Array
    """[C]"""
    first: jax.Array
    """[C, U]: the state at the beginning of an episode; in the middle of one it begins with 0"""
    line: jax.Array
    """[C, D, G, J]: of the delay line, the next frame first"""
    line_bias: jax.Array
    """[C, J]"""


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
    """The carry of B trajectories; of a rollout, which is one, B = 1.

    Trajectories are an axis of their own instead of being mapped over, and it is not the first one:
    so the cells' products need no transposed copies.
    """

    states: jax.Array
    """[C, B, U]"""
    frames: jax.Array
    """[B, n] the newest ones, raw"""
    line: jax.Array
    """[B, D, G] what physics gave in the newest frames, standardised, the newest first"""


def init_recurrent(
    dataset: Dataset, task: Task, num_members: int, settings: RecurrentSettings, key: Key
) -> RecurrentEnsemble:
    """The ensemble before training; see :func:`moose.models.recurrent_fit.fit_recurrent`."""
    init_key, _ = split_keys(key, 2)
    num_delayed = round(settings.delayed_share * num_members)

    def init_members(seed: Key) -> RecurrentMembers:
        keys = jax.random.split(seed, num_members)
        members = [init_member(task, settings, one) for one in keys]
        members[num_delayed:] = map(without_line, members[num_delayed:])
        stacked: RecurrentMembers = jax.tree.map(lambda *leaves: jnp.stack(leaves), *members)
        return stacked

    scales = measure_recurrent_scales(dataset, task, settings.early_share)
    return RecurrentEnsemble(per_seed(init_members, init_key), scales)


def init_member(task: Task, settings: RecurrentSettings, key: Key) -> RecurrentMembers:
    """An untrained member."""
    cells, units, inputs = len(task.predicted), settings.units, num_inputs(task, settings)
    weight_key, head_key, reward_key = jax.random.split(key, 3)
    given, features = len(given_columns(task)), num_features(task, settings)
    # As a network's layer, which is drawn without being compiled for every shape.
    (layer,) = init_network(weight_key, (inputs + units, cells * 4 * units))
    weight = np.moveaxis(np.asarray(layer.weight).reshape(inputs + units, cells, 4, units), 0, 1)
    weight = weight * np.sqrt((inputs + units) / units).astype(np.float32)
    (head,) = init_network(head_key, (units, cells))
    delays = settings.delays if features else 0
    (line,) = init_network(
        jax.random.fold_in(weight_key, 1), (max(delays * given, 1), cells * settings.features)
    )
    line_weight = np.asarray(line.weight)[: delays * given, : cells * features]
    sizes = (2 * len(task.observation_names) + len(task.action_names), *settings.reward_hidden, 1)
    return RecurrentMembers(
        Cells(
            input_weight=on_device(weight[:, :inputs, :3].reshape(cells, inputs, 3 * units)),
            input_bias=on_device(np.zeros((cells, 3 * units), np.float32)),
            state_weight=on_device(weight[:, inputs:, [0, 1, 3]].reshape(cells, units, 3 * units)),
            state_bias=on_device(np.zeros((cells, units), np.float32)),
            head=on_device(_HEAD_SIZE * np.asarray(head.weight).T),
            head_bias=on_device(np.zeros(cells, np.float32)),
            first=on_device(np.zeros((cells, units), np.float32)),
            line=on_device(np.moveaxis(line_weight.reshape(delays, given, cells, features), 2, 0)),
            line_bias=on_device(np.zeros((cells, features), np.float32)),
        ),
        init_network(reward_key, sizes) if task.reward is None else None,
    )


def without_line(member: RecurrentMembers) -> RecurrentMembers:
    """The member without its delay line, for good.

    What is made of the line is 0, and so is what a cell makes of that: neither has a slope by which
    training could change it.
    """
    cells = member.cells
    first = cells.input_weight.shape[-2] - cells.line.shape[-1]
    weight = cells.input_weight.at[:, first:].set(0.0)
    line = jnp.zeros_like(cells.line)
    return member._replace(cells=cells._replace(input_weight=weight, line=line))


def num_inputs(task: Task, settings: RecurrentSettings) -> int:
    """I: the numbers that a cell sees."""
    values = 1 if settings.inputs == "own" else len(task.predicted)
    shared = len(given_columns(task)) + len(task.action_names)
    return shared + values + num_features(task, settings)


def num_features(task: Task, settings: RecurrentSettings) -> int:
    """J, or 0 where there is nothing to be delayed."""
    return settings.features if settings.delays and given_columns(task) else 0


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
        memory, _ = self._warm_up(member, window[None])
        return memory

    def step(
        self, member: RecurrentMembers, carry: Memory, action: jax.Array
    ) -> tuple[Memory, jax.Array]:
        """One imagined step of one member: the next carry, and the next frame [n]."""
        carry = self._advance(member, carry, action[None])
        return carry, carry.frames[0]

    def _advance(self, member: RecurrentMembers, memory: Memory, actions: jax.Array) -> Memory:
        """One step of B trajectories; actions [B, d]."""
        physics = jax.vmap(self.task.physics)
        last = memory.frames[:, jnp.asarray(self.task.predicted)]
        # Of these frames only those signals are looked at that do not depend on the predictions.
        known = self._known(physics(memory.frames, actions, last))
        line = jnp.concatenate([known[:, None], memory.line], axis=1)
        line = line[:, : memory.line.shape[1]]
        unshown = to_box(actions, self.task) * self.scales.unshown[None]
        inputs = self._inputs(member.cells, known, last, unshown, line)
        states, changes = step_cells(member.cells, memory.states, inputs)
        free = last + changes.T * self._deviation[None]
        predicted = clip_to_range(free, self.scales.predicted)
        return Memory(states, physics(memory.frames, actions, predicted), line)

    def reward(
        self, member: RecurrentMembers, window: jax.Array, action: jax.Array, frame: jax.Array
    ) -> jax.Array:
        """The known reward, or the member's learned one clipped to the data's range; a scalar."""
        if self.task.reward is not None:
            return self.task.reward(window[0], action, frame)
        output = self._reward_output(member, window[0], action, frame)
        return clip_to_range(restore(output, self.scales.reward), self.scales.reward)

    def run_errors(
        self, member: RecurrentMembers, segments: Segments
    ) -> tuple[jax.Array, jax.Array]:
        """Errors along B stretches of a log, in deviations.

        Args:
            member: The member.
            segments: The stretches.

        Returns:
            Those of the free runs, [H, B, C], and of one step each in the warm-up, [F − 1, B, C].
        """
        memory, first = self._warm_up(member, segments.windows)

        @jax.checkpoint
        def step(memory: Memory, actions: jax.Array) -> tuple[Memory, jax.Array]:
            memory = self._advance(member, memory, actions)
            return memory, memory.frames

        _, frames = jax.lax.scan(step, memory, segments.actions)
        errors = (frames - segments.frames)[..., jnp.asarray(self.task.predicted)]
        return errors / jnp.broadcast_to(self._deviation, errors.shape), first

    def reward_errors(self, member: RecurrentMembers, segment: Segments) -> jax.Array:
        """Errors of a learned reward along one stretch of a log, [H], standardised."""
        frames = jnp.concatenate([segment.windows[:1], segment.frames])
        outputs = jax.vmap(self._reward_output, (None, 0, 0, 0))(
            member, frames[:-1], segment.actions, frames[1:]
        )
        return outputs - standardise(segment.rewards, self.scales.reward)

    @property
    def _deviation(self) -> jax.Array:
        return jnp.asarray(self.scales.frame.deviation)[jnp.asarray(self.task.predicted)]

    def _warm_up(self, member: RecurrentMembers, windows: jax.Array) -> tuple[Memory, jax.Array]:
        """The carry after windows [B, F, n], and the one-step errors on the way [F − 1, B, C].

        Before an episode began its first frame is repeated. That is not a plant that was held
        still, and a cell that took it for one would believe that holding still changes nothing; so
        it has its first state until a frame differs from the one before, and makes no error.
        """
        columns = jnp.asarray(self.task.predicted)
        frames = jnp.moveaxis(windows[:, ::-1], 1, 0)
        differs = jnp.any(frames[1:] != frames[:-1], axis=-1)
        has_begun = jnp.cumsum(differs, axis=0, dtype=jnp.int32) > 0
        awake = has_begun.astype(windows.dtype)
        # What was done is not in a window; the middle of an action's range stands for it.
        unshown = jnp.zeros((len(windows), len(self.task.action_names)), windows.dtype)

        moved = (frames[1:] - frames[:-1])[..., columns] / self._deviation[None, None]

        @jax.checkpoint
        def step(
            states: jax.Array, now: tuple[jax.Array, jax.Array, jax.Array, jax.Array, jax.Array]
        ) -> tuple[jax.Array, jax.Array]:
            before, after, moved, line, awake = now
            last = before[:, columns]
            inputs = self._inputs(member.cells, self._known(after), last, unshown, line)
            following, changes = step_cells(member.cells, states, inputs)
            # Products, not selections: exactly the same, and many times quicker backwards.
            share = awake[None, :, None]
            return share * following + (1.0 - share) * states, awake[None] * (changes - moved)

        # The line at each frame; the window's oldest stands for those before.
        delays = member.cells.line.shape[-3]
        ages = np.arange(len(frames))[:, None] - np.arange(delays)[None]
        lines = jnp.moveaxis(self._known(frames)[np.maximum(ages, 0)], 1, 2)
        is_first = ~has_begun[:1].any(axis=0)
        first = jnp.broadcast_to(
            member.cells.first[:, None],
            (member.cells.first.shape[0], len(windows), member.cells.first.shape[1]),
        )
        states = jnp.where(is_first[None, :, None], first, jnp.zeros_like(first))
        now = (frames[:-1], frames[1:], jnp.swapaxes(moved, 1, 2), lines[1:], awake)
        states, errors = jax.lax.scan(step, states, now)
        return Memory(states, windows[:, 0], lines[-1]), jnp.swapaxes(errors, 1, 2)

    def _known(self, frames: jax.Array) -> jax.Array:
        """Of frames [..., n] what physics gives, standardised: [..., G]."""
        columns = jnp.asarray(given_columns(self.task), jnp.int32)
        shown = standardise(frames, self.scales.frame)
        return (shown * jnp.broadcast_to(self.scales.given, shown.shape))[..., columns]

    def _inputs(
        self,
        cells: Cells,
        known: jax.Array,
        last: jax.Array,
        unshown: jax.Array,
        line: jax.Array,
    ) -> jax.Array:
        """Inputs [C, B, I]: given [B, G], last values [B, C], actions [B, d], line [B, D, G]."""
        count, features = len(cells.head), cells.line.shape[-1]
        mean = jnp.asarray(self.scales.frame.mean)[jnp.asarray(self.task.predicted)]
        values = (last - mean[None]) / self._deviation[None]
        shared = jnp.concatenate([known, unshown], axis=1)
        made = jnp.einsum("bdg,cdgj->cbj", line, cells.line)
        made = jnp.tanh(made + cells.line_bias[:, None])
        sees_all = cells.input_weight.shape[-2] > shared.shape[1] + 1 + features
        own = jnp.broadcast_to(values, (count, *values.shape)) if sees_all else values.T[..., None]
        told = jnp.broadcast_to(shared, (count, *shared.shape))
        return jnp.concatenate([told, own, made], axis=-1)

    def _reward_output(
        self, member: RecurrentMembers, frame: jax.Array, action: jax.Array, after: jax.Array
    ) -> jax.Array:
        assert member.reward is not None  # noqa: S101 (init_member made it)
        parts = [standardise(frame, self.scales.frame), to_box(action, self.task)]
        features = jnp.concatenate([*parts, standardise(after, self.scales.frame)])
        return apply_network(member.reward, features)[0]


def step_cells(cells: Cells, states: jax.Array, inputs: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Next states [C, B, U] and predicted changes [C, B], for such states and inputs [C, B, I]."""
    seen = jnp.einsum("cbi,cij->cbj", inputs, cells.input_weight) + cells.input_bias[:, None]
    kept = jnp.einsum("cbi,cij->cbj", states, cells.state_weight)
    # Split, not sliced: the slope of three slices would be a sum of three padded arrays.
    seen_reset, seen_update, seen_candidate = jnp.split(seen, 3, axis=-1)
    kept_reset, kept_update, kept_candidate = jnp.split(kept, 3, axis=-1)
    reset = jax.nn.sigmoid(seen_reset + kept_reset)
    update = jax.nn.sigmoid(seen_update + kept_update)
    candidate = jnp.tanh(seen_candidate + reset * (kept_candidate + cells.state_bias[:, None]))
    states = candidate + update * (states - candidate)
    return states, jnp.sum(states * cells.head[:, None], axis=-1) + cells.head_bias[:, None]
