"""Local workers: pinned, replaced when they die, gone when nobody needs them."""

from __future__ import annotations

import importlib.util
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from moose.errors import MissingExtraError
from moose.experiments import runner
from moose.experiments.engines import LocalEngine, RayEngine, _cores_of, make_engine, pinned
from moose.experiments.run_folder import Request, locked
from moose.experiments.worker import perform
from runs import tiny_request

UNKNOWN = {"kind": "no such thing"}


@pytest.fixture
def engine(tmp_path):
    made = LocalEngine(2, 1, tmp_path / "logs")
    yield made
    made.stop()


def wait_for(engine, count):
    found = {}
    deadline = time.monotonic() + 120
    while len(found) < count and time.monotonic() < deadline:
        found |= dict(engine.wait(0.2))
    return found


def test_jobs_are_done_side_by_side_and_failures_have_their_reason(engine):
    tickets = [engine.submit(UNKNOWN) for _ in range(2)]
    assert len(set(engine.processes)) == 2
    outcomes = wait_for(engine, 2)
    assert set(outcomes) == set(tickets)
    for outcome in outcomes.values():
        assert outcome["state"] == "failed"
        assert outcome["message"] == "KeyError: 'no such thing'"
        assert "Traceback" in outcome["traceback"]
        assert not outcome["is_final"]
    before = engine.processes
    engine.submit(UNKNOWN)  # the same process goes on
    wait_for(engine, 1)
    assert engine.processes == before


def test_workers_are_pinned(engine):
    for _ in range(2):
        engine.submit(UNKNOWN)
    wait_for(engine, 2)
    cores = [os.sched_getaffinity(process) for process in engine.processes]
    for process in engine.processes:
        environment = Path(f"/proc/{process}/environ").read_bytes().split(b"\0")
        assert b"NPROC=1" in environment
        assert b"OMP_NUM_THREADS=1" in environment
    if len(os.sched_getaffinity(0)) == 2:
        assert all(len(own) == 1 for own in cores)
        assert cores[0] != cores[1]


def test_cores_are_shared_out_only_if_all_are_used():
    available = len(os.sched_getaffinity(0))
    assert _cores_of(available + 1, 1) == [""] * (available + 1)
    # Two such grids side by side would meet on the first cores and leave the last ones idle.
    assert _cores_of(available - 1, 1) == [""] * (available - 1)
    own = _cores_of(available, 1)
    assert len(set(own)) == available
    assert pinned(3)["NPROC"] == "3"


def test_a_worker_that_dies_is_lost_and_replaced(engine):
    ticket = engine.submit(UNKNOWN)
    (process,) = engine.processes
    os.kill(process, signal.SIGKILL)
    outcome = wait_for(engine, 1)[ticket]
    assert outcome["state"] == "lost"
    assert "SIGKILL" in outcome["message"]
    ticket = engine.submit(UNKNOWN)
    assert engine.processes != [process]
    assert wait_for(engine, 1)[ticket]["state"] == "failed"


def test_no_worker_outlives_its_engine(engine):
    engine.submit(UNKNOWN)
    (process,) = engine.processes
    engine.stop()
    assert engine.processes == []
    assert not Path(f"/proc/{process}").exists()


def test_an_interrupt_while_a_worker_is_born_leaves_no_orphan(engine, monkeypatch):
    popen, born = subprocess.Popen, []

    def interrupted_popen(*words, **manner):
        born.append(popen(*words, **manner))
        signal.raise_signal(signal.SIGINT)
        return born[0]

    monkeypatch.setattr(subprocess, "Popen", interrupted_popen)
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt):
            engine.submit({"kind": "describe", "data": "ib/bad-0.2"})
    finally:
        signal.signal(signal.SIGINT, before)
    assert engine.processes == [born[0].pid]
    engine.stop()
    assert born[0].poll() is not None


def test_a_run_that_is_worked_on_is_busy(tmp_path):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "manifest.json").write_text("{}")
    request = Request(data="x").model_dump()
    job = {"kind": "train", "folder": str(tmp_path / "run"), "request": request, "cache": None}
    assert perform(job)["state"] == "failed"
    folder = runner.begin_run(tiny_request(), tmp_path / "begun")
    with locked(folder):
        outcome = perform(job | {"folder": str(folder)})
    assert outcome["state"] == "busy"
    assert "Another process works on this run" in outcome["message"]


def test_ray_is_an_extra(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(MissingExtraError, match="needs the package 'ray'"):
        RayEngine(1, 1)


OWN_CLUSTER = """
import os, socket, subprocess, sys
from moose.experiments.engines import RayEngine

engine = RayEngine(1, 1)
import ray

try:
    address = ray.get_runtime_context().gcs_address
    call = "import sys, ray; ray.init(address=sys.argv[1], log_to_driver=False); print('inside')"
    for token in (os.environ["RAY_AUTH_TOKEN"], "0" * 64):
        tried = subprocess.run(
            [sys.executable, "-c", call, address],
            env=os.environ | {"RAY_AUTH_TOKEN": token},
            capture_output=True,
            text=True,
        )
        print("inside" if "inside" in tried.stdout else "refused")
    with socket.socket() as probe:
        print("dashboard" if probe.connect_ex(("127.0.0.1", 8265)) == 0 else "no dashboard")
finally:
    engine.stop()
"""


@pytest.mark.slow
def test_only_who_has_the_token_enters_a_cluster_of_our_own(tmp_path):
    if importlib.util.find_spec("ray") is None:
        assert os.environ.get("CI") != "true", "Ray is missing: pip install 'moose-rl[ray]'"
        pytest.skip("Ray is not installed")
    # Into files: processes of a cluster would keep pipes open after the end of who started it.
    with open(tmp_path / "out", "w+") as out, open(tmp_path / "errors", "w+") as errors:
        program = [sys.executable, "-c", OWN_CLUSTER]
        subprocess.run(program, check=False, stdout=out, stderr=errors, timeout=300)
    told = (tmp_path / "out").read_text().splitlines()[:3]
    assert told == ["inside", "refused", "no dashboard"], (tmp_path / "errors").read_text()


def test_engines_have_names(tmp_path):
    made = make_engine("local", 3, 1, tmp_path / "logs")
    assert isinstance(made, LocalEngine)
    assert made.slots == 3
    made.stop()
