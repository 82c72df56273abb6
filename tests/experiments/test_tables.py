"""Tables: the right figures at the right places, with the paper's beside them."""

from __future__ import annotations

import csv
import io

import numpy as np
import pytest

from filled_stores import filled_store
from moose.experiments.paper_figures import ALGORITHMS, Place, Published, place_of, published
from moose.experiments.tables import make_table, to_csv, to_latex, to_markdown

MEANS = {
    ("moose", "ib/bad-0.2"): -126.0,
    ("bcq", "ib/bad-0.2"): -286.0,
    ("clone", "ib/bad-0.2"): -270.0,
    ("moose", "ib/global-1.0"): -64.0,
    ("bcq", "ib/global-1.0"): -64.01,
    ("clone", "ib/global-1.0"): -90.0,
    ("moose", "ib/mediocre-0.2"): -77.0,
}


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    done = {("bcq", "ib/bad-0.2"): 1, ("moose", "ib/mediocre-0.2"): 0}
    with filled_store(tmp_path_factory.mktemp("grid"), MEANS, done=done) as made:
        yield made


@pytest.fixture(scope="module")
def table(store):
    return make_table(store)


def cell_of(table, row, data):
    (found,) = [c for c in table["cells"] if (c["row"], c["data"]) == (row, data)]
    return found


# The paper


@pytest.mark.parametrize(
    ("data", "algorithm", "figure"),
    [
        ("ib/bad-0.2", "moose", Published(-125.9, 2.2)),
        ("ib/global-1.0", "moose", Published(-64.27, 0.03)),
        ("ib/optimized-0.8", "brac", Published(-115.6, 2.6)),
        ("mujoco/hopper", "moose", Published(147.2, 0.2)),
        ("mujoco/walker2d-v4", "bear", Published(-7.0, 3.8)),
        ("ib/bad-0.2", "clone", None),
        ("data/own-log", "moose", None),
    ],
)
def test_the_papers_figures_are_found_by_the_name_of_the_data(data, algorithm, figure):
    assert published(place_of(data), algorithm) == figure


def test_all_of_the_papers_figures_are_there():
    from moose.envs.recipes import dataset_names

    for algorithm in ALGORITHMS:
        assert all(published(place_of(name), algorithm) for name in dataset_names())
        for environment in ("Swimmer", "Hopper", "Walker2d"):
            assert published(Place("", environment), algorithm)


# Figures


def test_figures_are_the_tenth_percentile_of_the_pooled_tails(store, table):
    cell = cell_of(table, "moose", "ib/bad-0.2")
    tails = [row[4] for row in store.tails() if row[:2] == ("moose", "ib/bad-0.2")]
    assert len(tails) == 30
    assert cell["values"] == 30
    assert cell["percentile_10"] == pytest.approx(np.percentile(tails, 10.0))
    assert cell["error"] == pytest.approx(1.7 * np.std(tails, ddof=1) / np.sqrt(30))
    assert cell["mean"] == pytest.approx(np.mean(tails))
    assert cell["interval"][0] < cell["percentile_10"] < cell["interval"][1]
    assert cell["paper"] == {"percentile_10": -125.9, "standard_error": 2.2}


def test_references_are_in_every_column(table):
    assert table["rows"] == ["behaviour", "hold", "clone", "bcq", "moose"]
    for column in table["columns"]:
        hold = cell_of(table, "hold", column["data"])
        assert hold["percentile_10"] == pytest.approx(-65.8)
        assert cell_of(table, "behaviour", column["data"])["mean"] == pytest.approx(-200.0)
        assert not hold["is_best"]


def test_learners_are_compared_with_the_references(table):
    good, bad = cell_of(table, "moose", "ib/bad-0.2"), cell_of(table, "clone", "ib/bad-0.2")
    assert good["over_behaviour"] == {"probability": 1.0, "interval": [1.0, 1.0]}
    assert good["over_hold"]["probability"] == 0.0
    assert bad["over_behaviour"]["probability"] == 0.0
    overall = {(row["row"], row["over"]): row for row in table["improvement"]}
    # On one of two data sets it beats hold.
    assert overall["moose", "hold"]["datasets"] == 2
    assert overall["moose", "hold"]["probability"] == pytest.approx(0.5, abs=0.05)


def test_the_best_are_marked_with_those_within_both_errors(table):
    best = {(cell["row"], cell["data"]) for cell in table["cells"] if cell["is_best"]}
    assert best == {
        ("moose", "ib/bad-0.2"),
        ("moose", "ib/global-1.0"),
        ("bcq", "ib/global-1.0"),
    }


def test_a_table_without_any_run_has_its_references(tmp_path):
    with filled_store(
        tmp_path, {("moose", "ib/bad-0.2"): 0.0}, seeds=2, done={("moose", "ib/bad-0.2"): 0}
    ) as store:
        table = make_table(store)
    assert "| moose | – [0/2] (paper -125.9 ± 2.2) |" in to_markdown(table)
    assert "| hold | -65.80 ± " in to_markdown(table)
    assert table["improvement"] == []


# Layout


def test_markdown_has_the_papers_blocks_and_columns(table):
    text = to_markdown(table)
    bad, mediocre = text.split("\n\n")
    assert bad.splitlines()[0] == "| bad | ε = 0.2 |"
    assert mediocre.splitlines()[0] == "| mediocre | ε = 0.2 | ε = 1.0 |"
    row = next(line for line in bad.splitlines() if line.startswith("| moose"))
    assert row.startswith("| moose | **-126.")
    assert row.endswith("** (paper -125.9 ± 2.2) |")
    partial = next(line for line in bad.splitlines() if line.startswith("| bcq"))
    assert "[1/3]" in partial
    widths = {line.count("|") for line in mediocre.splitlines()}
    assert widths == {4}


def test_latex_has_the_same_figures(table):
    text = to_latex(table)
    assert text.count(r"\begin{tabular}") == text.count(r"\end{tabular}") == 2
    assert r"\textbf{-126." in text
    assert r"$\pm$" in text
    assert "±" not in text
    assert "ε" not in text
    for line in text.splitlines():
        if line.endswith(r"\\") and line.startswith("moose"):
            assert line.count("&") in {1, 2}


def test_csv_has_one_line_a_cell(table):
    rows = list(csv.DictReader(io.StringIO(to_csv(table))))
    assert len(rows) == len(table["cells"])
    row = next(r for r in rows if (r["row"], r["data"]) == ("moose", "ib/bad-0.2"))
    cell = cell_of(table, "moose", "ib/bad-0.2")
    assert float(row["percentile_10"]) == cell["percentile_10"]
    assert float(row["interval_high"]) == cell["interval"][1]
    assert float(row["over_behaviour_probability"]) == 1.0
    assert float(row["paper_standard_error"]) == 2.2
    empty = next(r for r in rows if (r["row"], r["data"]) == ("moose", "ib/mediocre-0.2"))
    assert empty["percentile_10"] == ""
