"""Text files as tables: delimiter, decimal comma, encoding and times are detected or given.

A file is opened once for its header and read once for its rows, a few megabytes at a time. What
cannot be read as a number is reported with its row and becomes a missing value; the file is then
read by a slower way that knows rows, from the block on in which the fast way met it.
"""

from __future__ import annotations

import csv
import gzip
import io
import json
import re
import zlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pacsv

from moose.data.batches import (
    NO_TIME,
    Batch,
    Report,
    Wanted,
    as_nanoseconds,
    as_numbers,
    parsed_time,
    report_bad_times,
    time_of,
)
from moose.data.findings import Finding, make_finding
from moose.data.schema import Numbers, TextSettings
from moose.errors import DataError
from moose.storage import named_os_errors

_BLOCK_BYTES = 4 << 20
_SNIFFED_BYTES = 1 << 18
_SNIFFED_LINES = 100
_DELIMITERS = ";\t,|"
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
_TEXT_SENTENCES = {
    "text": "There is text where a number is needed.",
    "decimal-comma": "There is a number with the other decimal mark.",
    "thousands": "There is a number with separators of thousands.",
}


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
        fitting = _detect_delimiter(self._lines)
        if len(self.header) == 1 and len(_cells(self._lines[0], fitting)) > 1:
            raise DataError(
                f"Cut at every {_spelled(delimiter)}, as csv.delimiter says, the header is one "
                f"column: {self.header[0][:80]}",
                where=f"{path}, row {settings.skip + 1}",
                advice=f"say csv.delimiter: {json.dumps(fitting)} in the task file",
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
                values = as_numbers(column(name))
            numbers.append(values)
        times = episodes = None
        if wanted.time is not None:
            values = column(wanted.time)
            if index[wanted.time] in way.text_columns:
                times = self._times(values, wanted.time)
            else:
                times = as_nanoseconds(values)
            report_bad_times(times, values, wanted.time, self.label, rows, report)
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
        return as_numbers(pc.cast(pc.utf8_ltrim(plain, "+"), pa.float64())), is_text

    def _times(self, texts: pa.Array, name: str) -> npt.NDArray[np.int64]:
        kind, parsers = self._time_kind(self.header.index(name))
        values = [time_of(text, kind, parsers, self.dialect.decimal) for text in texts.to_pylist()]
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
            if _mostly(parsed_time(text, form) is not None for text in texts):
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
            except (EOFError, gzip.BadGzipFile, zlib.error) as error:
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
