"""Experts whose noisy play is a data set: small networks, kept as files beside this one.

They were trained online by :mod:`moose.experiments.expert`; ``results/experts`` has the curves.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from safetensors import SafetensorError
from safetensors.numpy import load_file, save

from moose.errors import ConfigError, StorageError
from moose.storage import atomic_file

FOLDER = Path(__file__).parent
SUFFIX = ".safetensors"

Floats = npt.NDArray[np.float32]


class Expert(NamedTuple):
    """A policy: layers with ReLU between them and tanh at the end, into the box [−1, 1]^d."""

    weights: tuple[Floats, ...]
    """[inputs, outputs] of each layer"""
    biases: tuple[Floats, ...]

    def act(self, frames: npt.ArrayLike) -> Floats:
        """Actions ``[..., d]`` in the box for frames ``[..., n]``.

        The same bits on every processor, since episodes drift apart with the last bit of an action:
        a library's matrix product adds up in an order of the processor's own, this one input after
        input; and tanh, which is not the same to the last bit everywhere, is rounded.
        """
        values = np.asarray(frames, np.float32)
        last = len(self.weights) - 1
        for i, (weight, bias) in enumerate(zip(self.weights, self.biases, strict=True)):
            values = (values[..., None] * weight).sum(axis=-2) + bias
            if i < last:
                values = np.maximum(values, np.float32(0.0))
        return np.tanh(values.astype(np.float64)).astype(np.float32)


def make_expert(layers: Sequence[tuple[npt.ArrayLike, npt.ArrayLike]]) -> Expert:
    """An expert of layers (weight, bias)."""
    weights, biases = zip(*layers, strict=True)
    return Expert(
        tuple(np.asarray(weight, np.float32) for weight in weights),
        tuple(np.asarray(bias, np.float32) for bias in biases),
    )


def write_expert(expert: Expert, file: Path) -> None:
    """Write an expert as one file."""
    tensors = {f"weight_{i}": weight for i, weight in enumerate(expert.weights)}
    tensors |= {f"bias_{i}": bias for i, bias in enumerate(expert.biases)}
    with atomic_file(file) as temporary:
        temporary.write_bytes(save(tensors))


def read_expert(file: Path) -> Expert:
    """Read what :func:`write_expert` wrote."""
    try:
        tensors = load_file(file)
        layers = range(len(tensors) // 2)
        expert = make_expert([(tensors[f"weight_{i}"], tensors[f"bias_{i}"]) for i in layers])
        _require_network(expert)
    except (OSError, SafetensorError, KeyError, ValueError) as error:
        raise StorageError(
            f"The expert cannot be read: {error}.",
            where=str(file),
            advice="restore the file, or train the expert again with 'moose data expert'",
        ) from error
    return expert


def _require_network(expert: Expert) -> None:
    """Raise a ValueError if one layer does not fit the next."""
    shapes = [weight.shape for weight in expert.weights]
    if any(len(shape) != 2 for shape in shapes) or not all(
        before[1] == after[0] for before, after in itertools.pairwise(shapes)
    ):
        raise ValueError(f"weights of the shapes {shapes} are no network")
    if [bias.shape for bias in expert.biases] != [(outputs,) for _, outputs in shapes]:
        raise ValueError("its biases do not fit its weights")
    if not all(np.isfinite(part).all() for part in (*expert.weights, *expert.biases)):
        raise ValueError("not all of its numbers are finite")


@functools.lru_cache(maxsize=4)
def find_expert(environment: str) -> Expert:
    """The expert that comes with the program for an environment.

    Args:
        environment: The environment's registered name.

    Returns:
        The expert.
    """
    file = FOLDER / f"{environment}{SUFFIX}"
    if not file.is_file():
        known = ", ".join(sorted(path.stem for path in FOLDER.glob(f"*{SUFFIX}"))) or "none yet"
        raise ConfigError(
            f"There is no expert for the environment '{environment}' (there are: {known}).",
            where="policy 'expert'",
            advice="choose --policy random, or train one with 'moose data expert' and give it with "
            "--expert",
        )
    return read_expert(file)
