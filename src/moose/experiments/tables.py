"""Tables of a grid in the layout of the paper, with the paper's figures beside ours.

A row is an algorithm, a column a data set; the figure is the 10th percentile of the evaluations in
the final tenth of the updates, pooled over the seeds that are finished, and its error. The rows
``behaviour`` and ``hold`` are what every learner has to beat: the log's own return and never
acting, in groups of as many episodes as an evaluation has.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from moose.evaluation.statistics import (
    Comparison,
    mean_with_deviation,
    percentile_interval,
    probability_of_improvement,
    tenth_percentile,
)
from moose.experiments.paper_figures import ALGORITHMS, Published, place_of, published
from moose.experiments.store import Store

REFERENCES = ("behaviour", "hold")
_FIRST_ROWS = (*REFERENCES, "clone")

Groups = list[list[float]]


def make_table(store: Store) -> dict[str, Any]:
    """All figures of a grid.

    Args:
        store: The grid's store.

    Returns:
        Plain values: ``name``; ``rows`` and ``columns`` in order, a column being a data set with
        its place in the paper's tables; and ``cells``, one for each pair that the grid has.
    """
    datasets = store.datasets()
    planned: dict[tuple[str, str], int] = {}
    for label, data, _, _ in store.cells():
        planned[label, data] = planned.get((label, data), 0) + 1
    tails: dict[tuple[str, str], dict[int, list[float]]] = {}
    for label, data, seed, _, mean in store.tails():
        tails.setdefault((label, data), {}).setdefault(seed, []).append(mean)
    order = list(dict.fromkeys(data for _, data in planned))
    references = {
        (name, data): [[value] for value in datasets[data][name]]
        for name in REFERENCES
        for data in order
        if datasets[data][name]
    }
    cells = [
        _cell(name, data, groups, references, done=None, wanted=None)
        for (name, data), groups in references.items()
    ]
    for (label, data), wanted in planned.items():
        groups = list(tails.get((label, data), {}).values())
        cells.append(_cell(label, data, groups, references, done=len(groups), wanted=wanted))
    rows = _row_order(cell["row"] for cell in cells)
    _mark_best(cells)
    return {
        "name": store.facts().get("name", ""),
        "description": store.facts().get("grid", {}).get("description", ""),
        "rows": rows,
        "columns": [{"data": data, **place_of(data)._asdict()} for data in order],
        "cells": sorted(cells, key=lambda c: (order.index(c["data"]), rows.index(c["row"]))),
        "improvement": _improvement(planned, tails, references, rows),
    }


def to_markdown(table: Mapping[str, Any]) -> str:
    """The table as Markdown: one table for each block of the paper's."""
    parts = []
    for block, columns in _blocks(table).items():
        heads = [_head(block, column) for column in columns]
        lines = [
            f"| {block or 'algorithm'} | " + " | ".join(heads) + " |",
            "|---|" + "---:|" * len(columns),
        ]
        for row in table["rows"]:
            texts = [_markdown_cell(_find(table, row, column["data"])) for column in columns]
            if any(texts):
                lines.append(f"| {row} | " + " | ".join(texts) + " |")
        parts.append("\n".join(lines))
    return "\n\n".join(parts) + "\n"


def to_latex(table: Mapping[str, Any]) -> str:
    """The table as a LaTeX ``tabular`` for the package booktabs."""
    parts = []
    for block, columns in _blocks(table).items():
        heads = " & ".join(_latex(_head(block, column)) for column in columns)
        lines = [
            rf"\begin{{tabular}}{{l{'r' * len(columns)}}}",
            r"\toprule",
            rf"{_latex(block or 'algorithm')} & {heads} \\",
            r"\midrule",
        ]
        for row in table["rows"]:
            texts = [_latex_cell(_find(table, row, column["data"])) for column in columns]
            if any(texts):
                lines.append(rf"{_latex(row)} & {' & '.join(texts)} \\")
        parts.append("\n".join([*lines, r"\bottomrule", r"\end{tabular}"]))
    return "\n\n".join(parts) + "\n"


