"""A policy as an ONNX model: one graph from raw history to raw bounded action and novelty.

    history [batch, F, n]  →  action [batch, d],  novelty [batch] (policies with a support model)

A policy with a dial is written where the dial stands. On request its position becomes a second
input ``position [batch, 1]``, one for each history: it is clamped to [0, 1], and what is not a
number becomes the position at which the policy was written.

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
from moose.policies.facts import Floats
from moose.policies.parts import Layers, Parts, SupportParts, algorithm_of
from moose.policies.plain import Controller
from moose.policies.probes import probe_positions, probe_windows
from moose.storage import atomic_file
from moose.version import __version__

if TYPE_CHECKING:
    import onnx

OPSET = 18
IR_VERSION = 10
TOLERANCE = 1e-5
"""Of actions, in halves of their range; a novelty may differ by a hundred times as much."""
_NUM_PROBES = 1000


def write_onnx(controller: Controller, file: Path, *, is_turnable: bool = False) -> None:
    """Write a policy as an ONNX model, after checking that it answers as the policy does.

    Args:
        controller: The policy.
        file: The file to write or replace.
        is_turnable: Make the position of the policy's dial an input.

    Raises:
        MissingExtraError: onnx or onnxruntime is not installed.
        ConfigError: The policy is to be turnable and has no dial.
        StorageError: The model does not answer as the policy does.
    """
    model = make_model(controller, is_turnable=is_turnable)
    _check(model, controller, file, is_turnable)
    with atomic_file(file) as temporary:
        temporary.write_bytes(model)


def make_model(controller: Controller, *, is_turnable: bool = False) -> bytes:
    """The model, unchecked."""
    for package in ("onnx", "onnxruntime"):
        if importlib.util.find_spec(package) is None:
            raise MissingExtraError(package, "onnx", "Writing an ONNX model")
    import onnx  # noqa: PLC0415 (an optional dependency)

    parts, facts = controller.parts, controller.facts
    inputs: dict[str, list[str | int]] = {"history": ["batch", *facts.window_shape]}
    if is_turnable:
        controller.require_dial()
        inputs["position"] = ["batch", 1]
    graph = _Graph()
    clamped = graph.clamped(graph.flat("history", int(np.prod(facts.window_shape))), parts)
    action = _add_policy(graph, clamped, parts, is_turnable)
    outputs: dict[str, list[str | int]] = {action: ["batch", len(facts.action_names)]}
    if parts.support is not None:
        outputs[_add_novelty(graph, clamped, action, parts.support)] = ["batch"]
    values = onnx.helper.make_tensor_value_info
    model = onnx.helper.make_model(
        onnx.helper.make_graph(
            graph.nodes,
            "policy",
            [values(name, onnx.TensorProto.FLOAT, shape) for name, shape in inputs.items()],
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
    dial = {} if controller.position is None else {"position": repr(controller.position)}
    return dial | {
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


def _add_policy(graph: _Graph, clamped: str, parts: Parts, is_turnable: bool) -> str:
    history, box = parts.facts.history, parts.box
    features = graph.standardised(
        clamped, np.tile(parts.mean, history), np.tile(parts.deviation, history)
    )
    if parts.kind == "network":
        chosen = graph.add("Tanh", graph.network(features, parts.networks["network"]))
    elif parts.kind == "dial":
        chosen = _add_dial(graph, features, parts, is_turnable)
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


def _add_dial(graph: _Graph, features: str, parts: Parts, is_turnable: bool) -> str:
    known = graph.add("Tanh", graph.network(features, parts.networks["behaviour"]))
    stored = np.float32(parts.position or 0.0)
    if not is_turnable and stored == 0:
        return known
    if is_turnable:
        filled = graph.filled("position", stored)
        position = graph.limited(filled, np.float32(0), np.float32(1))
    else:
        position = graph.constant("position", stored)
    # The last row of the first weights is the position's, and the same for the whole history.
    (weight, bias), *rest = parts.networks["search"]
    told = graph.add("Mul", position, graph.constant("weight", weight[-1:]))
    value = graph.add("Add", graph.network(features, ((weight[:-1], bias),)), told)
    if rest:
        value = graph.network(graph.add("Relu", value), tuple(rest))
    difference = graph.add("Sub", graph.add("Tanh", value), known)
    mixed = graph.add("Add", known, graph.add("Mul", position, difference))
    if not is_turnable:
        return mixed
    is_mixed = graph.add("Greater", position, graph.constant("zero", np.float32(0)))
    return graph.add("Where", is_mixed, mixed, known)  # at 0 whatever the search says


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


def _check(model: bytes, controller: Controller, file: Path, is_turnable: bool) -> None:
    import onnx  # noqa: PLC0415
    import onnxruntime  # noqa: PLC0415

    onnx.checker.check_model(onnx.load_from_string(model), full_check=True)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    session = onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    names = [output.name for output in session.get_outputs()]

    def answer(**inputs: Floats) -> dict[str, Floats]:
        return dict(zip(names, session.run(None, inputs), strict=True))

    windows = probe_windows(controller.parts, _NUM_PROBES)
    for batch in (windows[:1], windows[1:8], windows[8:]):
        if not is_turnable:
            _compare(answer(history=batch), controller, batch, file)
            continue
        for given, meant in probe_positions(controller.parts):
            column = np.full((len(batch), 1), given, np.float32)
            _compare(answer(history=batch, position=column), controller.at(meant), batch, file)


def _compare(
    answers: dict[str, Floats], controller: Controller, windows: Floats, file: Path
) -> None:
    """Raise a :class:`StorageError` unless these are the controller's own answers."""
    actions = controller(windows)
    difference = np.abs(answers["action"] - actions) / controller.parts.box.half
    problem = not np.max(difference) <= TOLERANCE
    if controller.has_novelty:
        novelty = controller.novelty(windows, actions)
        differs = np.abs(answers["novelty"] - novelty) / np.maximum(novelty, 1.0)
        problem = problem or not np.max(differs) <= 100 * TOLERANCE
    if problem:
        raise StorageError(
            f"The ONNX model does not answer as the policy does (by {np.max(difference):.1e}).",
            where=str(file),
            advice="nothing was written; check the versions of onnx and onnxruntime",
        )
