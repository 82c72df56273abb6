"""The dial of a policy that stands between what a log did and what a search found. Without JAX.

Its position λ is a number from 0, which is the behaviour and nothing else, to 1. A policy is turned
by changing this number: in its parts, in its manifest, and in its origin, which then tells where
the algorithm had left it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from moose.errors import ConfigError

KIND = "dial"
"""The kind of policies that have one."""
TURNED_FROM = "turned_from"
"""What an origin calls the position at which the algorithm left a policy that was turned."""


def require_position(position: object) -> float:
    """A position of a dial, or an error if it is none."""
    if (
        isinstance(position, (int, float, np.integer, np.floating))
        and not isinstance(position, bool)
        and 0 <= position <= 1
    ):
        return float(position) + 0.0  # so that −0 is 0
    raise ConfigError(
        f"A dial has no position {position!r}.",
        where="position",
        advice="give a number from 0 (what the log did) to 1 (all that was found)",
    )


def no_dial(kind: object, where: str) -> ConfigError:
    """What to raise where a policy is to be turned that cannot be."""
    return ConfigError(
        f"This policy has no dial: it is of the kind '{kind}'.",
        where=where,
        advice=f"use it as it is, or a policy of the kind '{KIND}'",
    )


def position_in(manifest: Mapping[str, Any]) -> float | None:
    """The position that a manifest tells, which has to be a sound one; None without a dial."""
    numbers = manifest.get("numbers")
    if manifest.get("kind") != KIND or not isinstance(numbers, Mapping):
        return None
    position = numbers.get("position")
    return position if isinstance(position, float) and 0.0 <= position <= 1.0 else None


def turned_manifest(manifest: Mapping[str, Any], position: float) -> dict[str, Any]:
    """The manifest of the same policy at another position; its table of files is as it was."""
    numbers, origin = manifest["numbers"], manifest.get("origin")
    if isinstance(origin, Mapping):
        origin = turned_origin(origin, numbers["position"], position)
    return {**manifest, "numbers": {**numbers, "position": position}, "origin": origin}


def turned_origin(origin: Mapping[str, Any], before: float, after: float) -> dict[str, Any]:
    """The origin of a policy that was turned: it tells where the algorithm had left the dial."""
    first = origin.get(TURNED_FROM, before)
    kept = {name: value for name, value in origin.items() if name != TURNED_FROM}
    return kept if first == after else {**kept, TURNED_FROM: first}
