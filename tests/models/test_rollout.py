"""Imagined trajectories: any model with a carry, any order of models and starts."""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from moose.models.rollout import imagine, imagine_each, states_of
from toys import assert_close

STARTS = np.random.default_rng(0).normal(size=(5, 3, 2)).astype(np.float32)  # [N, F, n]
MEMBERS = {"pull": jnp.asarray([0.5, -0.3]), "drift": jnp.asarray([[0.1, 0.0], [0.0, 0.2]])}
HORIZON = 4


class Hidden(NamedTuple):
    """A carry of another kind: a slow memory, a clock, and the newest frame."""

    memory: jax.Array
    clock: jax.Array
    frame: jax.Array


class RecurrentModel:
    """Stands for a model that is no window: what it remembers is its own business."""

    def start(self, member, window):
        return Hidden(jnp.mean(window, axis=0), jnp.zeros((), jnp.int32), window[0])

    def step(self, member, carry, action):
        memory = 0.5 * carry.memory + 0.5 * carry.frame
        tick = 0.01 * carry.clock.astype(jnp.float32)
        frame = memory * member["pull"] + member["drift"] + action + tick
        return Hidden(memory, carry.clock + 1, frame), frame

    def reward(self, member, window, action, frame):
        return jnp.sum(window[0] * frame) + window[-1, 0] + action[0] * member["pull"]


def policy(window):
    return jnp.stack([jnp.tanh(window[0, 0] - window[2, 1]), 0.1 * window[1, 0]])


def imagine_numpy():
    frames = np.zeros((3 + HORIZON, 2, 5, 2))
    actions, rewards = np.zeros((HORIZON, 2, 5, 2)), np.zeros((HORIZON, 2, 5))
    for k in range(2):
        pull, drift = float(MEMBERS["pull"][k]), np.asarray(MEMBERS["drift"][k])
        for i in range(5):
            window = STARTS[i].astype(np.float64)
            frames[:3, k, i] = window[::-1]
            memory, frame = window.mean(axis=0), window[0]
            for t in range(HORIZON):
                action = np.array([np.tanh(window[0, 0] - window[2, 1]), 0.1 * window[1, 0]])
                memory = 0.5 * memory + 0.5 * frame
                frame = memory * pull + drift + action + 0.01 * t
                rewards[t, k, i] = window[0] @ frame + window[-1, 0] + action[0] * pull
                actions[t, k, i], frames[3 + t, k, i] = action, frame
                window = np.vstack([frame, window[:-1]])
    return frames, actions, rewards


@pytest.mark.parametrize("is_rematerialised", [False, True])
def test_a_rollout_is_the_loop_over_models_starts_and_steps(is_rematerialised):
    roll = jax.jit(
        lambda members, starts: imagine(
            policy,
            RecurrentModel(),
            members,
            starts,
            HORIZON,
            is_rematerialised=is_rematerialised,
        )
    )
    imagined = roll(MEMBERS, STARTS)
    for found, expected in zip(imagined, imagine_numpy(), strict=True):
        assert found.shape == expected.shape
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("frames_seen", [1, 2, 3])
def test_states_are_those_in_which_actions_were_chosen(frames_seen):
    imagined = imagine(policy, RecurrentModel(), MEMBERS, STARTS, HORIZON)
    states = states_of(imagined, frames_seen)
    assert states.shape == (HORIZON, 2, 5, frames_seen, 2)
    for t in range(HORIZON):
        for age in range(frames_seen):
            np.testing.assert_array_equal(states[t, :, :, age], imagined.frames[2 + t - age])
    np.testing.assert_array_equal(states[0, 0], STARTS[:, :frames_seen])
    if frames_seen == 3:
        chosen = jax.vmap(jax.vmap(jax.vmap(policy)))(states)
        np.testing.assert_allclose(chosen, imagined.actions, rtol=1e-5, atol=1e-6)


def test_rematerialisation_changes_neither_value_nor_gradient():
    def total(starts, is_rematerialised):
        imagined = imagine(
            policy,
            RecurrentModel(),
            MEMBERS,
            starts,
            HORIZON,
            is_rematerialised=is_rematerialised,
        )
        return jnp.sum(imagined.rewards**2)

    kept, remade = (
        jax.jit(jax.value_and_grad(total), static_argnums=1)(STARTS, flag) for flag in (False, True)
    )
    assert_close(remade, kept, rtol=1e-5)
    assert np.abs(kept[1]).max() > 0.1


def test_a_start_does_not_depend_on_its_neighbours():
    together = imagine(policy, RecurrentModel(), MEMBERS, STARTS, HORIZON)
    alone = imagine(policy, RecurrentModel(), MEMBERS, STARTS[3:4], HORIZON)
    np.testing.assert_allclose(alone.frames[:, :, 0], together.frames[:, :, 3], rtol=1e-5)


def test_what_a_policy_notes_is_given_back_by_step_model_and_start():
    settings = jnp.arange(len(STARTS), dtype=jnp.float32)

    def noting(window, setting):
        action = policy(window)
        return action, {"seen": window[0] * setting, "action": action}

    imagined, notes = imagine_each(
        noting, RecurrentModel(), MEMBERS, STARTS, settings, HORIZON, is_rematerialised=True
    )
    np.testing.assert_array_equal(notes["action"], imagined.actions)
    newest = states_of(imagined, 1)[..., 0, :]
    np.testing.assert_allclose(notes["seen"], newest * settings[:, None], rtol=1e-6)
    plain = imagine(policy, RecurrentModel(), MEMBERS, STARTS, HORIZON)
    np.testing.assert_allclose(imagined.rewards, plain.rewards, rtol=1e-5)
