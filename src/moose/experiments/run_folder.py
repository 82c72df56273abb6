"""A run on disk: what was asked, what came of it, and who may write to it.

    runs/x/
      manifest.json      what was asked: data, algorithm, settings, seed, versions; never changed
      metrics.jsonl      one line a step
      evaluations.jsonl  one line an evaluation in the true plant, where there is one
      checkpoints/       the newest state of each stage
      policy/            the final policy; its presence says that the run is finished

Several seeds make a group: a manifest that names them, and below it ``seed-0/``, ``seed-1/``, …
each a run folder like the one above. Seeds that are trained together have one ``checkpoints/``,
that of the group. The files are written by :mod:`moose.experiments.journal`.
"""

from __future__ import annotations

import contextlib
import json
import os
import shlex
import socket
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Literal

from pydantic import Field

from moose.config import Settings, build_settings, digest, settings_tree
from moose.errors import ConfigError, RunError, StorageError
from moose.storage import MANIFEST, TENSORS, atomic_file, named_os_errors, read_json, write_json

try:
    import fcntl
except ImportError:  # not on Windows; there nobody is kept from resuming the same run twice
    fcntl = None  # type: ignore[assignment]

METRICS = "metrics.jsonl"
EVALUATIONS = "evaluations.jsonl"
CHECKPOINTS = "checkpoints"
POLICY = "policy"
_FORMAT: Literal["moose-run"] = "moose-run"
_SCHEMA_VERSION = 1
_LOCK = ".lock"

Mode = Literal["together", "in-turn"]
"""How several seeds are trained: as one compiled program, or one after the other."""


class RunBusyError(RunError):
    """Another process works on the run."""


class Request(Settings):
    """What a run is asked to do; with the data's fingerprint it determines the result."""

    data: str
    """A data set's name or folder."""
    algorithm: str = "moose"
    """The algorithm's name."""
    preset: str = "paper"
    """The preset that the settings came from."""
    config: dict[str, Any] = Field(default_factory=dict)
    """All settings of the algorithm, in full."""
    seed: int = Field(default=0, ge=0, lt=2**31)
    """Seed of all randomness in training; in the manifest of a group, the first one's."""
    evaluation_episodes: int = Field(default=10, ge=0)
    """Episodes of each evaluation in the true plant; 0 for none."""


class DataRecord(Settings):
    """Which data a run began with."""

    fingerprint: str
    transitions: int
    episodes: int
    provenance: dict[str, Any]


class Manifest(Settings):
    """All that a run folder's manifest says."""

    format: Literal["moose-run"] = _FORMAT
    schema_version: int = _SCHEMA_VERSION
    request: Request
    digest: str
    """Names the request and the data: see :func:`run_digest`."""
    data: DataRecord
    versions: dict[str, str]
    """What the last bits of the result depend on besides."""
    seeds: tuple[int, ...] | None = None
    """The seeds of a group."""
    mode: Mode | None = None
    """How a group's seeds are trained."""
    is_part_of_group: bool = False
    """Whether this run is one seed of a group, and resumed with it."""


def run_digest(request: Request, fingerprint: str, seeds: tuple[int, ...] | None) -> str:
    """What names a run: its request, its data and, for a group, all its seeds."""
    return digest(request, fingerprint, *([] if seeds is None else [list(seeds)]))


def write_run(folder: Path, manifest: Manifest) -> None:
    """Write the manifest of a run: from now on there is a run to resume."""
    with atomic_file(folder / MANIFEST) as temporary:
        write_json(temporary, settings_tree(manifest))


def read_run(folder: Path) -> Manifest:
    """Read and check the manifest of a run.

    Args:
        folder: The run's folder.

    Returns:
        The manifest.

    Raises:
        RunError: There is no run here, or its manifest is not what was written.
    """
    file = Path(folder) / MANIFEST
    if not file.is_file():
        raise RunError(
            "There is no run in this folder."
            if Path(folder).exists()
            else "This folder does not exist.",
            where=str(folder),
            advice="give the folder that 'moose train' named when the run began",
        )
    tree = read_json(file)
    if not isinstance(tree, Mapping) or tree.get("format") != _FORMAT:
        raise RunError(
            "This folder holds something else than a run.",
            where=str(file),
            advice="give the folder that 'moose train' named when the run began",
        )
    version = tree.get("schema_version")
    if isinstance(version, int) and version > _SCHEMA_VERSION:
        raise RunError(
            f"This run has schema version {version}; this program reads up to {_SCHEMA_VERSION}.",
            where=str(file),
            advice="use the newer version of moose that began the run",
        )
    try:
        manifest = build_settings(Manifest, tree, source=str(file))
    except ConfigError as error:
        raise _altered(file, error.what) from error
    request, data = manifest.request, manifest.data
    if manifest.digest != run_digest(request, data.fingerprint, manifest.seeds):
        raise _altered(file, "its digest differs from its content")
    return manifest


