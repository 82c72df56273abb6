"""The store keeps what it was told, once, whoever dies and whoever else is writing."""

from __future__ import annotations

import io
import os
import signal
import sqlite3
import subprocess
import sys
import time

import pytest
from rich.console import Console

from moose.errors import StorageError
from moose.evaluation.statistics import tail_values
from moose.experiments import store as stores
from moose.experiments.grid_status import grid_status, render
from moose.experiments.run_folder import Request
from moose.experiments.store import (
    Evaluation,
    FinishedRun,
    PlannedCell,
    Store,
    make_owner,
    now,
)

FACTS = {
    "fingerprint": "f",
    "batch": {"mean": -5.0, "standard_error": 0.5},
    "behaviour": [-6.0, -5.0, -4.0],
    "hold": [-3.0, -2.0],
}


def cell(label="moose", data="ib/bad-0.2", seed=0):
    request = Request(data=data, algorithm=label, seed=seed)
    return PlannedCell(label, data, seed, f"{label}-{data}-{seed}", request)


def planned(folder, cells, **facts):
    store = Store(folder, is_new=True)
    store.plan({"name": "g", **facts}, {c.data: FACTS for c in cells}, cells)
    return store


def evaluations(count, last=1000):
    return [Evaluation(step, -float(step), 0.5, 10) for step in range(0, last + 1, last // count)]


def claimed(store, owner, now=None):
    run = store.open_runs()[0]
    assert store.claim(run, owner, "worker-0", stores.now() if now is None else now)
    return run


@pytest.fixture
def owner():
    return make_owner()


def test_a_run_goes_from_waiting_to_done(tmp_path, owner):
    with planned(tmp_path, [cell(), cell(seed=1)]) as store:
        assert store.counts() == {"waiting": 2, "running": 0, "done": 0, "failed": 0}
        run = claimed(store, owner)
        assert run.request["algorithm"] == "moose"
        store.record(run.id, owner, evaluations(10)[:3])
        assert store.open_runs()[0].evaluations == 3
        store.finish(run.id, owner, evaluations(10), 12.5, now())
        assert store.counts() == {"waiting": 1, "running": 0, "done": 1, "failed": 0}
        assert store.num_evaluations() == 11
        assert store.finished() == {run.digest}
        assert [c[3] for c in store.cells()] == ["done", "waiting"]


def test_nothing_is_there_twice(tmp_path, owner):
    with planned(tmp_path, [cell()]) as store:
        run = claimed(store, owner)
        for _ in range(3):
            store.record(run.id, owner, evaluations(10)[:5])
        assert store.num_evaluations() == 5
        # The run folder is the truth: what a finished run does not have is dropped.
        store.finish(run.id, owner, evaluations(2), 1.0, now())
        assert store.num_evaluations() == 3


def test_a_plan_can_be_made_again_and_grow(tmp_path, owner):
    with planned(tmp_path, [cell()]) as store:
        store.finish(claimed(store, owner).id, owner, evaluations(10), 1.0, now())
    cells = [cell(seed=1), cell()]
    with planned(tmp_path, cells, description="more") as store:
        assert [(c[2], c[3]) for c in store.cells()] == [(1, "waiting"), (0, "done")]
        assert store.facts()["description"] == "more"
    with planned(tmp_path, [cell(seed=1)]) as store:  # what is no longer asked for is not lost
        assert store.counts()["done"] == 0
        assert store.num_evaluations() == 11
    with planned(tmp_path, cells) as store:
        assert store.counts()["done"] == 1


def test_two_cells_may_share_a_run(tmp_path, owner):
    twin = cell()._replace(label="moose again")
    with planned(tmp_path, [cell(), twin]) as store:
        assert sum(store.counts().values()) == 1
        assert len(store.open_runs()) == 1
        store.finish(claimed(store, owner).id, owner, evaluations(10), 1.0, now())
        assert {row[0] for row in store.tails()} == {"moose", "moose again"}


def test_the_tail_is_that_of_the_statistics(tmp_path, owner):
    for last, count in ((1000, 100), (20, 10), (2, 2), (7, 7), (999, 27)):
        with planned(tmp_path / str(last), [cell()]) as store:
            lines = evaluations(count, last)
            store.finish(claimed(store, owner).id, owner, lines, 1.0, now())
            steps, means = [line.step for line in lines], [line.mean for line in lines]
            assert [row[4] for row in store.tails()] == tail_values(steps, means)
            assert [row[3] for row in store.curves()] == steps


# Leases


def test_a_run_is_claimed_by_one_only(tmp_path, owner):
    with planned(tmp_path, [cell()]) as store, Store(tmp_path) as other:
        seen = other.open_runs()[0]
        run = claimed(store, owner)
        assert not other.claim(seen, make_owner(), "worker-0", now())
        assert other.open_runs()[0].is_leased(now())
        assert other.open_runs()[0].owner == owner
        # Somebody else's words count for nothing.
        other.finish(run.id, "host:1:x", evaluations(10), 1.0, now())
        other.record(run.id, "host:1:x", evaluations(10))
        other.release(run.id, "host:1:x", seconds=1.0, crashes=0)
        assert store.counts()["running"] == 1
        assert store.num_evaluations() == 0


def test_a_lease_lapses_unless_it_is_renewed(tmp_path, owner):
    with planned(tmp_path, [cell()]) as store:
        past = now() - 100.0
        elsewhere = "another-machine:1:abc"
        claimed(store, elsewhere, now=past)
        run = store.open_runs()[0]
        assert not run.is_leased(now(), lease=60.0)
        store.renew(elsewhere, now())
        renewed = store.open_runs()[0]
        assert renewed.is_leased(now(), lease=60.0)
        assert not store.claim(run, owner, "worker-0", now())  # it was looked at before that
        assert store.claim(renewed, owner, "worker-0", now())
        store.finish(run.id, elsewhere, evaluations(10), 1.0, now())
        assert store.counts()["done"] == 0


def test_the_lease_of_a_dead_process_of_this_machine_is_over_at_once(tmp_path):
    process = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    host = make_owner().split(":")[0]
    with planned(tmp_path, [cell()]) as store:
        claimed(store, f"{host}:{process.pid}:x")
        assert store.open_runs()[0].is_leased(now())
        process.kill()
        process.wait()
        assert not store.open_runs()[0].is_leased(now())


# Failures


def test_failures_are_kept_and_attempts_are_bounded(tmp_path, owner):
    with planned(tmp_path, [cell()]) as store:
        for attempt in range(2):
            run = claimed(store, owner)
            assert run.attempts == attempt
            how = {"traceback": "Traceback …", "seconds": 2.0, "now": now()}
            store.fail(run.id, owner, message=f"no {attempt}", is_over=attempt == 1, **how)
        (failure,) = store.failures()
        assert (failure.message, failure.attempts) == ("no 1", 2)
        assert failure.traceback == "Traceback …"
        store.retry_failed(2)
        assert store.counts()["failed"] == 1
        store.retry_failed(3)
        assert store.counts()["waiting"] == 1
        store.finish(claimed(store, owner).id, owner, evaluations(10), 1.0, now())
        assert store.failures() == []
        (count,) = sqlite3.connect(store.path).execute("SELECT count(*) FROM failures").fetchone()
        assert count == 2


def test_trying_again_forgets_the_count(tmp_path, owner):
    with planned(tmp_path, [cell()]) as store:
        run = claimed(store, owner)
        store.fail(run.id, owner, message="no", traceback="", seconds=1.0, now=now(), is_over=True)
        store.retry_failed(None)
        assert store.open_runs()[0].attempts == 0


def test_another_start_counts_dead_workers_anew(tmp_path, owner):
    with planned(tmp_path, [cell()]) as store:
        store.release(claimed(store, owner).id, owner, seconds=1.0, crashes=4)
        assert store.open_runs()[0].crashes == 4
        store.retry_failed(3)
        assert store.open_runs()[0].crashes == 0


def test_what_a_dead_conductor_left_counts_as_waiting_everywhere(tmp_path, owner):
    with planned(tmp_path, [cell()]) as store:
        claimed(store, owner)
        assert grid_status(store)["labels"][0]["running"] == 1
        status = grid_status(store, lease=-1.0)
    assert (status["runs"]["running"], status["runs"]["waiting"]) == (0, 1)
    (row,) = status["labels"]
    assert (row["running"], row["waiting"]) == (0, 1)


# Runs from elsewhere


def finished(planned_cell, **changes):
    lines = tuple(evaluations(4))
    content = {
        "digest": planned_cell.digest,
        "request": planned_cell.request,
        "fingerprint": "f",
        "versions": {"jax": "0.1"},
        "seconds": 7.0,
        "updates": lines[-1].step,
        "evaluations": lines,
    }
    return FinishedRun(**content | changes)


def test_runs_that_nobody_has_are_taken_over(tmp_path, owner):
    cells = [cell(seed=seed) for seed in range(6)]
    runs = [finished(c) for c in [*cells, cell(seed=9)]]
    with planned(tmp_path, cells) as store:
        done, busy, left, failed, begun, _ = store.open_runs()
        for run, who in ((done, owner), (busy, owner), (left, "elsewhere:1:x"), (failed, owner)):
            time = now() - (100.0 if run is left else 0.0)
            assert store.claim(run, who, "worker-0", time)
        store.finish(done.id, owner, evaluations(2), 1.0, now())
        how = {"message": "no", "traceback": "", "seconds": 1.0, "now": now()}
        store.fail(failed.id, owner, **how, is_over=True)
        assert store.claim(begun, owner, "worker-0", now())
        store.record(begun.id, owner, evaluations(5)[:3])
        store.release(begun.id, owner, seconds=1.0, crashes=0)

        taken = store.take_over(runs, "results/g", now(), lease=60.0)
        assert [run.request.seed for run in taken] == [2, 3, 4, 5]
        assert store.counts() == {"waiting": 0, "running": 1, "done": 5, "failed": 0}
        assert store.taken_over() == {run.digest: "results/g" for run in taken}
        own, *foreign = store.finished_runs()
        assert (own.seconds, own.versions, len(own.evaluations)) == (1.0, None, 3)
        assert foreign == taken
        assert store.take_over(runs, "results/other", now()) == []
        store.finish(left.id, "elsewhere:1:x", evaluations(10), 1.0, now())  # it comes too late
        assert store.finished_runs()[1] == taken[0]
    with planned(tmp_path, cells[:3]) as store:  # what is no longer asked for does not count
        assert len(store.taken_over()) == 1
        assert len(store.finished_runs()) == 2


def test_a_run_without_evaluations_can_be_taken_over(tmp_path):
    run = finished(cell(), updates=None, evaluations=(), versions=None)
    with planned(tmp_path, [cell()]) as store:
        assert store.take_over([run], "results/g", now()) == [run]
        assert store.finished_runs() == [run]


def made_by_the_first_version(folder, cells):
    planned(folder, cells).close()
    with sqlite3.connect(folder / stores.STORE) as connection:
        connection.execute("DROP TABLE taken_over")
        connection.execute("PRAGMA user_version = 1")
    connection.close()


def made_by_the_second_version(folder, cells, run):
    with planned(folder, cells) as store:
        store.take_over([run], "results/g", now())
    with sqlite3.connect(folder / stores.STORE) as connection:
        connection.execute("ALTER TABLE taken_over DROP COLUMN fingerprint")
        connection.execute("PRAGMA user_version = 2")
    connection.close()


def version_of(folder):
    connection = sqlite3.connect(folder / stores.STORE)
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    connection.close()
    return version


def test_looking_at_a_store_of_the_first_version_leaves_it_as_it_is(tmp_path, owner):
    made_by_the_first_version(tmp_path, [cell()])
    with Store(tmp_path) as store:
        store.finish(claimed(store, owner).id, owner, evaluations(10), 1.0, now())
        assert grid_status(store)["taken_over"] == 0
        assert len(store.finished_runs()) == 1
    assert version_of(tmp_path) == 1


def test_working_on_a_store_of_the_first_version_brings_it_up_to_date(tmp_path, owner):
    made_by_the_first_version(tmp_path, [cell()])
    with Store(tmp_path) as store:
        store.finish(claimed(store, owner).id, owner, evaluations(10), 1.0, now())
    cells = [cell(), cell(seed=1)]
    with Store(tmp_path) as looking, planned(tmp_path, cells) as store:
        assert store.counts()["done"] == 1
        assert len(store.take_over(map(finished, cells), "results/g", now())) == 1
        assert looking.counts()["done"] == 2
    assert version_of(tmp_path) == 3
    with Store(tmp_path) as store:
        assert len(store.taken_over()) == 1
        assert store.num_evaluations() == 11 + 5


def test_a_store_of_the_second_version_keeps_what_it_took_over(tmp_path):
    cells = [cell(), cell(seed=1)]
    first, second = finished(cells[0]), finished(cells[1], fingerprint="other bits")
    made_by_the_second_version(tmp_path, cells, first)
    with Store(tmp_path) as store:  # only looking
        assert store.finished_runs() == [first]
    assert version_of(tmp_path) == 2
    with planned(tmp_path, cells) as store:
        assert store.finished_runs() == [first]
        store.take_over([second], "results/g", now())
        assert store.finished_runs() == [first, second]
    assert version_of(tmp_path) == 3


# Several writers, and deaths

WRITER = """
import sys
from pathlib import Path
from moose.experiments.store import Evaluation, Store, make_owner, now

owner, mine = make_owner(), 0
print("ready", flush=True)
with Store(Path(sys.argv[1])) as store:
    while waiting := [run for run in store.open_runs() if not run.is_leased(now())]:
        for run in waiting:
            if not store.claim(run, owner, "w", now()):
                continue
            for step in range(5):
                store.record(run.id, owner, [Evaluation(step, float(run.id), 0.0, 1)])
            lines = [Evaluation(step, float(run.id), 0.0, 1) for step in range(5)]
            store.finish(run.id, owner, lines, 1.0, now())
            mine += 1
            break
print(mine, flush=True)
"""


def writers(folder, count):
    pipes = {"stdout": subprocess.PIPE, "text": True}
    return [
        subprocess.Popen([sys.executable, "-c", WRITER, str(folder)], **pipes) for _ in range(count)
    ]


def test_concurrent_writers_share_the_work_and_lose_nothing(tmp_path):
    with planned(tmp_path, [cell(seed=seed) for seed in range(60)]) as store:
        done = [int(process.communicate()[0].split()[-1]) for process in writers(tmp_path, 3)]
        assert sum(done) == 60
        assert store.counts()["done"] == 60
        assert store.num_evaluations() == 300


def test_writers_that_are_killed_leave_a_sound_store(tmp_path):
    with planned(tmp_path, [cell(seed=seed) for seed in range(400)]) as store:
        for _ in range(3):
            (process,) = writers(tmp_path, 1)
            process.stdout.readline()
            before = store.counts()["done"]
            while store.counts()["done"] < before + 5 and process.poll() is None:
                time.sleep(0.001)
            os.kill(process.pid, signal.SIGKILL)
            process.communicate()
        (answer,) = sqlite3.connect(store.path).execute("PRAGMA integrity_check").fetchone()
        assert answer == "ok"
        assert 15 <= store.counts()["done"] < 400
        (process,) = writers(tmp_path, 1)
        process.communicate()
        assert store.counts()["done"] == 400
        assert store.num_evaluations() == 2000


# Bad files


def test_a_missing_store_says_what_to_give(tmp_path):
    with pytest.raises(StorageError, match="no grid in this folder"):
        Store(tmp_path)


@pytest.mark.parametrize("content", [b"nonsense" * 1000, None])
def test_other_files_are_refused(tmp_path, content):
    file = tmp_path / stores.STORE
    if content is None:
        with sqlite3.connect(file) as connection:
            connection.execute("CREATE TABLE other (x)")
        connection.close()
    else:
        file.write_bytes(content)
    with pytest.raises(StorageError, match=r"damaged|something else"):
        Store(tmp_path)


def test_newer_stores_are_refused(tmp_path):
    planned(tmp_path, [cell()]).close()
    with sqlite3.connect(tmp_path / stores.STORE) as connection:
        connection.execute("PRAGMA user_version = 99")
    connection.close()
    with pytest.raises(StorageError, match="schema version 99"):
        Store(tmp_path)


def test_a_read_only_folder_is_told(tmp_path):
    blocked = tmp_path / "file"
    blocked.write_text("")
    with pytest.raises(StorageError):
        Store(blocked / "grid", is_new=True)


# Status


def test_the_status_counts_and_guesses(tmp_path, owner):
    cells = [cell(seed=seed) for seed in range(4)]
    with planned(tmp_path, cells) as store:
        assert grid_status(store)["eta_seconds"] is None
        store.finish(claimed(store, owner).id, owner, evaluations(100), 40.0, now())
        second = store.open_runs()[0]
        store.claim(second, owner, "worker-0", now())
        store.record(second.id, owner, evaluations(100)[:51])
        third = store.open_runs()[1]
        store.claim(third, "elsewhere:1:x", "worker-0", now() - 1000.0)
        status = grid_status(store)
        assert status["runs"] == {"total": 4, "waiting": 2, "running": 1, "done": 1, "failed": 0}
        assert status["eta_seconds"] == pytest.approx(40.0 * (3 - 51 / 101), rel=0.01)
        (running,) = status["running"]
        assert (running["seed"], running["worker"], running["evaluations"]) == (1, "worker-0", 51)
        assert status["labels"][0]["seconds_per_run"] == 40.0
        assert render(status)


def test_the_status_tells_what_was_taken_over(tmp_path, owner):
    with planned(tmp_path, [cell(), cell(seed=1)]) as store:
        store.finish(claimed(store, owner).id, owner, evaluations(10), 1.0, now())
        assert "1 of 2 runs done, " in text_of(grid_status(store))
        store.take_over([finished(cell(seed=1))], "results/g", now())
        status = grid_status(store)
    assert status["taken_over"] == 1
    assert status["runs"] == {"total": 2, "waiting": 0, "running": 0, "done": 2, "failed": 0}
    assert "2 of 2 runs done (1 taken over), " in text_of(status)


def text_of(status):
    console = Console(file=io.StringIO(), soft_wrap=True)
    console.print(render(status))
    return console.file.getvalue()


def test_a_finished_grid_takes_no_more_time(tmp_path, owner):
    with planned(tmp_path, [cell()]) as store:
        store.finish(claimed(store, owner).id, owner, evaluations(10), 1.0, now())
        assert grid_status(store)["eta_seconds"] == 0.0
