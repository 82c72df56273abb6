"""Playing final policies, watching those in training, and the figure that results are told by."""

from __future__ import annotations

import io
import json
import types

import gymnasium
import jax
import numpy as np
import pytest
from gymnasium.envs.classic_control.pendulum import PendulumEnv
from rich.console import Console

import moose
from moose.data.files import save_dataset
from moose.data.normalize import measure
from moose.envs.catalog import make_dataset
from moose.envs.gymnasium_plants import versions_of_plant
from moose.envs.gymnasium_recipes import gymnasium_recipe_of
from moose.envs.plants import make_industrial_benchmark
from moose.envs.recipes import recipe_of
from moose.errors import ConfigError, DataError, RunError
from moose.evaluation.protocol import evaluate
from moose.experiments.evaluate import (
    evaluate_run,
    evaluation_key,
    make_observer,
    plant_of,
    render,
    tail_of_training,
)
from moose.experiments.run_folder import (
    DataRecord,
    Manifest,
    Request,
    read_evaluations,
    read_run,
    run_digest,
    write_run,
)
from moose.experiments.runner import begin_run, make_request, resume_run
from moose.models.actor import choose_action, init_actor
from moose.policies.policy import Policy, save_policy
from moose.tasks.industrial_benchmark import make_task

TASK = make_task()
FRAMES = np.random.default_rng(0).uniform(0, 100, (50, 6)).astype(np.float32)


def make_actor(seed=0):
    return init_actor(TASK, measure(FRAMES), (4,), jax.random.key(seed))


def act(actor, window, key):
    return choose_action(actor, TASK, window)


class Recorder:
    def __init__(self):
        self.lines = []

    def record_evaluation(self, stage, step, contents):
        self.lines.append((stage, step, contents))


@pytest.fixture(scope="module")
def dataset():
    return make_dataset(recipe_of("ib/mediocre-0.6", episodes=3, steps=120, setpoint=40.0))


def write_finished_run(folder, dataset):
    request = Request(data=str(folder / "gone"))
    fingerprint = dataset.fingerprint
    data = DataRecord(
        fingerprint=fingerprint, transitions=1, episodes=1, provenance=dataset.provenance
    )
    digest = run_digest(request, fingerprint, None)
    write_run(folder, Manifest(request=request, digest=digest, data=data, versions={}))
    save_policy(Policy(TASK.name, make_actor()), folder / "policy")


def test_a_policy_is_played_in_the_plant_that_its_data_came_from(tmp_path, dataset):
    write_finished_run(tmp_path, dataset)
    warnings = []
    result = evaluate_run(tmp_path, episodes=8, steps=10, seed=3, warn=warnings.append)
    key = jax.random.fold_in(jax.random.key(30_000), 3)
    plant, size = make_industrial_benchmark(40.0), {"history": 30, "episodes": 8, "steps": 10}
    returns = np.asarray(evaluate(plant, act, make_actor(), **size, key=key))
    policy, hold = result["controllers"]
    assert policy["mean"] == pytest.approx(np.mean(returns), rel=1e-5)
    assert policy["standard_error"] == pytest.approx(np.std(returns, ddof=1) / 8**0.5, rel=1e-4)
    assert policy["percentile_10"] == pytest.approx(np.percentile(returns, 10), rel=1e-5)
    assert hold["name"] == "hold"
    assert hold["mean"] != pytest.approx(policy["mean"])
    assert result["tail"] is None
    assert len(warnings) == 1


def test_a_watched_policy_meets_other_resets_at_every_step(dataset):
    recorder = Recorder()
    observe = make_observer(dataset, TASK, recorder, episodes=4, is_seeded=False)
    for step in (0, 10):
        observe(step, make_actor())
    (_, _, ((first),)), (stage, step, ((second),)) = recorder.lines
    assert (stage, step) == ("policy", 10)
    assert first["returns"] != second["returns"]
    plant = make_industrial_benchmark(40.0)
    expected = evaluate(plant, act, make_actor(), history=30, episodes=4, key=evaluation_key(10))
    assert second["returns"] == pytest.approx(np.asarray(expected).tolist(), rel=1e-5)


