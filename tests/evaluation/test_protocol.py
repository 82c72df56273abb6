"""The evaluation protocol: sums that are right, and the same luck for everybody."""

from __future__ import annotations

import hypothesis.extra.numpy as hnp
import hypothesis.strategies as st
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given

from moose.errors import ConfigError
from moose.evaluation.protocol import discounted_sum, evaluate, make_evaluator
from moose.types import Plant


def make_plant():
    """Frames are random numbers; the reward is the new frame plus the action."""
    return Plant(
        name="noise",
        frame_names=("value",),
        action_names=("change",),
        reset=lambda key: jax.random.normal(key, (1,)),
        step=lambda state, action, key: jax.random.normal(key, (1,)),
        observe=lambda state: state,
        reward=lambda frame, action, next_frame: next_frame[0] + action[0],
    )


def constant(params, window, key):
    return params[None]


@given(
    rewards=hnp.arrays(
        np.float32,
        st.sampled_from([(1,), (40,), (3, 7), (2, 1, 5)]),  # each is compiled
        elements=st.floats(-1000, 1000, width=32),
    ),
    discount=st.sampled_from([0.0, 0.5, 0.97, 1.0]),
)
def test_discounted_sums_match_the_naive_loop(rewards, discount):
    expected = np.zeros(rewards.shape[:-1])
    for step in reversed(range(rewards.shape[-1])):
        expected = rewards[..., step] + discount * expected
    found = jax.jit(discounted_sum, static_argnums=1)(jnp.asarray(rewards), discount)
    assert found.dtype == jnp.float32
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=0.02)


def test_discounted_sums_of_ones_are_geometric():
    found = discounted_sum(jnp.ones((3, 100)), 0.97)
    np.testing.assert_allclose(found, (1 - 0.97**100) / 0.03, rtol=1e-6)


def test_every_episode_has_its_return_and_the_policy_its_parameters():
    key = jax.random.key(0)
    measure = make_evaluator(make_plant(), constant, history=2, episodes=8, steps=10, discount=0.5)
    silent = measure(jnp.float32(0.0), key)
    acting = measure(jnp.float32(3.0), key)
    assert silent.shape == (8,)
    assert len(np.unique(silent)) == 8
    # The same key gives the same plants: only the action's own share differs.
    np.testing.assert_allclose(acting - silent, 3 * (1 - 0.5**10) / 0.5, rtol=1e-5)
    assert not np.any(silent == measure(jnp.float32(0.0), jax.random.key(1)))
    once = evaluate(
        make_plant(),
        constant,
        jnp.float32(0.0),
        history=2,
        episodes=8,
        steps=10,
        discount=0.5,
        key=key,
    )
    np.testing.assert_array_equal(once, silent)


@pytest.mark.parametrize(
    "change", [{"episodes": 0}, {"steps": 0}, {"discount": 1.5}, {"discount": float("nan")}]
)
def test_impossible_protocols_are_refused(change):
    settings = {"history": 1, "episodes": 2, "steps": 3, **change}
    with pytest.raises(ConfigError, match=next(iter(change))):
        make_evaluator(make_plant(), constant, **settings)
