"""What a policy is made of, read from its file, and how its networks choose; in NumPy."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import numpy.typing as npt

from moose.errors import ConfigError, StorageError
from moose.policies.artifact import (
    Artifact,
    Clamp,
    Tensors,
    clamp_of,
    require_shapes,
)
from moose.policies.bundle import SUPPORT
from moose.policies.facts import Box, Floats, TaskFacts, box_of
from moose.storage import MANIFEST

_SMALLEST_ERROR = 1e-12
_ZERO = np.float32(0.0)

Layers = tuple[tuple[Floats, Floats], ...]
"""(weight [inputs, outputs], bias [outputs]) of each layer; ReLU between them."""


@dataclass(frozen=True)
class SupportParts:
    """The support model: what it needs to tell how unusual a pair of history and action is.

    Attributes:
        frames: How many of the newest frames it sees.
        frame_mean: ``[n]``; the deviations likewise.
        frame_deviation: ``[n]``
        action_mean: ``[d]``
        action_deviation: ``[d]``
        encoder: Pair to the mean of the latents.
        decoder: Latents to pair.
        errors: ``[Q + 1]``, growing from 0: reconstruction errors at quantiles of the data.
        quantiles: ``[Q + 1]``, from 0 to 1.
    """

    frames: int
    frame_mean: Floats
    frame_deviation: Floats
    action_mean: Floats
    action_deviation: Floats
    encoder: Layers
    decoder: Layers
    errors: Floats
    quantiles: Floats


@dataclass(frozen=True)
class Parts:
    """All numbers that a deterministic policy is made of; exports are written from these.

    Attributes:
        facts: Of the task.
        kind: The kind of the policy.
        clamp: Of a frame.
        mean: ``[n]``
        deviation: ``[n]``
        box: Bounds of the actions.
        networks: By name.
        limit: The largest perturbation, of a policy of the kind "decoded".
        position: Where the dial stands, of a policy of the kind "dial"; None of all others.
        support: None if the policy has no support model.
    """

    facts: TaskFacts
    kind: str
    clamp: Clamp
    mean: Floats
    deviation: Floats
    box: Box
    networks: Mapping[str, Layers]
    limit: float
    position: float | None
    support: SupportParts | None


def parts_of(artifact: Artifact, path: Path) -> Parts:
    """The numbers of a deterministic policy, by the equations' names."""
    kind, facts = artifact.manifest.get("kind"), artifact.facts
    if facts is None:
        raise StorageError(
            "This policy was saved by an earlier version and does not know its task's columns.",
            where=str(path),
            advice="load it by moose.policies.policy.load_policy and save it again",
        )
    if artifact.manifest.get("is_stochastic") is True:
        raise ConfigError(
            f"This policy draws samples to act (kind '{kind}'), which only JAX does.",
            where=str(path),
            advice="train it with --set acting=deterministic",
        )
    if not isinstance(kind, str) or kind not in CHOOSE:
        raise StorageError(
            f"The manifest names a kind of policy that is not known: {kind!r}.",
            where=f"{path / MANIFEST}: kind",
            advice=f"it should be one of: {', '.join(CHOOSE)}",
        )
    tensors = artifact.tensors
    networks = {
        name: tuple(
            (tensors[f"{name}/{i}/weight"], tensors[f"{name}/{i}/bias"])
            for i in range(len(sizes) - 1)
        )
        for name, sizes in artifact.networks.items()
    }
    _check_sizes(kind, artifact.networks, facts, path)
    numbers = _numbers_in(artifact.manifest, kind, path)
    support = None
    if artifact.support is not None:
        support = _support_parts(artifact.manifest.get("support"), artifact.support, facts, path)
    return Parts(
        facts=facts,
        kind=kind,
        clamp=clamp_of(tensors),
        mean=tensors["scale/mean"],
        deviation=tensors["scale/deviation"],
        box=box_of(facts),
        networks=MappingProxyType(_without_latents(kind, networks, facts)),
        limit=numbers.get("limit", 0.0),
        position=numbers.get("position"),
        support=support,
    )


def apply_layers(layers: Layers, inputs: Floats) -> Floats:
    """ReLU after every layer but the last."""
    for weight, bias in layers[:-1]:
        inputs = inputs @ weight
        inputs += bias
        np.maximum(inputs, _ZERO, out=inputs)
    weight, bias = layers[-1]
    outputs: Floats = inputs @ weight
    outputs += bias
    return outputs


