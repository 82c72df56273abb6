"""The sections of a report that say what was done and what came of it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from moose.evaluation.offline import CLONE, POLICY
from moose.experiments.charts import (
    Level,
    Series,
    Span,
    forest_chart,
    histogram,
    legend,
    line_chart,
)
from moose.experiments.data_report import report_data, returns_of_stretches
from moose.experiments.judgement import LABELS, JudgedRun, told_of_the_dial
from moose.experiments.markup import (
    Markup,
    element,
    facts_table,
    join,
    number,
    panel,
    percent,
    signed,
    table,
)
from moose.experiments.report_evidence import WIDE, known
from moose.experiments.run_folder import METRICS, read_evaluations, read_lines
from moose.experiments.runner import versions

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


def verdict_section(content: Mapping[str, Any]) -> Markup:
    """The verdict, its reasons and the figures that count most."""
    style, meaning = _MEANING[content["verdict"]]
    gain, policy = content["gains"][CLONE], content["controllers"][POLICY]
    bounds = max(policy["at_bounds"].values())
    cards = [
        (
            f"{signed(gain['mean'])}",
            f"imagined gain over the cloned behaviour; 95 %: {signed(gain['low'])} to "
            f"{signed(gain['high'])}",
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
                *(element("p", text) for text in told_of_the_dial(content)),
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


def returns_section(content: Mapping[str, Any]) -> Markup:
    """Imagined returns of all controllers, and what the policy gains."""
    protocol, gains = content["protocol"], content["gains"]
    rows = [
        [
            LABELS[name],
            number(one["return"]),
            "" if name == POLICY else signed(gains[name]["mean"]),
            ""
            if name == POLICY
            else f"{signed(gains[name]['low'])} to {signed(gains[name]['high'])}",
            percent(one["new"]),
            " · ".join(number(value) for value in one["return_by_group"]),
        ]
        for name, one in known(content)
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
            table(
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
            panel(forest_chart("What the policy gains, with 95 % intervals", spans, width=WIDE)),
            element(
                "p",
                "Gains are paired: the same start states in the same models. Intervals draw "
                "episodes and models anew.",
                class_="note",
            ),
        ]
    )


def truth_section(
    folder: Path, content: Mapping[str, Any], true: Mapping[str, Any] | None
) -> Markup | None:
    """Returns in the simulator, where there is one."""
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
        table(["controller", "return", "± error"], rows),
    ]
    # Evaluations in training were made where the policy's own dial stands.
    is_turned = content["settings"]["position"] is not None
    evaluations = [] if is_turned else read_evaluations(folder)
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
            panel(
                line_chart(
                    "True return in the course of training",
                    [curve],
                    x_label="updates",
                    levels=levels,
                    width=WIDE,
                    height=260,
                )
            ),
        ]
    return join(parts)


def data_section(judged: JudgedRun) -> Markup:
    """What the log is and what it covers."""
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
            facts_table(facts),
            element("ul", *(element("li", remark) for remark in told["remarks"])),
            element("h3", "Signals"),
            table(["signal", "least", "5 %", "median", "95 %", "greatest"], signals),
            element("h3", "Actions"),
            table(
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
                panel(
                    histogram(
                        f"What stretches of {returns['steps']} steps have earned",
                        returns_of_stretches(dataset, task),
                        marks=[("policy, imagined", policy["return"])],
                    )
                ),
                panel(
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


def training_section(folder: Path) -> Markup | None:
    """The metrics of every stage; None if there are none."""
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
                charts.append(panel(line_chart(title, [Series(metric, 0, x, y)])))
    if not charts:
        return None
    note = None
    if "policy" in stages and len(stages) == 1:
        note = element(
            "p", "Models were found in the cache or are not used by this algorithm.", class_="note"
        )
    return join([note, element("div", *charts, class_="charts")])


def configuration_section(judged: JudgedRun) -> Markup:
    """What was asked for."""
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
            facts_table(request),
            *(
                element("details", element("summary", title), element("pre", text))
                for title, text in texts
            ),
        ]
    )


def versions_section(judged: JudgedRun) -> Markup:
    """What it was made with."""
    now = versions()
    trained = judged.manifest.versions
    rows = [
        [name, trained.get(name, "–"), now.get(name, "–")]
        for name in dict.fromkeys([*trained, *now])
    ]
    return table(["", "training", "judgement"], rows)


def _counts(counts: object) -> str | None:
    if not isinstance(counts, Mapping):
        return None
    return ", ".join(f"{name}: {count}" for name, count in counts.items()) or "nothing"
