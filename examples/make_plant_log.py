"""Make the tutorial's log: an Industrial Benchmark run, exported as a historian would.

    python examples/make_plant_log.py

writes ``examples/plant/plant.csv.gz`` and ``plant_german.csv.gz``, the same rows with semicolons,
decimal commas and German dates; byte for byte the same every time. One row a minute, eight hours
a run: the measured
fatigue and consumption, the set-points chosen in that minute, the load and the number of the run.
The log has what logs have: stops between the runs, a gap, a stuck sensor, a few missing values.
"""

from __future__ import annotations

import datetime
import gzip
from pathlib import Path

import numpy as np

from moose.envs.catalog import make_dataset
from moose.envs.recipes import recipe_of
from moose.storage import atomic_file

FOLDER = Path(__file__).parent / "plant"
HEADER = ("time", "run", "load", "velocity", "gain", "shift", "fatigue", "consumption")
RUNS, MINUTES = 84, 480
GAP = (5, 300, 312)
STUCK = (9, 200, 290)
MISSING = ((1, 77, "fatigue"), (1, 78, "fatigue"), (7, 410, "consumption"), (15, 33, "fatigue"))


def main() -> None:
    """Write both files."""
    table = list(rows())
    write(FOLDER / "plant.csv.gz", table, ",", ".", "%Y-%m-%d %H:%M:%S")
    write(FOLDER / "plant_german.csv.gz", table, ";", ",", "%d.%m.%Y %H:%M:%S")


def rows():
    """Time and cells of each row."""
    dataset = make_dataset(recipe_of("ib/mediocre-0.6", episodes=RUNS, steps=MINUTES, seed=7))
    start = datetime.datetime(2024, 3, 4, 6)
    for run in range(RUNS):
        first = dataset.offsets[run] + run
        frames = dataset.observations[first : first + MINUTES + 1].astype(np.float64)
        if run == STUCK[0]:
            frames[STUCK[1] : STUCK[2], 5] = frames[STUCK[1], 5]
        for minute in range(MINUTES):
            if run == GAP[0] and GAP[1] <= minute < GAP[2]:
                continue
            load, _, _, _, fatigue, consumption = frames[minute]
            # What was chosen in this minute is in force in the next frame.
            _, velocity, gain, shift, _, _ = frames[minute + 1]
            numbers = dict(
                zip(HEADER[2:], (load, velocity, gain, shift, fatigue, consumption), strict=True)
            )
            cells = {name: f"{number:.3f}" for name, number in numbers.items()}
            cells |= {name: "" for r, m, name in MISSING if (r, m) == (run, minute)}
            yield start + datetime.timedelta(minutes=minute), str(run + 1), list(cells.values())
        start += datetime.timedelta(minutes=MINUTES + 20 * (run % 4 + 1))


def write(path, table, delimiter, decimal, time_format):
    """The rows as a compressed CSV file."""
    lines = [delimiter.join(HEADER)]
    for time, run, cells in table:
        numbers = [cell.replace(".", decimal) for cell in cells]
        lines.append(delimiter.join([time.strftime(time_format), run, *numbers]))
    with atomic_file(path) as temporary:
        content = ("\n".join(lines) + "\n").encode()
        temporary.write_bytes(gzip.compress(content, compresslevel=9, mtime=0))


if __name__ == "__main__":
    main()
