"""Shadow mode: along a log, the guarded policy, the policy alone and what was done."""

from __future__ import annotations

import csv
import json
import subprocess
import sys

import numpy as np
import pytest

from moose.data.files import save_dataset
from moose.errors import DataError
from moose.experiments.replay import draw_replay, read_log, replay, summarise, write_steps
from moose.policies.export import export_policy
from moose.policies.guard import Guard, GuardSettings
from moose.policies.plain import load_policy
from moose.policies.policy import save_policy
from policies import make_toy_policy
from toys import make_toy_log, make_toy_task


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    folder = tmp_path_factory.mktemp("replay")
    save_policy(make_toy_policy(), folder / "policy")
    save_dataset(make_toy_log(make_toy_task(), episodes=3, steps=20), folder / "log")
    return folder


@pytest.fixture(scope="module")
def controller(place):
    return load_policy(place / "policy")


HEADER = ["lever", "note", "x", "y", "pull", "push"]


def write_csv(path, rows, header=HEADER):
    with open(path, "w", newline="") as stream:
        csv.writer(stream).writerows([header, *rows])
    return str(path)


def test_along_a_data_set(place, controller):
    episodes = read_log(str(place / "log"), controller.facts)
    assert [episode.frames.shape for episode in episodes] == [(20, 3)] * 3
    replayed, guard = replay(controller, episodes)
    assert guard.steps == 60
    for episode in replayed:
        controller.reset()
        by_hand = np.stack([controller.act(frame) for frame in episode.logged.frames])
        np.testing.assert_allclose(episode.wanted, by_hand, atol=1e-6)
        np.testing.assert_allclose(episode.actions, by_hand, atol=1e-6)
        assert (episode.novelty >= 0).all()
        assert not np.array_equal(episode.novelty, episode.logged_novelty)
    result = summarise(replayed, guard, controller.facts)
    assert (result["steps"], result["episodes"]) == (60, 3)
    assert result["sources"] == {"policy": 60, "blend": 0, "fallback": 0}
    assert result["interventions"] == {}
    log = make_toy_log(make_toy_task(), episodes=3, steps=20)
    np.testing.assert_allclose(result["actions"][1]["logged_mean"], log.actions[:, 1].mean())
    difference = np.abs(np.concatenate([e.actions for e in replayed]) - log.actions).mean(axis=0)
    found = [row["mean_difference"] for row in result["actions"]]
    np.testing.assert_allclose(found, difference, rtol=1e-5)


@pytest.mark.parametrize("position", [0.0, 0.7])
def test_a_policy_with_a_dial_is_replayed_where_it_stands(place, tmp_path, position):
    save_policy(make_toy_policy("dial"), tmp_path / "policy")
    export_policy(tmp_path / "policy", tmp_path / "turned.moose", position=position)
    turned, whole = load_policy(tmp_path / "turned.moose"), load_policy(tmp_path / "policy")
    replayed, guard = replay(turned, read_log(str(place / "log"), turned.facts))
    assert guard.steps == 60
    for episode in replayed:
        by_hand = whole.at(position)
        actions = np.stack([by_hand.act(frame) for frame in episode.logged.frames])
        np.testing.assert_allclose(episode.wanted, actions, atol=1e-6)
        np.testing.assert_allclose(episode.actions, actions, atol=1e-6)


def test_a_csv_file_by_the_names_of_its_columns(tmp_path, controller):
    rows = [
        [0.3, "ok", 0.1, 0.2, 1.0, 0.5],
        [0.3, "", 0.1, "", 1.0, 0.5],
        [0.3, "", "nan", 2, 1, 0],
    ]
    (episode,) = read_log(write_csv(tmp_path / "log.csv", rows), controller.facts)
    expected = [[0.1, 0.2, 0.3], [0.1, np.nan, 0.3], [np.nan, 2, 0.3]]
    np.testing.assert_array_equal(episode.frames, np.float32(expected))
    np.testing.assert_array_equal(episode.actions, np.float32([[0.5, 1], [0.5, 1], [0, 1]]))
    (replayed,), guard = replay(controller, [episode], GuardSettings(patience=1))
    assert guard.counts == {"sensor-held": 2}
    assert replayed.decisions[1].interventions[0].detail == "y"


def test_episodes_and_missing_actions(tmp_path, controller):
    names = ["episode", "x", "y", "lever"]
    rows = [["a", 0, 0, 0], ["a", 1, 0, 0], ["b", 0, 0, 1]]
    episodes = read_log(write_csv(tmp_path / "log.csv", rows, names), controller.facts)
    assert [(e.name, len(e.frames), e.actions) for e in episodes] == [
        ("a", 2, None),
        ("b", 1, None),
    ]
    replayed, guard = replay(controller, episodes)
    result = summarise(replayed, guard, controller.facts)
    assert result["logged_novelty"] is None
    assert result["actions"][0]["mean_difference"] is None
    json.dumps(result, allow_nan=False)


@pytest.mark.parametrize(
    ("rows", "header", "complaint"),
    [
        ([[0, 0]], ["x", "y"], "needs the column 'lever'"),
        ([[0, 0, 0, 0]], ["x", "y", "lever", "x"], "'x', which is there twice"),
        ([[0, 0, 0, 0]], ["x", "y", "lever", "push"], "needs the column 'pull'"),
        ([[0, 0, 0], [0, "1,5", 0]], ["x", "y", "lever"], r"row 3, column 'y'"),
        ([[0, 0, 0], [0, 0]], ["x", "y", "lever"], "row 3"),
        ([], ["x", "y", "lever"], "no row"),
        ([[0]], [], "needs the column 'x'"),
    ],
)
def test_bad_logs_are_told_by_row_and_column(tmp_path, controller, rows, header, complaint):
    with pytest.raises(DataError, match=complaint):
        read_log(write_csv(tmp_path / "log.csv", rows, header), controller.facts)


def test_a_binary_file_is_not_a_log(tmp_path, controller):
    (tmp_path / "log.csv").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(DataError, match="not a CSV file"):
        read_log(str(tmp_path / "log.csv"), controller.facts)


def test_picture_and_table(tmp_path, place, controller):
    episodes = read_log(str(place / "log"), controller.facts)
    settings = GuardSettings(novelty_limit=0.5, novelty_release=0.2)
    replayed, guard = replay(controller, episodes, settings)
    assert guard.counts["novelty"] > 0
    draw_replay(replayed[1], controller.facts, settings, tmp_path / "replay.png")
    assert (tmp_path / "replay.png").read_bytes().startswith(b"\x89PNG")
    write_steps(replayed, controller.facts, tmp_path / "steps.csv")
    with open(tmp_path / "steps.csv", newline="") as stream:
        rows = list(csv.DictReader(stream))
    assert len(rows) == 60
    again = Guard(controller, settings)
    assert float(rows[0]["guarded_push"]) == again.act(episodes[0].frames[0]).action[0]
    assert float(rows[25]["logged_pull"]) == pytest.approx(episodes[1].actions[5, 1])
    assert sum("novelty" in row["reasons"] for row in rows) == guard.counts["novelty"]


def test_the_command_needs_no_jax(tmp_path, place):
    program = (
        "import sys, moose.cli\ntry: moose.cli.main()\nfinally: assert 'jax' not in sys.modules"
    )
    words = ["replay", str(place / "policy"), str(place / "log"), "--json", "--quiet"]
    ended = subprocess.run(
        [
            sys.executable,
            "-c",
            program,
            *words,
            "--set",
            "patience=1",
            "--fallback",
            str(place / "policy"),
        ],
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    assert json.loads(ended.stdout)["steps"] == 60
