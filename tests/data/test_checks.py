"""Every kind of bad input gives its own finding, with the right file, row and column."""

from __future__ import annotations

import dataclasses
import re

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from moose.data.findings import CODES
from plant_log import HEADER, NUM_ROWS, findings_of, rows, text_of, tree_with, write

COLUMN = {name: position for position, name in enumerate(HEADER)}
ROW = 250  # a row of the file in the middle of an episode, the header being row 1
COSTLESS = {"reward": {"formula": "-abs(temperature - 82)"}}


def at(row):
    """The position in the list of rows of a row of the file."""
    return row - 1


def cell(column, text, row=ROW):
    """Put a text into one cell."""

    def spoil(table):
        table[at(row)][COLUMN[column]] = text
        return table

    return spoil


def cells(column, function, first, last):
    """Change the numbers of some rows of a column."""

    def spoil(table):
        for row in range(first, last + 1):
            text = table[at(row)][COLUMN[column]]
            table[at(row)][COLUMN[column]] = str(function(float(text)))
        return table

    return spoil


def column_of(name, text):
    return cells_text(name, text, 2, NUM_ROWS + 1)


def cells_text(column, text, first, last):
    def spoil(table):
        for row in range(first, last + 1):
            table[at(row)][COLUMN[column]] = text
        return table

    return spoil


def spoiled(function):
    return lambda table: function(table) or table


def insert(row, cells):
    return spoiled(lambda table: table.insert(at(row), cells))


def drop(first, last):
    return lambda table: table[: at(first)] + table[at(last) + 1 :]


def swap(first, second):
    def spoil(table):
        a, b = at(first), at(second)
        table[a][0], table[b][0] = table[b][0], table[a][0]
        return table

    return spoil


def header(position, name):
    return spoiled(lambda table: table[0].__setitem__(position, name))


def extra_column(name, values):
    def spoil(table):
        table[0].append(name)
        for i, row in enumerate(table[1:]):
            row.append(values(i, row))
        return table

    return spoil


def copy_column(source, target, function=lambda text: text):
    def spoil(table):
        for row in table[1:]:
            row[COLUMN[target]] = function(row[COLUMN[source]])
        return table

    return spoil


def time_shift(row, seconds):
    """Move the time of one row."""

    def spoil(table):
        text = table[at(row)][0]
        table[at(row)][0] = str(np.datetime64(text) + np.timedelta64(seconds, "s"))
        return table

    return spoil


def encoded(text):
    return text_of(text).replace("cost", "cöst").encode("latin-1")


