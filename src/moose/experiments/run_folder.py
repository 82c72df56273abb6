"""A run on disk: manifest, metrics, evaluations, checkpoints, policy.

    runs/x/
      manifest.json      what was asked: data, algorithm, settings, seed, versions; never changed
      metrics.jsonl      one line a step
      evaluations.jsonl  one line an evaluation in the true plant, where there is one
      checkpoints/       the newest state of each stage
      policy/            the final policy; its presence says that the run is finished

Whatever moment the process dies at, a resumed run goes on from the last checkpoint and ends with
the same bits as an undisturbed one: lines written after that checkpoint are dropped and written
again.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from moose.checkpoint import load_tree, save_tree
from moose.errors import UserError
from moose.storage import atomic_file, remove_stale_temporaries

TreeT = TypeVar("TreeT")

_CHECKPOINT = ("moose-checkpoint", 1)
_FITTED = ("moose-fitted", 1)


class RunJournal:
    """Keeps a run's checkpoints and lines in its folder, and fitted models in a shared cache.

    Args:
        folder: The run's folder.
        cache: Where fitted models are shared between runs.
        warn: Called with a sentence when something damaged had to be set aside.
    """

    def __init__(
        self, folder: Path, cache: Path, warn: Callable[[str], None] = lambda text: None
    ) -> None:
        self._folder = folder
        self._cache = cache
        self._warn = warn
        for place in (folder, folder / "checkpoints", cache / "fitted"):
            place.mkdir(parents=True, exist_ok=True)
            remove_stale_temporaries(place)

    def restore(self, stage: str, like: TreeT) -> tuple[TreeT, int]:
        """The newest kept state of a stage and its step, or ``(like, 0)``."""
        path = self._folder / "checkpoints" / stage
        state, done = like, 0
        if path.exists():
            try:
                state, manifest = load_tree(
                    path, like, format_name=_CHECKPOINT[0], schema_version=_CHECKPOINT[1]
                )
                done = int(manifest["step"])
            except UserError as error:
                self._set_aside(path, error)
        self._drop_lines("metrics.jsonl", stage, done)
        self._drop_lines("evaluations.jsonl", stage, done + 1 if done else 0)
        return state, done

    def keep(self, stage: str, step: int, state: object) -> None:
        """Keep the state after ``step`` steps."""
        save_tree(
            self._folder / "checkpoints" / stage,
            state,
            format_name=_CHECKPOINT[0],
            schema_version=_CHECKPOINT[1],
            content={"stage": stage, "step": step},
            overwrite=True,
        )

    def record(self, stage: str, step: int, metrics: Mapping[str, np.ndarray[Any, Any]]) -> None:
        """Append one line for each of the steps from ``step`` on."""
        count = len(next(iter(metrics.values())))
        lines = [
            {"stage": stage, "step": step + i}
            | {name: values[i].tolist() for name, values in metrics.items()}
            for i in range(count)
        ]
        self._append("metrics.jsonl", lines)

    def record_evaluation(self, stage: str, step: int, content: Mapping[str, Any]) -> None:
        """Append one evaluation made after ``step`` steps of a stage."""
        self._append("evaluations.jsonl", [{"stage": stage, "step": step, **content}])

    def once(self, name: str, digest: str, like: TreeT, make: Callable[[], TreeT]) -> TreeT:
        """The result stored under this digest, or the one ``make`` gives, stored from now on."""
        path = self._cache / "fitted" / f"{name}-{digest}"
        if path.exists():
            try:
                result, _ = load_tree(path, like, format_name=_FITTED[0], schema_version=_FITTED[1])
            except UserError as error:
                self._set_aside(path, error)
            else:
                return result
        result = make()
        save_tree(
            path,
            result,
            format_name=_FITTED[0],
            schema_version=_FITTED[1],
            content={"name": name, "digest": digest},
            overwrite=True,
        )
        return result

    def _set_aside(self, path: Path, error: UserError) -> None:
        """Move what cannot be trusted out of the way, so that it is made again and not lost."""
        number = sum(1 for _ in path.parent.glob(f"{path.name}.damaged-*"))
        aside = path.with_name(f"{path.name}.damaged-{number}")
        os.rename(path, aside)
        self._warn(f"set aside {aside} and starting over: {error.what}")

    def _append(self, name: str, lines: list[dict[str, Any]]) -> None:
        with open(self._folder / name, "a", encoding="utf-8") as stream:
            stream.writelines(json.dumps(line, allow_nan=False) + "\n" for line in lines)
            stream.flush()
            os.fsync(stream.fileno())

    def _drop_lines(self, name: str, stage: str, first: int) -> None:
        """Drop a stage's lines from step ``first`` on, and a last line cut in two."""
        path = self._folder / name
        if not path.exists():
            return
        text = path.read_text(encoding="utf-8")
        kept = [
            line
            for line in text.splitlines(keepends=True)
            if line.endswith("\n") and not _is_after(json.loads(line), stage, first)
        ]
        if "".join(kept) != text:
            with atomic_file(path) as temporary:
                temporary.write_text("".join(kept), encoding="utf-8")


def read_lines(path: Path) -> list[dict[str, Any]]:
    """The whole lines of a metrics or evaluations file; none if it does not exist yet."""
    if not path.exists():
        return []
    text = path.read_text(encoding="utf-8")
    return [json.loads(line) for line in text.splitlines(keepends=True) if line.endswith("\n")]


def _is_after(line: Mapping[str, Any], stage: str, first: int) -> bool:
    return line["stage"] == stage and int(line["step"]) >= first
