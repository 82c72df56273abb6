"""Progress of long work as a passed-in object.

The library reports to whatever it is given and is silent by default. A terminal gets bars with
remaining times, a pipe gets one JSON object a line.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from typing import IO, Protocol

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.progress import (
    Progress as RichBars,
)


class Stage(Protocol):
    """One bar: a known number of steps with a few numbers that matter."""

    def advance(self, steps: int = 1, numbers: Mapping[str, float] | None = None) -> None:
        """Count ``steps`` as done and show the newest ``numbers``."""


class Progress(Protocol):
    """Something that work in stages can be reported to."""

    def stage(self, name: str, total: int, done: int = 0) -> AbstractContextManager[Stage]:
        """Open a stage of ``total`` steps, ``done`` of which were done before (a resumed run)."""


class _SilentStage:
    def advance(self, steps: int = 1, numbers: Mapping[str, float] | None = None) -> None:
        pass


class _Silent:
    @contextmanager
    def stage(self, name: str, total: int, done: int = 0) -> Iterator[Stage]:
        yield _SilentStage()


SILENT: Progress = _Silent()
"""Reports to nobody: the default everywhere in the library."""


class TerminalProgress:
    """Bars with elapsed and remaining time, for people.

    Args:
        stream: Where to draw, usually standard error.
    """

    def __init__(self, stream: IO[str]) -> None:
        self._bars = RichBars(
            TextColumn("{task.description:<10}"),
            BarColumn(bar_width=24),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TextColumn("eta"),
            TimeRemainingColumn(),
            TextColumn("{task.fields[numbers]}"),
            console=Console(file=stream),
        )
        self._open = 0

    @contextmanager
    def stage(self, name: str, total: int, done: int = 0) -> Iterator[Stage]:
        """Draw one bar while the block runs; stages may be nested."""
        if self._open == 0:
            # Finished bars stay on the screen; they need not be drawn again.
            for task in self._bars.task_ids:
                self._bars.remove_task(task)
            self._bars.start()
        self._open += 1
        try:
            task = self._bars.add_task(name, total=total, completed=done, numbers="")
            yield _TerminalStage(self._bars, task)
            self._bars.stop_task(task)
        finally:
            self._open -= 1
            if self._open == 0:
                self._bars.stop()


class _TerminalStage:
    def __init__(self, bars: RichBars, task: TaskID) -> None:
        self._bars = bars
        self._task = task

    def advance(self, steps: int = 1, numbers: Mapping[str, float] | None = None) -> None:
        if numbers:
            text = "  ".join(f"{key} {float(value):.4g}" for key, value in numbers.items())
            self._bars.update(self._task, numbers=text)
        self._bars.advance(self._task, steps)


class JsonProgress:
    """One JSON object a line, for programs.

    Each has ``stage``, ``done``, ``total``, ``seconds`` since the stage began, and ``numbers``;
    a number that is not finite is written as null.

    Args:
        stream: Where to write, usually standard error.
        interval: Least seconds between two lines of one stage; its first and last line always come.
    """

    def __init__(self, stream: IO[str], interval: float = 1.0) -> None:
        self._stream = stream
        self._interval = interval

    @contextmanager
    def stage(self, name: str, total: int, done: int = 0) -> Iterator[Stage]:
        """Write lines while the block runs."""
        stage = _JsonStage(self._stream, self._interval, name, total, done)
        yield stage
        stage.finish()


class _JsonStage:
    def __init__(self, stream: IO[str], interval: float, name: str, total: int, done: int) -> None:
        self._stream = stream
        self._interval = interval
        self._name = name
        self._total = total
        self._done = done
        self._numbers: dict[str, float | None] = {}
        self._started = time.monotonic()
        self._last_line = -math.inf
        self._is_told = False

    def advance(self, steps: int = 1, numbers: Mapping[str, float] | None = None) -> None:
        self._done += steps
        for key, value in (numbers or {}).items():
            self._numbers[key] = float(value) if math.isfinite(value) else None
        self._is_told = False
        if time.monotonic() - self._last_line >= self._interval:
            self._write_line()

    def finish(self) -> None:
        if not self._is_told:
            self._write_line()

    def _write_line(self) -> None:
        self._last_line = time.monotonic()
        self._is_told = True
        line = {
            "stage": self._name,
            "done": self._done,
            "total": self._total,
            "seconds": round(self._last_line - self._started, 3),
            "numbers": self._numbers,
        }
        self._stream.write(json.dumps(line) + "\n")
        self._stream.flush()


def make_progress(stream: IO[str], *, is_quiet: bool = False) -> Progress:
    """Bars in a terminal, JSON lines in a pipe, nothing if quiet.

    Args:
        stream: Where to report, usually standard error.
        is_quiet: Report nothing at all.

    Returns:
        The progress object to hand to the library.
    """
    if is_quiet:
        return SILENT
    return TerminalProgress(stream) if stream.isatty() else JsonProgress(stream)
