"""Studies run from end to end, small, and can be interrupted between runs."""

from __future__ import annotations

import csv
import importlib.util
import json
import shutil
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from moose.errors import RunError
from runs import log, undisturbed

TINY = (
    "dynamics.epochs=1",
    "dynamics.hidden=[8]",
    "support.epochs=1",
    "support.width=8",
    "search.hidden=[8]",
    "search.updates=10",
    "search.start_states=4",
    "search.horizon=5",
)


ROOT = Path(__file__).parent.parent


def study(name):
    specification = importlib.util.spec_from_file_location(name, ROOT / "studies" / f"{name}.py")
    module = importlib.util.module_from_spec(specification)
    sys.modules[name] = module  # where its dataclasses look for their types
    specification.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def calibration():
    return study("calibration")


@pytest.fixture(scope="module")
def scaling():
    return study("grid_scaling")


def test_the_calibration_study(calibration, tmp_path):
    runs, results = tmp_path / "runs", tmp_path / "results"
    common = ["--out", str(runs), *(f"--set={text}" for text in TINY)]
    screening = ["--stage", "screening", "--only", "means,paper", "--data", "ib/bad-0.2"]
    calibration.main([*common, *screening])
    calibration.main([*common, *screening, "--collect", str(results)])
    with open(results / "calibration.csv", encoding="utf-8") as stream:
        rows = list(csv.DictReader(stream))
    assert [row["variant"] for row in rows] == ["means", "paper"]
    for row in rows:
        assert (row["updates"], row["paper"]) == ("10", "-125.9")
        assert float(row["tail_p10"]) == pytest.approx(float(row["after_10"]), abs=0.01)


def test_every_variant_is_a_valid_configuration(calibration):
    from moose.experiments.runner import make_request

    for _, common in calibration.STAGES.values():
        for overrides in calibration.VARIANTS.values():
            make_request("ib/bad-0.2", algorithm="moose", overrides=[*common, *overrides])


def test_a_reading_that_cannot_be_trained_does_not_stop_the_study(calibration, tmp_path):
    limits = [*TINY, "search.gradient_floor=1e7"]  # which no gradient reaches
    runs, results = tmp_path / "runs", tmp_path / "results"
    words = ["--stage", "screening", "--only", "paper,sums", "--data", "ib/bad-0.2"]
    words += ["--out", str(runs), "--collect", str(results)]
    with pytest.raises(SystemExit) as caught:
        calibration.main([*words, *(f"--set={text}" for text in limits)])
    for variant in ("paper", "sums"):
        assert f"{variant} on ib/bad-0.2 stopped: Training went astray" in str(caught.value)
    with open(results / "calibration.csv", encoding="utf-8") as stream:
        assert [row["tail_p10"] for row in csv.DictReader(stream)] == ["", ""]


def test_an_unknown_variant_is_refused_before_anything_is_run(calibration, tmp_path, capsys):
    words = ["--stage", "screening", "--out", str(tmp_path / "runs")]
    with pytest.raises(SystemExit):
        calibration.main([*words, "--only", "paper,sumz"])
    assert "no variant 'sumz'; did you mean 'sums'?" in capsys.readouterr().err
    assert not (tmp_path / "runs").exists()


def test_collecting_nothing_is_an_error(calibration, tmp_path):
    with pytest.raises(SystemExit, match="no runs"):
        calibration.main(["--out", str(tmp_path), "--collect", str(tmp_path / "results")])


