"""Grid files: what they mean, and what they are told when they mean nothing."""

from __future__ import annotations

from pathlib import Path

import pytest

from moose.algorithms.registry import ALGORITHMS
from moose.config import build_settings
from moose.envs import mujoco
from moose.envs.recipes import dataset_names
from moose.errors import ConfigError
from moose.experiments.grid import Grid, next_to_start, plan_grid, read_grid, share_key

READY = sorted((Path(__file__).parent.parent.parent / "grids").glob("*.yaml"))


def grid(*blocks, **settings):
    return build_settings(Grid, {"name": "g", "blocks": list(blocks), **settings})


def block(**changes):
    return {"data": ["ib/bad-0.2"], "algorithms": ["clone"], **changes}


def plan(*blocks, **settings):
    return plan_grid(grid(*blocks, **settings), "g.yaml")


def test_a_grid_is_all_combinations_the_first_seed_of_all_first():
    cells = plan(
        block(data=["ib/bad-0.2", "ib/global-1.0"], algorithms=["moose", "clone"], seeds="3..4")
    )
    assert len(cells) == 8
    assert [cell.seed for cell in cells] == [3] * 4 + [4] * 4
    assert {(c.label, c.data) for c in cells[:4]} == {(c.label, c.data) for c in cells[4:]}
    assert len({(c.request.algorithm, c.request.data, c.request.seed) for c in cells}) == 8
    assert all(cell.request.evaluation_episodes == 10 for cell in cells)


def test_overrides_are_one_more_dimension():
    weights = [
        {"label": "λ = 0.01"},
        {"label": "λ = 1", "settings": {"search": {"return_weight": 1.0}}},
    ]
    moose = {"name": "moose", "preset": "quick", "settings": {"search": {"updates": 7}}}
    cells = plan(block(algorithms=[moose], overrides=weights, evaluation_episodes=3))
    assert [cell.label for cell in cells] == ["moose λ = 0.01", "moose λ = 1"]
    searches = [cell.request.config["search"] for cell in cells]
    assert [search["return_weight"] for search in searches] == [0.01, 1.0]
    assert [search["updates"] for search in searches] == [7, 7]
    assert cells[0].request.evaluation_episodes == 3


def test_what_stands_in_two_blocks_is_run_once():
    cells = plan(block(seeds=[0, 1]), block(seeds=[1, 2]))
    assert sorted(cell.seed for cell in cells) == [0, 1, 2]


@pytest.mark.parametrize("seeds", ["0..2", [0, 1, 2]])
def test_seeds_are_a_list_or_a_text(seeds):
    assert grid(block(seeds=seeds)).blocks[0].seeds == (0, 1, 2)


def test_a_folder_is_the_same_from_everywhere(tmp_path, monkeypatch):
    (tmp_path / "log").mkdir()
    monkeypatch.chdir(tmp_path)
    (cell,) = plan(block(data=["log"]))
    assert cell.data == "log"
    assert cell.request.data == str(tmp_path / "log")


@pytest.mark.parametrize(
    ("blocks", "complaints"),
    [
        ([], ["blocks"]),
        ([block(seeds="3..1")], ["runs backwards"]),
        ([block(seeds=[1, 1])], ["Given twice: 1"]),
        ([block(seeds=[-1, "x"])], ["seeds"]),
        ([block(algorithm=["moose"])], ["algorithm", "did you mean 'algorithms'?"]),
        ([block(algorithms=[])], ["algorithms"]),
        ([block(algorithms=[{"name": "clone", "presett": "quick"}])], ["presett", "'preset'"]),
        ([block(algorithms=[{"name": "clone", "label": "a|b"}])], ["label"]),
    ],
)
def test_files_that_say_nothing_sensible_are_refused(blocks, complaints):
    with pytest.raises(ConfigError) as error:
        grid(*blocks)
    for complaint in complaints:
        assert complaint in str(error.value)


def test_everything_that_is_wrong_with_a_plan_is_listed_at_once():
    with pytest.raises(ConfigError) as error:
        plan(
            block(data=["ib/bad-0.3"]),
            block(algorithms=["mose"]),
            block(algorithms=[{"name": "clone", "settings": {"updats": 3}}]),
            block(algorithms=[{"name": "clone", "preset": "slow"}]),
        )
    for complaint in (
        "4 things are wrong",
        "blocks.0.data: 'ib/bad-0.3'",
        "blocks.1, mose: There is no algorithm 'mose'.; did you mean 'moose'?",
        "did you mean 'updates'?",
        "'clone' has no preset 'slow'",
        "g.yaml",
    ):
        assert complaint in str(error.value)


def test_a_label_stands_for_one_thing():
    with pytest.raises(ConfigError, match="stands for two different requests"):
        plan(block(), block(algorithms=[{"name": "clone", "preset": "quick"}]))


# What to start


def test_a_run_that_may_need_a_fit_under_way_waits_for_others():
    a, b = ("data", "moose", 0), ("data", "moose", 1)
    assert next_to_start([], []) is None
    assert next_to_start([a, b], []) == 0
    assert next_to_start([a, a, b], [a]) == 2
    assert next_to_start([a, a], [a]) == 0  # rather than nothing


def test_runs_of_other_data_algorithms_or_seeds_share_nothing():
    cells = plan(
        block(data=["ib/bad-0.2", "ib/bad-0.4"], algorithms=["moose", "clone"], seeds=[0, 1])
    )
    assert len({share_key(cell.request.model_dump()) for cell in cells}) == 8


# The grids that come with the project


@pytest.mark.parametrize("file", READY, ids=lambda file: file.name)
def test_ready_grids_are_valid(file):
    """Their algorithms and data sets may be those of a later version; then this says so."""
    ready = read_grid(file)
    names = {choice.name for part in ready.blocks for choice in part.algorithms}
    data = {name for part in ready.blocks for name in part.data}
    unknown = (names - set(ALGORITHMS)) | (data - {*dataset_names(), *mujoco.dataset_names()})
    if unknown:
        with pytest.raises(ConfigError) as error:
            plan_grid(ready, str(file))
        assert all(f"'{name}'" in str(error.value) for name in unknown)
        planned = {"moose", "clone", "ddpg", "brac", "bear", "bcq"}
        assert names <= planned
    else:
        cells = plan_grid(ready, str(file))
        assert len(cells) == sum(
            len(part.data) * len(part.algorithms) * len(part.seeds) * len(part.overrides)
            for part in ready.blocks
        )


def test_the_ready_grids_are_those_of_the_paper():
    table2 = next(read_grid(file) for file in READY if file.name == "table2.yaml")
    (only,) = table2.blocks
    assert set(only.data) == set(dataset_names())
    assert only.seeds == tuple(range(10))
    assert {file.stem for file in READY} >= {"table1", "table2", "table2-lite", "rivals"}


def test_gymnasium_data_sets_have_names_too():
    (cell,) = plan(block(data=["gym/Pendulum-v1"]))
    assert cell.data == "gym/Pendulum-v1"
