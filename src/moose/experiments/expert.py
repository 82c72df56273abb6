"""Experts for data sets: DDPG trained online in a Gymnasium environment.

One update for every step of the environment, after a first phase of random actions. Steps come in
blocks: a block is played with the policy as it is, then as many updates are done in one compiled
program. Every so many steps all is kept, and a new episode begins there, so that a training that
was interrupted ends with the same bits as one that was not.
"""

from __future__ import annotations

import contextlib
import csv
import functools
import io
import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Self

import jax
import jax.numpy as jnp
import numpy as np
import numpy.typing as npt
import optax
from pydantic import Field, model_validator

from moose.algorithms import ddpg
from moose.algorithms.critics import Batch
from moose.checkpoint import load_tree, save_tree
from moose.config import Settings, digest, settings_tree
from moose.envs.experts import Expert, make_expert, write_expert
from moose.envs.gymnasium_plants import columns_of, make_environment, versions_of_plant
from moose.errors import RunError
from moose.progress import SILENT, Progress
from moose.storage import MANIFEST, atomic_file, check_manifest, named_os_errors, write_json
from moose.tasks.gymnasium_task import PLANT, task_of_environment
from moose.tasks.task import Task
from moose.training import Metrics
from moose.types import Key

if TYPE_CHECKING:
    import gymnasium

EXPERT = "expert.safetensors"
CURVE = "curve.csv"
SUMMARY = "summary.json"
CHECKPOINT = "checkpoint"
_FORMAT = ("moose-expert-checkpoint", 1)


class Learner(ddpg.Config):
    """DDPG as it trains an expert: no log is there to take a scale of the states from."""

    inputs: Literal["raw"] = "raw"
    discount: float | None = Field(default=0.99, gt=0, le=1)


class ExpertSettings(Settings):
    """How an expert is trained; the defaults are those of the paper's data sets."""

    environment: str
    """The environment's registered name."""
    seed: int = Field(default=0, ge=0, lt=2**31)
    """Seed of all randomness."""
    steps: int = Field(default=1_000_000, ge=1)
    """Steps of the environment."""
    random_steps: int = Field(default=25_000, ge=0)
    """Steps with random actions before the first update."""
    noise: float = Field(default=0.1, ge=0.0)
    """Deviation of the exploration, in half widths of the actions' bounds."""
    block: int = Field(default=50, ge=1)
    """Steps that are played before as many updates are done."""
    check_every: int = Field(default=10_000, ge=1)
    """Steps between two evaluations."""
    keep_every: int = Field(default=50_000, ge=1)
    """Steps between two checkpoints."""
    evaluation_episodes: int = Field(default=10, ge=1)
    """Episodes of an evaluation, to the environment's own end."""
    learner: Learner = Learner()
    """Networks, batches and rates; ``updates`` and ``checks`` mean nothing here."""

    @model_validator(mode="after")
    def _is_consistent(self) -> Self:
        for name in ("steps", "random_steps", "check_every", "keep_every"):
            if getattr(self, name) % self.block:
                raise ValueError(f"{name} has to be a multiple of block, {self.block}")
        if self.keep_every % self.check_every:
            raise ValueError("keep_every has to be a multiple of check_every")
        return self


class Replay(NamedTuple):
    """Transitions in the order they were made: states as they are, actions in the box."""

    states: jax.Array
    """[C, n]"""
    actions: jax.Array
    """[C, d]"""
    rewards: jax.Array
    """[C]"""
    next_states: jax.Array
    """[C, n]"""
    continues: jax.Array
    """[C] 0 where the plant reached an end of its own, 1 elsewhere"""


class _Kept(NamedTuple):
    """What the training goes on from."""

    state: ddpg.State
    replay: Replay


class Point(NamedTuple):
    """One evaluation: undiscounted returns without exploration."""

    steps: int
    mean: float
    deviation: float


