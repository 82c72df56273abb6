"""Flat frames plus offsets: what is refused, what is derived."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from moose.data.dataset import Dataset
from moose.data.episodes import Episode
from moose.errors import ConfigError, DataError

OBSERVATION_NAMES = ("level", "flow")
ACTION_NAMES = ("valve",)


def make_episode(steps: int, seed: int = 0, *, observed: bool = True, **flags: bool) -> Episode:
    random = np.random.default_rng(seed)
    return Episode(
        random.normal(size=(steps + observed, 2)),
        random.normal(size=(steps, 1)),
        random.normal(size=steps),
        **flags,
    )


def make_dataset(*episodes: Episode, **changes: Any) -> Dataset:
    arguments = {
        "observation_names": OBSERVATION_NAMES,
        "action_names": ACTION_NAMES,
        "provenance": {"source": "test"},
    } | changes
    return Dataset.from_episodes(episodes, **arguments)


def fields_of(dataset: Dataset) -> dict[str, Any]:
    return {name: getattr(dataset, name) for name in Dataset.__dataclass_fields__}


def three_episodes() -> Dataset:
    return make_dataset(
        make_episode(3, 1, terminated=True),
        make_episode(1, 2, observed=False),
        make_episode(2, 3, truncated=True),
    )


def test_episodes_lie_end_to_end() -> None:
    sources = [make_episode(3, 1), make_episode(1, 2, observed=False), make_episode(2, 3)]
    dataset = make_dataset(*sources)
    assert (dataset.num_episodes, dataset.num_transitions) == (3, 6)
    assert dataset.observations.shape == (9, 2)
    np.testing.assert_array_equal(dataset.lengths, [3, 1, 2])
    np.testing.assert_array_equal(dataset.offsets, [0, 3, 4, 6])
    np.testing.assert_array_equal(dataset.final_observed, [True, False, True])
    np.testing.assert_array_equal(dataset.observation_rows, [0, 1, 2, 4, 6, 7])
    np.testing.assert_array_equal(dataset.first_rows, [0, 0, 0, 4, 6, 6])
    np.testing.assert_array_equal(dataset.has_successor, [1, 1, 1, 0, 1, 1])
    np.testing.assert_array_equal(dataset.is_observed, [1, 1, 1, 1, 1, 0, 1, 1, 1])
    assert dataset.observation_rows.dtype == dataset.first_rows.dtype == np.int32
    np.testing.assert_array_equal(dataset.observations[5], dataset.observations[4])
    for start, source in zip([0, 3, 4], sources, strict=True):
        actions = np.asarray(source.actions, np.float32)
        np.testing.assert_array_equal(dataset.actions[start : start + len(actions)], actions)
    np.testing.assert_array_equal(
        dataset.observations[6:], np.asarray(sources[2].observations, np.float32)
    )


def test_both_ends_are_kept_apart_and_both_may_be_missing() -> None:
    dataset = make_dataset(
        make_episode(1, terminated=True), make_episode(1, truncated=True), make_episode(1)
    )
    np.testing.assert_array_equal(dataset.terminated, [True, False, False])
    np.testing.assert_array_equal(dataset.truncated, [False, True, False])


def test_nothing_can_be_altered() -> None:
    dataset = three_episodes()
    derived = ("offsets", "observation_rows", "first_rows", "has_successor", "is_observed")
    for name in (*fields_of(dataset), *derived):
        value = getattr(dataset, name)
        if isinstance(value, np.ndarray):
            assert not value.flags.writeable, name
    with pytest.raises(AttributeError):
        dataset.rewards = np.zeros(6, np.float32)  # type: ignore[misc]


def test_sources_are_copied_and_stay_writable() -> None:
    source = make_episode(3)
    dataset = make_dataset(source)
    before = dataset.fingerprint
    np.asarray(source.observations)[:] = 0
    assert make_dataset(source).fingerprint != before
    assert dataset.observations.any()
    rewards = np.zeros(3, np.float32)
    Dataset(**fields_of(dataset) | {"rewards": rewards})
    assert rewards.flags.writeable


@pytest.mark.parametrize("kind", [np.float64, np.float16, np.int8, np.uint64, np.bool_, list])
def test_any_real_numbers_become_float32(kind: Any) -> None:
    numbers = [[0], [1], [1]]
    column: Any = numbers if kind is list else np.array(numbers, kind)
    dataset = make_dataset(
        Episode(column, column[:2], [0, 1]), observation_names=["level"], action_names=["valve"]
    )
    assert dataset.observations.dtype == np.float32
    np.testing.assert_array_equal(dataset.observations, numbers)


BAD_EPISODES = [
    # (changes to the second episode, what the message says)
    ({"observations": [[0, 1], [2, np.nan], [3, 4]]}, "nan", "row 1, column 'flow'"),
    ({"observations": [[0, 1], [2, 3], [-np.inf, 4]]}, "-inf", "row 2, column 'level'"),
    ({"actions": [[0], [1e39]]}, "1e+39 is too large for float32", "row 1, column 'valve'"),
    ({"actions": [[0], [np.inf]]}, "inf is not a finite", "row 1, column 'valve'"),
    ({"rewards": [np.nan, 0]}, "nan", "rewards of episode 1, row 0, column 'reward'"),
    ({"rewards": [0, 0, 0]}, "3 rewards for 2 actions", "rewards of episode 1"),
    ({"rewards": [[0], [0]]}, "shape (2, 1)", "rewards of episode 1"),
    ({"actions": [0, 1]}, "shape (2,)", "actions of episode 1"),
    ({"actions": np.zeros((2, 3))}, "3 columns, but 1 names", "actions of episode 1"),
    ({"observations": np.zeros((3, 1))}, "1 columns, but 2", "observations of episode 1"),
    ({"observations": np.zeros((4, 2))}, "4 observations for 2", "observations of episode 1"),
    ({"observations": np.zeros((1, 2))}, "1 observations for 2", "observations of episode 1"),
    ({"actions": np.zeros((0, 1)), "rewards": []}, "empty", "episode 1"),
    ({"actions": [["a"], ["b"]]}, "no real numbers", "actions of episode 1"),
    ({"actions": [[None], [1]]}, "no real numbers", "actions of episode 1"),
    ({"actions": [[1j], [1]]}, "no real numbers", "actions of episode 1"),
    ({"actions": np.zeros((2, 1), "datetime64[s]")}, "no real", "actions of episode 1"),
    ({"actions": [[1], [1, 2]]}, "no table of numbers", "actions of episode 1"),
    ({"actions": np.ma.masked_equal([[1], [2]], 2)}, "masked", "actions of episode 1"),
]


@pytest.mark.parametrize(("changes", "what", "where"), BAD_EPISODES)
def test_bad_episodes_are_named(changes: dict[str, Any], what: str, where: str) -> None:
    good: dict[str, Any] = {
        "observations": np.zeros((3, 2)),
        "actions": np.zeros((2, 1)),
        "rewards": [0.0, 0.0],
    }
    with pytest.raises(DataError) as caught:
        make_dataset(Episode(**good), Episode(**good | changes))
    assert what in caught.value.what
    assert where in caught.value.where
    assert "episode 1" in caught.value.where
    assert caught.value.advice


@pytest.mark.parametrize(
    ("changes", "what"),
    [
        ({"observation_names": ["level", "level"]}, "'level' occurs twice"),
        ({"observation_names": []}, "no observation names"),
        ({"observation_names": ["level", ""]}, "''"),
        ({"observation_names": ["level", " "]}, "' '"),
        ({"observation_names": ["level", "a\nb"]}, "cannot be the name"),
        ({"observation_names": ["level", "\ud800"]}, "cannot be the name"),
        ({"observation_names": ["level", 3]}, "3 cannot be"),
        ({"action_names": ["reward"]}, "No action can be called 'reward'"),
        ({"provenance": {"x": float("nan")}}, "cannot be written as JSON"),
        ({"provenance": {"x": object()}}, "cannot be written as JSON"),
        ({"provenance": ["x"]}, "not a dictionary"),
    ],
)
def test_bad_names_and_provenance(changes: dict[str, Any], what: str) -> None:
    with pytest.raises(DataError) as caught:
        make_dataset(make_episode(2), **changes)
    assert what in caught.value.what


def test_an_observation_and_an_action_may_share_a_name() -> None:
    # A set point is both: the last one is observed, the next one is chosen.
    dataset = make_dataset(make_episode(2), action_names=["flow"])
    assert set(dataset.observation_names) & set(dataset.action_names) == {"flow"}


def test_no_episodes_are_refused() -> None:
    with pytest.raises(DataError, match="at least one episode"):
        make_dataset()


@pytest.mark.parametrize(
    ("changes", "where"),
    [
        ({"observations": np.zeros((8, 2), np.float32)}, "observations"),
        ({"observations": np.zeros((9, 2))}, "observations"),
        ({"observations": np.full((9, 2), np.nan, np.float32)}, "episode 0, row 0"),
        ({"actions": np.zeros((6, 2), np.float32)}, "actions"),
        ({"actions": np.zeros(6, np.float32)}, "actions"),
        ({"lengths": np.array([3, 1, 3])}, "lengths"),
        ({"lengths": np.array([6, 0, 0])}, "lengths"),
        ({"lengths": np.array([2**62, 2**62, 2**62])}, "lengths"),
        ({"terminated": np.zeros(2, np.bool_)}, "terminated"),
        ({"terminated": np.zeros(3, np.int8)}, "terminated"),
        ({"final_observed": np.zeros(3, np.bool_)}, "observations of episode 0, last row"),
    ],
)
def test_the_constructor_checks_too(changes: dict[str, Any], where: str) -> None:
    with pytest.raises(DataError) as caught:
        Dataset(**fields_of(three_episodes()) | changes)
    assert where in caught.value.where


def test_a_bad_value_is_found_in_its_episode() -> None:
    dataset = three_episodes()
    observations = dataset.observations.copy()
    observations[7, 1] = np.inf
    with pytest.raises(DataError) as caught:
        Dataset(**fields_of(dataset) | {"observations": observations})
    assert caught.value.where == "observations of episode 2, row 1, column 'flow'"


def test_the_fingerprint_knows_every_part_but_provenance() -> None:
    dataset = three_episodes()
    same = three_episodes()
    assert same.fingerprint == dataset.fingerprint
    assert len(dataset.fingerprint) == 64
    others: list[dict[str, Any]] = [
        {"rewards": -dataset.rewards},
        {"actions": -dataset.actions},
        {"observations": -dataset.observations},
        {"lengths": np.array([2, 1, 3])} | {"final_observed": np.ones(3, np.bool_)},
        {"terminated": ~dataset.terminated},
        {"truncated": ~dataset.truncated},
        {"final_observed": np.ones(3, np.bool_)},
        {"observation_names": ("flow", "level")},
        {"action_names": ("gate",)},
    ]
    prints = [Dataset(**fields_of(dataset) | changes).fingerprint for changes in others]
    assert len({dataset.fingerprint, *prints}) == len(others) + 1
    renamed = Dataset(**fields_of(dataset) | {"provenance": {}})
    assert renamed.fingerprint == dataset.fingerprint


def test_the_fingerprint_never_changes() -> None:
    # Results are filed under it: a new version has to give old data their old fingerprint.
    dataset = make_dataset(
        Episode([[0, 1], [2, 3]], [[4], [5]], [6, 7], terminated=True),
        Episode([[0, 1], [2, 3]], [[4]], [5], truncated=True),
    )
    assert dataset.fingerprint == "47f0f07b3c947bdf2f6011cdab9f9641d7735e4c6053c67ee12bc40cbcbb05ea"


def test_provenance_is_a_copy_in_plain_values() -> None:
    provenance: dict[str, Any] = {"files": ("a.csv", "b.csv")}
    dataset = make_dataset(make_episode(1), provenance=provenance)
    provenance["files"] = ()
    assert dataset.provenance == {"files": ["a.csv", "b.csv"]}


def test_selected_episodes() -> None:
    dataset = three_episodes()
    selected = dataset.select_episodes([2, 0, 2])
    np.testing.assert_array_equal(selected.lengths, [2, 3, 2])
    np.testing.assert_array_equal(selected.observations[:3], dataset.observations[6:9])
    np.testing.assert_array_equal(selected.observations[3:7], dataset.observations[:4])
    np.testing.assert_array_equal(selected.actions[2:5], dataset.actions[:3])
    np.testing.assert_array_equal(selected.rewards[:2], dataset.rewards[4:])
    np.testing.assert_array_equal(selected.truncated, [True, False, True])
    assert selected.provenance["selected_from"]["fingerprint"] == dataset.fingerprint
    assert dataset.select_episodes(np.arange(3)).fingerprint == dataset.fingerprint


@pytest.mark.parametrize("indices", [[], [3], [-1], [0.5], [True, False, True], 1, [[0]]])
def test_bad_selections(indices: Any) -> None:
    with pytest.raises(DataError):
        three_episodes().select_episodes(indices)


def test_the_summary_leaves_placeholders_out_and_is_json() -> None:
    dataset = make_dataset(
        Episode([[0.0, 1.0], [2.0, 5.0]], [[1], [3]], [1, 2]), make_episode(3, terminated=True)
    ).select_episodes([0])
    summary = dataset.summary()
    assert json.loads(json.dumps(summary)) == summary
    assert summary["observations"]["level"] == {
        "minimum": 0.0,
        "maximum": 2.0,
        "mean": 1.0,
        "deviation": 1.0,
    }
    assert summary["actions"]["valve"]["mean"] == 2.0
    assert summary["reward"]["mean"] == 1.5
    assert summary["without_final_observation"] == 1
    assert summary["episode_lengths"]["maximum"] == 2


def test_sizes() -> None:
    dataset = three_episodes()
    assert dataset.nbytes == 4 * (9 * 2 + 6 + 6) + 8 * 3 + 3 * 3
    assert repr(dataset) == (
        "Dataset(3 episodes, 6 transitions, observations level, flow; actions valve)"
    )


@settings(max_examples=50, deadline=None)
@given(
    lengths=st.lists(st.integers(1, 8), min_size=1, max_size=6),
    discount=st.floats(0, 1),
    steps=st.integers(1, 10),
)
def test_discounted_returns(lengths: list[int], discount: float, steps: int) -> None:
    dataset = make_dataset(*(make_episode(length, index) for index, length in enumerate(lengths)))
    expected = [
        sum(
            discount**time * float(reward)
            for time, reward in enumerate(dataset.rewards[start:stop][:steps])
        )
        for start, stop in zip(dataset.offsets[:-1], dataset.offsets[1:], strict=True)
    ]
    returns = dataset.discounted_returns(discount, steps)
    assert returns.dtype == np.float64
    np.testing.assert_allclose(returns, expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(("discount", "steps"), [(-0.1, 1), (1.1, 1), (float("nan"), 1), (0.9, 0)])
def test_impossible_returns(discount: float, steps: int) -> None:
    with pytest.raises(ConfigError):
        three_episodes().discounted_returns(discount, steps)
