"""Tasks of which nothing is known but the columns."""

from __future__ import annotations

import numpy as np
import pytest

from moose.errors import DataError
from moose.tasks.registry import task_of

PROVENANCE = {
    "plant": "gymnasium",
    "environment": "Pendulum-v1",
    "columns": {
        "observation_names": ["observation_0", "observation_1", "observation_2"],
        "action_names": ["action_0"],
        "action_low": [-2.0],
        "action_high": [2.0],
    },
}


def test_the_task_comes_from_the_provenance():
    task = task_of(PROVENANCE)
    assert task.name == "gym/Pendulum-v1"
    assert (task.history, task.target, task.discount, task.horizon) == (1, "delta", 0.99, 100)
    assert task.predicted == (0, 1, 2)
    assert task.reward is None
    assert (task.action_low, task.action_high) == ((-2.0,), (2.0,))
    predicted = np.ones(3)
    assert task.physics(np.zeros(3), np.zeros(1), predicted) is predicted


@pytest.mark.parametrize("missing", ["environment", "columns"])
def test_a_damaged_provenance_is_told(missing):
    damaged = {name: value for name, value in PROVENANCE.items() if name != missing}
    with pytest.raises(DataError, match="cannot be read"):
        task_of(damaged)
    with pytest.raises(DataError, match="cannot be read"):
        task_of(PROVENANCE | {"columns": {"action_low": "x"}})
