"""Estimates: stages are skipped but for a few steps, and what is left is added up."""

from __future__ import annotations

import jax.numpy as jnp
import pytest

from moose.experiments import cost
from moose.experiments.cost import _SkippingJournal, estimate
from moose.training import repeat_update


def count(journal, total=1000):
    """A fit that counts its own steps."""

    def update(state, own, shared, step):
        return state + 1, {"loss": state.astype(jnp.float32)}

    return int(
        repeat_update(
            "policy",
            update,
            jnp.int32(0),
            None,
            None,
            total=total,
            chunk=10,
            progress=journal,
            journal=journal,
        )
    )


def test_a_survey_learns_the_stages_without_doing_them():
    journal = _SkippingJournal()
    assert count(journal) == 0
    assert journal.totals == {"policy": 1000}
    assert journal.shared == set()


def test_a_stage_is_measured_and_broken_off(monkeypatch):
    monkeypatch.setattr(cost, "_ENOUGH_SECONDS", 0.0)
    journal = _SkippingJournal("policy")
    with pytest.raises(cost._EnoughSeenError):
        count(journal)
    monkeypatch.setattr(cost, "_ENOUGH_SECONDS", 1e9)
    assert count(_SkippingJournal("policy")) == 1000
    assert count(_SkippingJournal("another")) == 0
    assert journal.line_bytes > 20
    assert journal.state_bytes == 4


def test_compiling_is_told_apart_from_the_steps():
    journal = _SkippingJournal("policy")
    journal._chunks = [(10, 5.0), (10, 2.0), (10, 4.0)]
    assert journal.seconds_per_step == pytest.approx(0.3)
    assert journal.compiling == pytest.approx(2.0)
    journal._chunks = [(10, 5.0)]  # all that there is
    assert (journal.seconds_per_step, journal.compiling) == (0.5, 0.0)


def test_what_is_made_once_counts_as_shared():
    journal = _SkippingJournal()
    journal.once("models", "abc", None, lambda: jnp.zeros(count(journal) + 3))
    assert journal.shared == {"policy"}
    assert journal.result_bytes == {"models": 12}


def test_fits_are_paid_for_once():
    costs = {
        "a": {"own": 3600.0, "shared": 7200.0, "run_bytes": 10, "shared_bytes": 5},
        "b": {"own": 1800.0, "shared": 0.0, "run_bytes": 1, "shared_bytes": 0},
    }
    runs = [
        {"variant": "a", "share": ["x", 0]},
        {"variant": "a", "share": ["x", 0]},
        {"variant": "a", "share": ["x", 1]},
        {"variant": "b", "share": ["x", 0]},
    ]
    found = estimate(runs, costs, workers=2, threads=4)
    assert found["runs"] == 4
    assert found["core_hours"] == pytest.approx(3 * 1 + 2 * 2 + 0.5)
    assert found["hours"] == pytest.approx((3 * 1 + 2 * 2 + 0.5) / (2 * 4))
    assert found["bytes"] == 3 * 10 + 2 * 5 + 1
