"""The Gymnasium environment: the interface, its options and its equality with the plant."""

from __future__ import annotations

import builtins
import importlib.util
import itertools
import subprocess
import sys
import warnings

import gymnasium
import jax
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env

from moose.envs import gymnasium_front as front
from moose.envs import industrial_benchmark as plant
from moose.errors import ConfigError, MissingExtraError, RunError

OPTIONS = {
    "setpoint": (70.0, 0),
    "is_drifting": (False, True),
    "reward_kind": front.REWARD_KINDS,
    "action_kind": front.ACTION_KINDS,
    "history": (1, 30),
}


def make(**options):
    return front.IndustrialBenchmarkEnv(**options)


def run(environment, num_steps, seed=0):
    """Observations, rewards and infos of an episode under the environment's own random actions."""
    environment.action_space.seed(seed)
    observation, info = environment.reset(seed=seed)
    observations, rewards, infos = [observation], [], [info]
    for _ in range(num_steps):
        observation, reward, _, _, info = environment.step(environment.action_space.sample())
        observations.append(observation)
        rewards.append(reward)
        infos.append(info)
    return np.stack(observations), np.array(rewards), infos


@pytest.mark.parametrize("values", list(itertools.product(*OPTIONS.values())), ids=str)
def test_gymnasium_accepts_every_combination_of_options(values):
    options = dict(zip(OPTIONS, values, strict=True))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        environment = gymnasium.make(front.ENVIRONMENT_ID, **options, max_steps=50)
        check_env(environment.unwrapped, skip_render_check=True)


def test_make_by_id_gives_the_paper_s_observation():
    environment = gymnasium.make("moose/IndustrialBenchmark-v0", setpoint=70, history=30)
    observation, _ = environment.reset(seed=0)
    assert observation.shape == environment.observation_space.shape == (180,)
    assert observation.dtype == np.float32
    np.testing.assert_array_equal(observation[:4], [70.0, 50.0, 50.0, 50.0])


