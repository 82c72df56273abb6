"""Formulas: a small safe arithmetic, compiled to JAX or evaluated in NumPy; nothing is executed.

    formula = parse_formula("-(3 * fatigue + consumption) / 100", where="reward")

===========  =====================================================================================
numbers      ``1``, ``0.5``, ``2e-3``
signals      ``pressure``, or in backticks: ```FIC 101.PV```
ages         ``pressure[0]`` is the newest frame that the formula sees and the same as ``pressure``;
             ``pressure[1]`` is one step older, as in history windows, which are newest first
``next(x)``  the value after the step, in known physics only
arithmetic   ``+ - * /``, and ``**`` (or ``^``) with a number as exponent
comparison   ``< <= > >= == !=``; ``and``, ``or``, ``not``
functions    ``min``, ``max`` (two or more), ``clip(x, low, high)``, ``abs``, ``exp``, ``log``,
             ``sqrt``, ``where(condition, then, else)``
===========  =====================================================================================

**Inside JAX every formula is total**, with finite gradients, so that a branch which ``where`` does
not choose cannot spoil the gradient of the one it does: x / 0 is 0, ``sqrt`` and fractional powers
of what is not positive are 0, ``log`` of it is log of the smallest float32 (about −87), and ``exp``
ends at exp(88); all with gradient 0 there. **In NumPy the usual rules hold** (infinite, NaN), which
is how checks find the rows of a log where a formula leaves its domain.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Literal, NoReturn

import jax.numpy as jnp
import numpy as np

from moose.errors import ConfigError, nearest

LONGEST_TEXT = 2000
DEEPEST_NESTING = 40
MOST_PARTS = 200
OLDEST_AGE = 1000

Kind = Literal["number", "condition"]
Lookup = Callable[["Signal"], Any]
"""Gives the value of a signal: a number, or an array of them."""


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


@dataclass(frozen=True)
class Formula:
    """A formula that was understood.

    Attributes:
        text: As it was written.
        where: What to name in errors.
        root: Its tree.
    """

    text: str
    where: str
    root: Node

    def __str__(self) -> str:
        return to_text(self.root)

    @property
    def signals(self) -> tuple[Signal, ...]:
        """Every mention of a signal, from left to right."""
        return tuple(_signals_below(self.root))

    def require(
        self,
        names: Iterable[str],
        *,
        oldest: int,
        without_past: Iterable[str] = (),
        with_next: Iterable[str] = (),
    ) -> None:
        """Raise a :class:`FormulaError` for the first signal that cannot be had.

        Args:
            names: What may be named.
            oldest: The greatest age of a signal.
            without_past: Names of which only the present value is known (actions).
            with_next: Names whose value after the step may be asked for.
        """
        known, young, coming = set(names), set(without_past), set(with_next)
        for signal in self.signals:
            if signal.name not in known:
                raise _error(
                    f"There is no signal '{signal.name}'.",
                    self.text,
                    signal.place,
                    self.where,
                    nearest(signal.name, known),
                )
            if signal.is_next and signal.name not in coming:
                advice = f"next() is known of: {', '.join(sorted(coming))}"
                if not coming:
                    advice = "only known physics may ask for next(); leave it out"
                raise _error(
                    f"The next value of '{signal.name}' is not known here.",
                    self.text,
                    signal.place,
                    self.where,
                    advice,
                )
            greatest = 0 if signal.name in young else oldest
            if signal.age > greatest:
                frames = "only its present value" if greatest == 0 else f"ages 0 to {greatest}"
                raise _error(
                    f"'{signal.name}[{signal.age}]' is too old: this formula sees {frames}.",
                    self.text,
                    signal.place,
                    self.where,
                    f"write {to_text(Signal(signal.name, greatest))}",
                )

    def in_jax(self, lookup: Lookup) -> Any:
        """The value as a traced, differentiable number; total (see the module)."""
        return _evaluate(self.root, lookup, _IN_JAX)

    def in_numpy(self, lookup: Lookup) -> Any:
        """The value for whole columns by the usual rules: infinite or NaN outside the domain."""
        with np.errstate(all="ignore"):
            return _evaluate(self.root, lookup, _IN_NUMPY)


def parse_formula(text: str, where: str = "formula") -> Formula:
    """Understand a formula.

    Args:
        text: What the user wrote.
        where: The setting it stands in, for errors.

    Returns:
        The formula, a number in the end; names are not looked up yet (:meth:`Formula.require`).

    Raises:
        FormulaError: With the place of what cannot be understood.
    """
    return Formula(text, where, _Parser(text, where).parse())


def to_text(node: Node) -> str:
    """A tree as text that :func:`parse_formula` reads back to the same tree."""
    return _write(node, 0)


# --- reading -----------------------------------------------------------------------------------

_TOKEN = re.compile(
    r"""(?P<space>\s+)
    |(?P<number>(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][-+]?[0-9]+)?)
    |(?P<name>[^\W\d]\w*)
    |`(?P<quoted>[^`]+)`
    |(?P<symbol>\*\*|<=|>=|==|!=|[-+*/^<>()\[\],])""",
    re.VERBOSE,
)
_COMPARISONS = ("<", "<=", ">", ">=", "==", "!=")
_FUNCTIONS: Mapping[str, tuple[int, int]] = MappingProxyType(
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
_WORDS = ("and", "or", "not", "next")


@dataclass(frozen=True)
class _Token:
    kind: str
    text: str
    start: int
    stop: int


@dataclass(frozen=True)
class _Part:
    """A subtree that is being read, and where it stands."""

    node: Node
    kind: Kind
    start: int
    stop: int


class _Parser:
    """One function a level of precedence; every level knows whether it has read a number."""

    def __init__(self, text: str, where: str) -> None:
        self._text, self._where = text, where
        if len(text) > LONGEST_TEXT:
            raise ConfigError(
                f"A formula of {len(text)} characters is too long.",
                where=where,
                advice=f"use at most {LONGEST_TEXT}, or compute the column beforehand",
            )
        self._tokens = list(self._tokenise())
        self._position = 0
        self._depth = 0
        self._num_parts = 0

    def parse(self) -> Node:
        if not self._tokens:
            self._fail("There is no formula here.", 0, 1, "write one, such as -3 * cost")
        part = self._number(self._alternative())
        if self._position < len(self._tokens):
            token = self._tokens[self._position]
            advice = "an operator or the end of the formula is expected here"
            self._fail(f"'{token.text}' does not fit here.", token.start, token.stop, advice)
        return part.node

    def _tokenise(self) -> Iterator[_Token]:
        position = 0
        while position < len(self._text):
            match = _TOKEN.match(self._text, position)
            if match is None:
                advice = "see the list of what a formula may contain in the documentation"
                if self._text[position] == "`":
                    advice = "close the name with a second `"
                elif self._text[position] == "=":
                    advice = "compare with =="
                self._fail(
                    f"The character {self._text[position]!r} has no meaning in a formula.",
                    position,
                    position + 1,
                    advice,
                )
            position = match.end()
            kind = str(match.lastgroup)
            if kind != "space":
                yield _Token(kind, match[kind], match.start(), match.end())

    def _alternative(self) -> _Part:
        self._depth += 1
        if self._depth > DEEPEST_NESTING:
            token = self._tokens[min(self._position, len(self._tokens) - 1)]
            self._fail(
                f"The formula is nested more than {DEEPEST_NESTING} deep.",
                token.start,
                token.stop,
                "use fewer parentheses",
            )
        part = self._conjunction()
        while self._take("or"):
            part = self._join("or", self._condition(part), self._condition(self._conjunction()))
        self._depth -= 1
        return part

    def _conjunction(self) -> _Part:
        part = self._negation()
        while self._take("and"):
            part = self._join("and", self._condition(part), self._condition(self._negation()))
        return part

    def _negation(self) -> _Part:
        token = self._take("not")
        if token is None:
            return self._comparison()
        inner = self._condition(self._nested(self._negation))
        return self._made(Operation("not", (inner.node,)), "condition", token.start, inner.stop)

    def _comparison(self) -> _Part:
        left = self._sum()
        token = self._take(*_COMPARISONS)
        if token is None:
            return left
        right = self._sum()
        if self._peek(*_COMPARISONS):
            extra = self._tokens[self._position]
            advice = "compare two values at a time: low < x and x < high"
            self._fail("Three values are compared at once.", extra.start, extra.stop, advice)
        return self._join(token.text, self._number(left), self._number(right), "condition")

    def _sum(self) -> _Part:
        part = self._product()
        while token := self._take("+", "-"):
            part = self._join(token.text, self._number(part), self._number(self._product()))
        return part

    def _product(self) -> _Part:
        part = self._signed()
        while token := self._take("*", "/"):
            part = self._join(token.text, self._number(part), self._number(self._signed()))
        return part

    def _signed(self) -> _Part:
        token = self._take("+", "-")
        if token is None:
            return self._power()
        inner = self._number(self._nested(self._signed))
        node = inner.node if token.text == "+" else Operation("negative", (inner.node,))
        return self._made(node, "number", token.start, inner.stop)

    def _power(self) -> _Part:
        base = self._atom()
        if self._take("**", "^") is None:
            return base
        exponent = self._nested(self._signed)
        if _constant(exponent.node) is None:
            self._fail(
                "An exponent has to be a number.",
                exponent.start,
                exponent.stop,
                "write exp(y * log(x)) where x is positive",
            )
        return self._join("**", self._number(base), exponent)

    def _atom(self) -> _Part:
        if self._position == len(self._tokens):
            end = len(self._text)
            self._fail("The formula ends too early.", end, end + 1, "a value is missing here")
        token = self._tokens[self._position]
        self._position += 1
        if token.kind == "number":
            value = float(token.text)
            if not math.isfinite(value):
                self._fail("This number is too large.", token.start, token.stop, "use another unit")
            return self._made(Number(value), "number", token.start, token.stop)
        if token.text == "(" and token.kind == "symbol":
            inner = self._alternative()
            closing = self._expect(")")
            return _Part(inner.node, inner.kind, token.start, closing.stop)
        if token.kind in {"name", "quoted"}:
            is_call = token.kind == "name" and self._peek("(")
            if is_call:
                return self._next(token) if token.text == "next" else self._call(token)
            if token.kind == "quoted" or token.text not in _WORDS:
                return self._signal(token)
        return self._fail(
            f"A value is missing before '{token.text}'.",
            token.start,
            token.stop,
            "a number, a signal, a function or ( is expected here",
        )

    def _call(self, name: _Token) -> _Part:
        if name.text not in _FUNCTIONS:
            self._fail(
                f"There is no function '{name.text}'.",
                name.start,
                name.stop,
                nearest(name.text, [*_FUNCTIONS, "next"]),
            )
        self._expect("(")
        parts = [self._alternative()]
        while self._take(","):
            parts.append(self._alternative())
        closing = self._expect(")")
        least, most = _FUNCTIONS[name.text]
        if not least <= len(parts) <= most:
            wanted = str(least) if least == most else f"{least} to {most}"
            self._fail(
                f"'{name.text}' has {len(parts)} values; it takes {wanted}.",
                name.start,
                closing.stop,
                "add or remove values, which are separated by commas; decimals have a point",
            )
        first = self._condition(parts[0]) if name.text == "where" else self._number(parts[0])
        arguments = (first.node, *(self._number(part).node for part in parts[1:]))
        return self._made(Operation(name.text, arguments), "number", name.start, closing.stop)

    def _next(self, word: _Token) -> _Part:
        self._expect("(")
        inner = self._alternative()
        closing = self._expect(")")
        if not isinstance(inner.node, Signal) or inner.node.age or inner.node.is_next:
            self._fail(
                "next() takes the name of a signal.", inner.start, inner.stop, "write next(name)"
            )
        place = (word.start, closing.stop)
        return _Part(Signal(inner.node.name, is_next=True, place=place), "number", *place)

    def _signal(self, name: _Token) -> _Part:
        stop, age = name.stop, 0
        if self._take("["):
            token = self._tokens[self._position] if self._position < len(self._tokens) else None
            is_whole = token is not None and token.kind == "number" and token.text.isdecimal()
            if token is None or not is_whole or len(token.text) > 4 or int(token.text) > OLDEST_AGE:
                start = token.start if token else len(self._text)
                self._fail(
                    "An age is a whole number of steps, 0 or more.",
                    start,
                    token.stop if token else start + 1,
                    f"write {name.text}[1] for the value one step earlier",
                )
            self._position += 1
            age, stop = int(token.text), self._expect("]").stop
        node = Signal(name.text, age, place=(name.start, stop))
        return self._made(node, "number", name.start, stop)

    def _nested(self, read: Callable[[], _Part]) -> _Part:
        self._depth += 1
        if self._depth > DEEPEST_NESTING:
            start = self._tokens[self._position - 1].start
            self._fail("Too many signs in a row.", start, start + 1, "leave some of them out")
        part = read()
        self._depth -= 1
        return part

    def _join(self, symbol: str, left: _Part, right: _Part, kind: Kind = "number") -> _Part:
        kind = "condition" if symbol in {"and", "or"} else kind
        node = Operation(symbol, (left.node, right.node))
        return self._made(node, kind, left.start, right.stop)

    def _made(self, node: Node, kind: Kind, start: int, stop: int) -> _Part:
        self._num_parts += 1
        if self._num_parts > MOST_PARTS:
            self._fail(
                f"The formula has more than {MOST_PARTS} parts.",
                start,
                stop,
                "shorten it, or compute the column beforehand",
            )
        return _Part(node, kind, start, stop)

    def _number(self, part: _Part) -> _Part:
        if part.kind != "number":
            self._fail(
                "This is true or false where a number is needed.",
                part.start,
                part.stop,
                "write where(condition, 1, 0)",
            )
        return part

    def _condition(self, part: _Part) -> _Part:
        if part.kind != "condition":
            self._fail(
                "This is a number where a condition is needed.",
                part.start,
                part.stop,
                "compare it with something, such as x > 0",
            )
        return part

    def _peek(self, *symbols: str) -> bool:
        if self._position == len(self._tokens):
            return False
        token = self._tokens[self._position]
        return token.kind in {"symbol", "name"} and token.text in symbols

    def _take(self, *symbols: str) -> _Token | None:
        if not self._peek(*symbols):
            return None
        self._position += 1
        return self._tokens[self._position - 1]

    def _expect(self, symbol: str) -> _Token:
        token = self._take(symbol)
        if token is None:
            at_end = self._position == len(self._tokens)
            start = len(self._text) if at_end else self._tokens[self._position].start
            stop = start + 1 if at_end else self._tokens[self._position].stop
            self._fail(f"A '{symbol}' is missing here.", start, stop, f"add '{symbol}'")
        return token

    def _fail(self, what: str, start: int, stop: int, advice: str) -> NoReturn:
        raise _error(what, self._text, (start, stop), self._where, advice)


