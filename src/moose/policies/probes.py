"""Histories and positions of all sorts, to compare two forms of the same policy by."""

from __future__ import annotations

import numpy as np

from moose.policies.examples import POSITIONS
from moose.policies.facts import Floats
from moose.policies.parts import Parts

_EXTREMES = (np.nan, np.inf, -np.inf, 1e30, -1e30, 0.0)


def probe_windows(parts: Parts, count: int, seed: int = 0) -> Floats:
    """Histories [B, F, n] within the data's range, beyond it, and with absurd numbers in them."""
    rng = np.random.default_rng(seed)
    fill, low, high = (np.asarray(each, np.float64) for each in parts.clamp)
    shape = (count, *parts.facts.window_shape)
    spread = rng.choice([0.1, 0.3, 1.0, 2.0], (count, 1, 1))
    windows = fill + spread * (high - low) * rng.uniform(-0.5, 0.5, shape)
    is_absurd = rng.uniform(size=shape) < rng.choice([0.0, 0.0, 0.1, 1.0], (count, 1, 1))
    with np.errstate(over="ignore"):
        return np.where(is_absurd, rng.choice(_EXTREMES, shape), windows).astype(np.float32)


def probe_positions(parts: Parts) -> tuple[tuple[float, float], ...]:
    """Pairs of what a dial may be told and the position that is meant by it."""
    stored = parts.position or 0.0
    sound = tuple((position, position) for position in (*POSITIONS, stored))
    return *sound, (np.nan, stored), (-0.5, 0.0), (1.5, 1.0), (np.inf, 1.0), (-np.inf, 0.0)
