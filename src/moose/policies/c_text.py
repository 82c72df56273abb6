"""Pieces of C: comments, numbers, tables and calls of layers."""

from __future__ import annotations

import re
from collections.abc import Iterable

import numpy as np
import numpy.typing as npt

from moose.policies.parts import Layers

_NUMBERS_A_LINE = 8


def comment(text: str) -> str:
    """A text without anything that could end the comment or mean something to a compiler."""
    return re.sub(r"[^A-Za-z0-9 _.,:;'(){}\[\]\"&=<>!|+-]", "_", text)


def network_tables(name: str, layers: Layers) -> str:
    """All weights and biases of a network."""
    return "\n".join(
        text
        for i, (weight, bias) in enumerate(layers)
        for text in (table(f"{name}_weight_{i}", weight), table(f"{name}_bias_{i}", bias))
    )


def table(name: str, values: npt.ArrayLike) -> str:
    """An array of constants, in rows."""
    numbers = [literal(value) for value in np.asarray(values, np.float32).ravel()]
    rows = [
        "  " + ", ".join(numbers[i : i + _NUMBERS_A_LINE])
        for i in range(0, len(numbers), _NUMBERS_A_LINE)
    ]
    return f"static const float {name}[{len(numbers)}] = {{\n" + ",\n".join(rows) + "\n};\n"


def literal(value: np.float32) -> str:
    """A float32 as C reads it back, bit for bit."""
    if np.isnan(value):
        return "NAN"
    if np.isinf(value):
        return "INFINITY" if value > 0 else "-INFINITY"
    text = f"{float(value):.9g}"
    return f"{text}f" if re.search(r"[.e]", text) else f"{text}.0f"


def calls(name: str, layers: Layers) -> Iterable[str]:
    """The lines that put moose_front through the layers of a network."""
    for i, (weight, bias) in enumerate(layers):
        sizes = f"{len(weight)}, {len(bias)}, {int(i < len(layers) - 1)}"
        yield f"  moose_layer({name}_weight_{i}, {name}_bias_{i}, {sizes});"
