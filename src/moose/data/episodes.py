"""Episodes as they come from a source, and the checks that they must pass."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from moose.errors import DataError

REWARD = "reward"
"""The name of the reward's column, which no action may have."""

Floats = npt.NDArray[np.float32]


@dataclass(frozen=True)
class Episode:
    """One uninterrupted stretch of a log, as it comes from a source.

    Attributes:
        observations: ``[T+1, n]``, or ``[T, n]`` where nothing was observed after the last action.
        actions: ``[T, d]``.
        rewards: ``[T]``.
        terminated: The plant reached an end of its own (a failure, a goal).
        truncated: Somebody stopped the episode, such as by a time limit. Where neither is set
            the log simply ends.
    """

    observations: npt.ArrayLike
    actions: npt.ArrayLike
    rewards: npt.ArrayLike
    terminated: bool = False
    truncated: bool = False


def checked_arrays(
    episode: Episode, index: int, num_observations: int, num_actions: int
) -> tuple[npt.NDArray[Any], npt.NDArray[Any], npt.NDArray[Any], bool, bool]:
    """An episode's arrays in their own types, once their shapes fit together."""
    where = f"episode {index}"
    observations = _numbers(episode.observations, f"observations of {where}", 2)
    actions = _numbers(episode.actions, f"actions of {where}", 2)
    rewards = _numbers(episode.rewards, f"rewards of {where}", 1)
    steps = len(actions)
    if steps == 0:
        raise DataError(
            "The episode is empty: it has no transition.",
            where=where,
            advice="leave it out",
        )
    for name, found, wanted in [
        ("observations", observations.shape[1], num_observations),
        ("actions", actions.shape[1], num_actions),
    ]:
        if found != wanted:
            raise DataError(
                f"There are {found} columns, but {wanted} names.",
                where=f"{name} of {where}",
                advice="give one name for each column, the same for all episodes",
            )
    if len(rewards) != steps:
        raise DataError(
            f"There are {len(rewards)} rewards for {steps} actions.",
            where=f"rewards of {where}",
            advice="give one reward for each action",
        )
    if len(observations) not in (steps, steps + 1):
        raise DataError(
            f"There are {len(observations)} observations for {steps} actions.",
            where=f"observations of {where}",
            advice=f"give {steps + 1}, or {steps} if nothing was observed after the last action",
        )
    return observations, actions, rewards, bool(episode.terminated), bool(episode.truncated)


def convert(source: npt.NDArray[Any], target: Floats, names: Sequence[str], where: str) -> None:
    """Write ``source`` into ``target`` as float32, or name the first value that cannot be."""
    with np.errstate(over="ignore", invalid="ignore"):
        target[...] = source
    bad = first_non_finite(target)
    if bad is not None:
        raise value_error(source[bad], where, bad[0], names[bad[1]])


def first_non_finite(values: npt.NDArray[Any]) -> tuple[int, int] | None:
    """Row and column of the first value, by rows, that is not a finite number."""
    is_finite = np.isfinite(values)
    if is_finite.all():
        return None
    row = int(np.argmin(is_finite.all(axis=1)))
    return row, int(np.argmin(is_finite[row]))


def value_error(value: Any, where: str, row: int, column: str) -> DataError:
    """The error that a value which is not finite, or not so in float32, deserves."""
    place = f"{where}, row {row}, column {column!r}"
    if np.isfinite(value):
        return DataError(
            f"The value {value} is too large for float32.",
            where=place,
            advice="use another unit for this column",
        )
    return DataError(
        f"The value {value} is not a finite number.",
        where=place,
        advice="fill it in, or split the episode where values are missing",
    )


def checked_names(names: Sequence[str], kind: str) -> tuple[str, ...]:
    """The names as a tuple, if every one of them can be the name of a column."""
    names = tuple(names) if not isinstance(names, str) else (names,)
    where = f"{kind} names"
    if not names:
        raise DataError(
            f"There are no {kind} names.", where=where, advice="name at least one column"
        )
    for position, name in enumerate(names):
        if not isinstance(name, str) or not name.strip() or not name.isprintable():
            raise DataError(
                f"{name!r} cannot be the name of a column.",
                where=f"{where}, number {position}",
                advice="use printable characters",
            )
        if name in names[:position]:
            raise DataError(
                f"The name {name!r} occurs twice.",
                where=f"{where}, numbers {names.index(name)} and {position}",
                advice="give each column a name of its own",
            )
        if kind == "action" and name == REWARD:
            raise DataError(
                f"No action can be called {REWARD!r}: that is the reward's own column.",
                where=f"{where}, number {position}",
                advice="give the action another name",
            )
    return names


def _numbers(values: npt.ArrayLike, where: str, rank: int) -> npt.NDArray[Any]:
    try:
        array = np.asarray(values)
    except (ValueError, TypeError) as error:  # such as rows of differing length
        raise DataError(
            f"This is no table of numbers ({error}).",
            where=where,
            advice="give rows of equal length",
        ) from error
    if array.dtype.kind not in "fiub":
        raise DataError(
            f"These are no real numbers, but of type {array.dtype}.",
            where=where,
            advice="convert the columns to numbers first",
        )
    if np.ma.is_masked(values):
        raise DataError(
            "Some of the values are masked, that is, missing.",
            where=where,
            advice="fill them in, or split the episode where they are missing",
        )
    if array.ndim != rank:
        shape = "a table [rows, columns]" if rank == 2 else "a list of numbers"
        raise DataError(
            f"The array has shape {array.shape}, but should be {shape}.",
            where=where,
            advice=f"reshape it to {rank} dimension{'s' if rank > 1 else ''}",
        )
    return array
