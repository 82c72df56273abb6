"""What trained policies are worth in the true plant: during training, and when it is over.

Both follow :mod:`moose.evaluation.protocol`: fresh resets, a fixed number of steps, the discounted
sum of the rewards. Nothing here feeds back into training.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpy.typing as npt
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from moose.config import build_settings
from moose.data.dataset import Dataset
from moose.envs import catalog, recipes
from moose.envs.gymnasium_plants import columns_of, make_environment, versions_of_plant
from moose.envs.gymnasium_recipes import PREFIX, environment_of
from moose.envs.plants import make_industrial_benchmark
from moose.errors import ConfigError, RunError, UserError
from moose.evaluation.protocol import (
    DISCOUNT,
    STEPS,
    Evaluator,
    GymnasiumEvaluator,
    make_evaluator,
)
from moose.evaluation.statistics import mean_with_error, tail_values, tenth_percentile
from moose.experiments.journal import RunJournal, Warn, require_finite
from moose.experiments.run_folder import (
    POLICY,
    Manifest,
    no_dial_in,
    read_evaluations,
    read_run,
    resume_command,
    seed_folders,
)
from moose.models import actor as actors
from moose.models.actor import AnyActor
from moose.policies.policy import Policy, load_policy
from moose.progress import SILENT, Progress
from moose.storage import MANIFEST
from moose.tasks import gymnasium_task
from moose.tasks.registry import task_of
from moose.tasks.task import Task
from moose.types import Act, Key, Params, Plant

# Two streams of resets, shared by all algorithms and seeds.
_TRAINING_RESETS = 20_000
_FINAL_RESETS = 30_000
POSITIONS = tuple(i / 20 for i in range(21))
"""Where the dial of a policy that has one is put for an evaluation."""


def make_observer(
    dataset: Dataset, task: Task, journal: RunJournal, *, episodes: int, is_seeded: bool
) -> Callable[[int, AnyActor], None]:
    """What looks at the policy in the course of a training: at its numbers, and in the true plant.

    Args:
        dataset: The log; its provenance names the plant.
        task: The task.
        journal: Where evaluations go.
        episodes: Episodes of each evaluation; 0 for none.
        is_seeded: The policy has an axis of seeds.

    Returns:
        ``observe(step, actor)``.
    """
    measure = None
    if episodes:
        measure = make_measure(dataset.provenance, make_act(task), task, episodes, task.horizon)
    # Made only if there is a dial to be turned.
    sweep = functools.cache(lambda: make_sweep(dataset.provenance, task, episodes, task.horizon))

    def observe(step: int, actor: AnyActor) -> None:
        require_finite(actor, "the policy", f"stage '{POLICY}', step {step}")
        if measure is None:
            return
        count = len(jax.tree.leaves(actor)[0]) if is_seeded else 1
        contents = []
        for i in range(count):
            one = jax.tree.map(lambda leaf, i=i: leaf[i], actor) if is_seeded else actor
            returns = np.asarray(measure(one, evaluation_key(step)))
            require_finite(returns, "the policy's return", f"stage '{POLICY}', step {step}")
            content: dict[str, Any] = {"returns": returns.tolist()}
            if isinstance(one, actors.DialActor):
                content["by_position"] = sweep()(one, evaluation_key(step))
            contents.append(content)
        journal.record_evaluation(POLICY, step, contents)

    return observe


def evaluate_run(
    folder: Path,
    *,
    episodes: int = 1000,
    steps: int | None = None,
    seed: int = 0,
    position: float | None = None,
    environment: str | None = None,
    cache: Path | None = None,
    progress: Progress = SILENT,
    warn: Warn = lambda text: None,
) -> dict[str, Any]:
    """Play the final policies of a run, and tell their returns beside what they have to beat.

    Args:
        folder: The folder of a finished run, of one seed or several.
        episodes: Episodes that each policy plays, at least two; all play the same ones.
        steps: Steps of an episode; the task's horizon by default.
        seed: Seed of the resets.
        position: Where to put the dial of policies that have one; by default where it stands.
        environment: ``gym/`` and the name of the Gymnasium environment to play in; the plant that
            the data come from by default.
        cache: Cache of data sets; the user's own by default.
        progress: Whom to tell.
        warn: Called with a sentence when something has to be left out.

    Returns:
        The ``plant`` that was played in, the ``protocol``, the ``controllers`` with their returns,
        and the ``tail`` of the evaluations made in training (None if there were none, or the dial
        was turned); plain JSON values.
    """
    manifest = read_run(folder)
    places = seed_folders(folder, manifest)
    policies = _final_policies(folder, places)
    if position is not None:
        if any(policy.position is None for policy in policies.values()):
            raise no_dial_in(folder, manifest)
        policies = {number: policy.at(position) for number, policy in policies.items()}
    task = task_of(manifest.data.provenance)
    origin = manifest.data.provenance
    plant = origin if environment is None else _provenance_of(environment, task)
    steps, discount = steps or task.horizon, task.discount
    if environment is None or origin.get("environment") in {None, plant["environment"]}:
        dataset = _data_if_there(manifest, cache, progress, warn)
    else:
        warn(f"leaving out the data's own return: it was not earned in {environment}")
        dataset = None
    key = jax.random.fold_in(jax.random.key(_FINAL_RESETS), seed)
    measure = make_measure(plant, make_act(task), task, episodes, steps)
    returns = {}
    with progress.stage("playing", len(policies) + 1) as stage:
        for number, policy in policies.items():
            returns[number] = np.asarray(measure(policy.actor, key), np.float64)
            stage.advance(1, {f"seed {number}": float(returns[number].mean())})
        rows = _rows_of_policies(returns)
        if task.hold_action is not None:
            hold = make_hold(task.hold_action)
            held = np.asarray(make_measure(plant, hold, task, episodes, steps)(None, key))
            rows.append(_row("hold", held))
        stage.advance(1, {rows[-1]["name"]: rows[-1]["mean"]})
    return {
        "run": str(folder),
        "digest": manifest.digest,
        "data": manifest.request.data,
        "algorithm": manifest.request.algorithm,
        "plant": _facts_of(plant, task),
        "protocol": {"episodes": episodes, "steps": steps, "discount": discount, "seed": seed},
        "position": next(iter(policies.values())).position,
        "controllers": [*rows, *_rows_of_data(manifest, dataset, discount, steps)],
        # Evaluations in training were made where the policy's own dial stands.
        "tail": None
        if position is not None
        else tail_of_training([read_evaluations(place) for place in places.values()]),
    }


def tail_of_training(evaluations: Sequence[Sequence[Mapping[str, Any]]]) -> dict[str, Any] | None:
    """The figure that results are reported by: what a policy earned late in its training.

    Args:
        evaluations: For each seed, the evaluations made in training.

    Returns:
        Of the mean returns in the final tenth of the updates, pooled over seeds: the 10th
        percentile, its error (None for a single value) and how many they are. None if there are
        none.
    """
    pooled: list[float] = []
    for lines in evaluations:
        means = [float(np.mean(line["returns"])) for line in lines]
        pooled += tail_values([int(line["step"]) for line in lines], means)
    if not pooled:
        return None
    figure = tenth_percentile(pooled)
    return {"percentile_10": figure.value, "error": figure.error, "values": len(pooled)}


def render(result: Mapping[str, Any]) -> RenderableType:
    """An evaluation as a page of text.

    Args:
        result: What :func:`evaluate_run` gave.

    Returns:
        Something to print on a rich console.
    """
    protocol, tail = result["protocol"], result["tail"]
    table = Table(box=None, header_style="bold")
    table.add_column("controller")
    for column in ("return", "± error", "10th percentile", "episodes"):
        table.add_column(column, justify="right")
    for row in result["controllers"]:
        figures = (row["mean"], row["standard_error"], row["percentile_10"])
        cells = ["–" if figure is None else f"{figure:.2f}" for figure in figures]
        name = row["name"]
        if count := row.get("cut_episodes"):
            name += f" ({count:,} cut before {protocol['steps']} steps)"
        table.add_row(name, *cells, str(row["episodes"] or "–"))
    dial = "" if result["position"] is None else f", its dial at {result['position']:g}"
    parts: list[RenderableType] = [
        Text(f"{result['algorithm']} on {result['data']} ({result['run']}){dial}"),
        Text(
            f"Return of {protocol['steps']} steps from fresh resets of {_title(result['plant'])}, "
            f"discount {protocol['discount']:g}, rewards as the task scales them."
        ),
        Text(),
        table,
    ]
    if tail is not None:
        error = "" if tail["error"] is None else f" ± {tail['error']:.2f}"
        parts += [
            Text(),
            Text(
                "Final 10 % of training: 10th percentile of evaluations "
                f"{tail['percentile_10']:.2f}{error} ({tail['values']} of them)."
            ),
        ]
    return Group(*parts)


def plant_of(provenance: Mapping[str, Any]) -> Plant:
    """The true plant behind a benchmark data set, as functions, for evaluation."""
    task = task_of(provenance)  # says so if there is none
    if task.definition is not None:
        raise RunError(
            f"There is no simulator of the plant '{task.name}'.",
            where="evaluation in the true plant",
            advice="judge the run from its log instead: moose judge RUN",
        )
    if provenance["plant"] == gymnasium_task.PLANT:
        raise RunError(
            f"The plant '{task.name}' is not a function that can be compiled.",
            where="evaluation in the true plant",
            advice="play in it with 'moose evaluate'",
        )
    recipe = _recipe_of(provenance)
    return make_industrial_benchmark(recipe.setpoint if recipe else recipes.EXPECTED_SETPOINT)


def make_act(task: Task) -> Act:
    """A policy's actor as a function for playing in a plant."""

    def act(actor: Params, window: jax.Array, key: Key) -> jax.Array:
        return actors.act(actor, task, window, key)

    return act