def _error(what: str, text: str, place: tuple[int, int], where: str, advice: str) -> FormulaError:
    # One line, whatever white space the user wrote, so that the caret stands below its place.
    line = re.sub(r"\s", " ", text)
    caret = " " * place[0] + "^" * max(1, place[1] - place[0])
    return FormulaError(what, where=f"{where}\n    {line}\n    {caret}", advice=advice)


# --- writing -----------------------------------------------------------------------------------

_PRECEDENCE: Mapping[str, int] = MappingProxyType(
    {"or": 1, "and": 2, "not": 3, **dict.fromkeys(_COMPARISONS, 4), "+": 5, "-": 5}
    | {"*": 6, "/": 6, "negative": 7, "**": 8}
)


def _write(node: Node, least: int) -> str:
    """The node as text, in parentheses if it binds less tightly than ``least``."""
    if isinstance(node, Number):
        return repr(node.value).removesuffix(".0")
    if isinstance(node, Signal):
        is_plain = re.fullmatch(r"[^\W\d]\w*", node.name) and node.name not in _WORDS
        name = node.name if is_plain else f"`{node.name}`"
        if node.is_next:
            return f"next({name})"
        return f"{name}[{node.age}]" if node.age else name
    symbol, arguments = node.symbol, node.arguments
    if symbol in _FUNCTIONS:
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
        left = rank + 1 if symbol in _COMPARISONS else rank
        text = f"{_write(arguments[0], left)} {symbol} {_write(arguments[1], rank + 1)}"
    return f"({text})" if rank < least else text


