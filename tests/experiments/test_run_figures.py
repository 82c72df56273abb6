"""Pictures of runs: they are drawn, and a wrong name is refused before any work."""

from __future__ import annotations

import numpy as np
import pytest

from moose.errors import ConfigError
from moose.evaluation.bias import ModelBias
from moose.experiments.run_figures import (
    draw_bias,
    draw_learning_curve,
    draw_model_fit,
    draw_trajectories,
)

EVALUATIONS = [{"step": step, "returns": [-70.0 + step, -71.0]} for step in range(0, 50, 10)]


def draw_all(folder, ending):
    bias = ModelBias(np.arange(5.0), 10.0, -60.0, -70.0)
    diagnosis = {
        "model_errors": {
            "steps": 3,
            "error": {"fatigue": [0.1, 0.2, 0.3]},
            "no_change": {"fatigue": [0.2, 0.4, 0.6]},
        }
    }
    draw_learning_curve([EVALUATIONS], {"hold": -64.9}, folder / f"one.{ending}", title="one")
    draw_learning_curve([EVALUATIONS, EVALUATIONS[::-1]], {}, folder / f"two.{ending}")
    draw_model_fit(diagnosis, folder / f"models.{ending}")
    draw_trajectories({"a": np.zeros((4, 3))}, ("x", "y", "z"), folder / f"episode.{ending}")
    draw_bias({"ib/bad-0.2": {"λ = 1": bias}}, folder / f"bias.{ending}")


@pytest.mark.parametrize(("ending", "start"), [("svg", b"<?xml"), ("png", b"\x89PNG")])
def test_pictures_are_written_whole(tmp_path, ending, start):
    draw_all(tmp_path, ending)
    files = sorted(tmp_path.iterdir())
    assert len(files) == 5
    assert all(file.read_bytes().startswith(start) for file in files)


def test_the_numbers_are_in_the_picture(tmp_path):
    draw_all(tmp_path, "svg")
    assert "hold -64.9" in (tmp_path / "one.svg").read_text()
    assert "B = 10, imagined -60, true -70" in (tmp_path / "bias.svg").read_text()


def test_another_ending_is_refused(tmp_path):
    with pytest.raises(ConfigError, match="cannot be written"):
        draw_trajectories({}, ("x",), tmp_path / "episode.gif")
    assert not list(tmp_path.iterdir())
