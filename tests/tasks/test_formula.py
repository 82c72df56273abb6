"""Formulas: what they mean, how they fail, and that nothing but our own error escapes."""

from __future__ import annotations

import math

import hypothesis.strategies as st
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given

from fuzzing import fuzzed
from moose.errors import UserError
from moose.tasks.formula import parse_formula
from moose.tasks.formula_reading import DEEPEST_NESTING, LONGEST_TEXT, MOST_PARTS
from moose.tasks.formula_tree import FormulaError, Number, Operation, Signal, to_text

VALUES = {"x": 2.0, "y": -3.0, "FIC 101.PV": 0.5, "größe": 7.0}
OLDER = {"x": 10.0}


def in_numpy(text, values=VALUES):
    def lookup(signal):
        return (values, OLDER)[signal.age][signal.name]

    return float(parse_formula(text).in_numpy(lookup))


def in_jax(text, values=VALUES):
    def lookup(signal):
        return jnp.float32((values, OLDER)[signal.age][signal.name])

    return float(parse_formula(text).in_jax(lookup))


MEANINGS = [
    ("1 + 2 * 3", 7.0),
    ("(1 + 2) * 3", 9.0),
    ("10 - 4 - 3", 3.0),
    ("10 - (4 - 3)", 9.0),
    ("16 / 4 / 2", 2.0),
    ("-x ** 2", -4.0),
    ("(-x) ** 2", 4.0),
    ("2 ** 3 ** 2", None),  # an exponent is a number
    ("x ^ -1", 0.5),
    ("x ** 0.5", math.sqrt(2.0)),
    ("--x", 2.0),
    ("+x", 2.0),
    (".5 + 1.e1 + 2E-1", 10.7),
    ("min(x, y, 1) + max(x, y)", -1.0),
    ("clip(x, 0, 1) + clip(y, -1, 1)", 0.0),
    ("abs(y) + exp(0) + log(1) + sqrt(4)", 6.0),
    ("where(x > y and not x == 3, 5, 6)", 5.0),
    ("where(x < y or x != 2, 5, 6)", 6.0),
    ("where(x >= 2 and y <= -3, 1, 0)", 1.0),
    ("x[0] - x[1]", -8.0),
    ("`FIC 101.PV` * größe", 3.5),
]


@pytest.mark.parametrize(("text", "meaning"), [pair for pair in MEANINGS if pair[1] is not None])
def test_a_formula_means_the_same_everywhere(text, meaning):
    assert in_numpy(text) == pytest.approx(meaning)
    assert in_jax(text) == pytest.approx(meaning, rel=1e-6)
    again = parse_formula(str(parse_formula(text)))
    assert again.root == parse_formula(text).root


@pytest.mark.parametrize(
    ("text", "what", "caret"),
    [
        ("", "There is no formula", (0, 1)),
        ("x +", "ends too early", (3, 4)),
        ("(x", "')' is missing", (2, 3)),
        ("x y", "'y' does not fit", (2, 3)),
        ("3 $ 4", "'$' has no meaning", (2, 3)),
        ("x = 3", "'=' has no meaning", (2, 3)),
        ("`x", "'`' has no meaning", (0, 1)),
        ("sin(x)", "no function 'sin'", (0, 3)),
        ("mix(x, y)", "no function 'mix'", (0, 3)),
        ("max(x)", "has 1 values; it takes 2 to 20", (0, 6)),
        ("clip(x, 1)", "has 2 values; it takes 3", (0, 10)),
        ("1,5 * x", "',' does not fit", (1, 2)),
        ("x > 1", "true or false where a number", (0, 5)),
        ("where(x, 1, 2)", "number where a condition", (6, 7)),
        ("1 + (x > y)", "true or false where a number", (4, 11)),
        ("where(0 < x < 1, 1, 0)", "Three values are compared", (12, 13)),
        ("2 ** x", "exponent has to be a number", (5, 6)),
        ("2 ** 3 ** 2", "exponent has to be a number", (5, 11)),
        ("x[-1]", "An age is a whole number", (2, 3)),
        ("x[1.5]", "An age is a whole number", (2, 5)),
        ("x[9999]", "An age is a whole number", (2, 6)),
        ("1e999", "too large", (0, 5)),
        ("next(x + 1)", "next() takes the name", (5, 10)),
        ("and", "A value is missing before 'and'", (0, 3)),
        ("* 2", "A value is missing before '*'", (0, 1)),
        ("__import__('os')", "'\\'' has no meaning", (11, 12)),
        ("x.real", "'.' has no meaning", (1, 2)),
    ],
)
def test_mistakes_are_pointed_at(text, what, caret):
    with pytest.raises(FormulaError) as caught:
        parse_formula(text, "plant.yaml: reward")
    assert what.replace("'\\''", '"\'"') in caught.value.what
    place, shown, below = caught.value.where.split("\n")
    assert place == "plant.yaml: reward"
    assert shown.strip() == text.strip()
    start, stop = caret
    assert below == "    " + " " * start + "^" * (stop - start)
    assert caught.value.advice


