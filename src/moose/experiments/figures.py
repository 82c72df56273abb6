"""Pictures of data sets. Matplotlib is imported only when a picture is drawn."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from moose.data.dataset import Dataset
from moose.errors import ConfigError, MissingExtraError
from moose.evaluation.protocol import DISCOUNT, STEPS
from moose.storage import atomic_file
from moose.wording import counted

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure, SubFigure

FORMATS = ("png", "svg", "pdf")

# Told apart by people with any colour vision (Okabe and Ito).
_COLOURS = {"worst": "#D55E00", "median": "#0072B2", "best": "#009E73"}
_GREY = "#4D4D4D"
_MOST_SIGNALS = 24
_MOST_ACTIONS = 8
_MOST_POINTS = 2000


def picture_format(path: Path) -> str:
    """The format that a picture's name asks for, or an error before any work is done.

    Args:
        path: Where the picture shall go.

    Returns:
        One of :data:`FORMATS`.

    Raises:
        ConfigError: The name has another ending.
        MissingExtraError: Matplotlib is not installed.
    """
    suffix = path.suffix.lower().removeprefix(".")
    if suffix not in FORMATS:
        raise ConfigError(
            f"A picture cannot be written as '{path.name}'.",
            where=str(path),
            advice="let the name end in " + " or ".join(f".{name}" for name in FORMATS),
        )
    if importlib.util.find_spec("matplotlib") is None:
        raise MissingExtraError("matplotlib", "plot", "Drawing a picture")
    return suffix


def draw_dataset(
    dataset: Dataset, path: Path, *, discount: float = DISCOUNT, steps: int = STEPS
) -> None:
    """Draw three episodes (worst, median and best), the actions and the returns of the batch.

    Args:
        dataset: What to draw.
        path: The picture to write or replace: ``.png``, ``.svg`` or ``.pdf``.
        discount: Discount of the returns.
        steps: How many of an episode's first steps count into its return.
    """
    picture_format(path)
    figure = _dataset_figure(dataset, dataset.discounted_returns(discount, steps), discount, steps)
    write_figure(figure, path)


def write_figure(figure: Figure, path: Path) -> None:
    """Write a figure in the format its name asks for, whole or not at all."""
    suffix = picture_format(path)
    # Without the time of day, the same data give the same picture.
    metadata: dict[str, Any] = {"svg": {"Date": None}, "pdf": {"CreationDate": None}}.get(
        suffix, {}
    )
    with atomic_file(path) as temporary:
        figure.savefig(temporary, format=suffix, dpi=150, metadata=metadata)


def _dataset_figure(
    dataset: Dataset, returns: npt.NDArray[np.float64], discount: float, steps: int
) -> Figure:
    from matplotlib.figure import Figure  # noqa: PLC0415 (an optional dependency)

    signals = dataset.observation_names[:_MOST_SIGNALS]
    actions = dataset.action_names[:_MOST_ACTIONS]
    rows = max((len(signals) + 2) // 2, len(actions) + 1)
    figure = Figure(figsize=(12, 1.6 + 1.45 * rows), layout="constrained")
    figure.suptitle(_title(dataset), fontsize=11)
    left, right = figure.subfigures(1, 2, width_ratios=[2.4, 1], squeeze=False)[0]
    _draw_episodes(left, dataset, signals, _three_episodes(returns))
    _draw_distributions(
        right, dataset, actions, returns, f"return ({steps} steps, γ = {discount:g})"
    )
    return figure


def _draw_episodes(
    area: SubFigure, dataset: Dataset, signals: tuple[str, ...], episodes: dict[str, int]
) -> None:
    panels = len(signals) + 1
    axes = area.subplots((panels + 1) // 2, 2, sharex=True, squeeze=False).ravel()
    for index, (ax, name) in enumerate(zip(axes, (*signals, "reward"), strict=False)):
        for label, episode in episodes.items():
            first = int(dataset.offsets[episode])
            length = int(dataset.lengths[episode])
            if name == "reward" and index == len(signals):
                values = dataset.rewards[first : first + length]
                times = np.arange(1, length + 1)
            else:
                count = length + int(dataset.final_observed[episode])
                values = dataset.observations[first + episode : first + episode + count, index]
                times = np.arange(count)
            stride = -(-len(values) // _MOST_POINTS)
            ax.plot(
                times[::stride],
                values[::stride],
                color=_COLOURS[label],
                linewidth=0.8,
                alpha=0.85,
                label=label,
            )
        tidy(ax, name)
    for ax in axes[panels:]:
        ax.set_axis_off()
    for ax in axes[max(panels - 2, 0) : panels]:
        ax.set_xlabel("step", fontsize=8)
        ax.tick_params(labelbottom=True)
    area.legend(
        *axes[0].get_legend_handles_labels(),
        loc="outside upper center",
        ncols=len(episodes),
        frameon=False,
        fontsize=8,
        title="episodes by return",
        title_fontsize=8,
    )


def _draw_distributions(
    area: SubFigure,
    dataset: Dataset,
    actions: tuple[str, ...],
    returns: npt.NDArray[np.float64],
    label: str,
) -> None:
    axes = area.subplots(len(actions) + 1, 1, squeeze=False).ravel()
    for index, (ax, name) in enumerate(zip(axes, actions, strict=False)):
        ax.hist(dataset.actions[:, index], bins=40, color=_GREY, alpha=0.8)
        ax.set_yticks([])
        tidy(ax, f"action {name}")
    last = axes[-1]
    last.hist(returns, bins=min(40, max(5, len(returns) // 4)), color=_COLOURS["median"], alpha=0.8)
    last.axvline(returns.mean(), color="black", linewidth=1.2, label="mean")
    tenth = float(np.percentile(returns, 10.0))
    last.axvline(tenth, color="black", linewidth=1.2, linestyle=":", label="10th percentile")
    last.legend(frameon=False, fontsize=7)
    last.set_yticks([])
    tidy(last, label)


def _three_episodes(returns: npt.NDArray[np.float64]) -> dict[str, int]:
    order = np.argsort(returns, kind="stable")
    places = {"worst": order[0], "median": order[len(order) // 2], "best": order[-1]}
    chosen: dict[str, int] = {}
    for label, episode in places.items():
        if int(episode) not in chosen.values():
            chosen[label] = int(episode)
    return chosen


def tidy(ax: Axes, title: str) -> None:
    """Give a panel its title and the look that all pictures share."""
    ax.set_title(title, fontsize=9, loc="left", pad=3)
    ax.tick_params(labelsize=7)
    ax.spines[["top", "right"]].set_visible(False)
    ax.grid(visible=True, axis="both", linewidth=0.3, alpha=0.5)


def _title(dataset: Dataset) -> str:
    recipe = dataset.provenance.get("recipe")
    name = dataset.provenance.get("plant", "data set")
    if isinstance(recipe, dict) and {"behaviour", "epsilon"} <= recipe.keys():
        name = f"{name}: {recipe['behaviour']}, ε = {recipe['epsilon']}"
    parts = [
        str(name),
        counted(dataset.num_episodes, "episode"),
        counted(dataset.num_transitions, "transition"),
    ]
    if len(dataset.observation_names) > _MOST_SIGNALS:
        parts.append(f"the first {_MOST_SIGNALS} of {len(dataset.observation_names)} signals")
    return " · ".join(parts)
