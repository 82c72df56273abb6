"""What a controller knows of its task is what the task says."""

from __future__ import annotations

import dataclasses

import numpy as np

from moose.policies.facts import box_of
from moose.policies.plain import load_policy
from moose.policies.policy import save_policy
from policies import make_toy_policy


def test_units_and_rates_travel(tmp_path):
    policy = make_toy_policy()
    facts = dataclasses.replace(
        policy.facts,
        observation_units=("m", "m/s", "%"),
        action_units=("N", "N"),
        action_rates=(0.5, 0.25),
        hold_action=(0.0, 1.0),
    )
    save_policy(dataclasses.replace(policy, facts=facts), tmp_path / "policy")
    assert load_policy(tmp_path / "policy").facts == facts


def test_bounds_are_rounded_inwards():
    facts = dataclasses.replace(
        make_toy_policy().facts, action_low=(-0.1, 0.1), action_high=(0.7, 0.3)
    )
    box = box_of(facts)
    assert (box.low.astype(float) >= facts.action_low).all()
    assert (box.high.astype(float) <= facts.action_high).all()
    assert np.allclose(box.low, facts.action_low)
    assert np.allclose(box.high, facts.action_high)
