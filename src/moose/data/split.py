"""Setting episodes aside: whole episodes, since rows of one episode know of each other."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

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
    # NumPy promises that the raw stream of PCG64 never changes; of permutation() it does not.
    order = np.argsort(np.random.PCG64(seed).random_raw(num_episodes), kind="stable")
    order = order.astype(np.int64)
    return np.sort(order[num_held_out:]), np.sort(order[:num_held_out])
