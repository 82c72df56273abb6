"""The simulator against the original, and against its own promises."""

from __future__ import annotations

import dataclasses
import functools
import itertools
import types

import hypothesis
import hypothesis.extra.numpy
import hypothesis.strategies as st
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats
from industrial_benchmark_python import IDS as original  # noqa: N811 (absent, all here must fail)

from moose.envs import industrial_benchmark as plant

NUM_SEEDS = 10
NUM_STEPS = 1000
TOLERANCE = 1e-9  # relative to max(1, |value|)
NOISE_SHAPES = {"disturbance": (2,), "jump_size": (2,), "jump": (2,)}
NOISE_NAMES = [*plant.Noise.__dataclass_fields__]


@pytest.fixture(autouse=True)
def strict_numerics():
    with jax.numpy_dtype_promotion("strict"), jax.numpy_rank_promotion("raise"):
        yield


# Parity with the original, driven by the same draws


class ReplayedRandom:
    """Stands in for ``numpy.random`` and hands out prepared draws by what they are used for."""

    def __init__(self, draws):
        self.draws, self.time, self.expected = draws, 0, []

    def begin(self, time):
        assert not self.expected, f"the original did not use {self.expected}"
        self.time = time

    def _draw(self, name, *index):
        return float(self.draws[name][(self.time, *index)])

    def seed(self, seed):
        assert seed is None

    def randint(self, low, high):
        assert (low, high) == (1, 100)
        self.expected = [("sequence_change",), ("sequence_pause",)]
        return 1 + int(99 * self._draw("sequence_length"))

    def rand(self):
        return self._draw(*self.expected.pop(0)) if self.expected else self._draw("setpoint_flip")

    def exponential(self, scale):
        if self.expected:  # the gain came first
            self.expected = [(name, x) for name in ("jump_size", "jump") for x in (0, 1)]
            return scale * self._draw("disturbance", 1)
        self.expected = [("second exponential",)]
        return scale * self._draw("disturbance", 0)

    def binomial(self, count, probability):
        assert count == 1
        return int(self._draw(*self.expected.pop(0)) < probability)

    def normal(self, mean, deviation):
        return mean + deviation * self._draw("amplification")

    def randn(self):
        return self._draw("consumption")


class NumpyProxy(types.ModuleType):
    """NumPy with ``float``, which the original still wants, and our random numbers."""

    def __init__(self, random):
        super().__init__("numpy")
        self.float, self.random = float, random

    def __getattr__(self, name):
        return getattr(np, name)


def prepared_draws(seed, num_steps):
    generator = np.random.default_rng(seed)

    def draw(name):
        shape = (num_steps + 1, *NOISE_SHAPES.get(name, ()))
        if name == "disturbance":
            return generator.standard_exponential(shape)
        if name in ("amplification", "consumption"):
            return generator.standard_normal(shape)
        return generator.random(shape)

    return {name: draw(name) for name in NOISE_NAMES}


def original_trajectory(monkeypatch, setpoint, is_drifting, draws, actions):
    """Every state of the original as columns: after the reset and after each action."""
    random = ReplayedRandom(draws)
    monkeypatch.setattr(original, "np", NumpyProxy(random))
    simulator = original.IDS(p=setpoint, stationary_p=not is_drifting)
    rows = [simulator.markovState()]
    for time, action in enumerate(actions, start=1):
        random.begin(time)
        simulator.step(action)
        rows.append(simulator.markovState())
    return np.stack(rows)


@jax.jit
@functools.partial(jax.vmap, in_axes=(None, None, 0, 0))
def our_trajectories(setpoint, is_drifting, draws, actions):
    """The same columns from our simulator, for a batch of plants."""
    noise = plant.Noise(**draws)
    first = plant.reset(setpoint, jax.tree.map(lambda x: x[0], noise), is_drifting=is_drifting)

    def advance(state, inputs):
        state = plant.step(state, *inputs)
        return state, original_columns(state)

    later = jax.tree.map(lambda x: x[1:], noise)
    _, rows = jax.lax.scan(advance, first, (actions, later))
    return jnp.concatenate([original_columns(first)[None], rows])