# name: (what is done to the rows, changes of the task, code, row, column)
MUTATIONS = {
    "empty cell": (cell("pressure", ""), {}, "missing", ROW, "pressure"),
    "NaN": (cell("temperature", "NaN"), {}, "missing", ROW, "temperature"),
    "a marker": (cell("valve", "#N/A"), {}, "missing", ROW, "valve"),
    "own marker": (
        cell("valve", "-999"),
        {"csv": {"missing": ["", "-999"]}},
        "missing",
        ROW,
        "valve",
    ),
    "missing reward": (cell("cost", ""), {}, "missing", ROW, "cost"),
    "infinite": (cell("pressure", "inf"), {}, "infinite", ROW, "pressure"),
    "minus infinite": (cell("temperature", "-inf"), {}, "infinite", ROW, "temperature"),
    "text": (cell("pressure", "Bad Input"), {}, "text", ROW, "pressure"),
    "text in an action": (cell("valve", "open"), {}, "text", ROW, "valve"),
    "number with unit": (cell("temperature", "80.1 °C"), {}, "text", ROW, "temperature"),
    "a date among numbers": (cell("pressure", "2024-03-01"), {}, "text", ROW, "pressure"),
    "decimal comma": (cell("pressure", '"4,71"'), {}, "decimal-comma", ROW, "pressure"),
    "thousands": (cell("temperature", '"1,234.5"'), {}, "thousands", ROW, "temperature"),
    "too many cells": (spoiled(lambda t: t[at(ROW)].append("7")), {}, "ragged-row", ROW, None),
    "too few cells": (spoiled(lambda t: t[at(ROW)].__delitem__(5)), {}, "ragged-row", ROW, None),
    "cut off line": (
        spoiled(lambda t: t[-1].__delitem__(slice(2, 9))),
        {},
        "ragged-row",
        601,
        None,
    ),
    "blank line": (insert(ROW, [""]), {}, "empty-row", ROW, None),
    "header twice": (header(2, "valve"), {}, "duplicate-header", 1, "valve"),
    "unused header twice": (
        lambda t: extra_column("x", lambda i, r: "1")(extra_column("x", lambda i, r: "2")(t)),
        {},
        "odd-header",
        1,
        "x",
    ),
    "header without name": (extra_column("", lambda i, r: "1"), {}, "odd-header", 1, ""),
    "column renamed": (header(2, "presure"), {}, "missing-column", 1, "pressure"),
    "time renamed": (header(0, "Time"), {}, "missing-column", 1, "time"),
    "unused column": (extra_column("flow", lambda i, r: str(i)), {}, "other-columns", 1, "flow"),
    "latin-1": (encoded, {"reward": {"column": "cöst"}}, "encoding", 1, None),
    "no rows": (lambda t: t[:1], {}, "empty-file", None, None),
    "text for a time": (cell("time", "yesterday"), {}, "bad-time", ROW, "time"),
    "impossible time": (cell("time", "2024-13-01 00:00:00"), {}, "bad-time", ROW, "time"),
    "no time": (cell("time", ""), {}, "bad-time", ROW, "time"),
    "time twice": (
        spoiled(lambda t: t[at(ROW)].__setitem__(0, t[at(ROW - 1)][0])),
        {},
        "duplicate-time",
        ROW,
        "time",
    ),
    "backward time": (swap(ROW, ROW - 2), {}, "backward-time", ROW - 1, "time"),
    "gap": (drop(ROW, ROW + 9), {}, "gap", ROW, "time"),
    "one sample lost": (drop(ROW, ROW), {}, "gap", ROW, "time"),
    "late sample": (time_shift(ROW, -40), {}, "fast-sampling", ROW, "time"),
    "other interval": (lambda t: t, {"interval": 30}, "wrong-interval", 3, "time"),
    "no episode": (cell("batch", "", 202), {}, "missing-episode", 202, "batch"),
    "returning episode": (
        cells_text("batch", "b0", 402, 601),
        {},
        "returning-episode",
        402,
        "batch",
    ),
    "short episode": (cells_text("batch", "b9", 600, 601), {}, "short-episode", 600, None),
    "one episode": (lambda t: t, {"episode": None}, "one-episode", 2, None),
    "below the possible": (cell("pressure", "-0.2"), {}, "out-of-range", ROW, "pressure"),
    "above the possible": (cell("temperature", "501"), {}, "out-of-range", ROW, "temperature"),
    "constant signal": (column_of("pressure", "3.5"), {}, "constant", 2, "pressure"),
    "empty column": (column_of("pressure", ""), {}, "empty-column", 2, "pressure"),
    "stuck sensor": (cells_text("pressure", "4.7", ROW, ROW + 69), {}, "stuck", ROW, "pressure"),
    "stuck at the end": (cells_text("pressure", "4.7", 530, 601), {}, "stuck", 530, "pressure"),
    "spike": (cell("temperature", "400"), {}, "outlier", ROW, "temperature"),
    "dip": (
        cell("temperature", "-300"),
        {"observations__temperature__low": -500},
        "outlier",
        ROW,
        "temperature",
    ),
    "bar to millibar": (
        cells("pressure", lambda v: v * 1000, ROW, 601),
        {},
        "unit-jump",
        ROW,
        "pressure",
    ),
    "Celsius to Fahrenheit": (
        cells("temperature", lambda v: 1.8 * v + 32, ROW, 601),
        {},
        "unit-jump",
        ROW,
        "temperature",
    ),
    "kelvin to Celsius": (
        cells("temperature", lambda v: v + 273.15, 2, ROW - 1),
        {},
        "unit-jump",
        ROW,
        "temperature",
    ),
    "a signal twice": (
        copy_column("temperature", "pressure"),
        {},
        "copied-signal",
        2,
        "pressure",
    ),
    "action too large": (lambda t: t, {"actions__valve__high": 60}, "action-bounds", None, "valve"),
    "action too small": (
        cell("valve", "-1"),
        {"actions__valve__rate": 99},
        "action-bounds",
        ROW,
        "valve",
    ),
    "fast set-point": (cells("valve", lambda v: v - 20, ROW, 601), {}, "action-rate", ROW, "valve"),
    "constant action": (column_of("valve", "42"), {}, "constant-action", 2, "valve"),
    "idle action": (cells_text("valve", "42", 202, 401), {}, "idle-action", 202, "valve"),
    "constant reward": (column_of("cost", "1"), {}, "constant-reward", 2, "cost"),
    "signal is the reward": (copy_column("cost", "temperature"), {}, "leakage", 2, "temperature"),
    "signal is minus the reward": (
        copy_column("cost", "pressure", lambda text: text.removeprefix("-")),
        {},
        "leakage",
        2,
        "pressure",
    ),
    "outside the formula": (
        cell("pressure", "0"),
        {"reward": {"formula": "1 / pressure"}},
        "formula-domain",
        ROW - 1,
        None,
    ),
    "formula without content": (
        lambda t: t,
        {"reward": {"formula": "0 * pressure"}},
        "constant-reward",
        3,
        None,
    ),
    "too large": (cell("cost", "-1e39"), {}, "too-large", ROW, "cost"),
}
# Some things are bad in two ways at once.
ALSO = {
    "header twice": {"missing-column"},
    "time twice": {"gap"},
    "fast set-point": {"action-bounds"},
    "outside the formula": {"outlier"},
    "below the possible": {"outlier"},
    "above the possible": {"outlier"},
    "time renamed": {"other-columns"},
    "column renamed": {"other-columns"},
    "late sample": {"gap"},
    "no episode": {"short-episode", "returning-episode"},
    "backward time": {"gap"},
    "idle action": {"action-rate"},
    "too many cells": {"gap"},
    "too few cells": {"gap"},
    "signal is the reward": {"out-of-range"},
}
NOTES = {"format", "other-columns"}


