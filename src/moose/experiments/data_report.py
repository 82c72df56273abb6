"""What a log can teach, before anything is trained: coverage, behaviour, returns, memory.

Everything is measured by simple, fast means (nearest neighbours, linear regression) on episodes
held out of their fit, so that the answer comes in seconds; it says how promising a log is, not what
a trained model will reach.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from moose.data.dataset import Dataset
from moose.data.split import split_episodes
from moose.tasks.task import Task
from moose.wording import counted

HISTORIES = (1, 2, 3, 5, 8, 12, 20, 30, 50)
_NEIGHBOURS = 10
_MOST_ROWS = 20_000
_MOST_KNOWN = 8_000
_MOST_ASKED = 1_000
_MOST_LAGS = 200
_BINS = 20
_GOOD_ENOUGH = 1.05
"""A history is long enough if its error is at most this many times the least."""
_DETERMINISTIC, _VARIED = 0.95, 0.5

Numbers = npt.NDArray[np.float64]


class Behaviour(NamedTuple):
    """Logged actions of held-out states, and what the neighbours of those states did."""

    logged: Numbers
    """[B, d]"""
    expected: Numbers
    """[B, d]"""


def report_data(dataset: Dataset, task: Task) -> dict[str, Any]:
    """Measure what a log can teach.

    Args:
        dataset: The log.
        task: What is known about the plant.

    Returns:
        Plain JSON values: ``coverage``, ``behaviour``, ``returns``, ``memory`` and ``remarks``.
    """
    task.require(dataset)
    content: dict[str, Any] = {
        "plant": task.name,
        "episodes": dataset.num_episodes,
        "transitions": dataset.num_transitions,
        "coverage": measure_coverage(dataset, task),
        "behaviour": describe_behaviour(measure_behaviour(dataset, task), task),
        "returns": measure_returns(dataset, task),
        "memory": measure_memory(dataset, task),
    }
    return content | {"remarks": _remarks(content, task)}


def measure_coverage(dataset: Dataset, task: Task) -> dict[str, Any]:
    """How much of the space of states and actions the log has been to."""
    actions = dataset.actions.astype(np.float64)
    low, high = np.asarray(task.action_low), np.asarray(task.action_high)
    share = (actions - low) / (high - low)
    counts = [np.histogram(share[:, i], _BINS, (0.0, 1.0))[0] for i in range(len(low))]
    pairs = np.concatenate([dataset.observations[dataset.observation_rows], actions], axis=1)
    return {
        "signals": {
            name: _quantiles(column)
            for name, column in zip(task.observation_names, dataset.observations.T, strict=True)
        },
        "actions": {
            name: _quantiles(actions[:, i])
            | {
                "low": float(low[i]),
                "high": float(high[i]),
                "range_used": float(np.ptp(np.quantile(share[:, i], [0.025, 0.975]))),
                "bins_visited": float(np.mean(counts[i] > 0)),
                "at_bounds": float(np.mean((share[:, i] < 1e-3) | (share[:, i] > 1 - 1e-3))),
            }
            for i, name in enumerate(task.action_names)
        },
        "dimensions": {
            "numbers": pairs.shape[1],
            "effective": effective_dimensions(_thinned(pairs, _MOST_ROWS)),
        },
    }


def effective_dimensions(values: Numbers) -> float:
    """How many independent directions the rows of ``values`` have: (Σλ)² / Σλ² of correlations."""
    deviation = values.std(axis=0)
    moving = values[:, deviation > 1e-9 * (1.0 + np.abs(values).max(axis=0))]
    if moving.shape[1] < 2:
        return float(moving.shape[1])
    strengths = np.linalg.eigvalsh(np.corrcoef(moving.T))
    return float(strengths.sum() ** 2 / (strengths**2).sum())


def measure_behaviour(dataset: Dataset, task: Task) -> Behaviour:
    """What is expected in held-out states, by similar states, beside what was done.

    Whichever tells the most: nearest neighbours in the newest frame or in the whole history (many
    frames drown what matters, and one may lack it), or a linear law.
    """
    known, asked = _split_transitions(dataset)
    known, asked = _thinned(known, _MOST_KNOWN), _thinned(asked, _MOST_ASKED)
    actions = dataset.actions.astype(np.float64)
    found = []
    for history in sorted({1, task.history}):
        states = _states(dataset, np.concatenate([known, asked]), history)
        states = _standardised(states, states[: len(known)])
        nearest = _nearest(states[: len(known)], states[len(known) :], _NEIGHBOURS)
        found.append(Behaviour(actions[asked], actions[known][nearest].mean(axis=1)))
        linear = _linear_fit(states[: len(known)], actions[known], states[len(known) :])
        low, high = np.asarray(task.action_low), np.asarray(task.action_high)
        found.append(Behaviour(actions[asked], np.clip(linear, low, high)))
    return min(found, key=lambda one: float(((one.logged - one.expected) ** 2).mean()))


def describe_behaviour(behaviour: Behaviour, task: Task) -> dict[str, Any]:
    """How far a state determines the action that was logged in it."""
    logged, expected = behaviour
    rest = logged - expected
    width = (np.asarray(task.action_high) - np.asarray(task.action_low)) / 2
    variance = logged.var(axis=0)
    explained = 1.0 - (rest**2).mean(axis=0) / np.where(variance > 0, variance, 1.0)
    explained = np.where(variance > 0, np.clip(explained, 0.0, 1.0), 1.0)
    return {
        "method": f"{_NEIGHBOURS} nearest neighbours or a linear law, on held-out episodes",
        "explained": {name: float(explained[i]) for i, name in enumerate(task.action_names)},
        "spread": {
            name: float(np.sqrt((rest[:, i] ** 2).mean()) / width[i])
            for i, name in enumerate(task.action_names)
        },
        "explained_on_average": float(explained.mean()),
    }


def measure_returns(dataset: Dataset, task: Task) -> dict[str, Any]:
    """Discounted returns of the stretches of one horizon; see :func:`returns_of_stretches`."""
    values = returns_of_stretches(dataset, task)
    return _quantiles(values) | {
        "stretches": len(values),
        "steps": task.horizon,
        "discount": task.discount,
        "mean": float(values.mean()),
        "deviation": float(values.std()),
    }


def returns_of_stretches(dataset: Dataset, task: Task) -> Numbers:
    """One return for each stretch of one horizon, end to end, in every episode.

    A last, shorter one counts if the plant itself ended it, since nothing would have followed.
    Where no episode is long enough, they are those of the episodes.
    """
    steps = task.horizon
    firsts = np.concatenate(
        [
            start + np.arange(0, length if is_ended else length - steps + 1, steps)
            for start, length, is_ended in zip(
                dataset.offsets[:-1], dataset.lengths, dataset.terminated, strict=True
            )
        ]
    )
    if not len(firsts):
        return dataset.discounted_returns(task.discount, steps)
    ends = np.repeat(dataset.offsets[1:], dataset.lengths)[firsts]
    ahead = firsts[:, None] + np.arange(steps)
    rewards = dataset.rewards[np.minimum(ahead, dataset.num_transitions - 1)].astype(np.float64)
    weights = task.discount ** np.arange(steps)
    return np.asarray(np.where(ahead < ends[:, None], rewards, 0.0) @ weights)


def measure_memory(dataset: Dataset, task: Task) -> dict[str, Any]:
    """How long signals remember, and how much of the past helps to predict the next step."""
    lags = min(_MOST_LAGS, int(dataset.lengths.max()) // 2)
    correlations = {
        name: autocorrelation(dataset, column, lags)
        for column, name in enumerate(task.observation_names)
    }
    errors = history_errors(dataset, task)
    best = min(errors.values())
    suggested = min(frames for frames, error in errors.items() if error <= _GOOD_ENOUGH * best)
    return {
        "autocorrelation": {name: values.tolist() for name, values in correlations.items()},
        "memory_steps": {
            name: _first_below(values, 1 / np.e) for name, values in correlations.items()
        },
        "history_errors": {str(frames): error for frames, error in errors.items()},
        "history": task.history,
        "suggested_history": suggested,
    }


def autocorrelation(dataset: Dataset, column: int, lags: int) -> Numbers:
    """Correlation of a signal with itself 0 … ``lags`` steps later, within episodes."""
    values = dataset.observations[:, column].astype(np.float64)
    values = values - values.mean()
    variance = float((values**2).mean())
    rows = np.repeat(np.arange(dataset.num_episodes), dataset.lengths + 1)
    result = np.ones(lags + 1)
    for lag in range(1, lags + 1):
        inside = rows[lag:] == rows[:-lag]
        if variance > 0 and inside.any():
            result[lag] = float((values[lag:] * values[:-lag])[inside].mean() / variance)
    return result


def history_errors(dataset: Dataset, task: Task) -> dict[int, float]:
    """Held-out error of a linear one-step prediction, for several lengths of history.

    In deviations of the signals' changes; 1 means as wrong as predicting no change.
    """
    known, asked = _split_transitions(dataset)
    known = _thinned(known[dataset.has_successor[known]], _MOST_ROWS)
    asked = _thinned(asked[dataset.has_successor[asked]], _MOST_ROWS)
    columns = list(task.predicted)
    rows = dataset.observation_rows.astype(np.int64)
    frames = dataset.observations.astype(np.float64)
    changes = np.zeros((dataset.num_transitions, len(columns)))
    usable = np.concatenate([known, asked])
    changes[usable] = frames[rows[usable] + 1][:, columns] - frames[rows[usable]][:, columns]
    scale = np.sqrt((changes[known] ** 2).mean(axis=0))
    scale = np.where(scale > 0, scale, 1.0)
    errors = {}
    longest = max(HISTORIES[0], int(dataset.lengths.max()))
    for history in (frames for frames in HISTORIES if frames <= longest):
        inputs = _states(dataset, usable, history)
        inputs = np.concatenate([inputs, dataset.actions[usable]], axis=1)
        inputs = _standardised(inputs, inputs[: len(known)])
        targets = changes[usable] / scale
        predicted = _linear_fit(inputs[: len(known)], targets[: len(known)], inputs[len(known) :])
        rest = predicted - targets[len(known) :]
        errors[history] = float(np.sqrt((rest**2).mean()))
    return errors


def render(content: Mapping[str, Any]) -> RenderableType:
    """A report as a page of text.

    Args:
        content: What :func:`report_data` gave.

    Returns:
        Something to print on a rich console.
    """
    behaviour, returns, memory = content["behaviour"], content["returns"], content["memory"]
    table = Table(box=None, header_style="bold")
    table.add_column("action")
    for column in ("5 %", "median", "95 %", "range used", "explained by state", "spread"):
        table.add_column(column, justify="right")
    for name, numbers in content["coverage"]["actions"].items():
        table.add_row(
            name,
            *(f"{numbers[key]:.4g}" for key in ("5%", "50%", "95%")),
            f"{100 * numbers['range_used']:.0f} %",
            f"{100 * behaviour['explained'][name]:.0f} %",
            f"{100 * behaviour['spread'][name]:.0f} %",
        )
    dimensions = content["coverage"]["dimensions"]
    errors = ", ".join(f"{n}: {e:.3f}" for n, e in memory["history_errors"].items())
    return Group(
        Text(
            f"{content['plant']}: {counted(content['transitions'], 'transition')} in "
            f"{counted(content['episodes'], 'episode')}"
        ),
        Text(),
        table,
        Text(),
        Text(
            f"Directions: {dimensions['effective']:.1f} independent ones of "
            f"{dimensions['numbers']} numbers in state and action."
        ),
        Text(
            f"Return of {returns['steps']} steps: {returns['mean']:.4g} ± "
            f"{returns['deviation']:.4g}; 5 % {returns['5%']:.4g}, 95 % {returns['95%']:.4g} "
            f"({returns['stretches']} stretches)."
        ),
        Text(f"Linear one-step error by frames of history: {errors}."),
        Text(
            f"Suggested history: {memory['suggested_history']} (the task has {memory['history']})."
        ),
        Text(),
        *(Text(f"• {remark}") for remark in content["remarks"]),
    )


def _remarks(content: Mapping[str, Any], task: Task) -> list[str]:
    """The numbers in sentences."""
    remarks = []
    explained = content["behaviour"]["explained_on_average"]
    if explained >= _DETERMINISTIC:
        remarks.append(
            f"The behaviour is nearly deterministic ({100 * explained:.0f} % of the actions is "
            "explained by the state): the log hardly shows what other actions would do, so "
            "little can be learned beyond imitating it. Some exploration would help."
        )
    elif explained <= _VARIED:
        remarks.append(
            f"The behaviour varies ({100 * explained:.0f} % of the actions is explained by the "
            "state): the effects of actions can be told from those of states."
        )
    else:
        remarks.append(
            f"The state explains {100 * explained:.0f} % of the actions; the rest is the "
            "exploration that models learn from."
        )
    for name, numbers in content["coverage"]["actions"].items():
        if numbers["range_used"] < 0.1:
            remarks.append(
                f"'{name}' uses only {100 * numbers['range_used']:.0f} % of its bounds: a policy "
                "that stays with the data has little room."
            )
        if numbers["at_bounds"] > 0.5:
            remarks.append(f"'{name}' is at a bound most of the time.")
    returns = content["returns"]
    if returns["deviation"] <= 1e-6 * max(1.0, abs(returns["mean"])):
        remarks.append("All stretches earn the same: the log does not tell good from bad.")
    memory = content["memory"]
    if memory["suggested_history"] > task.history:
        remarks.append(
            f"{memory['suggested_history']} frames of history predict better than the task's "
            f"{task.history}."
        )
    if content["episodes"] < 10:
        remarks.append(
            f"The log has only {counted(content['episodes'], 'episode')}; models are measured on "
            "one held out of training, at most."
        )
    return remarks


def _split_transitions(
    dataset: Dataset,
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Transitions of training and of held-out episodes; of a single one, its two parts."""
    everything = np.arange(dataset.num_transitions)
    if dataset.num_episodes < 2:
        cut = max(1, 3 * len(everything) // 4)
        return everything[:cut], everything[cut:] if cut < len(everything) else everything
    _, held_out = split_episodes(dataset.num_episodes, 0.25, 0)
    is_held_out = np.zeros(dataset.num_episodes, np.bool_)
    is_held_out[held_out] = True
    chosen = np.repeat(is_held_out, dataset.lengths)
    return everything[~chosen], everything[chosen]


def _states(dataset: Dataset, transitions: npt.NDArray[np.int64], history: int) -> Numbers:
    """History windows [B, F · n], newest first; before the start the first frame is repeated."""
    rows = dataset.observation_rows[transitions].astype(np.int64)
    first = dataset.first_rows[transitions].astype(np.int64)
    ages = [np.maximum(rows - age, first) for age in range(history)]
    return np.concatenate([dataset.observations[at].astype(np.float64) for at in ages], axis=1)


def _standardised(values: Numbers, like: Numbers) -> Numbers:
    deviation = like.std(axis=0)
    is_moving = deviation > 1e-9 * (1.0 + np.abs(like).max(axis=0))
    scaled: Numbers = (values - like.mean(axis=0)) / np.where(is_moving, deviation, 1.0)
    return np.where(is_moving, scaled, 0.0)


def _linear_fit(known: Numbers, values: Numbers, asked: Numbers) -> Numbers:
    """Least squares of ``values`` on standardised ``known``, slightly damped, at ``asked``."""
    known, asked = (np.concatenate([x, np.ones((len(x), 1))], axis=1) for x in (known, asked))
    damping = 1e-5 * len(known) * np.eye(known.shape[1])
    weights = np.linalg.solve(known.T @ known + damping, known.T @ values)
    return np.asarray(asked @ weights)


def _nearest(known: Numbers, asked: Numbers, count: int) -> npt.NDArray[np.int64]:
    """Indices [B, count] of the nearest rows of ``known`` to each row of ``asked``."""
    count = min(count, len(known))
    squares = (known**2).sum(axis=1)
    found = []
    for first in range(0, len(asked), 256):
        part = asked[first : first + 256]
        distances = squares - 2.0 * part @ known.T
        found.append(np.argpartition(distances, count - 1, axis=1)[:, :count])
    return np.concatenate(found)


def _thinned(values: npt.NDArray[Any], most: int) -> npt.NDArray[Any]:
    """At most so many rows, evenly spread."""
    if len(values) <= most:
        return values
    return values[np.linspace(0, len(values) - 1, most).astype(np.int64)]


def _first_below(values: Sequence[float] | Numbers, level: float) -> int | None:
    below = np.flatnonzero(np.asarray(values) < level)
    return int(below[0]) if len(below) else None


def _quantiles(values: npt.NDArray[Any]) -> dict[str, float]:
    levels = {"minimum": 0.0, "5%": 0.05, "50%": 0.5, "95%": 0.95, "maximum": 1.0}
    found = np.quantile(values.astype(np.float64), list(levels.values()))
    return dict(zip(levels, map(float, found), strict=True))
