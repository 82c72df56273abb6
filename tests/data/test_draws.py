"""Draws of steps: exactly as likely as they should be, by counting them."""

from __future__ import annotations

import jax
import numpy as np
import pytest

from moose.data.draws import draw_steps, make_draw

COUNT = 200_000
LENGTHS = (7, 1, 63, 20)
# The steps of an episode are in a row; between two episodes some may not be drawn.
FIRSTS = (0, 9, 12, 80)
STEPS = np.concatenate([first + np.arange(n) for first, n in zip(FIRSTS, LENGTHS, strict=True)])
EPISODES = np.repeat([3, 4, 5, 9], LENGTHS)


def shares(early_share, key=0):
    """How often each of the steps was drawn; none but these may be."""
    drawn = np.asarray(
        draw_steps(make_draw(STEPS, EPISODES), COUNT, early_share, jax.random.key(key))
    )
    assert drawn.dtype == np.int32
    assert set(drawn) <= set(STEPS)
    return (drawn[:, None] == STEPS).mean(axis=0)


def early(length):
    """The share of each age: the logarithm of a number from 1 to one more than there are ages."""
    return np.diff(np.log(np.arange(1, length + 2))) / np.log(length + 1)


def expected(early_share):
    return np.concatenate(
        [(1 - early_share + early_share * n * early(n)) / len(STEPS) for n in LENGTHS]
    )


def assert_shares(found, wanted):
    """Within five standard errors of a count."""
    error = np.sqrt(wanted * (1 - wanted) / COUNT)
    assert (np.abs(found - wanted) < 5 * error).all()


@pytest.mark.parametrize("early_share", [0.0, 0.5, 1.0])
def test_every_step_is_as_likely_as_it_should_be(early_share):
    assert expected(early_share).sum() == pytest.approx(1.0)
    assert_shares(shares(early_share), expected(early_share))


def test_every_doubling_of_age_is_as_likely_as_any_other():
    found = shares(1.0)[8:71]  # of the episode of 63 steps: six doublings
    ages = np.arange(1, 64)
    doublings = np.array([found[(ages >= 2**i) & (ages < 2 ** (i + 1))].sum() for i in range(6)])
    assert_shares(doublings, np.full(6, 63 / len(STEPS) / 6))


def test_an_episode_is_as_likely_as_it_is_long():
    found = np.add.reduceat(shares(1.0), np.cumsum([0, *LENGTHS[:-1]]))
    assert_shares(found, np.array(LENGTHS) / len(STEPS))


def test_episodes_of_a_single_step_will_do():
    draw = make_draw(np.array([5, 6, 9]), np.array([0, 1, 2]))
    drawn = np.asarray(draw_steps(draw, 300, 1.0, jax.random.key(0)))
    assert set(drawn) == {5, 6, 9}
    (only,) = draw_steps(make_draw([4], [0]), 1, 0.5, jax.random.key(0))
    assert only == 4


def test_the_last_of_a_long_episode_is_reached_and_nothing_beyond():
    length = 2_000_000  # where numbers of single precision are no longer exact
    draw = make_draw(np.arange(length), np.zeros(length, np.int32))
    drawn = np.asarray(draw_steps(draw, COUNT, 1.0, jax.random.key(1)))
    assert drawn.min() == 0
    assert 0.999 * length < drawn.max() < length


def test_the_same_key_draws_the_same():
    assert (shares(0.5, key=3) == shares(0.5, key=3)).all()
    assert (shares(0.5, key=3) != shares(0.5, key=4)).any()
