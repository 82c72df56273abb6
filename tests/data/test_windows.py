"""Windows against a naive version, under the strictest flags."""

from __future__ import annotations

from collections.abc import Iterator

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from moose.data.dataset import Dataset
from moose.data.episodes import Episode
from moose.data.windows import gather_next_windows, gather_windows


@pytest.fixture(autouse=True)
def strict() -> Iterator[None]:
    with jax.numpy_dtype_promotion("strict"), jax.numpy_rank_promotion("raise"):
        yield


def make_dataset(lengths: list[int]) -> Dataset:
    random = np.random.default_rng(0)
    episodes = [
        Episode(random.normal(size=(steps + 1, 2)), np.zeros((steps, 1)), np.zeros(steps))
        for steps in lengths
    ]
    return Dataset.from_episodes(episodes, ["level", "flow"], ["a"], {})


def naive_windows(dataset: Dataset, history: int, ahead: int) -> list[list[np.ndarray]]:
    """All windows, the slow way: an episode, a time and a frame at a time."""
    windows = []
    start = 0
    for length in dataset.lengths:
        frames = list(dataset.observations[start : start + length + 1])
        for time in range(length):
            windows.append([frames[max(time + ahead - age, 0)] for age in range(history)])
        start += length + 1
    return windows


@settings(deadline=None)
@given(
    lengths=st.lists(st.integers(1, 7), min_size=1, max_size=5),
    history=st.sampled_from([1, 2, 5, 9]),
)
def test_windows_are_those_of_the_naive_version(lengths: list[int], history: int) -> None:
    dataset = make_dataset(lengths)
    # Padded to one shape, since each new one is compiled anew.
    observations = np.full((40, 2), np.nan, np.float32)
    observations[: len(dataset.observations)] = dataset.observations
    rows, first_rows = np.zeros((2, 35), np.int32)
    rows[: dataset.num_transitions] = dataset.observation_rows
    first_rows[: dataset.num_transitions] = dataset.first_rows
    for ahead, gather in enumerate([gather_windows, gather_next_windows]):
        windows = jax.jit(gather, static_argnums=3)(observations, rows, first_rows, history)
        assert windows.dtype == jnp.float32
        np.testing.assert_array_equal(
            np.asarray(windows)[: dataset.num_transitions], naive_windows(dataset, history, ahead)
        )


def test_compiled_and_mapped_alike() -> None:
    dataset = make_dataset([4, 1, 6])
    observations = jnp.asarray(dataset.observations)
    rows, first_rows = jnp.asarray(dataset.observation_rows), jnp.asarray(dataset.first_rows)
    for gather in (gather_windows, gather_next_windows):
        plain = gather(observations, rows, first_rows, 3)
        compiled = jax.jit(gather, static_argnums=3)(observations, rows, first_rows, 3)
        one = lambda row, first, gather=gather: gather(observations, row, first, 3)  # noqa: E731
        mapped = jax.jit(jax.vmap(one))(rows, first_rows)
        np.testing.assert_array_equal(compiled, plain)
        np.testing.assert_array_equal(mapped, plain)


def test_batches_of_any_shape() -> None:
    dataset = make_dataset([4, 4])
    rows = jnp.asarray(dataset.observation_rows).reshape(2, 4)
    first_rows = jnp.asarray(dataset.first_rows).reshape(2, 4)
    windows = gather_windows(jnp.asarray(dataset.observations), rows, first_rows, 3)
    assert windows.shape == (2, 4, 3, 2)


def test_windows_are_not_all_held_in_memory() -> None:
    # 30 frames of 100 000 rows would be 72 MB; what is compiled may use next to nothing.
    observations = jnp.zeros((100_000, 6))
    rows = jnp.zeros(64, jnp.int32)
    compiled = jax.jit(gather_windows, static_argnums=3).lower(observations, rows, rows, 30)
    analysis = compiled.compile().memory_analysis()
    assert analysis is not None
    assert analysis.temp_size_in_bytes < 1_000_000


def test_mistakes_are_found_when_tracing() -> None:
    frames = jnp.zeros((3, 2))
    rows = jnp.zeros(3, jnp.int32)
    with pytest.raises(ValueError, match="at least one frame"):
        gather_windows(frames, rows, rows, 0)
    with pytest.raises(TypeError, match="int32"):
        gather_windows(frames, rows.astype(jnp.float32), rows, 2)
    with pytest.raises(ValueError, match="differ in shape"):
        gather_windows(frames, rows, rows[:1], 2)
