"""Ensembles of dynamics models of either kind, behind one door.

``stacked`` models see the history window as it is (:mod:`moose.models.dynamics`); ``recurrent``
ones remember what they have seen (:mod:`moose.models.recurrent`). Whoever fits, keeps or rolls an
ensemble does it through these functions and need not know which kind it is.
"""

from __future__ import annotations

from typing import Any, Literal

from pydantic import SerializerFunctionWrapHandler, model_serializer

from moose.config import digest
from moose.data.dataset import Dataset
from moose.models.dynamics import (
    Ensemble,
    Members,
    ReadyMember,
    Scales,
    StackedModel,
    StackedSettings,
    fit_stacked,
    init_stacked,
    ready_stacked,
)
from moose.models.recurrent import (
    RecurrentEnsemble,
    RecurrentMembers,
    RecurrentModel,
    RecurrentSettings,
    init_recurrent,
)
from moose.models.recurrent_fit import fit_recurrent
from moose.models.recurrent_scales import RecurrentScales
from moose.progress import SILENT, Progress
from moose.tasks.task import Task
from moose.training import FORGETFUL, Journal, key_numbers
from moose.types import DynamicsModel, Key

_RECURRENT_VERSION = 4
"""Changes whenever a fit of the same settings gives other recurrent models."""

AnyEnsemble = Ensemble | RecurrentEnsemble
"""A fitted ensemble of either kind; both have ``members`` and ``scales``."""
AnyMembers = Members | RecurrentMembers
"""K members as they are fitted and kept."""
AnyReadyMembers = ReadyMember | RecurrentMembers
"""K members ready to roll; see :func:`ready`."""
AnyScales = Scales | RecurrentScales
"""Statistics of the training data; both kinds have those of ``frame`` and ``reward``."""


class DynamicsSettings(StackedSettings):
    """How the ensemble is built and trained; ``members`` counts for both kinds."""

    kind: Literal["stacked", "recurrent"] = "stacked"
    """Networks on the stacked frames of the history, or gated cells that remember."""
    recurrent: RecurrentSettings = RecurrentSettings()
    """Of the kind ``recurrent``; the other settings are those of ``stacked``."""

    @model_serializer(mode="wrap")
    def _tree(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        # Stacked models look as they did when there was no other kind, so that the digests of
        # finished runs, and of fits in a cache, are still the digests of the same request.
        tree: dict[str, Any] = handler(self)
        if self.kind == "stacked" and self.recurrent == RecurrentSettings():
            del tree["kind"], tree["recurrent"]
        return tree


def fit_ensemble(
    dataset: Dataset,
    task: Task,
    settings: DynamicsSettings,
    key: Key,
    *,
    progress: Progress = SILENT,
    journal: Journal = FORGETFUL,
) -> AnyEnsemble:
    """Train an ensemble of the kind that the settings name.

    Args:
        dataset: The training episodes.
        task: What is known about the plant.
        settings: Kind, sizes and training.
        key: One key, or one for each of several seeds (members then have a leading axis).
        progress: Whom to tell.
        journal: Where checkpoints and metrics go.

    Returns:
        The fitted ensemble.
    """
    if settings.kind == "stacked":
        return fit_stacked(dataset, task, settings, key, progress=progress, journal=journal)
    return fit_recurrent(
        dataset,
        task,
        settings.members,
        settings.recurrent,
        key,
        progress=progress,
        journal=journal,
    )


def init_ensemble(
    dataset: Dataset, task: Task, settings: DynamicsSettings, key: Key
) -> AnyEnsemble:
    """The ensemble before training; see :func:`fit_ensemble`."""
    if settings.kind == "stacked":
        return init_stacked(dataset, task, settings, key)
    return init_recurrent(dataset, task, settings.members, settings.recurrent, key)


def fit_digest(dataset: Dataset, task: Task, settings: DynamicsSettings, key: Key) -> str:
    """What names a fit: everything that :func:`fit_ensemble` depends on."""
    facts: list[object] = [*task.facts]
    if settings.kind == "recurrent":
        # These run through known physics in training, and see actions by their bounds.
        facts += [task.action_low, task.action_high, task.observation_ranges, task.definition]
        facts.append(_RECURRENT_VERSION)
    return digest(dataset.fingerprint, facts, settings, key_numbers(key))


def make_model(task: Task, scales: AnyScales) -> DynamicsModel:
    """How a member is rolled, by the kind of its scales."""
    if isinstance(scales, RecurrentScales):
        return RecurrentModel(task, scales)
    return StackedModel(task, scales)


def ready(members: AnyMembers) -> AnyReadyMembers:
    """All members ready to roll: what can be computed once for a rollout has been."""
    return members if isinstance(members, RecurrentMembers) else ready_stacked(members)
