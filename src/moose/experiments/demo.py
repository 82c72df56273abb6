"""The demonstration: a data set, and what the reference controllers earn in the true plant."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from moose.envs import behaviour, recipes
from moose.envs.catalog import cached_dataset
from moose.envs.plants import make_industrial_benchmark
from moose.evaluation.protocol import DISCOUNT, STEPS, make_evaluator
from moose.evaluation.statistics import mean_with_error
from moose.experiments import figures, summary
from moose.progress import SILENT, Progress
from moose.types import Key, Params

DATASET = "ib/mediocre-0.6"
PICTURE = "dataset.png"


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
    cache: Path | None = None,
    progress: Progress = SILENT,
) -> dict[str, Any]:
    """Make a data set, draw it, and play the reference controllers.

    Args:
        out: The folder for the picture.
        episodes: Episodes that each controller plays.
        seed: Seed of the evaluation.
        cache: The cache folder; the user's own by default.
        progress: Whom to tell how far it is.

    Returns:
        The data set's summary, the controllers' returns and the picture's name; plain JSON values.
    """
    picture = out / PICTURE
    figures.picture_format(picture)
    dataset = cached_dataset(recipes.recipe_of(DATASET), cache=cache, progress=progress)
    figures.draw_dataset(dataset, picture)
    return {
        "dataset": {"name": DATASET, **summary.summarise(dataset)},
        "protocol": {"episodes": episodes, "steps": STEPS, "discount": DISCOUNT, "seed": seed},
        "controllers": measure_controllers(episodes=episodes, seed=seed, progress=progress),
        "picture": str(picture),
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
            f"{row['expected']:.1f}",
        )
    returns = dataset["returns"]
    return Group(
        Text(
            f"Data set {dataset['name']}: {dataset['transitions']:,} transitions in "
            f"{dataset['episodes']} episodes, return {returns['mean']:.2f} ± "
            f"{returns['deviation']:.2f} over episodes."
        ),
        Text(f"Picture: {result['picture']}"),
        Text(),
        Text(
            f"Industrial Benchmark, setpoint 70: mean over {protocol['episodes']} episodes of the "
            f"return of {protocol['steps']} steps (discount {protocol['discount']:g}, "
            "reward / 100)."
        ),
        Text(),
        table,
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
