"""The sections of a report that say why one may believe it: models, trajectories, familiarity."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from moose.evaluation.offline import CLONE, HOLD, LOG, NEW, POLICY
from moose.experiments.charts import Series, legend, line_chart, scatter_chart
from moose.experiments.judgement import LABELS, JudgedRun
from moose.experiments.markup import Markup, element, join, number, panel, percent, signed, table

WIDE = 1030
"""Width of a chart that has a row to itself."""
_MOST_PANELS = 24
_CONTROLLERS = (POLICY, CLONE, HOLD, LOG)
_STYLES = {POLICY: 0, CLONE: 1, HOLD: 2, LOG: 3}
_LOGGED = 3


def models_section(content: Mapping[str, Any]) -> Markup:
    """How far the models can be followed."""
    models = content["models"]
    charts = []
    for name, error in list(models["error"].items())[:_MOST_PANELS]:
        steps = range(1, len(error) + 1)
        band = (models["band_low"][name], models["band_high"][name])
        lines = [
            Series("models", 0, steps, error, *band),
            Series("no change", 3, steps, models["no_change"][name], is_dashed=True),
        ]
        charts.append(panel(line_chart(name, lines, x_label="steps ahead", least=0.0)))
    stretches = models["stretches"]
    charts.append(
        panel(
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
                f"what stretches have earned, and are off by {signed(models['bias'])} on average.",
            ),
            legend([("root mean square, and the middle 80 % of the errors", 0), ("no change", 3)]),
            element("div", *charts, class_="charts"),
            _hidden(len(models["error"]), "signals"),
        ]
    )


def signals_section(judged: JudgedRun) -> Markup:
    """Policy, clone and log, signal by signal."""
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
            charts.append(panel(line_chart(label, lines, x_label="step")))
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


def familiar_section(judged: JudgedRun) -> Markup:
    """How far from the log the policy goes, and where."""
    content, task = judged.content, judged.task
    lines = [
        Series(
            LABELS[name],
            _STYLES[name],
            range(len(one["new_by_step"])),
            [100 * share for share in one["new_by_step"]],
        )
        for name, one in known(content)
    ]
    quantiles = list(content["controllers"][POLICY]["novelty"])
    rows = [
        [LABELS[name], percent(one["new"]), *(f"{one['novelty'][q]:.2f}" for q in quantiles)]
        for name, one in known(content)
    ]
    at_bounds = [
        [
            name,
            *(percent(one["at_bounds"][name]) for _, one in known(content)),
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
            legend([(LABELS[name], _STYLES[name]) for name, _ in known(content)]),
            panel(
                line_chart(
                    "Share of situations new to the log, in %",
                    lines,
                    x_label="step",
                    least=0.0,
                    width=WIDE,
                    height=230,
                )
            ),
            table(
                ["imagined", "new", *(f"{100 * float(q):g} % quantile" for q in quantiles)], rows
            ),
            element("h3", "Actions at their bounds"),
            table(
                ["share of steps", *(LABELS[name] for name, _ in known(content)), "in the log"],
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


def known(content: Mapping[str, Any]) -> list[tuple[str, Mapping[str, Any]]]:
    """The controllers there are, in a fixed order."""
    controllers = content["controllers"]
    return [(name, controllers[name]) for name in _CONTROLLERS if name in controllers]


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


def _hidden(count: int, what: str) -> Markup | None:
    if count <= _MOST_PANELS:
        return None
    return element("p", f"The first {_MOST_PANELS} of {count} {what} are shown.", class_="note")
