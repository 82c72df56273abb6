"""Model bias: how far imagined trajectories stray from what the true plant does.

The policy plays in the true plant; from the same start state it is imagined in every model. The
bias at step t is ‖s_t − ŝ_t‖₂ over standardised frames, and B is its sum over a trajectory (Eq. 6
of the MOOSE paper). Beside it stands the over-promise: imagined minus true return.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from moose.data.normalize import Statistics, standardise
from moose.envs.collect import episode_keys, make_player
from moose.evaluation.protocol import discounted_sum
from moose.models.rollout import Policy, imagine
from moose.tasks.task import Task
from moose.types import DynamicsModel, Key, Params, Plant


class ModelBias(NamedTuple):
    """The bias of a policy's imagined trajectories."""

    by_step: np.ndarray
    """[H]: mean over models and episodes"""
    total: float
    """B: the sum over the horizon"""
    imagined_return: float
    true_return: float

    @property
    def over_promise(self) -> float:
        """How much better the models make the policy look than it is."""
        return self.imagined_return - self.true_return


def measure_bias(
    policy: Policy,
    model: DynamicsModel,
    members: Params,
    scale: Statistics,
    task: Task,
    plant: Plant,
    *,
    episodes: int,
    key: Key,
) -> ModelBias:
    """Compare imagined with true trajectories of a policy from the plant's own start states.

    Args:
        policy: The deterministic policy.
        model: How a member is rolled.
        members: K members, stacked along the first axis.
        scale: Statistics of a frame, which bring its signals to one scale.
        task: History, horizon and discount.
        plant: The true plant.
        episodes: How many episodes to play.
        key: Their randomness.

    Returns:
        The bias.
    """
    play = make_player(
        plant, lambda params, window, key: policy(window), history=task.history, steps=task.horizon
    )
    true = play(None, episode_keys(key, 0, episodes))
    starts = jnp.repeat(true.frames[:, :1], task.history, axis=1)
    imagined = jax.jit(lambda starts: imagine(policy, model, members, starts, task.horizon))(starts)
    truth = standardise(jnp.swapaxes(true.frames[:, 1:], 0, 1)[:, None], scale)
    guess = standardise(imagined.frames[task.history :], scale)
    by_step = jnp.mean(jnp.linalg.norm(truth - guess, axis=-1), axis=(1, 2))
    imagined_returns = discounted_sum(jnp.moveaxis(imagined.rewards, 0, -1), task.discount)
    return ModelBias(
        by_step=np.asarray(by_step),
        total=float(jnp.sum(by_step)),
        imagined_return=float(jnp.mean(imagined_returns)),
        true_return=float(jnp.mean(discounted_sum(true.rewards, task.discount))),
    )
