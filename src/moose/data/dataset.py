"""The data set: flat frames plus episode offsets, on the host, immutable.

Each episode of T transitions has T+1 observations. They are kept end to end, so that transition
``i`` of episode ``e`` goes from observation row ``i + e`` to row ``i + e + 1``, and a history
window is a matter of indices (:mod:`moose.data.windows`): nothing is ever stored twice.
"""

from __future__ import annotations

import functools
import hashlib
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from moose.data.episodes import (
    REWARD,
    Episode,
    Floats,
    checked_arrays,
    checked_names,
    convert,
    first_non_finite,
    value_error,
)
from moose.errors import ConfigError, DataError

_LARGEST_ROW = np.iinfo(np.int32).max

Flags = npt.NDArray[np.bool_]


@dataclass(frozen=True, eq=False, repr=False)
class Dataset:
    """Episodes end to end (E episodes, N transitions, n numbers in a frame, d in an action).

    Build one with :meth:`from_episodes`. The constructor checks everything but copies nothing it
    can use as it is: do not alter arrays after handing them in.

    Attributes:
        observations: ``[N+E, n]`` float32, T+1 rows for each episode of T transitions.
        actions: ``[N, d]`` float32.
        rewards: ``[N]`` float32.
        lengths: ``[E]`` int64, transitions of each episode, at least 1.
        terminated: ``[E]`` whether the plant reached an end of its own.
        truncated: ``[E]`` whether somebody stopped the episode; both may be false.
        final_observed: ``[E]`` False where the source had no observation after the last action.
            The last row then repeats the one before it as a placeholder, and the last
            transition has no known successor.
        observation_names: n different names.
        action_names: d different names, none of them ``reward``.
        provenance: Where the data come from, as plain JSON values.
    """

    observations: Floats
    actions: Floats
    rewards: Floats
    lengths: npt.NDArray[np.int64]
    terminated: Flags
    truncated: Flags
    final_observed: Flags
    observation_names: tuple[str, ...]
    action_names: tuple[str, ...]
    provenance: dict[str, Any]

    @classmethod
    def from_episodes(
        cls,
        episodes: Iterable[Episode],
        observation_names: Sequence[str],
        action_names: Sequence[str],
        provenance: dict[str, Any],
    ) -> Dataset:
        """Check, convert to float32 and join episodes.

        Args:
            episodes: At least one.
            observation_names: Names of the n numbers in a frame.
            action_names: Names of the d numbers in an action.
            provenance: Where the data come from, as plain JSON values.

        Returns:
            The data set; it shares no memory with the episodes.

        Raises:
            DataError: With the episode, row and column of the first thing that is wrong.
        """
        observation_names = checked_names(observation_names, "observation")
        action_names = checked_names(action_names, "action")
        parts = [
            checked_arrays(episode, index, len(observation_names), len(action_names))
            for index, episode in enumerate(episodes)
        ]
        lengths = np.array([len(actions) for _, actions, _, _, _ in parts], np.int64)
        num_transitions = int(lengths.sum())
        observations = np.empty(
            (num_transitions + len(parts), len(observation_names)), dtype=np.float32
        )
        actions = np.empty((num_transitions, len(action_names)), dtype=np.float32)
        rewards = np.empty(num_transitions, dtype=np.float32)
        start = 0
        for index, (source, source_actions, source_rewards, _, _) in enumerate(parts):
            stop = start + len(source_actions)
            frames = observations[start + index : stop + index + 1]
            where = f"episode {index}"
            convert(source, frames[: len(source)], observation_names, f"observations of {where}")
            frames[len(source) :] = frames[len(source) - 1]
            convert(source_actions, actions[start:stop], action_names, f"actions of {where}")
            convert(
                source_rewards[:, None], rewards[start:stop, None], (REWARD,), f"rewards of {where}"
            )
            start = stop
        return cls(
            observations=observations,
            actions=actions,
            rewards=rewards,
            lengths=lengths,
            terminated=np.array([terminated for _, _, _, terminated, _ in parts], np.bool_),
            truncated=np.array([truncated for _, _, _, _, truncated in parts], np.bool_),
            final_observed=np.array([len(part[0]) > len(part[1]) for part in parts], np.bool_),
            observation_names=observation_names,
            action_names=action_names,
            provenance=provenance,
        )

    def __post_init__(self) -> None:
        for name, kind in _KINDS.items():
            _replace(self, name, _frozen(getattr(self, name), name, kind))
        _replace(self, "observation_names", checked_names(self.observation_names, "observation"))
        _replace(self, "action_names", checked_names(self.action_names, "action"))
        _replace(self, "provenance", _plain(self.provenance))
        self._check_counts()
        self._check_values()

    def __repr__(self) -> str:
        return (
            f"Dataset({self.num_episodes} episodes, {self.num_transitions} transitions, "
            f"observations {', '.join(self.observation_names)}; "
            f"actions {', '.join(self.action_names)})"
        )

    @property
    def num_episodes(self) -> int:
        """E."""
        return len(self.lengths)

    @property
    def num_transitions(self) -> int:
        """N."""
        return len(self.rewards)

    @property
    def nbytes(self) -> int:
        """Bytes that the stored arrays take in memory."""
        return sum(getattr(self, name).nbytes for name in _KINDS)

    @functools.cached_property
    def offsets(self) -> npt.NDArray[np.int64]:
        """``[E+1]``: episode e has the transitions ``offsets[e]`` up to ``offsets[e+1]``."""
        return _read_only(np.concatenate([np.zeros(1, np.int64), np.cumsum(self.lengths)]))

    @functools.cached_property
    def observation_rows(self) -> npt.NDArray[np.int32]:
        """``[N]``: the row of each transition's observation; its successor is one row on."""
        episode = np.repeat(np.arange(self.num_episodes, dtype=np.int32), self.lengths)
        return _read_only(np.arange(self.num_transitions, dtype=np.int32) + episode)

    @functools.cached_property
    def first_rows(self) -> npt.NDArray[np.int32]:
        """``[N]``: the row of the first observation of each transition's episode."""
        return _read_only(np.repeat(self._first_row_of_episodes().astype(np.int32), self.lengths))

    @functools.cached_property
    def has_successor(self) -> Flags:
        """``[N]``: False for a last transition after which nothing was observed."""
        known = np.ones(self.num_transitions, np.bool_)
        known[self.offsets[1:] - 1] = self.final_observed
        return _read_only(known)

    @functools.cached_property
    def is_terminal(self) -> Flags:
        """``[N]``: True for a last transition after which the plant had reached an end."""
        ended = np.zeros(self.num_transitions, np.bool_)
        ended[self.offsets[1:] - 1] = self.terminated
        return _read_only(ended)

    @functools.cached_property
    def is_observed(self) -> Flags:
        """``[N+E]``: False for the rows of ``observations`` that are placeholders."""
        known = np.ones(len(self.observations), np.bool_)
        known[self._first_row_of_episodes() + self.lengths] = self.final_observed
        return _read_only(known)

    @functools.cached_property
    def fingerprint(self) -> str:
        """SHA-256 of names, lengths, flags and numbers; the same in whatever file they lie.

        Provenance is left out: the same numbers are the same data.
        """
        digest = hashlib.sha256(b"moose-dataset 1\n")
        names = [list(self.observation_names), list(self.action_names)]
        digest.update(json.dumps([*names, self.num_episodes, self.num_transitions]).encode())
        for name, kind in _KINDS.items():
            # Little endian everywhere, so that the fingerprint does not depend on the machine.
            array = getattr(self, name).astype(np.dtype(kind).newbyteorder("<"), copy=False)
            digest.update(array.data.cast("B"))
        return digest.hexdigest()

    def select_episodes(self, indices: npt.ArrayLike) -> Dataset:
        """A data set of some of the episodes, in the order given; an episode may be repeated.

        Args:
            indices: Episode numbers from 0, at least one.

        Returns:
            A copy, whose provenance also says what it was selected from.
        """
        chosen = np.asarray(indices)
        if chosen.ndim != 1 or chosen.size == 0 or chosen.dtype.kind not in "iu":
            raise DataError(
                "A selection of episodes has to be a list of at least one whole number.",
                where=f"an array of shape {chosen.shape} and type {chosen.dtype}",
                advice="give episode numbers, counted from 0",
            )
        outside = chosen[(chosen < 0) | (chosen >= self.num_episodes)]
        if outside.size:
            raise DataError(
                f"There is no episode {outside[0]}.",
                where="selection of episodes",
                advice=f"choose from 0 to {self.num_episodes - 1}",
            )
        chosen = chosen.astype(np.int64)
        lengths = self.lengths[chosen]
        transitions = _ranges(self.offsets[chosen], lengths)
        return Dataset(
            observations=self.observations[
                _ranges(self._first_row_of_episodes()[chosen], lengths + 1)
            ],
            actions=self.actions[transitions],
            rewards=self.rewards[transitions],
            lengths=lengths,
            terminated=self.terminated[chosen],
            truncated=self.truncated[chosen],
            final_observed=self.final_observed[chosen],
            observation_names=self.observation_names,
            action_names=self.action_names,
            provenance=self.provenance
            | {"selected_from": {"fingerprint": self.fingerprint, "episodes": self.num_episodes}},
        )

    def discounted_returns(self, discount: float, steps: int) -> npt.NDArray[np.float64]:
        """Each episode's sum of ``discount**t * reward`` over its first ``steps`` transitions.

        Args:
            discount: Between 0 and 1.
            steps: At least 1; shorter episodes are summed as far as they go.

        Returns:
            ``[E]``, in float64.
        """
        if not 0.0 <= discount <= 1.0:
            raise ConfigError(
                f"A discount of {discount} is not between 0 and 1.",
                where="discount",
                advice="choose a number such as 0.99",
            )
        if steps < 1:
            raise ConfigError(
                f"Cannot sum the rewards of {steps} steps.",
                where="steps",
                advice="choose a whole number of at least 1",
            )
        starts = self.offsets[:-1]
        time = np.arange(self.num_transitions) - np.repeat(starts, self.lengths)
        weights = np.where(time < steps, np.power(float(discount), time), 0.0)
        return np.add.reduceat(weights * self.rewards, starts)

    def num_cut(self, steps: int) -> int:
        """How many episodes were cut before ``steps`` steps, not ended by the plant itself."""
        return int(np.sum((self.lengths < steps) & ~self.terminated))

    def summary(self) -> dict[str, Any]:
        """What the data look like in numbers, as plain JSON values; placeholders do not count."""
        is_observed = self.is_observed
        everything = bool(is_observed.all())
        return {
            "episodes": self.num_episodes,
            "transitions": self.num_transitions,
            "terminated": int(self.terminated.sum()),
            "truncated": int(self.truncated.sum()),
            "without_final_observation": int((~self.final_observed).sum()),
            "episode_lengths": _describe(self.lengths),
            "observations": {
                name: _describe(column if everything else column[is_observed])
                for name, column in zip(self.observation_names, self.observations.T, strict=True)
            },
            "actions": {
                name: _describe(column)
                for name, column in zip(self.action_names, self.actions.T, strict=True)
            },
            REWARD: _describe(self.rewards),
        }

    def _first_row_of_episodes(self) -> npt.NDArray[np.int64]:
        return self.offsets[:-1] + np.arange(self.num_episodes)

    def _check_counts(self) -> None:
        num_episodes, num_transitions = len(self.lengths), len(self.rewards)
        if num_episodes == 0:
            raise DataError(
                "A data set needs at least one episode.",
                where="lengths",
                advice="check that the source has rows and that none of the filters drops them all",
            )
        if num_transitions + num_episodes > _LARGEST_ROW:
            raise DataError(
                f"{num_transitions + num_episodes} rows are more than a data set can number.",
                where="observations",
                advice=f"split it into parts of at most {_LARGEST_ROW} rows",
            )
        shapes = {
            "observations": (num_transitions + num_episodes, len(self.observation_names)),
            "actions": (num_transitions, len(self.action_names)),
            "terminated": (num_episodes,),
            "truncated": (num_episodes,),
            "final_observed": (num_episodes,),
        }
        for name, shape in shapes.items():
            found = getattr(self, name).shape
            if found != shape:
                raise DataError(
                    f"The array has shape {found}; {num_episodes} episodes with "
                    f"{num_transitions} transitions and these names need {shape}.",
                    where=name,
                    advice="check the episode lengths and the names of the columns",
                )
        # Each length is looked at on its own first, so that the sum cannot overflow.
        bad = np.flatnonzero((self.lengths < 1) | (self.lengths > num_transitions))
        if bad.size or int(self.lengths.sum()) != num_transitions:
            detail = f"episode {bad[0]} has {self.lengths[bad[0]]}" if bad.size else "their sum"
            raise DataError(
                f"The episode lengths do not add up to {num_transitions} transitions ({detail}).",
                where="lengths",
                advice="every episode needs at least one transition",
            )

    def _check_values(self) -> None:
        tables = {
            "observations": (self.observations, self.observation_names, self.lengths + 1),
            "actions": (self.actions, self.action_names, self.lengths),
            "rewards": (self.rewards[:, None], (REWARD,), self.lengths),
        }
        for name, (values, columns, rows_per_episode) in tables.items():
            bad = first_non_finite(values)
            if bad is not None:
                stops = np.cumsum(rows_per_episode)
                episode = int(np.searchsorted(stops, bad[0], side="right"))
                row = bad[0] - int(stops[episode] - rows_per_episode[episode])
                raise value_error(values[bad], f"{name} of episode {episode}", row, columns[bad[1]])
        placeholders = np.flatnonzero(~self.is_observed)
        differing = (self.observations[placeholders] != self.observations[placeholders - 1]).any(1)
        if differing.any():
            episode = int(np.flatnonzero(~self.final_observed)[np.argmax(differing)])
            raise DataError(
                "The final observation is marked as unknown, but is no repetition of the one "
                "before it.",
                where=f"observations of episode {episode}, last row",
                advice="mark it as observed, or repeat the last known observation there",
            )


