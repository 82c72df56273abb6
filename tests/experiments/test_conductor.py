"""Grids that end the same whatever happens to them, on whatever engine."""

from __future__ import annotations

import importlib.util
import itertools
import json
import os
import random
import shutil
import signal
import sqlite3
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from moose.errors import RunError
from moose.experiments.conductor import run_grid as conduct
from moose.experiments.grid import read_grid
from moose.experiments.known_runs import KnownRuns
from moose.experiments.store import STORE, Store
from runs import grid_file, moose, outcome, run_grid, undisturbed_grid

KILLS = 20


def records(folder):
    """Every record of the store, by the digest of its run."""
    connection = sqlite3.connect(Path(folder) / STORE)
    query = (
        "SELECT r.digest, r.state, e.step, e.mean, e.deviation, e.episodes FROM evaluations e "
        "JOIN runs r ON r.id = e.run ORDER BY r.digest, e.step"
    )
    rows = connection.execute(query).fetchall()
    connection.close()
    return rows


def table(folder):
    return json.loads(moose("grid", "table", folder, "--json").out)


def assert_same_grid(folder, other):
    assert table(folder) == table(other)
    assert records(folder) == records(other)
    assert outcome(folder / "runs") == outcome(other / "runs")


def test_a_grid_leaves_one_record_for_each_evaluation():
    folder = undisturbed_grid()
    rows = records(folder)
    with Store(folder) as store:
        assert store.counts() == {"waiting": 0, "running": 0, "done": 3, "failed": 0}
        assert len(store.finished()) == 3
    assert len(rows) == 2 * 11 + 3
    assert len({row[:3] for row in rows}) == len(rows)
    for digest in {row[0] for row in rows}:
        manifest = json.loads((folder / "runs" / digest / "manifest.json").read_text())
        assert manifest["digest"] == digest
        assert manifest["versions"]["threads"] == "1"


def test_what_is_done_is_skipped_and_a_lost_store_is_filled_from_the_folders(tmp_path):
    folder = tmp_path / "grid"
    shutil.copytree(undisturbed_grid(), folder)
    before = {file: file.stat().st_mtime_ns for file in (folder / "runs").rglob("*.safetensors")}
    for file in folder.glob("store.sqlite*"):
        file.unlink()
    # Another place below the same cache: what is fitted is not fitted again.
    ended = run_grid(grid_file(tmp_path), folder, undisturbed_grid().parent / "cache")
    assert ended.code == 0, ended.errors
    assert_same_grid(folder, undisturbed_grid())
    after = {file: file.stat().st_mtime_ns for file in (folder / "runs").rglob("*.safetensors")}
    assert after == before


def test_a_published_grid_is_carried_on_in_another_folder(tmp_path):
    """What is known is not trained again; what the grid has gained since is trained."""
    cache = undisturbed_grid().parent / "cache"
    ended = moose("grid", "publish", undisturbed_grid(), tmp_path / "results")
    assert ended.code == 0, ended.errors
    place, folder = tmp_path / "results" / "tiny", tmp_path / "grid"
    ended = run_grid(grid_file(tmp_path), folder, cache, "--known", place)
    assert ended.code == 0, ended.errors
    assert ended.errors == ""
    assert ended.out.splitlines()[0] == "tiny: 3 runs done (3 taken over), 0 failed"
    assert not (folder / "runs").exists()
    assert table(folder) == table(undisturbed_grid())
    assert records(folder) == records(undisturbed_grid())

    ended = run_grid(
        grid_file(tmp_path, seeds=(0, 1)), folder, cache, "--known", place, "--known", place
    )
    assert ended.code == 0, ended.errors
    (trained,) = (folder / "runs").iterdir()
    manifest = json.loads((trained / "manifest.json").read_text())
    assert (manifest["request"]["algorithm"], manifest["request"]["seed"]) == ("moose", 1)
    with Store(folder) as store:
        assert store.counts()["done"] == 4
        assert set(store.taken_over()) == {row[0] for row in records(undisturbed_grid())}

    assert moose("grid", "publish", folder, tmp_path / "again").code == 0
    lines = (place / "runs.json").read_text().replace(",\n", "\n").splitlines()
    again = (tmp_path / "again" / "tiny" / "runs.json").read_text().replace(",\n", "\n")
    (own,) = set(again.splitlines()) - set(lines)
    assert json.loads(own)["digest"] == trained.name
    assert json.loads(own)["versions"] == manifest["versions"]
    assert set(lines) < set(again.splitlines())


