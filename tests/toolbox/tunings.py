"""What ``moose tune`` might have measured, made up: one hump of a return, and risk that grows."""

from __future__ import annotations

import numpy as np

from moose.experiments.tuning_file import FORMAT, SCHEMA_VERSION

SIGNALS = ("x", "y", "lever")
ACTIONS = ("push", "pull")
STEPS = 100


def make_tuning(choice="dial", *, signals=SIGNALS, actions=ACTIONS, has_hold=True) -> dict:
    """The content of a ``tuning.json``.

    The return is highest at 0.9, its lower bound at 0.75, which is the advice unless it is to hold.
    """
    positions = np.round(np.linspace(0, 1, 21), 2).tolist()
    dial = [_row(position, signals, actions) for position in positions]
    best = max(dial, key=lambda row: row["lower_bound"])
    hold_return = -60.5 if choice == "hold" else -70.25
    hold = _row(0.3, signals, actions) | {"return": hold_return, "lower_bound": hold_return - 1.5}
    hold.pop("position")
    if choice == "dial":
        advice = {key: best[key] for key in ("position", "return", "lower_bound")}
        reasons = [
            ("for", "Its lower bound is 13 above what the log has earned."),
            ("for", "All 8 models promise more than never changing anything."),
            ("caution", "The action push is at a bound in 12 % of the steps."),
        ]
    else:
        advice = {"position": None, "return": hold_return, "lower_bound": hold_return - 1.5}
        reasons = [
            ("for", "Never changing anything earns more than any position of the dial."),
            ("against", "The best lower bound of the dial is 2.2 below that of holding."),
            ("caution", "The models explain 90 % of what the signals did."),
        ]
    return {
        "format": FORMAT,
        "schema_version": SCHEMA_VERSION,
        "digest": "5eed" * 4,
        "advice": {"choice": choice, **advice},
        "reasons": [{"kind": kind, "text": text} for kind, text in reasons],
        "protocol": {
            "steps": STEPS,
            "discount": 0.97,
            "starts": "first",
            "start_states": 100,
            "groups": 2,
            "models": 8,
            "manner": "each half of the models was fitted to the other half of the episodes",
        },
        "positions": positions,
        "dial": dial,
        "hold": hold if has_hold else None,
        "logged": {
            "return": -77.2,
            "best": -60.0,
            "worst": -90.0,
            **_curves(0.0, signals, actions),
        },
        "models": {"explained": 0.9, "bias": 0.3},
        "settings": {"lower_bound": 0.1},
    }


def _row(position, signals, actions):
    height = -76.0 + 15.5 * np.sin(position / 0.9 * np.pi / 2)
    spread = 1.0 + 4.0 * position**3
    row = {
        "position": position,
        "return": height,
        "low": height - spread,
        "high": height + 0.8 * spread,
        "lower_bound": height - spread - 0.5,
        "strayed": 0.01 + 0.2 * position**2,
        "apart": 0.01 + 0.2 * position**2,
        "new": 0.01 + 0.3 * position**3,
        "novelty": {"0.1": 0.1 + 0.2 * position, "0.5": 0.5 + 0.2 * position, "0.9": 0.97},
        "from_behaviour": 0.25 * position**2,
        "at_bounds": {name: 0.15 * i * position for i, name in enumerate(reversed(actions))},
    }
    rounded = {
        name: round(value, 6) if isinstance(value, float) else value for name, value in row.items()
    }
    return rounded | _curves(position, signals, actions)


def _curves(position, signals, actions):
    rng = np.random.default_rng(0)

    def curves(count, drift, level=0.0):
        time = np.arange(count) / STEPS
        middle = level + drift * (1 - np.exp(-3 * time)) + 0.03 * rng.normal(size=count)
        half = 0.1 + 0.2 * time
        return [np.round(middle + shift * half, 6).tolist() for shift in (-1, 0, 1)]

    return {
        "signals": {n: curves(STEPS + 1, (i - 1 + position) * 0.8) for i, n in enumerate(signals)},
        "actions": {n: curves(STEPS, (1 - i) * position, i) for i, n in enumerate(actions)},
    }
