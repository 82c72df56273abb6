"""Estimates: stages are skipped but for a few steps, and what is left is added up."""

from __future__ import annotations

import jax.numpy as jnp
import pytest

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


@pytest.mark.parametrize("left", [1, 7, 25])
def test_exactly_the_last_steps_are_done(left):
    journal = _SkippingJournal({"policy": left}, {"policy": 1000})
    assert count(journal) == left
    assert journal.seconds["policy"] > 0
    assert journal.line_bytes["policy"] > 20
    assert journal.state_bytes["policy"] == 4


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
