"""LION as a whole.

Its equations are tested in test_dial_loss.py, and what all algorithms promise in test_contract.py.
"""

from __future__ import annotations

import jax
import numpy as np
import pytest

from moose.algorithms import lion
from moose.config import build_settings, load_settings
from moose.errors import RunError
from moose.training import Journal
from toys import make_toy_log, make_toy_task

TOY_SETTINGS = {
    "dynamics": {
        "members": 2,
        "recurrent": {"units": 4, "updates": 4, "rounds": 2, "batch_size": 8, "horizon": 5},
    },
    "support": {"width": 8, "epochs": 1},
    "situations": {"references": 20},
    "behaviour": {"hidden": [4], "updates": 4, "checks": 1},
}


def test_the_preset_fast_is_the_defaults_and_an_override_leaves_the_rest():
    assert build_settings(lion.Config, lion.PRESETS["fast"]) == lion.Config()
    changed = load_settings(
        lion.Config, base=lion.PRESETS["fast"], overrides=["dynamics.members=2"]
    )
    assert changed.dynamics.kind == "recurrent"
    assert changed.dynamics.members == 2


class GradientNorms(type(lion.FORGETFUL)):
    """Remembers how large the search's gradients were."""

    def __init__(self):
        self.found = []

    def record(self, stage, step, metrics):
        if stage == "policy":
            self.found += metrics["gradient_norm"].tolist()


def search(**settings):
    """A search of four updates and two checks: the norms of its gradients, and its policies."""
    task = make_toy_task(history=2)
    chosen = {"hidden": [4], "updates": 4, "checks": 2, "start_states": 6, "horizon": 5} | settings
    config = build_settings(lion.Config, TOY_SETTINGS | {"search": chosen})
    norms: Journal = GradientNorms()
    seen = {}
    lion.fit(
        make_toy_log(task),
        task,
        config,
        jax.random.key(0),
        journal=norms,
        observe=lambda step, actor: seen.update({step: jax.tree.leaves(actor.search)}),
    )
    return norms.found, seen


def test_a_gradient_beyond_the_limit_is_not_followed():
    norms, free = search()
    first, second = norms[:2]
    other_norms, limited = search(gradient_limit=(first + second) / 2)
    # Of the first two updates one was left out; that of the larger gradient.
    assert other_norms[0] == first
    assert (other_norms[1] == second) == (second > first)
    assert not all(np.array_equal(a, b) for a, b in zip(free[2], limited[2], strict=True))


def test_a_search_that_meets_nothing_but_exploding_gradients_stops():
    with pytest.raises(RunError, match="gradient_norm not finite or beyond its limit") as caught:
        search(gradient_limit=1e-12)
    assert "stage 'policy', step 0" in caught.value.where