def test_seeds_that_are_watched_together_meet_the_same_resets(dataset):
    recorder = Recorder()
    observe = make_observer(dataset, TASK, recorder, episodes=2, is_seeded=True)
    actors = [make_actor(0), make_actor(1), make_actor(0)]
    observe(5, jax.tree.map(lambda *leaves: np.stack(leaves), *actors))
    ((_, step, contents),) = recorder.lines
    assert step == 5
    returns = [content["returns"] for content in contents]
    assert returns[0] == returns[2] != returns[1]


@pytest.mark.parametrize("episodes", [0, 2])
def test_a_policy_that_is_not_finite_stops_the_run(dataset, episodes):
    recorder = Recorder()
    observe = make_observer(dataset, TASK, recorder, episodes=episodes, is_seeded=False)
    actor = make_actor()
    first, *others = actor.network
    broken = actor._replace(network=(first._replace(bias=first.bias.at[0].set(np.inf)), *others))
    with pytest.raises(RunError, match="the policy holds numbers that are not finite") as caught:
        observe(7, broken)
    assert caught.value.where == "stage 'policy', step 7"
    assert recorder.lines == []


def test_without_episodes_nothing_is_recorded(dataset):
    recorder = Recorder()
    make_observer(dataset, TASK, recorder, episodes=0, is_seeded=False)(7, make_actor())
    assert recorder.lines == []


def test_the_tail_pools_the_seeds():
    def lines(shift):
        steps = range(0, 1001, 10)
        return [{"step": step, "returns": [step + shift, step + shift + 2.0]} for step in steps]

    tail = tail_of_training([lines(0.0), lines(1000.0)])
    pooled = np.concatenate([np.arange(911, 1002, 10), np.arange(1911, 2002, 10)])
    assert tail["values"] == 20
    assert tail["percentile_10"] == pytest.approx(np.percentile(pooled, 10))
    assert tail["error"] == pytest.approx(1.7 * np.std(pooled, ddof=1) / 20**0.5)
    assert tail_of_training([[], []]) is None


def test_the_plant_is_that_of_the_provenance(monkeypatch):
    monkeypatch.setattr(
        "moose.experiments.evaluate.make_industrial_benchmark", lambda setpoint: setpoint
    )
    recipe = {"behaviour": "bad", "epsilon": 0.2, "setpoint": 30.0}
    plant = {"plant": "industrial_benchmark"}
    assert plant_of(plant) == 70.0
    assert plant_of(plant | {"recipe": recipe}) == 30.0
    assert plant_of(plant | {"recipe": "unknown"}) == 70.0
    assert plant_of(plant | {"recipe": {"flavour": "unknown"}}) == 70.0
    for provenance in ({}, {"plant": "toaster"}, {"plant": 3}):
        with pytest.raises(DataError, match="not known which plant"):
            plant_of(provenance)


PENDULUM = {
    "data": {"transitions": 400, "steps": 100},
    "config": {"hidden": [8], "updates": 20, "checks": 10, "batch_size": 50},
}


@pytest.fixture(scope="module")
def pendulum_run(tmp_path_factory):
    place = tmp_path_factory.mktemp("pendulum")
    log = place / "log"
    save_dataset(make_dataset(gymnasium_recipe_of("gym/Pendulum-v1", **PENDULUM["data"])), log)
    request = make_request(
        str(log), algorithm="clone", settings=[PENDULUM["config"]], evaluation_episodes=3
    )
    begin_run(request, place / "run")
    resume_run(place / "run", cache=place / "cache")
    return place / "run"


