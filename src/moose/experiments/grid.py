"""A grid of runs: data sets × algorithms × overrides × seeds, written down in one YAML file.

    name: first
    evaluation_episodes: 10
    blocks:
      - data: [ib/bad-0.2, ib/global-1.0]
        algorithms: [clone, {name: moose, preset: quick}]
        seeds: 0..4

Every combination is an independent run, named by the digest of its request and its data. Nothing
is trained here: :mod:`moose.experiments.conductor` does that.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from pydantic import Field, field_validator, model_validator

from moose.config import Settings, build_settings, read_yaml
from moose.envs.gymnasium_recipes import is_gymnasium
from moose.envs.recipes import dataset_names
from moose.errors import ConfigError, UserError, nearest
from moose.experiments.run_folder import Request
from moose.experiments.runner import make_request
from moose.experiments.seeds import parse_seeds, require_distinct

ResultT = TypeVar("ResultT")

_NAME = r"^[A-Za-z0-9][A-Za-z0-9._-]*$"
_LABEL = r"^[^|&\\\n]*$"  # what no table has to escape


class Override(Settings):
    """Settings put over those of every algorithm of a block; one more dimension of the grid."""

    label: str = Field(default="", pattern=_LABEL, examples=["my label"])
    """What is added to the algorithm's label."""
    settings: dict[str, Any] = Field(default_factory=dict)
    """A tree of settings."""


class AlgorithmChoice(Settings):
    """An algorithm as a grid uses it; its name alone will do."""

    name: str
    """The algorithm's name."""
    preset: str | None = None
    """One of its presets; by default its first."""
    label: str = Field(default="", pattern=_LABEL, examples=["my label"])
    """What tables call it; its name by default."""
    settings: dict[str, Any] = Field(default_factory=dict)
    """A tree of settings put over the preset."""

    @model_validator(mode="before")
    @classmethod
    def _from_name(cls, content: Any) -> Any:
        return {"name": content} if isinstance(content, str) else content


class Block(Settings):
    """All combinations of some data sets, algorithms, overrides and seeds."""

    data: tuple[str, ...] = Field(min_length=1)
    """Names of data sets, or folders."""
    algorithms: tuple[AlgorithmChoice, ...] = Field(min_length=1)
    """The algorithms."""
    seeds: tuple[int, ...] = (0,)
    """A list of seeds, or a text such as 0..9."""
    overrides: tuple[Override, ...] = Field(default=(Override(),), min_length=1)
    """Variants of all algorithms of the block."""
    evaluation_episodes: int | None = Field(default=None, ge=0)
    """Episodes of each evaluation; the grid's by default."""

    @field_validator("seeds", mode="before")
    @classmethod
    def _seeds_from_text(cls, content: Any) -> Any:
        if isinstance(content, str | int) and not isinstance(content, bool):
            return _or_value_error(lambda: parse_seeds(str(content)))
        return tuple(content) if isinstance(content, list) else content

    @field_validator("seeds")
    @classmethod
    def _are_distinct(cls, seeds: tuple[int, ...]) -> tuple[int, ...]:
        _or_value_error(lambda: require_distinct(seeds))
        return seeds


class Grid(Settings):
    """All that a grid file says."""

    name: str = Field(pattern=_NAME, examples=["my-grid_2"])
    """What tables and pages call it: letters, digits, dots and dashes."""
    description: str = ""
    """A sentence for people."""
    evaluation_episodes: int = Field(default=10, ge=0)
    """Episodes of each evaluation in the true plant."""
    blocks: tuple[Block, ...] = Field(min_length=1)
    """Parts of the grid; a combination that stands in several of them is run once."""


class Cell(NamedTuple):
    """One place in the grid, and the run that fills it."""

    label: str
    """Of the algorithm and its override."""
    data: str
    """The data set as the grid names it."""
    seed: int
    request: Request


