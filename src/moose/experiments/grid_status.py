"""How far a grid is, from its store alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from moose.experiments.store import LEASE, STATES, Run, Store, now

_PROTOCOL_EVALUATIONS = 101
"""Of a run with the usual hundred checks, the untrained policy among them."""


def grid_status(store: Store, *, lease: float = LEASE) -> dict[str, Any]:
    """Count what is done, running, failed and waiting, and guess how long the rest takes.

    Args:
        store: The grid's store.
        lease: Seconds after which a run whose conductor is silent counts as waiting.

    Returns:
        Plain values: ``runs`` by state, how many of the done ones were ``taken_over``, ``labels``
        with the runs of each label, ``running`` and ``failed`` runs one by one, the number of
        ``evaluations``, and ``eta_seconds`` (None as long as no run is finished, or nobody is
        working).
    """
    time = now()
    runs = store.open_runs()
    active = [run for run in runs if run.is_leased(time, lease)]
    left = {run.id for run in runs if run.state == "running"} - {run.id for run in active}
    counts = store.counts()
    counts["running"] -= len(left)
    counts["waiting"] += len(left)
    timings = store.timings(sorted(left))
    return {
        "name": store.facts().get("name", ""),
        "runs": {"total": sum(counts.values()), **counts},
        "taken_over": len(store.taken_over()),
        "labels": _labels(timings),
        "running": [_running(run, time) for run in active],
        "failed": [failure._asdict() for failure in store.failures()],
        "evaluations": store.num_evaluations(),
        "eta_seconds": _eta(timings, store.typical_evaluations(), len(active)),
    }


def render(status: Mapping[str, Any]) -> RenderableType:
    """A status as a page of text.

    Args:
        status: What :func:`grid_status` gave.

    Returns:
        Something to print on a rich console.
    """
    runs, eta = status["runs"], status["eta_seconds"]
    table = Table(box=None, header_style="bold")
    table.add_column("algorithm")
    for name in (*STATES, "minutes a run"):
        table.add_column(name, justify="right")
    for row in status["labels"]:
        seconds = row["seconds_per_run"]
        minutes = "–" if seconds is None else f"{seconds / 60:.1f}"
        table.add_row(Text(row["label"]), *(str(row[name]) for name in STATES), minutes)
    left = "unknown" if eta is None else str(timedelta(seconds=round(eta)))
    parts: list[RenderableType] = [
        Text(
            f"{status['name']}: {runs['done']} of {runs['total']} runs done"
            f"{taken_over_words(status['taken_over'])}, "
            f"{runs['running']} running, {runs['failed']} failed, {runs['waiting']} waiting; "
            f"{status['evaluations']:,} evaluations"
        ),
        Text(f"time left: {left}"),
        Text(),
        table,
    ]
    for failure in status["failed"]:
        where = f"{failure['label']} on {failure['data']}, seed {failure['seed']}"
        parts += [
            Text(),
            Text(f"failed: {where} ({failure['digest']}, {failure['attempts']} attempts)"),
            Text("  " + failure["message"].replace("\n", "\n  ")),
        ]
    return Group(*parts)


def taken_over_words(count: int) -> str:
    """What follows the number of done runs if some of them were taken over."""
    return f" ({count} taken over)" if count else ""


def _labels(timings: Sequence[tuple[Any, ...]]) -> list[dict[str, Any]]:
    rows: dict[str, dict[str, Any]] = {}
    for label, state, count, seconds, _ in timings:
        row = rows.setdefault(
            label, {"label": label, **dict.fromkeys(STATES, 0), "seconds_per_run": None}
        )
        row[state] += count
        if state == "done" and count:
            row["seconds_per_run"] = seconds / count
    return list(rows.values())


def _running(run: Run, time: float) -> dict[str, Any]:
    return {
        "digest": run.digest,
        "data": run.request["data"],
        "algorithm": run.request["algorithm"],
        "seed": run.request["seed"],
        "worker": run.worker,
        "owner": run.owner,
        "seconds_since_heartbeat": time - (run.heartbeat or time),
        "evaluations": run.evaluations,
    }


def _eta(
    timings: Sequence[tuple[Any, ...]], typical: Mapping[str, int], workers: int
) -> float | None:
    """Seconds until the end if the rest takes as long as what is done, with as many workers."""
    done = [
        (label, count, seconds) for label, state, count, seconds, _ in timings if state == "done"
    ]
    finished = sum(count for _, count, _ in done)
    if all(state in {"done", "failed"} for _, state, *_ in timings):
        return 0.0
    if not finished or not workers:
        return None
    overall = sum(seconds for _, _, seconds in done) / finished
    each = {label: seconds / count for label, count, seconds in done}
    left = 0.0
    for label, state, count, _, evaluations in timings:
        if state in {"waiting", "running"}:
            expected = count * typical.get(label, _PROTOCOL_EVALUATIONS)
            share = max(0.0, 1.0 - evaluations / expected)
            left += share * count * each.get(label, overall)
    return left / workers
