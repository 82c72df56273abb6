"""Algorithms by name, with their presets."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from moose.algorithms import bcq, bear, brac, clone, ddpg, lion, moose
from moose.config import Settings
from moose.errors import ConfigError, nearest
from moose.models.support import Familiarity


@dataclass(frozen=True)
class Algorithm:
    """What the runner must know of an algorithm.

    Attributes:
        name: Its name on the command line.
        config: Its settings.
        presets: Names of settings trees put over the defaults.
        fit: ``fit(dataset, task, config, key, *, progress, journal, observe)``; the result has an
            ``actor``.
        familiarity: ``familiarity(fitted, dataset, task, config)`` gives for each seed what its
            controller needs to tell what is new to it; None of an algorithm that cannot.
    """

    name: str
    config: type[Settings]
    presets: Mapping[str, Mapping[str, Any]]
    fit: Callable[..., Any]
    familiarity: Callable[..., Iterator[Familiarity]] | None = None

    @property
    def default_preset(self) -> str:
        """The preset that is used unless another one is named: its first."""
        return next(iter(self.presets))

    def preset(self, name: str) -> Mapping[str, Any]:
        """The settings tree of a preset."""
        if name not in self.presets:
            others = [other.name for other in ALGORITHMS.values() if name in other.presets]
            advice = nearest(name, self.presets)
            if others:
                advice = f"add --algorithm {' or '.join(others)}, or {advice}"
            raise ConfigError(
                f"'{self.name}' has no preset '{name}'.", where="--preset", advice=advice
            )
        return self.presets[name]


ALGORITHMS: Mapping[str, Algorithm] = MappingProxyType(
    {
        "moose": Algorithm("moose", moose.Config, moose.PRESETS, moose.fit, moose.familiarity),
        "lion": Algorithm("lion", lion.Config, lion.PRESETS, lion.fit, lion.familiarity),
        "clone": Algorithm("clone", clone.Config, clone.PRESETS, clone.fit),
        "ddpg": Algorithm("ddpg", ddpg.Config, ddpg.PRESETS, ddpg.fit),
        "bcq": Algorithm("bcq", bcq.Config, bcq.PRESETS, bcq.fit),
        "bear": Algorithm("bear", bear.Config, bear.PRESETS, bear.fit),
        "brac": Algorithm("brac", brac.Config, brac.PRESETS, brac.fit),
    }
)

DEFAULT_ALGORITHM = "lion"
"""What trains where no algorithm is named."""


def find_algorithm(name: str) -> Algorithm:
    """The algorithm of that name, or an error with the nearest one."""
    if name not in ALGORITHMS:
        raise ConfigError(
            f"There is no algorithm '{name}'.",
            where="--algorithm",
            advice=nearest(name, ALGORITHMS),
        )
    return ALGORITHMS[name]