_KINDS: dict[str, type[np.generic]] = {
    "observations": np.float32,
    "actions": np.float32,
    "rewards": np.float32,
    "lengths": np.int64,
    "terminated": np.bool_,
    "truncated": np.bool_,
    "final_observed": np.bool_,
}
_RANKS = {"observations": 2, "actions": 2}


def _plain(provenance: dict[str, Any]) -> dict[str, Any]:
    """A copy made of JSON values only (tuples become lists), or an error."""
    try:
        copy = json.loads(json.dumps(provenance, allow_nan=False, indent=1))
    except (TypeError, ValueError, RecursionError) as error:
        raise DataError(
            f"The provenance cannot be written as JSON ({error}).",
            where="provenance",
            advice="use only text, finite numbers, true, false, null, lists and dictionaries",
        ) from error
    if not isinstance(copy, dict):
        raise DataError(
            "The provenance is not a dictionary.",
            where="provenance",
            advice="give a dictionary, which may be empty",
        )
    return copy


def _frozen(values: Any, name: str, kind: type[np.generic]) -> npt.NDArray[Any]:
    array = np.asarray(values)
    if array.dtype != kind or array.ndim != _RANKS.get(name, 1):
        raise DataError(
            f"The array has type {array.dtype} and {array.ndim} dimensions; it should be "
            f"{np.dtype(kind)} with {_RANKS.get(name, 1)}.",
            where=name,
            advice="use Dataset.from_episodes, which converts",
        )
    # A view, so that the caller's own array does not turn read-only in his hands.
    return _read_only(np.ascontiguousarray(array).view())


def _read_only(array: npt.NDArray[Any]) -> npt.NDArray[Any]:
    array.flags.writeable = False
    return array


def _replace(dataset: Dataset, name: str, value: Any) -> None:
    object.__setattr__(dataset, name, value)  # a frozen record may do so while it is being made


def _ranges(starts: npt.NDArray[np.int64], counts: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """``starts[0], starts[0]+1, ... (counts[0] numbers), starts[1], ...`` in one array."""
    before = np.cumsum(counts) - counts
    indices: npt.NDArray[np.int64] = np.arange(int(counts.sum())) + np.repeat(
        starts - before, counts
    )
    return indices


def _describe(column: npt.NDArray[Any]) -> dict[str, float]:
    values = column.astype(np.float64)
    return {
        "minimum": float(values.min()),
        "maximum": float(values.max()),
        "mean": float(values.mean()),
        "deviation": float(values.std()),
    }
