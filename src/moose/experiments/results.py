"""Results that are kept: what a grid has found, as small files, and the page made from them."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from moose.errors import DataError, StorageError
from moose.experiments.grid_figures import make_curves, write_figures
from moose.experiments.known_runs import KnownRuns, read_runs, write_runs
from moose.experiments.store import STORE, Store
from moose.experiments.tables import make_table, to_csv, to_markdown
from moose.storage import (
    MANIFEST,
    atomic_folder,
    read_json,
    read_manifest,
    write_json,
    write_manifest,
)

_FORMAT = "moose-results"
_SCHEMA_VERSION = 1
_TABLE = "table.json"
_RUNS = "runs.json"
_FIGURES = "figures"
_SECTION = "section.md"


def publish(store: Store, results: Path) -> Path:
    """Write table, curves, pictures and finished runs of a grid into a folder of results.

    Args:
        store: The grid's store.
        results: The folder that holds all results; the grid gets one below it, which replaces
            what an earlier call has left there.

    Returns:
        The grid's own folder.

    Raises:
        StorageError: The grid was interrupted before its runs were planned.
    """
    if "grid" not in store.facts():
        raise StorageError(
            "This grid has no runs yet: it was interrupted while its data sets were prepared.",
            where=str(store.path.parent),
            advice="go on with it: moose grid run FILE --out " + str(store.path.parent),
        )
    table = make_table(store)
    place = results / str(table["name"])
    with atomic_folder(place, replaces=_FORMAT) as folder:
        write_json(folder / _TABLE, table)
        write_json(folder / "curves.json", make_curves(store))
        write_json(folder / "grid.json", {"grid": store.facts()["grid"]})
        (folder / "table.csv").write_text(to_csv(table), encoding="utf-8")
        write_runs(folder / _RUNS, store)
        write_figures(store, folder / _FIGURES, "svg")
        counts = store.counts()
        write_manifest(folder, _FORMAT, _SCHEMA_VERSION, {"name": table["name"], "runs": counts})
    return place


def read_published_runs(place: Path) -> KnownRuns:
    """The finished runs of a published grid.

    Args:
        place: The grid's own folder, as :func:`publish` returned it.

    Returns:
        The runs, for :func:`~moose.experiments.known_runs.take_over`.

    Raises:
        StorageError: The folder is not a published grid, is damaged, or has no runs.
    """
    if not (place / MANIFEST).is_file():
        raise _not_published(place, place)
    try:
        manifest = read_manifest(place, _FORMAT, _SCHEMA_VERSION)
    except DataError as error:
        raise _not_published(place, place / MANIFEST) from error
    if _RUNS not in manifest["files"]:
        raise StorageError(
            "This grid was published without its runs, by an earlier version of moose.",
            where=str(place / _RUNS),
            advice="publish it anew with this version where it was run: moose grid publish "
            f"runs/x {place.parent}",
        )
    return KnownRuns(str(place), read_runs(place / _RUNS))


def make_page(results: Path, base: Path) -> str:
    """The page of results: the table and the pictures of every grid that was published.

    A folder of results that a study has left there may bring a section of its own.

    Args:
        results: The folder of results.
        base: The folder that the page will be in, for its links.

    Returns:
        Markdown.
    """
    if not results.is_dir():
        raise StorageError(
            "There is no folder of results here.",
            where=str(results),
            advice="publish a grid first: moose grid publish runs/x results",
        )
    parts = [_INTRODUCTION]
    for place in sorted(results.iterdir()):
        if (place / _TABLE).is_file():
            manifest = read_manifest(place, _FORMAT, _SCHEMA_VERSION)
            parts.append(_section(place, manifest, read_json(place / _TABLE), base))
        elif (place / _SECTION).is_file():
            text = (place / _SECTION).read_text(encoding="utf-8")
            parts.append(f"{text}\n[All numbers]({_link(place, base)}).\n")
    if len(parts) == 1:
        parts.append("No grid has been published yet.\n")
    return "\n".join(parts)


def _section(place: Path, manifest: Mapping[str, Any], table: Mapping[str, Any], base: Path) -> str:
    runs = manifest["runs"]
    total = sum(runs.values())
    lines = [f"## {table['name']}", ""]
    if table["description"]:
        lines += [table["description"], ""]
    state = "All" if runs["done"] == total else f"**Partial:** {runs['done']} of"
    lines += [
        f"{state} {total} runs are finished. [All numbers]({_link(place, base)}/table.csv).",
        "",
    ]
    lines += [to_markdown(table)]
    if table["improvement"]:
        lines += [
            "| | over | probability of improvement | 95 % interval | data sets |",
            "|---|---|---:|---:|---:|",
        ]
        for row in table["improvement"]:
            low, high = row["interval"]
            lines.append(
                f"| {row['row']} | {row['over']} | {row['probability']:.2f} | "
                f"{low:.2f} to {high:.2f} | {row['datasets']} |"
            )
        lines.append("")
    for picture in sorted((place / _FIGURES).glob("*.svg")):
        lines += [f"![learning curves]({_link(picture, base)})", ""]
    return "\n".join(lines)


def _not_published(place: Path, where: Path) -> StorageError:
    below = sorted(file.parent for file in place.glob(f"*/{_TABLE}"))
    if (place / STORE).is_file():
        advice = (
            f"this is the folder of a grid: publish it first: moose grid publish {place} results"
        )
    elif below:
        advice = f"give a grid's own folder, such as {below[0]}"
    else:
        advice = "give the folder that 'moose grid publish' named, such as results/x"
    return StorageError("This is not a published grid.", where=str(where), advice=advice)


def _link(path: Path, base: Path) -> str:
    return Path(os.path.relpath(path, base)).as_posix()


_INTRODUCTION = """\
# Results

This page is made by `moose grid page` from what `moose grid publish` has left in a folder of
results; make it anew instead of changing it.

A figure is the 10th percentile of the evaluations in the final tenth of the updates, pooled over
seeds, ± its error (1.7 deviations over the root of their number). The paper's figure stands in
brackets beside ours; the best learner and those within both errors of it are bold; `[2/10]` says
that two of ten seeds are finished. `behaviour` is what the log itself earned and `hold` is never
acting (the log's mean action where no action means that), both in groups of as many episodes as an
evaluation has. The column ε = 1.0 is the data set of random actions only, which the paper shows
once. The probability of improvement is that of one evaluation over another, ties counted half, with
a bootstrap interval over seeds; a single seed cannot say anything about others.
"""