def test_the_study_of_bias(tmp_path):
    pytest.importorskip("matplotlib")
    bias, results = study("bias"), tmp_path / "results"
    common = ["--out", str(tmp_path / "runs"), *(f"--set={text}" for text in TINY)]
    bias.main([*common, "--results", str(results), "--data", "ib/bad-0.2"])
    with open(results / "bias.csv", encoding="utf-8") as stream:
        rows = list(csv.DictReader(stream))
    assert [row["variant"] for row in rows] == ["penalised", "unpenalised"]
    assert rows[0]["bias"] != rows[1]["bias"]
    for row in rows:
        promise = float(row["imagined_return"]) - float(row["true_return"])
        assert float(row["over_promise"]) == pytest.approx(promise, abs=0.02)
        assert float(row["bias"]) > 0.0
    assert "<svg" in (results / "bias.svg").read_text(encoding="utf-8")

    # The same of runs that a grid has made.
    (tmp_path / "grid").mkdir()
    (tmp_path / "runs" / "ib-bad-0.2").rename(tmp_path / "grid" / "runs")
    bias.main(["--grid", str(tmp_path / "grid"), "--results", str(tmp_path / "again")])
    with open(tmp_path / "again" / "bias.csv", encoding="utf-8") as stream:
        (found,) = csv.DictReader(stream)  # both have the same seed: the later one
    assert found == rows[1] | {"variant": "seed 0"}
    with open(tmp_path / "again" / "training.csv", encoding="utf-8") as stream:
        tenths = list(csv.DictReader(stream))
    assert len(tenths) == 20
    numbers = ("imagined_return", "penalty", "true_return")
    assert all(np.isfinite(float(row[name])) for row in tenths for name in numbers)


def test_without_penalty_a_step_along_the_return_is_as_long(tmp_path):
    bias = study("bias")
    from moose.experiments.runner import make_request

    with_penalty, without = (
        make_request("ib/bad-0.2", algorithm="moose", overrides=overrides).config["search"]
        for overrides in bias.VARIANTS.values()
    )
    assert without["return_weight"] == 1.0
    lengths = [s["return_weight"] * s["learning_rate"] for s in (with_penalty, without)]
    assert lengths[0] == pytest.approx(lengths[1])


# Scaling


def test_one_worker_does_one_run_after_the_other(scaling):
    runs = [scaling.PlannedRun(("d", "a", seed), 5.0, 10.0) for seed in range(4)]
    found = scaling.simulate(runs, 1)
    assert (found.wall, found.busy, found.efficiency) == (60.0, 60.0, 1.0)


def test_enough_workers_take_as_long_as_the_longest_run(scaling):
    runs = [scaling.PlannedRun(("d", "a", seed), 5.0, 10.0 + seed) for seed in range(4)]
    found = scaling.simulate(runs, 8)
    assert (found.wall, found.critical_path) == (18.0, 18.0)
    assert found.efficiency == pytest.approx(66.0 / (8 * 18.0))


def test_a_fit_is_made_once_and_others_start_meanwhile(scaling):
    same = [scaling.PlannedRun(("d", "a", 0), 100.0, 10.0) for _ in range(2)]
    other = scaling.PlannedRun(("d", "b", 0), 0.0, 90.0)
    # The second run of the shared fit is passed over until the other one has begun.
    assert scaling.simulate([*same, other], 2).wall == 110.0
    assert scaling.simulate(same, 2).wall == 110.0  # waits inside its worker
    assert scaling.simulate(same, 1).wall == 120.0


def test_the_page_on_scaling_is_what_the_simulation_gives(scaling):
    costs = json.loads((ROOT / "results" / "scaling" / "costs.json").read_text(encoding="utf-8"))
    result = scaling.simulate_all(costs["algorithms"])
    assert result["runs"] == 800
    assert scaling.as_markdown(result) in (ROOT / "docs" / "scaling.md").read_text(encoding="utf-8")
    kept = json.loads((ROOT / "results" / "scaling" / "scaling.json").read_text(encoding="utf-8"))
    assert kept == result | {"measured_on": costs["measured_on"]}


