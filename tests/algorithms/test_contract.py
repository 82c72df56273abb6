"""What every algorithm promises, tested on each of them alike.

A new algorithm joins by a row in :data:`CASES`: settings that make it small, the metrics of each of
its stages, and how it should compare with the policy that collected the data.
"""

from __future__ import annotations

from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from moose.algorithms.registry import ALGORITHMS
from moose.config import build_settings, merge
from moose.data.dataset import Dataset
from moose.data.episodes import Episode
from moose.models.actor import act
from moose.tasks.task import Task
from toys import MemoryJournal, assert_same_bits, differ


class Case(NamedTuple):
    """What the tests must know of an algorithm."""

    settings: dict[str, Any]
    """Put over the preset ``quick``."""
    metrics: dict[str, set[str]]
    """Names by stage."""
    goal: Literal["improve", "improve within the data", "imitate", "over-promise"]
    """What it should make of the policy that collected the data, or is known to make of it."""


CASES = {
    "moose": Case(
        settings={
            "dynamics": {"hidden": [16], "members": 2, "batch_size": 50, "learning_rate": 3e-3},
            "support": {"width": 16, "batch_size": 50},
            "search": {"hidden": [16], "updates": 120, "checks": 4, "start_states": 16}
            | {"learning_rate": 3e-3, "return_weight": 0.3, "starts": "any"},
        },
        metrics={
            "models": {"loss"},
            "support": {"loss"},
            "policy": {"loss", "imagined_return", "model_spread", "penalty", "gradient_norm"},
        },
        goal="improve",
    ),
    "lion": Case(
        settings={
            "position": 1.0,
            "dynamics": {
                "recurrent": {"units": 8, "updates": 240, "rounds": 4, "batch_size": 32}
                | {"horizon": 10, "inputs": "all", "learning_rate": 1e-2, "held_out_runs": 32}
            },
            "support": {"width": 16, "batch_size": 50},
            "situations": {"references": 100},
            "behaviour": {"hidden": [16], "updates": 200, "checks": 2, "learning_rate": 1e-2},
            "search": {"hidden": [16], "updates": 120, "checks": 4, "start_states": 16}
            | {"learning_rate": 1e-2},
        },
        metrics={
            "models": {"loss", "validation", "best_validation"},
            "support": {"loss"},
            "behaviour": {"loss"},
            "policy": {"loss", "imagined_return", "model_spread", "distance", "penalty"}
            | {"gradient_norm"},
        },
        goal="improve",
    ),
    "clone": Case(
        settings={"hidden": [16], "updates": 400, "checks": 4, "batch_size": 50}
        | {"learning_rate": 3e-3},
        metrics={"policy": {"loss"}},
        goal="imitate",
    ),
    "ddpg": Case(
        settings={"hidden": [16], "updates": 800, "checks": 4, "batch_size": 50}
        | {"learning_rate": 3e-3},
        metrics={"policy": {"critic_loss", "policy_loss", "mean_absolute_q"}},
        goal="over-promise",
    ),
    "bcq": Case(
        settings={"hidden": [16], "updates": 800, "checks": 4, "batch_size": 50}
        | {"learning_rate": 3e-3, "vae_width": 16},
        metrics={"policy": {"vae_loss", "critic_loss", "policy_loss", "mean_absolute_q"}},
        goal="improve within the data",
    ),
    "bear": Case(
        settings={"hidden": [16], "updates": 800, "checks": 4, "batch_size": 50}
        | {"learning_rate": 3e-3, "vae_width": 16, "kernel_width": 1.0, "threshold": 0.2},
        metrics={
            "policy": {"vae_loss", "critic_loss", "policy_loss", "mean_absolute_q"}
            | {"mmd", "multiplier"}
        },
        goal="improve within the data",
    ),
    "brac": Case(
        settings={"hidden": [16], "updates": 800, "checks": 4, "batch_size": 50}
        | {"learning_rate": 3e-3, "policy_learning_rate": 3e-3}
        | {"clone": {"hidden": [16], "updates": 400, "checks": 2, "batch_size": 50}},
        metrics={
            "clone": {"loss", "entropy", "multiplier"},
            "policy": {"critic_loss", "policy_loss", "mean_absolute_q", "kl"},
        },
        goal="improve within the data",
    ),
}