def to_csv(table: Mapping[str, Any]) -> str:
    """One line for each cell, with everything that is known of it."""
    stream = io.StringIO()
    writer = csv.writer(stream, lineterminator="\n")
    writer.writerow(_CSV_COLUMNS)
    for cell in table["cells"]:
        writer.writerow([_csv_text(make(cell)) for make in _CSV_COLUMNS.values()])
    return stream.getvalue()


FORMATS: Mapping[str, Callable[[Mapping[str, Any]], str]] = {
    "markdown": to_markdown,
    "csv": to_csv,
    "latex": to_latex,
}


def _cell(
    row: str,
    data: str,
    groups: Groups,
    references: Mapping[tuple[str, str], Groups],
    *,
    done: int | None,
    wanted: int | None,
) -> dict[str, Any]:
    paper = published(place_of(data), row)
    cell: dict[str, Any] = {
        "row": row,
        "data": data,
        "seeds_done": done,
        "seeds_planned": wanted,
        "values": sum(map(len, groups)),
        "percentile_10": None,
        "error": None,
        "interval": None,
        "mean": None,
        "deviation": None,
        "is_best": False,
        "paper": None if paper is None else paper._asdict(),
        **{f"over_{name}": None for name in REFERENCES},
    }
    if not groups:
        return cell
    pooled = [value for group in groups for value in group]
    figure, spread = tenth_percentile(pooled), mean_with_deviation(pooled)
    interval = percentile_interval(groups)
    cell |= {
        "percentile_10": figure.value,
        "error": figure.error,
        "interval": None if interval is None else list(interval),
        "mean": spread.mean,
        "deviation": spread.deviation,
    }
    for name in REFERENCES:
        if row not in REFERENCES and (name, data) in references:
            comparison = probability_of_improvement([(groups, references[name, data])])
            cell[f"over_{name}"] = _comparison(comparison)
    return cell


def _improvement(
    planned: Mapping[tuple[str, str], int],
    tails: Mapping[tuple[str, str], Mapping[int, list[float]]],
    references: Mapping[tuple[str, str], Groups],
    rows: Sequence[str],
) -> list[dict[str, Any]]:
    """For each learner, how probably it beats each reference, on average over data sets."""
    found = []
    for row in rows:
        datasets = [data for label, data in planned if label == row and tails.get((label, data))]
        for name in REFERENCES:
            tasks = [
                (list(tails[row, data].values()), references[name, data])
                for data in datasets
                if (name, data) in references
            ]
            if tasks:
                comparison = _comparison(probability_of_improvement(tasks))
                found.append({"row": row, "over": name, "datasets": len(tasks), **comparison})
    return found


def _mark_best(cells: Sequence[dict[str, Any]]) -> None:
    """Mark the best learner of each data set, and those within both errors of it."""
    for data in {cell["data"] for cell in cells}:
        learners = [
            cell
            for cell in cells
            if cell["data"] == data
            and cell["row"] not in REFERENCES
            and cell["percentile_10"] is not None
        ]
        best = max(learners, key=lambda cell: cell["percentile_10"], default=None)
        if best is None:
            continue
        floor = best["percentile_10"] - (best["error"] or 0.0)
        for cell in learners:
            cell["is_best"] = cell["percentile_10"] + (cell["error"] or 0.0) >= floor


def _row_order(names: Any) -> list[str]:
    """References and the clone first, then the paper's algorithms in its order, then the rest."""
    seen = list(dict.fromkeys(names))
    known = [*_FIRST_ROWS, *ALGORITHMS]
    return [name for name in known if name in seen] + [name for name in seen if name not in known]