def test_the_study_of_targets(tmp_path, capsys):
    targets = study("targets")
    small = ("dynamics.epochs=2", "dynamics.hidden=[8]", "dynamics.members=2", "held_out=0.25")
    words = ["--out", str(tmp_path / "runs"), "--results", str(tmp_path / "results")]
    words += [f"--data={log()}", *(f"--set={text}" for text in small)]
    targets.main(words)
    with open(tmp_path / "results" / "targets.csv", encoding="utf-8") as stream:
        rows = list(csv.DictReader(stream))
    assert [(row["signal"], int(row["steps"])) for row in rows] == [
        (signal, steps) for signal in ("fatigue", "consumption") for steps in targets.STEPS
    ]
    for row in rows:
        assert row["direct"] != row["delta"]
        assert all(0 <= float(row[name]) < 100 for name in ("direct", "delta", "no_change")), row
    assert f"{log()}, 20 steps, mean over signals: direct" in capsys.readouterr().out


def test_the_study_of_corners(tmp_path, capsys):
    study("corners").main(["--results", str(tmp_path), "--episodes", "4"])
    printed = capsys.readouterr().out.splitlines()
    with open(tmp_path / "corners.csv", encoding="utf-8") as stream:
        rows = list(csv.DictReader(stream))
    assert len(rows) == len(printed) == 8
    full_speed = next(row for row in rows if row["d_velocity"] == row["d_gain"] == "1")
    # Where the paper's DDPG ends (-383 and -960 there) one discount explains both.
    assert float(full_speed["γ = 0.99"]) == pytest.approx(-970, rel=0.01)
    assert float(rows[0]["γ = 0.99"]) == pytest.approx(-385, rel=0.02)
    assert float(full_speed["γ = 0.97"]) == pytest.approx(-327, rel=0.01)


def made_up_run(data, seed, advised, tails, promises):
    """A line of the study's runs: three positions."""
    positions = {
        name: {
            "return": promise,
            "low": promise - 1,
            "high": promise + spread,
            "tail": [tail] * 10,
            "from_behaviour": float(name) * seed,
        }
        for name, tail, promise, spread in zip(
            ("0", "0.5", "1"), tails, promises, (3, 1, 2), strict=True
        )
    }
    advice = {"position": advised, "lower_bound": -70.0}
    hold = {"return": -55.0}
    return {"data": data, "seed": seed, "advice": advice, "positions": positions, "hold": hold}


def test_a_search_is_told_as_far_as_it_got(tmp_path, capsys):
    curve, run = study("search_curve"), tmp_path / "run"
    shutil.copytree(undisturbed(), run)
    lines = (run / "evaluations.jsonl").read_text().splitlines()
    (run / "evaluations.jsonl").write_text("\n".join(lines[:2]) + "\n")  # as if interrupted
    curve.main([str(run), "--results", str(tmp_path / "results")])
    assert "seed 0: 1 of 2 updates" in capsys.readouterr().out
    with open(tmp_path / "results" / "curve.csv") as stream:
        first, second = csv.DictReader(stream)
    assert (first["updates"], first["imagined_return"]) == ("0", "")
    returns = json.loads(lines[1])["returns"]
    assert float(second["return"]) == pytest.approx(np.mean(returns), rel=1e-3)
    metrics = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    (update,) = (line for line in metrics if (line["stage"], line["step"]) == ("policy", 0))
    assert float(second["imagined_return"]) == pytest.approx(update["imagined_return"], rel=1e-3)

    (run / "evaluations.jsonl").write_text("")
    with pytest.raises(RunError, match="no evaluation of its search yet"):
        curve.main([str(run), "--results", str(tmp_path / "results")])


