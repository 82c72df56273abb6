"""Shadow mode: a guarded policy along a log, what it would have done beside what was done.

The observations are the log's own, so that nothing here tells where the policy would have taken the
plant; it tells how far its wishes are from what people did, how familiar it finds the situations,
and how often its guard would have stepped in.
"""

from __future__ import annotations

import csv
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from moose.data.dataset import Dataset
from moose.data.files import load_dataset
from moose.errors import DataError
from moose.policies.facts import Floats, TaskFacts
from moose.policies.guard import Decision, Fallback, Guard, GuardSettings, Source
from moose.policies.plain import Controller
from moose.progress import SILENT, Progress
from moose.storage import atomic_file, named_os_errors
from moose.wording import counted

EPISODE = "episode"
_MISSING = {"", "nan", "na", "null", "none"}
_QUANTILES = {"median": 0.5, "90 %": 0.9, "99 %": 0.99, "largest": 1.0}
_SOURCES: tuple[Source, ...] = ("policy", "blend", "fallback")


@dataclass(frozen=True)
class LoggedEpisode:
    """Frames as they were logged, NaN where something is missing.

    Attributes:
        name: What the log calls it.
        frames: ``[T, n]``
        actions: ``[T, d]``: what was done after each frame; None if the log does not say.
    """

    name: str
    frames: Floats
    actions: Floats | None


@dataclass(frozen=True)
class ReplayedEpisode:
    """One episode of a log and what the guarded policy made of it.

    Attributes:
        logged: The episode.
        decisions: One a frame.
        wanted: ``[T, d]``: what the policy alone wants.
        novelty: ``[T]``, of what it wants; None without a support model.
        logged_novelty: ``[T]``, of what was done; None without a support model or logged actions.
    """

    logged: LoggedEpisode
    decisions: tuple[Decision, ...]
    wanted: Floats
    novelty: npt.NDArray[np.float64] | None
    logged_novelty: npt.NDArray[np.float64] | None

    @property
    def actions(self) -> npt.NDArray[np.float64]:
        """[T, d]: what would have been done."""
        return np.stack([decision.action for decision in self.decisions])


def read_log(source: str, facts: TaskFacts, *, cache: Path | None = None) -> list[LoggedEpisode]:
    """A log by the task's columns.

    Args:
        source: A CSV file, the folder of a data set, or the name of one.
        facts: Whose columns are wanted.
        cache: Cache of data sets; the user's own by default.

    Returns:
        Its episodes.
    """
    path = Path(source)
    if path.is_file() or path.suffix.lower() == ".csv":
        return list(_read_csv(path, facts))
    if path.is_dir():
        dataset = load_dataset(path)
    else:
        from moose.envs import catalog  # noqa: PLC0415 (needs JAX, which the rest does not)

        dataset = catalog.find_dataset(source, cache=cache)
    return list(_episodes_of(dataset, facts, source))


def replay(
    policy: Controller,
    episodes: Sequence[LoggedEpisode],
    settings: GuardSettings | None = None,
    *,
    fallback: Fallback | None = None,
    progress: Progress = SILENT,
) -> tuple[list[ReplayedEpisode], Guard]:
    """Run a guarded policy along a log.

    Args:
        policy: The policy.
        episodes: The log.
        settings: The guard's.
        fallback: The guard's.
        progress: Whom to tell.

    Returns:
        The episodes, and the guard with its counts.
    """
    guard = Guard(policy, settings, fallback=fallback)
    replayed = []
    with progress.stage("replay", sum(len(episode.frames) for episode in episodes)) as stage:
        for episode in episodes:
            guard.reset()
            decisions = tuple(guard.act(frame) for frame in episode.frames)
            wanted, novelty, logged = _unguarded(policy, episode)
            replayed.append(ReplayedEpisode(episode, decisions, wanted, novelty, logged))
            stage.advance(len(episode.frames))
    return replayed, guard


def summarise(
    replayed: Sequence[ReplayedEpisode], guard: Guard, facts: TaskFacts
) -> dict[str, Any]:
    """The replay in plain numbers."""
    actions = np.concatenate([episode.actions for episode in replayed])
    logged = [episode.logged.actions for episode in replayed]
    is_known = all(each is not None for each in logged)
    done = np.concatenate([each for each in logged if each is not None]) if is_known else None
    sources = [decision.source for episode in replayed for decision in episode.decisions]
    return {
        "task": facts.name,
        "episodes": len(replayed),
        "steps": len(actions),
        "actions": [
            {
                "name": name,
                "mean": float(actions[:, i].mean()),
                "logged_mean": None if done is None else _mean(done[:, i]),
                "mean_difference": None if done is None else _mean(np.abs(actions - done)[:, i]),
            }
            for i, name in enumerate(facts.action_names)
        ],
        "novelty": _quantiles([episode.novelty for episode in replayed]),
        "logged_novelty": _quantiles([episode.logged_novelty for episode in replayed]),
        "novelty_limit": guard.settings.novelty_limit,
        "sources": {source: sources.count(source) for source in _SOURCES},
        "interventions": dict(sorted(guard.counts.items())),
        "first_interventions": [
            {"step": each.step, "reason": each.reason, "detail": each.detail}
            for each in list(guard.interventions)[:20]
        ],
    }


