"""The paper's MuJoCo tasks: which environments they are and what their numbers mean.

The versions are Gymnasium's ``-v4``, whose rewards are those of the paper's ``-v3``.
"""

from __future__ import annotations

from types import MappingProxyType

PREFIX = "mujoco/"
ENVIRONMENTS = MappingProxyType(
    {"swimmer": "Swimmer-v4", "hopper": "Hopper-v4", "walker2d": "Walker2d-v4"}
)
"""By the name of a data set, without its prefix."""
BATCH_RETURNS = MappingProxyType({"swimmer": 19.5, "hopper": 104.1, "walker2d": 77.7})
"""What the data sets earn in the first 100 steps of their episodes, discounted by 0.99, by the same
names: the mean that ``moose data show`` tells."""

_WALKER_JOINTS = (
    "right_thigh",
    "right_leg",
    "right_foot",
    "left_thigh",
    "left_leg",
    "left_foot",
)
OBSERVATION_NAMES = MappingProxyType(
    {
        "Swimmer-v4": (
            "tip_angle",
            "first_angle",
            "second_angle",
            "tip_speed_x",
            "tip_speed_y",
            "tip_turning",
            "first_turning",
            "second_turning",
        ),
        "Hopper-v4": (
            "height",
            "torso_angle",
            "thigh_angle",
            "leg_angle",
            "foot_angle",
            "speed_x",
            "speed_z",
            "torso_turning",
            "thigh_turning",
            "leg_turning",
            "foot_turning",
        ),
        "Walker2d-v4": (
            "height",
            "torso_angle",
            *(f"{joint}_angle" for joint in _WALKER_JOINTS),
            "speed_x",
            "speed_z",
            "torso_turning",
            *(f"{joint}_turning" for joint in _WALKER_JOINTS),
        ),
    }
)
ACTION_NAMES = MappingProxyType(
    {
        "Swimmer-v4": ("first_torque", "second_torque"),
        "Hopper-v4": ("thigh_torque", "leg_torque", "foot_torque"),
        "Walker2d-v4": tuple(f"{joint}_torque" for joint in _WALKER_JOINTS),
    }
)


def dataset_names() -> tuple[str, ...]:
    """The names of the three data sets."""
    return tuple(f"{PREFIX}{name}" for name in ENVIRONMENTS)


def batch_return(name: str) -> float:
    """What the data set of this name earns; see :data:`BATCH_RETURNS`."""
    return BATCH_RETURNS[name.removeprefix(PREFIX)]
