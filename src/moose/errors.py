"""The one family of errors that a user can cause and mend.

Every message has the same three parts: *what* went wrong, *where* (file, row, column or setting)
and *what to do* about it. The command line prints them without a traceback and exits with code 2;
anything that is not a :class:`UserError` is a defect of ours and keeps its traceback.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class UserError(Exception):
    """Something the user can put right; carries what, where and advice.

    Args:
        what: One sentence that says what went wrong.
        where: The file, row, column or setting it went wrong in.
        advice: What to do about it.
    """

    def __init__(self, what: str, *, where: str = "", advice: str = "") -> None:
        super().__init__(what)
        self.what = what
        self.where = where
        self.advice = advice

    def __str__(self) -> str:
        lines = [self.what]
        if self.where:
            lines.append(f"  where:      {self.where}")
        if self.advice:
            lines.append(f"  what to do: {self.advice}")
        return "\n".join(lines)


class ConfigError(UserError):
    """A setting is unknown, ill-typed or out of range."""


class DataError(UserError):
    """A data set is malformed, corrupt or does not fit its task."""


class StorageError(UserError):
    """A file or folder cannot be read or written."""


class RunError(UserError):
    """A training or evaluation run cannot go on."""


class MissingExtraError(UserError):
    """An optional dependency is needed for what was asked."""

    def __init__(self, package: str, extra: str, purpose: str) -> None:
        super().__init__(
            f"{purpose} needs the package '{package}', which is not installed.",
            advice=f"pip install 'moose-rl[{extra}]'",
        )
        self._parts = (package, extra, purpose)

    def __reduce__(self) -> tuple[type[MissingExtraError], tuple[str, str, str]]:
        # An exception travels between processes by its constructor's arguments.
        return type(self), self._parts


def nearest(name: str, valid: Iterable[str], *, prefix: str = "") -> str:
    """Advice that names the valid spelling nearest to ``name``, or lists them all.

    Args:
        name: What the user wrote.
        valid: What would have been accepted.
        prefix: What all of these begin with; it brings none of them nearer.

    Returns:
        A sentence such as ``did you mean 'horizon'?``.
    """
    names = {one.removeprefix(prefix): one for one in sorted(valid)}
    close = difflib.get_close_matches(name.removeprefix(prefix), names, n=1, cutoff=0.6)
    if close:
        return f"did you mean '{names[close[0]]}'?"
    return f"choose one of: {', '.join(names.values())}" if names else "nothing is accepted here"