def test_the_table_is_long_enough():
    assert len(MUTATIONS) >= 40


def test_the_sound_log_is_sound(tmp_path):
    assert {finding.code for finding in findings_of([write(tmp_path, rows())])} == {"format"}


@pytest.mark.parametrize("name", MUTATIONS)
def test_each_mutation_gives_its_own_finding(name, tmp_path):
    spoil, changes, code, row, column = MUTATIONS[name]
    sound = write(tmp_path, rows(seed=1), "sound.csv")
    path = write(tmp_path, spoil(rows()), "spoiled.csv")
    is_alone = name in {"one episode", "constant signal", "constant action", "other interval"}
    is_alone |= code in {"empty-column", "constant-reward", "copied-signal", "leakage"}
    is_alone |= "csv" in changes or code == "encoding"
    tree = tree_with(**changes)
    if code == "returning-episode" or not is_alone:
        # The sound file has batches of the same names; those are another matter.
        text = re.sub(r",b(\d)$", r",a\1", sound.read_text(), flags=re.MULTILINE)
        sound.write_text(text)
    found = findings_of([path] if is_alone else [sound, path], tree)
    own = [finding for finding in found if finding.code == code and finding.file == str(path)]
    assert own, [f"{finding.code} {finding.place}" for finding in found]
    (finding,) = own
    assert finding.column == column
    if row is not None:
        assert finding.row == row
    assert finding.count >= 1
    assert finding.what
    assert finding.advice
    assert finding.severity == CODES[code].severity
    others = {other.code for other in found} - {code} - NOTES - ALSO.get(name, set())
    assert not others
    assert not [f for f in found if f.file == str(sound) and f.code not in NOTES | {code}]