def read_grid(path: Path) -> Grid:
    """Read a grid file, or list everything that is wrong with it.

    Args:
        path: The YAML file.

    Returns:
        The grid.
    """
    return build_settings(Grid, read_yaml(path), source=str(path))


def plan_grid(grid: Grid, source: str) -> list[Cell]:
    """Every cell of the grid with its request, in the order in which the runs are to start.

    All cells of the first seed come first: a table of a grid that is not finished then has some
    figure everywhere rather than all figures somewhere.

    Args:
        grid: The grid.
        source: The file it came from, to be named in errors.

    Returns:
        The cells; each is there once, though several may share a run.
    """
    ranked: list[tuple[int, Cell]] = []
    problems: dict[str, None] = {}
    requests: dict[tuple[str, str, int], Request] = {}
    for number, block in enumerate(grid.blocks):
        episodes = block.evaluation_episodes
        episodes = grid.evaluation_episodes if episodes is None else episodes
        for data in block.data:
            is_name = data in dataset_names() or is_gymnasium(data)
            if not os.path.isdir(data) and not is_name:
                problems[
                    f"blocks.{number}.data: '{data}' is neither a folder nor the name of a data "
                    f"set; {nearest(data, dataset_names())}"
                ] = None
        for choice in block.algorithms:
            for override in block.overrides:
                label = " ".join(filter(None, [choice.label or choice.name, override.label]))
                try:
                    request = _request_of(choice, override, block.data[0], episodes)
                except UserError as error:
                    advice = f"; {error.advice}" if error.advice else ""
                    problems[f"blocks.{number}, {label}: {error.what}{advice}"] = None
                    continue
                for data in block.data:
                    place = os.path.abspath(data) if os.path.isdir(data) else data
                    for rank, seed in enumerate(block.seeds):
                        own = request.model_copy(update={"data": place, "seed": seed})
                        before = requests.setdefault((label, data, seed), own)
                        if before != own:
                            problems[
                                f"blocks.{number}: '{label}' stands for two different requests; "
                                "give one of them a label of its own"
                            ] = None
                        elif before is own:
                            ranked.append((rank, Cell(label, data, seed, own)))
    if problems:
        lines = "".join("\n  - " + problem.replace("\n", "\n  ") for problem in problems)
        count = "One thing is" if len(problems) == 1 else f"{len(problems)} things are"
        raise ConfigError(f"{count} wrong with the grid:{lines}", where=source)
    return [cell for _, cell in sorted(ranked, key=lambda pair: pair[0])]


ShareKey = tuple[str, str, int]
"""Runs with different keys cannot share fitted models; those with the same key may."""


def share_key(request: Mapping[str, Any]) -> ShareKey:
    """The key of a request given as plain values."""
    return request["data"], request["algorithm"], request["seed"]


def next_to_start(waiting: Sequence[ShareKey], fitting: Collection[ShareKey]) -> int | None:
    """Which of the waiting runs to start now.

    The first one, but rather one that does not need a fit which a running one is about to share:
    it would have to wait for it. If there is no other it is started all the same, since only its
    own settings decide whether it needs that fit.

    Args:
        waiting: The keys of the waiting runs, in order.
        fitting: The keys of the running runs that may still be fitting.

    Returns:
        An index into ``waiting``, or None if there is nothing to start.
    """
    for index, key in enumerate(waiting):
        if key not in fitting:
            return index
    return 0 if waiting else None


def _request_of(choice: AlgorithmChoice, override: Override, data: str, episodes: int) -> Request:
    from_both = [choice.settings, override.settings]
    return make_request(
        data,
        algorithm=choice.name,
        preset=choice.preset,
        settings=from_both,
        evaluation_episodes=episodes,
    )


def _or_value_error(make: Callable[[], ResultT]) -> ResultT:
    """What ``make`` gives; its complaint in the form that a settings class passes on."""
    try:
        return make()
    except ConfigError as error:
        raise ValueError(error.what) from error
