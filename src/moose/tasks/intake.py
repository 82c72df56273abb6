"""A user's own plant: from a task file and tables to a data set that carries its task."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from moose.config import build_settings, merge, parse_override, settings_tree, to_yaml
from moose.data.assemble import Loaded, load_tables
from moose.data.dataset import Dataset
from moose.data.interchange import is_interchange, read_interchange
from moose.data.schema import Fixes
from moose.errors import ConfigError
from moose.progress import SILENT, Progress
from moose.tasks.task_file import TaskFile, make_schema, read_task_file


def load_plant(
    task: Path | str | TaskFile,
    sources: Iterable[Any],
    *,
    fixes: Sequence[str] = (),
    progress: Progress = SILENT,
) -> Loaded:
    """Read a plant's log as its task file says.

    Args:
        task: The task file, or its content.
        sources: Files (CSV, Parquet, NPZ), folders of them, or polars, pandas and Arrow frames.
        fixes: Texts such as ``gaps=split``, put over those in the file.
        progress: Whom to tell.

    Returns:
        The data set, whose provenance holds the task, and what was found on the way.
    """
    content = task if isinstance(task, TaskFile) else read_task_file(Path(task))
    content = with_fixes(content, fixes)
    provenance = {"plant": content.name, "task": to_yaml(content)}
    sources = list(sources)
    if len(sources) == 1 and isinstance(sources[0], str | Path):
        path = Path(sources[0])
        if path.exists() and is_interchange(path):
            return Loaded(_read_foreign(content, path, provenance), [])
    return load_tables(sources, make_schema(content), content.fixes, provenance, progress=progress)


def _read_foreign(content: TaskFile, path: Path, provenance: dict[str, Any]) -> Dataset:
    """A D4RL-style or Minari data set under the task's names; it brings its own rewards."""
    if content.hold == "last" or content.reward.column is None:
        raise ConfigError(
            "HDF5 and Minari data sets bring actions and rewards of their own.",
            where=f"task '{content.name}' for {path}",
            advice="say reward: {column: rewards} and not hold: last",
        )
    schema = make_schema(content)
    dataset = read_interchange(
        path, schema.observation_names, schema.action_names, provenance=provenance
    )
    record: dict[str, Any] = {"fixes": {}, "changed": {}, "findings": {}}
    return dataclasses.replace(dataset, provenance=dataset.provenance | record)


def with_fixes(content: TaskFile, fixes: Sequence[str]) -> TaskFile:
    """The task with texts such as ``gaps=split`` put over the fixes it has."""
    tree = settings_tree(content.fixes)
    for text in fixes:
        tree = merge(tree, parse_override(text))
    return content.model_copy(update={"fixes": build_settings(Fixes, tree, source="--fix")})
