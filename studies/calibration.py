"""The calibration study: which reading of the paper's open points agrees with its Table 2?

Every variant is an ordinary run (interrupt it, start it again: it goes on), trained on the same
fitted models where the variant does not change them. Screening uses few start states per update,
the finalists use the paper's 100.

    python studies/calibration.py --stage screening --out runs/calibration
    python studies/calibration.py --stage finalists --only paper --out runs/calibration
    python studies/calibration.py --collect results/calibration --out runs/calibration
"""

from __future__ import annotations

import argparse
import csv
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from moose.errors import RunError, nearest
from moose.experiments import runner
from moose.experiments.evaluate import tail_of_training
from moose.experiments.run_folder import read_evaluations, read_run
from moose.progress import make_progress
from moose.storage import atomic_file

# The paper's Table 2, MOOSE's row.
PAPER = {
    "ib/bad-0.2": -125.9,
    "ib/mediocre-0.0": -82.95,
    "ib/optimized-0.0": -59.72,
    "ib/optimized-0.4": -60.81,
    "ib/global-1.0": -64.27,
}

# One change at a time from the first: starting early, rewards summed, penalties averaged, one
# sample of the latent.
VARIANTS = {
    "paper": [],
    "starts-any": ["search.starts=any"],
    "starts-first": ["search.starts=first"],
    "means": ["search.return_reduction=mean"],
    "sums": ["search.penalty_reduction=sum"],
    "latent-mean": ["search.latent=mean"],
    "kl-0.5": ["support.kl_weight=0.5"],
    "sees-frame": ["support.sees=frame"],
    "means-starts-any": ["search.return_reduction=mean", "search.starts=any"],
}

STAGES = {
    "screening": (
        ("ib/bad-0.2", "ib/mediocre-0.0", "ib/optimized-0.4", "ib/global-1.0"),
        ["search.start_states=12", "search.updates=300", "search.checks=30"],
    ),
    "finalists": (tuple(PAPER), []),
}

STEPS_SHOWN = (10, 20, 50, 100, 200, 300, 500, 700, 1000)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run a stage, or collect what has been run."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--stage", choices=STAGES, help="which runs to make")
    parser.add_argument("--only", default="", help="comma-separated variants (default: all)")
    parser.add_argument("--data", default="", help="comma-separated data sets (default: all)")
    parser.add_argument("--set", action="append", default=[], help="a setting for all runs")
    parser.add_argument("--out", type=Path, required=True, help="folder of the runs")
    parser.add_argument("--collect", type=Path, help="folder to write the table into")
    chosen = parser.parse_args(arguments)
    stopped = []
    if chosen.stage:
        datasets, common = STAGES[chosen.stage]
        variants = [name for name in chosen.only.split(",") if name] or [*VARIANTS]
        for name in variants:
            if name not in VARIANTS:
                parser.error(f"--only: there is no variant '{name}'; {nearest(name, VARIANTS)}")
        for variant in variants:
            for data in [name for name in chosen.data.split(",") if name] or datasets:
                folder = chosen.out / chosen.stage / variant / data.replace("/", "-")
                overrides = [*common, *VARIANTS[variant], *chosen.set]
                request = runner.make_request(data, algorithm="moose", overrides=overrides)
                try:
                    runner.continue_run(request, folder, progress=make_progress(sys.stderr))
                except RunError as error:  # of a reading that cannot be trained; the others can
                    stopped.append(f"{variant} on {data} stopped: {error}")
    if chosen.collect:
        collect(chosen.out, chosen.collect)
    if stopped:
        sys.exit("\n".join(stopped))


def collect(runs: Path, results: Path) -> None:
    """Write one line a run: its curve, the tail's percentile, the paper's figure."""
    folders = [file.parent for file in sorted(runs.glob("*/*/*/manifest.json"))]
    if not folders:
        sys.exit(f"there are no runs in {runs}: make some first with --stage")
    rows = []
    for folder in folders:
        manifest = read_run(folder)
        stage, variant, _ = folder.relative_to(runs).parts
        lines = read_evaluations(folder)
        curve = {int(line["step"]): float(np.mean(line["returns"])) for line in lines}
        tail = tail_of_training([lines]) or {}
        rows.append(
            {
                "stage": stage,
                "variant": variant,
                "data": manifest.request.data,
                "digest": manifest.digest,
                **settings_of(manifest.request.config),
                "updates": max(curve, default=0),
                **{f"after_{step}": rounded(curve.get(step)) for step in STEPS_SHOWN},
                "tail_p10": rounded(tail.get("percentile_10")),
                "tail_error": rounded(tail.get("error")),
                "paper": PAPER.get(manifest.request.data),
                **{f"version_{name}": text for name, text in manifest.versions.items()},
            }
        )
    results.mkdir(parents=True, exist_ok=True)
    with (
        atomic_file(results / "calibration.csv") as temporary,
        open(temporary, "w", newline="", encoding="utf-8") as stream,
    ):
        writer = csv.DictWriter(stream, fieldnames=list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)


def settings_of(config: Mapping[str, Any]) -> dict[str, Any]:
    """The settings that the study varies, from a run's manifest."""
    search, support = config["search"], config["support"]
    # Runs from before the two reductions were told apart have one for both.
    both = search.get("reduction")
    return {
        "return_weight": search["return_weight"],
        "learning_rate": search["learning_rate"],
        "start_states": search["start_states"],
        "starts": search["starts"],
        "return_reduction": search.get("return_reduction", both),
        "penalty_reduction": search.get("penalty_reduction", both),
        "latent": search["latent"],
        "kl_weight": support["kl_weight"],
        "sees": support["sees"],
    }


def rounded(value: float | None) -> float | None:
    """Two decimals: what is beyond is noise."""
    return None if value is None else round(value, 2)


if __name__ == "__main__":
    main()