def render(result: dict[str, Any]) -> RenderableType:
    """The summary for people."""
    actions = Table("action", "mean", "logged mean", "mean difference", box=None)
    for row in result["actions"]:
        numbers = (row["mean"], row["logged_mean"], row["mean_difference"])
        actions.add_row(row["name"], *map(_shown, numbers))
    novelty = Table("novelty", *_QUANTILES, box=None)
    for label, key in (("of the policy", "novelty"), ("of the log", "logged_novelty")):
        if result[key] is not None:
            novelty.add_row(label, *(_shown(result[key][name]) for name in _QUANTILES))
    sources = ", ".join(f"{name} {count:,}" for name, count in result["sources"].items())
    reasons = ", ".join(f"{name} {count:,}" for name, count in result["interventions"].items())
    return Group(
        Text(f"steps {result['steps']:,} in {counted(result['episodes'], 'episode')}"),
        actions,
        *([novelty] if novelty.row_count else [Text("novelty not known: no support model")]),
        Text(f"acted: {sources}"),
        Text(f"interventions: {reasons or 'none'}"),
    )


def write_steps(replayed: Sequence[ReplayedEpisode], facts: TaskFacts, file: Path) -> None:
    """Write every step as a row of a CSV file."""
    heads = (f"{kind}_{name}" for kind in ("guarded", "wanted") for name in facts.action_names)
    logged = (f"logged_{name}" for name in facts.action_names)
    with atomic_file(file) as temporary, open(temporary, "w", newline="", encoding="utf-8") as out:
        writer = csv.writer(out)
        writer.writerow(
            [EPISODE, "step", "source", "reasons", "novelty", "logged_novelty", *heads, *logged]
        )
        for episode in replayed:
            for t, decision in enumerate(episode.decisions):
                done = episode.logged.actions
                told = " ".join(each.reason for each in decision.interventions)
                new = [_cell(each, t) for each in (episode.novelty, episode.logged_novelty)]
                row = [episode.logged.name, t, decision.source, told, *new]
                row += [*decision.action.tolist(), *episode.wanted[t].tolist()]
                row += [""] * len(facts.action_names) if done is None else done[t].tolist()
                writer.writerow(row)


def draw_replay(
    episode: ReplayedEpisode, facts: TaskFacts, settings: GuardSettings, path: Path
) -> None:
    """Draw one episode: every action, logged and as it would have been, novelty, interventions.

    Args:
        episode: The episode.
        facts: Of its task.
        settings: The guard's.
        path: The picture to write: ``.png``, ``.svg`` or ``.pdf``.
    """
    from moose.experiments.figures import picture_format, tidy, write_figure  # noqa: PLC0415

    picture_format(path)
    from matplotlib.figure import Figure  # noqa: PLC0415 (an optional dependency)

    rows = len(facts.action_names) + (episode.novelty is not None)
    figure = Figure(figsize=(10, 1.2 + 1.7 * rows), layout="constrained")
    axes = figure.subplots(rows, 1, sharex=True, squeeze=False)[:, 0]
    steps = np.arange(len(episode.decisions))
    is_guarded = np.array([decision.source != "policy" for decision in episode.decisions])
    for i, (name, ax) in enumerate(zip(facts.action_names, axes, strict=False)):
        if episode.logged.actions is not None:
            ax.plot(steps, episode.logged.actions[:, i], color="#4D4D4D", lw=0.8, label="logged")
        ax.plot(steps, episode.wanted[:, i], color="#E69F00", lw=0.8, label="policy")
        ax.plot(steps, episode.actions[:, i], color="#0072B2", lw=1.2, label="guarded policy")
        tidy(ax, name)
    if episode.novelty is not None:
        ax = axes[-1]
        if episode.logged_novelty is not None:
            ax.plot(steps, episode.logged_novelty, color="#4D4D4D", lw=0.8)
        ax.plot(steps, episode.novelty, color="#0072B2", lw=1.2)
        ax.axhline(1.0, color="#4D4D4D", lw=0.8, ls=":", label="the most unusual data")
        if settings.novelty_limit is not None:
            ax.axhline(settings.novelty_limit, color="#D55E00", lw=1.0, ls="--", label="limit")
        ax.legend(frameon=False, fontsize=7)
        tidy(ax, "novelty")
    for ax in axes:
        if is_guarded.any():
            low, high = ax.get_ylim()
            ax.fill_between(
                steps, low, high, where=is_guarded, color="#D55E00", alpha=0.12, step="mid", lw=0
            )
            ax.set_ylim(low, high)
    axes[-1].set_xlabel("step (shaded: the guard did not leave it to the policy)", fontsize=8)
    axes[0].legend(frameon=False, fontsize=7, ncols=3)
    figure.suptitle(f"{facts.name}, episode {episode.logged.name}", fontsize=10)
    write_figure(figure, path)


