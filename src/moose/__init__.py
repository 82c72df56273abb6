"""MOOSE: from a plant's logs to a controller, by offline model-based reinforcement learning."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from moose.version import __version__

if TYPE_CHECKING:
    from moose.policies.plain import load_policy

__all__ = ["__version__", "load_policy"]


def __getattr__(name: str) -> Any:
    # On demand, so that importing the package alone costs nothing.
    if name == "load_policy":
        from moose.policies.plain import load_policy  # noqa: PLC0415

        return load_policy
    raise AttributeError(f"module 'moose' has no attribute '{name}'")
