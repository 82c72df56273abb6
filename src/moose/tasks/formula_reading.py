"""Reading formulas: from a text to its tree, or to an error that shows the place.

What formulas are is told in :mod:`moose.tasks.formula`.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Literal, NoReturn

from moose.errors import ConfigError, nearest
from moose.tasks.formula_tree import (
    COMPARISONS,
    FUNCTIONS,
    WORDS,
    Node,
    Number,
    Operation,
    Signal,
    constant_of,
    formula_error,
)

LONGEST_TEXT = 2000
DEEPEST_NESTING = 40
MOST_PARTS = 200
OLDEST_AGE = 1000

Kind = Literal["number", "condition"]

_TOKEN = re.compile(
    r"""(?P<space>\s+)
    |(?P<number>(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][-+]?[0-9]+)?)
    |(?P<name>[^\W\d]\w*)
    |`(?P<quoted>[^`]+)`
    |(?P<symbol>\*\*|<=|>=|==|!=|[-+*/^<>()\[\],])""",
    re.VERBOSE,
)


def read_tree(text: str, where: str) -> Node:
    """The tree of a formula that is a number in the end.

    Args:
        text: What the user wrote.
        where: The setting it stands in, for errors.

    Raises:
        FormulaError: With the place of what cannot be understood.
    """
    return _Parser(text, where).parse()


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
        token = self._take(*COMPARISONS)
        if token is None:
            return left
        right = self._sum()
        if self._peek(*COMPARISONS):
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
        if constant_of(exponent.node) is None:
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
            if token.kind == "quoted" or token.text not in WORDS:
                return self._signal(token)
        return self._fail(
            f"A value is missing before '{token.text}'.",
            token.start,
            token.stop,
            "a number, a signal, a function or ( is expected here",
        )

    def _call(self, name: _Token) -> _Part:
        if name.text not in FUNCTIONS:
            self._fail(
                f"There is no function '{name.text}'.",
                name.start,
                name.stop,
                nearest(name.text, [*FUNCTIONS, "next"]),
            )
        self._expect("(")
        parts = [self._alternative()]
        while self._take(","):
            parts.append(self._alternative())
        closing = self._expect(")")
        least, most = FUNCTIONS[name.text]
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
        raise formula_error(what, self._text, (start, stop), self._where, advice)
