"""A run told on one page: a single HTML file that needs nothing else, light or dark.

The verdict comes first, then what it rests on. The page has no script and asks for nothing from
anywhere; every text is escaped (:mod:`moose.experiments.markup`).
"""

from __future__ import annotations

import importlib.resources
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from moose.errors import ConfigError
from moose.evaluation.offline import CLONE, HOLD, LOG, NEW, POLICY
from moose.experiments.charts import (
    Level,
    Series,
    Span,
    forest_chart,
    histogram,
    legend,
    line_chart,
    scatter_chart,
)
from moose.experiments.data_report import report_data, returns_of_stretches
from moose.experiments.evaluate import evaluate_run
from moose.experiments.journal import Warn
from moose.experiments.judgement import LABELS, JudgedRun, JudgeSettings, judge_run
from moose.experiments.markup import Markup, element, join, number, percent
from moose.experiments.run_folder import (
    METRICS,
    find_finished_run,
    read_evaluations,
    read_lines,
    read_run,
)
from moose.experiments.runner import versions
from moose.progress import SILENT, Progress
from moose.storage import atomic_file
from moose.tasks.registry import task_of

REPORT = "report.html"
LARGEST = 2_000_000
"""Bytes that a report may have."""
_MOST_PANELS = 24
_TRUE_EPISODES = 200
_CONTROLLERS = (POLICY, CLONE, HOLD, LOG)
_STYLES = {POLICY: 0, CLONE: 1, HOLD: 2, LOG: 3}
_LOGGED = 3
_WIDE = 1030

_MEANING = {
    "deploy candidate": (
        "good",
        "The policy stays with what the log knows and is imagined to do better than the behaviour "
        "that made it. This is a reason for a guarded trial in the plant, not a proof.",
    ),
    "too far from data": (
        "bad",
        "The policy leads to situations that the log does not know. What models say there is worth "
        "nothing. Train again with a smaller weight of the return, search.return_weight.",
    ),
    "models too weak": (
        "bad",
        "The models cannot tell good stretches of the log from bad ones, so that nothing they say "
        "of the policy counts. More data, a longer history or other signals may help.",
    ),
    "nothing gained": (
        "warn",
        "The policy is not imagined to do better than what was done anyway, or not certainly. "
        "There is no reason to deploy it.",
    ),
}


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
            folder, episodes=_TRUE_EPISODES, cache=cache, progress=progress, warn=warn
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
        "verdict": ("Verdict", _verdict(content)),
        "returns": ("What it would earn", _returns(content)),
        "truth": ("What it earns in the true plant", _truth(folder, content, true)),
        "data": ("Data", _data(judged)),
        "models": ("Models", _models(content)),
        "training": ("Training", _training(folder)),
        "behaviour": ("Policy and behaviour, signal by signal", _signals(judged)),
        "familiar": ("How familiar it stays", _familiar(judged)),
        "configuration": ("Configuration", _configuration(judged)),
        "versions": ("Versions", _versions(judged)),
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
            f"{judged.dataset.num_transitions:,} transitions in "
            f"{judged.dataset.num_episodes:,} episodes",
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


def _verdict(content: Mapping[str, Any]) -> Markup:
    style, meaning = _MEANING[content["verdict"]]
    gain, policy = content["gains"][CLONE], content["controllers"][POLICY]
    bounds = max(policy["at_bounds"].values())
    cards = [
        (
            f"{_signed(gain['mean'])}",
            f"imagined gain over the cloned behaviour; 95 %: {_signed(gain['low'])} to "
            f"{_signed(gain['high'])}",
        ),
        (percent(policy["new"]), "of its situations are new to the log (the log's own: 1 %)"),
        (
            percent(max(content["models"]["explained"], 0.0)),
            "of the differences in what the log has earned are told by the models",
        ),
        (percent(bounds), "of the steps at its bounds, the action that is there most"),
    ]
    return join(
        [
            element(
                "div",
                element("strong", content["verdict"]),
                element("p", meaning),
                class_=f"verdict {style}",
            ),
            element(
                "ul",
                *(
                    element("li", one["text"].replace(" %", "\u00a0%"), class_=one["kind"])
                    for one in content["reasons"]
                ),
                class_="reasons",
            ),
            element(
                "div",
                *(
                    element("div", element("b", b), element("span", s), class_="card")
                    for b, s in cards
                ),
                class_="cards",
            ),
        ]
    )


