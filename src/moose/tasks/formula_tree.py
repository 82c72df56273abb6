"""The tree of a formula, and the text that it is written as.

What formulas are is told in :mod:`moose.tasks.formula`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from moose.errors import ConfigError

COMPARISONS = ("<", "<=", ">", ">=", "==", "!=")
FUNCTIONS: Mapping[str, tuple[int, int]] = MappingProxyType(
    {
        "min": (2, 20),
        "max": (2, 20),
        "clip": (3, 3),
        "abs": (1, 1),
        "exp": (1, 1),
        "log": (1, 1),
        "sqrt": (1, 1),
        "where": (3, 3),
    }
)
"""Least and greatest number of arguments."""
WORDS = ("and", "or", "not", "next")


class FormulaError(ConfigError):
    """A formula cannot be understood; ``where`` shows it with a caret below the place."""


@dataclass(frozen=True)
class Number:
    """A constant, not negative (a minus is an operation)."""

    value: float


@dataclass(frozen=True)
class Signal:
    """A named signal or action; ``place`` is where in the text it stands."""

    name: str
    age: int = 0
    is_next: bool = False
    place: tuple[int, int] = field(default=(0, 0), compare=False)


@dataclass(frozen=True)
class Operation:
    """An operator or function with its arguments."""

    symbol: str
    arguments: tuple[Node, ...]


Node = Number | Signal | Operation


def formula_error(
    what: str, text: str, place: tuple[int, int], where: str, advice: str
) -> FormulaError:
    """An error that shows the text with a caret below the place."""
    # One line, whatever white space the user wrote, so that the caret stands below its place.
    line = re.sub(r"\s", " ", text)
    caret = " " * place[0] + "^" * max(1, place[1] - place[0])
    return FormulaError(what, where=f"{where}\n    {line}\n    {caret}", advice=advice)


_PRECEDENCE: Mapping[str, int] = MappingProxyType(
    {"or": 1, "and": 2, "not": 3, **dict.fromkeys(COMPARISONS, 4), "+": 5, "-": 5}
    | {"*": 6, "/": 6, "negative": 7, "**": 8}
)


def to_text(node: Node) -> str:
    """A tree as text that :func:`parse_formula` reads back to the same tree."""
    return _write(node, 0)


def _write(node: Node, least: int) -> str:
    """The node as text, in parentheses if it binds less tightly than ``least``."""
    if isinstance(node, Number):
        return repr(node.value).removesuffix(".0")
    if isinstance(node, Signal):
        is_plain = re.fullmatch(r"[^\W\d]\w*", node.name) and node.name not in WORDS
        name = node.name if is_plain else f"`{node.name}`"
        if node.is_next:
            return f"next({name})"
        return f"{name}[{node.age}]" if node.age else name
    symbol, arguments = node.symbol, node.arguments
    if symbol in FUNCTIONS:
        return f"{symbol}({', '.join(_write(argument, 0) for argument in arguments)})"
    rank = _PRECEDENCE[symbol]
    if symbol == "negative":
        text = f"-{_write(arguments[0], rank)}"
    elif symbol == "not":
        text = f"not {_write(arguments[0], rank)}"
    elif symbol == "**":
        text = f"{_write(arguments[0], rank + 1)} ** {_write(arguments[1], rank - 1)}"
    else:
        # Operators of one rank are read from the left; comparisons do not follow each other.
        left = rank + 1 if symbol in COMPARISONS else rank
        text = f"{_write(arguments[0], left)} {symbol} {_write(arguments[1], rank + 1)}"
    return f"({text})" if rank < least else text


def signals_below(node: Node) -> Iterator[Signal]:
    """Every mention of a signal in a tree, from left to right."""
    if isinstance(node, Signal):
        yield node
    elif isinstance(node, Operation):
        for argument in node.arguments:
            yield from signals_below(argument)


def constant_of(node: Node) -> float | None:
    """The value of a number with any signs, or None."""
    if isinstance(node, Number):
        return node.value
    if isinstance(node, Operation) and node.symbol == "negative":
        inner = constant_of(node.arguments[0])
        return None if inner is None else -inner
    return None
