"""Tables in, batches out: CSV, Parquet, NPZ and Arrow-compatible frames, streamed.

A source is opened once for its header and read once for its rows, a few megabytes at a time. Rows
are counted as a spreadsheet does. What cannot be read as a number is reported with its row and
becomes a missing value (NaN); the file is then read by a slower way that knows rows, from the block
on in which the fast way met it.
"""

from __future__ import annotations

import contextlib
import csv
import datetime
import gzip
import io
import re
import zipfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pacsv
import pyarrow.parquet as pq

from moose.data.findings import Finding, make_finding
from moose.data.schema import Numbers, TextSettings
from moose.errors import DataError, UserError
from moose.storage import named_os_errors

Report = Callable[[Finding], None]
NO_TIME = np.iinfo(np.int64).min
"""The time of a row that has none."""

_BLOCK_BYTES = 4 << 20
_ROWS_AT_A_TIME = 1 << 16
_SNIFFED_BYTES = 1 << 18
_SNIFFED_LINES = 100
_DELIMITERS = ";\t,|"
_SECOND = 1_000_000_000
_TIME_FORMATS = (
    "%d.%m.%Y %H:%M:%S",
    "%d.%m.%Y %H:%M",
    "%d.%m.%y %H:%M:%S",
    "%Y/%m/%d %H:%M:%S",
    "%d/%m/%Y %H:%M:%S",
    "%m/%d/%Y %H:%M:%S",
    "%d-%b-%Y %H:%M:%S",
    "%d-%b-%y %H:%M:%S",
    "%Y-%m-%d %H.%M.%S",
)
_ABSURD_BYTES = 1 << 30
_ABSURD_RATIO = 200
_ENDINGS = (".csv", ".csv.gz", ".txt", ".txt.gz", ".tsv", ".tsv.gz", ".parquet", ".npz")


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


def find_files(paths: Sequence[str | Path]) -> list[Path]:
    """The files that are meant: files as given, and of folders all tables in them, by name."""
    found: list[Path] = []
    for path in map(Path, paths):
        if path.is_dir():
            inside = [file for file in sorted(path.iterdir()) if file.name.endswith(_ENDINGS)]
            if not inside:
                raise DataError(
                    "There is no table in this folder.",
                    where=str(path),
                    advice=f"give a folder with files that end in {', '.join(_ENDINGS)}",
                )
            found += inside
        elif path.is_file():
            found.append(path)
        else:
            raise DataError(
                "There is no such file or folder.", where=str(path), advice="check the path"
            )
    if not found:
        raise DataError(
            "There is no file to read.", where="files", advice="name at least one file or folder"
        )
    return found


def open_table(source: Any, text: TextSettings, report: Report) -> Table:
    """Open a table: a file by its name's ending, or an Arrow-compatible frame.

    Args:
        source: A path (``.parquet``, ``.npz``, anything else is text), a polars or pandas frame,
            an Arrow table or anything with ``__arrow_c_stream__``.
        text: How text files are written.
        report: Told what was detected.

    Returns:
        The table; nothing but its header has been read.
    """
    if not isinstance(source, str | Path):
        return _FrameTable(source)
    path = Path(source)
    with named_os_errors(path), open(path, "rb") as stream:
        start = stream.read(8)
    if path.name.endswith(".parquet") or start.startswith(b"PAR1"):
        return _ParquetTable(path)
    if path.name.endswith(".npz"):
        return _ArrayTable(path)
    if start.startswith((b"\x89HDF", b"PK\x03\x04", b"\xd0\xcf\x11\xe0")):
        kind = {0x89: "an HDF5 file", 0x50: "an archive or workbook", 0xD0: "an old workbook"}
        raise DataError(
            f"This is {kind[start[0]]}, not a table of text.",
            where=str(path),
            advice="export it as CSV or Parquet; 'moose data import' reads data sets in HDF5",
        )
    return TextTable(path, text, report)


# --- text --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Dialect:
    encoding: str
    delimiter: str
    decimal: str
    skip: int
    time_format: str | None


@dataclass(frozen=True)
class _Way:
    """How a text file is read: fast, or knowing the rows of what is wrong."""

    text_columns: frozenset[int] = field(default_factory=frozenset)
    is_counting: bool = False


