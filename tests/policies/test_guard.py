"""The guard: whatever the sensors, the policy and the fallback do, no limit is violated."""

from __future__ import annotations

import dataclasses
import gc
import os
import subprocess
import sys
import tracemalloc

import numpy as np
import pytest
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from moose.errors import ConfigError, DataError
from moose.policies.guard import REASONS, Guard, GuardSettings
from moose.policies.plain import Controller, load_policy
from moose.policies.policy import save_policy
from policies import make_toy_policy

IS_NIGHTLY = os.environ.get("MOOSE_NIGHTLY") == "1"
LOW, HIGH = np.array([-1.0, 0.5]), np.array([2.0, 1.5])


@pytest.fixture(scope="module")
def controller(tmp_path_factory):
    path = tmp_path_factory.mktemp("guard") / "policy"
    save_policy(make_toy_policy(), path)
    return load_policy(path)


def with_hold(controller, hold=(0.0, 1.0), rates=None):
    facts = dataclasses.replace(controller.facts, hold_action=hold, action_rates=rates)
    return Controller(dataclasses.replace(controller.parts, facts=facts), controller.manifest)


def novel(guard, count=1):
    """Observations that no log has seen."""
    return [guard.act([30.0, -30.0, 30.0]) for _ in range(count)]


def reasons(decision):
    return [intervention.reason for intervention in decision.interventions]


def test_in_peace_it_does_nothing(controller):
    guard = Guard(controller)
    frames = np.random.default_rng(0).normal(size=(5, 3)) * 0.3
    controller.reset()
    for step, frame in enumerate(frames):
        decision = guard.act(frame)
        np.testing.assert_array_equal(decision.action, controller.act(frame))
        assert (decision.step, decision.source, decision.interventions) == (step, "policy", ())
    assert not guard.counts


def test_a_missing_sensor_is_held_and_then_lost(controller):
    guard = Guard(with_hold(controller), GuardSettings(patience=2))
    guard.act([0.1, 0.2, 0.3])
    expected = Guard(controller)
    expected.act([0.1, 0.2, 0.3])
    for missing in (np.nan, None):
        decision = guard.act([0.1, missing, 0.4])
        assert reasons(decision) == ["sensor-held"]
        assert decision.interventions[0].detail == "y"
        np.testing.assert_array_equal(decision.action, expected.act([0.1, 0.2, 0.4]).action)
    decision = guard.act([0.1, np.inf, np.nan])
    assert reasons(decision) == ["sensor-held", "sensor-lost"]
    assert [i.detail for i in decision.interventions] == ["lever", "y"]
    assert (decision.source, decision.proposed) == ("fallback", None)
    np.testing.assert_array_equal(decision.action, [0.0, 1.0])
    assert guard.act([0.1, 0.2, 0.3]).source == "policy"  # it came back
    assert guard.counts == {"sensor-held": 3, "sensor-lost": 1}
    assert [i.step for i in guard.interventions] == [1, 2, 3, 3]


def test_a_sensor_that_never_spoke_is_lost_at_once(controller):
    guard = Guard(controller, GuardSettings(patience=100))
    decision = guard.act([0.1, np.nan, 0.3])
    assert reasons(decision) == ["sensor-lost"]
    np.testing.assert_array_equal(decision.action, (LOW + HIGH) / 2)  # there is nothing to hold
    guard.act([0.1, 0.1, 0.3])
    guard.reset()
    assert reasons(guard.act([0.1, np.nan, 0.3])) == ["sensor-lost"]


def test_without_an_action_that_changes_nothing_the_last_one_is_repeated(controller):
    guard = Guard(controller, GuardSettings(patience=0))
    before = guard.act([0.1, 0.2, 0.3]).action
    np.testing.assert_array_equal(guard.act([np.nan, 0.2, 0.3]).action, before)


def test_novelty_switches_with_hysteresis(controller):
    settings = GuardSettings(novelty_limit=3.0, novelty_release=2.0, calm_steps=2)
    guard = Guard(with_hold(controller), settings)
    calm = [0.0, 0.0, 0.0]
    levels = [guard.act(calm).novelty for _ in range(3)]
    assert max(levels) < 2.0
    assert guard.is_trusting
    decision = novel(guard)[0]
    assert decision.novelty > 3.0
    assert (decision.source, reasons(decision)) == ("fallback", ["novelty"])
    np.testing.assert_array_equal(decision.action, [0.0, 1.0])
    assert decision.proposed is not None
    sources = [guard.act(calm).source for _ in range(4)]
    # One step until the history has forgotten, then one calm step that is not enough.
    assert sources == ["fallback", "fallback", "policy", "policy"]
    novel(guard)
    guard.act(calm)
    guard.act(calm)
    guard.act([np.nan] * 3)  # held: still calm
    assert guard.is_trusting


