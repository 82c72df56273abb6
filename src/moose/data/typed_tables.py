"""Tables whose columns have types: Parquet, NPZ and Arrow-compatible frames."""

from __future__ import annotations

import contextlib
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from moose.data.batches import (
    NO_TIME,
    Batch,
    Report,
    Wanted,
    as_nanoseconds,
    as_numbers,
    report_bad_times,
    time_of,
)
from moose.data.findings import make_finding
from moose.data.schema import Numbers
from moose.errors import DataError, UserError
from moose.storage import named_os_errors

_ROWS_AT_A_TIME = 1 << 16
_ABSURD_BYTES = 1 << 30
_ABSURD_RATIO = 200


class ParquetTable:
    """A Parquet file, read in row groups."""

    def __init__(self, path: Path) -> None:
        self.label = str(path)
        self._path = path
        with self._named_errors(), pq.ParquetFile(path, pre_buffer=False) as file:
            self.header = tuple(file.schema_arrow.names)

    def batches(self, wanted: Wanted, report: Report) -> Iterator[Batch]:
        """See :class:`~moose.data.batches.Table`."""
        first = 1
        with self._named_errors(), pq.ParquetFile(self._path, pre_buffer=False) as file:
            pieces = file.iter_batches(_ROWS_AT_A_TIME, columns=list(wanted.headers))
            for piece in pieces:
                yield _batch_of(piece, self.label, first, wanted, report)
                first += piece.num_rows

    @contextlib.contextmanager
    def _named_errors(self) -> Iterator[None]:
        try:
            yield
        except UserError:
            raise
        except (pa.ArrowException, OSError, ValueError, MemoryError) as error:
            raise DataError(
                f"The table cannot be read ({str(error)[:200]}).",
                where=self.label,
                advice="check that it is a complete Parquet file, or export it again",
            ) from error


class ArrayTable:
    """An NPZ archive of columns: one array of one dimension for each."""

    def __init__(self, path: Path) -> None:
        self.label = str(path)
        self._arrays = {name: array for name, array in read_arrays(path).items() if array.ndim == 1}
        self.header = tuple(self._arrays)

    def batches(self, wanted: Wanted, report: Report) -> Iterator[Batch]:
        """See :class:`~moose.data.batches.Table`."""
        lengths = {len(self._arrays[name]) for name in wanted.headers}
        if len(lengths) > 1:
            raise DataError(
                f"The columns have different lengths: {sorted(lengths)}.",
                where=self.label,
                advice="all columns need as many numbers",
            )
        with _arrow_errors(self.label):
            columns = [pa.array(self._arrays[name]) for name in wanted.headers]
            table = pa.table(columns, names=list(wanted.headers))
        yield from FrameTable(table, self.label).batches(wanted, report)


class FrameTable:
    """A polars or pandas frame, an Arrow table, or anything else that Arrow understands."""

    def __init__(self, frame: Any, label: str = "frame") -> None:
        self.label = label
        with _arrow_errors(label):
            if hasattr(frame, "__arrow_c_stream__"):
                self._table = pa.RecordBatchReader.from_stream(frame).read_all()
            elif hasattr(frame, "__dataframe__"):
                from pyarrow.interchange import from_dataframe  # noqa: PLC0415 (rarely needed)

                self._table = from_dataframe(frame)
            elif isinstance(frame, dict):
                self._table = pa.table(frame)
            else:
                raise DataError(
                    f"A {type(frame).__name__} is not a table.",
                    where=label,
                    advice="give a path, a polars or pandas frame, or an Arrow table",
                )
        self.header = tuple(map(str, self._table.column_names))

    def batches(self, wanted: Wanted, report: Report) -> Iterator[Batch]:
        """See :class:`~moose.data.batches.Table`."""
        first = 1
        for piece in self._table.select(list(wanted.headers)).to_batches(_ROWS_AT_A_TIME):
            yield _batch_of(piece, self.label, first, wanted, report)
            first += piece.num_rows


def read_arrays(path: Path) -> dict[str, npt.NDArray[Any]]:
    """The arrays of an NPZ archive; pickled objects and absurd sizes are refused.

    Args:
        path: The archive.

    Returns:
        The arrays by name.
    """
    try:
        with named_os_errors(path), zipfile.ZipFile(path) as archive:
            for entry in archive.infolist():
                size = entry.file_size
                if size > _ABSURD_BYTES and size > _ABSURD_RATIO * max(entry.compress_size, 1):
                    raise _refused(path, entry.filename, f"claims to hold {size} bytes")
                with archive.open(entry) as stream:
                    _check_array_header(path, entry, stream)
        with np.load(path, allow_pickle=False) as arrays:
            return {name: arrays[name] for name in arrays.files}
    except UserError:
        raise
    except (zipfile.BadZipFile, ValueError, OSError, EOFError, KeyError) as error:
        raise _not_arrays(path, error) from error
    except (MemoryError, RuntimeError, NotImplementedError, zipfile.zlib.error) as error:  # type: ignore[attr-defined]
        raise _not_arrays(path, error) from error


