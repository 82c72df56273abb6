"""A task from a file: what an engineer knows about a plant, written down in ``plant.yaml``.

    name: boiler
    time: timestamp
    interval: 60
    observations:
      temperature: {unit: °C}
      pressure: {column: PI-101.PV, unit: bar, low: 0}
    actions:
      valve: {low: 0, high: 100, unit: "%", rate: 5}
    hold: last
    reward:
      formula: -abs(temperature - 80) - 0.1 * abs(d_valve)
    history: 5
    horizon: 60
    discount: 0.97

**Holding.** With ``hold: zero`` the logged actions are increments and 0 changes nothing. With
``hold: last`` they are set-points that stay in force until they are changed. The task is then
written in changes, as controllers are: the action ``d_valve`` is the change of ``valve``, at most
``rate`` in a step, and ``valve``, the set-point in force before the step, is a signal of the frame
whose next value ``clip(valve + d_valve, low, high)`` is known. So rate limits hold by construction,
and holding is the action 0 again. Without ``hold`` the actions are taken as they are, and there is
no action that changes nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, Self

import jax
import jax.numpy as jnp
import numpy as np
from pydantic import Field, model_validator

from moose.config import Settings, build_settings, parse_yaml, read_yaml, to_yaml
from moose.data.episodes import REWARD
from moose.data.schema import (
    CheckSettings,
    Column,
    Columns,
    Fixes,
    Numbers,
    RewardOfStep,
    Schema,
    TextSettings,
    change_name,
)
from moose.errors import ConfigError, nearest
from moose.tasks.formula import Formula, parse_formula
from moose.tasks.formula_tree import Signal
from moose.tasks.task import Physics, Reward, Task


class SignalSettings(Settings):
    """One observed signal."""

    column: str | None = None
    """Its header in the table; by default its name."""
    unit: str = ""
    """Its unit, for people."""
    low: float | None = None
    """The least value that is physically possible."""
    high: float | None = None
    """The greatest value that is physically possible."""


class ActionSettings(Settings):
    """One action."""

    column: str | None = None
    """Its header in the table; by default its name."""
    unit: str = ""
    """Its unit, for people."""
    low: float
    """The least value a controller may choose."""
    high: float
    """The greatest value a controller may choose."""
    rate: float | None = Field(default=None, gt=0)
    """The largest change in one step; of set-points only (``hold: last``)."""


class RewardSettings(Settings):
    """What is to be made large: a column, or a formula."""

    column: str | None = None
    """The reward of each row's action, as logged; models then have to learn it."""
    formula: str | None = None
    """A formula of the observations after the step and the actions."""


