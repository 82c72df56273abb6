"""The figures that others have published, to stand beside our own.

Tables 1 and 2 of Swazinna, Udluft, Runkler: *Overcoming Model Bias for Robust Offline Deep
Reinforcement Learning*: the 10th percentile of the evaluations in the final tenth of training,
pooled over ten seeds, and its standard error. In Table 2 the data set of random actions only
(ε = 1.0) stands under the behaviour ``mediocre``.
"""

from __future__ import annotations

import csv
import functools
import importlib.resources
import re
from pathlib import PurePath
from typing import NamedTuple

ALGORITHMS = ("ddpg", "brac", "bear", "bcq", "moose")
"""In the paper's order."""


class Published(NamedTuple):
    """A published figure."""

    percentile_10: float
    standard_error: float


class Place(NamedTuple):
    """Where a data set stands in a table: a block of rows, and a column."""

    block: str
    column: str


def published(place: Place, algorithm: str) -> Published | None:
    """The paper's figure, or None where it has none.

    Args:
        place: The data set's place, from :func:`place_of`.
        algorithm: The algorithm's name.

    Returns:
        The figure.
    """
    return _figures().get((place.block, place.column, algorithm))


def place_of(data: str) -> Place:
    """Where the paper's tables have a data set, by its name; other data get a column.

    Args:
        data: A data set's name or folder.

    Returns:
        For the Industrial Benchmark the behaviour and ε; else no block and the last part of the
        name.
    """
    match = re.fullmatch(r"ib/([a-z]+)-([0-9.]+)", data)
    if match is not None:
        return Place("mediocre" if match[1] == "global" else match[1], match[2])
    name = PurePath(data).name
    environments = {column.lower(): column for block, column, _ in _figures() if not block}
    plain = re.split(r"[-_]", name.lower())[0]
    return Place("", environments.get(plain, name) if data.startswith("mujoco/") else name)


@functools.cache
def _figures() -> dict[tuple[str, str, str], Published]:
    figures = {}
    for row in _rows("table1.csv"):
        figures["", row["environment"], row["algorithm"]] = _published(row)
    for row in _rows("table2.csv"):
        figures[row["baseline"], row["epsilon"], row["algorithm"]] = _published(row)
    return figures


def _rows(name: str) -> list[dict[str, str]]:
    file = importlib.resources.files("moose.experiments") / "published" / name
    return list(csv.DictReader(file.read_text(encoding="utf-8").splitlines()))


def _published(row: dict[str, str]) -> Published:
    return Published(float(row["p10"]), float(row["standard_error"]))