def test_unknown_names_are_suggested():
    formula = parse_formula("3 * presure + 1", "reward")
    with pytest.raises(FormulaError, match="There is no signal 'presure'") as caught:
        formula.require(["pressure", "flow"], oldest=1)
    assert caught.value.advice == "did you mean 'pressure'?"
    assert caught.value.where.endswith("\n" + " " * 8 + "^" * 7)


def test_what_a_formula_may_not_see():
    def refuse(text, **allowed):
        with pytest.raises(FormulaError) as caught:
            parse_formula(text).require(["x", "a"], **allowed)
        return caught.value

    assert "sees ages 0 to 1" in refuse("x[2]", oldest=1).what
    assert refuse("x[2]", oldest=1).advice == "write x[1]"
    assert "only its present value" in refuse("a[1]", oldest=1, without_past=["a"]).what
    assert "leave it out" in refuse("next(x)", oldest=0).advice
    assert refuse("next(a)", oldest=0, with_next=["x"]).advice == "next() is known of: x"
    parse_formula("next(x) + x[1] + a").require(
        ["x", "a"], oldest=1, without_past=["a"], with_next=["x"]
    )


@pytest.mark.parametrize(
    "text",
    [
        "(" * (DEEPEST_NESTING + 1) + "x" + ")" * (DEEPEST_NESTING + 1),
        "-" * 1900 + "x",
        "+".join(["x"] * (MOST_PARTS // 2 + 1)),
        "x" * (LONGEST_TEXT + 1),
        "not " * 400 + "x > 1",
        "2 ** " + "-" * 1900 + "1",
        "(" * 1999,
    ],
)
def test_size_is_limited(text):
    with pytest.raises(UserError):
        parse_formula(text)


def test_the_largest_formula_can_be_used():
    text = "+".join(["x"] * (MOST_PARTS // 2))
    assert in_numpy(text) == MOST_PARTS // 2 * 2.0
    assert in_jax(text) == MOST_PARTS // 2 * 2.0
    assert parse_formula(str(parse_formula(text))).root == parse_formula(text).root


@pytest.mark.parametrize("x", [-2.0, 0.0, 1e-45, 3.0, 200.0])
@pytest.mark.parametrize(
    "text",
    [
        "where(x > 0, y * log(x) / x, 0)",
        "where(x > 0, y * sqrt(x) * x ** 0.3, x)",
        "where(x < 0, y * exp(x) * x, 1)",
        "where(x > 0, y * exp(-1 / x), 0)",
        "y * x ** -2",
        "abs(x) * max(x, y) / (x - x)",
    ],
)
def test_values_and_gradients_are_finite_everywhere(text, x):
    formula = parse_formula(text)

    def value(x, y):
        return jnp.float32(formula.in_jax(lambda signal: {"x": x, "y": y}[signal.name]))

    results = jax.value_and_grad(value, (0, 1))(jnp.float32(x), jnp.float32(0.5))
    assert np.isfinite(jax.tree.leaves(results)).all()


def test_numpy_tells_what_jax_hides():
    assert in_numpy("x / (x - x)") == math.inf
    assert math.isnan(in_numpy("log(y)"))
    assert math.isnan(in_numpy("sqrt(y)"))
    assert math.isnan(in_numpy("y ** 0.5"))
    assert in_jax("x / (x - x)") == 0.0


def test_gradients_agree_with_differences():
    formula = parse_formula("x ** 3 * y + exp(x / 3) - log(x) * sqrt(x) / y + clip(x, 0, 9) ** -1")

    def value(x):
        return formula.in_jax(lambda signal: {"x": x, "y": jnp.float32(1.7)}[signal.name])

    def precise(x):
        return formula.in_numpy(lambda signal: {"x": x, "y": 1.7}[signal.name])

    step = 1e-6
    expected = (precise(2.0 + step) - precise(2.0 - step)) / (2 * step)
    assert jax.grad(value)(jnp.float32(2.0)) == pytest.approx(expected, rel=1e-5)


# --- fuzzing ---------------------------------------------------------------------------------

NAMES = st.sampled_from(["x", "y", "max", "next", "größe", "FIC 101.PV"])
NUMBERS = st.floats(0, 1e6, allow_nan=False) | st.integers(0, 9).map(float)


def numbers_from(below):
    pairs = st.sampled_from("+-*/")
    return st.one_of(
        st.tuples(pairs, below, below).map(lambda p: Operation(p[0], p[1:])),
        below.map(lambda node: Operation("negative", (node,))),
        st.tuples(below, NUMBERS).map(lambda p: Operation("**", (p[0], Number(p[1])))),
        st.tuples(st.sampled_from(["min", "max"]), below, below).map(
            lambda p: Operation(p[0], p[1:])
        ),
        st.tuples(conditions(below), below, below).map(lambda p: Operation("where", p)),
    )


def conditions(below):
    compared = st.tuples(st.sampled_from(["<", "<=", "==", "!="]), below, below)
    simple = compared.map(lambda p: Operation(p[0], p[1:]))
    joined = st.tuples(st.sampled_from(["and", "or"]), simple, simple)
    return st.one_of(
        simple,
        joined.map(lambda p: Operation(p[0], p[1:])),
        simple.map(lambda node: Operation("not", (node,))),
    )


LEAVES = NUMBERS.map(Number) | st.builds(Signal, NAMES, st.integers(0, 3))
TREES = st.recursive(LEAVES, numbers_from, max_leaves=12)


@fuzzed
@given(TREES)
def test_text_and_tree_are_the_same(tree):
    assert parse_formula(to_text(tree)).root == tree


PIECES = [
    *(
        "x",
        "y",
        "1",
        "2.5e3",
        "(",
        ")",
        "[",
        "]",
        ",",
        "+",
        "-",
        "*",
        "**",
        "/",
        "^",
        "<",
        "==",
        " ",
    ),
    *(
        "and",
        "or",
        "not",
        "max(",
        "where(",
        "next(",
        "clip(",
        "`",
        "`a b`",
        "é",
        "\n",
        "\x00",
        "[1]",
    ),
]


@fuzzed
@given(st.lists(st.sampled_from(PIECES), max_size=30).map("".join) | st.text(max_size=60))
def test_only_our_error_escapes(text):
    try:
        formula = parse_formula(text)
    except FormulaError as error:
        assert error.what  # noqa: PT017
        assert "^" in error.where  # noqa: PT017
        return
    assert parse_formula(str(formula)).root == formula.root
    value = formula.in_numpy(lambda signal: np.array([1.0, 2.0]))
    assert np.broadcast_to(value, 2).dtype.kind == "f"