class TaskFile(Settings):
    """All that a task file says."""

    name: str = Field(min_length=1, max_length=100)
    """What to call the plant."""
    observations: dict[str, SignalSettings | None] = Field(min_length=1)
    """The signals of a frame, by name."""
    actions: dict[str, ActionSettings] = Field(min_length=1)
    """What a controller decides, by name."""
    reward: RewardSettings
    """What is to be made large."""
    time: str | None = None
    """The header of the time."""
    interval: float | None = Field(default=None, gt=0)
    """The sampling interval in seconds."""
    episode: str | None = None
    """The header of the column that tells episodes (batches, shifts, runs) apart."""
    hold: Literal["zero", "last"] | None = None
    """What changes nothing: the action 0, or the last set-point; see above."""
    history: int = Field(default=1, ge=1, le=1000)
    """Frames in the state that models and policies see, newest first."""
    target: Literal["direct", "delta"] = "direct"
    """What models learn: the next value of a signal, or its change."""
    physics: dict[str, str] = Field(default_factory=dict)
    """Known next values of signals, as formulas of the frame before the step and the actions."""
    horizon: int = Field(default=100, ge=1, le=100_000)
    """Steps of an imagined trajectory."""
    discount: float = Field(default=0.97, gt=0, le=1)
    """Discount factor γ of the return, for each step."""
    csv: TextSettings = TextSettings()
    """How CSV files are written."""
    checks: CheckSettings = CheckSettings()
    """What is worth a finding."""
    fixes: Fixes = Fixes()
    """What to do about findings."""

    @model_validator(mode="after")
    def _is_consistent(self) -> Self:
        problems = [*self._name_problems(), *self._range_problems(), *self._rule_problems()]
        if problems:
            raise ValueError("; ".join(problems))
        return self

    def _name_problems(self) -> list[str]:
        names = [*self.observations, *self.actions]
        changes = [change_name(name) for name in self.actions] if self.hold == "last" else []
        problems = [f"'{name}' cannot be a name" for name in names if not _is_name(name)]
        problems += [
            f"'{name}' is both an observation and an action; a logged set-point belongs to the "
            "actions, with hold: last"
            for name in self.observations
            if name in self.actions
        ]
        problems += [
            f"'{name}' stands for the change of a set-point and cannot be another signal's name"
            for name in changes
            if name in names
        ]
        problems += [f"'{REWARD}' is the reward's own name" for name in names if name == REWARD]
        sources = [
            source
            for part in (self.observations, self.actions)
            for name, settings in part.items()
            for source in [settings.column if settings and settings.column else name]
        ]
        sources += [source for source in (self.time, self.episode) if source is not None]
        problems += [
            f"the column '{source}' is used for two things"
            for source in sorted({source for source in sources if sources.count(source) > 1})
        ]
        return problems

    def _range_problems(self) -> list[str]:
        problems = []
        for name, settings in {**self.observations, **self.actions}.items():
            low, high = (settings.low, settings.high) if settings else (None, None)
            if low is not None and high is not None and low >= high:
                problems.append(f"'{name}' has a low of {low:g}, which is not below {high:g}")
        return problems

    def _rule_problems(self) -> list[str]:
        problems = []
        if (self.reward.column is None) == (self.reward.formula is None):
            problems.append("the reward is either a column or a formula")
        rated = [name for name, action in self.actions.items() if action.rate is not None]
        if rated and self.hold != "last":
            problems.append(f"'{rated[0]}' has a rate, which only set-points have (hold: last)")
        if self.hold == "zero":
            problems += [
                f"'{name}' cannot be held, since 0 is not between its bounds"
                for name, action in self.actions.items()
                if not action.low <= 0.0 <= action.high
            ]
        problems += [
            f"the physics of '{name}' is known, but there is no such observation; "
            f"{nearest(name, self.observations)}"
            for name in self.physics
            if name not in self.observations
        ]
        if not set(self.observations) - set(self.physics):
            problems.append("the physics of every observation is known: nothing is left to learn")
        return problems


def read_task_file(path: Path) -> TaskFile:
    """Read and check a task file, its formulas too.

    Args:
        path: A YAML file.

    Returns:
        What it says.

    Raises:
        ConfigError: Listing what is wrong; a :class:`~moose.tasks.formula.FormulaError` points at
            the place in the formula.
    """
    return check_task_file(read_yaml(Path(path)), str(path))


def check_task_file(tree: Mapping[str, Any], source: str = "the task") -> TaskFile:
    """Check a task file's content as plain data; ``source`` is named in errors."""
    content = build_settings(TaskFile, tree, source)
    _formulas(content, source)
    return content


def make_task(content: TaskFile, source: str = "the task") -> Task:
    """The task that a file describes."""
    reward, physics = _formulas(content, source)
    schema = _names_of(content)
    predicted = [name for name in content.observations if name not in content.physics]
    low, high = _action_bounds(content)
    return Task(
        name=content.name,
        observation_names=schema.observation_names,
        action_names=schema.action_names,
        action_low=low,
        action_high=high,
        history=content.history,
        discount=content.discount,
        horizon=content.horizon,
        target=content.target,
        predicted_names=tuple(predicted),
        physics=_physics_function(content, schema, physics, predicted),
        reward=None if reward is None else _reward_function(reward, schema),
        hold_action=None if content.hold is None else (0.0,) * len(low),
        definition=to_yaml(content),
        observation_limits=_limits(content, schema),
    )


def make_schema(content: TaskFile, source: str = "the task") -> Schema:
    """What the file says about the columns of a table."""
    reward, _ = _formulas(content, source)
    schema = _names_of(content)
    return Schema(
        signals=schema.signals,
        actions=schema.actions,
        reward_column=content.reward.column,
        reward_of_step=None if reward is None else _reward_of_rows(reward, schema),
        time=content.time,
        interval=content.interval,
        episode=content.episode,
        has_setpoints=schema.has_setpoints,
        history=content.history,
        text=content.csv,
        checks=content.checks,
    )


