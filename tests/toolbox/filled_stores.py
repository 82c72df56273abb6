"""Stores with made-up records, for tables and figures whose answers are known."""

from __future__ import annotations

import numpy as np

from moose.experiments.run_folder import Request, run_digest
from moose.experiments.store import Evaluation, PlannedCell, Store, make_owner, now


def facts_of(data, behaviour=-200.0, hold=-65.0):
    """What the store would know of a data set."""
    return {
        "fingerprint": data,
        "transitions": 100,
        "evaluation_episodes": 10,
        "batch": {"mean": behaviour, "standard_error": 1.0},
        "behaviour": [behaviour + shift for shift in (-2.0, -1.0, 0.0, 1.0, 2.0)],
        "hold": [hold + 0.1 * shift for shift in range(-10, 11)],
    }


def filled_store(folder, means, *, seeds=3, done=None, evaluations=100, name="g") -> Store:
    """A store whose runs end at the given means; ``done`` says how many seeds are finished."""
    rng = np.random.default_rng(0)
    cells = []
    for seed in range(seeds):
        for label, data in means:
            request = Request(data=data, algorithm=label, seed=seed)
            digest = run_digest(request, facts_of(data)["fingerprint"], None)
            cells.append(PlannedCell(label, data, seed, digest, request))
    store = Store(folder, is_new=True)
    datasets = {data: facts_of(data) for _, data in means}
    grid = {"name": name, "description": "Made up.", "blocks": []}
    store.plan({"name": name, "grid": grid}, datasets, cells)
    owner = make_owner()
    for run, cell in zip(store.open_runs(), cells, strict=True):
        wanted = seeds if done is None else done.get((cell.label, cell.data), seeds)
        if cell.seed >= wanted:
            continue
        store.claim(run, owner, "worker-0", now())
        values = means[cell.label, cell.data] + 0.1 * rng.normal(size=evaluations + 1)
        lines = [Evaluation(10 * i, float(value), 0.5, 10) for i, value in enumerate(values)]
        store.finish(run.id, owner, lines, 60.0, now())
    return store