def make_sweep(
    provenance: Mapping[str, Any], task: Task, episodes: int, steps: int
) -> Callable[[actors.DialActor, Key], dict[str, float]]:
    """Play a policy with a dial at all :data:`POSITIONS`; see :func:`make_measure`.

    Returns:
        A function of the policy and a key: the mean return at each position, by its text.
    """

    def act(params: Params, window: jax.Array, key: Key) -> jax.Array:
        actor, position = params
        return actors.act_at(actor, task, window, position)

    measure = make_measure(provenance, act, task, episodes, steps)
    places = jnp.asarray(POSITIONS, jnp.float32)

    def measure_all(actor: actors.DialActor, key: Key) -> jax.Array:
        return jax.vmap(lambda place: jnp.asarray(measure((actor, place), key)))(places)

    at_once = None if isinstance(measure, GymnasiumEvaluator) else jax.jit(measure_all)

    def sweep(actor: actors.DialActor, key: Key) -> dict[str, float]:
        if at_once is not None:
            returns = np.asarray(at_once(actor, key))
        else:
            returns = np.stack([np.asarray(measure((actor, place), key)) for place in places])
        means = returns.mean(axis=1)
        return {f"{place:g}": float(mean) for place, mean in zip(POSITIONS, means, strict=True)}

    return sweep