def _formulas(content: TaskFile, source: str) -> tuple[Formula | None, dict[str, Formula]]:
    """The reward's formula, if there is one, and those of the physics, by signal."""
    schema = _names_of(content)
    signals, actions = schema.observation_names, schema.action_names
    reward = None
    if content.reward.formula is not None:
        reward = parse_formula(content.reward.formula, f"{source}: reward.formula")
        reward.require([*signals, *actions], oldest=1, without_past=actions)
    predicted = [name for name in content.observations if name not in content.physics]
    physics = {}
    for name, text in content.physics.items():
        physics[name] = parse_formula(text, f"{source}: physics.{name}")
        physics[name].require([*signals, *actions], oldest=0, with_next=predicted)
    return reward, physics


def _names_of(content: TaskFile) -> Schema:
    signals = tuple(
        Column(
            name,
            (settings.column if settings else None) or name,
            settings.low if settings else None,
            settings.high if settings else None,
        )
        for name, settings in content.observations.items()
    )
    actions = tuple(
        Column(name, settings.column or name, settings.low, settings.high, settings.rate)
        for name, settings in content.actions.items()
    )
    return Schema(signals, actions, has_setpoints=content.hold == "last")


def _action_bounds(content: TaskFile) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """What a controller may choose: the bounds, or of set-points the largest change."""
    if content.hold != "last":
        actions = content.actions.values()
        return tuple(a.low for a in actions), tuple(a.high for a in actions)
    rates = tuple(a.rate or a.high - a.low for a in content.actions.values())
    return tuple(-rate for rate in rates), rates


def _limits(content: TaskFile, schema: Schema) -> tuple[tuple[float | None, float | None], ...]:
    """Physical limits of the signals of a frame, set-points in force among them."""
    described: dict[str, SignalSettings | ActionSettings | None] = {
        **content.observations,
        **content.actions,
    }
    limits = [described.get(name) for name in schema.observation_names]
    return tuple((one.low, one.high) if one else (None, None) for one in limits)


def _physics_function(
    content: TaskFile, schema: Schema, formulas: Mapping[str, Formula], predicted: list[str]
) -> Physics:
    signals, actions = schema.observation_names, schema.action_names

    def physics(frame: jax.Array, action: jax.Array, predictions: jax.Array) -> jax.Array:
        def lookup(signal: Signal) -> jax.Array:
            if signal.is_next:
                return predictions[predicted.index(signal.name)]
            if signal.name in signals:
                return frame[signals.index(signal.name)]
            return action[actions.index(signal.name)]

        def next_value(name: str) -> Any:
            if name in formulas:
                return formulas[name].in_jax(lookup)
            if name in content.observations:
                return predictions[predicted.index(name)]
            setpoint = frame[signals.index(name)] + action[actions.index(change_name(name))]
            return jnp.clip(setpoint, content.actions[name].low, content.actions[name].high)

        return jnp.stack([jnp.asarray(next_value(name), frame.dtype) for name in signals])

    return physics


def _reward_function(formula: Formula, schema: Schema) -> Reward:
    signals, actions = schema.observation_names, schema.action_names

    def reward(frame: jax.Array, action: jax.Array, next_frame: jax.Array) -> jax.Array:
        def lookup(signal: Signal) -> jax.Array:
            if signal.name in signals:
                return (next_frame, frame)[signal.age][signals.index(signal.name)]
            return action[actions.index(signal.name)]

        return jnp.asarray(formula.in_jax(lookup), frame.dtype)

    return reward


def _reward_of_rows(formula: Formula, schema: Schema) -> RewardOfStep:
    signals, actions = schema.observation_names, schema.action_names

    def reward(frames: Columns, action: Columns, next_frames: Columns) -> Numbers:
        def lookup(signal: Signal) -> Numbers:
            if signal.name in signals:
                return (next_frames, frames)[signal.age][signals.index(signal.name)]
            return action[actions.index(signal.name)]

        values = np.asarray(formula.in_numpy(lookup), np.float64)
        return np.broadcast_to(values, frames[0].shape)

    return reward


def _is_name(name: str) -> bool:
    return bool(name.strip()) and name.isprintable() and "`" not in name


def task_of_definition(definition: object, source: str) -> Task:
    """The task that a data set or a policy carries with it.

    Args:
        definition: The text of its task file. A text, since the order of the columns counts and
            JSON does not keep it.
        source: What to name in errors.
    """
    if not isinstance(definition, str):
        raise ConfigError(
            "The task that is kept with it is not one.",
            where=source,
            advice="restore the folder, or make it anew from the task file and the logs",
        )
    return make_task(check_task_file(parse_yaml(definition, source), source), source)