def test_novelty_blends(controller):
    settings = GuardSettings(novelty_limit=50.0, novelty_release=0.1, response="blend")
    guard = Guard(with_hold(controller), settings)
    decision = guard.act([2.0, 1.0, 1.0])
    weight = (decision.novelty - 0.1) / (50.0 - 0.1)
    assert 0.0 < weight < 1.0
    expected = (1 - weight) * decision.proposed + weight * np.array([0.0, 1.0])
    np.testing.assert_allclose(decision.action, expected)
    assert (decision.source, reasons(decision)) == ("blend", ["novelty"])


def test_the_fallback_may_be_anything_and_may_fail(controller):
    lost = GuardSettings(patience=0)
    hold = with_hold(controller)
    guard = Guard(hold, lost, fallback=lambda window: [window[0, 0], 9.0])
    guard.act([0.5, 0.2, 0.3])
    decision = guard.act([0.25, np.nan, 0.3])
    np.testing.assert_array_equal(decision.action, [0.25, 1.5])
    assert reasons(decision) == ["sensor-lost", "bounds"]
    clone = Guard(hold, lost, fallback=controller)
    clone.act([0.5, 0.2, 0.3])
    np.testing.assert_array_equal(
        clone.act([0.25, np.nan, 0.3]).action, controller([[0.25, 0.2, 0.3], [0.5, 0.2, 0.3]])
    )

    def broken(window):
        raise ZeroDivisionError("oh")

    for bad in (broken, lambda w: [np.nan, 1.0], lambda w: [1.0], lambda w: "no", lambda w: None):
        guard = Guard(hold, lost, fallback=bad)
        decision = guard.act([np.nan] * 3)
        assert reasons(decision) == ["sensor-lost", "fallback-failed"]
        np.testing.assert_array_equal(decision.action, [0.0, 1.0])


def test_rates_hold_for_whoever_acts(controller):
    hold = with_hold(controller, rates=(0.1, 0.01))
    guard = Guard(hold, GuardSettings(patience=0))
    guard.reset(last_action=[2.0, 0.5])
    decision = guard.act([np.nan] * 3)  # hold would be (0, 1)
    np.testing.assert_allclose(decision.action, [1.9, 0.51])
    assert reasons(decision) == ["sensor-lost", "rate"]
    assert np.abs(guard.act([0.0, 0.0, 0.0]).action - decision.action).max() <= 0.1
    own = Guard(hold, GuardSettings(action_rates=(5.0, 5.0)))
    own.reset(last_action=[100.0, 1.0])  # an actuator out of bounds counts as at its bound
    assert "rate" not in reasons(own.act([0.0, 0.0, 0.0]))


def test_wrong_settings_are_told(controller):
    with pytest.raises(ConfigError, match="3 rates and 2 actions"):
        Guard(controller, GuardSettings(action_rates=(1.0, 1.0, 1.0)))
    with pytest.raises(ConfigError, match="not below the limit"):
        Guard(controller, GuardSettings(novelty_limit=1.0, novelty_release=1.0))
    parts = dataclasses.replace(controller.parts, support=None)
    with pytest.raises(ConfigError, match="no support model"):
        Guard(Controller(parts, {}), GuardSettings(novelty_limit=1.0))
    guard = Guard(controller)
    with pytest.raises(DataError, match="2 finite numbers"):
        guard.reset(last_action=[np.nan, 1.0])
    with pytest.raises(DataError, match="shape"):
        guard.act([1.0, 2.0])
    assert guard.steps == 0


def test_interventions_are_reported_and_the_memory_is_bounded(controller):
    heard = []
    guard = Guard(controller, report=heard.append)
    for _ in range(1500):
        guard.act([np.nan] * 3)
    assert len(heard) == guard.counts["sensor-lost"] == guard.steps == 1500
    assert len(guard.interventions) == 1000
    assert heard[-1] == guard.interventions[-1]


def test_it_needs_no_jax():
    program = "import sys, moose.policies.guard; sys.exit('jax' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0


values = st.one_of(
    st.floats(-2, 2),
    st.sampled_from([np.nan, np.inf, -np.inf, 1e30, -1e30, 1e300, None]),
    st.floats(allow_nan=True, allow_infinity=True),
)
frames = st.lists(values, min_size=3, max_size=3)
fallbacks = st.one_of(
    st.lists(st.floats(allow_nan=True, allow_infinity=True), min_size=0, max_size=3),
    st.sampled_from(["raises", "text"]),
)