def train_expert(
    settings: ExpertSettings, folder: Path, *, progress: Progress = SILENT
) -> dict[str, Any]:
    """Train an expert, or go on with one that was interrupted.

    Args:
        settings: What to train and how.
        folder: Where the expert, its curve and its checkpoints go. If a training with the same
            settings was interrupted there, it is taken up again.
        progress: Whom to tell.

    Returns:
        What the summary file says: settings, versions, and the final evaluation.
    """
    _require_own(folder)
    with contextlib.ExitStack() as stack:
        environment = stack.enter_context(
            contextlib.closing(make_environment(settings.environment))
        )
        judge = stack.enter_context(contextlib.closing(make_environment(settings.environment)))
        task = _task_of(environment, settings.environment)
        kept, curve, done = _restore(settings, folder, _begin(task, settings))
        if not done:
            curve = [_evaluate(judge, task, _expert_of(kept.state), 0, settings)]
        learn_block = _compile(settings)
        stage = stack.enter_context(progress.stage("expert", settings.steps, done))
        while done < settings.steps:
            player = _Player(environment, task, settings, done)
            stop = min(settings.steps, done + settings.keep_every)
            while done < stop:
                fresh = player.play(_expert_of(kept.state), is_random=done < settings.random_steps)
                kept = _Kept(*learn_block(kept, fresh, jnp.int32(done)))
                done += settings.block
                if done % settings.check_every == 0 or done == settings.steps:
                    curve.append(_evaluate(judge, task, _expert_of(kept.state), done, settings))
                    _require_finite(kept.state, done)
                    stage.advance(done - curve[-2].steps, {"return": curve[-1].mean})
            _keep(settings, folder, kept, curve, done)
    return _finish(settings, folder, _expert_of(kept.state), curve)


class _Player:
    """Plays on from block to block, with a stream of randomness of its own."""

    def __init__(
        self,
        environment: gymnasium.Env[Any, Any],
        task: Task,
        settings: ExpertSettings,
        done: int,
    ) -> None:
        self._environment, self._settings = environment, settings
        self._middle, self._half = _box_of(task)
        self._rng = np.random.default_rng((settings.seed, done))
        self._frame = self._reset()

    def play(self, expert: Expert, *, is_random: bool) -> Replay:
        """One block of transitions."""
        rows = [self._step(expert, is_random) for _ in range(self._settings.block)]
        states, actions, rewards, next_states, continues = zip(*rows, strict=True)
        return Replay(*map(_stacked, (states, actions, rewards, next_states, continues)))

    def _step(self, expert: Expert, is_random: bool) -> tuple[Any, ...]:
        frame, size = self._frame, len(self._half)
        if is_random:
            action = self._rng.uniform(-1.0, 1.0, size)
        else:
            noise = self._rng.normal(0.0, self._settings.noise, size)
            action = np.clip(expert.act(frame) + noise, -1.0, 1.0)
        next_frame, reward, is_terminated, is_truncated, _ = self._environment.step(
            np.asarray(self._middle + self._half * action, np.float32)
        )
        is_over = is_terminated or is_truncated
        self._frame = self._reset() if is_over else np.array(next_frame, np.float32)
        return frame, action, reward, np.array(next_frame, np.float32), not is_terminated

    def _reset(self) -> npt.NDArray[np.float32]:
        frame, _ = self._environment.reset(seed=int(self._rng.integers(2**31)))
        return np.array(frame, np.float32)


def _compile(settings: ExpertSettings) -> Any:
    """The program that takes a block of transitions in and learns from all there are."""
    config = settings.learner
    optimiser = optax.adam(config.learning_rate)
    discount = config.discount or 0.99
    key = jax.random.fold_in(jax.random.key(settings.seed), 1)

    def update(
        state: ddpg.State, replay: Replay, filled: jax.Array, step: jax.Array
    ) -> tuple[ddpg.State, Metrics]:
        chosen = jax.random.randint(
            jax.random.fold_in(key, step), (config.batch_size,), 0, filled, jnp.int32
        )
        batch = Batch(*(values[chosen] for values in replay))
        return ddpg.learn(state, batch, optimiser, discount, config.target_rate)

    @functools.partial(jax.jit, donate_argnums=0)
    def learn_block(kept: _Kept, fresh: Replay, done: jax.Array) -> tuple[ddpg.State, Replay]:
        def put(values: jax.Array, new: jax.Array) -> jax.Array:
            return jax.lax.dynamic_update_slice_in_dim(values, new, done, axis=0)

        replay = Replay(*map(put, kept.replay, fresh))
        filled = done + settings.block

        def learn(state: ddpg.State) -> ddpg.State:
            steps = done + jnp.arange(settings.block, dtype=jnp.int32)
            return jax.lax.scan(lambda s, step: update(s, replay, filled, step), state, steps)[0]

        is_learning = done >= settings.random_steps
        return jax.lax.cond(is_learning, learn, lambda state: state, kept.state), replay

    return learn_block


def _begin(task: Task, settings: ExpertSettings) -> _Kept:
    key: Key = jax.random.key(settings.seed)
    state = ddpg.init_state(task, settings.learner, optax.adam(settings.learner.learning_rate), key)
    n, d, size = len(task.observation_names), len(task.action_names), settings.steps
    widths = ((n,), (d,), (), (n,), ())
    # Copies, because a program may be given no buffer twice to keep.
    state = jax.tree.map(jnp.copy, state)
    return _Kept(state, Replay(*(jnp.zeros((size, *width), jnp.float32) for width in widths)))