def _signals_below(node: Node) -> Iterator[Signal]:
    if isinstance(node, Signal):
        yield node
    elif isinstance(node, Operation):
        for argument in node.arguments:
            yield from _signals_below(argument)


# --- evaluating --------------------------------------------------------------------------------

_TINY = float(np.finfo(np.float32).tiny)
_LARGEST_EXPONENT = 88.0


def _evaluate(node: Node, lookup: Lookup, operations: Mapping[str, Callable[..., Any]]) -> Any:
    if isinstance(node, Number):
        return node.value
    if isinstance(node, Signal):
        return lookup(node)
    if node.symbol == "**":
        base = _evaluate(node.arguments[0], lookup, operations)
        return operations["**"](base, _constant(node.arguments[1]))
    values = [_evaluate(argument, lookup, operations) for argument in node.arguments]
    if node.symbol in {"min", "max"}:
        result = values[0]
        for value in values[1:]:
            result = operations[node.symbol](result, value)
        return result
    return operations[node.symbol](*values)


def _constant(node: Node) -> float | None:
    """The value of a number with any signs, or None."""
    if isinstance(node, Number):
        return node.value
    if isinstance(node, Operation) and node.symbol == "negative":
        inner = _constant(node.arguments[0])
        return None if inner is None else -inner
    return None