TARGET = 1.0  # the level that is paid for
HABIT = 0.3  # the level that the operators keep
GAMMA, HORIZON = 0.9, 20
VALVES = ("inlet", "spare")  # a spare valve does nothing but cost


def make_task(num_actions, history):
    """A tank: the level follows a sluggish flow, which follows the inlet valve."""
    return Task(
        name="tank",
        observation_names=("level", "flow"),
        action_names=VALVES[:num_actions],
        action_low=(-2.5, -1.0)[:num_actions],
        action_high=(2.0, 3.0)[:num_actions],
        history=history,
        discount=GAMMA,
        horizon=HORIZON,
        target="direct",
        predicted_names=("level", "flow"),
        physics=lambda frame, action, predicted: predicted,
        reward=tank_reward,
        hold_action=(0.0, 0.0)[:num_actions],
    )


def tank_reward(frame, action, next_frame):
    return -((next_frame[0] - TARGET) ** 2) - 0.01 * sum(action[i] ** 2 for i in range(len(action)))


def tank_step(frames, actions):
    flow = 0.5 * frames[:, 1] + 0.5 * actions[:, 0]
    return np.stack([0.7 * frames[:, 0] + 0.3 * flow, flow], axis=1)


def operators(task, rng, unsteadiness=0.5):
    """Keep a level that is not the best one, with a hand that is not steady."""

    def act(windows):
        wanted = np.zeros((len(windows), len(task.action_names)))
        wanted[:, 0] = HABIT + 1.5 * (HABIT - windows[:, 0, 0])
        noise = rng.normal(0.0, unsteadiness, wanted.shape)
        return np.clip(wanted + noise, task.action_low, task.action_high)

    return act


def play(act, task, *, episodes, steps, rng):
    """Frames [E, T + 1, n], actions [E, T, d] and rewards [E, T] in the true plant."""
    frames = [np.column_stack([rng.uniform(-0.2, 0.8, episodes), np.zeros(episodes)])]
    actions, rewards = [], []
    for _ in range(steps):
        seen = [frames[max(len(frames) - 1 - age, 0)] for age in range(task.history)]
        actions.append(np.asarray(act(np.stack(seen, axis=1)), np.float64))
        frames.append(tank_step(frames[-1], actions[-1]) + rng.normal(0.0, 0.01, (episodes, 2)))
        rewards.append(
            [tank_reward(*step) for step in zip(frames[-2], actions[-1], frames[-1], strict=True)]
        )
    return np.stack(frames, 1), np.stack(actions, 1), np.array(rewards).T


def make_log(task):
    rng = np.random.default_rng(0)
    parts = play(operators(task, rng), task, episodes=30, steps=20, rng=rng)
    episodes = [Episode(*part) for part in zip(*parts, strict=True)]
    return Dataset.from_episodes(episodes, task.observation_names, task.action_names, {})


def mean_return(act, task):
    _, _, rewards = play(act, task, episodes=40, steps=HORIZON, rng=np.random.default_rng(1))
    return float(np.mean(rewards @ GAMMA ** np.arange(HORIZON)))


def make_act(actor, task):
    choose = jax.jit(jax.vmap(lambda window, key: act(actor, task, window, key)))

    def choose_all(windows):
        keys = jax.random.split(jax.random.key(0), len(windows))
        return choose(jnp.asarray(windows, jnp.float32), keys)

    return choose_all


def make_config(name, **changes):
    algorithm = ALGORITHMS[name]
    return build_settings(
        algorithm.config, merge(merge(algorithm.preset("quick"), CASES[name].settings), changes)
    )


def fit(name, task, log, *, seed=0, **options):
    return ALGORITHMS[name].fit(log, task, make_config(name), jax.random.key(seed), **options)


