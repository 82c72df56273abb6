"""A guard around a policy in operation: it mends inputs, enforces limits, knows when to let go.

Every step goes through the same states, in this order:

1. *Sensors.* A value that is missing or not finite is replaced by the last valid one for at most
   ``patience`` steps; after that, or where there never was one, the sensor is lost.
2. *Who acts.* The policy; the fallback while a sensor is lost or the policy's answer is not a
   number; and, where a limit is set, the fallback (or a blend with it) while what the policy wants
   is too unlike the data. A switch goes back only after ``calm_steps`` steps below a lower limit.
3. *Limits.* Whoever acted, the action is brought within the bounds and no further from the last one
   than the rates allow.

Every intervention is counted and told with its reason. The same inputs give the same outputs.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import compress
from typing import Annotated, Literal

import numpy as np
import numpy.typing as npt
from pydantic import Field

from moose.config import Settings
from moose.errors import ConfigError, DataError
from moose.policies.facts import Floats, TaskFacts
from moose.policies.plain import Controller

Reason = Literal[
    "sensor-held", "sensor-lost", "novelty", "policy-failed", "fallback-failed", "bounds", "rate"
]
REASONS: tuple[Reason, ...] = (
    *("sensor-held", "sensor-lost", "novelty", "policy-failed", "fallback-failed"),
    *("bounds", "rate"),
)
Source = Literal["policy", "blend", "fallback"]
Fallback = Callable[[Floats], npt.ArrayLike]
"""``fallback(window [F, n]) -> action [d]``: a user's controller, a clone, or any other policy."""

_KEPT = 1000  # interventions that are remembered one by one
_LONGEST_DETAIL = 500  # characters: a fallback's error may say anything


class GuardSettings(Settings):
    """How a guard watches a policy."""

    patience: int = Field(default=3, ge=0)
    """Steps for which a missing sensor is replaced by its last valid value."""
    novelty_limit: Annotated[float, Field(gt=0)] | None = None
    """Novelty above which the policy is not trusted; null: it is not watched. 1 is the data's."""
    novelty_release: Annotated[float, Field(ge=0)] | None = None
    """Novelty below which it is trusted again; null: 0.8 times the limit."""
    calm_steps: int = Field(default=5, ge=1)
    """Steps in a row below the release before the policy acts again."""
    response: Literal["switch", "blend"] = "switch"
    """To novelty: let the fallback act, or mix it in, all of it at the limit."""
    action_rates: tuple[Annotated[float, Field(gt=0)], ...] | None = None
    """Largest change of each action from one step to the next; null: the task's, if it has any."""


@dataclass(frozen=True)
class Intervention:
    """One thing that the guard did, and why."""

    step: int
    reason: Reason
    detail: str


@dataclass(frozen=True)
class Decision:
    """What is to be done in a step, and how it came about.

    Attributes:
        step: Number of the step, from 0, since the guard was made.
        action: ``[d]`` float64: finite, within bounds and rates.
        source: Who chose it, before the limits.
        proposed: ``[d]``: what the policy wanted; None while it was not asked.
        novelty: Of what the policy wanted; None where it was not measured.
        interventions: What the guard did.
    """

    step: int
    action: npt.NDArray[np.float64]
    source: Source
    proposed: npt.NDArray[np.float64] | None
    novelty: float | None
    interventions: tuple[Intervention, ...]