@pytest.mark.slow
def test_kills_at_random_moments_change_nothing(tmp_path):
    """The grid is killed at twenty moments, and every worker at least once."""
    rng = random.Random(4)  # noqa: S311
    reference, file = undisturbed_grid(), grid_file(tmp_path)
    timed = run_grid(file, tmp_path / "timed", tmp_path / "timed-cache")
    assert timed.code == 0, timed.errors
    deaths, workers_killed, chains = 0, set(), 0
    while deaths < KILLS or workers_killed != {0, 1}:
        folder, cache = tmp_path / f"grid-{chains}", tmp_path / f"cache-{chains}"
        chains += 1
        assert chains < 2 * KILLS
        for attempt in itertools.count():
            moment = rng.uniform(0.05, 0.5) * timed.seconds
            manner = {"kill_after": moment} if deaths < KILLS else {}
            if deaths % 3 == 0 or (deaths >= KILLS and attempt == 0):  # a worker dies first
                worker = len(workers_killed) % 2
                manner |= {"kill_worker": worker, "worker_after": moment * 0.7}
            ended = run_grid(file, folder, cache, **manner)
            workers_killed |= set(ended.killed)
            if ended.code == 0:
                break
            assert ended.code == -signal.SIGKILL, ended.errors
            deaths += 1
        assert_same_grid(folder, reference)


def test_ctrl_c_stops_the_workers_and_another_start_goes_on(tmp_path):
    folder, cache, file = tmp_path / "grid", tmp_path / "cache", grid_file(tmp_path)
    manner = {"signal": signal.SIGINT, "when": folder / "store.sqlite-wal"}
    ended = run_grid(file, folder, cache, **manner)
    assert ended.code == 130
    assert f"To go on: moose grid run {file} --out {folder}" in ended.errors
    assert not workers_of(folder)
    with Store(folder) as store:
        assert store.counts()["running"] == 0
    ended = run_grid(file, folder, cache)
    assert ended.code == 0, ended.errors
    assert_same_grid(folder, undisturbed_grid())