def _returns(content: Mapping[str, Any]) -> Markup:
    protocol, gains = content["protocol"], content["gains"]
    rows = [
        [
            LABELS[name],
            number(one["return"]),
            "" if name == POLICY else _signed(gains[name]["mean"]),
            ""
            if name == POLICY
            else f"{_signed(gains[name]['low'])} to {_signed(gains[name]['high'])}",
            percent(one["new"]),
            " · ".join(number(value) for value in one["return_by_group"]),
        ]
        for name, one in _known(content)
    ]
    where = {
        "early": "the first states of held-out episodes",
        "any": "states anywhere in held-out episodes",
    }[protocol["starts"]]
    spans = [
        Span(f"over {LABELS[name]}", gain["mean"], gain["low"], gain["high"])
        for name, gain in gains.items()
    ]
    return join(
        [
            element(
                "p",
                f"Discounted return of {protocol['steps']} steps (γ = {protocol['discount']:g}) "
                f"from {protocol['start_states']} start states, {where}, in {protocol['models']} "
                f"models that the policy was not trained on: {protocol['manner']}. The log itself "
                f"has earned {number(content['logged']['return'])} from these states, "
                f"{number(content['logged']['worst'])} at worst and "
                f"{number(content['logged']['best'])} at best.",
            ),
            _table(
                [
                    "imagined",
                    "return",
                    "policy's gain",
                    "95 % interval",
                    "new",
                    "by group of models",
                ],
                rows,
            ),
            _panel(forest_chart("What the policy gains, with 95 % intervals", spans, width=_WIDE)),
            element(
                "p",
                "Gains are paired: the same start states in the same models. Intervals draw "
                "episodes and models anew.",
                class_="note",
            ),
        ]
    )


def _truth(
    folder: Path, content: Mapping[str, Any], true: Mapping[str, Any] | None
) -> Markup | None:
    if true is None:
        return None
    rows = [
        [row["name"], number(row["mean"]), number(row["standard_error"], 2)]
        for row in true["controllers"]
    ]
    protocol = true["protocol"]
    parts: list[Markup] = [
        element(
            "p",
            f"This is a benchmark, so that there is a simulator. {protocol['episodes']} episodes "
            f"of {protocol['steps']} steps from fresh resets; neither training nor judgement has "
            "seen any of it.",
        ),
        _table(["controller", "return", "± error"], rows),
    ]
    evaluations = read_evaluations(folder)
    if evaluations:
        steps = [line["step"] for line in evaluations]
        means = [float(np.mean(line["returns"])) for line in evaluations]
        deviations = [float(np.std(line["returns"])) for line in evaluations]
        curve = Series(
            "policy",
            0,
            steps,
            means,
            [m - d for m, d in zip(means, deviations, strict=True)],
            [m + d for m, d in zip(means, deviations, strict=True)],
        )
        levels = [
            Level(row["name"], style, row["mean"])
            for row, style in zip(true["controllers"][1:], (2, 1, 3), strict=False)
        ]
        names = [("policy, ± one deviation over episodes", 0)]
        names += [(level.name, level.style) for level in levels]
        parts += [
            legend(names),
            _panel(
                line_chart(
                    "True return in the course of training",
                    [curve],
                    x_label="updates",
                    levels=levels,
                    width=_WIDE,
                    height=260,
                )
            ),
        ]
    return join(parts)


def _data(judged: JudgedRun) -> Markup:
    dataset, task = judged.dataset, judged.task
    told = report_data(dataset, task)
    provenance, returns = dataset.provenance, told["returns"]
    lengths = dataset.lengths
    facts = [
        ("transitions", f"{dataset.num_transitions:,}"),
        ("episodes", f"{dataset.num_episodes:,}, {lengths.min():,} to {lengths.max():,} steps"),
        ("files", ", ".join(map(str, provenance["files"])) if "files" in provenance else None),
        ("found", _counts(provenance.get("findings"))),
        ("mended", _counts(provenance.get("changed"))),
        ("fingerprint", dataset.fingerprint[:16]),
    ]
    signals = [
        [name, *(number(values[key]) for key in ("minimum", "5%", "50%", "95%", "maximum"))]
        for name, values in told["coverage"]["signals"].items()
    ]
    actions = [
        [
            name,
            *(number(values[key]) for key in ("low", "5%", "50%", "95%", "high")),
            percent(values["range_used"]),
            percent(told["behaviour"]["explained"][name]),
        ]
        for name, values in told["coverage"]["actions"].items()
    ]
    memory = told["memory"]
    errors = memory["history_errors"]
    policy = judged.content["controllers"][POLICY]
    return join(
        [
            _facts(facts),
            element("ul", *(element("li", remark) for remark in told["remarks"])),
            element("h3", "Signals"),
            _table(["signal", "least", "5 %", "median", "95 %", "greatest"], signals),
            element("h3", "Actions"),
            _table(
                [
                    "action",
                    "least",
                    "5 %",
                    "median",
                    "95 %",
                    "most",
                    "range used",
                    "explained by state",
                ],
                actions,
            ),
            element(
                "div",
                _panel(
                    histogram(
                        f"What stretches of {returns['steps']} steps have earned",
                        returns_of_stretches(dataset, task),
                        marks=[("policy, imagined", policy["return"])],
                    )
                ),
                _panel(
                    line_chart(
                        "One-step error of a linear model",
                        [Series("error", 0, [int(n) for n in errors], list(errors.values()))],
                        x_label=f"frames of history (the task has {task.history})",
                    )
                ),
                class_="charts",
            ),
        ]
    )


