"""Pictures: drawn without global state, written whole or not at all."""

from __future__ import annotations

import importlib.util
import subprocess
import sys

import numpy as np
import pytest

from moose.data.dataset import Dataset
from moose.data.episodes import Episode
from moose.errors import ConfigError, MissingExtraError, StorageError
from moose.experiments import figures

HEADS = {"png": b"\x89PNG", "svg": b"<?xml", "pdf": b"%PDF"}


def make_dataset(num_signals=3, num_actions=2, lengths=(30, 20, 25, 1), is_final_observed=True):
    random = np.random.default_rng(0)
    return Dataset.from_episodes(
        [
            Episode(
                random.normal(size=(length + is_final_observed, num_signals)),
                random.uniform(-1, 1, (length, num_actions)),
                random.normal(size=length),
            )
            for length in lengths
        ],
        observation_names=[f"signal {i}" for i in range(num_signals)],
        action_names=[f"action {i}" for i in range(num_actions)],
        provenance={},
    )


@pytest.mark.parametrize("suffix", figures.FORMATS)
def test_a_picture_is_written(tmp_path, suffix):
    path = tmp_path / "new" / f"picture.{suffix}"
    figures.draw_dataset(make_dataset(), path)
    assert path.read_bytes().startswith(HEADS[suffix])
    assert [file.name for file in path.parent.iterdir()] == [path.name]
    first = path.read_bytes()
    figures.draw_dataset(make_dataset(), path)  # replaces
    if suffix == "png":
        assert path.read_bytes() == first


@pytest.mark.parametrize(
    "dataset",
    [
        make_dataset(num_signals=1, num_actions=1, lengths=(1,), is_final_observed=False),
        make_dataset(num_signals=30, num_actions=12),
        make_dataset(lengths=(5000, 3)),
    ],
    ids=["tiny", "wide", "long"],
)
def test_any_data_set_can_be_drawn(tmp_path, dataset):
    figures.draw_dataset(dataset, tmp_path / "picture.png")
    assert (tmp_path / "picture.png").stat().st_size > 10_000


def test_the_best_and_the_worst_episode_are_shown():
    assert figures._three_episodes(np.array([3.0, -5.0, 9.0, 0.0])) == {
        "worst": 1,
        "median": 0,
        "best": 2,
    }
    assert figures._three_episodes(np.array([3.0])) == {"worst": 0}


@pytest.mark.parametrize("name", ["picture.gif", "picture", "png", ".png"])
def test_an_unknown_ending_is_refused_before_any_work(tmp_path, name):
    with pytest.raises(ConfigError, match=r"\.png or \.svg or \.pdf"):
        figures.draw_dataset(None, tmp_path / name)
    assert not any(tmp_path.iterdir())


def test_a_missing_matplotlib_is_told_before_any_work(tmp_path, monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(MissingExtraError, match=r"pip install 'moose-rl\[plot\]'"):
        figures.draw_dataset(None, tmp_path / "picture.png")


def test_an_unwritable_place_is_named(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(StorageError) as caught:
        figures.draw_dataset(make_dataset(), tmp_path / "file" / "picture.png")
    assert "picture.png" in caught.value.where


def test_pyplot_and_its_global_state_are_left_alone(tmp_path):
    program = """
import sys, numpy as np
from moose.data.dataset import Dataset
from moose.data.episodes import Episode
from moose.experiments import figures
assert "matplotlib" not in sys.modules
episode = Episode(np.zeros((3, 1)), np.zeros((2, 1)), np.zeros(2))
dataset = Dataset.from_episodes([episode], ["a"], ["b"], {})
figures.draw_dataset(dataset, __import__("pathlib").Path(sys.argv[1]))
assert "matplotlib.pyplot" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", program, tmp_path / "picture.png"], check=True)
