"""What nobody with a real plant has: the plant that made the tutorial's log, to check a policy in.

    python examples/hidden_plant.py runs/engine

plays the policy of a run in the simulator behind ``plant.csv.gz``, beside the behaviour that made
the log and beside holding still, for the same episodes. Training and judgement never see it.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

from moose.envs.behaviour import POLICIES, make_exploring
from moose.envs.industrial_benchmark import FRAME_NAMES, STEERING_STEPS
from moose.envs.plants import make_industrial_benchmark
from moose.evaluation.protocol import make_evaluator
from moose.evaluation.statistics import mean_with_error
from moose.experiments.evaluate import make_act, make_hold
from moose.experiments.run_folder import find_policy
from moose.policies.policy import load_policy
from moose.tasks.task import Task
from moose.tasks.task_file import make_task, read_task_file
from moose.types import Act, Plant

TASK = Path(__file__).parent / "plant" / "plant.yaml"
BEHAVIOUR, EPSILON = "mediocre", 0.6


def measure(
    path: Path, *, position: float | None = None, episodes: int = 1000, seed: int = 0
) -> dict[str, np.ndarray]:
    """Returns of the policy, of the behaviour and of holding still, episode by episode."""
    policy = load_policy(path) if position is None else load_policy(path).at(position)
    task = make_task(read_task_file(TASK))
    key = jax.random.key(seed)

    def play(plant: Plant, act: Act, params: object) -> np.ndarray:
        measured = make_evaluator(
            plant,
            act,
            history=task.history,
            episodes=episodes,
            steps=task.horizon,
            discount=task.discount,
        )
        return np.asarray(measured(params, key), np.float64)

    plant = as_logged(task)
    return {
        "policy": play(plant, make_act(task), policy.actor),
        "behaviour": play(
            make_industrial_benchmark(), make_exploring(POLICIES[BEHAVIOUR], EPSILON), None
        ),
        "hold": play(plant, make_hold(task.hold_action), None),
    }


def as_logged(task: Task) -> Plant:
    """The simulator with the frames and actions that the task file gives the plant."""
    true = make_industrial_benchmark()
    columns = jnp.asarray([FRAME_NAMES.index(name) for name in task.observation_names])
    rates = jnp.asarray(STEERING_STEPS, jnp.float32)
    return Plant(
        name=task.name,
        frame_names=task.observation_names,
        action_names=task.action_names,
        reset=true.reset,
        step=lambda state, action, key: true.step(state, jnp.clip(action / rates, -1, 1), key),
        observe=lambda state: true.observe(state)[columns],
        reward=task.reward,
    )


def summary(returns: Mapping[str, np.ndarray]) -> str:
    """One line for each controller, and one for what the policy gains."""
    lines = []
    for name, values in returns.items():
        mean, error = mean_with_error(values)
        lines.append(f"{name:10} {mean:8.2f} ± {error:.2f}")
    gain, error = mean_with_error(returns["policy"] - returns["behaviour"])
    return "\n".join([*lines, f"{'gain':10} {gain:8.2f} ± {error:.2f}"])


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("run", type=Path)
    parser.add_argument("--position", type=float, help="where to put the policy's dial")
    parser.add_argument("--episodes", type=int, default=1000)
    chosen = parser.parse_args()
    found = measure(find_policy(chosen.run), position=chosen.position, episodes=chosen.episodes)
    print(summary(found))