def _check_array_header(path: Path, entry: zipfile.ZipInfo, stream: Any) -> None:
    """Refuse an array whose header does not fit the archive's entry, before it is read."""
    version = np.lib.format.read_magic(stream)
    read = {
        (1, 0): np.lib.format.read_array_header_1_0,
        (2, 0): np.lib.format.read_array_header_2_0,
    }.get(version)
    if read is None:
        raise _refused(path, entry.filename, f"has the unknown version {version}")
    shape, _, kind = read(stream)
    if kind.hasobject:
        raise _refused(path, entry.filename, "holds pickled objects, which are never loaded")
    if any(size < 0 for size in shape):
        raise _refused(path, entry.filename, f"claims the shape {shape}")
    count = 1
    for size in shape:
        count *= size
    if count * kind.itemsize > entry.file_size:
        raise _refused(path, entry.filename, f"claims the shape {shape}, but is smaller")


def _refused(path: Path, name: str, why: str) -> DataError:
    return DataError(
        f"The array '{name}' {why}.",
        where=str(path),
        advice="do not trust this file; save plain arrays of numbers anew",
    )


def _not_arrays(path: Path, error: Exception) -> DataError:
    return DataError(
        f"This is not a sound archive of arrays ({str(error)[:200]}).",
        where=str(path),
        advice="save it anew with numpy.savez",
    )


@contextlib.contextmanager
def _arrow_errors(label: str) -> Iterator[None]:
    try:
        yield
    except UserError:
        raise
    except (pa.ArrowException, TypeError, ValueError, NotImplementedError, RuntimeError) as error:
        raise DataError(
            f"This cannot be understood as a table ({str(error)[:200]}).",
            where=label,
            advice="give columns of numbers, times and texts",
        ) from error


def _batch_of(
    piece: pa.RecordBatch, label: str, first: int, wanted: Wanted, report: Report
) -> Batch:
    """A batch from columns that have types of their own."""
    rows = np.arange(first, first + piece.num_rows, dtype=np.int64)
    texts: dict[int, npt.NDArray[np.bool_]] = {}

    def column(name: str) -> pa.Array:
        return piece.column(piece.schema.get_field_index(name))

    def number(position: int, name: str) -> Numbers:
        values = column(name)
        kind = values.type
        if pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_boolean(kind):
            return as_numbers(values)
        if pa.types.is_decimal(kind):
            return as_numbers(pc.cast(values, pa.float64(), safe=False))
        if pa.types.is_null(kind):
            return np.full(len(values), np.nan)
        texts[position] = np.asarray(values.is_valid())
        at = int(np.argmax(texts[position]))
        report(
            make_finding(
                "text",
                label,
                f"The column's type is {kind}, which is no number.",
                row=first + at,
                column=name,
                value=str(values[at].as_py())[:40],
                count=len(values) - values.null_count,
            )
        )
        return np.full(len(values), np.nan)

    times = episodes = None
    if wanted.time is not None:
        times = _typed_times(column(wanted.time), wanted.time, label, rows, report)
    if wanted.episode is not None:
        with _arrow_errors(label):
            episodes = pc.cast(column(wanted.episode), pa.string()).dictionary_encode()
    numbers = tuple(number(position, name) for position, name in enumerate(wanted.numbers))
    return Batch(label, rows, numbers, times, episodes, texts)


def _typed_times(
    values: pa.Array, name: str, label: str, rows: npt.NDArray[np.int64], report: Report
) -> npt.NDArray[np.int64]:
    kind = values.type
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        texts = values.to_pylist()
        found = [time_of(text, pa.timestamp("ns"), [], ".") for text in texts]
        times = np.array([NO_TIME if time is None else time for time in found], np.int64)
    elif pa.types.is_timestamp(kind) or pa.types.is_date(kind):
        with _arrow_errors(label):
            times = as_nanoseconds(pc.cast(values, pa.timestamp("ns"), safe=False))
    elif pa.types.is_integer(kind) or pa.types.is_floating(kind):
        times = as_nanoseconds(pc.cast(values, pa.float64(), safe=False))
    else:
        raise DataError(
            f"The time column's type is {kind}, which is no time.",
            where=f"{label}, column {name!r}",
            advice="use timestamps, or seconds as numbers",
        )
    report_bad_times(times, values, name, label, rows, report)
    return times
