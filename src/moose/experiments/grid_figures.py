"""Pictures of a grid: the true return over the course of training, as in the paper's figures."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from moose.experiments.figures import picture_format, tidy, write_figure
from moose.experiments.paper_figures import place_of
from moose.experiments.run_figures import PALETTE, new_figure
from moose.experiments.store import Store

_MOST_COLUMNS = 3


def make_curves(store: Store) -> dict[str, Any]:
    """The learning curves of a grid.

    Args:
        store: The grid's store.

    Returns:
        Plain values by data set: ``batch``, the mean return of the log, and ``curves`` by label
        with ``steps``, ``mean`` and ``deviation`` over the ``seeds`` that are finished.
    """
    values: dict[str, dict[str, dict[int, dict[int, float]]]] = {}
    for label, data, seed, step, mean in store.curves():
        values.setdefault(data, {}).setdefault(label, {}).setdefault(step, {})[seed] = mean
    datasets = store.datasets()
    return {
        data: {
            "batch": datasets[data]["batch"]["mean"],
            "curves": {label: _curve(by_step) for label, by_step in labels.items()},
        }
        for data, labels in values.items()
    }


def draw_curves(curves: Mapping[str, Any], path: Path, *, title: str = "") -> None:
    """Draw mean ± one deviation over seeds for each data set, and a dashed line for the batch.

    Training time is drawn as a share of the updates, since algorithms differ in their number.

    Args:
        curves: What :func:`make_curves` gave, or some of it.
        path: The picture to write: ``.png``, ``.svg`` or ``.pdf``.
        title: What to write above it.
    """
    columns = min(_MOST_COLUMNS, len(curves))
    rows = math.ceil(len(curves) / columns)
    figure = new_figure(path, (4.4 * columns + 0.4, 3.2 * rows + 0.6))
    figure.suptitle(title, fontsize=11)
    labels = list(dict.fromkeys(label for data in curves.values() for label in data["curves"]))
    colours = {label: PALETTE[i % len(PALETTE)] for i, label in enumerate(labels)}
    panels = figure.subplots(rows, columns, squeeze=False).ravel()
    for panel, (data, content) in zip(panels, curves.items(), strict=False):
        for label, curve in content["curves"].items():
            share = np.asarray(curve["steps"]) / max(curve["steps"])
            mean, deviation = np.asarray(curve["mean"]), np.asarray(curve["deviation"])
            name = f"{label} ({curve['seeds']} seeds)" if curve["seeds"] > 1 else label
            panel.plot(share, mean, color=colours[label], linewidth=1.4, label=name)
            panel.fill_between(
                share,
                mean - deviation,
                mean + deviation,
                color=colours[label],
                alpha=0.2,
                linewidth=0,
            )
        panel.axhline(content["batch"], color="black", linestyle="--", linewidth=1, label="batch")
        panel.set_xlabel("share of the updates", fontsize=8)
        panel.legend(frameon=False, fontsize=7)
        tidy(panel, data)
    for panel in panels[len(curves) :]:
        panel.set_axis_off()
    write_figure(figure, path)


def write_figures(store: Store, folder: Path, suffix: str) -> list[Path]:
    """Draw one picture for each block of the grid's table.

    Args:
        store: The grid's store.
        folder: Where the pictures go.
        suffix: Their format: ``png``, ``svg`` or ``pdf``.

    Returns:
        The pictures; none if no run is finished.
    """
    picture_format(folder / f"curves.{suffix}")
    blocks: dict[str, dict[str, Any]] = {}
    for data, content in make_curves(store).items():
        blocks.setdefault(place_of(data).block, {})[data] = content
    name = str(store.facts().get("name", "grid"))
    written = []
    for block, curves in blocks.items():
        stem = re.sub(r"[^A-Za-z0-9._-]+", "-", "-".join(filter(None, [name, block])))
        path = folder / f"{stem}.{suffix}"
        draw_curves(curves, path, title=" · ".join(filter(None, [name, block])))
        written.append(path)
    return written


def _curve(by_step: Mapping[int, Mapping[int, float]]) -> dict[str, Any]:
    """Mean and deviation over seeds, at the steps that all of them have."""
    seeds = max(len(by_seed) for by_seed in by_step.values())
    steps = sorted(step for step, by_seed in by_step.items() if len(by_seed) == seeds)
    table = np.array([list(by_step[step].values()) for step in steps])
    return {
        "seeds": seeds,
        "steps": steps,
        "mean": table.mean(axis=1).tolist(),
        "deviation": table.std(axis=1).tolist(),
    }
