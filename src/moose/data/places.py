"""Where in a log something is: shared by all checks."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

Places = npt.NDArray[np.int64]
"""Positions of rows in a batch."""


class Place(NamedTuple):
    """A row of a file, and its number among all rows looked at."""

    file: str
    row: int
    position: int


NOWHERE = Place("", 0, 0)


class Stretch(NamedTuple):
    """Consecutive rows, numbered among all rows looked at."""

    start: int
    length: int
