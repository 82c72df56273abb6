"""Several seeds of one request: which ones, and whether they fit into memory together."""

from __future__ import annotations

import contextlib
import itertools
import os
import re
from collections.abc import Sequence
from contextlib import AbstractContextManager
from pathlib import Path

import jax

from moose.algorithms import moose
from moose.config import Settings
from moose.data.dataset import Dataset
from moose.errors import ConfigError
from moose.experiments.run_folder import Mode
from moose.models.recurrent import num_inputs
from moose.progress import Progress, Stage
from moose.tasks.task import Task

_MOST_SEEDS = 1000
_USABLE_SHARE = 0.5  # of the free memory: the estimate is rough, and others want some too
_BYTES = 4  # of a float32, and of an index


def parse_seeds(text: str) -> tuple[int, ...]:
    """Read seeds such as ``0..9``, ``0,3,5`` or ``0..2,7``.

    Args:
        text: Numbers and ranges (both ends belong to it), separated by commas.

    Returns:
        The seeds, in the order given.
    """
    seeds: list[int] = []
    for part in text.split(","):
        match = re.fullmatch(r"\s*(\d{1,10})\s*(?:\.\.\s*(\d{1,10})\s*)?", part)
        if match is None:
            raise _wrong_seeds(f"'{part.strip()}' is neither a number nor a range such as 0..9.")
        first, last = int(match[1]), int(match[2] or match[1])
        if last < first:
            raise _wrong_seeds(f"The range {first}..{last} runs backwards.")
        if last >= 2**31:
            raise _wrong_seeds(f"{last} is too large: seeds go up to {2**31 - 1}.")
        if len(seeds) + last - first >= _MOST_SEEDS:
            raise _wrong_seeds(f"These are more than {_MOST_SEEDS} seeds.")
        seeds.extend(range(first, last + 1))
    require_distinct(seeds)
    return tuple(seeds)


def require_distinct(seeds: Sequence[int]) -> None:
    """Raise unless there is a seed, and each is there once."""
    twice = sorted({seed for seed in seeds if list(seeds).count(seed) > 1})
    if not seeds or twice:
        what = f"Given twice: {', '.join(map(str, twice))}." if twice else "There is no seed."
        raise _wrong_seeds(what)


def choose_mode(num_seeds: int, config: Settings, task: Task, dataset: Dataset) -> Mode:
    """Together where that is known to fit into the memory that is free, in turn otherwise."""
    each, free = seed_memory(config, task, dataset), free_memory()
    if each is None or free is None or num_seeds == 1:
        return "in-turn"
    needed = 2 * dataset.nbytes + num_seeds * each
    return "together" if needed <= _USABLE_SHARE * free else "in-turn"


def seed_memory(config: Settings, task: Task, dataset: Dataset) -> int | None:
    """About how many bytes one more seed takes while it trains; rather too many than too few.

    For MOOSE nearly all of it is what an update keeps of every imagined step for the backward
    pass: the hidden layers of policy and models (of recurrent ones the gates and states of their
    cells), and a handful of copies of the history window. None for algorithms of which it is not
    known.
    """
    if not isinstance(config, moose.Config):
        return None
    dynamics, support, search = config.dynamics, config.support, config.search
    pair = task.history * len(task.observation_names) + len(task.action_names)
    if dynamics.kind == "recurrent":
        cells, own = len(task.predicted), dynamics.recurrent
        seen = num_inputs(task, own) + own.units
        model_layers = cells * (seen + 8 * own.units) + sum(own.reward_hidden)
        model_weights = cells * _num_weights((seen, 4 * own.units))
        fitted = own.batch_size * (task.history + own.horizon) * (cells * own.units + pair)
    else:
        model_layers = sum(dynamics.hidden)
        model_weights = _num_weights((pair, *dynamics.hidden, len(task.observation_names)))
        fitted = 4 * dataset.num_transitions  # their order, shuffled anew for every member
    layers = sum(search.hidden) + model_layers
    imagined = (search.horizon or task.horizon) * dynamics.members * search.start_states
    weights = 5 * (
        dynamics.members * model_weights
        + _num_weights((pair, support.width, support.width, support.width, pair))
        + _num_weights((pair, *search.hidden, len(task.action_names)))
    )
    return _BYTES * (imagined * (layers + 7 * pair) + dynamics.members * fitted + weights)


def free_memory() -> int | None:
    """Bytes that can be had: of the accelerator, or of this machine within its container."""
    stats = jax.local_devices()[0].memory_stats()
    if stats and "bytes_limit" in stats:
        return int(stats["bytes_limit"]) - int(stats.get("bytes_in_use", 0))
    bounds = [bound for bound in (_free_on_machine(), _free_in_container()) if bound is not None]
    return min(bounds, default=None)


class SeedProgress:
    """Names the seed beside each stage, for seeds that are trained in turn.

    Args:
        progress: Whom to tell.
        seed: The seed.
    """

    def __init__(self, progress: Progress, seed: int) -> None:
        self._progress = progress
        self._seed = seed

    def stage(self, name: str, total: int, done: int = 0) -> AbstractContextManager[Stage]:
        """Open a stage named for the seed too."""
        return self._progress.stage(f"{name} (seed {self._seed})", total, done)


def _free_on_machine(meminfo: Path = Path("/proc/meminfo")) -> int | None:
    with contextlib.suppress(OSError, ValueError):
        match = re.search(r"^MemAvailable:\s*(\d+) kB", meminfo.read_text(), re.MULTILINE)
        if match:
            return int(match[1]) * 1024
    with contextlib.suppress(OSError, ValueError, AttributeError):  # not every system has these
        return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return None


def _free_in_container(folder: Path = Path("/sys/fs/cgroup")) -> int | None:
    with contextlib.suppress(OSError, ValueError):  # no container, or one without a limit
        limit = int((folder / "memory.max").read_text())
        return max(0, limit - int((folder / "memory.current").read_text()))
    return None


def _num_weights(sizes: tuple[int, ...]) -> int:
    return sum((inputs + 1) * outputs for inputs, outputs in itertools.pairwise(sizes))


def _wrong_seeds(what: str) -> ConfigError:
    return ConfigError(what, where="--seeds", advice="write for example --seeds 0..9 or 0,3,5")
