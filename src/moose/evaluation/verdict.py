"""From measurements to a verdict, with its reasons in sentences.

The verdict is the first of these that applies; every reason that was found is told all the same.

=====================  =============================================================
models too weak        the models cannot tell what stretches of the log have earned
too far from data      imagined situations are too often new to the log
nothing gained         a gain over the behaviour is not certain
deploy candidate       none of these: worth a guarded trial, not a proof
=====================  =============================================================
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal, NamedTuple

import numpy as np
from pydantic import Field

from moose.config import Settings
from moose.evaluation.offline import CLONE, HOLD, LOG, NEW, POLICY, OfflineJudgement
from moose.tasks.task import Task

Name = Literal["deploy candidate", "too far from data", "models too weak", "nothing gained"]
Kind = Literal["for", "against", "caution"]

VERDICTS: tuple[Name, ...] = (
    "models too weak",
    "too far from data",
    "nothing gained",
    "deploy candidate",
)


class VerdictSettings(Settings):
    """Where good enough ends."""

    least_explained: float = Field(default=0.2, le=1)
    """Models must tell at least this share of the variance of what stretches of the log earned."""
    most_new: float = Field(default=0.1, ge=0, le=1)
    """At most this share of the imagined situations may be newer than 99 % of the log's own."""
    least_gain: float = Field(default=0.0, ge=0)
    """The lower bound of the gain over the behaviour must be above this."""
    most_at_bounds: float = Field(default=0.5, ge=0, le=1)
    """An action at its bounds for a larger share of the steps than this is a caution."""


class Reason(NamedTuple):
    """One sentence, and which way it points."""

    kind: Kind
    text: str


class Verdict(NamedTuple):
    """What to think of a policy, and why."""

    name: Name
    reasons: tuple[Reason, ...]


def reach_verdict(judgement: OfflineJudgement, task: Task, settings: VerdictSettings) -> Verdict:
    """Weigh the measurements.

    Args:
        judgement: What was measured.
        task: The names of actions and signals.
        settings: The thresholds.

    Returns:
        The verdict and its reasons.
    """
    found = {
        "models too weak": tuple(_about_models(judgement, task, settings)),
        "too far from data": tuple(_about_distance(judgement, settings)),
        "nothing gained": tuple(_about_gain(judgement, settings)),
    }
    cautions = tuple(_cautions(judgement, task, settings))
    name = next(
        (
            verdict
            for verdict in VERDICTS
            if any(reason.kind == "against" for reason in found.get(verdict, ()))
        ),
        VERDICTS[-1],
    )
    told = [reason for reasons in found.values() for reason in reasons]
    order: dict[Kind, int] = {"against": 0, "for": 1, "caution": 2}
    return Verdict(name, tuple(sorted([*told, *cautions], key=lambda reason: order[reason.kind])))


def _about_models(
    judgement: OfflineJudgement, task: Task, settings: VerdictSettings
) -> Iterator[Reason]:
    explained, least = judgement.explained, settings.least_explained
    stretches = judgement.stretch_returns.shape[1]
    told_share = f"{100 * explained:.0f} %" if explained > 0 else "nothing"
    told = (
        f"Along the log's own actions the models tell {told_share} of the variance of "
        f"what {stretches:,} held-out stretches of {judgement.horizon} steps have earned"
    )
    if explained < least:
        yield Reason("against", f"{told}; at least {100 * least:.0f} % are asked for.")
    else:
        yield Reason("for", f"{told} (asked for: {100 * least:.0f} %).")
    last, still = judgement.errors.by_step[-1], judgement.errors.baseline[-1]
    worse = [
        name
        for name, error, rest in zip(task.predicted_names, last, still, strict=True)
        if error >= min(rest, 1.0)
    ]
    if worse:
        yield Reason(
            "caution",
            f"After {judgement.horizon} steps the models know no more of {', '.join(worse)} than "
            "its mean or its last value.",
        )
    if abs(judgement.bias) > max(abs(judgement.gains[CLONE].mean), 1e-12):
        yield Reason(
            "caution",
            f"On held-out stretches the models are off by {signed(judgement.bias)} on average, "
            "more than the gain itself; only the comparison with rivals in the same models counts.",
        )


def _about_distance(judgement: OfflineJudgement, settings: VerdictSettings) -> Iterator[Reason]:
    share = share_new(judgement, POLICY)
    told = (
        f"{100 * share:.1f} % of the situations the policy is imagined to meet are newer than "
        f"{100 * NEW:.0f} % of the log's own"
    )
    if share > settings.most_new:
        yield Reason(
            "against",
            f"{told}; at most {100 * settings.most_new:.0f} % are allowed. There the models may "
            "agree and be wrong together, so that no imagined return counts.",
        )
    else:
        yield Reason("for", f"{told} (allowed: {100 * settings.most_new:.0f} %).")


def _about_gain(judgement: OfflineJudgement, settings: VerdictSettings) -> Iterator[Reason]:
    names = {CLONE: "the cloned behaviour", LOG: "the logged actions themselves"}
    for rival, name in names.items():
        gain = judgement.gains[rival]
        told = (
            f"Compared with {name} the policy is imagined to earn {signed(gain.mean)} "
            f"(95 % interval {signed(gain.interval.low)} to {signed(gain.interval.high)})"
        )
        if gain.interval.low > settings.least_gain:
            yield Reason("for", f"{told}.")
        else:
            what = "that is no gain" if gain.interval.high <= 0 else "a gain is not certain"
            yield Reason("against", f"{told}: {what}.")


def _cautions(
    judgement: OfflineJudgement, task: Task, settings: VerdictSettings
) -> Iterator[Reason]:
    imagined = float(judgement.performances[POLICY].returns.mean())
    best = float(judgement.stretch_returns[1].max())
    if imagined > best:
        yield Reason(
            "caution",
            f"The mean imagined return, {plain(imagined)}, is above that of each of the log's own "
            f"stretches (best: {plain(best)}). Too good to be true is often not true.",
        )
    if HOLD in judgement.gains and judgement.gains[HOLD].interval.low <= 0:
        gain, share = judgement.gains[HOLD], share_new(judgement, HOLD)
        yield Reason(
            "caution",
            f"A gain over never changing anything is not certain: {signed(gain.mean)} (95 % "
            f"interval {signed(gain.interval.low)} to {signed(gain.interval.high)}); "
            f"{100 * share:.1f} % of the situations that this leads to are new to the log.",
        )
    if judgement.ended:
        yield Reason(
            "caution",
            f"The plant itself has ended {100 * judgement.ended:.0f} % of the held-out episodes. "
            f"Models know nothing of such ends, and only stretches of {judgement.horizon} steps "
            "without one were compared.",
        )
    at_bounds = judgement.performances[POLICY].at_bounds
    for name, share, logged in zip(
        task.action_names, at_bounds, judgement.logged_at_bounds, strict=True
    ):
        if share > settings.most_at_bounds:
            yield Reason(
                "caution",
                f"The action {name} is at its bounds in {100 * share:.0f} % of the steps (in the "
                f"log: {100 * logged:.0f} %).",
            )


def share_new(judgement: OfflineJudgement, controller: str) -> float:
    """Share of a controller's imagined situations that are new to the log."""
    return float(np.mean(judgement.performances[controller].novelty > NEW))


def signed(value: float) -> str:
    """A number with its sign, as people write it."""
    return f"{value:+.3g}".replace("-", "−")


def plain(value: float) -> str:
    """A number as people write it."""
    return f"{value:.4g}".replace("-", "−")