class TextTable:
    """A CSV file, plain or compressed with gzip."""

    def __init__(self, path: Path, settings: TextSettings, report: Report) -> None:
        self.label = str(path)
        self._path, self._settings = path, settings
        self._last_told = 0  # the last ragged row that was reported
        start = self._read_start()
        encoding = self._detect_encoding(start, report)
        lines = start.decode(encoding, "replace").splitlines()[settings.skip :]
        if len(start) >= _SNIFFED_BYTES:
            lines = lines[:-1]  # which is cut off
        self._lines = lines[: _SNIFFED_LINES + 1]
        if not self._lines or not self._lines[0].strip():
            raise DataError(
                "There is no header here.",
                where=f"{path}, row {settings.skip + 1}",
                advice="the first row has to name the columns; see csv.skip in the task file",
            )
        delimiter = settings.delimiter or _detect_delimiter(self._lines)
        decimal = settings.decimal or _detect_decimal(self._lines, delimiter)
        self.dialect = _Dialect(encoding, delimiter, decimal, settings.skip, settings.time_format)
        if settings.delimiter is None or settings.decimal is None:
            report(
                make_finding(
                    "format",
                    self.label,
                    f"Columns are separated by {_spelled(delimiter)}, decimals by '{decimal}'.",
                    row=settings.skip + 1,
                )
            )
        self.header = tuple(
            name.strip() for name in _cells(self._lines[0].removeprefix("\ufeff"), delimiter)
        )

    def sample(self) -> list[list[str]]:
        """The first rows below the header, as texts."""
        return [_cells(line, self.dialect.delimiter) for line in self._lines[1:] if line.strip()]

    def batches(self, wanted: Wanted, report: Report) -> Iterator[Batch]:
        """Read the wanted columns."""
        way, done = _Way(), 0
        while True:
            try:
                for batch in self._read(wanted, report, way, done):
                    yield batch
                    done += len(batch.rows)
                return
            except pa.ArrowInvalid as error:
                way = self._slower(way, str(error))
            except (pa.ArrowException, OSError, UnicodeError, EOFError) as error:
                raise self._unreadable(error) from error

    def _read(self, wanted: Wanted, report: Report, way: _Way, done: int) -> Iterator[Batch]:
        skipped: list[int] = []

        def on_ragged(row: pacsv.InvalidRow) -> str:
            if not way.is_counting:
                return "error"
            number = row.number
            skipped.append(number)
            if number > self._last_told:
                self._last_told = number
                report(_ragged(self.label, row, number))
            return "skip"

        index = {name: position for position, name in enumerate(self.header)}
        kinds = {
            f"c{index[name]}": pa.string() if index[name] in way.text_columns else pa.float64()
            for name in wanted.numbers
        }
        parsers: list[str] = []
        if wanted.episode is not None:
            kinds[f"c{index[wanted.episode]}"] = pa.dictionary(pa.int32(), pa.string())
        if wanted.time is not None:
            position = index[wanted.time]
            kind, parsers = self._time_kind(position)
            kinds[f"c{position}"] = pa.string() if position in way.text_columns else kind
        with self._open() as stream:
            reader = pacsv.open_csv(
                stream,
                pacsv.ReadOptions(
                    column_names=[f"c{i}" for i in range(len(self.header))],
                    skip_rows=self.dialect.skip + 1,
                    block_size=_BLOCK_BYTES,
                    encoding=self.dialect.encoding,
                    use_threads=not way.is_counting,
                ),
                pacsv.ParseOptions(
                    delimiter=self.dialect.delimiter,
                    ignore_empty_lines=False,
                    invalid_row_handler=on_ragged,
                ),
                pacsv.ConvertOptions(
                    column_types=kinds,
                    include_columns=list(kinds),
                    null_values=list(self._settings.missing),
                    strings_can_be_null=True,
                    decimal_point=self.dialect.decimal,
                    timestamp_parsers=parsers or None,
                ),
            )
            seen = 0
            for piece in reader:
                count = piece.num_rows
                rows = _rows_between(seen, count, self.dialect.skip + 2, skipped)
                fresh = max(done - seen, 0)
                seen += count
                if fresh >= count:
                    continue
                yield self._batch(piece.slice(fresh), rows[fresh:], wanted, index, way, report)

    def _batch(
        self,
        piece: pa.RecordBatch,
        rows: npt.NDArray[np.int64],
        wanted: Wanted,
        index: dict[str, int],
        way: _Way,
        report: Report,
    ) -> Batch:
        piece, rows = _without_empty_rows(piece, rows, self.label, report)

        def column(name: str) -> pa.Array:
            return piece.column(f"c{index[name]}")

        numbers, texts = [], {}
        for position, name in enumerate(wanted.numbers):
            if index[name] in way.text_columns:
                values, texts[position] = self._numbers(column(name), name, rows, report)
            else:
                values = _as_numbers(column(name))
            numbers.append(values)
        times = episodes = None
        if wanted.time is not None:
            values = column(wanted.time)
            if index[wanted.time] in way.text_columns:
                times = self._times(values, wanted.time)
            else:
                times = _as_nanoseconds(values)
            _report_bad_times(times, values, wanted.time, self.label, rows, report)
        if wanted.episode is not None:
            episodes = column(wanted.episode)
        return Batch(self.label, rows, tuple(numbers), times, episodes, texts)

    def _numbers(
        self, texts: pa.Array, name: str, rows: npt.NDArray[np.int64], report: Report
    ) -> tuple[Numbers, npt.NDArray[np.bool_]]:
        """Texts as numbers; what is none is reported, becomes NaN and is marked."""
        decimal = re.escape(self.dialect.decimal)
        pattern = rf"^\s*[-+]?([0-9]+{decimal}?[0-9]*|{decimal}[0-9]+)([eE][-+]?[0-9]+)?\s*$"
        special = r"^\s*[-+]?(?i:inf|infinity|nan)\s*$"
        is_number = pc.match_substring_regex(texts, f"{pattern}|{special}")
        is_text = np.asarray(pc.fill_null(pc.invert(is_number), False))
        for code, chosen in _kinds_of_text(texts, is_text, self.dialect.decimal):
            at = int(np.argmax(chosen))
            report(
                make_finding(
                    code,
                    self.label,
                    _TEXT_SENTENCES[code],
                    row=int(rows[at]),
                    column=name,
                    value=texts[at].as_py()[:40],
                    count=int(chosen.sum()),
                )
            )
        plain = pc.if_else(is_number, texts, pa.scalar(None, pa.string()))
        plain = pc.replace_substring(pc.utf8_trim_whitespace(plain), self.dialect.decimal, ".")
        return _as_numbers(pc.cast(pc.utf8_ltrim(plain, "+"), pa.float64())), is_text

    def _times(self, texts: pa.Array, name: str) -> npt.NDArray[np.int64]:
        kind, parsers = self._time_kind(self.header.index(name))
        values = [_time_of(text, kind, parsers, self.dialect) for text in texts.to_pylist()]
        return np.array([NO_TIME if value is None else value for value in values], np.int64)

    def _time_kind(self, position: int) -> tuple[pa.DataType, list[str]]:
        """The type of the time column and the formats to try, from the first rows."""
        texts = [row[position].strip() for row in self.sample() if len(row) > position]
        texts = [text for text in texts if text and text not in self._settings.missing]
        if self.dialect.time_format is not None:
            return pa.timestamp("ns"), [self.dialect.time_format]
        if _mostly(_is_number(text, self.dialect.decimal) for text in texts):
            return pa.float64(), []
        for form in _TIME_FORMATS:
            if _mostly(_parsed(text, form) is not None for text in texts):
                return pa.timestamp("ns"), [form]
        is_zoned = _mostly(bool(re.search(r"(Z|[+-]\d\d:?\d\d)$", text)) for text in texts)
        return pa.timestamp("ns", "UTC" if is_zoned else None), []

    def _slower(self, way: _Way, problem: str) -> _Way:
        """The way to read by after a problem, or an error if there is none."""
        match = re.match(r"In CSV column #(\d+)", problem)
        if match is not None and "UTF8" not in problem:
            column = int(match[1])
            if column not in way.text_columns:
                # The number counts the columns of the file; after a few, all are taken as text.
                more = {column} if len(way.text_columns) < 4 else set(range(len(self.header)))
                return _Way(way.text_columns | more, way.is_counting)
        elif "Expected" in problem and "columns" in problem and not way.is_counting:
            return _Way(way.text_columns, is_counting=True)
        raise self._unreadable(problem)

    def _unreadable(self, problem: object) -> DataError:
        return DataError(
            f"The file cannot be read as a table ({str(problem)[:200]}).",
            where=self.label,
            advice="check that it is a complete CSV file, and csv in the task file",
        )

    def _open(self) -> Any:
        with named_os_errors(self._path):
            if self._is_compressed():
                return pa.CompressedInputStream(pa.OSFile(str(self._path)), "gzip")
            return pa.OSFile(str(self._path))

    def _is_compressed(self) -> bool:
        with open(self._path, "rb") as stream:
            return stream.read(2) == b"\x1f\x8b"

    def _read_start(self) -> bytes:
        with named_os_errors(self._path):
            opener = gzip.open if self._is_compressed() else open
            try:
                with opener(self._path, "rb") as stream:
                    return bytes(stream.read(_SNIFFED_BYTES))
            except (EOFError, gzip.BadGzipFile, zipfile.zlib.error) as error:  # type: ignore[attr-defined]
                raise self._unreadable(error) from error

    def _detect_encoding(self, start: bytes, report: Report) -> str:
        if self._settings.encoding is not None:
            return self._settings.encoding
        if start.startswith((b"\xff\xfe", b"\xfe\xff")):
            return "utf-16"
        try:
            start.decode("utf-8")
        except UnicodeDecodeError as error:
            # The end may cut a character in two.
            if error.start < len(start) - 4 or len(start) < _SNIFFED_BYTES:
                row = start[: error.start].count(b"\n") + 1
                report(
                    make_finding(
                        "encoding",
                        self.label,
                        "The file is not UTF-8; it is read as Latin-1.",
                        row=row,
                        value=f"byte 0x{start[error.start]:02x}",
                    )
                )
                return "latin-1"
        return "utf-8"


