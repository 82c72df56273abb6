"""Findings: what is wrong or odd in a log, where, how often, and what to do about it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from types import MappingProxyType
from typing import Any, Literal

from moose.errors import DataError

Severity = Literal["error", "warning", "note"]
"""Errors keep a log from being loaded; warnings do not; notes tell what was assumed."""


@dataclass(frozen=True)
class Finding:
    """One finding.

    Attributes:
        code: What it is, one of :data:`CODES`.
        severity: How bad it is.
        file: Where it is.
        row: The first row of it, counted from 1 as a spreadsheet does: the header of a text file
            is row 1 too. None if it is about the whole file.
        column: The header of the column, if it is about one.
        value: The first value, as text.
        count: How often it occurs in this file and column.
        what: A sentence.
        advice: What to do about it.
        fix: The fix that mends it, such as ``gaps=split``; empty if there is none.
    """

    code: str
    severity: Severity
    file: str
    row: int | None
    column: str | None
    value: str | None
    count: int
    what: str
    advice: str
    fix: str = ""

    @property
    def place(self) -> str:
        """File, row and column in words."""
        parts = [self.file]
        if self.row is not None:
            parts.append(f"row {self.row}")
        if self.column is not None:
            parts.append(f"column {self.column!r}")
        return ", ".join(parts)

    def as_tree(self) -> dict[str, Any]:
        """The finding as plain JSON values."""
        return asdict(self)


@dataclass(frozen=True)
class _Code:
    severity: Severity
    advice: str
    fix: str = ""


CODES: Mapping[str, _Code] = MappingProxyType(
    {
        # the file
        "encoding": _Code("note", "say csv.encoding in the task file if this is wrong"),
        "format": _Code("note", "say csv.delimiter or csv.decimal in the task file if wrong"),
        "empty-file": _Code("warning", "leave the file out"),
        "duplicate-header": _Code("error", "rename one of the columns in the file"),
        "odd-header": _Code("warning", "give the column a plain name"),
        "missing-column": _Code("error", "mend the name in the task file, or export the column"),
        "other-columns": _Code("note", "name it in the task file if it belongs to the task"),
        "ragged-row": _Code("error", "mend the row, or drop such rows", "ragged=drop"),
        "empty-row": _Code("note", "nothing; empty rows are left out"),
        # cells
        "text": _Code("error", "mend the cell, or take it for missing", "text=missing"),
        "decimal-comma": _Code("error", "say csv.decimal: ',' in the task file", "text=missing"),
        "thousands": _Code("error", "export numbers without separators of thousands"),
        "missing": _Code("error", "fill them in, or cut the episode there", "missing=split"),
        "empty-column": _Code("error", "leave the column out of the task, or export it again"),
        "infinite": _Code("error", "mend the values, or cut the episode there", "missing=split"),
        "too-large": _Code("error", "use another unit, or mark the value as missing"),
        # time and episodes
        "bad-time": _Code("error", "mend the time, or say csv.time_format in the task file"),
        "duplicate-time": _Code("error", "keep one of the rows", "duplicates=first"),
        "backward-time": _Code("error", "sort the file, or begin an episode there", "order=split"),
        "gap": _Code("error", "cut the episode there, or fill in a few samples", "gaps=split"),
        "fast-sampling": _Code("warning", "check the interval in the task file"),
        "wrong-interval": _Code("error", "say the interval of the log in the task file"),
        "missing-episode": _Code("error", "fill in the episode's name"),
        "returning-episode": _Code("warning", "give each uninterrupted stretch a name of its own"),
        "short-episode": _Code("warning", "leave such episodes out", "short=drop"),
        "one-episode": _Code("warning", "cut the log into several episodes, or add more files"),
        # signals
        "out-of-range": _Code("error", "mend it, or take it for missing", "ranges=missing"),
        "constant": _Code("warning", "leave the signal out: it tells nothing"),
        "stuck": _Code("warning", "leave the stretch out", "stuck=split"),
        "outlier": _Code("warning", "look at it; take it for missing if wrong", "outliers=missing"),
        "unit-jump": _Code("warning", "bring both parts to one unit"),
        "copied-signal": _Code("warning", "leave one of the two out"),
        # actions and reward
        "action-bounds": _Code("error", "mend the bounds in the task file, or clip", "bounds=clip"),
        "action-rate": _Code("warning", "raise the action's rate in the task file if it is real"),
        "constant-action": _Code("error", "leave the action out: nothing can be learned of it"),
        "idle-action": _Code("warning", "leave such episodes out if there are many"),
        "constant-reward": _Code("warning", "check the reward: every behaviour earns the same"),
        "leakage": _Code("error", "leave the signal out: it repeats the reward"),
        "formula-domain": _Code("error", "guard the formula with where(...), or mend the row"),
    }
)
"""Every kind of finding with its severity, advice and fix."""


def make_finding(
    code: str,
    file: str,
    what: str,
    *,
    row: int | None = None,
    column: str | None = None,
    value: Any = None,
    count: int = 1,
    advice: str = "",
) -> Finding:
    """A finding of one of the known kinds."""
    kind = CODES[code]
    text = None if value is None else value if isinstance(value, str) else f"{value:.9g}"
    advice = advice or kind.advice
    if kind.fix:
        advice = f"{advice} (--fix {kind.fix})"
    return Finding(code, kind.severity, file, row, column, text, count, what, advice, kind.fix)


class Findings:
    """Collects findings; those of one kind, file and column become one with a count."""

    def __init__(self) -> None:
        self._found: dict[tuple[str, str, str | None], Finding] = {}

    def add(self, finding: Finding) -> None:
        """Add a finding, or raise the count of the one that is there."""
        key = (finding.code, finding.file, finding.column)
        before = self._found.get(key)
        if before is not None:
            finding = replace(before, count=before.count + finding.count)
        self._found[key] = finding

    def withdraw(self, code: str, column: str) -> None:
        """Forget the findings of one kind about one column."""
        for key in [key for key in self._found if key[0] == code and key[2] == column]:
            del self._found[key]

    def listed(self) -> list[Finding]:
        """All findings: errors first, then by file, row and column."""
        order = {"error": 0, "warning": 1, "note": 2}
        return sorted(
            self._found.values(),
            key=lambda f: (order[f.severity], f.file, f.row or 0, f.column or "", f.code),
        )


def unfixed(findings: Iterable[Finding], fixes: Mapping[str, Any]) -> list[Finding]:
    """The errors for which no fix was asked for."""
    return [
        finding
        for finding in findings
        if finding.severity == "error" and finding.fix.partition("=")[0] not in fixes
    ]


def require_none(findings: Sequence[Finding]) -> None:
    """Raise a :class:`DataError` that tells of the first of these findings."""
    if not findings:
        return
    first = findings[0]
    more = f" ({len(findings) - 1} more findings of this weight)" if len(findings) > 1 else ""
    raise DataError(
        first.what + more,
        where=first.place,
        advice=f"{first.advice}; 'moose check' lists everything",
    )
