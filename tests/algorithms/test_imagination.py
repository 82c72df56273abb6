"""The parts of the objective of algorithms that imagine."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
import pytest

from moose.algorithms import imagination


def test_the_worst_model_is_chosen_for_each_start_state():
    returns = jnp.asarray([[1.0, 5.0, 3.0], [2.0, 0.0, 3.0]])  # [K, N]
    assert imagination.expected_return(returns, 1.0) == pytest.approx((1.0 + 0.0 + 3.0) / 3)
    assert imagination.expected_return(returns, 0.0) == pytest.approx((1.5 + 2.5 + 3.0) / 3)
    assert imagination.expected_return(returns, 0.5) == pytest.approx((1.25 + 1.25 + 3.0) / 3)


def test_returns_are_discounted_from_the_first_step():
    rewards = jnp.asarray([[[1.0, -1.0]], [[10.0, 0.0]], [[100.0, 2.0]]])  # [H, K, N]
    np.testing.assert_allclose(imagination.discounted_return(rewards, 0.5), [[31.0, -0.5]])
    np.testing.assert_allclose(imagination.discounted_return(rewards, 1.0), [[111.0, 1.0]])


def test_penalties_are_summed_over_time_and_averaged_over_the_rest():
    penalties = jnp.asarray([[[1.0, 2.0], [3.0, 4.0]], [[0.0, 0.0], [0.0, 8.0]]])
    assert imagination.expected_penalty(penalties) == pytest.approx(2.5 + 2.0)