def _without_empty_rows(
    piece: pa.RecordBatch, rows: npt.NDArray[np.int64], label: str, report: Report
) -> tuple[pa.RecordBatch, npt.NDArray[np.int64]]:
    """Leave out rows in which all wanted columns are empty, as blank lines are."""
    if not all(column.null_count for column in piece.columns):
        return piece, rows
    is_empty = np.ones(piece.num_rows, np.bool_)
    for column in piece.columns:
        is_empty &= np.asarray(column.is_null())
    if not is_empty.any():
        return piece, rows
    report(
        make_finding(
            "empty-row",
            label,
            "The row is empty.",
            row=int(rows[np.argmax(is_empty)]),
            count=int(is_empty.sum()),
        )
    )
    return piece.filter(pa.array(~is_empty)), rows[~is_empty]


_TEXT_SENTENCES = {
    "text": "There is text where a number is needed.",
    "decimal-comma": "There is a number with the other decimal mark.",
    "thousands": "There is a number with separators of thousands.",
}


def _kinds_of_text(
    texts: pa.Array, is_text: npt.NDArray[np.bool_], decimal: str
) -> Iterator[tuple[str, npt.NDArray[np.bool_]]]:
    """Text among numbers by kind: the wrong decimal mark, thousands, or anything else."""
    if not is_text.any():
        return
    other = "," if decimal == "." else "."
    grouped = rf"^\s*[-+]?[0-9]{{1,3}}([{other}' ][0-9]{{3}})+({re.escape(decimal)}[0-9]*)?\s*$"
    swapped = rf"^\s*[-+]?[0-9]*{re.escape(other)}[0-9]+([eE][-+]?[0-9]+)?\s*$"

    def matching(pattern: str) -> npt.NDArray[np.bool_]:
        found = pc.fill_null(pc.match_substring_regex(texts, pattern), False)
        return np.asarray(is_text & np.asarray(found), np.bool_)

    is_swapped = matching(swapped)
    is_grouped = matching(grouped) & ~is_swapped
    rest = is_text & ~is_swapped & ~is_grouped
    for code, chosen in (("decimal-comma", is_swapped), ("thousands", is_grouped), ("text", rest)):
        if chosen.any():
            yield code, chosen


