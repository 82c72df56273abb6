"""Tasks by name, and by the provenance of a data set."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

from moose.errors import ConfigError, DataError, nearest
from moose.tasks import industrial_benchmark
from moose.tasks.task import Task

TASKS: Mapping[str, Callable[[], Task]] = MappingProxyType(
    {"industrial_benchmark": industrial_benchmark.make_task}
)


def find_task(name: str) -> Task:
    """The task of that name, or an error with the nearest one."""
    if name not in TASKS:
        raise ConfigError(f"There is no task '{name}'.", where="task", advice=nearest(name, TASKS))
    return TASKS[name]()


def task_of(provenance: Mapping[str, Any]) -> Task:
    """The task that a data set belongs to, by the plant its provenance names."""
    plant = str(provenance.get("plant"))
    if plant not in TASKS:
        raise DataError(
            "It is not known which plant this data set comes from.",
            where="the data set's provenance",
            advice="use a data set made by 'moose data make'",
        )
    return find_task(plant)
