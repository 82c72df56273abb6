"""The demonstration: from a data set to a controller, measured in the true plant.

Data, models, support, policy, evaluation beside behaviour, hold, clone and reference controllers,
and a picture of each step; minutes on two cores.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from moose.envs import behaviour, recipes
from moose.envs.catalog import cached_dataset
from moose.envs.collect import episode_keys, make_player
from moose.envs.plants import make_industrial_benchmark
from moose.evaluation.protocol import DISCOUNT, STEPS, make_evaluator
from moose.evaluation.statistics import mean_with_error
from moose.experiments import figures, run_figures, runner, summary
from moose.experiments.diagnosis import diagnose_run
from moose.experiments.evaluate import evaluate_run
from moose.experiments.run_folder import POLICY, read_evaluations
from moose.models import actor as actors
from moose.policies.policy import load_policy
from moose.progress import SILENT, Progress
from moose.storage import MANIFEST
from moose.tasks.industrial_benchmark import make_task
from moose.types import Key, Params

DATASET = "ib/mediocre-0.6"
LEARNER, NAME = "lion", "LION"
PICTURES = ("dataset", "models", "training", "trajectory")


class Controller(NamedTuple):
    """A reference controller and what it is known to earn."""

    name: str
    policy: behaviour.WindowPolicy
    expected: float


def run_demo(
    out: Path,
    *,
    episodes: int = 1000,
    seed: int = 0,
    overrides: Sequence[str] = (),
    cache: Path | None = None,
    progress: Progress = SILENT,
) -> dict[str, Any]:
    """Make a data set, train LION and a clone on it, and measure both beside what is known.

    The runs below ``out`` are ordinary ones: an interrupted demonstration goes on where it was, a
    finished one is only measured again.

    Args:
        out: The folder for runs and pictures.
        episodes: Episodes that each controller plays.
        seed: Seed of the training and of the evaluation.
        overrides: Settings ``a.b=c`` of LION put over the preset ``fast``.
        cache: The cache folder; the user's own by default.
        progress: Whom to tell how far it is.

    Returns:
        The data set's summary, the controllers' returns and the pictures' names; plain JSON values.
    """
    pictures = {name: out / f"{name}.png" for name in PICTURES}
    figures.picture_format(pictures["dataset"])
    dataset = cached_dataset(recipes.recipe_of(DATASET), cache=cache, progress=progress)
    figures.draw_dataset(dataset, pictures["dataset"])
    learned: list[dict[str, Any]] = []
    for algorithm, preset, settings in (("clone", "quick", ()), (LEARNER, "fast", overrides)):
        folder = out / "runs" / algorithm
        if not (folder / MANIFEST).exists():
            request = runner.make_request(
                DATASET, algorithm=algorithm, preset=preset, overrides=settings, seed=seed
            )
            runner.begin_run(request, folder, cache=cache, progress=progress)
        runner.resume_run(folder, cache=cache, progress=progress)
        result = evaluate_run(folder, episodes=episodes, seed=seed, cache=cache, progress=progress)
        played = result["controllers"][0]
        learned.append(
            {
                "name": f"{algorithm} (learned from {DATASET})",
                "measured": played["mean"],
                "standard_error": played["standard_error"],
                "expected": None,
            }
        )
    controllers = measure_controllers(episodes=episodes, seed=seed, progress=progress)
    run = out / "runs" / LEARNER
    diagnosis = diagnose_run(run, cache=cache, progress=progress)
    run_figures.draw_model_fit(diagnosis, pictures["models"])
    expected = recipes.expected_return(recipes.recipe_of(DATASET))
    run_figures.draw_learning_curve(
        [read_evaluations(run)],
        {
            "behaviour": expected if expected is not None else float("nan"),
            "hold": recipes.EXPECTED_HOLD,
            "clone": learned[0]["measured"],
        },
        pictures["training"],
        title=f"{NAME} on {DATASET}",
    )
    _draw_episode(run, pictures["trajectory"], seed)
    return {
        "dataset": {"name": DATASET, "expected_return": expected, **summary.summarise(dataset)},
        "protocol": {"episodes": episodes, "steps": STEPS, "discount": DISCOUNT, "seed": seed},
        "controllers": sorted([*controllers, *learned], key=lambda row: float(row["measured"])),
        "models": diagnosis,
        "pictures": {name: str(path) for name, path in pictures.items()},
    }


def measure_controllers(
    *, episodes: int, seed: int = 0, progress: Progress = SILENT
) -> list[dict[str, Any]]:
    """Play each reference controller in the plant at setpoint 70, all with the same luck.

    Args:
        episodes: Episodes that each of them plays, at least two.
        seed: Seed of all randomness.
        progress: Whom to tell how far it is.

    Returns:
        For each: ``name``, mean return ``measured``, its ``standard_error``, and what is
        ``expected``.
    """
    controllers = _controllers()

    # One compiled program for all of them: the parameter says who acts.
    def act(index: Params, window: jax.Array, key: Key) -> jax.Array:
        action: jax.Array = jax.lax.switch(index, [c.policy for c in controllers], window)
        return action

    plant = make_industrial_benchmark(recipes.EXPECTED_SETPOINT)
    measure = make_evaluator(plant, act, history=behaviour.HISTORY, episodes=episodes)
    rows: list[dict[str, Any]] = []
    with progress.stage("playing", len(controllers)) as stage:
        for index, controller in enumerate(controllers):
            returns = measure(index, jax.random.key(seed))
            mean, error = mean_with_error(np.asarray(returns))
            rows.append(
                {
                    "name": controller.name,
                    "measured": mean,
                    "standard_error": error,
                    "expected": controller.expected,
                }
            )
            stage.advance(1, {controller.name: mean})
    return rows


def render(result: dict[str, Any]) -> RenderableType:
    """The demonstration as a page of text.

    Args:
        result: What :func:`run_demo` gave.

    Returns:
        Something to print on a rich console.
    """
    dataset, protocol = result["dataset"], result["protocol"]
    table = Table(box=None, header_style="bold")
    table.add_column("controller")
    for column in ("return", "± error", "expected"):
        table.add_column(column, justify="right")
    for row in result["controllers"]:
        table.add_row(
            row["name"],
            f"{row['measured']:.2f}",
            f"{row['standard_error']:.2f}",
            "" if row["expected"] is None else f"{row['expected']:.1f}",
        )
    returns = dataset["returns"]
    return Group(
        Text(
            f"Data set {dataset['name']}: {dataset['transitions']:,} transitions in "
            f"{dataset['episodes']} episodes, return {returns['mean']:.2f} ± "
            f"{returns['deviation']:.2f} over episodes."
        ),
        *(Text(f"Picture of the {name}: {path}") for name, path in result["pictures"].items()),
        Text(),
        Text(
            f"Industrial Benchmark, setpoint 70: mean over {protocol['episodes']} episodes of the "
            f"return of {protocol['steps']} steps (discount {protocol['discount']:g}, "
            "reward / 100)."
        ),
        Text(),
        table,
    )


def _draw_episode(run: Path, path: Path, seed: int) -> None:
    """The same episode, played by the learned policy and by the policy behind the data."""
    task = make_task()
    actor = load_policy(run / POLICY).actor
    plant = make_industrial_benchmark(recipes.EXPECTED_SETPOINT)

    def act(is_learned: Params, window: jax.Array, key: Key) -> jax.Array:
        learned = actors.act(actor, task, window, key)
        return jnp.where(is_learned, learned, behaviour.mediocre(window))

    play = make_player(plant, act, history=task.history, steps=STEPS)
    keys = episode_keys(jax.random.key(seed), 0, 1)
    run_figures.draw_trajectories(
        {
            NAME: np.asarray(play(True, keys).frames[0]),
            "the policy behind the data, without noise": np.asarray(play(False, keys).frames[0]),
        },
        plant.frame_names,
        path,
    )


def _controllers() -> list[Controller]:
    """From worst to best."""
    behaviours = [
        Controller(name, policy, recipes.EXPECTED_RETURNS[name, 0.0])
        for name, policy in behaviour.POLICIES.items()
    ]
    hold = Controller("hold", behaviour.hold, recipes.EXPECTED_HOLD)
    target = behaviour.BEST_SET_POINT
    set_point = Controller(
        f"set point ({', '.join(f'{value:g}' for value in target)})",
        behaviour.make_set_point(*target),
        recipes.EXPECTED_SET_POINT,
    )
    return sorted([*behaviours, hold, set_point], key=lambda controller: controller.expected)
