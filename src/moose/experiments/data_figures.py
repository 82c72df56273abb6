"""Pictures of a data report. Matplotlib is imported only when a picture is drawn."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from moose.data.dataset import Dataset
from moose.experiments.data_report import Behaviour, measure_behaviour, returns_of_stretches
from moose.experiments.figures import picture_format, tidy, write_figure
from moose.tasks.task import Task

if TYPE_CHECKING:
    from matplotlib.figure import Figure

PICTURES = ("coverage.png", "behaviour.png", "returns.png", "memory.png")
_BLUE, _ORANGE, _GREY = "#0072B2", "#D55E00", "#4D4D4D"
_MOST_SIGNALS = 24


def draw_report(
    dataset: Dataset, task: Task, content: Mapping[str, Any], folder: Path
) -> tuple[Path, ...]:
    """Draw the four pictures of a data report.

    Args:
        dataset: The log.
        task: What is known about the plant.
        content: What :func:`~moose.experiments.data_report.report_data` gave.
        folder: Where they go.

    Returns:
        The pictures: coverage, behaviour, returns, memory.
    """
    picture_format(folder / PICTURES[0])
    figures = (
        _coverage(dataset, task),
        _behaviour(measure_behaviour(dataset, task), task, content["behaviour"]),
        _returns(dataset, task),
        _memory(content["memory"]),
    )
    for name, figure in zip(PICTURES, figures, strict=True):
        write_figure(figure, folder / name)
    return tuple(folder / name for name in PICTURES)


def _coverage(dataset: Dataset, task: Task) -> Figure:
    """Where signals and actions have been."""
    names = [*task.observation_names[:_MOST_SIGNALS], *task.action_names]
    figure, axes = _panels(len(names), f"{task.name}: where the log has been")
    for i, (ax, name) in enumerate(zip(axes, names, strict=False)):
        action = i - len(names) + len(task.action_names)
        if action < 0:
            ax.hist(dataset.observations[:, i], bins=50, color=_BLUE, alpha=0.8)
            tidy(ax, name)
        else:
            low, high = task.action_low[action], task.action_high[action]
            ax.hist(dataset.actions[:, action], bins=50, color=_ORANGE, alpha=0.8)
            for bound in (low, high):
                ax.axvline(bound, color="black", linewidth=1.0, linestyle=":")
            tidy(ax, f"action {name} (dotted: bounds)")
        ax.set_yticks([])
    return figure


def _behaviour(behaviour: Behaviour, task: Task, numbers: Mapping[str, Any]) -> Figure:
    """What was done against what the neighbours' states led to."""
    count = len(task.action_names)
    figure, axes = _panels(count, "Does the state determine the action?")
    for i, (ax, name) in enumerate(zip(axes, task.action_names, strict=False)):
        ax.plot(
            behaviour.expected[:, i],
            behaviour.logged[:, i],
            linestyle="none",
            marker=".",
            markersize=3,
            alpha=0.5,
            color=_BLUE,
        )
        ends = [float(behaviour.logged[:, i].min()), float(behaviour.logged[:, i].max())]
        ax.plot(ends, ends, color=_GREY, linewidth=0.8)
        ax.set_xlabel("in similar states", fontsize=8)
        ax.set_ylabel("logged", fontsize=8)
        tidy(ax, f"{name}: {100 * numbers['explained'][name]:.0f} % explained")
    return figure


def _returns(dataset: Dataset, task: Task) -> Figure:
    """What stretches of one horizon earned."""
    values = returns_of_stretches(dataset, task)
    figure, axes = _panels(1, "Returns of the log")
    axes[0].hist(values, bins=min(60, max(5, len(values) // 4)), color=_BLUE, alpha=0.8)
    axes[0].axvline(float(values.mean()), color="black", linewidth=1.2, label="mean")
    tenth = float(np.quantile(values, 0.1))
    axes[0].axvline(tenth, color="black", linewidth=1.2, linestyle=":", label="10th percentile")
    axes[0].legend(frameon=False, fontsize=7)
    axes[0].set_yticks([])
    tidy(axes[0], f"discounted return of {task.horizon} steps, γ = {task.discount:g}")
    return figure


def _memory(memory: Mapping[str, Any]) -> Figure:
    """Autocorrelation, and error against history."""
    figure, axes = _panels(2, "How far back does the plant remember?")
    for name, values in list(memory["autocorrelation"].items())[:_MOST_SIGNALS]:
        axes[0].plot(np.arange(len(values)), values, linewidth=1.0, label=name)
    axes[0].axhline(0.0, color=_GREY, linewidth=0.6)
    axes[0].legend(frameon=False, fontsize=6, ncols=2)
    axes[0].set_xlabel("steps later", fontsize=8)
    tidy(axes[0], "autocorrelation")
    frames = [int(number) for number in memory["history_errors"]]
    axes[1].plot(frames, list(memory["history_errors"].values()), color=_BLUE, marker="o")
    axes[1].axvline(memory["suggested_history"], color=_ORANGE, linewidth=1.2, label="suggested")
    axes[1].legend(frameon=False, fontsize=7)
    axes[1].set_xlabel("frames of history", fontsize=8)
    tidy(axes[1], "held-out error of a linear step (1: no change)")
    return figure


def _panels(count: int, title: str) -> tuple[Figure, list[Any]]:
    from matplotlib.figure import Figure  # noqa: PLC0415 (an optional dependency)

    columns = min(count, 3)
    rows = -(-count // columns)
    figure = Figure(figsize=(4 * columns + 1, 0.6 + 2.4 * rows), layout="constrained")
    figure.suptitle(title, fontsize=11)
    axes = list(figure.subplots(rows, columns, squeeze=False).ravel())
    for ax in axes[count:]:
        ax.set_axis_off()
    return figure, axes
