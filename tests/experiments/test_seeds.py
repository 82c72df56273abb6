"""Which seeds, and whether they fit into memory together."""

from __future__ import annotations

import types

import pytest

from moose.algorithms import moose
from moose.config import Settings, load_settings
from moose.errors import ConfigError
from moose.experiments import seeds
from moose.experiments.seeds import SeedProgress, choose_mode, parse_seeds, seed_memory
from moose.tasks.industrial_benchmark import make_task

# What XLA's own analysis says that one seed's update takes (jax 0.10.2), in megabytes.
MEASURED = {
    ("paper",): 412,
    ("paper", "search.horizon=50"): 209,
    ("paper", "support.sees=frame"): 302,
    ("paper", "search.is_rematerialised=true"): 270,
    ("quick",): 98,
    ("paper", "dynamics.kind=recurrent"): 471,
    ("quick", "dynamics.kind=recurrent"): 140,
}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("0..9", tuple(range(10))),
        ("0,3,5", (0, 3, 5)),
        ("7", (7,)),
        (" 4 .. 5 , 1 ", (4, 5, 1)),
        ("2147483647", (2**31 - 1,)),
    ],
)
def test_seeds_are_numbers_and_ranges(text, expected):
    assert parse_seeds(text) == expected


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("", "'' is neither a number nor a range"),
        ("a", "'a' is neither"),
        ("-1", "'-1' is neither"),
        ("0...3", "neither"),
        ("0,,3", "'' is neither"),
        ("1.5", "neither"),
        ("9..0", "runs backwards"),
        ("1,2,1..3", "Given twice: 1, 2"),
        ("2147483648", "too large"),
        ("0..1000", "more than 1000"),
        ("0..2147483647", "more than 1000"),
    ],
)
def test_what_is_no_seed_is_told(text, complaint):
    with pytest.raises(ConfigError, match=complaint) as caught:
        parse_seeds(text)
    assert caught.value.where == "--seeds"


@pytest.mark.parametrize("what", MEASURED)
def test_the_estimate_is_rather_too_large_than_too_small(what):
    preset, *overrides = what
    config = load_settings(moose.Config, base=moose.PRESETS[preset], overrides=overrides)
    data = types.SimpleNamespace(num_transitions=90_000)
    megabytes = seed_memory(config, make_task(), data) / 1e6
    assert MEASURED[what] < megabytes < 2 * MEASURED[what]


def test_seeds_are_together_where_half_of_the_memory_is_enough(monkeypatch):
    config, data = moose.Config(), types.SimpleNamespace(num_transitions=90_000, nbytes=10**7)
    needed = 2 * 10**7 + 10 * seed_memory(config, make_task(), data)
    for free, mode in ((2 * needed, "together"), (2 * needed - 2, "in-turn"), (None, "in-turn")):
        monkeypatch.setattr(seeds, "free_memory", lambda free=free: free)
        assert choose_mode(10, config, make_task(), data) == mode
    monkeypatch.setattr(seeds, "free_memory", lambda: 10**15)
    assert choose_mode(1, config, make_task(), data) == "in-turn"


def test_an_algorithm_of_unknown_needs_goes_in_turn():
    data = types.SimpleNamespace(num_transitions=1, nbytes=1)
    assert seed_memory(Settings(), make_task(), data) is None
    assert choose_mode(2, Settings(), make_task(), data) == "in-turn"


def test_free_memory_is_the_least_of_machine_and_container(tmp_path, monkeypatch):
    assert 0 < seeds.free_memory() < 2**50
    (tmp_path / "meminfo").write_text("MemTotal: 9 kB\nMemAvailable:   4 kB\n")
    assert seeds._free_on_machine(tmp_path / "meminfo") == 4096
    assert seeds._free_on_machine(tmp_path / "none") > 0  # asks the system instead
    assert seeds._free_in_container(tmp_path) is None
    (tmp_path / "memory.current").write_text("100\n")
    (tmp_path / "memory.max").write_text("max\n")
    assert seeds._free_in_container(tmp_path) is None
    (tmp_path / "memory.max").write_text("300\n")
    assert seeds._free_in_container(tmp_path) == 200
    monkeypatch.setattr(seeds, "_free_on_machine", lambda: 4096)
    for inside, expected in ((None, 4096), (200, 200), (5000, 4096)):
        monkeypatch.setattr(seeds, "_free_in_container", lambda inside=inside: inside)
        assert seeds.free_memory() == expected


def test_progress_names_the_seed():
    opened = []
    progress = types.SimpleNamespace(stage=lambda *arguments: opened.append(arguments))
    SeedProgress(progress, 3).stage("models", 10, 2)
    assert opened == [("models (seed 3)", 10, 2)]