def make_hold(hold_action: Sequence[float]) -> Act:
    """The controller that changes nothing."""

    def act(params: Params, window: jax.Array, key: Key) -> jax.Array:
        return jnp.asarray(hold_action, window.dtype)

    return act


def evaluation_key(step: int) -> Key:
    """The resets of the evaluation after ``step`` updates."""
    return jax.random.fold_in(jax.random.key(_TRAINING_RESETS), step)


def make_measure(
    provenance: Mapping[str, Any], act: Act, task: Task, episodes: int, steps: int
) -> Evaluator:
    """Play ``act`` in the plant that data come from, by the task's history and discount.

    Args:
        provenance: Of the data; it names the plant.
        act: The policy, ``act(params, window, key)``.
        task: The task.
        episodes: How many episodes to play.
        steps: Steps of each episode.

    Returns:
        A function of the policy's parameters and a key.
    """
    protocol: dict[str, Any] = {
        "history": task.history,
        "episodes": episodes,
        "steps": steps,
        "discount": task.discount,
    }
    if provenance.get("plant") != gymnasium_task.PLANT:
        return make_evaluator(plant_of(provenance), act, **protocol)
    name = environment_of(f"{PREFIX}{provenance.get('environment')}")
    return GymnasiumEvaluator(functools.partial(make_environment, name), act, **protocol)


def _provenance_of(environment: str, task: Task) -> dict[str, Any]:
    """What data of this environment would name as their origin, if it fits the task."""
    name = environment_of(environment)
    with contextlib.closing(make_environment(name)) as made:
        columns = columns_of(made)
    for what, found, wanted in (
        ("observations", columns.observation_names, task.observation_names),
        ("actions", columns.action_names, task.action_names),
    ):
        if len(found) != len(wanted):
            raise ConfigError(
                f"The environment has {len(found)} {what}; the policy was trained with "
                f"{len(wanted)}.",
                where=f"environment '{environment}'",
                advice="choose the environment that the log comes from",
            )
    is_within = np.greater_equal(task.action_low, columns.action_low) & np.less_equal(
        task.action_high, columns.action_high
    )
    if not is_within.all():
        raise ConfigError(
            "The policy's actions go beyond the environment's bounds.",
            where=f"environment '{environment}'",
            advice="choose the environment that the log comes from",
        )
    return {"plant": gymnasium_task.PLANT, "environment": name}


