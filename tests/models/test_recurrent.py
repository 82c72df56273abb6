"""Recurrent models: their equations in NumPy, what they see, their training and its promises."""

from __future__ import annotations

import dataclasses
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from moose.models import recurrent_fit
from moose.models.networks import Dense
from moose.models.recurrent import (
    Cells,
    RecurrentMembers,
    RecurrentModel,
    init_member,
    num_inputs,
    step_cells,
)
from moose.models.recurrent_scales import measure_recurrent_scales
from moose.models.rollout import follow
from moose.models.supervised import make_table, segments_of
from toys import (
    LEVER_BOUND,
    PUSH,
    apply_numpy,
    assert_same_bits,
    differ,
    make_push_task,
    make_toy_log,
    toy_reward_numpy,
)
from toys import (
    TINY_RECURRENT as TINY,
)

UNITS, COLUMNS = TINY.units, [1, 0]
DELAYS, FEATURES = TINY.delays, TINY.features


def push_physics_numpy(frame, action, predicted):
    lever = frame[2] + PUSH[0] * action[0]
    return np.array([predicted[1], predicted[0], min(max(lever, -LEVER_BOUND), LEVER_BOUND)])


# One step of the cells


def sigmoid(numbers):
    return 1.0 / (1.0 + np.exp(-numbers))


def cell_numpy(weights, state, inputs):
    """The equations of a cell from the module's docstring."""
    joined = np.concatenate([inputs, state])
    reset = sigmoid(joined @ weights["reset"] + weights["reset_bias"])
    update = sigmoid(joined @ weights["update"] + weights["update_bias"])
    from_inputs = inputs @ weights["inputs"] + weights["inputs_bias"]
    from_state = state @ weights["state"] + weights["state_bias"]
    candidate = np.tanh(from_inputs + reset * from_state)
    state = candidate + update * (state - candidate)
    return state, state @ weights["head"] + weights["head_bias"]


def random_cells(rng, count, inputs, size=0.7):
    """Cells as the module keeps them, and as the equations have them."""
    shapes = {
        "reset": (inputs + UNITS, UNITS),
        "update": (inputs + UNITS, UNITS),
        "inputs": (inputs, UNITS),
        "state": (UNITS, UNITS),
        "reset_bias": (UNITS,),
        "update_bias": (UNITS,),
        "inputs_bias": (UNITS,),
        "state_bias": (UNITS,),
        "head": (UNITS,),
        "head_bias": (),
        "first": (UNITS,),
        "line": (DELAYS, 1, FEATURES),
        "line_bias": (FEATURES,),
    }
    apart = [
        {name: size * rng.normal(size=shape) for name, shape in shapes.items()}
        for _ in range(count)
    ]

    def stacked(make):
        return np.stack([make(one) for one in apart])

    cells = Cells(
        input_weight=stacked(
            lambda one: np.hstack([one["reset"][:inputs], one["update"][:inputs], one["inputs"]])
        ),
        input_bias=stacked(
            lambda one: np.concatenate([one["reset_bias"], one["update_bias"], one["inputs_bias"]])
        ),
        state_weight=stacked(
            lambda one: np.hstack([one["reset"][inputs:], one["update"][inputs:], one["state"]])
        ),
        state_bias=stacked(lambda one: one["state_bias"]),
        head=stacked(lambda one: one["head"]),
        head_bias=stacked(lambda one: one["head_bias"]),
        first=stacked(lambda one: one["first"]),
        line=stacked(lambda one: one["line"]),
        line_bias=stacked(lambda one: one["line_bias"]),
    )
    return cells, apart


def random_network(rng):
    """Of a reward: on a frame, an action and the next frame."""
    return tuple(Dense(rng.normal(size=s), rng.normal(size=s[1])) for s in ((8, 5), (5, 1)))


