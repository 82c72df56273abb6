"""Small worlds, logs and journals that several tests share."""

from __future__ import annotations

import dataclasses
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from moose.algorithms import critics
from moose.data.dataset import Dataset
from moose.data.episodes import Episode
from moose.models.recurrent import RecurrentSettings
from moose.tasks.task import Task

SIGNALS = ("x", "y", "lever")
LEVER_BOUND = 0.8
PUSH = (0.3, -0.2)  # what each action adds to the lever
TINY_RECURRENT = RecurrentSettings(
    units=4,
    delays=4,
    features=3,
    reward_hidden=(5,),
    horizon=6,
    updates=6,
    batch_size=8,
    learning_rate=1e-2,
    held_out_runs=16,
    rounds=3,
)


def make_toy_task(
    *,
    num_actions=2,
    history=2,
    target="direct",
    is_reward_known=True,
    horizon=5,
    discount=0.9,
) -> Task:
    """Three signals, one of them known physics, predictions in another order than the columns."""
    return Task(
        name="toy",
        observation_names=SIGNALS,
        action_names=("push", "pull")[:num_actions],
        action_low=(-1.0, 0.5)[:num_actions],
        action_high=(2.0, 1.5)[:num_actions],
        history=history,
        discount=discount,
        horizon=horizon,
        target=target,
        predicted_names=("y", "x"),
        physics=toy_physics,
        reward=toy_reward if is_reward_known else None,
        hold_action=None,
    )


def toy_physics(frame, action, predicted):
    """The lever moves by what is known, within its bounds."""
    push = sum(action[i] * PUSH[i] for i in range(len(action)))
    lever = jnp.clip(frame[2] + push, -LEVER_BOUND, LEVER_BOUND)
    return jnp.stack([predicted[1], predicted[0], lever])


def toy_reward(frame, action, next_frame):
    """Depends on all three arguments."""
    return -(next_frame[0] ** 2) + 0.1 * next_frame[1] + 0.2 * action[0] * frame[2]


def toy_physics_numpy(frame, action, predicted):
    """The same, written once more."""
    lever = frame[2] + np.dot(PUSH[: len(action)], action)
    return np.array([predicted[1], predicted[0], min(max(lever, -LEVER_BOUND), LEVER_BOUND)])


def toy_reward_numpy(frame, action, next_frame):
    """The same, written once more."""
    return -(next_frame[0] ** 2) + 0.1 * next_frame[1] + 0.2 * action[0] * frame[2]


def push_physics(frame, action, predicted):
    """The lever shows what the first action does, and nothing of the second."""
    lever = jnp.clip(frame[2] + PUSH[0] * action[0], -LEVER_BOUND, LEVER_BOUND)
    return jnp.stack([predicted[1], predicted[0], lever])


def make_push_task(**options) -> Task:
    """The toy of whose second action physics shows nothing."""
    return dataclasses.replace(make_toy_task(history=3, **options), physics=push_physics)


def make_toy_log(task: Task, *, episodes=6, steps=30, seed=0, unfinished=()) -> Dataset:
    """Uniform actions in a noisy nonlinear plant; ``unfinished`` episodes lack their last frame."""
    rng = np.random.default_rng(seed)
    parts = []
    for episode in range(episodes):
        frames = [rng.normal(size=3) * 0.3]
        actions = rng.uniform(task.action_low, task.action_high, (steps, len(task.action_names)))
        rewards = []
        for action in actions:
            x, y, lever = frames[-1]
            predicted = np.array([0.8 * y + 0.2 * lever, 0.7 * x + 0.4 * np.tanh(y) + 0.1])
            predicted = predicted + 0.1 * rng.normal(size=2) + 0.2 * (action[0] - 0.5)
            frames.append(toy_physics_numpy(frames[-1], action, predicted))
            rewards.append(toy_reward_numpy(frames[-2], action, frames[-1]))
        frames = frames[:-1] if episode in unfinished else frames
        parts.append(Episode(np.array(frames), actions, np.array(rewards)))
    return Dataset.from_episodes(parts, task.observation_names, task.action_names, {})