def _facts_of(plant: Mapping[str, Any], task: Task) -> dict[str, Any]:
    """What was played in, and the versions of the libraries that it depends on."""
    if plant.get("plant") != gymnasium_task.PLANT:
        return {"name": task.name, "versions": {}}
    name = plant["environment"]
    return {"name": f"{PREFIX}{name}", "versions": versions_of_plant(name)}


def _title(plant: Mapping[str, Any]) -> str:
    versions = ", ".join(f"{name} {version}" for name, version in plant["versions"].items())
    return f"{plant['name']} ({versions})" if versions else str(plant["name"])


def _final_policies(folder: Path, places: Mapping[int, Path]) -> dict[int, Policy]:
    missing = [seed for seed, place in places.items() if not (place / POLICY / MANIFEST).is_file()]
    if missing:
        seeds = ", ".join(map(str, missing))
        raise RunError(
            f"This run is not finished: there is no policy yet of seed {seeds}.",
            where=str(folder),
            advice=f"go on with it by '{resume_command(folder)}'",
        )
    return {seed: load_policy(place / POLICY) for seed, place in places.items()}


def _data_if_there(
    manifest: Manifest, cache: Path | None, progress: Progress, warn: Warn
) -> Dataset | None:
    """The run's data set; a policy can be played without it."""
    source = manifest.request.data
    try:
        dataset = catalog.find_dataset(source, cache=cache, progress=progress)
    except UserError as error:
        warn(f"leaving out the data's own return: {error.what}")
        return None
    if dataset.fingerprint != manifest.data.fingerprint:
        warn(f"leaving out the data's own return: {source} is not what this run began with")
        return None
    return dataset


def _rows_of_policies(returns: Mapping[int, npt.NDArray[np.float64]]) -> list[dict[str, Any]]:
    if len(returns) == 1:
        return [_row("policy", values, seed=seed) for seed, values in returns.items()]
    rows = [_row(f"policy, seed {seed}", values, seed=seed) for seed, values in returns.items()]
    table = np.stack(list(returns.values()))
    # All seeds met the same resets, so that the episodes are independent and the seeds are not.
    together = _row("policy, all seeds", table.mean(axis=0))
    return [*rows, together | {"percentile_10": _percentile_10(table)}]


def _rows_of_data(
    manifest: Manifest, dataset: Dataset | None, discount: float, steps: int
) -> list[dict[str, Any]]:
    """What the log itself earned, and what is known of the behaviour that made it."""
    rows = []
    if dataset is not None:
        returns = dataset.discounted_returns(discount, steps)
        rows.append(_row("data", returns) | {"cut_episodes": dataset.num_cut(steps)})
    recipe = _recipe_of(manifest.data.provenance)
    is_protocol = (discount, steps) == (DISCOUNT, STEPS)
    expected = recipes.expected_return(recipe) if recipe and is_protocol else None
    if expected is not None:
        nothing = {"standard_error": None, "percentile_10": None, "episodes": None}
        rows.append({"name": "behaviour, expected", "seed": None, "mean": expected, **nothing})
    return rows


def _row(name: str, returns: npt.ArrayLike, seed: int | None = None) -> dict[str, Any]:
    values = np.asarray(returns, np.float64)
    return {
        "name": name,
        "seed": seed,
        "mean": float(values.mean()),
        # One value cannot tell; a log may have a single episode.
        "standard_error": mean_with_error(values).error if len(values) > 1 else None,
        "percentile_10": _percentile_10(values),
        "episodes": len(values),
    }


def _percentile_10(values: npt.ArrayLike) -> float:
    return float(np.percentile(np.asarray(values), 10))


def _recipe_of(provenance: Mapping[str, Any]) -> recipes.Recipe | None:
    recipe = provenance.get("recipe")
    if not isinstance(recipe, Mapping):
        return None
    try:
        return build_settings(recipes.Recipe, recipe)
    except UserError:  # from another version, or by another hand
        return None
