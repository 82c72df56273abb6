"""A data set in numbers: plain values for programs, tables for people."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import numpy as np
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from moose.data.dataset import Dataset
from moose.data.episodes import REWARD
from moose.errors import DataError
from moose.evaluation.protocol import DISCOUNT, STEPS
from moose.tasks.registry import task_of

_RANGE = ("minimum", "maximum", "mean", "deviation")


def protocol_of(dataset: Dataset) -> tuple[float, int]:
    """With which discount, and over how many steps, the returns of a data set are counted.

    Args:
        dataset: The data.

    Returns:
        The discount and horizon of its task; those of the Industrial Benchmark if it belongs to no
        known task.
    """
    try:
        task = task_of(dataset.provenance)
    except DataError:
        return DISCOUNT, STEPS
    return task.discount, task.horizon


def summarise(
    dataset: Dataset, *, discount: float | None = None, steps: int | None = None
) -> dict[str, Any]:
    """What a person should know about a data set before using it.

    Args:
        dataset: The data.
        discount: Discount of the returns; by default its task's.
        steps: How many of an episode's first steps count into its return; by default its task's
            horizon.

    Returns:
        :meth:`~moose.data.dataset.Dataset.summary` with the returns of the batch, the fingerprint,
        the size in memory and the provenance; plain JSON values.
    """
    usual = protocol_of(dataset)
    discount = usual[0] if discount is None else discount
    steps = usual[1] if steps is None else steps
    returns = dataset.discounted_returns(discount, steps)
    return {
        **dataset.summary(),
        "returns": {
            "discount": discount,
            "steps": steps,
            "mean": float(returns.mean()),
            "deviation": float(returns.std()),
            "minimum": float(returns.min()),
            "tenth_percentile": float(np.percentile(returns, 10.0)),
            "maximum": float(returns.max()),
            "cut_episodes": dataset.num_cut(steps),
        },
        "bytes": dataset.nbytes,
        "fingerprint": dataset.fingerprint,
        "provenance": dataset.provenance,
    }


def render(summary: Mapping[str, Any]) -> RenderableType:
    """The tables that show a summary.

    Args:
        summary: What :func:`summarise` gave.

    Returns:
        Something to print on a rich console.
    """
    return Group(_facts(summary), Text(), _columns(summary))


def return_lines(returns: Mapping[str, Any]) -> tuple[str, str]:
    """What the batch earned, and how that was counted: a line each."""
    count = returns["cut_episodes"]
    cut = "" if not count else f"; {count:,} of them cut before"
    return (
        f"{returns['mean']:.2f} ± {returns['deviation']:.2f} over episodes, 10th percentile "
        f"{returns['tenth_percentile']:.2f}",
        f"(first {returns['steps']} steps of each episode{cut}, discount {returns['discount']:g})",
    )


def _facts(summary: Mapping[str, Any]) -> Table:
    lengths, returns = summary["episode_lengths"], summary["returns"]
    shortest, longest = int(lengths["minimum"]), int(lengths["maximum"])
    table = Table.grid(padding=(0, 2))
    table.add_row("transitions", f"{summary['transitions']:,} ({_size(summary['bytes'])})")
    table.add_row("episodes", f"{summary['episodes']:,} {_endings(summary)}")
    table.add_row(
        "lengths",
        f"{shortest:,} each"
        if shortest == longest
        else f"{shortest:,} to {longest:,} steps, mean {lengths['mean']:,.1f}",
    )
    for label, line in zip(("batch return", ""), return_lines(returns), strict=True):
        table.add_row(label, line)
    for name, value in summary["provenance"].items():
        table.add_row(Text(name.replace("_", " ")), Text(_plain(value)))
    table.add_row("fingerprint", summary["fingerprint"])
    return table


def _columns(summary: Mapping[str, Any]) -> Table:
    table = Table(box=None, header_style="bold")
    table.add_column("column")
    table.add_column("kind")
    for name in _RANGE:
        table.add_column(name, justify="right")
    kinds = {
        "observation": summary["observations"],
        "action": summary["actions"],
        REWARD: {REWARD: summary[REWARD]},
    }
    for kind, columns in kinds.items():
        for name, numbers in columns.items():
            table.add_row(Text(name), kind, *(f"{numbers[part]:,.4g}" for part in _RANGE))
    return table


def _endings(summary: Mapping[str, Any]) -> str:
    neither = summary["episodes"] - summary["terminated"] - summary["truncated"]
    parts = {
        "terminated": summary["terminated"],
        "truncated": summary["truncated"],
        "open-ended": max(neither, 0),
        "without a final observation": summary["without_final_observation"],
    }
    return "(" + ", ".join(f"{count:,} {name}" for name, count in parts.items() if count) + ")"


def _plain(value: Any) -> str:
    if isinstance(value, Mapping):
        return ", ".join(f"{name} {_plain(part)}" for name, part in value.items())
    return value if isinstance(value, str) else json.dumps(value)


def _size(count: float) -> str:
    for unit in ("bytes", "kB", "MB"):
        if count < 1000:
            return f"{count:.3g} {unit}"
        count /= 1000
    return f"{count:.3g} GB"