class Guard:
    """Wraps one policy for one plant.

    Args:
        policy: The policy; several guards may share it.
        settings: How to watch it.
        fallback: Who acts when the policy may not. By default the task's action that changes
            nothing, or where there is none the last action once more.
        report: Called with every intervention.
    """

    def __init__(
        self,
        policy: Controller,
        settings: GuardSettings | None = None,
        *,
        fallback: Fallback | None = None,
        report: Callable[[Intervention], None] = lambda intervention: None,
    ) -> None:
        self.policy = policy
        self.settings = settings or GuardSettings()
        self.counts: Counter[Reason] = Counter()
        """How often each reason applied, over all steps and episodes."""
        self.interventions: deque[Intervention] = deque(maxlen=_KEPT)
        """The latest ones."""
        self.steps = 0
        self._fallback = fallback
        self._report = report
        self._low, self._high = (
            np.array(bound, np.float64)
            for bound in (policy.facts.action_low, policy.facts.action_high)
        )
        self._rates = _rates_of(self.settings, policy.facts)
        self._release = _release_of(self.settings, policy)
        self.reset()

    @property
    def is_trusting(self) -> bool:
        """Whether the policy may act, as far as novelty goes."""
        return self._is_trusting

    @property
    def novelty_release(self) -> float | None:
        """The novelty below which the policy is trusted again; None if it is not watched."""
        return self._release

    def reset(self, last_action: npt.ArrayLike | None = None) -> None:
        """Begin a new episode: forget sensors, history and mistrust, but not the counts.

        Args:
            last_action: ``[d]``: what the actuators do now, from which the first action may not
                go further than the rates allow; without it the first action is free.
        """
        facts = self.policy.facts
        self._window: Floats | None = None
        self._valid = np.full(len(facts.observation_names), np.nan, np.float32)
        self._age = np.zeros(len(facts.observation_names), np.int64)
        self._is_trusting, self._calm = True, 0
        self._last: npt.NDArray[np.float64] | None = None
        if last_action is not None:
            last = _action_in(last_action, len(facts.action_names))
            if last is None:
                raise DataError(
                    f"The last action has to be {len(facts.action_names)} finite numbers.",
                    where=f"task '{facts.name}': {', '.join(facts.action_names)}",
                    advice="give what the actuators do now, or nothing",
                )
            self._last = np.clip(last, self._low, self._high)

    def act(self, observation: npt.ArrayLike) -> Decision:
        """Decide on the action for the newest observation.

        Args:
            observation: ``[n]``: one frame in the task's order; None or NaN for what is missing.

        Returns:
            The decision.
        """
        told: list[Intervention] = []

        def tell(reason: Reason, detail: str) -> None:
            told.append(Intervention(self.steps, reason, detail[:_LONGEST_DETAIL]))

        lost = self._sense(observation, tell)
        proposed, novelty = (None, None) if lost else self._propose(tell)
        weight = self._mistrust(proposed, novelty, tell)
        action, source = self._combine(proposed, weight, tell)
        action = self._limited(action, tell)
        decision = Decision(self.steps, action, source, proposed, novelty, tuple(told))
        self._last = action
        self.steps += 1
        for intervention in told:
            self.interventions.append(intervention)
            self._report(intervention)
        if told:
            self.counts.update({intervention.reason for intervention in told})
        return decision

    def _sense(self, observation: npt.ArrayLike, tell: Callable[[Reason, str], None]) -> bool:
        """Repair the frame and put it into the history; whether a sensor is lost."""
        frame = self.policy.frame_in(observation)
        is_missing = ~np.isfinite(frame)
        if not is_missing.any():
            self._age[:] = 0
            self._valid = frame.copy()
            self._window = self.policy.next_window(self._window, frame)
            return False
        self._age = np.where(is_missing, self._age + 1, 0)
        self._valid = np.where(is_missing, self._valid, frame)
        self._window = self.policy.next_window(self._window, self._valid)
        is_lost = is_missing & ((self._age > self.settings.patience) | np.isnan(self._valid))
        names = self.policy.facts.observation_names
        if (is_missing & ~is_lost).any():
            tell("sensor-held", _those(names, is_missing & ~is_lost))
        if is_lost.any():
            tell("sensor-lost", _those(names, is_lost))
        return bool(is_lost.any())

    def _propose(
        self, tell: Callable[[Reason, str], None]
    ) -> tuple[npt.NDArray[np.float64] | None, float | None]:
        """What the policy wants, and how new that is to it."""
        window = self._window
        if window is None:  # there is one: a frame has just been put into it
            return None, None
        proposed = _action_in(self.policy(window), len(self._low))
        if proposed is None:
            tell("policy-failed", "its answer is not a number")
            return None, None
        if self._release is None:
            return proposed, None
        return proposed, float(self.policy.novelty(window, proposed))

    def _mistrust(
        self,
        proposed: npt.NDArray[np.float64] | None,
        novelty: float | None,
        tell: Callable[[Reason, str], None],
    ) -> float:
        """The fallback's share in the action, from 0 to 1."""
        limit, release = self.settings.novelty_limit, self._release
        if proposed is None:
            self._calm = 0
            return 1.0
        if novelty is None or limit is None or release is None:
            return 0.0
        if self.settings.response == "blend":
            weight = min(max((novelty - release) / (limit - release), 0.0), 1.0)
            if weight > 0.0:
                tell("novelty", f"{novelty:.3g}: {weight:.0%} fallback")
            return weight
        self._calm = self._calm + 1 if novelty < release else 0
        if novelty > limit:
            self._is_trusting = False
        elif self._calm >= self.settings.calm_steps:
            self._is_trusting = True
        if not self._is_trusting:
            tell("novelty", f"{novelty:.3g}, limit {limit:g}, calm for {self._calm} steps")
        return 0.0 if self._is_trusting else 1.0

    def _combine(
        self,
        proposed: npt.NDArray[np.float64] | None,
        weight: float,
        tell: Callable[[Reason, str], None],
    ) -> tuple[npt.NDArray[np.float64], Source]:
        if proposed is not None and weight == 0.0:
            return proposed, "policy"
        fallback = self._safe_action(tell)
        if proposed is None or weight == 1.0:
            return fallback, "fallback"
        return (1.0 - weight) * proposed + weight * fallback, "blend"

    def _safe_action(self, tell: Callable[[Reason, str], None]) -> npt.NDArray[np.float64]:
        if self._fallback is not None and self._window is not None:
            try:
                answer = _action_in(self._fallback(self._window.copy()), len(self._low))
                problem = "its answer is not an action"
            except Exception as error:  # a user's controller may do anything
                answer, problem = None, f"{type(error).__name__}: {error}"
            if answer is not None:
                return answer
            tell("fallback-failed", problem)
        hold = self.policy.facts.hold_action
        if hold is not None:
            return np.array(hold, np.float64)
        return (self._low + self._high) / 2 if self._last is None else self._last

    def _limited(
        self, action: npt.NDArray[np.float64], tell: Callable[[Reason, str], None]
    ) -> npt.NDArray[np.float64]:
        names = self.policy.facts.action_names
        bounded = np.minimum(np.maximum(action, self._low), self._high)
        if (bounded != action).any():
            tell("bounds", _those(names, bounded != action))
        if self._rates is None or self._last is None:
            return bounded
        last = self._last
        limited = np.minimum(np.maximum(bounded, last - self._rates), last + self._rates)
        # The sum may be rounded away from the last action: step back until the change is allowed.
        while (is_over := np.abs(limited - last) > self._rates).any():
            limited = np.where(is_over, np.nextafter(limited, last), limited)
        if (limited != bounded).any():
            tell("rate", _those(names, limited != bounded))
        return limited


