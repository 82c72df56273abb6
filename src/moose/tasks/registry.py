"""Tasks by name, and by the provenance of a data set."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

from moose.errors import ConfigError, DataError, nearest
from moose.tasks import gymnasium_task, industrial_benchmark
from moose.tasks.task import Task
from moose.tasks.task_file import task_of_definition

TASKS: Mapping[str, Callable[[], Task]] = MappingProxyType(
    {"industrial_benchmark": industrial_benchmark.make_task}
)


def find_task(name: str, definition: str | None = None) -> Task:
    """The task of that name, or the one that a task file's text defines."""
    if definition is not None:
        return task_of_definition(definition, f"task '{name}'")
    if name not in TASKS:
        raise ConfigError(f"There is no task '{name}'.", where="task", advice=nearest(name, TASKS))
    return TASKS[name]()


def task_of(provenance: Mapping[str, Any]) -> Task:
    """The task that a data set belongs to: the one it carries, or that of the plant it names."""
    if "task" in provenance:
        return task_of_definition(provenance["task"], "the data set's provenance")
    plant = str(provenance.get("plant"))
    if plant == gymnasium_task.PLANT:
        return gymnasium_task.task_of_environment(provenance)
    if plant not in TASKS:
        raise DataError(
            "It is not known which plant this data set comes from.",
            where="the data set's provenance",
            advice="use a data set made by 'moose data make' or 'moose data import'",
        )
    return find_task(plant)
