"""Imagined trajectories: one pure scan over time, for every model and every start state at once.

The rollout is differentiable from the rewards and penalties back to the policy's parameters.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

import jax
import jax.numpy as jnp

from moose.types import Carry, DynamicsModel, Params

Policy = Callable[[jax.Array], jax.Array]
"""``policy(window [F, n]) -> action [d]``, raw units, deterministic."""


Note = TypeVar("Note")


class Imagined(NamedTuple):
    """Trajectories of N start states in K models over H steps, raw units."""

    frames: jax.Array
    """[F + H, K, N, n]: the start window, oldest frame first, then the imagined frames"""
    actions: jax.Array
    """[H, K, N, d]"""
    rewards: jax.Array
    """[H, K, N]"""


def imagine(
    policy: Policy,
    model: DynamicsModel,
    members: Params,
    starts: jax.Array,
    horizon: int,
    *,
    is_rematerialised: bool = False,
) -> Imagined:
    """Roll every start state through every model under a policy.

    Args:
        policy: The policy.
        model: How a member is rolled.
        members: K members, stacked along the first axis.
        starts: Raw history windows [N, F, n], newest frame first.
        horizon: Steps H.
        is_rematerialised: Compute a step's intermediate values again in the backward pass instead
            of keeping them: about a third more work for a fraction of the memory.

    Returns:
        The imagined trajectories.
    """
    imagined, _ = _roll(
        lambda window, _: (policy(window), None),
        model,
        members,
        starts,
        None,
        horizon,
        is_rematerialised,
    )
    return imagined


def imagine_each(
    policy: Callable[[jax.Array, jax.Array], tuple[jax.Array, Note]],
    model: DynamicsModel,
    members: Params,
    starts: jax.Array,
    settings: jax.Array,
    horizon: int,
    *,
    is_rematerialised: bool = False,
) -> tuple[Imagined, Note]:
    """As :func:`imagine`, with a policy that is told something else in each trajectory.

    Args:
        policy: ``policy(window [F, n], setting) -> (action [d], note)``; the note is whatever is
            to be known later of how the action was chosen, a tree of arrays.
        model: How a member is rolled.
        members: K members, stacked along the first axis.
        starts: Raw history windows [N, F, n], newest frame first.
        settings: [N, ...] what the policy is told in the trajectories of each start state.
        horizon: Steps H.
        is_rematerialised: See :func:`imagine`.

    Returns:
        The imagined trajectories, and the notes [H, K, N, ...].
    """
    told = jnp.broadcast_to(settings, (horizon, *settings.shape))
    return _roll(policy, model, members, starts, told, horizon, is_rematerialised)


def follow(
    model: DynamicsModel, members: Params, starts: jax.Array, actions: jax.Array
) -> Imagined:
    """Roll every start state through every model along given actions.

    Args:
        model: How a member is rolled.
        members: K members, stacked along the first axis.
        starts: Raw history windows [N, F, n], newest frame first.
        actions: Raw actions [H, N, d], such as those that were logged.

    Returns:
        The imagined trajectories.
    """
    imagined, _ = _roll(
        lambda _, action: (action, None), model, members, starts, actions, len(actions)
    )
    return imagined


def _roll(
    choose: Callable[[jax.Array, Any], tuple[jax.Array, Note]],
    model: DynamicsModel,
    members: Params,
    starts: jax.Array,
    given: jax.Array | None,
    horizon: int,
    is_rematerialised: bool = False,
) -> tuple[Imagined, Note]:
    """Roll with actions chosen from the window and, if there are any, those given [H, N, d]."""
    num_members = jax.tree.leaves(members)[0].shape[0]

    def step_one(
        member: Params, window: jax.Array, carry: Carry, given: jax.Array | None
    ) -> tuple[jax.Array, Carry, jax.Array, jax.Array, jax.Array, Note]:
        action, note = choose(window, given)
        carry, frame = model.step(member, carry, action)
        reward = model.reward(member, window, action, frame)
        window = jnp.concatenate([frame[None], window[:-1]])
        return window, carry, frame, action, reward, note

    step_all = jax.vmap(jax.vmap(step_one, (None, 0, 0, 0)), (0, 0, 0, None))

    def scan_step(
        state: tuple[jax.Array, Carry], given: jax.Array | None
    ) -> tuple[tuple[jax.Array, Carry], tuple[jax.Array, jax.Array, jax.Array, Note]]:
        window, carry, frame, action, reward, note = step_all(members, *state, given)
        return (window, carry), (frame, action, reward, note)

    windows = jnp.repeat(starts[None], num_members, axis=0)
    carries = jax.vmap(jax.vmap(model.start, (None, 0)))(members, windows)
    body = jax.checkpoint(scan_step) if is_rematerialised else scan_step
    _, (frames, actions, rewards, notes) = jax.lax.scan(
        body, (windows, carries), given, length=horizon
    )
    oldest_first = jnp.moveaxis(windows[:, :, ::-1], 2, 0)
    return Imagined(jnp.concatenate([oldest_first, frames]), actions, rewards), notes


def states_of(imagined: Imagined, frames_seen: int) -> jax.Array:
    """The states in which the actions were chosen: [H, K, N, F', n], newest frame first.

    Built from shifted slices rather than by index, because their gradient is a sum and not a
    scatter.
    """
    horizon = len(imagined.actions)
    newest = len(imagined.frames) - horizon - 1
    shifted = [
        jax.lax.slice_in_dim(imagined.frames, newest - age, newest - age + horizon)
        for age in range(frames_seen)
    ]
    return jnp.stack(shifted, axis=3)
