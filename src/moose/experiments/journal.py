"""How a run keeps what it must not lose: checkpoints, lines, and fitted models for other runs.

Whatever moment the process dies at, a resumed run goes on from the last checkpoint and ends with
the same bits as an undisturbed one: lines written after that checkpoint are dropped and written
again.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TextIO, TypeVar

import jax
import numpy as np

from moose.checkpoint import load_tree, save_tree
from moose.errors import RunError, StorageError, UserError
from moose.experiments.run_folder import CHECKPOINTS, EVALUATIONS, METRICS, parse_line
from moose.storage import atomic_file, named_os_errors, remove_stale_temporaries

try:
    import fcntl
except ImportError:  # not on Windows; there two processes may fit the same models
    fcntl = None  # type: ignore[assignment]

TreeT = TypeVar("TreeT")
Warn = Callable[[str], None]

_CHECKPOINT = "moose-checkpoint"
_FITTED = "moose-fitted"
_SCHEMA_VERSION = 1


class SharedFits:
    """Fitted models in a cache, where other runs find them.

    Args:
        cache: The cache's folder.
        warn: Called with a sentence when something damaged had to be set aside.
    """

    def __init__(self, cache: Path, warn: Warn = lambda text: None) -> None:
        self.folder = cache / "fitted"
        self._locks = cache / "locks"
        self._warn = warn
        remove_stale_temporaries(self.folder)

    def once(
        self,
        name: str,
        digest: str,
        like: TreeT,
        make: Callable[[], TreeT],
        *,
        meanwhile: Callable[[], object] | None = None,
    ) -> TreeT:
        """The result stored under this digest, or the one ``make`` gives, stored from now on.

        Of several processes that need the same result, one makes it and the others wait; before
        they do, each calls ``meanwhile``.
        """
        path = self.folder / f"{name}-{digest}"
        with _one_at_a_time(self._locks / f"fit-{path.name}", meanwhile):
            if path.exists():
                try:
                    stored, _ = _load(path, like, _FITTED)
                except UserError as error:
                    set_aside(path, error, self._warn)
                else:
                    return stored
            return self._make_and_share(path, name, digest, make)

    def _make_and_share(
        self, path: Path, name: str, digest: str, make: Callable[[], TreeT]
    ) -> TreeT:
        result = make()
        require_finite(result, f"what was fitted as '{name}'", f"stage '{name}', last step")
        content = {"name": name, "digest": digest}
        try:
            _save(path, result, _FITTED, content)
        except StorageError as error:
            # The run has its own checkpoint; only other runs will have to fit it again.
            self._warn(f"cannot share what was fitted as '{name}' in {path}: {error.what}")
        return result


class RunJournal:
    """Keeps a run's checkpoints and lines in its folder, and fitted models in a shared cache.

    Args:
        folder: The run's folder.
        cache: Where fitted models are shared between runs.
        warn: Called with a sentence when something damaged had to be set aside.
        seed_folders: For seeds that are trained together, where the lines of each go; states and
            metrics then have an axis of seeds.
    """

    def __init__(
        self,
        folder: Path,
        cache: Path,
        warn: Warn = lambda text: None,
        *,
        seed_folders: Sequence[Path] | None = None,
    ) -> None:
        self._checkpoints = folder / CHECKPOINTS
        self._shared = SharedFits(cache, warn)
        self._warn = warn
        self._is_seeded = seed_folders is not None
        self._line_folders = [folder] if seed_folders is None else list(seed_folders)
        for place in (*self._line_folders, self._checkpoints):
            with named_os_errors(place):
                place.mkdir(parents=True, exist_ok=True)
        for place in dict.fromkeys((folder, self._checkpoints, *self._line_folders)):
            remove_stale_temporaries(place)
        for place in self._line_folders:
            for name in (METRICS, EVALUATIONS):
                _drop_from(place / name, stage=None)

    def restore(self, stage: str, like: TreeT) -> tuple[TreeT, int]:
        """The newest kept state of a stage and its step, or ``(like, 0)``."""
        path = self._checkpoints / stage
        state, done = like, 0
        if path.exists():
            try:
                state, manifest = _load(path, like, _CHECKPOINT)
                done = _step_in(manifest, stage, path)
            except UserError as error:
                set_aside(path, error, self._warn)
                state = like
        for place in self._line_folders:
            _drop_from(place / METRICS, stage, done)
            # An evaluation comes after its step; the one of step 0 comes before all.
            _drop_from(place / EVALUATIONS, stage, done + 1 if done else 0)
        return state, done

    def keep(self, stage: str, step: int, state: object) -> None:
        """Keep the state after ``step`` steps; it replaces the one before."""
        content = {"stage": stage, "step": step}
        _save(self._checkpoints / stage, state, _CHECKPOINT, content)

    def record(self, stage: str, step: int, metrics: Mapping[str, np.ndarray[Any, Any]]) -> None:
        """Append one line for each of the steps from ``step`` on."""
        count = len(next(iter(metrics.values())))
        for seed, place in enumerate(self._line_folders):
            own = {name: v[:, seed] if self._is_seeded else v for name, v in metrics.items()}
            numbers = [{name: v[i].tolist() for name, v in own.items()} for i in range(count)]
            lines = [{"stage": stage, "step": step + i, **numbers[i]} for i in range(count)]
            _append(place / METRICS, lines)

    def record_evaluation(
        self, stage: str, step: int, contents: Sequence[Mapping[str, Any]]
    ) -> None:
        """Append the evaluation made after ``step`` steps of a stage; one content for each seed."""
        for place, content in zip(self._line_folders, contents, strict=True):
            _append(place / EVALUATIONS, [{"stage": stage, "step": step, **content}])

    def once(
        self,
        name: str,
        digest: str,
        like: TreeT,
        make: Callable[[], TreeT],
        *,
        meanwhile: Callable[[], object] | None = None,
    ) -> TreeT:
        """See :meth:`SharedFits.once`."""
        return self._shared.once(name, digest, like, make, meanwhile=meanwhile)


def require_finite(tree: object, what: str, where: str) -> None:
    """Raise a :class:`RunError` if a number in ``tree`` is not finite."""
    if all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(tree)):
        return
    raise RunError(
        f"Training went astray: {what} holds numbers that are not finite.",
        where=where,
        advice="lower the learning rate, shorten the horizon or check the data's ranges",
    )


def set_aside(path: Path, error: UserError, warn: Warn) -> None:
    """Move what cannot be trusted out of the way, so that it is made again and nothing is lost."""
    names = (path.with_name(f"{path.name}.damaged-{number}") for number in itertools.count())
    aside = next(name for name in names if not os.path.lexists(name))
    # Another run that shares the cache may have moved it just now.
    with named_os_errors(path), contextlib.suppress(FileNotFoundError):
        os.rename(path, aside)
    warn(f"set aside {aside}, which will be made again: {error.what}")


@contextlib.contextmanager
def _one_at_a_time(lock: Path, meanwhile: Callable[[], object] | None) -> Iterator[None]:
    """Wait until no other process holds this lock, and hold it; a process that dies lets go.

    If one holds it, ``meanwhile`` is called first.
    """
    try:
        lock.parent.mkdir(parents=True, exist_ok=True)
        stream = open(lock, "a", encoding="utf-8")  # noqa: SIM115
    except OSError:  # a cache that cannot be written to is complained of when it is written to
        yield
        return
    with stream:
        if fcntl is not None and not _takes_at_once(stream):
            if meanwhile is not None:
                meanwhile()
            with contextlib.suppress(OSError):
                fcntl.flock(stream, fcntl.LOCK_EX)
        yield


def _takes_at_once(stream: TextIO) -> bool:
    """Take a lock unless another process holds it."""
    try:
        fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:  # some file systems have no locks
        pass
    return True


def _step_in(manifest: Mapping[str, Any], stage: str, path: Path) -> int:
    step = manifest.get("step")
    if manifest.get("stage") != stage or not isinstance(step, int) or step < 1:
        raise StorageError(
            "The manifest does not say which step of the stage this checkpoint is of.",
            where=str(path),
        )
    return step


def _append(path: Path, lines: Sequence[Mapping[str, Any]]) -> None:
    text = "".join(json.dumps(line, allow_nan=False) + "\n" for line in lines)
    with named_os_errors(path), open(path, "a", encoding="utf-8") as stream:
        stream.write(text)
        stream.flush()
        os.fsync(stream.fileno())


def _drop_from(path: Path, stage: str | None, first: int = 0) -> None:
    """Drop a stage's lines from step ``first`` on, and what is no line: a last one cut in two."""
    if not path.exists():
        return
    with named_os_errors(path):
        text = path.read_bytes()
    kept = []
    for part in text.split(b"\n")[:-1]:  # what follows the last end of a line is no line
        line = parse_line(part)
        if line is not None and (line["stage"] != stage or line["step"] < first):
            kept.append(part + b"\n")
    if b"".join(kept) != text:
        with atomic_file(path) as temporary:
            temporary.write_bytes(b"".join(kept))


def _load(path: Path, like: TreeT, kind: str) -> tuple[TreeT, dict[str, Any]]:
    return load_tree(path, like, format_name=kind, schema_version=_SCHEMA_VERSION)


def _save(path: Path, tree: object, kind: str, content: dict[str, Any]) -> None:
    version = _SCHEMA_VERSION
    save_tree(path, tree, format_name=kind, schema_version=version, content=content, overwrite=True)
