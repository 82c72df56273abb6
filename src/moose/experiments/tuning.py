"""The dial of a finished run, measured by its log alone: every position, and which one is advised.

The models are fitted here, on other episodes and with other seeds than in training, of the kind
that training used and of the other one, and kept in the cache: all seeds of a data set share them.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from moose.config import digest, load_settings, settings_tree
from moose.envs.recipes import cache_folder
from moose.errors import UserError
from moose.evaluation.dial import (
    NOVELTY_QUANTILES,
    Course,
    DialMeasurement,
    DialWitness,
    measure_dial,
)
from moose.evaluation.offline import HOLD
from moose.evaluation.selection import Choice, SelectionSettings, choose_position, lower_bound
from moose.experiments.groups import (
    GroupSettings,
    Numbered,
    Partition,
    divide,
    find_log,
    fit_models,
    is_of_run,
)
from moose.experiments.journal import SharedFits, Warn
from moose.experiments.judgement import curves_of, rounded
from moose.experiments.run_folder import (
    Manifest,
    find_finished_run,
    find_policy,
    no_dial_in,
    read_run,
)
from moose.experiments.runner import key_of
from moose.experiments.tuning_file import FORMAT, SCHEMA_VERSION, TUNING, read_tuning
from moose.models.actor import DialActor
from moose.models.ensembles import DynamicsSettings
from moose.models.recurrent import RecurrentSettings
from moose.policies.policy import load_policy
from moose.progress import SILENT, Progress
from moose.storage import atomic_file, write_json
from moose.tasks.registry import task_of
from moose.tasks.task import Task

_SHOWN = 0.1  # positions in the printed table, this far apart


class TuneSettings(GroupSettings):
    """How a dial is measured."""

    folds: int = 2
    """Groups of episodes; each group of models is fitted without one and measured on it."""
    stacked: DynamicsSettings = DynamicsSettings(
        members=2, hidden=(64, 64), epochs=15, learning_rate=1e-3
    )
    """The models of each group that see stacked frames."""
    recurrent: DynamicsSettings = DynamicsSettings(
        kind="recurrent", members=2, recurrent=RecurrentSettings(units=24, updates=900)
    )
    """The models of each group that remember; as many members as the others."""
    selection: SelectionSettings = SelectionSettings()


class TunedRun(NamedTuple):
    """A run and what was measured of its dial."""

    folder: Path
    content: dict[str, Any]
    """What :data:`TUNING` holds."""
    position: float
    """Where the dial of the run's policy stands."""
    is_known: bool
    """Whether it had been measured before."""


def tune_settings(overrides: Sequence[str] = ()) -> TuneSettings:
    """The settings with texts ``a.b=c`` put over them; what they do not name stays as it is."""
    return load_settings(TuneSettings, base=settings_tree(TuneSettings()), overrides=overrides)


def tune_run(
    folder: Path,
    settings: TuneSettings | None = None,
    *,
    cache: Path | None = None,
    progress: Progress = SILENT,
    warn: Warn = lambda text: None,
    is_fresh: bool = True,
) -> TunedRun:
    """Measure the dial of a finished run and leave what was found in its folder.

    Args:
        folder: The folder of a run with one seed.
        settings: How to measure; the defaults, or those of the measurement that is there.
        cache: Cache of data sets and fitted models; the user's own by default.
        progress: Whom to tell.
        warn: Called with a sentence when something is amiss but mended.
        is_fresh: Measure anew even if the folder has the measurement already.

    Returns:
        The measurement as plain JSON values.
    """
    folder = find_finished_run(folder)
    manifest = read_run(folder)
    actor = load_policy(find_policy(folder)).actor
    if not isinstance(actor, DialActor):
        raise no_dial_in(folder, manifest)
    known = None if is_fresh else _read(folder, manifest, settings)
    if known is not None:
        return TunedRun(folder, known, actor.position, is_known=True)
    settings = settings or TuneSettings()
    dataset = find_log(folder, manifest, cache, progress)
    task = task_of(dataset.provenance)
    partition = divide(dataset, manifest, settings)
    fits = SharedFits(cache or cache_folder(), warn)
    witnesses = tuple(_fit_witnesses(partition, task, settings, fits, progress))
    with progress.stage("positions", settings.selection.positions) as stage:
        measured = measure_dial(
            actor,
            witnesses,
            task,
            settings.selection,
            jax.random.fold_in(key_of(settings.seed), 4),
            observe=lambda done: stage.advance(1, {}),
        )
    choice = choose_position(measured, settings.selection)
    content = {
        "format": FORMAT,
        "schema_version": SCHEMA_VERSION,
        "digest": digest(manifest.digest, settings),
        **describe(measured, choice, partition, task, settings),
    }
    with atomic_file(folder / TUNING) as temporary:
        write_json(temporary, content)
    return TunedRun(folder, content, actor.position, is_known=False)