def _those(names: Iterable[str], is_meant: npt.NDArray[np.bool_]) -> str:
    return ", ".join(compress(names, is_meant))


def _action_in(values: npt.ArrayLike, count: int) -> npt.NDArray[np.float64] | None:
    """The action, or None if it is something else."""
    try:
        action = np.array(values, np.float64)
    except (TypeError, ValueError):
        return None
    return action if action.shape == (count,) and np.isfinite(action).all() else None


def _rates_of(settings: GuardSettings, facts: TaskFacts) -> npt.NDArray[np.float64] | None:
    rates = facts.action_rates if settings.action_rates is None else settings.action_rates
    if rates is None:
        return None
    if len(rates) != len(facts.action_names):
        raise ConfigError(
            f"There are {len(rates)} rates and {len(facts.action_names)} actions.",
            where="action_rates",
            advice=f"give one number for each of: {', '.join(facts.action_names)}",
        )
    return np.array(rates, np.float64)


def _release_of(settings: GuardSettings, policy: Controller) -> float | None:
    if settings.novelty_limit is None:
        return None
    if not policy.has_novelty:
        raise ConfigError(
            "This policy has no support model, so that its novelty cannot be watched.",
            where="novelty_limit",
            advice="use a policy trained by LION or MOOSE, or leave the limit out",
        )
    release = settings.novelty_release
    release = 0.8 * settings.novelty_limit if release is None else release
    if release >= settings.novelty_limit:
        raise ConfigError(
            f"The release ({release:g}) is not below the limit ({settings.novelty_limit:g}).",
            where="novelty_release",
            advice="choose a smaller number, so that the guard does not flicker",
        )
    return release