def reconstruction_error(support: SupportParts, windows: Floats, actions: Floats) -> Floats:
    """‖x − x̂‖² / D of the standardised pairs of windows [B, F, n] and actions [B, d]."""
    frames = (windows[:, : support.frames] - support.frame_mean) / support.frame_deviation
    pairs = np.concatenate(
        [
            frames.reshape(len(windows), -1),
            (actions - support.action_mean) / support.action_deviation,
        ],
        axis=-1,
    )
    latents = apply_layers(support.encoder, pairs)
    differences = apply_layers(support.decoder, latents)
    differences -= pairs
    differences *= differences
    errors: Floats = differences.sum(axis=-1)
    errors /= np.float32(pairs.shape[-1])
    return errors


def score_of(support: SupportParts, errors: Floats) -> npt.NDArray[np.float64]:
    """Errors [B] as quantiles of the data's own; beyond its largest, as multiples of that one."""
    return score_on(support.errors, support.quantiles, errors)


def score_on(curve: Floats, quantiles: Floats, errors: Floats) -> npt.NDArray[np.float64]:
    """The same, on the points of :func:`growing_curve`."""
    within = np.interp(errors, curve, quantiles)
    beyond = np.asarray(errors, np.float64) / curve[-1] - 1.0
    return np.asarray(within + np.maximum(beyond, 0.0))


def algorithm_of(manifest: Mapping[str, Any]) -> str:
    """The name of the algorithm that made a policy."""
    origin = manifest.get("origin")
    return str(origin.get("algorithm")) if isinstance(origin, Mapping) else "unknown"


def _choose_network(parts: Parts, features: Floats) -> Floats:
    return np.tanh(apply_layers(parts.networks["network"], features))


def _choose_decoded(parts: Parts, features: Floats) -> Floats:
    decoded = np.tanh(apply_layers(parts.networks["decoder"], features))
    pairs = np.concatenate([features, decoded], axis=-1)
    shift = np.tanh(apply_layers(parts.networks["perturbation"], pairs))
    return np.clip(decoded + np.float32(parts.limit) * shift, np.float32(-1.0), np.float32(1.0))


def _choose_dial(parts: Parts, features: Floats) -> Floats:
    """(1 − λ) tanh b(s) + λ tanh f(s, λ)."""
    known = np.tanh(apply_layers(parts.networks["behaviour"], features))
    position = np.float32(parts.position or 0.0)
    if position == 0:
        return known
    column = np.full((len(features), 1), position, np.float32)
    found = np.tanh(apply_layers(parts.networks["search"], np.hstack([features, column])))
    return known + position * (found - known)


CHOOSE: Mapping[str, Callable[[Parts, Floats], Floats]] = MappingProxyType(
    {"network": _choose_network, "decoded": _choose_decoded, "dial": _choose_dial}
)
"""How each deterministic kind acts: features [B, S] to actions in [−1, 1]^d."""
NUMBERS: Mapping[str, Mapping[str, tuple[float, float]]] = MappingProxyType(
    {
        "network": {},
        "decoded": {"limit": (float(np.finfo(np.float32).tiny), 100_000)},
        "dial": {"position": (0.0, 1.0)},
    }
)
"""The fixed numbers of each of these kinds, all of them floats, and their ranges."""


def _without_latents(kind: str, networks: dict[str, Layers], facts: TaskFacts) -> dict[str, Layers]:
    """A decoder whose latents are all 0 does not need the weights for them."""
    if kind != "decoded":
        return networks
    (weight, bias), *rest = networks["decoder"]
    size = facts.history * len(facts.observation_names)
    return networks | {"decoder": ((weight[:size], bias), *rest)}


def _numbers_in(manifest: Mapping[str, Any], kind: str, path: Path) -> dict[str, float]:
    """The kind's fixed numbers, or an error if something else is there."""
    found, ranges = manifest.get("numbers", {}), NUMBERS[kind]
    if (
        not isinstance(found, Mapping)
        or found.keys() != ranges.keys()
        or not all(type(found[name]) is float for name in ranges)
        or not all(low <= found[name] <= high for name, (low, high) in ranges.items())
    ):
        expected = ", ".join(f"{n} from {low:g} to {high:g}" for n, (low, high) in ranges.items())
        raise StorageError(
            f"The manifest's fixed numbers are not those of the kind '{kind}', which has "
            f"{expected or 'none'}.",
            where=f"{path / MANIFEST}: numbers",
            advice="do not trust this policy; get it again from its source",
        )
    return dict(found)


