"""What a search of a policy has found so far: one row an evaluation, of a run that may go on.

A grid publishes runs that are finished. A long one that had to be interrupted has something to
tell as well: what its policies earned in the plant, what the models promised in the same update,
and what the promise was worth.

    python studies/search_curve.py runs/mujoco/runs/DIGEST --results results/swimmer-search
"""

from __future__ import annotations

import argparse
import csv
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from moose.errors import RunError
from moose.experiments.run_folder import METRICS, read_evaluations, read_lines, read_run
from moose.storage import atomic_file

STAGE = "policy"
PROMISES = ("imagined_return", "model_spread", "penalty", "gradient_norm")


def main(arguments: Sequence[str] | None = None) -> None:
    """Write the table and say how far the search is."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("run", type=Path, help="folder of a run, finished or not")
    parser.add_argument("--results", type=Path, required=True, help="folder of the table")
    chosen = parser.parse_args(arguments)
    request, rows = read_run(chosen.run).request, rows_of(chosen.run)
    chosen.results.mkdir(parents=True, exist_ok=True)
    with (
        atomic_file(chosen.results / "curve.csv") as temporary,
        open(temporary, "w", encoding="utf-8", newline="") as stream,
    ):
        writer = csv.DictWriter(stream, rows[0].keys())
        writer.writeheader()
        writer.writerows(rows)
    wanted = request.config.get("search", request.config).get("updates")
    last = rows[-1]
    print(
        f"{request.algorithm} on {request.data}, seed {request.seed}: {last['updates']:,} of "
        f"{wanted:,} updates, the last policy earns {last['return']}"
    )


def rows_of(run: Path) -> list[dict[str, Any]]:
    """The evaluations of a run, each beside the numbers of the update before it."""
    evaluations = [line for line in read_evaluations(run) if line["stage"] == STAGE]
    if not evaluations:
        raise RunError(
            "This run has no evaluation of its search yet.",
            where=str(run),
            advice="wait until it has fitted its models, or name another run",
        )
    updates = {line["step"]: line for line in read_lines(run / METRICS) if line["stage"] == STAGE}
    rows = []
    for line in evaluations:
        promised = updates.get(line["step"] - 1, {})
        rows.append(
            {
                "updates": line["step"],
                "return": f"{statistics.mean(line['returns']):.4g}",
                **{name: f"{promised[name]:.4g}" if name in promised else "" for name in PROMISES},
            }
        )
    return rows


if __name__ == "__main__":
    main()
