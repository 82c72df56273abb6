"""The demonstration, small."""

from __future__ import annotations

import io
import json

import pytest
from rich.console import Console

from moose.experiments.demo import render, run_demo
from moose.progress import JsonProgress


@pytest.fixture(scope="module")
def demo(tmp_path_factory):
    out = tmp_path_factory.mktemp("demo") / "demo"
    stream = io.StringIO()
    result = run_demo(out, episodes=100, progress=JsonProgress(stream))
    return out, result, stream.getvalue()


def test_every_controller_earns_about_what_is_expected(demo):
    _, result, _ = demo
    names = [row["name"] for row in result["controllers"]]
    assert [name.split(" (")[0] for name in names] == [
        "bad",
        "mediocre",
        "hold",
        "set point",
        "optimized",
    ]
    for row in result["controllers"]:
        assert abs(row["measured"] - row["expected"]) < 4 * row["standard_error"] + 0.05


def test_the_result_is_plain_and_the_picture_there(demo):
    out, result, _ = demo
    assert json.loads(json.dumps(result, allow_nan=False)) == result
    assert result["dataset"]["transitions"] == 100_000
    assert [file.name for file in out.iterdir()] == ["dataset.png"]
    assert result["picture"] == str(out / "dataset.png")


def test_progress_is_told(demo):
    lines = [json.loads(line) for line in demo[2].splitlines()]
    assert {line["stage"] for line in lines} >= {"playing"}
    assert lines[-1]["done"] == lines[-1]["total"] == 5


def test_people_see_a_table(demo):
    _, result, _ = demo
    console = Console(width=120, file=io.StringIO(), record=True)
    console.print(render(result))
    text = console.export_text()
    for row in result["controllers"]:
        assert row["name"] in text
        assert f"{row['measured']:.2f}" in text
        assert f"{row['expected']:.1f}" in text
