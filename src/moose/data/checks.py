"""Checks of a log, streamed: each looks at a batch of rows and remembers a little.

    checker = Checker(schema)
    wanted = checker.begin(table)          # the header
    for batch in table.batches(wanted, checker.report):
        checker.look(batch)
    findings = checker.finish()

Sums, extremes and comparisons over whole columns decide whether anything is worth a second look, so
that a sound log costs a few passes over its numbers. Memory does not grow with the log.
"""

from __future__ import annotations

import numpy as np

from moose.data.batches import Batch, Table, Wanted
from moose.data.column_checks import ColumnCheck
from moose.data.findings import Finding, Findings, make_finding
from moose.data.places import Place, Places, Stretch
from moose.data.schema import Schema
from moose.data.step_checks import CopyCheck, StepCheck
from moose.data.time_checks import EpisodeCheck, TimeCheck
from moose.errors import nearest


class Checker:
    """Looks at the tables of one log, one after the other."""

    def __init__(self, schema: Schema) -> None:
        self.schema = schema
        self.num_rows = 0
        self._found = Findings()
        self._wanted = Wanted(
            tuple(column.source for column in schema.columns), schema.time, schema.episode
        )
        self._columns = [
            ColumnCheck(column, self._role(position), schema)
            for position, column in enumerate(schema.columns)
        ]
        self._times = TimeCheck(schema)
        self._episodes = EpisodeCheck(schema)
        self._steps = StepCheck(schema)
        self._copies = CopyCheck(schema)
        self._file = ""
        self._rows_of_file = 0

    def report(self, finding: Finding) -> None:
        """Add a finding that somebody else has made."""
        self._found.add(finding)

    def begin(self, table: Table) -> Wanted | None:
        """Look at a table's header.

        Args:
            table: The next table of the log.

        Returns:
            The columns to read, or None if some are not there.
        """
        self._end_file()
        self._file, self._rows_of_file = "", 0
        header, row = table.header, _header_row(table)
        is_complete = True
        for name in self._wanted.headers:
            if name not in header:
                is_complete = False
                what = f"There is no column {name!r}."
                advice = nearest(name, header)
                self.report(
                    make_finding(
                        "missing-column", table.label, what, row=row, column=name, advice=advice
                    )
                )
        for name in dict.fromkeys(header):
            count = header.count(name)
            if count > 1:
                code = "duplicate-header" if name in self._wanted.headers else "odd-header"
                what = f"{count} columns are called {name!r}."
                self.report(make_finding(code, table.label, what, row=row, column=name))
                is_complete &= code == "odd-header"
            elif not name.strip() or not name.isprintable():
                position = header.index(name) + 1
                what = f"Column {position} has no plain name."
                self.report(make_finding("odd-header", table.label, what, row=row, column=name))
        others = [name for name in dict.fromkeys(header) if name not in self._wanted.headers]
        if others:
            what = f"The task does not use {len(others)} columns: {', '.join(others)[:100]}."
            self.report(
                make_finding(
                    "other-columns", table.label, what, row=row, column=others[0], count=len(others)
                )
            )
        if not is_complete:
            return None
        self._file = table.label
        return self._wanted

    def look(self, batch: Batch) -> Places:
        """Look at the next rows.

        Args:
            batch: Consecutive rows of the table begun last.

        Returns:
            ``[S]``: which rows of the batch begin an episode, by file or by name.
        """
        count = len(batch.rows)
        if count == 0:
            return np.zeros(0, np.int64)
        is_first = self._rows_of_file == 0
        starts = self._episodes.look(batch, self.num_rows, is_first, self.report)
        cuts = starts
        if batch.times is not None:
            odd = self._times.look(batch, batch.times, starts, is_first, self.report)
            cuts = np.union1d(starts, odd)
        for i, (column, values) in enumerate(zip(self._columns, batch.numbers, strict=True)):
            is_text = batch.texts.get(i)
            column.look(values, is_text, batch, self.num_rows, is_first, self.report)
        self._steps.look(batch, cuts, is_first, self.report)
        self._copies.look(batch)
        self.num_rows += count
        self._rows_of_file += count
        return starts

    def finish(self) -> list[Finding]:
        """What was found, errors first."""
        self._end_file()
        if self.num_rows:
            self._episodes.finish(self.report)
            self._times.finish(self.report)
            for column in self._columns:
                column.finish(self.report)
                if column.num_values == 0:  # which says more than that values are missing
                    self._found.withdraw("missing", column.column.source)
            self._steps.finish(self.report)
            is_constant = [column.is_constant for column in self._columns]
            self._copies.finish(self._first_place(), is_constant, self.report)
        return self._found.listed()

    @property
    def interval(self) -> float | None:
        """The sampling interval in seconds: as said, or as seen."""
        return self._times.interval

    def stuck_rows(self) -> list[Stretch]:
        """Where sensors are stuck."""
        return [stretch for column in self._columns for stretch in column.stuck_stretches()]

    def outlier_bounds(self) -> list[tuple[float, float]]:
        """For each column, the values beyond which an outlier lies."""
        return [column.outlier_bounds() for column in self._columns]

    def _first_place(self) -> Place:
        return self._columns[0].first

    def _end_file(self) -> None:
        if self._file and not self._rows_of_file:
            self.report(make_finding("empty-file", self._file, "The file has no rows."))
        if self._file and self._rows_of_file:
            self._episodes.end_episode(self.num_rows)

    def _role(self, position: int) -> str:
        num_signals, num_actions = len(self.schema.signals), len(self.schema.actions)
        if position < num_signals:
            return "signal"
        return "action" if position < num_signals + num_actions else "reward"


def _header_row(table: Table) -> int | None:
    dialect = getattr(table, "dialect", None)
    return None if dialect is None else dialect.skip + 1