def test_cells_are_their_equations():
    rng = np.random.default_rng(0)
    cells, apart = random_cells(rng, 3, 5)
    states, inputs = rng.normal(size=(3, 2, UNITS)), 2.0 * rng.normal(size=(3, 2, 5))
    with jax.enable_x64(True):
        found, changes = jax.jit(step_cells)(cells, states, inputs)
    for (i, weights), b in itertools.product(enumerate(apart), range(2)):
        state, change = cell_numpy(weights, states[i, b], inputs[i, b])
        np.testing.assert_allclose(found[i, b], state, rtol=1e-12)
        np.testing.assert_allclose(changes[i, b], change, rtol=1e-12)


# Runs of a member


def lever_numpy(scales, frame):
    return (frame[2] - scales.frame.mean[2]) / scales.frame.deviation[2]


def inputs_numpy(apart, scales, sees_all, levers, last, actions):
    """Of each cell: lever, hidden actions, its own last value or all, what it makes of levers."""
    frame_scale = scales.frame
    values = (last - frame_scale.mean[COLUMNS]) / frame_scale.deviation[COLUMNS]
    own = [values, values] if sees_all else values[:, None]
    newest_first = levers[::-1] + DELAYS * levers[:1]  # the oldest stands for those before
    line = np.array(newest_first[:DELAYS])
    made = [np.tanh(line @ cell["line"][:, 0] + cell["line_bias"]) for cell in apart]
    return [
        np.concatenate([levers[-1:], actions, value, features])
        for value, features in zip(own, made, strict=True)
    ]


def run_numpy(apart, task, scales, physics, is_unshown, sees_all, window, actions):
    """Frames of a free run along actions, and the one-step errors on the way through the window."""
    deviation = scales.frame.deviation[COLUMNS]
    low, high = np.array(task.action_low), np.array(task.action_high)
    is_first = np.array_equal(window[-1], window[-2])
    states = [one["first"] if is_first else np.zeros(UNITS) for one in apart]
    frames, warm_up = [], []

    def advance(states, inputs):
        pairs = [cell_numpy(*one) for one in zip(apart, states, inputs, strict=True)]
        return [state for state, _ in pairs], np.array([change for _, change in pairs])

    has_begun, levers = False, [lever_numpy(scales, window[-1])]
    for before, after in itertools.pairwise(window[::-1]):
        levers.append(lever_numpy(scales, after))
        has_begun = has_begun or not np.array_equal(before, after)
        if not has_begun:
            warm_up.append(np.zeros(2))
            continue
        inputs = inputs_numpy(apart, scales, sees_all, levers, before[COLUMNS], np.zeros(2))
        states, change = advance(states, inputs)
        warm_up.append(change - (after - before)[COLUMNS] / deviation)
    frame, num_clipped = window[0], 0
    for action in actions:
        last = frame[COLUMNS]
        box = 2.0 * (action - low) / (high - low) - 1.0
        levers.append(lever_numpy(scales, physics(frame, action, np.full(2, np.nan))))
        inputs = inputs_numpy(apart, scales, sees_all, levers, last, box * is_unshown)
        states, change = advance(states, inputs)
        free = last + change * deviation
        predicted = np.clip(free, scales.predicted.minimum, scales.predicted.maximum)
        num_clipped += int((free != predicted).any())
        frame = physics(frame, action, predicted)
        frames.append(frame)
    return np.array(frames), np.array(warm_up), num_clipped


def reward_numpy(task, scales, network, frame, action, after):
    if task.reward is not None:
        return toy_reward_numpy(frame, action, after)
    low, high = np.array(task.action_low), np.array(task.action_high)
    parts = [(one - scales.frame.mean) / scales.frame.deviation for one in (frame, after)]
    features = np.concatenate([parts[0], 2.0 * (action - low) / (high - low) - 1.0, parts[1]])
    reward = apply_numpy(network, features)[0] * scales.reward.deviation + scales.reward.mean
    return np.clip(reward, scales.reward.minimum, scales.reward.maximum)


