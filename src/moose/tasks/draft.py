"""A first draft of a task file from a log: guessed roles, ranges, sampling interval."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import numpy.typing as npt

from moose.data.batches import NO_TIME, Table, Wanted
from moose.data.findings import Finding
from moose.data.schema import Numbers, TextSettings
from moose.data.tables import find_files, open_table
from moose.data.text_tables import TextTable
from moose.errors import DataError

_TIME = re.compile(r"(^|[\W_])(time|timestamp|date|datetime|datum|zeit|zeitstempel|ts|t)($|[\W_])")
_EPISODE = re.compile(r"(^|[\W_])(episode|batch|run|shift|lot|charge|cycle|campaign)(_?id|_?nr)?$")
_REWARD = re.compile(r"(^|[\W_])(reward|profit|score)($|[\W_])")
_ACTION = re.compile(
    r"^d_|(^|[\W_])(sp|mv|op|set_?point|action|command|cmd|valve|control|steer\w*|soll\w*|stell\w*)"
    r"($|[\W_\d])"
)
_SECOND = 1e9


@dataclass
class _Seen:
    """What one pass over a column tells."""

    name: str
    low: float = np.inf
    high: float = -np.inf
    largest_change: float = 0.0
    num_missing: int = 0
    last: float = np.nan

    def look(self, values: Numbers) -> None:
        finite = values[np.isfinite(values)]
        self.num_missing += len(values) - len(finite)
        if len(finite) == 0:
            return
        self.low = min(self.low, float(finite.min()))
        self.high = max(self.high, float(finite.max()))
        joined = np.concatenate([[self.last], finite]) if np.isfinite(self.last) else finite
        if len(joined) > 1:
            change = float(np.abs(np.diff(joined)).max())
            self.largest_change = max(self.largest_change, change)
        self.last = float(finite[-1])


@dataclass
class _Guess:
    """Which column is what."""

    time: str | None = None
    episode: str | None = None
    reward: str | None = None
    actions: list[str] = field(default_factory=list)
    signals: list[str] = field(default_factory=list)


def draft_task(paths: Sequence[str | Path], name: str | None = None) -> str:
    """Write a commented draft of a task file.

    Args:
        paths: Files or folders; the first file's header counts.
        name: What to call the plant; by default the first file's name.

    Returns:
        YAML text. Where a person has to decide, the draft says so.
    """
    files = find_files(paths)
    found: list[Finding] = []
    table = open_table(files[0], TextSettings(), found.append)
    numbers = _numeric_columns(table)
    guess = _guess_roles(table, numbers)
    seen = {column: _Seen(column) for column in (*guess.signals, *guess.actions)}
    steps = _look(files, guess, seen)
    interval = float(np.median(steps)) / _SECOND if len(steps) else None
    return _write(name or Path(files[0]).name.split(".")[0], guess, seen, interval, table)


def _numeric_columns(table: Table) -> list[str]:
    """Headers whose first rows are numbers."""
    if not isinstance(table, TextTable):
        return list(dict.fromkeys(table.header))
    rows, decimal = table.sample(), table.dialect.decimal
    chosen = []
    for position, name in enumerate(table.header):
        texts = [row[position].strip() for row in rows if len(row) > position]
        texts = [text for text in texts if text]
        numeric = [text for text in texts if _is_number(text, decimal)]
        if texts and len(numeric) > 0.8 * len(texts) and table.header.count(name) == 1:
            chosen.append(name)
    return chosen


def _is_number(text: str, decimal: str) -> bool:
    return (
        re.fullmatch(rf"[-+]?(\d+[{decimal}]?\d*|[{decimal}]\d+)([eE][-+]?\d+)?", text) is not None
    )


def _guess_roles(table: Table, numbers: Sequence[str]) -> _Guess:
    guess = _Guess()
    for name in dict.fromkeys(table.header):
        lower = name.lower()
        if guess.time is None and _TIME.search(lower):
            guess.time = name
        elif guess.episode is None and _EPISODE.search(lower):
            guess.episode = name
        elif name not in numbers:
            continue
        elif guess.reward is None and _REWARD.search(lower):
            guess.reward = name
        elif _ACTION.search(lower):
            guess.actions.append(name)
        else:
            guess.signals.append(name)
    if not guess.signals and not guess.actions:
        raise DataError(
            "There is no column of numbers.",
            where=table.label,
            advice="check the delimiter and the decimal mark of the file",
        )
    return guess


def _look(files: Sequence[Path], guess: _Guess, seen: dict[str, _Seen]) -> npt.NDArray[np.int64]:
    """One pass over all files; returns a sample of the steps in time."""
    wanted = Wanted(tuple(seen), guess.time)
    steps: list[npt.NDArray[np.int64]] = []
    for file in files:
        table = open_table(file, TextSettings(), lambda finding: None)
        missing = [name for name in wanted.headers if name not in table.header]
        if missing:
            raise DataError(
                f"The column {missing[0]!r} of the first file is not in this one.",
                where=table.label,
                advice="give files with the same columns",
            )
        for batch in table.batches(wanted, lambda finding: None):
            for column, values in zip(seen.values(), batch.numbers, strict=True):
                column.look(values)
            if batch.times is not None and len(steps) < 100:
                known = batch.times[batch.times != NO_TIME]
                change = np.diff(known)
                steps.append(change[change > 0][:10_000])
    return np.concatenate(steps) if steps else np.zeros(0, np.int64)


def _write(
    name: str, guess: _Guess, seen: dict[str, _Seen], interval: float | None, table: Table
) -> str:
    is_increment = bool(guess.actions) and all(
        action.lower().startswith("d_") or (seen[action].low < 0 < seen[action].high)
        for action in guess.actions
    )
    lines = [
        "# A draft, guessed from the log: read it line by line, mend it, then ask",
        "#   moose task check THIS-FILE LOG",
        f"name: {_quoted(name)}",
        "",
        *_optional("time", guess.time, "the column of the time"),
        *_optional("interval", interval, "seconds between two rows"),
        *_optional("episode", guess.episode, "the column that tells batches, shifts or runs apart"),
        "",
        "# What is measured. low and high: what is possible, if known; unit: for people.",
        "observations:" if guess.signals else "observations: {}  # to be written",
    ]
    for signal in guess.signals:
        column = seen[signal]
        lines.append(f"  {_quoted(signal)}: {{}}  # {_range(column)}")
    lines += [
        "",
        "# What a controller may decide: move columns here that are actions, and out those that",
        "# are none. low and high: what a controller may choose (here: what was seen).",
        "actions:" if guess.actions else "actions: {}  # to be written: no column looks like one",
        *([] if guess.actions else ["#  valve: {low: 0, high: 100, rate: 5}  # at most 5 a step"]),
    ]
    for action in guess.actions:
        column = seen[action]
        rate = ""
        if not is_increment and column.largest_change > 0:
            rate = f", rate: {_number(column.largest_change)}"
        low, high = _number(column.low), _number(column.high)
        if column.low >= column.high:
            high = _number(column.low + 1.0)
        lines.append(f"  {_quoted(action)}: {{low: {low}, high: {high}{rate}}}  # {_range(column)}")
    hold = "zero" if is_increment else "last"
    meaning = {
        "zero": "the actions are increments, and 0 changes nothing",
        "last": "the actions are set-points that stay in force; rate is the largest change a step",
    }[hold]
    lines += [f"hold: {hold}  # {meaning}", "", "# What is to be made large."]
    if guess.reward is not None:
        lines += ["reward:", f"  column: {_quoted(guess.reward)}"]
    else:
        example = guess.signals[0] if guess.signals else "signal"
        plain = example if re.fullmatch(r"[^\W\d]\w*", example) else f"`{example}`"
        lines += ["reward:", f'  formula: ""  # to be written, for example: -abs({plain} - 80)']
    lines += [
        "",
        "history: 1  # frames that models and policies see; 'moose data report' suggests a number",
        "horizon: 100  # steps that a controller plans ahead",
        "discount: 0.97  # how much the next step counts beside this one",
        "",
        "# What is known without learning, for example:",
        "# physics:",
        "#   position: clip(position + d_position, 0, 100)",
        "",
        "# What to do about findings of 'moose check', for example:",
        "# fixes: {gaps: split, missing: 'interpolate:3'}",
    ]
    if isinstance(table, TextTable) and table.dialect.decimal == ",":
        lines += ["", "csv:", f"  delimiter: {_quoted(table.dialect.delimiter)}", '  decimal: ","']
    return "\n".join(lines) + "\n"


def _optional(key: str, value: str | float | None, meaning: str) -> list[str]:
    if value is None:
        return [f"# {key}:  # {meaning}"]
    text = _quoted(value) if isinstance(value, str) else _number(value)
    return [f"{key}: {text}  # {meaning}"]


def _quoted(text: str) -> str:
    is_plain = re.fullmatch(r"[A-Za-z_][A-Za-z0-9_ ]*[A-Za-z0-9_]|[A-Za-z_]", text)
    is_word = text.lower() in {"true", "false", "null"}
    return text if is_plain and not is_word else json.dumps(text, ensure_ascii=False)


def _number(value: float) -> str:
    text = f"{value:.6g}"
    return text if re.search(r"[.e]", text) or "n" in text else f"{text}"


def _range(column: _Seen) -> str:
    if column.low > column.high:
        return "empty"
    text = f"{column.low:.4g} to {column.high:.4g}"
    if column.low == column.high:
        text = f"always {column.low:.4g}: tells nothing"
    return text + (f", {column.num_missing} missing" if column.num_missing else "")
