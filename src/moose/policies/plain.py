"""A policy at work, in NumPy: no JAX, no compiler, half a second from file to first action.

What it computes, in this order and the same in every export:

1. an input that is not a number becomes the middle of the data's range, and every input is clamped
   to that range, widened by :data:`moose.policies.artifact.WIDENING` times its width on each side;
2. standardise, apply the networks, map the result to the task's bounds;
3. an action that is not a number becomes the middle of its bounds, and all are clamped to them.

So any input whatever gives a finite action within bounds.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from moose.errors import ConfigError, DataError
from moose.policies.artifact import (
    read_artifact,
)
from moose.policies.dial import no_dial, require_position, turned_manifest
from moose.policies.examples import check_examples
from moose.policies.facts import Floats, TaskFacts
from moose.policies.parts import (
    CHOOSE,
    Parts,
    algorithm_of,
    parts_of,
    reconstruction_error,
    score_of,
)


class Controller:
    """A policy that acts: raw observations in, raw bounded actions out.

    Args:
        parts: What it is made of.
        manifest: What is known of its origin.
    """

    def __init__(self, parts: Parts, manifest: Mapping[str, Any]) -> None:
        self.parts = parts
        self.manifest = manifest
        self._window: Floats | None = None
        # Repeated for every frame, so that a history is handled as one row of numbers.
        self._fill, self._low, self._high, self._mean, self._deviation = (
            np.tile(each, parts.facts.history)
            for each in (*parts.clamp, parts.mean, parts.deviation)
        )

    @property
    def facts(self) -> TaskFacts:
        """Names, units, bounds and history of the task."""
        return self.parts.facts

    @property
    def has_novelty(self) -> bool:
        """Whether it can tell how unusual a situation is."""
        return self.parts.support is not None

    @property
    def position(self) -> float | None:
        """Where its dial stands, from 0 to 1; None of a policy without a dial."""
        return self.parts.position

    @property
    def window(self) -> Floats | None:
        """The history ``[F, n]`` that the last action was chosen by, the newest frame first."""
        return None if self._window is None else self._window.copy()

    def at(self, position: float) -> Controller:
        """The same policy with its dial at another position.

        Args:
            position: From 0, which is the behaviour of the log, to 1, all that was found.

        Returns:
            A controller of its own, which goes on from the history that this one has seen.

        Raises:
            ConfigError: There is no such position, or the policy has no dial.
        """
        self.require_dial()
        chosen = require_position(position)
        turned = Controller(
            replace(self.parts, position=chosen), turned_manifest(self.manifest, chosen)
        )
        turned._window = self._window
        return turned

    def require_dial(self) -> float:
        """Where its dial stands, or a :class:`ConfigError` if it has none."""
        if self.position is None:
            algorithm = algorithm_of(self.manifest)
            raise no_dial(self.parts.kind, f"policy of the algorithm '{algorithm}'")
        return self.position

    def reset(self) -> None:
        """Forget the history: the next observation begins a new episode."""
        self._window = None

    def act(self, observation: npt.ArrayLike) -> Floats:
        """The action for the newest observation; the history is kept here.

        Before there are enough observations the first one is repeated.

        Args:
            observation: ``[n]``: one frame, in the task's order and units.

        Returns:
            The action ``[d]``, within the task's bounds.
        """
        self._window = self.next_window(self._window, observation)
        return self(self._window)

    def next_window(self, window: Floats | None, observation: npt.ArrayLike) -> Floats:
        """The history after one more observation; None before the first one."""
        frame = self.frame_in(observation)
        if window is None:
            return np.repeat(frame[None, :], self.facts.history, axis=0)
        return np.concatenate([frame[None, :], window[:-1]])

    def frame_in(self, observation: npt.ArrayLike) -> Floats:
        """An observation as an array ``[n]``, NaN where it has None, or an error."""
        frame = _floats(observation)
        if frame.shape != self.facts.window_shape[1:]:
            raise self._wrong_shape("observation", frame.shape, self.facts.window_shape[1:])
        return frame

    def __call__(self, window: npt.ArrayLike) -> Floats:
        """The actions for histories.

        Args:
            window: ``[F, n]`` or a batch ``[B, F, n]``: the last F frames, the newest first.

        Returns:
            ``[d]`` or ``[B, d]``.
        """
        frames, parts = self._frames_in(window), self.parts
        with np.errstate(over="ignore", invalid="ignore"):
            features = self._clamped(frames)
            features -= self._mean
            features /= self._deviation
            chosen = CHOOSE[parts.kind](parts, features)
            chosen *= parts.box.half
            chosen += parts.box.middle
            actions = self._bounded(chosen)
        return actions.reshape(*frames.shape[:-2], len(self.facts.action_names))

    def novelty(self, window: npt.ArrayLike, action: npt.ArrayLike) -> npt.NDArray[np.float64]:
        """How unusual it is to take an action after a history, by the data's own measure.

        Args:
            window: ``[F, n]`` or ``[B, F, n]``, the newest frame first.
            action: ``[d]`` or ``[B, d]``.

        Returns:
            A number for each: below 1 the share of the training data that was less unusual, above
            1 how many times worse the reconstruction is than that of the most unusual data.
        """
        support = self.parts.support
        if support is None:
            raise ConfigError(
                "This policy has no support model, so that nobody can tell what is new to it.",
                where=f"policy of the algorithm '{algorithm_of(self.manifest)}'",
                advice="use a policy trained by LION or MOOSE, or do without the novelty",
            )
        frames, actions = self._frames_in(window), _floats(action)
        expected = (*frames.shape[:-2], len(self.facts.action_names))
        if actions.shape != expected:
            raise self._wrong_shape("action", actions.shape, expected)
        with np.errstate(over="ignore", invalid="ignore"):
            error = reconstruction_error(
                support,
                self._clamped(frames).reshape(-1, *self.facts.window_shape),
                self._bounded(actions).reshape(-1, expected[-1]),
            )
            return score_of(support, error).reshape(frames.shape[:-2])

    def _frames_in(self, window: npt.ArrayLike) -> Floats:
        """One history ``[F, n]`` or several ``[B, F, n]``, or an error."""
        frames, shape = _floats(window), self.facts.window_shape
        if frames.shape[-2:] != shape or frames.ndim not in (2, 3):
            raise self._wrong_shape("history", frames.shape, shape)
        return frames

    def _clamped(self, frames: Floats) -> Floats:
        """Histories as rows ``[B, F·n]`` of their own memory, with all numbers in their ranges."""
        rows = frames.reshape(-1, len(self._fill))
        return _between(np.where(np.isnan(rows), self._fill, rows), self._low, self._high)

    def _bounded(self, actions: Floats) -> Floats:
        box = self.parts.box
        return _between(np.where(np.isnan(actions), box.middle, actions), box.low, box.high)

    def _wrong_shape(
        self, name: str, found: tuple[int, ...], expected: tuple[int, ...]
    ) -> DataError:
        names = self.facts.action_names if name == "action" else self.facts.observation_names
        return DataError(
            f"The {name} has the shape {found}; this task's is {expected}.",
            where=f"task '{self.facts.name}': {', '.join(names)}",
            advice="give the columns in this order and the newest frame first",
        )


def load_policy(path: Path | str) -> Controller:
    """Load a policy for use: no code in the file runs, and JAX is not needed.

    Args:
        path: A ``.moose`` file, or a policy's folder.

    Returns:
        The controller, which has answered the stored examples as it did when it was saved.

    Raises:
        StorageError: The policy is damaged, altered, or of a newer version.
        DataError: This is something else than a policy.
        ConfigError: The policy draws samples, which only :mod:`moose.policies.policy` can.
    """
    artifact = read_artifact(path)
    controller = Controller(parts_of(artifact, Path(path)), artifact.manifest)
    check_examples(controller, artifact, Path(path))
    return controller


def _between(values: Floats, low: Floats, high: Floats) -> Floats:
    """The values themselves, changed where they are outside; several times faster than clip."""
    np.maximum(values, low, out=values)
    return np.minimum(values, high, out=values)


def _floats(values: npt.ArrayLike) -> Floats:
    if isinstance(values, np.ndarray) and values.dtype == np.float32:
        return values
    with np.errstate(over="ignore", invalid="ignore"):
        try:
            return np.asarray(values, np.float32)
        except (TypeError, ValueError) as error:
            raise DataError(
                f"These are not numbers: {error}.",
                where="what the policy was given",
                advice="give an array of numbers",
            ) from error