@pytest.mark.parametrize(("inputs", "is_reward_known"), [("own", False), ("all", True)])
def test_a_rollout_is_the_loop_over_window_and_steps(inputs, is_reward_known):
    task = make_push_task(is_reward_known=is_reward_known)
    settings, rng = TINY.model_copy(update={"inputs": inputs}), np.random.default_rng(1)
    log = make_toy_log(task)
    scales = jax.tree.map(
        lambda leaf: np.asarray(leaf, np.float64),
        measure_recurrent_scales(log, task, settings.early_share),
    )
    drawn = [random_cells(rng, 2, num_inputs(task, settings), size=1.0) for _ in range(2)]
    networks = [random_network(rng) for _ in range(2)]
    members = jax.tree.map(
        lambda *leaves: np.stack(leaves),
        *(
            RecurrentMembers(cells, None if is_reward_known else network)
            for (cells, _), network in zip(drawn, networks, strict=True)
        ),
    )
    starts = log.observations[[[4, 3, 2], [40, 39, 38]]].astype(np.float64)
    actions = rng.uniform(task.action_low, task.action_high, (5, 2, 2))
    with jax.enable_x64(True):
        imagined = jax.jit(
            lambda members: follow(RecurrentModel(task, scales), members, starts, actions)
        )(members)
    clipped = []
    for k, i in itertools.product(range(2), range(2)):
        frames, _, num_clipped = run_numpy(
            *(drawn[k][1], task, scales, push_physics_numpy, np.array([0.0, 1.0])),
            *(inputs == "all", starts[i], actions[:, i]),
        )
        clipped.append(num_clipped)
        np.testing.assert_allclose(imagined.frames[3:, k, i], frames, rtol=1e-9)
        before = [starts[i][0], *frames[:-1]]
        rewards = [
            reward_numpy(task, scales, networks[k], *step)
            for step in zip(before, actions[:, i], frames, strict=True)
        ]
        np.testing.assert_allclose(imagined.rewards[:, k, i], rewards, rtol=1e-9)
    assert 0 < sum(clipped) < 4 * 5


def test_without_delays_a_cell_sees_the_next_frame_only():
    task = make_push_task()
    log, plain = make_toy_log(task), TINY.model_copy(update={"delays": 0})
    nothing_given = dataclasses.replace(
        task,
        physics=lambda frame, action, predicted: predicted,
        predicted_names=task.observation_names,
    )
    assert num_inputs(task, plain) == num_inputs(task, TINY) - FEATURES
    for one, settings in ((task, plain), (nothing_given, TINY)):
        member = jax.tree.map(jnp.asarray, init_member(one, settings, jax.random.key(0)))
        assert member.cells.line.size == member.cells.line_bias.size == 0
        model = RecurrentModel(one, measure_recurrent_scales(log, one, settings.early_share))
        carry = model.start(member, jnp.asarray(log.observations[2::-1]))
        assert carry.line.size == 0
        after, frame = model.step(member, carry, jnp.asarray(log.actions[2]))
        assert after.line.shape == carry.line.shape
        assert np.isfinite(frame).all()


def test_a_first_frame_that_is_repeated_is_not_a_plant_that_was_held_still():
    task, rng = make_push_task(), np.random.default_rng(4)
    log = make_toy_log(task)
    cells, _ = random_cells(rng, 2, num_inputs(task, TINY))
    member = jax.tree.map(jnp.float32, RecurrentMembers(cells, None))
    model = RecurrentModel(task, measure_recurrent_scales(log, task, TINY.early_share))
    frames = jnp.asarray(log.observations[:3])
    begun, older = (frames[jnp.asarray(rows)] for rows in ([0, 0, 0], [1, 0, 0, 0]))
    np.testing.assert_array_equal(model.start(member, begun).states[:, 0], member.cells.first)
    # However long the history is, and not as if it had been held still after its first step.
    short, long = (frames[jnp.asarray(rows)] for rows in ([1, 0, 0], [1, 0, 0, 0, 0]))
    states = model.start(member, older).states
    for same in (short, long):
        np.testing.assert_array_equal(model.start(member, same).states, states)
    held = model.start(member, frames[jnp.asarray([1, 1, 0, 0])])
    assert not np.array_equal(held.states, states)
    # In the middle of an episode nothing is known of what was before.
    nothing = member._replace(cells=member.cells._replace(first=jnp.zeros_like(states[:, 0])))
    moving = frames[jnp.asarray([2, 1, 0])]
    np.testing.assert_array_equal(
        model.start(member, moving).states, model.start(nothing, moving).states
    )


