"""LION as a whole.

Its equations are tested in test_dial_loss.py, and what all algorithms promise in test_contract.py.
"""

from __future__ import annotations

from moose.algorithms import lion
from moose.config import build_settings, load_settings


def test_the_preset_fast_is_the_defaults_and_an_override_leaves_the_rest():
    assert build_settings(lion.Config, lion.PRESETS["fast"]) == lion.Config()
    changed = load_settings(
        lion.Config, base=lion.PRESETS["fast"], overrides=["dynamics.members=2"]
    )
    assert changed.dynamics.kind == "recurrent"
    assert changed.dynamics.members == 2
