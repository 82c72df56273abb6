"""A plant's own log on the command line: init, check, import, report, train."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from moose.config import to_yaml
from moose.data.files import load_dataset
from moose.policies.policy import load_policy
from moose.tasks.task_file import check_task_file, read_task_file
from plant_log import HEADER, TREE, rows, text_of, write
from runs import moose, tiny_words


@pytest.fixture
def plant(tmp_path):
    """A task file and a log with one missing value."""
    (tmp_path / "plant.yaml").write_text(to_yaml(check_task_file(TREE)))
    table = rows()
    table[300][HEADER.index("pressure")] = ""
    return tmp_path / "plant.yaml", write(tmp_path, table)


def test_a_draft_is_a_task_once_the_reward_is_written(tmp_path):
    german = [[cell.replace(".", ",") for cell in row] for row in rows()]
    log = write(tmp_path, text_of(german, ";"))
    out = tmp_path / "draft.yaml"
    ended = moose("task", "init", log, "--out", out)
    assert ended.code == 0, ended.errors
    draft = out.read_text()
    ended = moose("task", "init", log, "--out", out)
    assert (ended.code, out.read_text()) == (2, draft)
    assert "There is a file already" in ended.errors
    ended = moose("task", "check", out)
    assert ended.code == 2
    assert "There is no formula here" in ended.errors
    out.write_text(draft.replace('formula: ""', "formula: -abs(temperature - 82)"))
    content = read_task_file(out)
    assert list(content.observations) == ["temperature", "pressure", "cost"]
    assert list(content.actions) == ["valve"]
    assert (content.time, content.episode, content.interval) == ("time", "batch", 60.0)
    assert (content.hold, content.csv.decimal) == ("last", ",")
    changes = np.abs(np.diff([float(row[3]) for row in rows()[1:]]))
    assert content.actions["valve"].rate == pytest.approx(changes.max(), rel=1e-4)
    ended = moose("task", "check", out, log, "--json", "--quiet")
    assert ended.code == 0, ended.errors + ended.out
    told = json.loads(ended.out)
    assert told["learned"] == ["temperature", "pressure", "cost"]
    assert {finding["severity"] for finding in told["findings"]} <= {"warning", "note"}


def test_increments_and_rewards_are_recognised(tmp_path):
    lines = ["date,level,d_level,reward"]
    lines += [f"2024-01-01 00:00:{i:02},{i % 7}.5,{(i % 3) - 1},{i % 5}" for i in range(40)]
    log = write(tmp_path, "\n".join(lines))
    assert moose("task", "init", log, "--out", tmp_path / "a.yaml").code == 0
    content = read_task_file(tmp_path / "a.yaml")
    assert content.hold == "zero"
    assert content.reward.column == "reward"
    assert content.interval == 1.0


def test_findings_are_told_to_people_and_programs(plant):
    task, log = plant
    ended = moose("check", log, "--task", task, "--quiet")
    assert ended.code == 2
    assert "missing: The value is missing." in ended.out
    assert f"{log}, row 301, column 'pressure'" in ended.out
    assert "(--fix missing=split)" in ended.out
    ended = moose("check", log, "--task", task, "--json", "--quiet", "--fix", "missing=split")
    assert ended.code == 0
    told = json.loads(ended.out)
    assert told["usable"]
    assert told["counts"]["error"] == 1
    (finding,) = [f for f in told["findings"] if f["severity"] == "error"]
    assert (finding["code"], finding["row"], finding["column"], finding["fixed"]) == (
        "missing",
        301,
        "pressure",
        True,
    )


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (["check", "none.csv", "--task", "{task}"], "There is no such file"),
        (["check", "{log}", "--task", "none.yaml"], "Cannot read the configuration file"),
        (["check", "{log}", "--task", "{task}", "--fix", "gaps=glue"], "fixes"),
        (["check", "{log}", "--task", "{task}", "--fix", "gasp=split"], "did you mean 'gaps'?"),
        (["data", "import", "{task}", "{log}", "--out", "{out}"], "The value is missing"),
        (["data", "report", "{log}", "{log}"], "needs a task file"),
        (["train", "{log}", "{log}"], "needs a task file"),
        (["train", "{task}", "{log}"], "The value is missing"),
        (["train", "{task}"], "There is no file to read"),
    ],
)
def test_mistakes_are_told_and_leave_nothing_behind(plant, tmp_path, words, complaint):
    task, log = plant
    out = tmp_path / "out"
    before = sorted(tmp_path.iterdir())
    ended = moose(*(word.format(task=task, log=log, out=out) for word in words), "--quiet")
    assert ended.code == 2
    assert ended.errors.startswith("Error: ")
    assert complaint.replace("fixes", "gaps") in ended.errors
    assert sorted(tmp_path.iterdir()) == before


def test_a_report_has_numbers_and_pictures(plant, tmp_path):
    task, log = plant
    out = tmp_path / "report"
    words = ("data", "report", log, "--task", task, "--fix", "missing=split", "--quiet")
    ended = moose(*words, "--out", out, "--json")
    assert ended.code == 0, ended.errors
    told = json.loads(ended.out)
    assert told["transitions"] == load_manifest(out)["transitions"]
    assert {file.suffix for file in out.iterdir()} == {".png", ".json"}
    assert all(file.stat().st_size > 5000 for file in out.glob("*.png"))
    ended = moose(*words, "--out", out)
    assert ended.code == 2
    assert "exists already" in ended.errors


def load_manifest(folder):
    return json.loads((Path(folder) / "manifest.json").read_text())


def test_a_log_is_trained_on_and_the_policy_needs_neither_log_nor_task_file(plant, tmp_path):
    task, log = plant
    run, cache = tmp_path / "run", tmp_path / "cache"
    words = (*tiny_words(), "--cache", cache, "--quiet", "--fix", "missing=split")
    ended = moose("train", task, log, *words, "--out", run)
    assert ended.code == 0, ended.errors
    ended = moose("data", "import", task, log, "--out", tmp_path / "data", *words[-3:])
    assert ended.code == 0, ended.errors
    dataset = load_dataset(tmp_path / "data")
    assert load_manifest(run)["data"]["fingerprint"] == dataset.fingerprint
    assert load_manifest(run)["request"]["evaluation_episodes"] == 0
    task.unlink()
    log.unlink()
    (change,) = load_policy(run / "policy").act([[80.0, 4.6, 50.0]] * 3)
    assert -8.0 <= change <= 8.0
    ended = moose("evaluate", run, "--quiet")
    assert ended.code == 2
    assert "There is no simulator of the plant 'boiler'." in ended.errors
    ended = moose("train", "--resume", run, "--quiet")
    assert "finished already" in ended.out


def test_another_task_for_the_same_numbers_is_another_run(plant, tmp_path):
    task, log = plant
    cache = tmp_path / "cache"
    words = (*tiny_words(), "--cache", cache, "--quiet", "--fix", "missing=split")
    assert moose("train", task, log, *words, "--out", tmp_path / "one").code == 0
    task.write_text(to_yaml(check_task_file(TREE | {"discount": 0.5})))
    assert moose("train", task, log, *words, "--out", tmp_path / "two").code == 0
    first, second = (load_manifest(tmp_path / name) for name in ("one", "two"))
    assert first["data"]["fingerprint"] == second["data"]["fingerprint"]
    assert first["digest"] != second["digest"]


def test_the_example_passes_both_checks():
    example = Path(__file__).parent.parent.parent / "examples" / "plant"
    task, log = example / "plant.yaml", example / "plant_german.csv.gz"
    assert moose("task", "check", task, log, "--quiet").code == 0
    assert moose("check", log, "--task", task, "--quiet").code == 0