def _models(content: Mapping[str, Any]) -> Markup:
    models = content["models"]
    charts = []
    for name, error in list(models["error"].items())[:_MOST_PANELS]:
        steps = range(1, len(error) + 1)
        band = (models["band_low"][name], models["band_high"][name])
        lines = [
            Series("models", 0, steps, error, *band),
            Series("no change", 3, steps, models["no_change"][name], is_dashed=True),
        ]
        charts.append(_panel(line_chart(name, lines, x_label="steps ahead", least=0.0)))
    stretches = models["stretches"]
    charts.append(
        _panel(
            scatter_chart(
                "Stretches of the log",
                stretches["logged"],
                stretches["imagined"],
                x_label="return, logged",
                y_label="imagined, same actions",
            )
        )
    )
    return join(
        [
            element(
                "p",
                "The models of this judgement follow logged actions of episodes they have not "
                "seen, without being corrected on the way. Errors are in deviations of the "
                "signal: 1 is as wrong as its mean. Noise that nobody can predict counts as error, "
                f"too. The models tell {percent(max(models['explained'], 0.0))} of the variance of "
                f"what stretches have earned, and are off by {_signed(models['bias'])} on average.",
            ),
            legend([("root mean square, and the middle 80 % of the errors", 0), ("no change", 3)]),
            element("div", *charts, class_="charts"),
            _hidden(len(models["error"]), "signals"),
        ]
    )


def _training(folder: Path) -> Markup | None:
    stages: dict[str, list[dict[str, Any]]] = {}
    for line in read_lines(folder / METRICS):
        stages.setdefault(line["stage"], []).append(line)
    charts = []
    for stage, lines in stages.items():
        for metric in (key for key in lines[0] if key not in {"stage", "step"}):
            points = [(line["step"] + 1, line[metric]) for line in lines]
            x, y = zip(*points, strict=True)
            if isinstance(y[0], int | float):
                title = f"{stage}: {metric.replace('_', ' ')}"
                charts.append(_panel(line_chart(title, [Series(metric, 0, x, y)])))
    if not charts:
        return None
    note = None
    if "policy" in stages and len(stages) == 1:
        note = element(
            "p", "Models were found in the cache or are not used by this algorithm.", class_="note"
        )
    return join([note, element("div", *charts, class_="charts")])


def _signals(judged: JudgedRun) -> Markup:
    content, task = judged.content, judged.task
    controllers, logged = content["controllers"], content["logged"]
    units = {
        **dict(zip(task.observation_names, task.observation_units, strict=False)),
        **dict(zip(task.action_names, task.action_units, strict=False)),
    }
    charts = []
    for kind, names in (("signals", task.observation_names), ("actions", task.action_names)):
        for name in names[:_MOST_PANELS]:
            lines = []
            for style, label, curves in (
                (0, "policy", controllers[POLICY][kind][name]),
                (1, "cloned behaviour", controllers[CLONE][kind][name]),
                (_LOGGED, "log", logged[kind][name]),
            ):
                low, middle, high = curves
                lines.append(Series(label, style, range(len(middle)), middle, low, high))
            unit = f" [{units[name]}]" if units.get(name) else ""
            label = f"action {name}{unit}" if kind == "actions" else f"{name}{unit}"
            charts.append(_panel(line_chart(label, lines, x_label="step")))
    return join(
        [
            element(
                "p",
                "Medians and the middle 80 % of all trajectories from the same start states: the "
                "policy and the cloned behaviour as imagined, the log as it was. Models predict "
                "means, so that imagined bands lack the plant's noise.",
            ),
            legend([("policy", 0), ("cloned behaviour", 1), ("log", _LOGGED)]),
            element("div", *charts, class_="charts"),
            _hidden(len(task.observation_names), "signals"),
        ]
    )


