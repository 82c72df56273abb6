"""The calibration study: which reading of the paper's open points agrees with its Table 2?

Every variant is an ordinary run (interrupt it, start it again: it goes on), trained on the same
fitted models where the variant does not change them. Screening uses few start states per update,
the finalists use the paper's 100.

    python studies/calibration.py --stage screening --out runs/calibration
    python studies/calibration.py --stage finalists --out runs/calibration
    python studies/calibration.py --collect results/calibration --out runs/calibration
"""

from __future__ import annotations

import argparse
import csv
import json
import sys
from pathlib import Path

import numpy as np

from moose.evaluation.statistics import summarise_tail
from moose.experiments import runner
from moose.progress import make_progress

# The paper's Table 2, MOOSE's row.
PAPER = {
    "ib/bad-0.2": -125.9,
    "ib/mediocre-0.0": -82.95,
    "ib/optimized-0.0": -59.72,
    "ib/optimized-0.4": -60.81,
    "ib/global-1.0": -64.27,
}

# One change at a time from the first.
VARIANTS = {
    "any-mean": [],
    "early-mean": ["search.starts=early"],
    "first-mean": ["search.starts=first"],
    "any-sum": ["search.reduction=sum"],
    "any-sample": ["search.latent=sample"],
    "any-kl0.5": ["support.kl_weight=0.5"],
    "any-frame": ["support.sees=frame"],
}

STAGES = {
    "screening": (
        ("ib/bad-0.2", "ib/mediocre-0.0", "ib/optimized-0.4", "ib/global-1.0"),
        ["search.start_states=12"],
    ),
    "finalists": (tuple(PAPER), []),
}

STEPS_SHOWN = (10, 20, 50, 100, 200, 300, 500, 700, 1000)


def main() -> None:
    """Run a stage, or collect what has been run."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--stage", choices=STAGES, help="which runs to make")
    parser.add_argument("--only", default="", help="comma-separated variants (default: all)")
    parser.add_argument("--data", default="", help="comma-separated data sets (default: all)")
    parser.add_argument("--out", type=Path, required=True, help="folder of the runs")
    parser.add_argument("--collect", type=Path, help="folder to write the table into")
    arguments = parser.parse_args()
    if arguments.stage:
        datasets, common = STAGES[arguments.stage]
        chosen = [name for name in arguments.only.split(",") if name] or list(VARIANTS)
        wanted = [name for name in arguments.data.split(",") if name] or list(datasets)
        for variant in chosen:
            for data in wanted:
                run(arguments.stage, variant, data, common, arguments.out)
    if arguments.collect:
        collect(arguments.out, arguments.collect)


def run(stage: str, variant: str, data: str, common: list[str], out: Path) -> None:
    """Start or go on with one run; a finished one is left alone."""
    folder = out / stage / variant / data.replace("/", "-")
    progress = make_progress(sys.stderr)
    if (folder / "manifest.json").exists():
        runner.resume_run(folder, progress=progress)
        return
    request = runner.make_request(data, overrides=[*common, *VARIANTS[variant]], seed=0)
    runner.start_run(request, folder, progress=progress)


def collect(runs: Path, results: Path) -> None:
    """Write one line a run: curve, tail percentile, the paper's figure."""
    rows = []
    versions = {}
    for manifest in sorted(runs.glob("*/*/*/manifest.json")):
        folder = manifest.parent
        stage, variant, _ = folder.relative_to(runs).parts
        versions = runner.read_run(folder)["versions"]
        data = runner.read_run(folder)["request"]["data"]
        lines = runner.read_evaluations(folder)
        curve = {int(line["step"]): float(np.mean(line["returns"])) for line in lines}
        last = max(curve, default=0)
        tail = summarise_tail([lines]) if last else None
        rows.append(
            {"stage": stage, "variant": variant, "data": data, "updates": last}
            | {f"after_{step}": _rounded(curve.get(step)) for step in STEPS_SHOWN}
            | {
                "tail_p10": _rounded(tail.percentile if tail else None),
                "tail_error": _rounded(tail.error if tail else None),
                "paper": PAPER[data],
            }
        )
    results.mkdir(parents=True, exist_ok=True)
    with open(results / "calibration.csv", "w", newline="", encoding="utf-8") as stream:
        writer = csv.DictWriter(stream, fieldnames=list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    (results / "versions.json").write_text(json.dumps(versions, indent=2) + "\n")


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 2)


if __name__ == "__main__":
    main()
