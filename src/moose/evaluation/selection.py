"""Where to put the dial of a policy, from the log alone.

The policy is imagined at every position of its dial, in models that were fitted for this purpose:
of two kinds, each on a part of the log, from states of the other part. Beside it stand the two ways
of running the plant that need no policy: as the log did (the dial at 0, a clone) and *hold*, never
changing anything. The better of them in the models is what a position has to beat:

    score(λ) = w min_k G_k(λ) + (1 − w) mean_k G_k(λ) − q B d(λ),      w = η n(λ)

and the position of the highest score is advised, if that is above 0. Where the log has been, models
err each in its own way, and their mean is nearest to the truth; where it has not been, nobody knows
which of them is right, and the most sceptical one is asked.

======  =========  ==================================================================
symbol  name       meaning
======  =========  ==================================================================
G_k     gain       return at λ less that of the better of clone and hold, in model k
n       new        share of imagined situations that are new to the log
η       pessimism  weight of the most sceptical model where all of them are
d       strayed    distance of imagined situations from log and hold, beyond the usual
B       —          size of the return of the better of clone and hold
q       distrust   share of it that is not believed, for a unit of distance
======  =========  ==================================================================

Two things that sound alike are kept apart. *Strayed* is the distance from log and hold, and
decides. *New* counts situations that the log has not been in, hold's among them: there
models may agree and be wrong together, and the lower bound of a return is lowered for it:

    bound(λ) = min_k R_k(λ) − max(o, 0) − q B d_log(λ)

o is what the models promise too much for held-out stretches of the log, in that fifth of them,
ordered by distance, where it is most.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple

import numpy as np
from pydantic import Field

from moose.evaluation.dial import Course, DialMeasurement, DialSettings
from moose.evaluation.offline import (
    CLONE,
    HOLD,
    NEW,
    Gain,
    Numbers,
    measure_gain,
)
from moose.evaluation.verdict import Reason, plain, signed

_MANY, _MOST = 0.1, 0.5
"""Shares of new situations that are worth a caution."""


class SelectionSettings(DialSettings):
    """How the positions of a dial are measured and weighed."""

    pessimism: float = Field(default=1.0, ge=0, le=1)
    """η: weight of the most sceptical model in a score where all situations are new to the log; it
    is less by the share that is known, and the mean of all models has the rest."""
    distrust: float = Field(default=0.1, ge=0)
    """q: share of the return to beat that is not believed, for a unit of distance."""


class Choice(NamedTuple):
    """Where to put the dial, and why.

    Attributes:
        position: λ, or None for never changing anything.
        course: What the models make of it.
        lower_bound: Of its return.
        scores: ``[P]`` of all positions.
        gains: Over clone and hold, where they are not what was chosen.
        reasons: In words.
    """

    position: float | None
    course: Course
    lower_bound: float
    scores: Numbers
    gains: Mapping[str, Gain]
    reasons: tuple[Reason, ...]


def choose_position(measured: DialMeasurement, settings: SelectionSettings) -> Choice:
    """Weigh what was measured.

    Args:
        measured: What :func:`measure_dial` gave.
        settings: The weights.

    Returns:
        The advice.
    """
    rivals, best_rival = measured.rivals, measured.best_rival
    scores = np.array([score(course, measured, settings) for course in measured.courses])
    best = int(scores.argmax())
    position: float | None = 0.0 if best_rival == CLONE else None
    course = rivals[best_rival]
    if scores[best] > 0:
        position, course = float(measured.positions[best]), measured.courses[best]
    gains = {
        name: measure_gain(course.returns - rival.returns, measured.episodes)
        for name, rival in rivals.items()
        if rival is not course
    }
    choice = Choice(
        position, course, lower_bound(course, measured, settings), scores, gains, reasons=()
    )
    return choice._replace(reasons=tuple(_reasons(choice, rivals, best_rival, measured)))


def score(course: Course, measured: DialMeasurement, settings: SelectionSettings) -> float:
    """How much more than the better rival a course earns, as far as that is believed."""
    gains = course.by_model - measured.rivals[measured.best_rival].by_model
    weight = settings.pessimism * course.new
    believed = weight * gains.min() + (1.0 - weight) * gains.mean()
    return float(believed - settings.distrust * measured.stake * course.strayed)


def lower_bound(course: Course, measured: DialMeasurement, settings: SelectionSettings) -> float:
    """What a course may be expected to earn at least."""
    promised = max(0.0, float(measured.over_promise.max()))
    distrusted = settings.distrust * measured.stake * course.apart
    return float(course.by_model.min() - promised - distrusted)


_NAMES = {CLONE: "the cloned behaviour", HOLD: "never changing anything"}


def _reasons(
    choice: Choice, rivals: Mapping[str, Course], best_rival: str, measured: DialMeasurement
) -> Iterator[Reason]:
    """The advice in words."""
    worth = " and ".join(
        f"{_NAMES[name]} {plain(float(rival.returns.mean()))}" for name, rival in rivals.items()
    )
    yield Reason("for", f"The models see {worth}: a position of the dial has to beat that.")
    yield from _about_gains(choice, rivals, best_rival, measured)
    yield from _about_models(choice, measured)


def _about_gains(
    choice: Choice, rivals: Mapping[str, Course], best_rival: str, measured: DialMeasurement
) -> Iterator[Reason]:
    models = choice.course.by_model.size
    if choice.position:
        gain, least = choice.gains[best_rival], choice.course.by_model - rivals[best_rival].by_model
        yield Reason(
            "for",
            f"At {choice.position:.2f} the policy is imagined to earn {signed(gain.mean)} compared "
            f"with {_NAMES[best_rival]} (95 % interval {signed(gain.interval.low)} to "
            f"{signed(gain.interval.high)}; {signed(float(least.min()))} in the most sceptical of "
            f"{models} models).",
        )
        yield _about_distance(choice.course)
    promising = int(np.argmax([course.returns.mean() for course in measured.courses]))
    position, course = measured.positions[promising], measured.courses[promising]
    if choice.scores[promising] < choice.scores.max() or choice.scores.max() <= 0:
        gains = course.by_model - rivals[best_rival].by_model
        told = (
            f"At {position:.2f} the models promise most: {signed(float(gains.mean()))} compared "
            f"with {_NAMES[best_rival]}, {signed(float(gains.min()))} in the most sceptical one"
        )
        if gains.mean() > 0:
            yield Reason(
                "against",
                f"{told}. With {100 * course.new:.0f} % of the situations new to the log, "
                f"{course.strayed:.2g} away from what is known, that is not enough.",
            )
        else:
            yield Reason("against", f"{told}: no gain at all.")
    for name, rival in rivals.items():
        ahead = int(np.sum(rival.by_model > choice.course.by_model))
        if ahead:
            yield Reason("caution", f"{ahead} of {models} models see {_NAMES[name]} ahead of this.")


def _about_distance(course: Course) -> Reason:
    told = (
        f"{100 * course.new:.0f} % of the situations that this leads to are newer than "
        f"{100 * NEW:.0f} % of the log's own"
    )
    if course.new > _MANY:
        return Reason("caution", f"{told}; there models may agree and be wrong together.")
    return Reason("for", f"{told}.")


def _about_models(choice: Choice, measured: DialMeasurement) -> Iterator[Reason]:
    worst = float(measured.over_promise.max())
    yield Reason(
        "caution" if worst > 0 else "for",
        f"Along the log's own actions the models tell {100 * measured.explained:.0f} % of the "
        f"variance of what {measured.stretch_returns.shape[1]:,} held-out stretches have earned, "
        f"and promise {_too_much(measured.bias)} on average ({_too_much(worst)} in that fifth of "
        "them, by distance from the log, where they promise most).",
    )
    logged = float(measured.logged_returns.mean())
    if logged > float(choice.course.returns.mean()):
        yield Reason(
            "caution",
            f"The log itself has earned {plain(logged)} from the same states, more than is "
            "imagined for this.",
        )
    imagined, best = float(choice.course.returns.mean()), float(measured.stretch_returns[1].max())
    if imagined > best:
        yield Reason(
            "caution",
            f"The imagined return, {plain(imagined)}, is above that of each of the log's own "
            f"stretches (best: {plain(best)}).",
        )
    if choice.position is None and choice.course.new > _MOST:
        yield Reason(
            "caution",
            "The log itself has hardly held still: what that earns is the models' guess, and "
            "whether it is safe is for those to say who know the plant.",
        )


def _too_much(promise: float) -> str:
    return f"{plain(abs(promise))} too {'much' if promise > 0 else 'little'}"