def _fit_witnesses(
    partition: Partition,
    task: Task,
    settings: TuneSettings,
    fits: SharedFits,
    progress: Progress,
) -> Iterator[DialWitness]:
    """Models of both kinds for each group of episodes."""
    task.require(partition.dataset)
    for number, (fitted, held_out) in enumerate(partition.pairs):
        part = partition.dataset.select_episodes(fitted)
        rest = partition.dataset.select_episodes(held_out)
        keys = jax.random.split(jax.random.fold_in(key_of(settings.seed), 20 + number))
        for dynamics, key in zip((settings.stacked, settings.recurrent), keys, strict=True):
            told = Numbered(progress, f"group {number + 1}, {dynamics.kind}")
            ensemble = fit_models(part, task, dynamics, key, fits, told)
            yield DialWitness(ensemble, part, rest)


def describe(
    measured: DialMeasurement,
    choice: Choice,
    partition: Partition,
    task: Task,
    settings: TuneSettings,
) -> dict[str, Any]:
    """What was measured as plain JSON values: the content of :data:`TUNING`, but for its head."""
    witnesses, models, starts = measured.courses[0].returns.shape

    def told(course: Course) -> dict[str, Any]:
        by_model = course.by_model
        return {
            "return": rounded(by_model.mean()),
            "low": rounded(by_model.min()),
            "high": rounded(by_model.max()),
            "lower_bound": rounded(lower_bound(course, measured, settings.selection)),
            "strayed": rounded(course.strayed),
            "apart": rounded(course.apart),
            "new": rounded(course.new),
            "novelty": dict(
                zip(
                    map(str, NOVELTY_QUANTILES),
                    rounded(np.quantile(course.novelty, NOVELTY_QUANTILES)),
                    strict=True,
                )
            ),
            "from_behaviour": rounded(course.from_behaviour),
            "at_bounds": dict(zip(task.action_names, rounded(course.at_bounds), strict=True)),
            **curves_of(course.bundle, task),
        }

    logged = measured.logged_returns
    return {
        "advice": {
            "choice": "hold" if choice.position is None else "dial",
            "position": None if choice.position is None else rounded(choice.position),
            "return": rounded(choice.course.returns.mean()),
            "lower_bound": rounded(choice.lower_bound),
            "gains": {
                name: {
                    "mean": rounded(gain.mean),
                    "low": rounded(gain.interval.low),
                    "high": rounded(gain.interval.high),
                }
                for name, gain in choice.gains.items()
            },
        },
        "reasons": [{"kind": reason.kind, "text": reason.text} for reason in choice.reasons],
        "protocol": {
            "steps": measured.horizon,
            "discount": measured.discount,
            "starts": measured.starts,
            "start_states": starts * len(partition.pairs),
            "groups": len(partition.pairs),
            "models": witnesses * models,
            "manner": partition.manner,
            "changed": changed_settings(settings),
        },
        "positions": rounded(measured.positions),
        "dial": [
            {"position": rounded(position), "score": rounded(value), **told(course)}
            for position, value, course in zip(
                measured.positions, choice.scores, measured.courses, strict=True
            )
        ],
        "hold": None if measured.hold is None else told(measured.hold),
        "logged": {
            "return": rounded(logged.mean()),
            "best": rounded(logged.max()),
            "worst": rounded(logged.min()),
            **curves_of(measured.logged, task),
        },
        "models": {
            "explained": rounded(measured.explained),
            "bias": rounded(measured.bias),
            "over_promise": rounded(measured.over_promise),
        },
        "settings": settings_tree(settings),
    }


