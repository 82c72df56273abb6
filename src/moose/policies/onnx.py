"""A policy as an ONNX model: one graph from raw history to raw bounded action and novelty.

    history [batch, F, n]  →  action [batch, d],  novelty [batch] (policies with a support model)

The graph computes what :mod:`moose.policies.plain` does, step for step, with operators of one fixed
set. Before a byte is written the model is checked by ONNX's own checker and made to answer beside
the NumPy policy; if they disagree, nothing is written.
"""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from moose.errors import MissingExtraError, StorageError
from moose.policies.plain import Controller, Layers, Parts, SupportParts, algorithm_of
from moose.policies.probes import probe_windows
from moose.storage import atomic_file
from moose.version import __version__

if TYPE_CHECKING:
    import onnx

OPSET = 18
IR_VERSION = 10
TOLERANCE = 1e-5
"""Of actions, in halves of their range; a novelty may differ by a hundred times as much."""
_NUM_PROBES = 1000


def write_onnx(controller: Controller, file: Path) -> None:
    """Write a policy as an ONNX model, after checking that it answers as the policy does.

    Args:
        controller: The policy.
        file: The file to write or replace.

    Raises:
        MissingExtraError: onnx or onnxruntime is not installed.
        StorageError: The model does not answer as the policy does.
    """
    model = make_model(controller)
    _check(model, controller, file)
    with atomic_file(file) as temporary:
        temporary.write_bytes(model)


def make_model(controller: Controller) -> bytes:
    """The model, unchecked."""
    for package in ("onnx", "onnxruntime"):
        if importlib.util.find_spec(package) is None:
            raise MissingExtraError(package, "onnx", "Writing an ONNX model")
    import onnx  # noqa: PLC0415 (an optional dependency)

    parts = controller.parts
    graph = _Graph()
    clamped = graph.clamped(graph.flat("history", int(np.prod(parts.facts.window_shape))), parts)
    action = _add_policy(graph, clamped, parts)
    facts = parts.facts
    outputs: dict[str, list[str | int]] = {action: ["batch", len(facts.action_names)]}
    if parts.support is not None:
        outputs[_add_novelty(graph, clamped, action, parts.support)] = ["batch"]
    values = onnx.helper.make_tensor_value_info
    model = onnx.helper.make_model(
        onnx.helper.make_graph(
            graph.nodes,
            "policy",
            [values("history", onnx.TensorProto.FLOAT, ["batch", *facts.window_shape])],
            [values(name, onnx.TensorProto.FLOAT, shape) for name, shape in outputs.items()],
            graph.constants,
            doc_string="Raw history, newest frame first, to raw action within bounds.",
        ),
        opset_imports=[onnx.helper.make_opsetid("", OPSET)],
        ir_version=IR_VERSION,
        producer_name="moose",
        producer_version=__version__,
    )
    onnx.helper.set_model_props(model, metadata_of(controller))
    return bytes(model.SerializeToString(deterministic=True))


def metadata_of(controller: Controller) -> dict[str, str]:
    """What the model says of itself: texts, and JSON where there is more to say."""
    manifest = controller.manifest
    return {
        "format": "moose-policy",
        "task": json.dumps(manifest["task"], sort_keys=True),
        "scaling": json.dumps(manifest["scaling"], sort_keys=True),
        "algorithm": algorithm_of(manifest),
        "origin": json.dumps(manifest["origin"], sort_keys=True),
        "files": json.dumps(manifest["files"], sort_keys=True),
    }


class _Graph:
    """Nodes and constants in the order they are added; every value gets a name of its own."""

    def __init__(self) -> None:
        self.nodes: list[onnx.NodeProto] = []
        self.constants: list[onnx.TensorProto] = []

    def constant(self, name: str, values: npt.ArrayLike) -> str:
        import onnx  # noqa: PLC0415

        array = np.asarray(values)
        kind = np.int64 if array.dtype.kind == "i" else np.float32
        unique = f"{name}_constant_{len(self.constants)}"
        self.constants.append(onnx.numpy_helper.from_array(array.astype(kind), unique))
        return unique

    def add(self, operator: str, *inputs: str, name: str = "", **attributes: Any) -> str:
        import onnx  # noqa: PLC0415

        output = name or f"{operator.lower()}_{len(self.nodes)}"
        self.nodes.append(onnx.helper.make_node(operator, list(inputs), [output], **attributes))
        return output

    def limited(self, value: str, low: npt.ArrayLike, high: npt.ArrayLike, name: str = "") -> str:
        above = self.add("Max", value, self.constant("low", low))
        return self.add("Min", above, self.constant("high", high), name=name)

    def filled(self, value: str, fill: npt.ArrayLike) -> str:
        return self.add("Where", self.add("IsNaN", value), self.constant("fill", fill), value)

    def clamped(self, value: str, parts: Parts) -> str:
        # Rows [batch, F·n] and constants as long: one stretch of numbers instead of F short ones.
        fill, low, high = (np.tile(each, parts.facts.history) for each in parts.clamp)
        return self.limited(self.filled(value, fill), low, high)

    def standardised(self, value: str, mean: npt.ArrayLike, deviation: npt.ArrayLike) -> str:
        centred = self.add("Sub", value, self.constant("mean", mean))
        return self.add("Div", centred, self.constant("deviation", deviation))

    def flat(self, value: str, size: int) -> str:
        return self.add("Reshape", value, self.constant("shape", [0, size]))  # 0: as it is

    def network(self, value: str, layers: Layers) -> str:
        for i, (weight, bias) in enumerate(layers):
            weights, biases = self.constant("weight", weight), self.constant("bias", bias)
            value = self.add("Gemm", value, weights, biases)
            value = self.add("Relu", value) if i < len(layers) - 1 else value
        return value


