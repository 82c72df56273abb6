"""Finished runs as one small file, from which a grid on another machine takes them over.

    {"schema_version":1,"runs":[
    {"digest":"…","request":{…},"fingerprint":"…","versions":{…},"seconds":…,"updates":…,
     "evaluations":[[step,mean,deviation,episodes],…]},
    …
    ]}

Each run stands on one line. Checkpoints and policies are left out: what is taken over has a place
in tables and figures, but no run folder.
"""

from __future__ import annotations

import json
import os
from collections.abc import Container, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Literal, NamedTuple

from moose.config import Settings, build_settings, digest, settings_tree
from moose.errors import ConfigError, StorageError
from moose.experiments.journal import Warn
from moose.experiments.run_folder import POLICY, read_run, run_digest
from moose.experiments.store import LEASE, RUNS, FinishedRun, PlannedCell, Store, now
from moose.storage import MANIFEST, named_os_errors, read_json

_SCHEMA_VERSION = 1


class KnownRuns(NamedTuple):
    """Finished runs that were read from somewhere."""

    source: str
    """The folder they were read from."""
    runs: Mapping[str, FinishedRun]
    """By digest."""


class _File(Settings):
    """All that the file says."""

    schema_version: Literal[1]
    runs: tuple[FinishedRun, ...]


def write_runs(file: Path, store: Store) -> None:
    """Write the finished runs of a grid (not atomic: use inside an atomic folder).

    Args:
        file: The file to write.
        store: The grid's store; versions are read from the run folders beside it, but those of runs
            that were taken over are the ones that came with them.
    """
    runs = store.path.parent / RUNS
    finished = store.finished_runs()
    foreign = store.taken_over()  # asked last: a grid at work may take over more meanwhile
    lines = []
    for run in finished:
        tree = settings_tree(run)
        folder = runs / run.digest
        if run.digest not in foreign and (folder / MANIFEST).is_file():
            tree["versions"] = read_run(folder).versions
        lines.append(json.dumps(tree, separators=(",", ":"), allow_nan=False))
    head = f'{{"schema_version":{_SCHEMA_VERSION},"runs":['
    text = "\n".join([head, ",\n".join(lines), "]}\n"])
    with named_os_errors(file):
        file.write_text(text, encoding="utf-8")


def read_runs(file: Path) -> dict[str, FinishedRun]:
    """Read what :func:`write_runs` wrote, or say what is wrong with it.

    Args:
        file: The file.

    Returns:
        The runs by digest.
    """
    tree = read_json(file)
    version = tree.get("schema_version") if isinstance(tree, dict) else None
    if isinstance(version, int) and version > _SCHEMA_VERSION:
        raise StorageError(
            f"These runs have schema version {version}; this program reads up to "
            f"{_SCHEMA_VERSION}.",
            where=str(file),
            advice="use the newer version of moose that published them",
        )
    try:
        content = build_settings(_File, tree, source=str(file))
    except ConfigError as error:
        raise _damaged(file, error.what) from error
    for number, run in enumerate(content.runs):
        if run.digest != run_digest(run.request, run.fingerprint, None):
            raise _damaged(file, f"the digest of runs.{number} differs from its content.")
    return {run.digest: run for run in content.runs}


def with_other_bits(
    planned: Sequence[PlannedCell], known: Sequence[KnownRuns], done: Container[str]
) -> list[PlannedCell]:
    """A plan in which runs of other bits of the same data may stand for those that are missing.

    A data set that has a name is the same to people where its bits are not: an earlier version of
    the program, or another processor, has made it. One in a folder is what its bits are.

    Args:
        planned: The plan.
        known: Where to look for runs; what stands in several is taken from the first.
        done: Digests of the runs that are done here, which nothing replaces.

    Returns:
        The plan; a cell whose very run is neither done here nor known has the run that was asked
        for the same, if one is known.
    """
    exact = {name for _, runs in known for name in runs}
    alike = {digest(run.request): name for _, runs in reversed(known) for name, run in runs.items()}
    return [
        cell
        if cell.digest in exact or cell.digest in done or os.path.isdir(cell.request.data)
        else cell._replace(digest=alike.get(digest(cell.request), cell.digest))
        for cell in planned
    ]