def test_errors_count_what_is_known_only():
    task, rng = make_push_task(is_reward_known=False), np.random.default_rng(2)
    log = make_toy_log(task, episodes=2, steps=8, unfinished=(1,))
    scales = measure_recurrent_scales(log, task, TINY.early_share)
    cells, apart = random_cells(rng, 2, num_inputs(task, TINY), size=0.3)
    network = random_network(rng)
    member = jax.tree.map(jnp.float32, RecurrentMembers(cells, network))
    table = make_table(log)
    # At an episode's first step, at its second with five known ones left, and at its last but one.
    steps, lengths, ages = jnp.int32([0, 9, 6]), jnp.int32([6, 6, 2]), jnp.int32([0, 1, 6])
    runs = recurrent_fit._Runs(segments_of(table, steps, 3, 6, lengths), lengths)
    free, warm_up = jax.jit(
        lambda member: recurrent_fit._squared_errors(member, RecurrentModel(task, scales), runs)
    )(member)

    errors, first_errors, reward_errors = [], [], []
    rows = np.array([0, 10, 6])
    for row, step, length, age in zip(rows, steps, lengths, ages, strict=True):
        window = log.observations[np.maximum(row - np.arange(3), row - age)].astype(np.float64)
        actions = log.actions[step : step + length].astype(np.float64)
        truth = log.observations[row + 1 : row + 1 + length].astype(np.float64)
        frames, warm, _ = run_numpy(
            *(apart, task, scales, push_physics_numpy, np.array([0.0, 1.0]), False),
            *(window, actions),
        )
        errors.append((frames - truth)[:, COLUMNS] / scales.frame.deviation[COLUMNS])
        first_errors.append(warm)
        wide = dataclasses.replace(scales.reward, minimum=-np.inf, maximum=np.inf)
        for t, action in enumerate(actions):
            before = window[0] if t == 0 else truth[t - 1]
            scale = scales._replace(reward=wide)
            guess = reward_numpy(task, scale, network, before, action, truth[t])
            reward_errors.append((guess - log.rewards[step + t]) / scales.reward.deviation)
    expected = np.mean(np.concatenate(errors) ** 2) + np.mean(np.square(reward_errors))
    np.testing.assert_allclose(free, expected, rtol=1e-4)
    np.testing.assert_allclose(warm_up, np.mean(np.concatenate(first_errors) ** 2), rtol=1e-4)


# What is seen


def test_a_shown_action_acts_through_physics_alone():
    task, rng = make_push_task(), np.random.default_rng(3)
    log = make_toy_log(task)
    scales = measure_recurrent_scales(log, task, TINY.early_share)
    cells, _ = random_cells(rng, 2, num_inputs(task, TINY))
    member = RecurrentMembers(jax.tree.map(jnp.float32, cells), None)
    model = RecurrentModel(task, scales)

    @jax.jit
    def predicted(window, action):
        return model.step(member, model.start(member, window), action)[1][jnp.asarray(COLUMNS)]

    # The lever is at its bound and stays there whatever the first action adds to it.
    window = log.observations[:3] * np.float32([1, 1, 0]) + np.float32([0, 0, LEVER_BOUND])
    usual = predicted(window, np.float32([0.5, 1.0]))
    assert_same_bits(predicted(window, np.float32([2.0, 1.0])), usual)
    assert differ(predicted(window, np.float32([0.5, 1.4])), usual)
    assert differ(predicted(window, np.float32([-0.5, 1.0])), usual)  # the lever moves