def _check_sizes(
    kind: str, networks: Mapping[str, list[int]], facts: TaskFacts, path: Path
) -> None:
    features, actions = facts.history * len(facts.observation_names), len(facts.action_names)
    expected = {
        "network": {"network": (features, actions)},
        "decoded": {
            "decoder": (features + 2 * actions, actions),
            "perturbation": (features + actions, actions),
        },
        "dial": {"behaviour": (features, actions), "search": (features + 1, actions)},
    }[kind]
    found = {name: (sizes[0], sizes[-1]) for name, sizes in networks.items()}
    if kind == "decoded" and "decoder" in found:  # which may have any number of latents
        expected["decoder"] = (max(found["decoder"][0], features), actions)
    if found != expected:
        raise StorageError(
            f"The networks do not fit the task: {found}, expected {expected}.",
            where=f"{path / MANIFEST}: networks",
            advice="do not trust this policy; get it again from its source",
        )


def _support_parts(tree: Any, tensors: Tensors, facts: TaskFacts, path: Path) -> SupportParts:
    """The support model from its tensors, whose shapes the manifest must have told."""
    signals, actions = len(facts.observation_names), len(facts.action_names)
    encoder, decoder, quantiles = _support_sizes(tree)
    frames, rest = divmod((encoder or [0])[0] - actions, signals)
    if not (
        len(encoder) == 3
        and len(decoder) >= 2
        and (decoder[0], decoder[-1]) == (encoder[-1], encoder[0])
        and rest == 0
        and 1 <= frames <= facts.history
        and len(quantiles)
        and quantiles[-1] == 1.0
        and bool((np.diff(quantiles, prepend=0.0) >= 0).all())
    ):
        raise StorageError(
            "The manifest does not describe a support model of this task.",
            where=f"{path / MANIFEST}: support",
            advice="do not trust this policy; get it again from its source",
        )
    inputs, width, latents = encoder
    network = "support/autoencoder"
    shapes: dict[str, tuple[int, ...]] = {"errors": (len(quantiles),)}
    for name, n, m in (
        ("encoder", inputs, width),
        ("mean_head", width, latents),
        ("log_deviation_head", width, latents),
        *((f"decoder/{i}", n, m) for i, (n, m) in enumerate(itertools.pairwise(decoder))),
    ):
        shapes |= {f"{network}/{name}/weight": (n, m), f"{network}/{name}/bias": (m,)}
    for name, size in (("frame", signals), ("action", actions)):
        for each in ("mean", "deviation", "minimum", "maximum"):
            shapes[f"support/scales/{name}/{each}"] = (size,)
    require_shapes(tensors, shapes, path / SUPPORT)

    def layer(name: str) -> tuple[Floats, Floats]:
        return tensors[f"{network}/{name}/weight"], tensors[f"{network}/{name}/bias"]

    errors, scores = growing_curve(tensors["errors"], quantiles)
    scales = {name: tensors[f"support/scales/{name}"] for name in _SCALES}
    if not all((scales[f"{name}/deviation"] > 0).all() for name in ("frame", "action")):
        raise StorageError(
            "A deviation of the support model's scaling is not above 0.",
            where=str(path / SUPPORT),
            advice="do not trust this policy; get it again from its source",
        )
    return SupportParts(
        frames=frames,
        frame_mean=scales["frame/mean"],
        frame_deviation=scales["frame/deviation"],
        action_mean=scales["action/mean"],
        action_deviation=scales["action/deviation"],
        encoder=(layer("encoder"), layer("mean_head")),
        decoder=tuple(layer(f"decoder/{i}") for i in range(len(decoder) - 1)),
        errors=errors,
        quantiles=scores,
    )


def _support_sizes(tree: Any) -> tuple[list[int], list[int], Floats]:
    """Sizes of encoder and decoder and the quantiles, or nothing where something else is."""
    try:
        quantiles = np.array(tree["quantiles"], np.float32)
        encoder, decoder = ([int(size) for size in tree[name]] for name in ("encoder", "decoder"))
    except (KeyError, TypeError, ValueError):
        return [], [], np.zeros(0, np.float32)
    return encoder, decoder, quantiles if quantiles.ndim == 1 else np.zeros(0, np.float32)


_SCALES = ("frame/mean", "frame/deviation", "action/mean", "action/deviation")


def growing_curve(errors: Floats, quantiles: Floats) -> tuple[Floats, Floats]:
    """The points of a strictly growing curve from (0, 0) to (largest error, 1)."""
    points = {0.0: 0.0}
    for error, quantile in zip(np.maximum.accumulate(errors), quantiles, strict=True):
        points[max(float(error), _SMALLEST_ERROR)] = float(quantile)  # of equal errors the last
    table = np.array(sorted(points.items()), np.float32)
    return table[:, 0].copy(), table[:, 1].copy()
