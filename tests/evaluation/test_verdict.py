"""Each verdict has its numbers, and every reason is told."""

from __future__ import annotations

import numpy as np
import pytest

from moose.evaluation.offline import Bundle, Gain, OfflineJudgement, Performance
from moose.evaluation.statistics import Interval
from moose.evaluation.verdict import VerdictSettings, reach_verdict, share_new
from moose.models.accuracy import ModelErrors
from toys import make_toy_task

STEPS = 10


def performance(value, new, at_bounds=0.0):
    novelty = np.zeros((STEPS, 1, 1, 100))
    novelty[:, :, :, : round(100 * new)] = 0.999
    bundle = Bundle(np.zeros((3, STEPS + 1, 3)), np.zeros((3, STEPS, 2)))
    return Performance(np.full((1, 1, 100), value), novelty, np.array([at_bounds, 0.0]), bundle)


def judgement(
    *,
    gain=(2.0, 1.0, 3.0),
    log_gain=None,
    hold=(1.0, 0.5, 1.5),
    new=0.02,
    noise=0.3,
    imagined=-70.0,
    at_bounds=0.0,
    last_error=0.5,
    ended=0.0,
):
    rng = np.random.default_rng(0)
    logged = rng.normal(-80.0, 5.0, 100)
    errors = ModelErrors(
        np.full((STEPS, 2), last_error), np.zeros((2, STEPS, 2)), np.full((STEPS, 2), 0.9)
    )

    def as_gain(numbers):
        return Gain(numbers[0], Interval(*numbers[1:]))

    return OfflineJudgement(
        horizon=STEPS,
        discount=0.97,
        errors=errors,
        stretch_returns=np.stack([logged + 5.0 * noise * rng.normal(size=100), logged]),
        performances={
            "policy": performance(imagined, new, at_bounds),
            "clone": performance(-80.0, 0.0),
            "hold": performance(-80.0, 0.1),
            "log": performance(-80.0, 0.01),
        },
        gains={
            "clone": as_gain(gain),
            "log": as_gain(log_gain or gain),
            "hold": as_gain(hold),
        },
        logged=performance(0.0, 0.0).bundle,
        logged_at_bounds=np.array([0.1, 0.2]),
        situations=(),
        ended=ended,
    )


def verdict_of(settings=None, **changes):
    return reach_verdict(judgement(**changes), make_toy_task(), settings or VerdictSettings())


@pytest.mark.parametrize(
    ("changes", "name", "told"),
    [
        ({}, "deploy candidate", "+2 (95 % interval +1 to +3)"),
        ({"gain": (1.0, -0.2, 2.0)}, "nothing gained", "not certain"),
        ({"gain": (-1.0, -2.0, -0.5)}, "nothing gained", "that is no gain"),
        ({"log_gain": (1.0, 0.0, 2.0)}, "nothing gained", "logged actions themselves"),
        ({"new": 0.2}, "too far from data", "20.0 % of the situations"),
        ({"noise": 2.0}, "models too weak", "at least 20 % are asked for"),
        ({"noise": 9.0}, "models too weak", "the models tell nothing of the variance"),
    ],
)
def test_the_verdict_follows_the_numbers(changes, name, told):
    verdict = verdict_of(**changes)
    assert verdict.name == name
    against = [reason.text for reason in verdict.reasons if reason.kind == "against"]
    assert bool(against) == (name != "deploy candidate")
    assert any(told in reason.text for reason in verdict.reasons)


def test_the_gravest_trouble_gives_the_name_and_all_are_told():
    verdict = verdict_of(noise=2.0, new=0.5, gain=(-1.0, -2.0, 0.5))
    assert verdict.name == "models too weak"
    kinds = [reason.kind for reason in verdict.reasons]
    assert kinds.count("against") == 4
    assert kinds == sorted(kinds, key=("against", "for", "caution").index)
    assert verdict_of(new=0.5, gain=(-1.0, -2.0, 0.5)).name == "too far from data"


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"imagined": -20.0}, "Too good to be true"),
        ({"hold": (-1.0, -2.0, 0.1)}, "over never changing anything"),
        (
            {"at_bounds": 0.8},
            "action push is at its bounds in 80 % of the steps (in the log: 10 %)",
        ),
        ({"last_error": 1.2}, "know no more of y, x"),
        ({"ended": 0.25}, "has ended 25 % of the held-out episodes"),
    ],
)
def test_cautions_do_not_change_the_verdict(changes, told):
    plain, cautious = verdict_of(), verdict_of(**changes)
    assert cautious.name == "deploy candidate"
    assert not any(told in reason.text for reason in plain.reasons)
    (found,) = [reason for reason in cautious.reasons if told in reason.text]
    assert found.kind == "caution"


def test_thresholds_are_settings():
    assert verdict_of(VerdictSettings(most_new=0.01)).name == "too far from data"
    assert verdict_of(VerdictSettings(least_explained=0.99)).name == "models too weak"
    assert verdict_of(VerdictSettings(least_gain=1.5)).name == "nothing gained"
    assert verdict_of(VerdictSettings(most_new=0.6), new=0.5).name == "deploy candidate"


def test_equal_stretches_explain_nothing():
    one = judgement()
    flat = np.stack([one.stretch_returns[0], np.full(100, -80.0)])
    object.__setattr__(one, "stretch_returns", flat)
    assert one.explained == 0.0
    assert share_new(one, "hold") == pytest.approx(0.1)
