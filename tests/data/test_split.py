"""Whole episodes on one side or the other."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from moose.data.dataset import Dataset
from moose.data.episodes import Episode
from moose.data.split import cut_episodes, fold_episodes, split_episodes
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


def test_every_episode_is_in_exactly_one_fold():
    folds = fold_episodes(11, 3, 7)
    assert sorted(len(fold) for fold in folds) == [3, 4, 4]
    np.testing.assert_array_equal(np.sort(np.concatenate(folds)), np.arange(11))
    for fold, again in zip(folds, fold_episodes(11, 3, 7), strict=True):
        np.testing.assert_array_equal(fold, again)
    assert any((a != b).any() for a, b in zip(folds[1:], fold_episodes(11, 3, 8)[1:], strict=True))
    for wrong in (1, 12):
        with pytest.raises(DataError, match="folds"):
            fold_episodes(11, wrong, 0)


def make_log(lengths, *, last_is_known=True):
    episodes = []
    for number, length in enumerate(lengths):
        frames = 100.0 * number + np.arange(length + last_is_known)[:, None]
        actions = 0.1 * np.arange(length)[:, None]
        episodes.append(Episode(frames, actions, np.arange(length), truncated=True))
    return Dataset.from_episodes(episodes, ("x",), ("a",), {"plant": "toy"})


@pytest.mark.parametrize("last_is_known", [True, False])
def test_a_long_episode_is_cut_into_blocks_of_time(last_is_known):
    log = make_log((90, 10), last_is_known=last_is_known)
    cut = cut_episodes(log, 4)
    assert cut.lengths.tolist() == [30, 30, 30, 10]
    assert cut.final_observed.tolist() == [True, True, last_is_known, last_is_known]
    assert cut.truncated.tolist() == [False, False, True, True]
    np.testing.assert_array_equal(cut.actions, log.actions)
    np.testing.assert_array_equal(cut.rewards, log.rewards)
    # The frame at a cut ends one block and begins the next.
    np.testing.assert_array_equal(cut.observations[[30, 31]], [[30.0], [30.0]])
    rows, successors = cut.observation_rows, cut.has_successor
    np.testing.assert_array_equal(cut.observations[rows], log.observations[log.observation_rows])
    np.testing.assert_array_equal(successors, log.has_successor)
    assert cut.provenance == log.provenance


def test_enough_episodes_are_left_alone():
    log = make_log((5, 5, 5))
    assert cut_episodes(log, 3) is log
    with pytest.raises(DataError, match="2 transitions cannot be cut into 3"):
        cut_episodes(make_log((2,)), 3)