def _total_quotient(x: Any, y: Any) -> Any:
    is_zero = jnp.equal(y, 0.0)
    return jnp.where(is_zero, 0.0, jnp.divide(x, jnp.where(is_zero, 1.0, y)))


def _total_log(x: Any) -> Any:
    is_inside = jnp.greater_equal(x, _TINY)
    return jnp.where(is_inside, jnp.log(jnp.where(is_inside, x, 1.0)), math.log(_TINY))


def _total_sqrt(x: Any) -> Any:
    is_inside = jnp.greater(x, 0.0)
    return jnp.where(is_inside, jnp.sqrt(jnp.where(is_inside, x, 1.0)), 0.0)


def _total_exp(x: Any) -> Any:
    is_inside = jnp.less(x, _LARGEST_EXPONENT)
    return jnp.exp(jnp.where(is_inside, x, _LARGEST_EXPONENT))


def _total_power(x: Any, exponent: float) -> Any:
    if exponent.is_integer() and abs(exponent) <= 64:
        power = jnp.asarray(x) ** int(abs(exponent))
        return power if exponent >= 0 else _total_quotient(1.0, power)
    is_inside = jnp.greater(x, 0.0)
    return jnp.where(is_inside, jnp.power(jnp.where(is_inside, x, 1.0), exponent), 0.0)