COLUMNS = [
    *(f"o[{i}]" for i in range(10)),
    *("coc", "fb", "oc", "hg", "hv", "he", "gs_domain", "gs_sys_response", "gs_phi_idx"),
    *("ge", "ve", "MC", "p", "v", "g", "h", "f", "c", "cost", "reward"),
]


def original_columns(state):
    """Our state, and what follows from it, in the order of the original's ``state``."""
    position = plant.effective_shift(state.shift, state.setpoint)
    score = plant.reward(plant.observe(state))
    columns = [
        *state.operational_costs,
        state.operational_costs[-1],
        plant.basic_fatigue(state.velocity, state.gain),
        plant.delayed_cost(state.operational_costs),
        *state.latent_fatigue,
        position,
        state.domain,
        state.response,
        state.direction,
        plant.effective_gain(state.gain, state.setpoint),
        plant.effective_velocity(state.velocity, state.gain, state.setpoint),
        plant.miscalibration(state.direction, position),
        *plant.observe(state),
        -score,
        score,
    ]
    return jnp.stack([column.astype(score.dtype) for column in columns])


def assert_parity(monkeypatch, setpoint, is_drifting, actions, seeds):
    """Compare plants with these actions ``[seed, time, 3]``, all of ours at once."""
    all_draws = [prepared_draws(seed, actions.shape[1]) for seed in seeds]
    theirs = np.stack(
        [
            original_trajectory(monkeypatch, setpoint, is_drifting, draws, plan)
            for draws, plan in zip(all_draws, actions, strict=True)
        ]
    )
    with jax.enable_x64(True):
        stacked = jax.tree.map(lambda *x: np.stack(x), *all_draws)
        ours = our_trajectories(float(setpoint), is_drifting, stacked, jnp.asarray(actions))
        assert ours.dtype == jnp.float64
        ours = np.asarray(ours)
    assert ours.shape == theirs.shape == (len(seeds), actions.shape[1] + 1, len(COLUMNS))
    error = np.abs(ours - theirs) / np.maximum(1.0, np.abs(theirs))
    worst = np.unravel_index(np.argmax(error), error.shape)
    assert error.max() <= TOLERANCE, f"{COLUMNS[worst[2]]} of plant {worst[0]} at step {worst[1]}"
    return theirs


def column(trajectories, name):
    return trajectories[..., COLUMNS.index(name)]


def test_columns_are_those_of_the_original(monkeypatch):
    monkeypatch.setattr(original, "np", NumpyProxy(ReplayedRandom(prepared_draws(0, 0))))
    names = []
    for name, value in original.IDS().state.items():
        size = np.size(value)
        names += [name] if size == 1 else [f"{name}[{i}]" for i in range(size)]
    assert names == COLUMNS


@pytest.mark.parametrize("setpoint", [0, 30, 70, 100])
def test_random_actions_agree_with_the_original(monkeypatch, setpoint):
    actions = np.random.default_rng(setpoint).uniform(-1.2, 1.2, (NUM_SEEDS, NUM_STEPS, 3))
    assert_parity(monkeypatch, setpoint, False, actions, range(NUM_SEEDS))


@pytest.mark.parametrize("setpoint", [3, 97])
def test_drifting_setpoints_agree_with_the_original(monkeypatch, setpoint):
    actions = np.random.default_rng(setpoint).uniform(-1.2, 1.2, (NUM_SEEDS, NUM_STEPS, 3))
    theirs = assert_parity(monkeypatch, setpoint, True, actions, range(100, 100 + NUM_SEEDS))
    loads = column(theirs, "p")
    assert loads.min() == 0.0  # both bounds were met, so that the flip was tried
    assert loads.max() == 100.0