def take_over(
    store: Store,
    known: Sequence[KnownRuns],
    planned: Sequence[PlannedCell],
    here: Mapping[str, str],
    *,
    lease: float = LEASE,
    warn: Warn = lambda text: None,
) -> None:
    """Count runs of a plan as done that are known from elsewhere.

    A run that is done here keeps its own record, and so does one that somebody works on. One that
    was begun here and left is taken over.

    Args:
        store: The grid's store, with its plan.
        known: Where to look for runs; what stands in several is taken from the first.
        planned: The plan.
        here: The versions that runs would be made with here.
        lease: Seconds after which a run whose conductor is silent is nobody's.
        warn: Called with a sentence if runs are of other versions, or of other data, than here.
    """
    own = store.path.parent / RUNS
    bits = {name: facts["fingerprint"] for name, facts in store.datasets().items()}
    data = {cell.digest: cell.data for cell in planned}
    taken = []
    for source, runs in known:
        # Folders are the truth: a store that was lost will be filled from those of finished runs.
        wanted = [run for run in runs.values() if not (own / run.digest / POLICY).exists()]
        taken += store.take_over(wanted, os.path.abspath(source), now(), lease=lease)
        complaint = _complaint_of_misses(source, runs, planned)
        if complaint:
            warn(complaint)
    others = [data[run.digest] for run in taken if run.fingerprint != bits[data[run.digest]]]
    if others:
        warn(
            f"{len(others)} of the runs taken over were made with other bits of their data sets "
            f"than those here: {', '.join(dict.fromkeys(others))}"
        )
    differing = describe_differences([run.versions for run in taken], here)
    if differing:
        warn(
            f"runs taken over may differ in the last bits from runs made here, since "
            f"their versions do: {differing}"
        )


def describe_differences(
    elsewhere: Iterable[Mapping[str, str] | None], here: Mapping[str, str]
) -> str:
    """Which versions of some runs differ from those here.

    Args:
        elsewhere: The versions of each run; None if they are not known.
        here: Those here.

    Returns:
        Words such as ``jax 0.9.0 (here 0.10.2), threads 2 (here 1)``; empty if none differs.
    """
    runs = list(elsewhere)
    known = [versions for versions in runs if versions is not None]
    parts = []
    for name, own in here.items():
        others = {versions.get(name, "unknown") for versions in known} - {own}
        if others:
            parts.append(f"{name} {' and '.join(sorted(others))} (here {own})")
    if len(known) < len(runs):
        parts.append(f"{len(runs) - len(known)} of {len(runs)} runs do not tell theirs")
    return ", ".join(parts)


def _complaint_of_misses(
    source: str, runs: Mapping[str, FinishedRun], planned: Sequence[PlannedCell]
) -> str:
    """What to say if runs of the plan are there with other data only, or none of them is there."""
    requests = {digest(run.request) for run in runs.values()}
    missing = [cell for cell in planned if cell.digest not in runs]
    changed = [cell.data for cell in missing if digest(cell.request) in requests]
    if changed:
        return (
            f"{len(changed)} runs in {source} are not taken over, since their data sets differ "
            f"from those here: {', '.join(dict.fromkeys(changed))} (those of data sets with a name "
            "can be, with --other-bits)"
        )
    if len(missing) == len(planned):
        return (
            f"no run of this grid is among the {len(runs)} in {source}: settings differ, or the "
            "data are in a folder of another name"
        )
    return ""


def _damaged(file: Path, why: str) -> StorageError:
    return StorageError(
        f"The file of runs is damaged or was edited: {why}",
        where=str(file),
        advice="restore the folder, or publish the grid anew where it was run",
    )