def changed_settings(settings: TuneSettings) -> list[str]:
    """Those that are not the defaults, as ``a.b=c``."""

    def differences(tree: Mapping[str, Any], usual: Mapping[str, Any], path: str) -> Iterator[str]:
        for name, value in tree.items():
            if isinstance(value, Mapping):
                yield from differences(value, usual.get(name) or {}, f"{path}{name}.")
            elif name not in usual or usual[name] != value:
                yield f"{path}{name}={json.dumps(value)}"

    return [*differences(settings_tree(settings), settings_tree(TuneSettings()), "")]


def _read(folder: Path, manifest: Manifest, settings: TuneSettings | None) -> dict[str, Any] | None:
    """A measurement of this run made before, with these settings if there are any."""
    try:
        content = read_tuning(folder)
    except UserError:  # damaged, or of another version
        return None
    if content is None or not is_of_run(content, TuneSettings, manifest, settings):
        return None
    return content


def render(content: Mapping[str, Any]) -> RenderableType:
    """A measurement as a page of text.

    Args:
        content: What :data:`TUNING` holds.

    Returns:
        Something to print on a rich console.
    """
    protocol, advice = content["protocol"], content["advice"]
    table = Table(box=None, header_style="bold")
    table.add_column("dial")
    for column in ("imagined return", "in the models", "lower bound", "new to the log"):
        table.add_column(column, justify="right")
    shown = [*_shown(content["dial"], advice["position"])]
    rows = [(f"{row['position']:.2f}", row) for row in shown]
    if content["hold"] is not None:
        rows.append((HOLD, content["hold"]))
    for name, row in rows:
        is_advised = name == (HOLD if advice["position"] is None else f"{advice['position']:.2f}")
        table.add_row(
            f"{name} *" if is_advised else name,
            f"{row['return']:.2f}",
            f"{row['low']:.2f} to {row['high']:.2f}",
            f"{row['lower_bound']:.2f}",
            f"{100 * row['new']:.0f} %",
        )
    marks = {"for": "+", "against": "−", "caution": "!"}
    return Group(
        Text(advised(content)),
        Text(),
        *(Text(f"{marks[reason['kind']]} {reason['text']}") for reason in content["reasons"]),
        Text(),
        table,
        Text(),
        Text(
            f"Return of {protocol['steps']} steps, discount {protocol['discount']:g}, from "
            f"{protocol['start_states']} states in {protocol['models']} models the policy was not "
            f"trained on. The log itself has earned {content['logged']['return']:.2f} from there."
        ),
    )


def advised(content: Mapping[str, Any]) -> str:
    """The advice as a line."""
    advice = content["advice"]
    worth = f"imagined return {advice['return']:.2f}, lower bound {advice['lower_bound']:.2f}"
    if advice["position"] is None:
        return f"advice: hold, that is, never change anything ({worth})"
    return f"advice: dial at {advice['position']:.2f} ({worth})"


def next_steps(tuned: TunedRun) -> Iterator[str]:
    """What to do with a measurement, in lines."""
    protocol, position = tuned.content["protocol"], tuned.content["advice"]["position"]
    if tuned.is_known:
        changed = ", ".join(protocol.get("changed", []))
        yield (
            f"measured before with {changed}; with the defaults: moose tune {tuned.folder} --fresh"
            if changed
            else f"measured before; to measure anew: moose tune {tuned.folder} --fresh"
        )
    if position is None:
        yield f"to look at the dial all the same: moose tune {tuned.folder} --serve"
    elif position == rounded(tuned.position):
        yield f"the run's policy stands there: moose serve {tuned.folder}"
    else:
        yield (
            f"the run's policy stands at {tuned.position:g}; to use the advice: "
            f"moose export {tuned.folder} --position {position:g} --out x.moose"
        )


def _shown(rows: Sequence[Mapping[str, Any]], advised: float | None) -> Iterator[Mapping[str, Any]]:
    """Rows of positions a tenth apart, and the advised one."""
    for row in rows:
        tenths = row["position"] / _SHOWN
        if abs(tenths - round(tenths)) < 1e-6 or row["position"] == advised:
            yield row
