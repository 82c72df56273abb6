"""Pictures of training runs: the learning curve, the models, one trajectory, the model bias."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from moose.evaluation.bias import ModelBias
from moose.experiments.figures import picture_format, tidy, write_figure

# Told apart by people with any colour vision (Okabe and Ito).
PALETTE = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")
_GREY = "#4D4D4D"


def draw_learning_curve(
    evaluations: Sequence[Sequence[Mapping[str, Any]]],
    references: Mapping[str, float],
    path: Path,
    *,
    title: str = "",
) -> None:
    """Draw the true return over the course of training: mean ± one deviation over seeds.

    Args:
        evaluations: For each seed its evaluations, with ``step`` and ``returns``.
        references: Returns to draw as dashed lines, by name.
        path: The picture to write.
        title: What to write above it.
    """
    figure = new_figure(path, (7.0, 4.2))
    axes = figure.subplots()
    steps = [int(line["step"]) for line in evaluations[0]]
    values = np.array([[np.mean(line["returns"]) for line in seed] for seed in evaluations])
    mean, deviation = values.mean(axis=0), values.std(axis=0)
    axes.plot(steps, mean, color=PALETTE[0], linewidth=1.6, label="policy")
    if len(values) > 1:
        axes.fill_between(
            steps, mean - deviation, mean + deviation, color=PALETTE[0], alpha=0.2, linewidth=0
        )
    for colour, (name, value) in zip(PALETTE[1:], references.items(), strict=False):
        axes.axhline(
            value, color=colour, linestyle="--", linewidth=1.1, label=f"{name} {value:.1f}"
        )
    axes.set_xlabel("policy updates", fontsize=8)
    axes.set_ylabel("discounted return in the true plant", fontsize=8)
    axes.legend(frameon=False, fontsize=8)
    tidy(axes, title)
    write_figure(figure, path)


def draw_model_fit(diagnosis: Mapping[str, Any], path: Path) -> None:
    """Draw the held-out error of each predicted signal over free-running steps.

    Args:
        diagnosis: What :func:`moose.experiments.diagnosis.diagnose` gave.
        path: The picture to write.
    """
    errors = diagnosis["model_errors"]
    names = list(errors["error"])
    figure = new_figure(path, (3.6 * len(names) + 0.6, 3.2))
    for panel, name in zip(figure.subplots(1, len(names), squeeze=False)[0], names, strict=True):
        steps = np.arange(1, errors["steps"] + 1)
        panel.plot(steps, errors["error"][name], color=PALETTE[0], label="models")
        panel.plot(steps, errors["no_change"][name], color=_GREY, linestyle="--", label="no change")
        panel.set_ylim(bottom=0)
        panel.set_xlabel("steps run freely along logged actions", fontsize=8)
        panel.set_ylabel("error / deviation of the signal", fontsize=8)
        panel.legend(frameon=False, fontsize=8)
        tidy(panel, name)
    write_figure(figure, path)


def draw_trajectories(
    trajectories: Mapping[str, npt.NDArray[np.floating[Any]]], names: Sequence[str], path: Path
) -> None:
    """Draw one episode of several controllers, signal by signal.

    Args:
        trajectories: For each controller its frames [T + 1, n].
        names: The n signals.
        path: The picture to write.
    """
    rows = (len(names) + 1) // 2
    figure = new_figure(path, (10.0, 2.1 * rows))
    panels = figure.subplots(rows, 2, squeeze=False, sharex=True).ravel()
    for column, (panel, name) in enumerate(zip(panels, names, strict=False)):
        for colour, (label, frames) in zip(PALETTE, trajectories.items(), strict=False):
            panel.plot(frames[:, column], color=colour, linewidth=1.1, label=label)
        tidy(panel, name)
    for panel in panels[len(names) :]:
        panel.set_axis_off()
    for panel in panels[max(len(names) - 2, 0) : len(names)]:
        panel.set_xlabel("step", fontsize=8)
    panels[0].legend(frameon=False, fontsize=8)
    write_figure(figure, path)


def draw_bias(biases: Mapping[str, Mapping[str, ModelBias]], path: Path) -> None:
    """Draw the model bias over an imagined trajectory, with and without the penalty.

    Args:
        biases: For each data set, the biases by the name of their variant.
        path: The picture to write.
    """
    figure = new_figure(path, (4.6 * len(biases) + 0.4, 3.6))
    for panel, (data, variants) in zip(
        figure.subplots(1, len(biases), squeeze=False)[0], biases.items(), strict=True
    ):
        for colour, (name, bias) in zip(PALETTE, variants.items(), strict=False):
            label = (
                f"{name}: B = {bias.total:.0f}, imagined {bias.imagined_return:.0f}, "
                f"true {bias.true_return:.0f}"
            )
            panel.plot(np.arange(1, len(bias.by_step) + 1), bias.by_step, color=colour, label=label)
        panel.set_xlabel("step", fontsize=8)
        panel.set_ylabel("‖s − ŝ‖₂, standardised", fontsize=8)
        panel.legend(frameon=False, fontsize=7)
        tidy(panel, data)
    write_figure(figure, path)


def new_figure(path: Path, size: tuple[float, float]) -> Any:
    """An empty figure, once it is known that it can be written."""
    picture_format(path)
    from matplotlib.figure import Figure  # noqa: PLC0415 (an optional dependency)

    return Figure(figsize=size, layout="constrained")
