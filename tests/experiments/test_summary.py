"""A data set in numbers."""

from __future__ import annotations

import dataclasses
import io
import json

import numpy as np
import pytest
from rich.console import Console

from moose.data.dataset import Dataset
from moose.data.episodes import Episode
from moose.errors import ConfigError
from moose.experiments.summary import render, summarise


@pytest.fixture
def dataset():
    episodes = [
        Episode([[0.0, 5.0], [1.0, 5.0], [2.0, 5.0]], [[1.0], [-1.0]], [1.0, 2.0], truncated=True),
        Episode([[4.0, 5.0], [6.0, 5.0]], [[0.5]], [10.0], terminated=True),
        Episode([[8.0, 5.0]], [[0.0]], [-7.0]),
    ]
    return Dataset.from_episodes(
        episodes,
        observation_names=("level", "load"),
        action_names=("valve",),
        provenance={"plant": "tank [north]", "recipe": {"seed": 3}},
    )


def printed(content):
    console = Console(width=120, record=True, file=io.StringIO())
    console.print(render(content))
    return console.export_text()


def test_the_summary_has_the_numbers(dataset):
    content = summarise(dataset, discount=0.5, steps=2)
    assert content["transitions"] == 4
    assert content["episodes"] == 3
    assert content["returns"] == {
        "discount": 0.5,
        "steps": 2,
        "mean": pytest.approx((2.0 + 10.0 - 7.0) / 3),
        "deviation": pytest.approx(np.std([2.0, 10.0, -7.0])),
        "minimum": -7.0,
        "tenth_percentile": pytest.approx(np.percentile([2.0, 10.0, -7.0], 10)),
        "maximum": 10.0,
        "cut_episodes": 1,
    }
    assert "(first 2 steps of each episode; 1 of them cut before, discount 0.5)" in printed(content)
    assert content["observations"]["level"]["maximum"] == 8.0
    assert content["observations"]["load"]["deviation"] == 0.0
    assert content["fingerprint"] == dataset.fingerprint
    assert content["provenance"]["plant"] == "tank [north]"
    assert json.loads(json.dumps(content, allow_nan=False)) == content


def test_only_the_first_steps_count_into_a_return(dataset):
    assert summarise(dataset, discount=1.0, steps=1)["returns"]["maximum"] == 10.0
    assert summarise(dataset, discount=1.0, steps=1)["returns"]["mean"] == pytest.approx(4 / 3)
    with pytest.raises(ConfigError):
        summarise(dataset, steps=0)


@pytest.mark.parametrize(
    ("provenance", "discount"),
    [
        ({"plant": "tank"}, 0.97),
        ({"plant": "industrial_benchmark"}, 0.97),
        (
            {
                "plant": "gymnasium",
                "environment": "Tank-v0",
                "columns": {
                    "observation_names": ["level", "load"],
                    "action_names": ["valve"],
                    "action_low": [-1.0],
                    "action_high": [1.0],
                },
            },
            0.99,
        ),
    ],
)
def test_returns_are_counted_as_the_task_of_the_data_has_it(dataset, provenance, discount):
    counted = summarise(dataclasses.replace(dataset, provenance=provenance))["returns"]
    assert (counted["discount"], counted["steps"]) == (discount, 100)
    assert counted["maximum"] == 10.0
    assert counted["mean"] == pytest.approx((1.0 + 2.0 * discount + 10.0 - 7.0) / 3)


def test_people_see_all_of_it(dataset):
    text = printed(summarise(dataset))
    for part in (
        "level",
        "load",
        "valve",
        "reward",
        "tank [north]",
        "seed 3",
        "1 to 2 steps, mean 1.3",
        "1 terminated, 1 truncated, 1 open-ended, 1 without a final observation",
        "10th percentile",
        "first 100 steps of each episode; 2 of them cut before, discount 0.97",
        dataset.fingerprint,
    ):
        assert part in text