def test_every_code_can_be_found():
    tested = {mutation[2] for mutation in MUTATIONS.values()} | {"format"}
    assert tested == set(CODES)


def test_values_and_counts_are_told(tmp_path):
    table = cells_text("pressure", "Bad", ROW, ROW + 3)(rows())
    finding = next(f for f in findings_of([write(tmp_path, table)]) if f.code == "text")
    assert (finding.value, finding.count) == ("Bad", 4)
    assert finding.as_tree() == dataclasses.asdict(finding)
    assert finding.place.endswith(f"log.csv, row {ROW}, column 'pressure'")


@pytest.mark.parametrize("lines", [1, 5])
def test_rows_below_a_preamble_are_counted(lines, tmp_path):
    text = "exported by a historian\n" * lines + text_of(cell("pressure", "x")(rows()))
    found = findings_of([write(tmp_path, text)], tree_with(csv={"skip": lines}))
    assert [f.row for f in found if f.code == "text"] == [ROW + lines]


def test_rows_are_right_after_ragged_blank_and_quoted_ones(tmp_path):
    table = cell("pressure", "x", 500)(cell("batch", '"b1"', 300)(rows()))
    table[at(100)].append("extra")
    table[at(400)].pop()
    table[at(450)] = [""]
    found = {f.code: f for f in findings_of([write(tmp_path, table)])}
    assert (found["ragged-row"].row, found["ragged-row"].count) == (100, 2)
    assert found["empty-row"].row == 450
    assert found["text"].row == 500


def test_checks_do_not_depend_on_how_the_rows_come_in_batches(tmp_path, monkeypatch):
    """What spans two batches is found all the same."""
    spoils = [MUTATIONS[name] for name in ("stuck sensor", "gap", "bar to millibar", "spike")]
    path = tmp_path / "log.parquet"
    for spoil, changes, code, row, column in spoils:
        table = spoil(rows())
        columns = {
            name: [
                text if name in {"time", "batch"} else float(text)
                for text in (r[i] for r in table[1:])
            ]
            for i, name in enumerate(HEADER)
        }
        pq.write_table(pa.table(columns), path)
        for size in (17, 100, 1000):
            monkeypatch.setattr("moose.data.typed_tables._ROWS_AT_A_TIME", size)
            found = findings_of([path], tree_with(**changes))
            (own,) = [f for f in found if f.code == code]
            assert (own.row, own.column) == (row - 1, column), size  # no header counts


def frame(**columns):
    table = rows()[1:]
    made = {
        name: [float(r[i]) for r in table]
        for i, name in enumerate(HEADER)
        if name not in {"time", "batch"}
    }
    made["time"] = pa.array([r[0] for r in table]).cast(pa.timestamp("s"))
    made["batch"] = [r[5] for r in table]
    return pa.table(made | columns)


@pytest.mark.parametrize(
    ("columns", "code", "row", "column"),
    [
        ({"pressure": ["x"] * NUM_ROWS}, "text", 1, "pressure"),
        ({"pressure": [None, *([1.0, 2.0] * 300)][:NUM_ROWS]}, "missing", 1, "pressure"),
        ({"pressure": pa.nulls(NUM_ROWS)}, "empty-column", 1, "pressure"),
        ({"time": [None, *range(NUM_ROWS - 1)]}, "bad-time", 1, "time"),
        ({"time": [*range(0, 60 * NUM_ROWS, 60)][::-1]}, "backward-time", 2, "time"),
    ],
)
def test_typed_columns_are_checked_as_well(columns, code, row, column):
    found = findings_of([frame(**columns)])
    (own,) = [finding for finding in found if finding.code == code]
    assert (own.row, own.column, own.file) == (row, column, "frame")


def test_a_sound_frame_is_sound():
    assert findings_of([frame()]) == []
