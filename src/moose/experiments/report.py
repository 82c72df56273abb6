"""A run told on one page: a single HTML file that needs nothing else, light or dark.

The verdict comes first, then what it rests on. The page has no script and asks for nothing from
anywhere; every text is escaped (:mod:`moose.experiments.markup`).
"""

from __future__ import annotations

import importlib.resources
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from moose.errors import ConfigError
from moose.experiments.evaluate import evaluate_run
from moose.experiments.journal import Warn
from moose.experiments.judgement import JudgedRun, JudgeSettings, judge_run
from moose.experiments.markup import Markup, element
from moose.experiments.report_evidence import familiar_section, models_section, signals_section
from moose.experiments.report_summary import (
    configuration_section,
    data_section,
    returns_section,
    training_section,
    truth_section,
    verdict_section,
    versions_section,
)
from moose.experiments.run_folder import find_finished_run, read_run
from moose.experiments.runner import versions
from moose.progress import SILENT, Progress
from moose.storage import atomic_file
from moose.tasks.registry import task_of
from moose.wording import counted

REPORT = "report.html"
LARGEST = 2_000_000
"""Bytes that a report may have."""
_TRUE_EPISODES = 200


def write_report(
    folder: Path,
    out: Path | None = None,
    settings: JudgeSettings | None = None,
    *,
    cache: Path | None = None,
    progress: Progress = SILENT,
    warn: Warn = lambda text: None,
) -> tuple[Path, dict[str, Any]]:
    """Write the report of a finished run; what is not yet judged is judged first.

    Args:
        folder: The folder of a run with one seed.
        out: The file to write; ``report.html`` in the run's folder by default.
        settings: How to judge.
        cache: Cache of data sets and fitted models; the user's own by default.
        progress: Whom to tell.
        warn: Called with a sentence when something is amiss but mended.

    Returns:
        The file, and the judgement.
    """
    folder = find_finished_run(folder)
    path = out or folder / REPORT
    if path.suffix not in {".html", ".htm"}:
        raise ConfigError(
            f"A report cannot be written as '{path.name}'.",
            where=str(path),
            advice="let the name end in .html",
        )
    judged = judge_run(folder, settings, cache=cache, progress=progress, warn=warn, is_fresh=False)
    true = None
    if task_of(read_run(folder).data.provenance).definition is None:
        true = evaluate_run(
            folder,
            episodes=_TRUE_EPISODES,
            position=judged.content["settings"]["position"],
            cache=cache,
            progress=progress,
            warn=warn,
        )
    with atomic_file(path) as temporary:
        temporary.write_text(make_page(folder, judged, true), encoding="utf-8")
    return path, judged.content


def make_page(folder: Path, judged: JudgedRun, true: Mapping[str, Any] | None) -> str:
    """The whole page.

    Args:
        folder: The run's folder.
        judged: The run and its judgement.
        true: What :func:`~moose.experiments.evaluate.evaluate_run` gave, where there is a
            simulator.

    Returns:
        HTML.
    """
    content, request = judged.content, judged.manifest.request
    title = f"{judged.task.name}: {content['verdict']}"
    sections = {
        "verdict": ("Verdict", verdict_section(content)),
        "returns": ("What it would earn", returns_section(content)),
        "truth": ("What it earns in the true plant", truth_section(folder, content, true)),
        "data": ("Data", data_section(judged)),
        "models": ("Models", models_section(content)),
        "training": ("Training", training_section(folder)),
        "behaviour": ("Policy and behaviour, signal by signal", signals_section(judged)),
        "familiar": ("How familiar it stays", familiar_section(judged)),
        "configuration": ("Configuration", configuration_section(judged)),
        "versions": ("Versions", versions_section(judged)),
    }
    shown = {name: part for name, part in sections.items() if part[1]}
    style = importlib.resources.files("moose.experiments").joinpath("report.css").read_text("utf-8")
    head = element(
        "head",
        element("meta", charset="utf-8"),
        element("meta", name="viewport", content="width=device-width, initial-scale=1"),
        # Even a text that was not escaped could not load or run anything.
        element(
            "meta",
            http_equiv="Content-Security-Policy",
            content="default-src 'none'; style-src 'unsafe-inline'",
        ),
        element("title", title),
        element("style", Markup(style)),
    )
    header = element(
        "header",
        element("h1", judged.task.name),
        element(
            "p",
            f"{request.algorithm}, preset {request.preset}, seed {request.seed}, on "
            f"{counted(judged.dataset.num_transitions, 'transition')} in "
            f"{counted(judged.dataset.num_episodes, 'episode')}",
            class_="soft",
        ),
        element("nav", *(element("a", part[0], href=f"#{name}") for name, part in shown.items())),
    )
    body = [
        element("section", element("h2", part[0]) if name != "verdict" else None, part[1], id=name)
        for name, part in shown.items()
    ]
    footer = element(
        "footer",
        f"Run {judged.manifest.digest}, judgement {content['digest']}, moose "
        f"{versions()['moose']}.",
    )
    page = element("html", head, element("body", header, element("main", *body), footer), lang="en")
    return "<!DOCTYPE html>\n" + page + "\n"