def _blocks(table: Mapping[str, Any]) -> dict[str, list[Mapping[str, Any]]]:
    blocks: dict[str, list[Mapping[str, Any]]] = {}
    for column in table["columns"]:
        blocks.setdefault(column["block"], []).append(column)
    return {name: sorted(columns, key=_epsilon) for name, columns in blocks.items()}


def _epsilon(column: Mapping[str, Any]) -> float:
    return float(column["column"]) if column["block"] else 0.0


def _find(table: Mapping[str, Any], row: str, data: str) -> Mapping[str, Any] | None:
    for cell in table["cells"]:
        if (cell["row"], cell["data"]) == (row, data):
            found: Mapping[str, Any] = cell
            return found
    return None


def _head(block: str, column: Mapping[str, Any]) -> str:
    return f"ε = {column['column']}" if block else str(column["column"])


def _markdown_cell(cell: Mapping[str, Any] | None) -> str:
    if cell is None:
        return ""
    own = _own_figure(cell)
    parts = [f"**{own}**" if cell["is_best"] else own, _share(cell)]
    if cell["paper"] is not None:
        parts.append(f"(paper {_figure(Published(**cell['paper']))})")
    return " ".join(filter(None, parts))


def _latex_cell(cell: Mapping[str, Any] | None) -> str:
    if cell is None:
        return ""
    own = _latex(_own_figure(cell))
    parts = [rf"\textbf{{{own}}}" if cell["is_best"] else own, _share(cell)]
    if cell["paper"] is not None:
        parts.append(f"({_latex(_figure(Published(**cell['paper'])))})")
    return " ".join(filter(None, parts))


def _own_figure(cell: Mapping[str, Any]) -> str:
    value, error = cell["percentile_10"], cell["error"]
    if value is None:
        return "–"
    return _number(value) if error is None else f"{_number(value)} ± {error:.2g}"


def _figure(figure: Published) -> str:
    return f"{_number(figure.percentile_10)} ± {figure.standard_error:g}"


def _share(cell: Mapping[str, Any]) -> str:
    """How many seeds of how many, while not all are finished."""
    done, planned = cell["seeds_done"], cell["seeds_planned"]
    return "" if done == planned else f"[{done}/{planned}]"


def _number(value: float) -> str:
    return f"{value:.1f}" if abs(value) >= 100 else f"{value:.2f}"


def _latex(text: str) -> str:
    for mark, word in (("±", r"$\pm$"), ("ε", r"$\varepsilon$"), ("λ", r"$\lambda$")):
        text = text.replace(mark, word)
    for mark in "_%#":
        text = text.replace(mark, f"\\{mark}")
    return text.replace("–", "--")


def _comparison(comparison: Comparison) -> dict[str, Any]:
    interval = list(comparison.interval)
    return {"probability": comparison.probability, "interval": interval}


def _part(name: str, index: int | None = None, key: str | None = None) -> Any:
    def value(cell: Mapping[str, Any]) -> Any:
        content = cell[name]
        if content is not None and key is not None:
            content = content[key]
        return content if content is None or index is None else content[index]

    return value


_CSV_COLUMNS: Mapping[str, Callable[[Mapping[str, Any]], Any]] = {
    "data": _part("data"),
    "row": _part("row"),
    **{name: _part(name) for name in ("seeds_done", "seeds_planned", "values")},
    **{name: _part(name) for name in ("percentile_10", "error")},
    "interval_low": _part("interval", 0),
    "interval_high": _part("interval", 1),
    **{name: _part(name) for name in ("mean", "deviation", "is_best")},
    **{
        f"over_{name}_{suffix}": _part(f"over_{name}", index, key)
        for name in REFERENCES
        for suffix, key, index in (
            ("probability", "probability", None),
            ("low", "interval", 0),
            ("high", "interval", 1),
        )
    },
    "paper_percentile_10": _part("paper", key="percentile_10"),
    "paper_standard_error": _part("paper", key="standard_error"),
}


def _csv_text(value: Any) -> Any:
    return "" if value is None else value