def test_a_run_on_a_gymnasium_data_set_is_watched_and_played_there(pendulum_run):
    lines = read_evaluations(pendulum_run)
    assert len(lines) == 11
    assert all(len(line["returns"]) == 3 for line in lines)
    result = evaluate_run(pendulum_run, episodes=4)
    assert result["protocol"] == {"episodes": 4, "steps": 100, "discount": 0.99, "seed": 0}
    policy, data = result["controllers"]
    assert (policy["name"], data["name"]) == ("policy", "data")
    assert data["cut_episodes"] == 0
    assert result["plant"] == {
        "name": "gym/Pendulum-v1",
        "versions": versions_of_plant("Pendulum-v1"),
    }
    assert -1700 < policy["mean"] < 0
    # The same by hand: the same resets, one episode at a time.
    controller = moose.load_policy(pendulum_run / "policy")
    key = jax.random.fold_in(jax.random.key(30_000), 0)
    environment, total = gymnasium.make("Pendulum-v1"), []
    for episode in range(4):
        seed = int(jax.random.bits(jax.random.fold_in(key, episode))) >> 1
        frame, _ = environment.reset(seed=seed)
        rewards = []
        for _ in range(100):
            frame, reward, *_ = environment.step(np.asarray(controller(frame[None]), np.float32))
            rewards.append(reward)
        total.append(np.sum(rewards * 0.99 ** np.arange(100)))
    environment.close()
    assert policy["mean"] == pytest.approx(np.mean(total), rel=1e-3)


def test_another_environment_can_be_played_in_if_it_fits(pendulum_run):
    result = evaluate_run(pendulum_run, episodes=2, steps=20, environment="gym/Pendulum-v1")
    same = evaluate_run(pendulum_run, episodes=2, steps=20)
    assert result["controllers"] == same["controllers"]
    with pytest.raises(ConfigError, match="has 2 observations; the policy was trained with 3"):
        evaluate_run(pendulum_run, episodes=2, environment="gym/MountainCarContinuous-v0")


class Wide(PendulumEnv):
    """A pendulum with a motor of another strength."""

    factor = 2.0

    def __init__(self):
        super().__init__()
        self.action_space = gymnasium.spaces.Box(
            self.factor * self.action_space.low, self.factor * self.action_space.high
        )


def test_what_a_log_earned_elsewhere_is_no_rival(pendulum_run):
    narrow = type("Narrow", (Wide,), {"factor": 0.5})
    gymnasium.register("Wide-v0", entry_point=Wide)
    gymnasium.register("Narrow-v0", entry_point=narrow)
    warnings = []
    try:
        result = evaluate_run(
            pendulum_run, episodes=2, steps=5, environment="gym/Wide-v0", warn=warnings.append
        )
        with pytest.raises(ConfigError, match="beyond the environment's bounds"):
            evaluate_run(pendulum_run, episodes=2, steps=5, environment="gym/Narrow-v0")
    finally:
        del gymnasium.registry["Wide-v0"], gymnasium.registry["Narrow-v0"]
    assert [row["name"] for row in result["controllers"]] == ["policy"]
    assert warnings == ["leaving out the data's own return: it was not earned in gym/Wide-v0"]
    assert "from fresh resets of gym/Wide-v0 (gymnasium " in text_of(render(result))


def test_a_log_of_one_episode_has_a_return_without_an_error(tmp_path):
    log = make_dataset(gymnasium_recipe_of("gym/Pendulum-v1", transitions=60))
    save_dataset(log, tmp_path / "log")
    request = make_request(str(tmp_path / "log"), algorithm="clone", settings=[PENDULUM["config"]])
    begin_run(request, tmp_path / "run")
    resume_run(tmp_path / "run", cache=tmp_path / "cache")
    result = evaluate_run(tmp_path / "run", episodes=2)
    data = result["controllers"][-1]
    assert (data["episodes"], data["standard_error"], data["cut_episodes"]) == (1, None, 1)
    json.dumps(result, allow_nan=False)
    assert "data (1 cut before 100 steps)" in text_of(render(result))


def text_of(page):
    console = Console(record=True, width=200, file=io.StringIO())
    console.print(page)
    return console.export_text()


def test_a_gymnasium_plant_is_no_function(pendulum_run):
    with pytest.raises(RunError, match="not a function"):
        plant_of(read_run(pendulum_run).data.provenance)


def test_an_unfinished_run_is_told(tmp_path):
    provenance = {"plant": "industrial_benchmark"}
    dataset = types.SimpleNamespace(fingerprint="f", provenance=provenance)
    write_finished_run(tmp_path, dataset)
    (tmp_path / "policy" / "manifest.json").unlink()
    with pytest.raises(RunError, match="not finished: there is no policy yet of seed 0"):
        evaluate_run(tmp_path)