def _unguarded(
    policy: Controller, episode: LoggedEpisode
) -> tuple[Floats, npt.NDArray[np.float64] | None, npt.NDArray[np.float64] | None]:
    """What the policy alone wants along an episode, and the novelty of that and of the log."""
    steps = np.arange(len(episode.frames))
    ages = np.arange(policy.facts.history)
    pieces = np.array_split(steps, max(1, len(steps) // 1000))  # so that memory stays small
    wanted, novelty, logged = [], [], []
    for piece in pieces:
        windows = episode.frames[np.maximum(piece[:, None] - ages, 0)]
        wanted.append(policy(windows))
        if policy.has_novelty:
            novelty.append(policy.novelty(windows, wanted[-1]))
            if episode.actions is not None:
                logged.append(policy.novelty(windows, episode.actions[piece]))
    return (
        np.concatenate(wanted),
        np.concatenate(novelty) if novelty else None,
        np.concatenate(logged) if logged else None,
    )


def _episodes_of(dataset: Dataset, facts: TaskFacts, source: str) -> Iterator[LoggedEpisode]:
    observed = [
        _column(dataset.observation_names, name, source) for name in facts.observation_names
    ]
    acted = [_column(dataset.action_names, name, source) for name in facts.action_names]
    for e in range(dataset.num_episodes):
        first, length = int(dataset.offsets[e]), int(dataset.lengths[e])
        frames = dataset.observations[first + e : first + e + length]
        yield LoggedEpisode(
            str(e), frames[:, observed], dataset.actions[first : first + length][:, acted]
        )


def _read_csv(path: Path, facts: TaskFacts) -> Iterator[LoggedEpisode]:
    """Rows of numbers under a line of names; a new value in ``episode`` begins a new episode."""
    with named_os_errors(path), open(path, newline="", encoding="utf-8-sig") as stream:
        try:
            reader = csv.reader(stream)
            names = next(reader, [])
            wanted = [_column(names, name, str(path)) for name in facts.observation_names]
            are_actions_there = [name in names for name in facts.action_names]
            acted = []
            if any(are_actions_there):
                acted = [_column(names, name, str(path)) for name in facts.action_names]
            label = names.index(EPISODE) if EPISODE in names else None
            rows: list[list[float]] = []
            current = "0"
            for number, row in enumerate(reader, start=2):
                if not row:
                    continue
                if len(row) != len(names):
                    raise DataError(
                        f"The row has {len(row)} cells, the header {len(names)}.",
                        where=f"{path}, row {number}",
                        advice="mend the row",
                    )
                name = "0" if label is None else row[label]
                if rows and name != current:
                    yield _episode(current, rows, len(wanted))
                    rows = []
                current = name
                rows.append([_number(row[c], path, number, names[c]) for c in (*wanted, *acted)])
        except (csv.Error, UnicodeDecodeError) as error:
            raise DataError(
                f"This is not a CSV file in UTF-8: {error}.",
                where=str(path),
                advice="give a CSV file with a line of names, or a data set's folder",
            ) from error
    if not rows:
        raise DataError(
            "There is no row in this file.", where=str(path), advice="give a log that has some"
        )
    yield _episode(current, rows, len(wanted))


def _episode(name: str, rows: list[list[float]], signals: int) -> LoggedEpisode:
    with np.errstate(over="ignore"):
        table = np.array(rows, np.float32)
    return LoggedEpisode(
        name, table[:, :signals], table[:, signals:] if table.shape[1] > signals else None
    )


def _number(cell: str, path: Path, row: int, column: str) -> float:
    if cell.strip().lower() in _MISSING:
        return math.nan
    try:
        return float(cell)
    except ValueError:
        raise DataError(
            f"{cell!r} is not a number.",
            where=f"{path}, row {row}, column '{column}'",
            advice="write numbers with a point and leave missing ones empty",
        ) from None


def _column(names: Sequence[str], name: str, source: str) -> int:
    if list(names).count(name) != 1:
        problem = "twice" if name in names else "not"
        raise DataError(
            f"The policy needs the column '{name}', which is there {problem}.",
            where=source,
            advice=f"the columns are: {', '.join(names) or 'none'}",
        )
    return list(names).index(name)


def _quantiles(parts: Sequence[npt.NDArray[np.float64] | None]) -> dict[str, float] | None:
    known = [part for part in parts if part is not None]
    if len(known) < len(parts):
        return None
    values = np.concatenate(known)
    return {name: float(np.quantile(values, level)) for name, level in _QUANTILES.items()}


def _mean(values: npt.NDArray[Any]) -> float | None:
    known = values[np.isfinite(values)]
    return float(known.mean()) if len(known) else None


def _shown(value: float | None) -> str:
    return "–" if value is None else f"{value:.3f}"


def _cell(values: npt.NDArray[np.float64] | None, index: int) -> float | str:
    return "" if values is None else float(values[index])