def test_the_choice_study_counts_regrets():
    choice = study("choice")
    runs = [
        made_up_run("ib/bad-0.6", 1, 0.5, (-90.0, -63.0, -66.0), (-90.0, -60.0, -50.0)),
        made_up_run("ib/bad-0.6", 2, None, (-90.0, -63.0, -66.0), (-90.0, -60.0, -50.0)),
    ]
    references = {"hold": [-65.0] * 20, "batch": {"mean": -91.0}}
    row = choice.row_of("ib/bad-0.6", runs, references)
    assert row["advised_positions"] == "0.5 hold"
    assert (row["clone"], row["hold"], row["best"]) == (-90.0, -65.0, -63.0)
    assert row["best_position"] == "0.5"
    assert row["advised"] == -65.0  # of ten values of −63 and ten of −65
    assert row["regret"] == pytest.approx(2.0)
    assert row["regret_fixed"] == row["regret_most_promising"] == pytest.approx(3.0)
    assert row["regret_least_spread"] == pytest.approx(0.0)
    # The last position promises −50 and holding −55.
    assert row["regret_most_promising_or_hold"] == row["regret_most_promising"]
    assert (row["lower_bounds_held"], row["distance_grows"]) == (2, 2)
    assert (row["on_dial"], row["lower_bounds_held_on_dial"]) == (1, 1)
    assert row["advised_mean"] == pytest.approx(-64.0)
    assert (row["paper"], row["record"]) == (-90.26, -77.7)
    assert row["developed_on"]


def test_the_choice_study_writes_its_tables_and_tunes_nothing_twice(tmp_path, capsys):
    choice = study("choice")
    run = made_up_run("ib/bad-0.6", 1, 0.5, (-90.0, -63.0, -66.0), (-90.0, -60.0, -50.0))
    row = choice.row_of("ib/bad-0.6", [run], {"hold": [-65.0] * 20, "batch": {"mean": -91.0}})
    choice.write_lines(tmp_path / "runs.jsonl", [run | {"digest": "1"}])
    choice.write_table(tmp_path / "choice.csv", [row])
    with open(tmp_path / "choice.csv", encoding="utf-8") as stream:
        (read,) = csv.DictReader(stream)
    assert read["advised"] == "-63.00"
    assert json.loads((tmp_path / "runs.jsonl").read_text())["digest"] == "1"
    (tmp_path / "runs.jsonl").unlink()
    with pytest.raises(SystemExit, match="no finished run of LION"):
        choice.main(["--grid", str(tmp_path), "--results", str(tmp_path)])
    with pytest.raises(SystemExit):
        choice.main(["--grid", str(tmp_path / "typo"), "--results", str(tmp_path / "new")])
    assert "there is no folder" in capsys.readouterr().err
    assert not (tmp_path / "new").exists()


def test_the_choice_study_puts_a_run_in_the_place_of_an_older_one(tmp_path, monkeypatch):
    choice = study("choice")
    older, kept, newer = (
        made_up_run("ib/bad-0.6", seed, 0.5, (-90.0, tail, -66.0), (-90.0, -60.0, -50.0))
        | {"digest": digest}
        for seed, tail, digest in ((1, -63.0, "old"), (2, -62.0, "same"), (1, -61.0, "new"))
    )
    choice.write_lines(tmp_path / "runs.jsonl", [older, kept])
    monkeypatch.setattr(choice, "finished_runs", lambda grid: [grid / "new", grid / "same"])
    monkeypatch.setattr(
        choice,
        "read_run",
        lambda folder: SimpleNamespace(
            request=SimpleNamespace(data="ib/bad-0.6", seed=1 if folder.name == "new" else 2)
        ),
    )
    described = []
    monkeypatch.setattr(
        choice, "describe_run", lambda folder, *_: described.append(folder.name) or newer
    )
    monkeypatch.setattr(
        choice, "describe_data", lambda *_, **__: {"hold": [-65.0] * 20, "batch": {"mean": -91.0}}
    )
    choice.main(["--grid", str(tmp_path), "--results", str(tmp_path)])
    assert described == ["new"]
    lines = [json.loads(line) for line in (tmp_path / "runs.jsonl").read_text().splitlines()]
    assert [line["digest"] for line in lines] == ["new", "same"]
    assert "| bad-0.6 \\* |" in (tmp_path / "section.md").read_text()


