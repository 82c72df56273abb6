"""A small sound log of an invented plant, as rows of text that tests may spoil."""

from __future__ import annotations

import copy
import datetime
from pathlib import Path

import numpy as np

from moose.data.assemble import check_tables, load_tables
from moose.tasks.task_file import check_task_file, make_schema

HEADER = ["time", "temperature", "pressure", "valve", "cost", "batch"]
NUM_ROWS, NUM_EPISODES = 600, 3
INTERVAL = 60

TREE = {
    "name": "boiler",
    "time": "time",
    "interval": INTERVAL,
    "episode": "batch",
    "observations": {
        "temperature": {"low": -50, "high": 500, "unit": "°C"},
        "pressure": {"low": 0},
    },
    "actions": {"valve": {"low": 0, "high": 100, "rate": 8}},
    "hold": "last",
    "reward": {"column": "cost"},
    "history": 3,
    "horizon": 10,
}


def rows(seed=0):
    """A header and rows of texts; three batches of 200 rows, one row a minute."""
    random = np.random.default_rng(seed)
    start = datetime.datetime(2024, 3, 1)
    table = [list(HEADER)]
    valve, temperature = 50.0, 80.0
    for i in range(NUM_ROWS):
        valve = float(np.clip(valve + random.uniform(-5, 5), 1, 99))
        temperature += 0.1 * (60 + 0.4 * valve - temperature) + random.normal(scale=0.3)
        pressure = 3 + 0.02 * temperature + random.normal(scale=0.05)
        cost = -abs(temperature - 82) - 0.01 * valve
        time = start + datetime.timedelta(seconds=INTERVAL * i)
        numbers = [f"{v:.4f}" for v in (temperature, pressure, valve, cost)]
        table.append([f"{time:%Y-%m-%d %H:%M:%S}", *numbers, f"b{i * NUM_EPISODES // NUM_ROWS}"])
    return table


def text_of(table, delimiter=","):
    """The rows as the text of a CSV file."""
    return "".join(delimiter.join(row) + "\n" for row in table)


def tree_with(**changes):
    """The task's content with other values at paths such as ``actions__valve__low``."""
    tree = copy.deepcopy(TREE)
    for path, value in changes.items():
        *parents, last = path.split("__")
        place = tree
        for name in parents:
            place = place[name]
        if value is None:
            place.pop(last, None)
        else:
            place[last] = value
    return tree


def schema_of(tree=None):
    """What the task says about columns."""
    return make_schema(check_task_file(TREE if tree is None else tree))


def findings_of(sources, tree=None):
    """What is found in files or frames."""
    return check_tables(sources, schema_of(tree))


def loaded(sources, tree=None):
    """The data set and findings of files or frames, mended as the task says."""
    content = check_task_file(TREE if tree is None else tree)
    return load_tables(sources, make_schema(content), content.fixes, {"plant": "boiler"})


def write(folder: Path, content, name="log.csv") -> Path:
    """Rows, text or bytes as a file."""
    path = Path(folder) / name
    if isinstance(content, list):
        content = text_of(content)
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path
