"""Setting episodes aside: whole episodes, since rows of one episode know of each other."""

from __future__ import annotations

import itertools

import numpy as np
import numpy.typing as npt

from moose.data.dataset import Dataset
from moose.data.episodes import Episode
from moose.errors import ConfigError, DataError

Indices = npt.NDArray[np.int64]


def split_episodes(num_episodes: int, fraction: float, seed: int) -> tuple[Indices, Indices]:
    """Split the episodes ``0 .. num_episodes - 1`` at random into training and held-out ones.

    Args:
        num_episodes: E.
        fraction: The share to hold out, between 0 and 1; at least one episode goes to each side.
        seed: The same seed gives the same split, in every version of NumPy.

    Returns:
        Two sorted arrays, training and held-out, with every episode in exactly one of them.
    """
    if num_episodes < 2:
        raise DataError(
            f"Cannot hold out whole episodes of {num_episodes}: both sides need at least one.",
            where="split of the data set",
            advice="cut the log into several episodes (at stops, shifts or every few hundred rows) "
            "or add more logs",
        )
    if not 0.0 < fraction < 1.0:
        raise ConfigError(
            f"A held-out fraction of {fraction} is not between 0 and 1.",
            where="fraction",
            advice="choose a number such as 0.1",
        )
    if seed < 0:
        raise ConfigError(
            f"A seed of {seed} is negative.", where="seed", advice="choose 0 or a positive number"
        )
    num_held_out = min(max(round(fraction * num_episodes), 1), num_episodes - 1)
    order = _shuffled(num_episodes, seed)
    return np.sort(order[num_held_out:]), np.sort(order[:num_held_out])


def fold_episodes(num_episodes: int, folds: int, seed: int) -> list[Indices]:
    """Deal the episodes ``0 .. num_episodes - 1`` at random into folds of about the same size.

    Args:
        num_episodes: E, at least as many as there are folds.
        folds: How many, at least two.
        seed: The same seed deals the same way.

    Returns:
        For each fold its episodes, sorted; every episode is in exactly one.
    """
    if not 2 <= folds <= num_episodes:
        raise DataError(
            f"Cannot deal {num_episodes} episodes into {folds} folds.",
            where="folds of the data set",
            advice="choose two or more, and no more than there are episodes",
        )
    order = _shuffled(num_episodes, seed)
    return [np.sort(order[fold::folds]) for fold in range(folds)]


def cut_episodes(dataset: Dataset, least: int) -> Dataset:
    """Cut episodes into blocks of time where there are fewer than ``least`` of them.

    Args:
        dataset: A log of a few long episodes.
        least: How many episodes there have to be.

    Returns:
        The same transitions in at least ``least`` episodes; the data set itself if it has them.
    """
    if dataset.num_episodes >= least:
        return dataset
    if dataset.num_transitions < least:
        raise DataError(
            f"{dataset.num_transitions} transitions cannot be cut into {least} blocks.",
            where="folds of the data set",
            advice="add more of the log",
        )
    # Each into so many blocks that the longest ones are as short as they have to be.
    blocks = np.ones(dataset.num_episodes, np.int64)
    while blocks.sum() < least:
        blocks[np.argmax(dataset.lengths / blocks)] += 1
    episodes = []
    for number, count in enumerate(blocks):
        first, row = int(dataset.offsets[number]), int(dataset.offsets[number]) + number
        length = int(dataset.lengths[number])
        edges = np.linspace(0, length, int(count) + 1).round().astype(np.int64)
        for start, stop in itertools.pairwise(edges):
            is_last = stop == length
            known = stop + 1 if not is_last or dataset.final_observed[number] else stop
            episodes.append(
                Episode(
                    dataset.observations[row + start : row + known],
                    dataset.actions[first + start : first + stop],
                    dataset.rewards[first + start : first + stop],
                    terminated=bool(is_last and dataset.terminated[number]),
                    truncated=bool(is_last and dataset.truncated[number]),
                )
            )
    return Dataset.from_episodes(
        episodes, dataset.observation_names, dataset.action_names, dataset.provenance
    )


def _shuffled(count: int, seed: int) -> Indices:
    # NumPy promises that the raw stream of PCG64 never changes; of permutation() it does not.
    return np.argsort(np.random.PCG64(seed).random_raw(count), kind="stable").astype(np.int64)
