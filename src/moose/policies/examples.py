"""The examples of a policy: a few histories and what it answered to them when it was saved.

    windows [N, F, n]      within the data's range, beyond it, and absurd
    actions [N, d]
    novelty [N]            of a policy with a support model
    positions [P]          of a policy with a dial, from 0 to 1
    turned [P, N, d]       the actions at these positions

The answers come from JAX, and every load compares its own with them. A policy that was turned
elsewhere has new ``actions`` and ``novelty``, which belong to where its dial stands; ``turned`` is
still what JAX had answered.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from moose.errors import StorageError
from moose.policies.artifact import Artifact, Tensors, require_shapes
from moose.policies.bundle import EXAMPLES
from moose.policies.facts import Floats

if TYPE_CHECKING:
    from moose.policies.plain import Controller

ACTION_TOLERANCE = 1e-4
"""How far an answer may be from the stored one, in halves of the action's range."""
NOVELTY_TOLERANCE = 1e-3
POSITIONS = (0.0, 0.25, 0.5, 0.75, 1.0)
"""Of a dial, wherever several forms of a policy are compared."""


def check_examples(controller: Controller, artifact: Artifact, path: Path) -> None:
    """Let the controller answer the stored examples, and refuse it if it answers otherwise."""
    examples, where = artifact.examples, path / EXAMPLES
    if examples is None:
        raise StorageError(
            "The policy has no examples to be checked by.",
            where=str(where),
            advice="do not trust this policy; get it again from its source",
        )
    _require_form(examples, controller, where)
    windows, expected = examples["windows"], examples["actions"]
    error = _difference(controller, windows, expected)
    if controller.position is not None:
        for position, turned in zip(examples["positions"], examples["turned"], strict=True):
            other = controller.at(float(position))
            error = max(error, _difference(other, windows, turned))
    unusual = 0.0
    if controller.has_novelty:
        found = controller.novelty(windows, expected)
        unusual = (np.abs(found - examples["novelty"]) / np.maximum(found, 1.0)).max(initial=0.0)
    if not len(windows) or not error <= ACTION_TOLERANCE or not unusual <= NOVELTY_TOLERANCE:
        raise StorageError(
            f"The policy does not answer the stored examples as it did when it was saved "
            f"(actions differ by {error:.1e}, novelty by {unusual:.1e}).",
            where=str(where),
            advice="do not use it; get the policy again, or report a defect of this installation",
        )


def answered_again(controller: Controller, examples: Tensors) -> Tensors:
    """The same examples, answered by a controller whose dial was turned."""
    actions = controller(examples["windows"])
    answers = {**examples, "actions": actions}
    if controller.has_novelty:
        novelty = controller.novelty(examples["windows"], actions)
        answers["novelty"] = novelty.astype(np.float32)
    return answers


def _require_form(examples: Tensors, controller: Controller, where: Path) -> None:
    facts, count = controller.facts, len(examples.get("actions", ()))
    shapes: dict[str, tuple[int, ...]] = {
        "windows": (count, *facts.window_shape),
        "actions": (count, len(facts.action_names)),
    }
    if controller.has_novelty:
        shapes["novelty"] = (count,)
    if controller.position is not None:
        num_positions = len(examples.get("positions", ()))
        shapes["positions"] = (num_positions,)
        shapes["turned"] = (num_positions, count, len(facts.action_names))
    # The windows are meant to have numbers that are not finite among them.
    seen = {k: np.nan_to_num(v) if k == "windows" else v for k, v in examples.items()}
    require_shapes(seen, shapes, where)
    if controller.position is not None and not _is_scale(examples["positions"]):
        raise StorageError(
            "The positions of the examples do not grow from 0 to 1.",
            where=f"{where}: positions",
            advice="do not trust this policy; get it again from its source",
        )


def _is_scale(positions: Floats) -> bool:
    ends = positions[:1].tolist() + positions[-1:].tolist()
    return ends == [0.0, 1.0] and bool((np.diff(positions) > 0).all())


def _difference(controller: Controller, windows: Floats, expected: Floats) -> float:
    """The largest of an action, in halves of its range."""
    differences = np.abs((controller(windows) - expected) / controller.parts.box.half)
    return float(differences.max(initial=0.0))