def test_the_choice_study_tells_nothing_of_the_machine(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    name_of = study("choice").name_of
    assert name_of(str(tmp_path / "data" / "own-0.8")) == "data/own-0.8"
    assert name_of("ib/bad-0.6") == "ib/bad-0.6"
    assert name_of("/elsewhere/own") == "/elsewhere/own"


def test_the_choice_study_has_no_section_about_data_of_which_nothing_is_published(
    tmp_path, monkeypatch
):
    choice = study("choice")
    own = made_up_run("data/own-0.8", 1, 0.5, (-90.0, -63.0, -66.0), (-90.0, -60.0, -50.0))
    choice.write_lines(tmp_path / "runs.jsonl", [own | {"digest": "1"}])
    monkeypatch.setattr(
        choice, "describe_data", lambda *_, **__: {"hold": [-65.0] * 20, "batch": {"mean": -91.0}}
    )
    choice.main(["--grid", str(tmp_path), "--results", str(tmp_path)])
    with open(tmp_path / "choice.csv", encoding="utf-8") as stream:
        (read,) = csv.DictReader(stream)
    assert (read["data"], read["developed_on"], read["record"]) == ("data/own-0.8", "False", "None")
    assert not (tmp_path / "section.md").exists()


def test_the_choice_study_says_how_far_its_goals_were_reached():
    choice = study("choice")
    promises = (-90.0, -60.0, -50.0)
    runs = {
        "ib/bad-0.6": made_up_run("ib/bad-0.6", 1, 0.5, (-90.0, -63.0, -66.0), promises),
        "ib/global-1.0": made_up_run("ib/global-1.0", 2, 1.0, (-66.0, -61.0, -67.0), promises),
        "ib/optimized-0.2": made_up_run(
            "ib/optimized-0.2", 3, 1.0, (-60.0, -58.3, -58.0), promises
        ),
    }
    runs["ib/global-1.0"]["positions"]["1"]["from_behaviour"] = 0.1
    references = {"hold": [-65.0] * 20, "batch": {"mean": -91.0}}
    rows = [choice.row_of(data, [run], references) for data, run in runs.items()]
    goals = dict(choice.goals_of(rows, 3))
    with_hindsight, offline, loss, hold, clone, growing, held = goals.values()
    assert with_hindsight == "3 of 3; 3 where means are compared with means"
    assert offline == "2 of 3; 2 where means are compared with means"
    assert loss == "2.00 worse at most"
    assert hold == "1 of 2"
    assert clone == "1 of 3; not on global-1.0, optimized-0.2"
    assert growing == "2 of 3 runs"
    assert held == "3 of 3 runs; 3 of the 3 in which a position is advised"
    section = choice.section_of(rows)
    assert "| bad-0.6 \\* | −91.00 | −90.00 | −65.00 | −90.26 | −77.70 | 0.5 | −63.00 |" in section
    assert "| optimized-0.2 | −91.00 | −60.00 | −65.00 | −60.35 | −58.20 (p) | 1 |" in section
    assert "| median where not developed | 3.00 |" in section
    assert "| worst where not developed | 6.00 |" in section


def test_the_choice_study_lets_a_simple_rule_hold_too():
    choice = study("choice")
    run = made_up_run("ib/bad-0.6", 1, 0.5, (-90.0, -63.0, -66.0), (-90.0, -60.0, -57.0))
    row = choice.row_of("ib/bad-0.6", [run], {"hold": [-65.0] * 20, "batch": {"mean": -91.0}})
    assert row["regret_most_promising"] == pytest.approx(3.0)
    assert row["regret_most_promising_or_hold"] == pytest.approx(2.0)
    run["hold"] = None
    row = choice.row_of("ib/bad-0.6", [run], {"hold": [-65.0] * 20, "batch": {"mean": -91.0}})
    assert row["regret_most_promising_or_hold"] == pytest.approx(3.0)
