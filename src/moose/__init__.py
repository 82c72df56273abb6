"""MOOSE: from a plant's logs to a controller, by offline model-based reinforcement learning."""

from moose.version import __version__

__all__ = ["__version__"]
