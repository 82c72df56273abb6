"""An ensemble of recurrent dynamics models, which run freely.

Each member has one gated recurrent cell for every signal that the task does not know. A cell sees
the signals that physics gives for the next frame, what it makes of them in the frames before (a
plant's answer may come many steps late), the last value of its own signal (or of all that are
predicted), and actions whose effect physics does not show; it predicts its signal's change. It
warms up along the history window, from the episode's first frame on, and then runs on its own
predictions, in training as in use:

    x = (u₀, y, a, tanh(A u + e))            (u = u₀ … u₋₍D₋₁₎: a delay line)
    g_r, g_z, g_x, g_h = W (x, h) + b        (g_x sees x only, g_h sees h only)
    r, z = sigmoid(g_r), sigmoid(g_z)
    h ← n + z (h − n),   n = tanh(g_x + r g_h)
    y ← y + deviation · (v h + w)

How they are trained is in :mod:`moose.models.recurrent_fit`, the scales they live in are in
:mod:`moose.models.recurrent_scales`.

=====  ======================================================
x      inputs of a cell, standardised
u      signals that physics gives, of the next frame and of those before it
a      actions that no such signal shows
h      its state, U numbers
y      its signal
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

    weight: jax.Array
    """[C, I + U, 4 U]: reset, update, candidate from inputs, candidate from state"""
    bias: jax.Array
    """[C, 4 U]"""
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
    """The carry of a rollout."""

    states: jax.Array
    """[C, U]"""
    frame: jax.Array
    """[n] the newest frame, raw"""
    line: jax.Array
    """[D, G] what physics gave in the newest frames, standardised, the newest first"""


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
    weight[:, inputs:, 2] = 0.0
    weight[:, :inputs, 3] = 0.0
    (head,) = init_network(head_key, (units, cells))
    delays = settings.delays if features else 0
    (line,) = init_network(
        jax.random.fold_in(weight_key, 1), (max(delays * given, 1), cells * settings.features)
    )
    line_weight = np.asarray(line.weight)[: delays * given, : cells * features]
    sizes = (2 * len(task.observation_names) + len(task.action_names), *settings.reward_hidden, 1)
    return RecurrentMembers(
        Cells(
            weight=on_device(weight.reshape(cells, inputs + units, 4 * units)),
            bias=on_device(np.zeros((cells, 4 * units), np.float32)),
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
    features, units = cells.line.shape[-1], cells.head.shape[-1]
    last = cells.weight.shape[-2] - units
    weight = cells.weight.at[:, last - features : last].set(0.0)
    return member._replace(cells=cells._replace(weight=weight, line=jnp.zeros_like(cells.line)))


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
        memory, _ = self._warm_up(member, window)
        return memory

    def step(
        self, member: RecurrentMembers, carry: Memory, action: jax.Array
    ) -> tuple[Memory, jax.Array]:
        """One imagined step of one member: the next carry, and the next frame [n]."""
        last = carry.frame[jnp.asarray(self.task.predicted)]
        # Of this frame only those signals are looked at that do not depend on the predictions.
        given = self.task.physics(carry.frame, action, last)
        unshown = to_box(action, self.task) * self.scales.unshown
        line = jnp.concatenate([self._known(given)[None], carry.line])[: len(carry.line)]
        inputs = self._inputs(member.cells, self._known(given), last, unshown, line)
        states, change = step_cells(member.cells, carry.states, inputs)
        predicted = clip_to_range(last + change * self._deviation, self.scales.predicted)
        frame = self.task.physics(carry.frame, action, predicted)
        return Memory(states, frame, line), frame

    def reward(
        self, member: RecurrentMembers, window: jax.Array, action: jax.Array, frame: jax.Array
    ) -> jax.Array:
        """The known reward, or the member's learned one clipped to the data's range; a scalar."""
        if self.task.reward is not None:
            return self.task.reward(window[0], action, frame)
        output = self._reward_output(member, window[0], action, frame)
        return clip_to_range(restore(output, self.scales.reward), self.scales.reward)

    def run_errors(
        self, member: RecurrentMembers, segment: Segments
    ) -> tuple[jax.Array, jax.Array]:
        """Errors along one stretch of a log, in deviations.

        Args:
            member: The member.
            segment: The stretch, without its axis N.

        Returns:
            Those of the free run, [H, C], and of one step each in the warm-up, [F − 1, C].
        """
        columns = jnp.asarray(self.task.predicted)
        memory, first = self._warm_up(member, segment.windows)

        @jax.checkpoint
        def step(carry: Memory, action: jax.Array) -> tuple[Memory, jax.Array]:
            return self.step(member, carry, action)

        _, frames = jax.lax.scan(step, memory, segment.actions)
        errors = (frames - segment.frames)[:, columns]
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

    def _warm_up(self, member: RecurrentMembers, window: jax.Array) -> tuple[Memory, jax.Array]:
        """The carry after the window [F, n], and the one-step errors on the way [F − 1, C].

        Before an episode began its first frame is repeated. That is not a plant that was held
        still, and a cell that took it for one would believe that holding still changes nothing; so
        it has its first state until a frame differs from the one before, and makes no error.
        """
        columns = jnp.asarray(self.task.predicted)
        frames = window[::-1]
        has_begun = jnp.cumsum(jnp.any(frames[1:] != frames[:-1], axis=-1), dtype=jnp.int32) > 0
        # What was done is not in a window; the middle of an action's range stands for it.
        unshown = jnp.zeros(len(self.task.action_names), window.dtype)

        @jax.checkpoint
        def step(
            states: jax.Array, pair: tuple[jax.Array, jax.Array, jax.Array, jax.Array]
        ) -> tuple[jax.Array, jax.Array]:
            before, after, line, is_awake = pair
            inputs = self._inputs(member.cells, self._known(after), before[columns], unshown, line)
            following, change = step_cells(member.cells, states, inputs)
            errors = change - (after - before)[columns] / self._deviation
            return (
                jnp.where(is_awake, following, states),
                jnp.where(is_awake, errors, jnp.zeros_like(errors)),
            )

        # The line at each frame; the window's oldest stands for those before.
        delays = member.cells.line.shape[-3]
        ages = np.arange(len(frames))[:, None] - np.arange(delays)[None]
        lines = jax.vmap(self._known)(frames)[np.maximum(ages, 0)]
        is_first = ~jnp.any(has_begun[:1])
        states = jnp.where(is_first, member.cells.first, jnp.zeros_like(member.cells.first))
        states, errors = jax.lax.scan(step, states, (frames[:-1], frames[1:], lines[1:], has_begun))
        return Memory(states, window[0], lines[-1]), errors

    def _known(self, frame: jax.Array) -> jax.Array:
        """Of a frame [n] what physics gives, standardised: [G]."""
        columns = jnp.asarray(given_columns(self.task), jnp.int32)
        return (standardise(frame, self.scales.frame) * self.scales.given)[columns]

    def _inputs(
        self,
        cells: Cells,
        known: jax.Array,
        last: jax.Array,
        unshown: jax.Array,
        line: jax.Array,
    ) -> jax.Array:
        """The inputs [C, I]: what is given [G], last values [C], actions [d], the line [D, G]."""
        mean = jnp.asarray(self.scales.frame.mean)[jnp.asarray(self.task.predicted)]
        shared = jnp.concatenate([known, unshown])
        values = (last - mean) / self._deviation
        count, units = cells.head.shape
        made = jnp.tanh(jnp.einsum("dg,cdgj->cj", line, cells.line) + cells.line_bias)
        sees_all = cells.weight.shape[-2] - units > len(shared) + 1 + made.shape[-1]
        own = jnp.broadcast_to(values, (count, count)) if sees_all else values[:, None]
        told = jnp.broadcast_to(shared, (count, len(shared)))
        return jnp.concatenate([told, own, made], axis=1)

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