def _ragged(label: str, row: pacsv.InvalidRow, number: int) -> Finding:
    return make_finding(
        "ragged-row",
        label,
        f"The row has {row.actual_columns} columns; the header has {row.expected_columns}.",
        row=number,
        value=row.text[:40],
    )


def _rows_between(
    seen: int, count: int, first_row: int, skipped: Sequence[int]
) -> npt.NDArray[np.int64]:
    """Row numbers of ``count`` rows after ``seen`` sound ones, given the numbers left out."""
    sound = np.arange(seen, seen + count, dtype=np.int64)
    before = np.asarray(skipped, np.int64) - first_row - np.arange(len(skipped))
    return first_row + sound + np.searchsorted(before, sound, side="right")


def _detect_delimiter(lines: Sequence[str]) -> str:
    """The delimiter that cuts most rows into as many columns as the header, and into several."""

    def fitness(delimiter: str) -> tuple[float, int]:
        width = len(_cells(lines[0], delimiter))
        rows = [line for line in lines[1:] if line.strip()]
        fits = [len(_cells(line, delimiter)) == width for line in rows]
        return (sum(fits) / max(len(fits), 1) if width > 1 else -1.0, width)

    return max(_DELIMITERS, key=fitness)


def _detect_decimal(lines: Sequence[str], delimiter: str) -> str:
    cells = [cell for line in lines[1:] for cell in _cells(line, delimiter)]
    commas = sum(
        re.fullmatch(r"\s*[-+]?\d+,\d+([eE][-+]?\d+)?\s*", cell) is not None for cell in cells
    )
    points = sum(
        re.fullmatch(r"\s*[-+]?\d+\.\d+([eE][-+]?\d+)?\s*", cell) is not None for cell in cells
    )
    return "," if commas > points else "."