def altered(dataset: Dataset, **arrays) -> Dataset:
    """The data set with other numbers, past its checks (to poison what nobody may read)."""
    copy = dataset.select_episodes(np.arange(dataset.num_episodes))
    for name, values in arrays.items():
        values.flags.writeable = False
        object.__setattr__(copy, name, values)
    return copy


class MemoryJournal:
    """Keeps a run in memory as a run folder does on disk; may fail just before a checkpoint."""

    def __init__(self):
        self.states, self.lines, self.results = {}, [], {}
        self.fail_at = None
        self.kept = []

    def restore(self, stage, like):
        state, done = self.states.get(stage, (like, 0))
        self.lines = [line for line in self.lines if line[0] != stage or line[1] < done]
        return state, done

    def keep(self, stage, step, state):
        if self.fail_at == (stage, step):
            raise KeyboardInterrupt
        self.kept.append((stage, step))
        self.states[stage] = (jax.tree.map(np.array, state), step)

    def record(self, stage, step, metrics):
        count = len(next(iter(metrics.values())))
        for i in range(count):
            values = {name: np.array(v[i]) for name, v in metrics.items()}
            self.lines.append((stage, step + i, values))

    def once(self, name, digest, like, make, *, meanwhile=None):
        if (name, digest) not in self.results:
            self.results[name, digest] = jax.tree.map(np.array, make())
        return self.results[name, digest]


def assert_same_bits(first, second):
    """Two trees of the same structure, types and bits."""
    assert jax.tree.structure(first) == jax.tree.structure(second)
    leaves = (map(np.asarray, jax.tree.leaves(tree)) for tree in (first, second))
    for one, other in zip(*leaves, strict=True):
        assert (one.shape, one.dtype) == (other.shape, other.dtype)
        np.testing.assert_array_equal(one, other)


def assert_close(first, second, rtol=1e-5, atol=1e-6):
    """Two trees of the same structure, equal up to rounding."""
    assert jax.tree.structure(first) == jax.tree.structure(second)
    for one, other in zip(jax.tree.leaves(first), jax.tree.leaves(second), strict=True):
        np.testing.assert_allclose(one, other, rtol=rtol, atol=atol)


def differ(first, second) -> bool:
    """Whether any leaf of two trees differs."""
    pairs = zip(jax.tree.leaves(first), jax.tree.leaves(second), strict=True)
    return any(not np.array_equal(one, other) for one, other in pairs)


class Stepped(NamedTuple):
    """One update of an algorithm with critics, and what it saw."""

    task: Task
    config: object
    before: object
    after: object
    batch: critics.Batch
    keys: list[jax.Array]
    """Those the update split from its own, the batch's first."""
    metrics: dict[str, float]


def step_once(task, config, before, update, own, key, num_keys, step=0) -> Stepped:
    """Run one update on a toy log, and draw its batch once more."""
    experience = critics.make_experience(make_toy_log(task), config.inputs)
    after, metrics = jax.jit(update)(before, own, experience, jnp.int32(step))
    key = jax.random.fold_in(key, step)
    keys = list(jax.random.split(key, num_keys)) if num_keys > 1 else [key]
    draw = jax.jit(lambda key: critics.draw_batch(experience, task, config.batch_size, key))
    batch = jax.tree.map(np.asarray, draw(keys[0]))
    return Stepped(task, config, before, after, batch, keys, metrics)


def moved(targets, sources, rate):
    """Slow copies after a step, in NumPy."""

    def move(target, source):
        return (1 - rate) * np.array(target) + rate * np.array(source)

    return jax.tree.map(move, targets, sources)


def apply_numpy(network, inputs):
    """A network in float64, written once more."""
    for i, (weight, bias) in enumerate(network):
        inputs = inputs @ np.asarray(weight, np.float64) + np.asarray(bias, np.float64)
        inputs = np.maximum(inputs, 0.0) if i < len(network) - 1 else inputs
    return inputs


def q_numpy(critic, states, actions):
    """Q(s, a) in float64, for actions [..., d] with states [..., S] of the same leading axes."""
    return apply_numpy(critic, np.concatenate([states, actions], axis=-1))[..., 0]
