"""What a log can teach, on logs whose answer is known."""

from __future__ import annotations

import dataclasses
import json

import numpy as np
import pytest
from rich.console import Console

from moose.data.dataset import Dataset
from moose.data.episodes import Episode
from moose.experiments.data_figures import PICTURES, draw_report
from moose.experiments.data_report import (
    autocorrelation,
    effective_dimensions,
    history_errors,
    measure_returns,
    render,
    report_data,
    returns_of_stretches,
)
from toys import make_toy_task

TASK = dataclasses.replace(
    make_toy_task(num_actions=1, history=1, horizon=10, discount=0.5),
    observation_names=("x", "y"),
    predicted_names=("x", "y"),
    action_low=(-1.0,),
    action_high=(1.0,),
)


def make_log(act, *, episodes=12, steps=100, delay=1, seed=0):
    """x goes where the action of ``delay`` steps ago pushed it; y is noise."""
    random = np.random.default_rng(seed)
    parts = []
    for _ in range(episodes):
        frames, actions, past = [random.normal(size=2)], [], [0.0] * delay
        for _ in range(steps):
            actions.append([act(frames[-1], random)])
            past.append(actions[-1][0])
            frames.append(np.array([0.9 * frames[-1][0] + past[-1 - delay + 1], random.normal()]))
        rewards = -np.abs([frame[0] for frame in frames[1:]])
        parts.append(Episode(np.array(frames), np.array(actions), rewards))
    return Dataset.from_episodes(parts, TASK.observation_names, TASK.action_names, {})


def steer(frame, random):
    return float(np.clip(-0.5 * frame[0], -1, 1))


def explore(frame, random):
    return float(random.uniform(-1, 1))


def test_a_deterministic_behaviour_is_recognised():
    content = report_data(make_log(steer), TASK)
    assert content["behaviour"]["explained_on_average"] > 0.95
    assert any("nearly deterministic" in remark for remark in content["remarks"])


def test_exploration_is_recognised():
    content = report_data(make_log(explore), TASK)
    assert content["behaviour"]["explained_on_average"] < 0.1
    assert content["behaviour"]["spread"]["push"] == pytest.approx(1 / np.sqrt(3), rel=0.2)
    assert any("The behaviour varies" in remark for remark in content["remarks"])
    assert content["coverage"]["actions"]["push"]["range_used"] == pytest.approx(0.95, abs=0.02)
    assert content["coverage"]["actions"]["push"]["bins_visited"] == 1.0


def test_a_narrow_range_is_told():
    content = report_data(make_log(lambda frame, random: 0.02 * random.normal()), TASK)
    assert any("uses only" in remark for remark in content["remarks"])


def test_autocorrelation_of_a_known_process():
    random = np.random.default_rng(0)
    parts = []
    for _ in range(20):
        values = [random.normal() / np.sqrt(1 - 0.8**2)]
        for _ in range(500):
            values.append(0.8 * values[-1] + random.normal())
        frames = np.stack([values, random.normal(size=501)], axis=1)
        parts.append(Episode(frames, random.uniform(-1, 1, (500, 1)), np.zeros(500)))
    log = Dataset.from_episodes(parts, TASK.observation_names, TASK.action_names, {})
    np.testing.assert_allclose(autocorrelation(log, 0, 3), 0.8 ** np.arange(4), atol=0.05)
    np.testing.assert_allclose(autocorrelation(log, 1, 3)[1:], 0, atol=0.05)


def test_a_plant_with_a_longer_memory_needs_a_longer_history():
    random = np.random.default_rng(1)
    parts = []
    for _ in range(6):
        values = list(0.3 * random.normal(size=5))
        for _ in range(800):
            values.append(0.95 * values[-5] + 0.1 * random.normal())
        frames = np.stack([values[4:], random.normal(size=801)], axis=1)
        parts.append(Episode(frames, random.uniform(-1, 1, (800, 1)), np.zeros(800)))
    log = Dataset.from_episodes(parts, TASK.observation_names, TASK.action_names, {})
    only_x = dataclasses.replace(TASK, predicted_names=("x",))
    errors = history_errors(log, only_x)
    assert errors[3] > 2 * errors[5]
    content = report_data(log, only_x)
    assert content["memory"]["suggested_history"] == 5
    assert any("5 frames of history predict better" in remark for remark in content["remarks"])
    assert any("All stretches earn the same" in remark for remark in content["remarks"])


def test_returns_of_stretches():
    log = make_log(explore, episodes=3, steps=25)
    told = measure_returns(log, TASK)
    assert told["stretches"] == 6
    rewards = log.rewards.reshape(3, 25)[:, :20].reshape(6, 10).astype(float)
    expected = rewards @ 0.5 ** np.arange(10)
    assert told["mean"] == pytest.approx(expected.mean())
    assert told["maximum"] == pytest.approx(expected.max())


def test_what_the_plant_ended_is_a_return_and_what_was_cut_is_none():
    def episode(rewards, is_ended):
        count = len(rewards)
        frames = np.zeros((count + 1, len(TASK.observation_names)))
        return Episode(frames, np.zeros((count, 1)), np.array(rewards, float), terminated=is_ended)

    def returns(*parts):
        names = (TASK.observation_names, TASK.action_names)
        return returns_of_stretches(Dataset.from_episodes(parts, *names, {}), TASK)

    whole = np.sum(0.5 ** np.arange(10))
    ended, cut = episode([1.0] * 12, True), episode([1.0] * 12, False)
    np.testing.assert_allclose(returns(ended, cut), [whole, 1.5, whole])
    np.testing.assert_allclose(returns(episode([1.0] * 2, True), episode([1.0], True)), [1.5, 1.0])
    np.testing.assert_allclose(returns(episode([1.0] * 10, True)), [whole])
    # Nothing is long enough: better these than none.
    np.testing.assert_allclose(returns(episode([1.0], False), episode([1.0] * 2, False)), [1, 1.5])


def test_directions_are_counted():
    random = np.random.default_rng(0)
    independent = random.normal(size=(2000, 4))
    assert effective_dimensions(independent) == pytest.approx(4, abs=0.1)
    copies = np.repeat(independent[:, :1], 3, axis=1)
    assert effective_dimensions(copies) == pytest.approx(1, abs=0.01)
    constant = np.concatenate([independent, np.ones((2000, 2))], axis=1)
    assert effective_dimensions(constant) == pytest.approx(4, abs=0.1)


def test_a_single_short_episode_is_no_obstacle(tmp_path):
    log = make_log(explore, episodes=1, steps=6)
    content = report_data(log, TASK)
    json.dumps(content, allow_nan=False)
    assert any("only 1 episode;" in remark for remark in content["remarks"])
    pictures = draw_report(log, TASK, content, tmp_path)
    assert [picture.name for picture in pictures] == list(PICTURES)
    assert all(picture.stat().st_size > 1000 for picture in pictures)
    console = Console(width=200)
    with console.capture() as captured:
        console.print(render(content))
    assert "Suggested history" in captured.get()