def _numpy_power(x: Any, exponent: float) -> Any:
    return np.power(np.asarray(x, np.float64), exponent)


_IN_JAX: Mapping[str, Callable[..., Any]] = MappingProxyType(
    {
        "+": jnp.add,
        "-": jnp.subtract,
        "*": jnp.multiply,
        "/": _total_quotient,
        "**": _total_power,
        "negative": jnp.negative,
        "<": jnp.less,
        "<=": jnp.less_equal,
        ">": jnp.greater,
        ">=": jnp.greater_equal,
        "==": jnp.equal,
        "!=": jnp.not_equal,
        "and": jnp.logical_and,
        "or": jnp.logical_or,
        "not": jnp.logical_not,
        "min": jnp.minimum,
        "max": jnp.maximum,
        "clip": lambda x, low, high: jnp.minimum(jnp.maximum(x, low), high),
        "abs": jnp.abs,
        "exp": _total_exp,
        "log": _total_log,
        "sqrt": _total_sqrt,
        "where": jnp.where,
    }
)
_IN_NUMPY: Mapping[str, Callable[..., Any]] = MappingProxyType(
    {
        "+": np.add,
        "-": np.subtract,
        "*": np.multiply,
        "/": np.divide,
        "**": _numpy_power,
        "negative": np.negative,
        "<": np.less,
        "<=": np.less_equal,
        ">": np.greater,
        ">=": np.greater_equal,
        "==": np.equal,
        "!=": np.not_equal,
        "and": np.logical_and,
        "or": np.logical_or,
        "not": np.logical_not,
        "min": np.minimum,
        "max": np.maximum,
        "clip": lambda x, low, high: np.minimum(np.maximum(x, low), high),
        "abs": np.abs,
        "exp": np.exp,
        "log": np.log,
        "sqrt": np.sqrt,
        "where": np.where,
    }
)
