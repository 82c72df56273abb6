"""Whole episodes on one side or the other."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from moose.data.split import split_episodes
from moose.errors import ConfigError, DataError


@given(
    num_episodes=st.integers(2, 300),
    fraction=st.floats(0, 1, exclude_min=True, exclude_max=True),
    seed=st.integers(0, 2**70),
)
def test_every_episode_is_on_exactly_one_side(
    num_episodes: int, fraction: float, seed: int
) -> None:
    train, held_out = split_episodes(num_episodes, fraction, seed)
    assert len(train) >= 1
    assert len(held_out) >= 1
    assert not set(train) & set(held_out)
    np.testing.assert_array_equal(np.sort([*train, *held_out]), np.arange(num_episodes))
    assert abs(len(held_out) - fraction * num_episodes) <= 1
    again = split_episodes(num_episodes, fraction, seed)
    np.testing.assert_array_equal(train, again[0])
    np.testing.assert_array_equal(held_out, again[1])


def test_the_split_never_changes() -> None:
    # Results depend on it: a new version has to split old data as before.
    _, held_out = split_episodes(20, 0.25, 7)
    assert held_out.tolist() == [3, 4, 6, 11, 12]


def test_seeds_differ() -> None:
    assert len({tuple(split_episodes(20, 0.25, seed)[1]) for seed in range(10)}) > 5


@pytest.mark.parametrize("num_episodes", [0, 1])
def test_too_few_episodes_give_advice(num_episodes: int) -> None:
    with pytest.raises(DataError, match="cut the log into several episodes"):
        split_episodes(num_episodes, 0.1, 0)


@pytest.mark.parametrize("fraction", [0.0, 1.0, -0.5, float("nan")])
def test_impossible_fractions(fraction: float) -> None:
    with pytest.raises(ConfigError, match="fraction"):
        split_episodes(10, fraction, 0)


def test_negative_seeds() -> None:
    with pytest.raises(ConfigError, match="seed"):
        split_episodes(10, 0.1, -1)