class Undisturbed(NamedTuple):
    """One fit that many tests look at."""

    name: str
    task: Task
    log: Dataset
    fitted: Any
    journal: MemoryJournal
    observed: dict[int, Any]


@pytest.fixture(scope="module", params=sorted(ALGORITHMS))
def undisturbed(request):
    task = make_task(1, 1)
    log, journal, observed = make_log(task), MemoryJournal(), {}
    fitted = fit(
        request.param,
        task,
        log,
        journal=journal,
        observe=lambda step, actor: observed.update({step: actor}),
    )
    return Undisturbed(request.param, task, log, fitted, journal, observed)


def test_every_algorithm_has_a_case():
    assert CASES.keys() == ALGORITHMS.keys()
    assert all(name == algorithm.name for name, algorithm in ALGORITHMS.items())


@pytest.mark.parametrize("name", sorted(ALGORITHMS))
def test_presets_build(name):
    algorithm = ALGORITHMS[name]
    assert "quick" in algorithm.presets
    assert algorithm.default_preset == ("fast" if name == "lion" else "paper")
    for preset in algorithm.presets:
        build_settings(algorithm.config, algorithm.preset(preset))


@pytest.mark.parametrize("name", sorted(ALGORITHMS.keys() - {"moose", "lion"}))
def test_the_rivals_see_standardised_states_where_raw_ones_would_saturate_them(name):
    algorithm = ALGORITHMS[name]
    seen = {
        preset: build_settings(algorithm.config, algorithm.preset(preset)).inputs
        for preset in algorithm.presets
    }
    assert seen == {"paper": "standardised", "paper-mujoco": "raw", "quick": "standardised"}


def test_the_same_seed_gives_the_same_bits(undisturbed):
    # Nobody watches and nothing is kept, either.
    again = fit(undisturbed.name, undisturbed.task, undisturbed.log)
    assert_same_bits(jax.tree.map(np.asarray, again), jax.tree.map(np.asarray, undisturbed.fitted))


def test_another_seed_gives_another_policy(undisturbed):
    other = fit(undisturbed.name, undisturbed.task, undisturbed.log, seed=1)
    assert differ(other.actor, undisturbed.fitted.actor)


def test_metrics_have_stable_names_and_come_once_a_step(undisturbed):
    journal, stages = undisturbed.journal, CASES[undisturbed.name].metrics
    assert list(dict.fromkeys(line[0] for line in journal.lines)) == list(stages)
    for stage, names in stages.items():
        lines = [line for line in journal.lines if line[0] == stage]
        assert [line[1] for line in lines] == list(range(len(lines)))
        assert all(line[2].keys() == names for line in lines)
        assert all(np.isfinite(value).all() for line in lines for value in line[2].values())


def test_an_observer_sees_the_policy_from_first_to_last(undisturbed):
    steps = list(undisturbed.observed)
    assert steps[0] == 0
    assert steps == sorted(steps)
    assert len(steps) > 2
    assert_same_bits(undisturbed.observed[steps[-1]], undisturbed.fitted.actor)
    assert differ(undisturbed.observed[0], undisturbed.fitted.actor)