def workers_of(folder):
    """Worker processes that are still alive and write to a grid's logs."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            log = os.readlink(process / "fd" / "2")
        except OSError:
            continue
        if log.startswith(str(folder)):
            found.append(process.name)
    return found


@pytest.mark.slow
def test_local_and_ray_give_the_same_grid(tmp_path):
    if importlib.util.find_spec("ray") is None:
        assert os.environ.get("CI") != "true", "Ray is missing: pip install 'moose-rl[ray]'"
        pytest.skip("Ray is not installed")
    folder = tmp_path / "grid"
    ended = run_grid(grid_file(tmp_path), folder, tmp_path / "cache", "--engine", "ray")
    assert ended.code == 0, ended.errors
    assert_same_grid(folder, undisturbed_grid())


# An engine that answers as it is told: what is done about every kind of answer


class Scripted:
    slots = 2

    def __init__(self, answers, lost_preparations=0):
        self.answers = answers
        self.prepared, self.lost_preparations = 0, lost_preparations
        self.jobs, self.tried, self.is_stopped = {}, [], False
        self.most_at_once = 0

    def submit(self, job):
        ticket = len(self.jobs) + len(self.tried)
        self.jobs[ticket] = job
        self.most_at_once = max(self.most_at_once, len(self.jobs))
        return ticket

    def wait(self, timeout):
        if not self.jobs:  # all that is left is somebody else's
            time.sleep(0.01)
            return []
        ticket, job = self.jobs.popitem()
        if job["kind"] == "prepare":
            self.prepared += 1
            if self.prepared <= self.lost_preparations:
                return [(ticket, LOST | {"message": "died", "seconds": 0.0})]
            facts = {"fingerprint": "f", "transitions": 1, "evaluation_episodes": 2}
            result = facts | {"batch": {"mean": 0.0}, "behaviour": [0.0], "hold": [0.0]}
            return [(ticket, {"state": "done", "result": result, "seconds": 0.0})]
        request = job["request"]
        self.tried.append((request["algorithm"], request["seed"]))
        count = self.tried.count(self.tried[-1])
        answer = self.answers(request, count)
        if answer["state"] == "done":
            folder = Path(job["folder"])
            folder.mkdir(parents=True, exist_ok=True)
            line = {"stage": "policy", "step": 1, "returns": [1.0, 2.0]}
            (folder / "evaluations.jsonl").write_text(json.dumps(line) + "\n")
        return [(ticket, {"seconds": 1.0, "message": "m", "traceback": "t", **answer})]

    def stop(self):
        self.is_stopped = True


DONE = {"state": "done"}
LOST = {"state": "lost"}


def conducted(tmp_path, answers, *, lost_preparations=0, **settings):
    engine = Scripted(answers, lost_preparations)
    tmp_path.mkdir(exist_ok=True)
    grid = read_grid(grid_file(tmp_path))
    counts = conduct(grid, "tiny.yaml", tmp_path / "grid", engine, **settings)
    assert engine.is_stopped
    return counts, engine


def failing(is_final):
    return {"state": "failed", "message": "broken", "is_final": is_final}


def test_failures_that_would_repeat_are_not_tried_again_in_one_start(tmp_path):
    def answers(request, count):
        return failing(True) if request["algorithm"] == "moose" else DONE

    for start in range(4):  # at most three attempts, one a start
        counts, engine = conducted(tmp_path, answers)
        assert (counts["done"], counts["failed"]) == (2, 1)
        assert engine.tried.count(("moose", 0)) == (1 if start < 3 else 0)
    _, engine = conducted(tmp_path, answers, is_retrying=True)
    assert engine.tried == [("moose", 0)]
    with Store(tmp_path / "grid") as store:
        (failure,) = store.failures()
        assert (failure.message, failure.traceback, failure.attempts) == ("broken", "t", 1)


def test_other_failures_are_tried_again_at_once(tmp_path):
    counts, engine = conducted(tmp_path, lambda request, count: failing(False))
    assert counts["failed"] == 3
    assert all(engine.tried.count(run) == 3 for run in set(engine.tried))
    counts, _ = conducted(tmp_path, lambda request, count: DONE, is_retrying=True)
    assert counts["done"] == 3


def test_a_worker_that_dies_is_replaced_but_not_for_ever(tmp_path):
    counts, engine = conducted(tmp_path, lambda request, count: DONE if count > 4 else LOST)
    assert counts["done"] == 3
    assert len(engine.tried) == 15
    counts, engine = conducted(tmp_path / "again", lambda request, count: LOST)
    assert counts["failed"] == 3
    assert len(engine.tried) == 15


def test_a_worker_that_dies_over_a_data_set_is_replaced_but_not_for_ever(tmp_path):
    counts, engine = conducted(tmp_path, lambda request, count: DONE, lost_preparations=4)
    assert (counts["done"], engine.prepared) == (3, 5)
    with pytest.raises(RunError, match="cannot be had: died"):
        conducted(tmp_path / "again", lambda request, count: DONE, lost_preparations=5)


def test_a_run_that_another_process_works_on_is_left_for_a_while(tmp_path, monkeypatch):
    monkeypatch.setattr("moose.experiments.conductor._PAUSE_SECONDS", 0.0)
    counts, engine = conducted(
        tmp_path, lambda request, count: {"state": "busy"} if count == 1 else DONE
    )
    assert counts["done"] == 3
    assert len(engine.tried) == 6
    assert engine.most_at_once == 2


def test_two_conductors_share_the_work(tmp_path):
    """Each has its own connection to the store; no run is done by both."""

    def answers(request, count):
        time.sleep(0.02)
        return DONE

    file = grid_file(tmp_path, seeds=range(10), clones=range(10))
    engines = [Scripted(answers) for _ in range(2)]
    conduct(read_grid(file), "tiny.yaml", tmp_path / "grid", Scripted(answers))  # data and plan
    with sqlite3.connect(tmp_path / "grid" / STORE) as connection:
        connection.execute("UPDATE runs SET state = 'waiting', owner = NULL, heartbeat = NULL")
    connection.close()
    with ThreadPoolExecutor() as pool:
        futures = [
            pool.submit(conduct, read_grid(file), "tiny.yaml", tmp_path / "grid", engine)
            for engine in engines
        ]
        assert [future.result()["done"] for future in futures] == [20, 20]
    tried = engines[0].tried + engines[1].tried
    assert len(tried) == len(set(tried)) == 20
    assert min(len(engine.tried) for engine in engines) >= 1


def test_known_runs_keep_workers_from_runs_that_failed_or_wait(tmp_path):
    conducted(tmp_path / "there", lambda request, count: DONE)
    with Store(tmp_path / "there" / "grid") as store:
        runs = {run.digest: run for run in store.finished_runs()}
    seed_one = {name: run for name, run in runs.items() if run.request.seed == 1}
    failed, _ = conducted(tmp_path / "here", lambda request, count: failing(True))
    assert failed["failed"] == 3
    warnings = []
    counts, engine = conducted(
        tmp_path / "here",
        lambda request, count: DONE,
        known=[KnownRuns("results/tiny", seed_one)],
        threads=3,
        is_retrying=True,
        warn=warnings.append,
    )
    assert counts["done"] == 3
    assert sorted(engine.tried) == [("clone", 0), ("moose", 0)]
    assert warnings == [
        "runs taken over may differ in the last bits from runs made here, since their versions "
        "do: 1 of 1 runs do not tell theirs"
    ]


def test_a_folder_that_cannot_be_seen_is_told(tmp_path, monkeypatch):
    monkeypatch.setattr("moose.experiments.conductor.evaluations_of", lambda folder: [])
    counts, _ = conducted(tmp_path, lambda request, count: DONE)
    assert counts["failed"] == 3
    with Store(tmp_path / "grid") as store:
        assert "have to see the grid's folder" in store.failures()[0].message
