"""What a table gives: batches of rows, and the columns in them as numbers and times.

Rows are counted as a spreadsheet does; what is no number is NaN, and what is no time
:data:`NO_TIME`.
"""

from __future__ import annotations

import datetime
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from moose.data.findings import Finding, make_finding
from moose.data.schema import Numbers

Report = Callable[[Finding], None]
NO_TIME = np.iinfo(np.int64).min
"""The time of a row that has none."""

_SECOND = 1_000_000_000


@dataclass(frozen=True)
class Wanted:
    """Which columns to read: headers of numbers, of the time and of the episode."""

    numbers: tuple[str, ...]
    time: str | None = None
    episode: str | None = None

    @property
    def headers(self) -> tuple[str, ...]:
        """All of them."""
        return (*self.numbers, *(name for name in (self.time, self.episode) if name is not None))


@dataclass(frozen=True)
class Batch:
    """Some consecutive rows of a file.

    Attributes:
        file: The file's label.
        rows: ``[B]`` row numbers as a spreadsheet shows them.
        numbers: For each wanted column ``[B]`` float64; NaN is missing.
        times: ``[B]`` nanoseconds, :data:`NO_TIME` where unreadable; None without a time column.
        episodes: ``[B]`` texts as a dictionary array; None without an episode column.
        texts: For columns with text among their numbers, which rows have it; reported already.
    """

    file: str
    rows: npt.NDArray[np.int64]
    numbers: tuple[Numbers, ...]
    times: npt.NDArray[np.int64] | None = None
    episodes: pa.DictionaryArray | None = None
    texts: Mapping[int, npt.NDArray[np.bool_]] = field(default_factory=dict)


class Table(Protocol):
    """A table that can be read."""

    label: str
    header: tuple[str, ...]

    def batches(self, wanted: Wanted, report: Report) -> Iterator[Batch]:
        """Read the wanted columns, which the header must have, from the first row to the last."""


def as_numbers(values: pa.Array) -> Numbers:
    """A column as float64, NaN where there is nothing; shares memory if it can."""
    if not pa.types.is_float64(values.type):
        values = pc.cast(values, pa.float64(), safe=False)
    array: Numbers = values.to_numpy(zero_copy_only=False)
    return array


def as_nanoseconds(values: pa.Array) -> npt.NDArray[np.int64]:
    """Timestamps, or seconds as numbers, in nanoseconds; NO_TIME where there is none."""
    if pa.types.is_floating(values.type):
        seconds = as_numbers(values)
        is_sound = np.abs(seconds) < 9e9  # False for NaN
        whole = np.floor(np.where(is_sound, seconds, 0.0))
        # In two parts, since a float64 of today's seconds has no room for nanoseconds.
        parts = np.rint((np.where(is_sound, seconds, 0.0) - whole) * 1e6).astype(np.int64) * 1000
        return np.where(is_sound, whole.astype(np.int64) * _SECOND + parts, NO_TIME)
    times = values.view(pa.int64()) if not values.null_count else None
    if times is not None:
        array: npt.NDArray[np.int64] = times.to_numpy(zero_copy_only=False)
        return array
    filled = pc.fill_null(pc.cast(values, pa.int64()), NO_TIME)
    return np.asarray(filled.to_numpy(zero_copy_only=False), np.int64)


def time_of(
    text: str | None, kind: pa.DataType, parsers: Sequence[str], decimal: str
) -> int | None:
    """Nanoseconds of a time as text, or None."""
    if not text:
        return None
    text = text.strip()
    try:
        if pa.types.is_floating(kind):
            seconds = float(text.replace(decimal, "."))
            return round(seconds * _SECOND) if abs(seconds) < 9e9 else None
        time = parsed_time(text, parsers[0]) if parsers else datetime.datetime.fromisoformat(text)
        if time is None:
            return None
        if time.tzinfo is None:
            time = time.replace(tzinfo=datetime.UTC)
        since = time - datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
        nanoseconds = (since.days * 86_400 + since.seconds) * _SECOND + since.microseconds * 1000
        return nanoseconds if abs(nanoseconds) < 9e18 else None
    except (ValueError, OverflowError):
        return None


def parsed_time(text: str, form: str) -> datetime.datetime | None:
    """The time that a text says in this form, or None."""
    try:
        return datetime.datetime.strptime(text, form)
    except ValueError:
        return None


def report_bad_times(
    times: npt.NDArray[np.int64],
    values: pa.Array,
    name: str,
    label: str,
    rows: npt.NDArray[np.int64],
    report: Report,
) -> None:
    """Report the first row whose time is missing or none, and how many there are."""
    if len(times) == 0 or times.min() != NO_TIME:
        return
    is_bad = times == NO_TIME
    at = int(np.argmax(is_bad))
    value = values[at].as_py()
    report(
        make_finding(
            "bad-time",
            label,
            "The time is missing." if value is None else "This is no time.",
            row=int(rows[at]),
            column=name,
            value=None if value is None else str(value)[:40],
            count=int(is_bad.sum()),
        )
    )