def _familiar(judged: JudgedRun) -> Markup:
    content, task = judged.content, judged.task
    lines = [
        Series(
            LABELS[name],
            _STYLES[name],
            range(len(one["new_by_step"])),
            [100 * share for share in one["new_by_step"]],
        )
        for name, one in _known(content)
    ]
    quantiles = list(content["controllers"][POLICY]["novelty"])
    rows = [
        [LABELS[name], percent(one["new"]), *(f"{one['novelty'][q]:.2f}" for q in quantiles)]
        for name, one in _known(content)
    ]
    at_bounds = [
        [
            name,
            *(percent(one["at_bounds"][name]) for _, one in _known(content)),
            percent(content["logged"]["at_bounds"][name]),
        ]
        for name in task.action_names
    ]
    return join(
        [
            element(
                "p",
                "How far a situation (history and action) is from the log is measured by a support "
                "model that was not part of the training, and ranked among the log's own held-out "
                f"situations: 0.9 is further than 90 % of them. New are those beyond {NEW:g}.",
            ),
            legend([(LABELS[name], _STYLES[name]) for name, _ in _known(content)]),
            _panel(
                line_chart(
                    "Share of situations new to the log, in %",
                    lines,
                    x_label="step",
                    least=0.0,
                    width=_WIDE,
                    height=230,
                )
            ),
            _table(
                ["imagined", "new", *(f"{100 * float(q):g} % quantile" for q in quantiles)], rows
            ),
            element("h3", "Actions at their bounds"),
            _table(
                ["share of steps", *(LABELS[name] for name, _ in _known(content)), "in the log"],
                at_bounds,
            ),
            element("h3", "The newest situations of the policy"),
            element(
                "p",
                "Imagined; the distance is in units of what 99 % of the log stays below. Marked is "
                "what is beyond the middle 98 % of the log.",
                class_="note",
            ),
            _situations(judged),
        ]
    )


def _situations(judged: JudgedRun) -> Markup:
    dataset, task = judged.dataset, judged.task
    names = (*task.observation_names[:_MOST_PANELS], *task.action_names)
    columns = [*dataset.observations.T[:_MOST_PANELS], *dataset.actions.T]
    edges = {
        name: np.quantile(column.astype(np.float64), [0.01, 0.99])
        for name, column in zip(names, columns, strict=True)
    }
    rows = []
    for one in judged.content["situations"]:
        values = {**one["signals"], **one["actions"]}
        cells = [
            element(
                "td",
                number(values[name]),
                class_=None if edges[name][0] <= values[name] <= edges[name][1] else "out",
            )
            for name in names
        ]
        rows.append(
            element(
                "tr",
                element("td", f"step {one['step']}"),
                element("td", number(one["excess"], 3)),
                *cells,
            )
        )
    head = element("tr", *(element("th", name) for name in ("when", "distance", *names)))
    table = element("table", element("thead", head), element("tbody", *rows))
    return element("div", table, class_="scroll")


def _configuration(judged: JudgedRun) -> Markup:
    manifest, task = judged.manifest, judged.task
    texts = [
        ("Settings of the algorithm", yaml.safe_dump(manifest.request.config, sort_keys=False)),
        ("Settings of the judgement", yaml.safe_dump(judged.content["settings"], sort_keys=False)),
    ]
    if task.definition is not None:
        texts.insert(0, ("Task", task.definition))
    request = [
        ("algorithm", manifest.request.algorithm),
        ("preset", manifest.request.preset),
        ("seed", str(manifest.request.seed)),
        ("data", Path(manifest.request.data).name if task.definition else manifest.request.data),
    ]
    return join(
        [
            _facts(request),
            *(
                element("details", element("summary", title), element("pre", text))
                for title, text in texts
            ),
        ]
    )


def _versions(judged: JudgedRun) -> Markup:
    now = versions()
    trained = judged.manifest.versions
    rows = [
        [name, trained.get(name, "–"), now.get(name, "–")]
        for name in dict.fromkeys([*trained, *now])
    ]
    return _table(["", "training", "judgement"], rows)


def _known(content: Mapping[str, Any]) -> list[tuple[str, Mapping[str, Any]]]:
    """The controllers there are, in a fixed order."""
    controllers = content["controllers"]
    return [(name, controllers[name]) for name in _CONTROLLERS if name in controllers]


def _table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> Markup:
    head = element("tr", *(element("th", name) for name in header))
    body = [element("tr", *(element("td", cell) for cell in row)) for row in rows]
    table = element("table", element("thead", head), element("tbody", *body))
    return element("div", table, class_="scroll")


def _facts(facts: Sequence[tuple[str, str | None]]) -> Markup:
    rows = [
        element("tr", element("td", name), element("td", value))
        for name, value in facts
        if value is not None
    ]
    return element("div", element("table", *rows, class_="facts"), class_="scroll")


def _panel(chart: Markup) -> Markup:
    return element("div", chart, class_="panel")


def _hidden(count: int, what: str) -> Markup | None:
    if count <= _MOST_PANELS:
        return None
    return element("p", f"The first {_MOST_PANELS} of {count} {what} are shown.", class_="note")


def _counts(counts: object) -> str | None:
    if not isinstance(counts, Mapping):
        return None
    return ", ".join(f"{name}: {count}" for name, count in counts.items()) or "nothing"


def _signed(value: float) -> str:
    return ("+" if value > 0 else "") + number(value, 3)
