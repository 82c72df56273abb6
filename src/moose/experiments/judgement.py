"""A finished run judged by its log alone: models fitted for the purpose, and what they say.

Works for the policy of any algorithm: dynamics, support and clone are fitted here, on other
episodes and with other seeds than in training, and kept in the cache for the next judgement.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import numpy.typing as npt
from pydantic import Field
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from moose.algorithms import clone
from moose.algorithms.clone import Config as CloneSettings
from moose.config import digest, load_settings, settings_tree
from moose.data.dataset import Dataset
from moose.envs.recipes import cache_folder
from moose.evaluation.offline import (
    CLONE,
    HOLD,
    LOG,
    NEW,
    POLICY,
    Bundle,
    ComparisonSettings,
    OfflineJudgement,
    Situation,
    Witness,
    judge,
)
from moose.evaluation.verdict import Verdict, VerdictSettings, reach_verdict, share_new
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
from moose.experiments.run_folder import (
    Manifest,
    find_finished_run,
    find_policy,
    no_dial_in,
    read_run,
)
from moose.experiments.runner import key_of
from moose.models.actor import AnyActor, act, init_actor, input_scale, kind_of
from moose.models.ensembles import (
    DynamicsSettings,
)
from moose.models.rollout import Policy
from moose.models.support import SupportSettings, fit_support, init_support
from moose.policies.policy import load_policy
from moose.progress import SILENT, Progress
from moose.storage import atomic_file, read_json, write_json
from moose.tasks.registry import task_of
from moose.tasks.task import Task
from moose.training import key_numbers
from moose.types import Key

JUDGEMENT = "judgement.json"
_FORMAT, _SCHEMA_VERSION = "moose-judgement", 1
_DIGITS = 6
_NOVELTY_QUANTILES = (0.05, 0.25, 0.5, 0.75, 0.95, 0.99)


class JudgeSettings(GroupSettings):
    """How a run is judged."""

    position: float | None = Field(default=None, ge=0, le=1)
    """Where to put the dial of a policy that has one; by default where it stands."""
    dynamics: DynamicsSettings = DynamicsSettings(
        members=2, hidden=(64, 64), epochs=15, learning_rate=1e-3
    )
    """The models of each group."""
    support: SupportSettings = SupportSettings(width=128, epochs=8, learning_rate=1e-3)
    """The support model of each group."""
    behaviour: CloneSettings = CloneSettings(hidden=(64, 64), inputs="standardised", updates=2000)
    """The clone of the behaviour."""
    comparison: ComparisonSettings = ComparisonSettings()
    verdict: VerdictSettings = VerdictSettings()


def judge_settings(overrides: Sequence[str] = ()) -> JudgeSettings:
    """The settings with texts ``a.b=c`` put over them; what they do not name stays as it is."""
    return load_settings(JudgeSettings, base=settings_tree(JudgeSettings()), overrides=overrides)


class JudgedRun(NamedTuple):
    """All that a report needs."""

    manifest: Manifest
    dataset: Dataset
    task: Task
    content: dict[str, Any]
    """What :data:`JUDGEMENT` holds."""


def judge_run(
    folder: Path,
    settings: JudgeSettings | None = None,
    *,
    cache: Path | None = None,
    progress: Progress = SILENT,
    warn: Warn = lambda text: None,
    is_fresh: bool = True,
) -> JudgedRun:
    """Judge the policy of a finished run and leave the judgement in its folder.

    Args:
        folder: The folder of a run with one seed.
        settings: How to judge; the defaults, or those of the judgement that is there.
        cache: Cache of data sets and fitted models; the user's own by default.
        progress: Whom to tell.
        warn: Called with a sentence when something is amiss but mended.
        is_fresh: Judge anew even if the folder has the judgement already.

    Returns:
        The run, its data and the judgement as plain JSON values.
    """
    folder = find_finished_run(folder)
    manifest = read_run(folder)
    dataset = find_log(folder, manifest, cache, progress)
    task = task_of(dataset.provenance)
    known = None if is_fresh else _read(folder / JUDGEMENT, manifest, settings)
    if known is not None:
        return JudgedRun(manifest, dataset, task, known)
    settings = settings or JudgeSettings()
    policy = load_policy(find_policy(folder))
    if settings.position is not None:
        if policy.position is None:
            raise no_dial_in(folder, manifest)
        policy = policy.at(settings.position)
    fits = SharedFits(cache or cache_folder(), warn)
    partition = divide(dataset, manifest, settings)
    witnesses = fit_witnesses(partition, task, settings, fits, progress)
    rivals = {CLONE: fit_clone(dataset, task, settings, fits, progress)}
    if task.hold_action is not None:
        rivals[HOLD] = hold_policy(task.hold_action)
    with progress.stage("imagining", 1) as stage:
        judgement = judge(
            as_function(policy.actor, task, key_of(settings.seed)),
            rivals,
            witnesses,
            task,
            settings.support,
            settings.comparison,
            jax.random.fold_in(key_of(settings.seed), 3),
        )
        stage.advance(1, {f"gain over {CLONE}": judgement.gains[CLONE].mean})
    verdict = reach_verdict(judgement, task, settings.verdict)
    content = describe(judgement, verdict, partition, task, settings, policy.position)
    name = digest(manifest.digest, settings)
    content = {"format": _FORMAT, "schema_version": _SCHEMA_VERSION, "digest": name} | content
    with atomic_file(folder / JUDGEMENT) as temporary:
        write_json(temporary, content)
    return JudgedRun(manifest, dataset, task, content)


def fit_witnesses(
    partition: Partition,
    task: Task,
    settings: JudgeSettings,
    fits: SharedFits,
    progress: Progress = SILENT,
) -> tuple[Witness, ...]:
    """Fit the models of the judgement, or find them in the cache."""
    task.require(partition.dataset)

    def fit(number: int) -> Witness:
        fitted, held_out = partition.pairs[number]
        part = partition.dataset.select_episodes(fitted)
        told = Numbered(progress, f"group {number + 1}")
        models_key, support_key = jax.random.split(
            jax.random.fold_in(key_of(settings.seed), 10 + number)
        )
        ensemble = fit_models(part, task, settings.dynamics, models_key, fits, told)
        support = fits.once(
            "support",
            digest(part.fingerprint, task.facts, settings.support, key_numbers(support_key)),
            init_support(part, task, settings.support, support_key),
            lambda: fit_support(part, task, settings.support, support_key, progress=told),
        )
        return Witness(ensemble, support, partition.dataset.select_episodes(held_out))

    return tuple(fit(number) for number in range(len(partition.pairs)))


def fit_clone(
    dataset: Dataset,
    task: Task,
    settings: JudgeSettings,
    fits: SharedFits,
    progress: Progress = SILENT,
) -> Policy:
    """Fit the clone of the behaviour, or find it in the cache."""
    config = settings.behaviour
    key = jax.random.fold_in(key_of(settings.seed), 2)
    scale = input_scale(dataset, config.inputs)
    fitted = fits.once(
        "clone",
        digest(
            dataset.fingerprint,
            task.facts,
            [task.action_low, task.action_high],
            config,
            key_numbers(key),
        ),
        clone.Fitted(init_actor(task, scale, config.hidden, key)),
        lambda: clone.fit(dataset, task, config, key, progress=Numbered(progress, "clone")),
    )
    return as_function(fitted.actor, task, key)


def as_function(actor: AnyActor, task: Task, key: Key) -> Policy:
    """A policy as a function of its window alone.

    One that draws samples gets a key made from what it sees: other samples in other situations,
    the same ones in the same.
    """
    if not kind_of(actor).is_stochastic:
        return lambda window: act(actor, task, window, key)

    def choose(window: jax.Array) -> jax.Array:
        seen = jax.lax.bitcast_convert_type(jnp.sum(window, dtype=jnp.float32), jnp.uint32)
        return act(actor, task, window, jax.random.fold_in(key, seen))

    return choose


def hold_policy(hold_action: Sequence[float]) -> Policy:
    """Never changing anything."""
    return lambda window: jnp.asarray(hold_action, window.dtype)


def describe(
    judgement: OfflineJudgement,
    verdict: Verdict,
    partition: Partition,
    task: Task,
    settings: JudgeSettings,
    position: float | None = None,
) -> dict[str, Any]:
    """A judgement as plain JSON values.

    Args:
        judgement: What was measured.
        verdict: What to think of it.
        partition: Which episodes were used for what.
        task: The names.
        settings: How it was judged.
        position: Where the policy's dial stood, if it has one.

    Returns:
        The content of :data:`JUDGEMENT`.
    """
    errors = judgement.errors
    witnesses, models, starts = judgement.performances[POLICY].returns.shape
    return {
        "verdict": verdict.name,
        "position": position,
        "reasons": [{"kind": reason.kind, "text": reason.text} for reason in verdict.reasons],
        "protocol": {
            "steps": judgement.horizon,
            "discount": judgement.discount,
            "starts": settings.comparison.starts,
            "start_states": witnesses * starts,
            "groups": witnesses,
            "models": witnesses * models,
            "manner": partition.manner,
        },
        "controllers": {
            name: {
                "return": rounded(one.returns.mean()),
                "return_by_group": rounded(one.returns.mean(axis=(1, 2))),
                "new": rounded(share_new(judgement, name)),
                "novelty": dict(
                    zip(
                        map(str, _NOVELTY_QUANTILES),
                        rounded(np.quantile(one.novelty, _NOVELTY_QUANTILES)),
                        strict=True,
                    )
                ),
                "new_by_step": rounded((one.novelty > NEW).mean(axis=(1, 2, 3))),
                "at_bounds": dict(zip(task.action_names, rounded(one.at_bounds), strict=True)),
                **curves_of(one.bundle, task),
            }
            for name, one in judgement.performances.items()
        },
        "gains": {
            name: {
                "mean": rounded(gain.mean),
                "low": rounded(gain.interval.low),
                "high": rounded(gain.interval.high),
            }
            for name, gain in judgement.gains.items()
        },
        "logged": {
            "return": rounded(judgement.stretch_returns[1].mean()),
            "best": rounded(judgement.stretch_returns[1].max()),
            "worst": rounded(judgement.stretch_returns[1].min()),
            "at_bounds": dict(
                zip(task.action_names, rounded(judgement.logged_at_bounds), strict=True)
            ),
            **curves_of(judgement.logged, task),
        },
        "ended": rounded(judgement.ended),
        "models": {
            "explained": rounded(judgement.explained),
            "bias": rounded(judgement.bias),
            "unit": "deviations of the signal",
            "error": _by_signal(errors.by_step, task.predicted_names),
            "band_low": _by_signal(errors.band[0], task.predicted_names),
            "band_high": _by_signal(errors.band[1], task.predicted_names),
            "no_change": _by_signal(errors.baseline, task.predicted_names),
            "stretches": {
                "imagined": rounded(judgement.stretch_returns[0]),
                "logged": rounded(judgement.stretch_returns[1]),
            },
        },
        "situations": [_situation(one, task) for one in judgement.situations],
        "settings": settings_tree(settings),
    }


def render(content: Mapping[str, Any]) -> RenderableType:
    """A judgement as a page of text.

    Args:
        content: What :func:`describe` gave.

    Returns:
        Something to print on a rich console.
    """
    protocol = content["protocol"]
    table = Table(box=None, header_style="bold")
    table.add_column("imagined")
    for column in ("return", "policy's gain", "95 % interval", "new to the log"):
        table.add_column(column, justify="right")
    for name in (POLICY, CLONE, HOLD, LOG):
        if name not in content["controllers"]:
            continue
        row, gain = content["controllers"][name], content["gains"].get(name)
        table.add_row(
            LABELS[name],
            f"{row['return']:.2f}",
            "" if gain is None else f"{gain['mean']:+.2f}",
            "" if gain is None else f"{gain['low']:+.2f} to {gain['high']:+.2f}",
            f"{100 * row['new']:.1f} %",
        )
    marks = {"for": "+", "against": "−", "caution": "!"}
    return Group(
        Text(f"verdict: {content['verdict']}"),
        *(Text(text) for text in told_of_the_dial(content)),
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


def told_of_the_dial(content: Mapping[str, Any]) -> list[str]:
    """Where the dial stood in a judgement, and which way to turn it; nothing without a dial."""
    position = content.get("position")
    if position is None:
        return []
    advice = ""
    if content["verdict"] == "too far from data" and position > 0:
        advice = f"; nearer to the log: --position {0.75 * position:.2g}"
    return [f"dial: {position:g}{advice}"]


LABELS = {
    POLICY: "policy",
    CLONE: "cloned behaviour",
    HOLD: "hold",
    LOG: "logged actions",
}
"""What people call the controllers."""


def _read(path: Path, manifest: Manifest, settings: JudgeSettings | None) -> dict[str, Any] | None:
    """A judgement of this run made before, with these settings if there are any."""
    if not path.is_file():
        return None
    content = read_json(path)
    if not isinstance(content, dict) or content.get("format") != _FORMAT:
        return None
    return content if is_of_run(content, JudgeSettings, manifest, settings) else None


def curves_of(bundle: Bundle, task: Task) -> dict[str, Any]:
    """For each signal and action the low, middle and high curve."""
    return {
        "signals": {
            name: rounded(bundle.frames[:, :, i]) for i, name in enumerate(task.observation_names)
        },
        "actions": {
            name: rounded(bundle.actions[:, :, i]) for i, name in enumerate(task.action_names)
        },
    }


def _situation(situation: Situation, task: Task) -> dict[str, Any]:
    return {
        "step": situation.step,
        "novelty": rounded(situation.novelty),
        "excess": rounded(situation.excess),
        "signals": dict(zip(task.observation_names, rounded(situation.frame), strict=True)),
        "actions": dict(zip(task.action_names, rounded(situation.action), strict=True)),
    }


def _by_signal(values: npt.NDArray[np.floating], names: Sequence[str]) -> dict[str, Any]:
    return {name: rounded(values[:, i]) for i, name in enumerate(names)}


def rounded(values: Any) -> Any:
    """Plain numbers of as many digits as mean anything."""
    if np.ndim(values) == 0:
        return float(f"{float(values):.{_DIGITS}g}")
    return [rounded(value) for value in values]
