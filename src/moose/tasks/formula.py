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
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import jax.numpy as jnp
import numpy as np

from moose.errors import nearest
from moose.tasks.formula_reading import read_tree
from moose.tasks.formula_tree import (
    Node,
    Number,
    Signal,
    constant_of,
    formula_error,
    signals_below,
    to_text,
)

Lookup = Callable[[Signal], Any]
"""Gives the value of a signal: a number, or an array of them."""


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
        return tuple(signals_below(self.root))

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
                raise formula_error(
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
                raise formula_error(
                    f"The next value of '{signal.name}' is not known here.",
                    self.text,
                    signal.place,
                    self.where,
                    advice,
                )
            greatest = 0 if signal.name in young else oldest
            if signal.age > greatest:
                frames = "only its present value" if greatest == 0 else f"ages 0 to {greatest}"
                raise formula_error(
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
    return Formula(text, where, read_tree(text, where))


_TINY = float(np.finfo(np.float32).tiny)
_LARGEST_EXPONENT = 88.0


def _evaluate(node: Node, lookup: Lookup, operations: Mapping[str, Callable[..., Any]]) -> Any:
    if isinstance(node, Number):
        return node.value
    if isinstance(node, Signal):
        return lookup(node)
    if node.symbol == "**":
        base = _evaluate(node.arguments[0], lookup, operations)
        return operations["**"](base, constant_of(node.arguments[1]))
    values = [_evaluate(argument, lookup, operations) for argument in node.arguments]
    if node.symbol in {"min", "max"}:
        result = values[0]
        for value in values[1:]:
            result = operations[node.symbol](result, value)
        return result
    return operations[node.symbol](*values)


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