def _add_policy(graph: _Graph, clamped: str, parts: Parts) -> str:
    history, box = parts.facts.history, parts.box
    features = graph.standardised(
        clamped, np.tile(parts.mean, history), np.tile(parts.deviation, history)
    )
    if parts.kind == "network":
        chosen = graph.add("Tanh", graph.network(features, parts.networks["network"]))
    else:
        decoded = graph.add("Tanh", graph.network(features, parts.networks["decoder"]))
        pairs = graph.add("Concat", features, decoded, axis=1)
        shift = graph.add("Tanh", graph.network(pairs, parts.networks["perturbation"]))
        scaled = graph.add("Mul", shift, graph.constant("limit", np.float32(parts.limit)))
        chosen = graph.limited(graph.add("Add", decoded, scaled), np.float32(-1), np.float32(1))
    raw = graph.add(
        "Add",
        graph.add("Mul", chosen, graph.constant("half", box.half)),
        graph.constant("middle", box.middle),
    )
    return graph.limited(graph.filled(raw, box.middle), box.low, box.high, name="action")


def _add_novelty(graph: _Graph, clamped: str, action: str, support: SupportParts) -> str:
    frames = support.frames
    starts, ends, axes = ([0], [frames * len(support.frame_mean)], [1])
    seen = graph.add(
        "Slice", clamped, *(graph.constant("slice", each) for each in (starts, ends, axes))
    )
    pairs = graph.add(
        "Concat",
        graph.standardised(
            seen, np.tile(support.frame_mean, frames), np.tile(support.frame_deviation, frames)
        ),
        graph.standardised(action, support.action_mean, support.action_deviation),
        axis=1,
    )
    again = graph.network(graph.network(pairs, support.encoder), support.decoder)
    difference = graph.add("Sub", again, pairs)
    squares = graph.add("Mul", difference, difference)
    axis = graph.constant("axis", [1])
    error = graph.add("ReduceMean", squares, axis, keepdims=1)
    # A sum over the pieces of the curve, each of which is filled from 0 to 1.
    widths, gains = np.diff(support.errors), np.diff(support.quantiles)
    share = graph.add(
        "Div",
        graph.add("Sub", error, graph.constant("errors", support.errors[:-1])),
        graph.constant("widths", widths),
    )
    filled = graph.limited(share, np.float32(0), np.float32(1))
    within = graph.add("Mul", filled, graph.constant("gains", gains))
    ratio = graph.add("Div", error, graph.constant("largest", support.errors[-1:]))
    beyond = graph.add(
        "Max",
        graph.add("Sub", ratio, graph.constant("one", np.float32(1))),
        graph.constant("zero", np.float32(0)),
    )
    both = graph.add("Concat", within, beyond, axis=1)
    return graph.add("ReduceSum", both, axis, keepdims=0, name="novelty")


def _check(model: bytes, controller: Controller, file: Path) -> None:
    import onnx  # noqa: PLC0415
    import onnxruntime  # noqa: PLC0415

    onnx.checker.check_model(onnx.load_from_string(model), full_check=True)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    session = onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    windows = probe_windows(controller.parts, _NUM_PROBES)
    for batch in (windows[:1], windows[1:8], windows[8:]):
        answers = dict(
            zip(
                [output.name for output in session.get_outputs()],
                session.run(None, {"history": batch}),
                strict=True,
            )
        )
        difference = np.abs(answers["action"] - controller(batch)) / controller.parts.box.half
        problem = not np.max(difference) <= TOLERANCE
        if controller.has_novelty:
            novelty = controller.novelty(batch, controller(batch))
            differs = np.abs(answers["novelty"] - novelty) / np.maximum(novelty, 1.0)
            problem = problem or not np.max(differs) <= 100 * TOLERANCE
        if problem:
            raise StorageError(
                f"The ONNX model does not answer as the policy does (by {np.max(difference):.1e}).",
                where=str(file),
                advice="nothing was written; check the versions of onnx and onnxruntime",
            )