def test_memory_does_not_grow(controller):
    def complain(window):
        raise ValueError("x" * 10_000)

    guard = Guard(controller, GuardSettings(patience=1, action_rates=(0.1, 0.1)), fallback=complain)

    def run(steps):
        for i in range(steps):
            guard.act([0.1, None if i % 5 < 3 else 0.2, i % 13 / 10])
            if i % 1000 == 0:
                guard.reset()
        gc.collect()
        return tracemalloc.get_traced_memory()[0]

    tracemalloc.start()
    try:
        before = run(1500)  # fills what has a limit
        after = run(18_500)
    finally:
        tracemalloc.stop()
    assert guard.steps == 20_000
    assert min(guard.counts[r] for r in ("sensor-held", "sensor-lost", "fallback-failed")) > 3000
    assert len(guard.interventions) == 1000
    assert max(len(each.detail) for each in guard.interventions) == 500
    assert after - before < 50_000  # 2.5 bytes a step


class FaultyPlant(RuleBasedStateMachine):
    """Sensors, fallback and resets at random; the limits and the ages are followed by hand."""

    controller: Controller

    @initialize(
        patience=st.integers(0, 3),
        limit=st.one_of(st.none(), st.floats(0.1, 20.0)),
        response=st.sampled_from(["switch", "blend"]),
        rates=st.one_of(st.none(), st.tuples(st.floats(1e-6, 4), st.floats(1e-6, 4))),
        hold=st.one_of(st.none(), st.just((0.0, 1.0))),
        has_fallback=st.booleans(),
    )
    def start(self, patience, limit, response, rates, hold, has_fallback):
        self.answer = [0.0, 1.0]
        self.rates = rates
        self.patience = patience
        self.guard = Guard(
            with_hold(self.controller, hold),
            GuardSettings(
                patience=patience, novelty_limit=limit, response=response, action_rates=rates
            ),
            fallback=self.fallback if has_fallback else None,
        )
        self.forget()

    def fallback(self, window):
        assert window.shape == (2, 3)
        if self.answer == "raises":
            raise RuntimeError("the fallback's own fault")
        return self.answer

    def forget(self):
        self.last, self.ages, self.spoke = None, [0] * 3, [False] * 3

    @rule(answer=fallbacks)
    def change_fallback(self, answer):
        self.answer = answer

    @rule(last=st.one_of(st.none(), st.tuples(st.floats(-1, 2), st.floats(0.5, 1.5))))
    def reset(self, last):
        self.guard.reset(last)
        self.forget()
        self.last = None if last is None else np.array(last)

    @precondition(lambda self: self.guard is not None)
    @rule(frame=frames, repeats=st.integers(1, 4))
    def step(self, frame, repeats):
        for _ in range(repeats):
            self.step_once(frame)

    def step_once(self, frame):
        decision = self.guard.act(frame)
        action = decision.action
        assert action.shape == (2,)
        assert np.isfinite(action).all()
        assert (action >= LOW).all()
        assert (action <= HIGH).all()
        if self.rates is not None and self.last is not None:
            assert (np.abs(action - self.last) <= self.rates).all()
        self.last = action
        with np.errstate(over="ignore"):
            is_there = np.isfinite(np.array(frame, np.float64).astype(np.float32))
        self.ages = [
            0 if there else age + 1 for there, age in zip(is_there, self.ages, strict=True)
        ]
        self.spoke = [a or bool(b) for a, b in zip(self.spoke, is_there, strict=True)]
        is_lost = any(
            age > self.patience or (age and not spoke)
            for age, spoke in zip(self.ages, self.spoke, strict=True)
        )
        assert ("sensor-lost" in reasons(decision)) == is_lost
        assert (decision.proposed is None) == is_lost
        if is_lost:
            assert decision.source == "fallback"
        assert set(reasons(decision)) <= set(REASONS)
        if decision.source != "policy":
            assert decision.interventions
        assert sum(self.guard.counts.values()) >= len(decision.interventions)


FaultyPlant.TestCase.settings = hypothesis_settings(
    max_examples=10_000 if IS_NIGHTLY else 200, stateful_step_count=20, deadline=None
)


@pytest.fixture(autouse=True, scope="module")
def real_policy(controller):
    FaultyPlant.controller = controller


TestFaultyPlant = FaultyPlant.TestCase