def extreme_plans():
    """Plans ``[plan, time, 3]`` that hold every corner and swing through the potential."""
    corners = [[v, g, s] for v in (-1, 1) for g in (-1, 1) for s in (-1, 1)]
    plans = [np.tile(np.array(corner, float), (300, 1)) for corner in corners]
    for period in (1, 3, 7, 12, 20, 45):  # the shift turns round, starting up or down
        swing = np.where(np.arange(300) // period % 2, 1.0, -1.0)
        for sign in (-1.0, 1.0):
            plans.append(np.stack([0 * swing, -sign * swing, sign * swing], axis=1))
    slow = 0.2 * np.sin(np.arange(300) / 9.0)  # stays near the safe zone and cools down
    plans.append(np.stack([slow, slow, 3.0 * slow], axis=1))
    return np.stack(plans)


@pytest.mark.parametrize("is_drifting", [False, True])
@pytest.mark.parametrize("setpoint", [0, 30, 50, 70, 100])
def test_extreme_actions_agree_with_the_original(monkeypatch, setpoint, is_drifting):
    plans = extreme_plans()
    theirs = assert_parity(monkeypatch, setpoint, is_drifting, plans, range(len(plans)))
    if setpoint == 50:  # every corner of the potential and of the latent fatigue was visited
        assert set(column(theirs, "gs_phi_idx").ravel()) == set(range(-6, 7))
        assert set(column(theirs, "gs_domain").ravel()) == {-1, 1}
        assert set(column(theirs, "gs_sys_response").ravel()) == {-1, 1}
        assert column(theirs, "hg").max() == column(theirs, "hv").max() == 5.0


# The plant with its own draws


@pytest.mark.parametrize("name", NOISE_NAMES)
def test_draws_have_their_distributions(name):
    noise = jax.vmap(plant.draw_noise)(jax.random.split(jax.random.key(0), 20_000))
    draws = np.asarray(getattr(noise, name), np.float64)
    assert draws.shape == (20_000, *NOISE_SHAPES.get(name, ()))
    kind = {"disturbance": "expon", "amplification": "norm", "consumption": "norm"}
    for sample in draws.reshape(len(draws), -1).T:
        assert scipy.stats.kstest(sample, kind.get(name, "uniform")).pvalue > 1e-3


def test_draws_are_independent_of_each_other():
    noise = jax.vmap(plant.draw_noise)(jax.random.split(jax.random.key(1), 20_000))
    columns = np.concatenate([np.reshape(x, (20_000, -1)) for x in jax.tree.leaves(noise)], axis=1)
    correlations = np.corrcoef(columns, rowvar=False) - np.eye(12)
    assert np.abs(correlations).max() < 5 / np.sqrt(20_000)


@pytest.mark.parametrize(
    ("low", "high", "expected"),
    [(0.0, 0.0, -64.9), (1.0, 1.0, -326.8), (-1.0, 1.0, -71.93)],
    ids=["hold", "bad", "random"],
)
def test_mean_returns_are_the_known_ones(low, high, expected):
    # Discounted by 0.97 over 100 steps, times 1/100: means over thousands of episodes of the
    # original (16,483 under random actions, with a standard error of 0.05).

    def discounted_return(key):
        def advance(state, step_key):
            noise_key, action_key = jax.random.split(step_key)
            action = jax.random.uniform(action_key, (3,), minval=low, maxval=high)
            state = plant.step(state, action, plant.draw_noise(noise_key))
            return state, plant.reward(plant.observe(state))

        reset_key, steps_key = jax.random.split(key)
        start = plant.reset(70.0, plant.draw_noise(reset_key))
        rewards = jax.lax.scan(advance, start, jax.random.split(steps_key, 100))[1]
        return jnp.sum(rewards * 0.97 ** jnp.arange(100.0)) * plant.REWARD_SCALE

    returns = jax.jit(jax.vmap(discounted_return))(jax.random.split(jax.random.key(0), 4000))
    standard_error = float(returns.std()) / np.sqrt(len(returns))
    assert float(returns.mean()) == pytest.approx(expected, abs=0.15 + 4 * standard_error)


# The equations at known points


def test_the_potential_is_deepest_at_a_quarter_turn():
    position = jnp.asarray(1.0)
    assert plant.miscalibration(jnp.asarray(6, jnp.int32), position) == pytest.approx(1.0, abs=1e-6)
    assert plant.miscalibration(jnp.asarray(-6, jnp.int32), -position) == pytest.approx(1.0, 1e-6)
    assert plant.miscalibration(jnp.asarray(-6, jnp.int32), position) < 0


def test_minimum_radius_minimises_the_potential():
    radius = np.linspace(0.0, 2.0, 200_001)
    for angle in np.linspace(0.0, np.pi / 2, 25):
        depth = np.asarray(plant.potential(radius, np.sin(angle)))
        assert plant.minimum_radius(np.sin(angle)) == pytest.approx(
            radius[depth.argmin()], abs=2e-5
        )


def test_effective_steering_spans_zero_to_one():
    zero, full, load = jnp.asarray(0.0), jnp.asarray(100.0), jnp.asarray(70.0)
    assert plant.effective_gain(full, load) == 0.0
    assert plant.effective_gain(zero, load) == 1.0
    assert plant.effective_velocity(full, zero, load) == 0.0
    assert plant.effective_velocity(zero, full, load) == 1.0


def test_costs_arrive_five_to_nine_steps_late():
    late = [float(plant.delayed_cost(jnp.eye(10)[age])) for age in range(10)]
    np.testing.assert_allclose(late, plant.DELAY_WEIGHTS)


def test_sequence_length_is_at_most_99():
    def length(draw):
        noise = plant.draw_noise(jax.random.key(0))
        return int(plant.new_sequence(jax.tree.map(lambda _: jnp.asarray(draw), noise))[1])

    assert length(0.0) == 1
    assert length(np.nextafter(np.float32(1), np.float32(0))) == 99
    assert length(np.float32(1)) == 99


def test_steer_is_what_a_step_does_and_has_gradients():
    state = plant.reset(70.0, plant.draw_noise(jax.random.key(0)))
    action = jnp.array([0.5, -0.3, 0.2])
    known = plant.steer(plant.observe(state), action)
    after = plant.observe(plant.step(state, action, plant.draw_noise(jax.random.key(1))))
    np.testing.assert_array_equal(known, after[1:4])
    slopes = jax.jacobian(plant.steer, argnums=1)(plant.observe(state), action)
    np.testing.assert_allclose(slopes, np.diag(plant.STEERING_STEPS), rtol=1e-6)


def test_a_still_plant_keeps_its_setpoint_and_a_drifting_one_does_not():
    still = frames_of(70.0, False, *prepared_inputs(3, 100))
    drifting = frames_of(70.0, True, *prepared_inputs(3, 100))
    assert set(np.asarray(still[:, 0])) == {70.0}
    assert np.ptp(drifting[:, 0]) > 5.0


# Promises of the implementation


@jax.jit
def frames_of(setpoint, is_drifting, noises, actions):
    """Frames of one plant whose first draws reset it."""
    first, later = jax.tree.map(lambda x: x[0], noises), jax.tree.map(lambda x: x[1:], noises)

    def advance(state, inputs):
        state = plant.step(state, *inputs)
        return state, plant.observe(state)

    start = plant.reset(setpoint, first, is_drifting=is_drifting)
    return jax.lax.scan(advance, start, (actions, later))[1]


def prepared_inputs(seed, num_steps, dtype=np.float32):
    """Draws and random actions for :func:`frames_of`, rounded to single precision."""
    draws = plant.Noise(**prepared_draws(seed, num_steps))
    actions = np.random.default_rng(seed).uniform(-1.0, 1.0, (num_steps, 3))
    return jax.tree.map(lambda x: np.float32(x).astype(dtype), (draws, actions))


def test_a_batch_is_a_loop():
    inputs = [prepared_inputs(seed, 100) for seed in range(5)]
    alone = np.stack([frames_of(70.0, True, *one) for one in inputs])
    batch = jax.tree.map(lambda *x: np.stack(x), *inputs)
    together = jax.jit(jax.vmap(lambda one: frames_of(70.0, True, *one)))(batch)
    np.testing.assert_allclose(together, alone, rtol=2e-5, atol=2e-5)


def test_compiled_is_interpreted():
    state = plant.reset(70.0, plant.draw_noise(jax.random.key(0)), is_drifting=True)
    compiled = jax.jit(plant.step)
    for time in range(30):
        noise = plant.draw_noise(jax.random.key(time + 1))
        action = jnp.sin(jnp.arange(3.0) + time)
        interpreted, state = plant.step(state, action, noise), compiled(state, action, noise)
        for one, other in zip(jax.tree.leaves(interpreted), jax.tree.leaves(state), strict=True):
            np.testing.assert_allclose(one, other, rtol=2e-5, atol=2e-5)


def test_single_precision_is_close_to_double():
    for seed in range(20):
        single = frames_of(70.0, True, *prepared_inputs(seed, 100))
        with jax.enable_x64(True):
            double = frames_of(70.0, True, *prepared_inputs(seed, 100, np.float64))
        assert (single.dtype, double.dtype) == (np.float32, np.float64)
        np.testing.assert_allclose(np.asarray(single, float), double, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("is_double_allowed", [False, True])
def test_types_do_not_change_from_step_to_step(is_double_allowed):
    with jax.enable_x64(is_double_allowed):
        for dtype in (jnp.float32, jnp.float64) if is_double_allowed else (jnp.float32,):
            noise = plant.draw_noise(jax.random.key(0), dtype)
            start = jax.jit(plant.reset)(70, noise)
            after = jax.jit(plant.step)(start, np.array([0.1, 0.2, 0.3]), noise)
            kinds = {
                field: leaf.dtype for field, leaf in vars(after).items() if leaf.dtype != dtype
            }
            assert kinds == {
                "domain": jnp.int32,
                "response": jnp.int32,
                "direction": jnp.int32,
                "is_drifting": jnp.bool,
                "sequence_step": jnp.int32,
                "sequence_length": jnp.int32,
            }
            assert jax.tree.map(jnp.shape, start) == jax.tree.map(jnp.shape, after)
            assert jax.tree.map(lambda x: (x.dtype, x.weak_type), start) == jax.tree.map(
                lambda x: (x.dtype, x.weak_type), after
            )


def assert_within_bounds(frames):
    frames = np.asarray(frames)
    assert np.isfinite(frames).all()
    assert (frames >= np.float32(plant.FRAME_LOW)).all()
    assert (frames <= np.float32(plant.FRAME_HIGH)).all()


@hypothesis.settings(deadline=None, max_examples=100)
@hypothesis.given(
    setpoint=st.floats(0.0, 100.0, width=32),
    is_drifting=st.booleans(),
    seed=st.integers(0, 2**31 - 1),
    actions=hypothesis.extra.numpy.arrays(
        np.float32, (8, 3), elements=st.floats(allow_nan=False, width=32)
    ),
)
def test_any_action_leads_to_a_frame_within_bounds(setpoint, is_drifting, seed, actions):
    keys = jax.random.split(jax.random.key(seed), len(actions) + 1)
    noises = jax.vmap(plant.draw_noise)(keys)
    assert_within_bounds(frames_of(setpoint, is_drifting, noises, actions))


@pytest.mark.parametrize("draw", [0.0, 0.999999])
@pytest.mark.parametrize("normal", [-9.0, 9.0])
@pytest.mark.parametrize("setpoint", [0.0, 50.0, 100.0])
def test_bounds_hold_at_the_worst_steering_and_draws(setpoint, normal, draw):
    noises = jax.vmap(plant.draw_noise)(jax.random.split(jax.random.key(0), 131))
    noises = jax.tree.map(lambda x: jnp.full_like(x, draw), noises)
    noises = dataclasses.replace(noises, consumption=jnp.full_like(noises.consumption, normal))
    for corner in itertools.product((-1.0, 1.0), repeat=3):
        actions = np.tile(np.float32(corner), (130, 1))
        assert_within_bounds(frames_of(setpoint, False, noises, actions))