def test_gymnasium_can_import_the_module_by_itself():
    program = (
        "import gymnasium\n"
        "name = 'moose.envs.gymnasium_front:moose/IndustrialBenchmark-v0'\n"
        "assert gymnasium.make(name, history=1).reset(seed=0)[0].shape == (6,)\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=120)


def test_registering_twice_is_harmless():
    front.register()
    front.register()
    assert front.ENVIRONMENT_ID in gymnasium.registry


@pytest.mark.parametrize("is_drifting", [False, True])
def test_the_same_seed_gives_the_same_trajectory(is_drifting):
    first, first_rewards, first_infos = run(make(is_drifting=is_drifting), 40, seed=7)
    again, again_rewards, again_infos = run(make(is_drifting=is_drifting), 40, seed=7)
    other, _, _ = run(make(is_drifting=is_drifting), 40, seed=8)
    np.testing.assert_array_equal(first, again)
    np.testing.assert_array_equal(first_rewards, again_rewards)
    assert first_infos == again_infos
    assert not np.array_equal(first, other)


def test_resets_without_a_seed_go_on_from_the_last_seed():
    environment = make(history=1)
    episodes = [environment.reset(seed=1)[0], environment.reset()[0], environment.reset()[0]]
    assert len({tuple(episode) for episode in episodes}) == 3
    np.testing.assert_array_equal(environment.reset(seed=1)[0], episodes[0])
    np.testing.assert_array_equal(environment.reset()[0], episodes[1])


def test_vector_environments():
    environments = gymnasium.make_vec(
        front.ENVIRONMENT_ID, num_envs=3, vectorization_mode="sync", history=2, max_steps=5
    )
    observations, _ = environments.reset(seed=3)
    assert observations.shape == (3, 12)
    assert len({tuple(row) for row in observations}) == 3
    for step in range(1, 6):
        observations, rewards, terminated, truncated, _ = environments.step(
            np.zeros((3, 3), np.float32)
        )
        assert observations.shape == (3, 12)
        assert rewards.shape == (3,)
        assert not terminated.any()
        assert truncated.all() == (step == 5)
    environments.close()


def test_history_is_stacked_newest_first():
    frames, _, _ = run(make(history=1), 9, seed=4)
    stacked, _, _ = run(make(history=5), 9, seed=4)
    padded = np.concatenate([np.tile(frames[0], (4, 1)), frames])
    for time, observation in enumerate(stacked):
        window = padded[time : time + 5][::-1]
        np.testing.assert_array_equal(observation.reshape(5, 6), window)


def test_an_observation_can_be_changed_without_harm():
    environment, untouched = make(history=3), make(history=3)
    observation, _ = environment.reset(seed=0)
    untouched.reset(seed=0)
    observation[:] = 0.0
    action = np.zeros(3, np.float32)
    np.testing.assert_array_equal(environment.step(action)[0], untouched.step(action)[0])


def test_rewards_are_raw_and_delta_rewards_are_their_differences():
    frames, classic, _ = run(make(history=1), 20, seed=5)
    _, delta, _ = run(make(history=1, reward_kind="delta"), 20, seed=5)
    np.testing.assert_allclose(classic, -(3 * frames[1:, 4] + frames[1:, 5]), rtol=1e-6)
    first = -(3 * frames[0, 4] + frames[0, 5])
    np.testing.assert_allclose(delta, np.diff(classic, prepend=first), atol=1e-3)


def test_episodes_are_truncated_and_never_terminated():
    environment = make(max_steps=4)
    for _ in range(2):
        environment.reset(seed=0)
        ends = [environment.step(np.zeros(3, np.float32))[2:4] for _ in range(4)]
        assert ends == [(False, False)] * 3 + [(False, True)]
    assert make().max_steps == 1000


def test_discrete_actions_are_the_original_wrapper_s():
    table = [[v, g, s] for v in (-1, 0, 1) for g in (-1, 0, 1) for s in (-1, 0, 1)]
    np.testing.assert_array_equal(front.DISCRETE_ACTIONS, table)
    discrete, continuous = make(action_kind="discrete"), make()
    assert discrete.action_space.n == 27
    discrete.reset(seed=2)
    continuous.reset(seed=2)
    for number, row in enumerate(table):
        chosen = discrete.step(number)[0]
        np.testing.assert_array_equal(chosen, continuous.step(np.array(row, np.float32))[0])


def test_actions_out_of_range_are_clipped():
    one, other = make(), make()
    one.reset(seed=0)
    other.reset(seed=0)
    far = one.step(np.array([np.inf, -5.0, 1e300]))[0]
    np.testing.assert_array_equal(far, other.step(np.array([1.0, -1.0, 1.0], np.float32))[0])


def test_steps_are_those_of_the_plant():
    environment = make(history=1)
    observation, info = environment.reset(seed=11)
    key = jax.random.key(int(np.random.Generator(np.random.PCG64(11)).integers(2**31)))
    state = plant.reset(70.0, plant.draw_noise(jax.random.fold_in(key, 0)))
    for time in range(1, 8):
        np.testing.assert_allclose(observation, plant.observe(state), rtol=1e-5, atol=1e-5)
        action = np.float32([0.3, -0.7, 1.0])
        observation, _, _, _, info = environment.step(action)
        state = plant.step(state, action, plant.draw_noise(jax.random.fold_in(key, time)))
    assert tuple(info) == front.MARKOV_NAMES
    assert all(type(value) is float for value in info.values())
    names = [name for name in front.MARKOV_NAMES if name in vars(state)]
    for name in names:
        assert info[name] == pytest.approx(float(getattr(state, name)), rel=1e-5, abs=1e-5)
    ages = [info[f"operational_cost_{age}_steps_ago"] for age in range(10)]
    np.testing.assert_allclose(ages[::-1], state.operational_costs, rtol=1e-5)
    latent = [info["latent_gain_fatigue"], info["latent_velocity_fatigue"]]
    np.testing.assert_allclose(latent, state.latent_fatigue, rtol=1e-5, atol=1e-6)


def test_the_step_is_compiled_once_for_all_options():
    for values in itertools.product(*OPTIONS.values()):
        run(make(**dict(zip(OPTIONS, values, strict=True))), 2)
    assert front._first._cache_size() == 1
    assert front._next._cache_size() == 1


def test_observations_lie_in_the_space_under_extreme_steering():
    for corner in itertools.product((-1.0, 1.0), repeat=3):
        environment = make(history=1, is_drifting=True)
        environment.reset(seed=0)
        for _ in range(120):
            observation = environment.step(np.float32(corner))[0]
            assert environment.observation_space.contains(observation)


@pytest.mark.parametrize(
    ("option", "value", "mentions"),
    [
        ("reward_kind", "clasic", ["'classic' or 'delta'", "did you mean 'classic'?"]),
        ("reward_kind", None, ["'classic' or 'delta'"]),
        ("action_kind", "discreet", ["'continuous' or 'discrete'", "did you mean 'discrete'?"]),
        ("setpoint", 101, ["from 0 to 100"]),
        ("setpoint", float("nan"), ["from 0 to 100"]),
        ("setpoint", "70", ["from 0 to 100"]),
        ("setpoint", True, ["from 0 to 100"]),
        ("is_drifting", "yes", ["True or False"]),
        ("history", 0, ["1 or more"]),
        ("history", 2.0, ["1 or more"]),
        ("max_steps", -1, ["1 or more"]),
    ],
)
def test_a_bad_option_is_named_with_what_is_valid(option, value, mentions):
    with pytest.raises(ConfigError) as caught:
        make(**{option: value})
    for mention in [option, repr(value), *mentions]:
        assert mention in str(caught.value)


@pytest.mark.parametrize("action", [[0.0, 0.0], np.zeros((1, 3)), [0, np.nan, 0], "up", None])
def test_a_bad_continuous_action_is_explained(action):
    environment = make()
    environment.reset(seed=0)
    with pytest.raises(RunError, match="d_velocity, d_gain, d_shift"):
        environment.step(action)


@pytest.mark.parametrize("action", [27, -1, 1.5, [1, 2, 3]])
def test_a_bad_discrete_action_is_explained(action):
    environment = make(action_kind="discrete")
    environment.reset(seed=0)
    with pytest.raises(RunError, match="from 0 to 26"):
        environment.step(action)


def test_a_step_needs_a_reset():
    with pytest.raises(RunError, match="reset"):
        make().step(np.zeros(3, np.float32))


def test_a_missing_gymnasium_says_what_to_install(monkeypatch):
    imported = builtins.__import__

    def without_gymnasium(name, *arguments, **options):
        if name == "gymnasium":
            raise ImportError(name)
        return imported(name, *arguments, **options)

    specification = importlib.util.spec_from_file_location("front_again", front.__file__)
    module = importlib.util.module_from_spec(specification)
    monkeypatch.setattr(builtins, "__import__", without_gymnasium)
    with pytest.raises(MissingExtraError, match="moose-rl\\[gym\\]"):
        specification.loader.exec_module(module)