def test_a_fit_interrupted_in_every_stage_ends_with_the_same_bits(undisturbed):
    journal = MemoryJournal()
    for stage in CASES[undisturbed.name].metrics:
        steps = [step for kept, step in undisturbed.journal.kept if kept == stage]
        journal.fail_at = (stage, steps[len(steps) // 2])
        with pytest.raises(KeyboardInterrupt):
            fit(undisturbed.name, undisturbed.task, undisturbed.log, journal=journal)
    journal.fail_at = None
    resumed = fit(undisturbed.name, undisturbed.task, undisturbed.log, journal=journal)
    assert_same_bits(
        jax.tree.map(np.asarray, resumed), jax.tree.map(np.asarray, undisturbed.fitted)
    )
    for found, expected in zip(journal.lines, undisturbed.journal.lines, strict=True):
        assert found[:2] == expected[:2]
        assert_same_bits(found[2], expected[2])


def test_seeds_together_begin_as_each_alone(undisturbed):
    if undisturbed.name not in {"clone", "ddpg", "brac"}:
        return  # long to compile: MOOSE has a test of its own, all are tried together below
    journal, observed = MemoryJournal(), {}
    journal.fail_at = next(kept for kept in undisturbed.journal.kept if kept[0] == "policy")
    keys = jnp.stack([jax.random.key(1), jax.random.key(0)])
    with pytest.raises(KeyboardInterrupt):
        ALGORITHMS[undisturbed.name].fit(
            undisturbed.log,
            undisturbed.task,
            make_config(undisturbed.name),
            keys,
            journal=journal,
            observe=lambda step, actor: observed.update({step: actor}),
        )
    second = jax.tree.map(lambda leaf: leaf[1], observed[0])
    assert_same_bits(second, jax.tree.map(jnp.asarray, undisturbed.observed[0]))
    expected = {line[:2]: line[2] for line in undisturbed.journal.lines}
    first_stage = journal.lines[0][0]
    for stage, step, metrics in journal.lines:
        if step < 5:
            # A later stage starts from what rounding made of the one before it.
            rtol, atol = (1e-3, 1e-4) if stage == first_stage else (0.1, 0.1)
            for name, values in metrics.items():
                assert values.shape == (2,)
                one = expected[stage, step][name]
                np.testing.assert_allclose(values[1], one, rtol=rtol, atol=atol, err_msg=name)


def require_sound_actions(actor, task, *, is_varied=True):
    rng = np.random.default_rng(0)
    seen = []
    for size in (1.0, 100.0):
        windows = rng.uniform(-size, size, (100, task.history, 2))
        actions = np.asarray(make_act(actor, task)(windows))
        assert actions.shape == (100, len(task.action_names))
        assert np.isfinite(actions).all()
        assert (actions >= np.array(task.action_low) - 1e-6).all()
        assert (actions <= np.array(task.action_high) + 1e-6).all()
        seen.append(actions)
    assert not is_varied or np.ptp(seen) > 0.0


def test_actions_are_finite_and_within_bounds(undisturbed):
    # Who over-promises also runs into a corner of the box.
    is_varied = CASES[undisturbed.name].goal != "over-promise"
    require_sound_actions(undisturbed.fitted.actor, undisturbed.task, is_varied=is_varied)


@pytest.mark.parametrize("name", sorted(ALGORITHMS))
def test_several_actions_frames_and_seeds_will_do(name):
    task = make_task(2, 3)
    keys = jax.random.split(jax.random.key(0), 2)
    fitted = ALGORITHMS[name].fit(make_log(task), task, make_config(name), keys)
    actors = [jax.tree.map(lambda leaf, i=i: leaf[i], fitted.actor) for i in range(2)]
    assert differ(*actors)
    for actor in actors:
        is_varied = CASES[name].goal != "over-promise"
        require_sound_actions(actor, task, is_varied=is_varied)


def test_the_policy_does_what_the_algorithm_is_for(undisturbed):
    task = undisturbed.task
    trained = mean_return(make_act(undisturbed.fitted.actor, task), task)
    behaviour = mean_return(operators(task, np.random.default_rng(2)), task)
    steady = mean_return(operators(task, np.random.default_rng(2), 0.0), task)
    hold = mean_return(lambda windows: np.tile(task.hold_action, (len(windows), 1)), task)
    goal = CASES[undisturbed.name].goal
    if goal == "imitate":
        assert trained == pytest.approx(steady, rel=0.15)
    elif goal == "over-promise":  # a reward above 0 where there is none to be had
        promised = -undisturbed.journal.lines[-1][2]["policy_loss"]
        assert promised > 0.0 > trained
        assert trained < 0.9 * max(behaviour, steady, hold)
    else:  # rewards are negative: at most this share of the best one's loss
        share = 0.5 if goal == "improve" else 0.9
        assert trained > share * max(behaviour, steady, hold)