def require_free(folder: Path) -> None:
    """Raise unless a run may begin in ``folder``: it is missing, or nothing is in it."""
    if (folder / MANIFEST).exists():
        raise RunError(
            "This folder holds a run already.",
            where=str(folder),
            advice=f"go on with it by '{resume_command(folder)}', or choose another folder",
        )
    with named_os_errors(folder):
        if os.path.lexists(folder) and not folder.is_dir():
            raise StorageError(
                "There is a file where the run's folder should go.",
                where=str(folder),
                advice="choose another place with --out, or move the file away",
            )
        # Hidden files may be left by a start that was cut short.
        if folder.is_dir() and any(not e.name.startswith(".") for e in folder.iterdir()):
            raise RunError(
                "This folder is not empty, and what it holds is not a run.",
                where=str(folder),
                advice="choose another place with --out, or empty the folder yourself",
            )


@contextlib.contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Keep other processes from working on the same run; a process that dies lets go.

    Args:
        folder: The run's folder; made if it is missing.

    Raises:
        RunBusyError: Another process works on it.
    """
    with named_os_errors(folder):
        folder.mkdir(parents=True, exist_ok=True)
        stream = open(folder / _LOCK, "a+", encoding="utf-8", errors="replace")  # noqa: SIM115
    with stream:
        if fcntl is not None:
            try:
                fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                stream.seek(0)
                raise RunBusyError(
                    f"Another process works on this run ({stream.read().strip()}).",
                    where=str(folder),
                    advice="wait until it has finished, or end it and try again",
                ) from error
            except OSError:
                pass  # some file systems have no locks
        with contextlib.suppress(OSError):  # who it is, is a courtesy; a full disk is told later
            stream.truncate(0)
            stream.write(f"process {os.getpid()} on {socket.gethostname()}\n")
            stream.flush()
        yield


def seed_folders(folder: Path, manifest: Manifest) -> dict[int, Path]:
    """Where the lines and the policy of each seed are: the run's own folder, or one for each."""
    if manifest.seeds is None:
        return {manifest.request.seed: folder}
    return {seed: folder / f"seed-{seed}" for seed in manifest.seeds}


def find_finished_run(path: Path) -> Path:
    """The folder of the finished run of one seed that a user means: it, or the policy in it.

    Args:
        path: Either of these.

    Returns:
        The run's folder.

    Raises:
        RunError: There is no run, it has no policy yet, or it has several seeds.
    """
    if not (path / TENSORS).is_file():
        read_run(path)  # says so if there is none
    return find_policy(path).parent


def no_dial_in(folder: Path, manifest: Manifest) -> RunError:
    """What to raise where the policy of a run is to be turned that cannot be."""
    return RunError(
        "The policy of this run has no dial.",
        where=f"{folder}, algorithm {manifest.request.algorithm}",
        advice="train one that has: moose train DATA --algorithm lion; or judge this one as it "
        f"is: moose judge {folder}",
    )


def find_policy(path: Path) -> Path:
    """The policy that a user means: a ``.moose`` file, a policy's folder, or that of a run.

    Args:
        path: Any of these.

    Returns:
        The file or folder of the policy.

    Raises:
        RunError: There is nothing, or a run without a policy, or one of several seeds.
    """
    if not path.exists():
        raise RunError(
            "There is nothing here.",
            where=str(path),
            advice="give the folder of a run or of a policy, or a .moose file",
        )
    if not path.is_dir() or (path / TENSORS).is_file():
        return path
    if (path / POLICY / MANIFEST).is_file():
        return path / POLICY
    seeds = sorted(p.parent.name for p in path.glob(f"seed-*/{POLICY}"))
    manifest = read_run(path)
    if seeds:
        raise RunError(
            f"This run has several seeds: {', '.join(seeds)}.",
            where=str(path),
            advice=f"say which one, such as {path / seeds[0]}",
        )
    raise RunError(
        "This run is not finished: there is no policy yet.",
        where=str(path),
        advice="resume the group it belongs to"
        if manifest.is_part_of_group
        else f"go on with it by '{resume_command(path)}'",
    )


def read_lines(path: Path) -> list[dict[str, Any]]:
    """The lines of a metrics or evaluations file; none if it does not exist yet.

    A last line without an end is still being written, or was cut in two; it does not count.
    """
    if not path.exists():
        return []
    with named_os_errors(path):
        *whole, _ = path.read_bytes().split(b"\n")
    lines = []
    for number, text in enumerate(whole, start=1):
        line = parse_line(text)
        if line is None:
            raise StorageError(
                "This line is not one that a run writes.",
                where=f"{path}, line {number}",
                advice="the file is damaged or was edited; restore it",
            )
        lines.append(line)
    return lines


def read_evaluations(folder: Path) -> list[dict[str, Any]]:
    """The evaluations made so far by the run of one seed."""
    return read_lines(folder / EVALUATIONS)


def parse_line(text: bytes) -> dict[str, Any] | None:
    """One line of a metrics or evaluations file, or None if it is not one."""
    try:
        line = json.loads(text)
    except ValueError:
        return None
    is_sound = isinstance(line, dict) and "stage" in line and isinstance(line.get("step"), int)
    return line if is_sound else None


def resume_command(folder: Path, data: str = "") -> str:
    """What to type to go on with a run, whose data set may have moved to ``data``."""
    return " ".join(["moose train", *data.split(), "--resume", shlex.quote(str(folder))])


def _altered(file: Path, why: str) -> RunError:
    return RunError(
        f"The run's manifest is damaged or was edited: {why}",
        where=str(file),
        advice="restore the file, or start a new run",
    )