def _cells(line: str, delimiter: str) -> list[str]:
    try:
        return next(csv.reader(io.StringIO(line), delimiter=delimiter), [])
    except csv.Error:
        return line.split(delimiter)


def _spelled(delimiter: str) -> str:
    return "tabs" if delimiter == "\t" else f"'{delimiter}'"


def _is_number(text: str, decimal: str) -> bool:
    try:
        float(text.replace(decimal, "."))
    except ValueError:
        return False
    return True


def _mostly(answers: Iterable[bool]) -> bool:
    given = list(answers)
    return sum(given) > len(given) / 2


def _parsed(text: str, form: str) -> datetime.datetime | None:
    try:
        return datetime.datetime.strptime(text, form)
    except ValueError:
        return None


def _time_of(
    text: str | None, kind: pa.DataType, parsers: Sequence[str], dialect: _Dialect
) -> int | None:
    """Nanoseconds of a time as text, or None."""
    if not text:
        return None
    text = text.strip()
    try:
        if pa.types.is_floating(kind):
            seconds = float(text.replace(dialect.decimal, "."))
            return round(seconds * _SECOND) if abs(seconds) < 9e9 else None
        time = _parsed(text, parsers[0]) if parsers else datetime.datetime.fromisoformat(text)
        if time is None:
            return None
        if time.tzinfo is None:
            time = time.replace(tzinfo=datetime.UTC)
        since = time - datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
        nanoseconds = (since.days * 86_400 + since.seconds) * _SECOND + since.microseconds * 1000
        return nanoseconds if abs(nanoseconds) < 9e18 else None
    except (ValueError, OverflowError):
        return None


# --- binary ------------------------------------------------------------------------------------


class _ParquetTable:
    def __init__(self, path: Path) -> None:
        self.label = str(path)
        self._path = path
        with self._named_errors(), pq.ParquetFile(path, pre_buffer=False) as file:
            self.header = tuple(file.schema_arrow.names)

    def batches(self, wanted: Wanted, report: Report) -> Iterator[Batch]:
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


class _ArrayTable:
    """An NPZ archive of columns: one array of one dimension for each."""

    def __init__(self, path: Path) -> None:
        self.label = str(path)
        self._arrays = {name: array for name, array in read_arrays(path).items() if array.ndim == 1}
        self.header = tuple(self._arrays)

    def batches(self, wanted: Wanted, report: Report) -> Iterator[Batch]:
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
        yield from _FrameTable(table, self.label).batches(wanted, report)


class _FrameTable:
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
            return _as_numbers(values)
        if pa.types.is_decimal(kind):
            return _as_numbers(pc.cast(values, pa.float64(), safe=False))
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
        plain = _Dialect("utf-8", ",", ".", 0, None)
        found = [_time_of(text, pa.timestamp("ns"), [], plain) for text in texts]
        times = np.array([NO_TIME if time is None else time for time in found], np.int64)
    elif pa.types.is_timestamp(kind) or pa.types.is_date(kind):
        with _arrow_errors(label):
            times = _as_nanoseconds(pc.cast(values, pa.timestamp("ns"), safe=False))
    elif pa.types.is_integer(kind) or pa.types.is_floating(kind):
        times = _as_nanoseconds(pc.cast(values, pa.float64(), safe=False))
    else:
        raise DataError(
            f"The time column's type is {kind}, which is no time.",
            where=f"{label}, column {name!r}",
            advice="use timestamps, or seconds as numbers",
        )
    _report_bad_times(times, values, name, label, rows, report)
    return times


def _report_bad_times(
    times: npt.NDArray[np.int64],
    values: pa.Array,
    name: str,
    label: str,
    rows: npt.NDArray[np.int64],
    report: Report,
) -> None:
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


def _as_numbers(values: pa.Array) -> Numbers:
    """A column as float64, NaN where there is nothing; shares memory if it can."""
    if not pa.types.is_float64(values.type):
        values = pc.cast(values, pa.float64(), safe=False)
    array: Numbers = values.to_numpy(zero_copy_only=False)
    return array


def _as_nanoseconds(values: pa.Array) -> npt.NDArray[np.int64]:
    """Timestamps, or seconds as numbers, in nanoseconds; NO_TIME where there is none."""
    if pa.types.is_floating(values.type):
        seconds = _as_numbers(values)
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