def _require_own(folder: Path) -> None:
    """Raise a :class:`RunError` if there is something in the folder that no expert left there."""
    with named_os_errors(folder):
        names = os.listdir(folder) if folder.exists() else []
    foreign = sorted(
        name
        for name in names
        if name not in {EXPERT, CURVE, SUMMARY, CHECKPOINT} and not name.startswith(".")
    )
    if foreign:
        raise RunError(
            f"There is something else in this folder: {', '.join(foreign[:3])}.",
            where=str(folder),
            advice="choose another folder with --out; a new one will be made",
        )


def _restore(
    settings: ExpertSettings, folder: Path, begun: _Kept
) -> tuple[_Kept, list[Point], int]:
    place = folder / CHECKPOINT
    if not (place / MANIFEST).is_file():
        return begun, [], 0
    file = place / MANIFEST
    with named_os_errors(file):
        text = file.read_bytes()
    # Before the arrays, whose shapes depend on the settings.
    if check_manifest(text, file, *_FORMAT)["settings"] != digest(settings):
        raise RunError(
            "Another training was begun in this folder: of another environment, or with another "
            "seed, number of steps or setting.",
            where=str(folder),
            advice="give what it was begun with, or another folder",
        )
    kept, content = load_tree(place, begun, format_name=_FORMAT[0], schema_version=_FORMAT[1])
    return kept, [Point(*point) for point in content["curve"]], int(content["done"])


def _keep(
    settings: ExpertSettings, folder: Path, kept: _Kept, curve: list[Point], done: int
) -> None:
    content = {"settings": digest(settings), "curve": [list(point) for point in curve]}
    save_tree(
        folder / CHECKPOINT,
        kept,
        format_name=_FORMAT[0],
        schema_version=_FORMAT[1],
        content=content | {"done": done},
        overwrite=True,
    )


def _finish(
    settings: ExpertSettings, folder: Path, expert: Expert, curve: list[Point]
) -> dict[str, Any]:
    write_expert(expert, folder / EXPERT)
    table = io.StringIO()
    writer = csv.writer(table, lineterminator="\n")
    writer.writerow(Point._fields)
    for point in curve:
        writer.writerow([point.steps, f"{point.mean:.2f}", f"{point.deviation:.2f}"])
    with atomic_file(folder / CURVE) as temporary:
        temporary.write_text(table.getvalue(), encoding="utf-8")
    summary = {
        "settings": settings_tree(settings),
        "versions": versions_of_plant(settings.environment),
        "return": curve[-1].mean,
        "deviation": curve[-1].deviation,
        "episodes": settings.evaluation_episodes,
    }
    with atomic_file(folder / SUMMARY) as temporary:
        write_json(temporary, summary)
    return summary


def _evaluate(
    environment: gymnasium.Env[Any, Any],
    task: Task,
    expert: Expert,
    done: int,
    settings: ExpertSettings,
) -> Point:
    middle, half = _box_of(task)
    returns = []
    for episode in range(settings.evaluation_episodes):
        rng = np.random.default_rng((settings.seed, done, episode))
        frame, _ = environment.reset(seed=int(rng.integers(2**31)))
        total, is_over = 0.0, False
        while not is_over:
            action = np.asarray(middle + half * expert.act(frame), np.float32)
            frame, reward, is_terminated, is_truncated, _ = environment.step(action)
            total += float(reward)
            is_over = is_terminated or is_truncated
        returns.append(total)
    return Point(done, float(np.mean(returns)), float(np.std(returns)))


def _expert_of(state: ddpg.State) -> Expert:
    return make_expert([(layer.weight, layer.bias) for layer in state.actor.params])


def _task_of(environment: gymnasium.Env[Any, Any], name: str) -> Task:
    columns = {what: list(names) for what, names in columns_of(environment)._asdict().items()}
    return task_of_environment({"plant": PLANT, "environment": name, "columns": columns})


def _box_of(task: Task) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    low, high = np.array(task.action_low), np.array(task.action_high)
    return (high + low) / 2, (high - low) / 2


def _stacked(values: tuple[Any, ...]) -> jax.Array:
    return jnp.asarray(np.asarray(values, np.float32))


def _require_finite(state: ddpg.State, done: int) -> None:
    if not all(bool(jnp.isfinite(leaf).all()) for leaf in _floats(state)):
        raise RunError(
            "The expert's numbers are no longer finite.",
            where=f"step {done}",
            advice="try another seed, or a smaller learner.learning_rate",
        )


def _floats(state: ddpg.State) -> Iterator[jax.Array]:
    for leaf in jax.tree.leaves(state):
        if jnp.issubdtype(leaf.dtype, jnp.floating):
            yield leaf
