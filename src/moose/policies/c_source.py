"""A policy as one C99 file for controllers and edge devices: static memory, no heap, float32.

The file needs nothing but ``math.h``. It computes what :mod:`moose.policies.plain` does, step for
step, and carries the policy's stored examples: compiled with ``-DMOOSE_SELF_TEST`` it becomes a
program that answers them and returns 0 if all is well.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

from moose.policies.examples import ACTION_TOLERANCE, NOVELTY_TOLERANCE
from moose.policies.facts import Floats
from moose.policies.plain import Controller, Layers, SupportParts, algorithm_of
from moose.storage import atomic_file
from moose.version import __version__

_NUMBERS_A_LINE = 8


def write_c(controller: Controller, examples: Mapping[str, Floats], file: Path) -> None:
    """Write a policy as a C file.

    Args:
        controller: The policy.
        examples: What it is to answer in its self-test.
        file: The file to write or replace.
    """
    with atomic_file(file) as temporary:
        temporary.write_text(c_source(controller, examples), encoding="ascii")


def c_source(controller: Controller, examples: Mapping[str, Floats]) -> str:
    """The text of the file."""
    parts = controller.parts
    sections = [
        _heading(controller),
        _sizes(controller),
        # Repeated for every frame, so that a compiler can handle several numbers at a time.
        *(
            _table(f"moose_{name}", np.tile(values, parts.facts.history))
            for name, values in (
                *parts.clamp._asdict().items(),
                ("mean", parts.mean),
                ("deviation", parts.deviation),
            )
        ),
        _table("moose_action_low", parts.box.low),
        _table("moose_action_high", parts.box.high),
        _table("moose_action_middle", parts.box.middle),
        _table("moose_action_half", parts.box.half),
        *(_network_tables(f"moose_{name}", layers) for name, layers in parts.networks.items()),
    ]
    if parts.support is not None:
        sections += ["#ifndef MOOSE_NO_NOVELTY", "#define MOOSE_HAS_NOVELTY"]
        sections += [_support_tables(parts.support), "#endif"]
    sections += [_COMMON, _policy_code(controller)]
    if parts.support is not None:
        sections += ["#ifdef MOOSE_HAS_NOVELTY", _novelty_code(parts.support), "#endif"]
    sections += [_ENTRY_POINTS, _self_test(controller, examples)]
    return "\n".join(sections)


def _heading(controller: Controller) -> str:
    facts, origin = controller.facts, controller.manifest.get("origin") or {}
    columns = [
        *(f"input {i}: {name}" for i, name in enumerate(facts.observation_names)),
        *(
            f"action {i}: {name}, from {low:g} to {high:g}"
            for i, (name, low, high) in enumerate(
                zip(facts.action_names, facts.action_low, facts.action_high, strict=True)
            )
        ),
    ]
    lines = [
        f"A policy for the task '{facts.name}', written by moose {__version__}. Do not edit.",
        "",
        f"algorithm: {algorithm_of(controller.manifest)}",
        f"digest: {origin.get('digest', 'unknown')}",
        f"data: {json.dumps(origin.get('data', {}), sort_keys=True)}",
        *columns,
        "",
        "moose_reset();                            before the first observation",
        "moose_act(observation, action, &novelty); once a step; keeps the history",
        "moose_policy(window, action, &novelty);   the same for a history, the newest frame first",
        "",
        "Any input gives a finite action within bounds. All memory is static, so that only one",
        "thread may call these. With -DMOOSE_NO_NOVELTY the support model is left out and the",
        "novelty is -1. Compile with -lm, and never with -ffast-math.",
        "Self-test: cc -std=c99 -O2 -DMOOSE_SELF_TEST policy.c -lm && ./a.out",
    ]
    return "/*\n" + "".join(f" * {_comment(line)}".rstrip() + "\n" for line in lines) + " */\n"


def _comment(text: str) -> str:
    """Without anything that could end the comment or mean something to a compiler."""
    return re.sub(r"[^A-Za-z0-9 _.,:;'(){}\[\]\"&=<>!|+-]", "_", text)


def _sizes(controller: Controller) -> str:
    parts, facts = controller.parts, controller.facts
    widths = [len(bias) for layers in parts.networks.values() for _, bias in layers]
    inputs = [len(weight) for layers in parts.networks.values() for weight, _ in layers]
    support = parts.support
    if support is not None:
        for weight, bias in (*support.encoder, *support.decoder):
            widths.append(len(bias))
            inputs.append(len(weight))
    return f"""#include <math.h>
#ifdef __FAST_MATH__
#error "-ffast-math removes the checks for numbers that are not finite"
#endif

#define MOOSE_SIGNALS {len(facts.observation_names)}
#define MOOSE_ACTIONS {len(facts.action_names)}
#define MOOSE_HISTORY {facts.history}
#define MOOSE_FEATURES {facts.history * len(facts.observation_names)}
#define MOOSE_WIDEST {max(widths + inputs)}

void moose_reset(void);
void moose_act(const float *observation, float *action, float *novelty);
void moose_policy(const float *window, float *action, float *novelty);
"""


def _network_tables(name: str, layers: Layers) -> str:
    return "\n".join(
        table
        for i, (weight, bias) in enumerate(layers)
        for table in (_table(f"{name}_weight_{i}", weight), _table(f"{name}_bias_{i}", bias))
    )


def _support_tables(support: SupportParts) -> str:
    return "\n".join(
        [
            _table("moose_support_mean", np.tile(support.frame_mean, support.frames)),
            _table("moose_support_deviation", np.tile(support.frame_deviation, support.frames)),
            _table("moose_support_action_mean", support.action_mean),
            _table("moose_support_action_deviation", support.action_deviation),
            _network_tables("moose_encoder", support.encoder),
            _network_tables("moose_reconstruction", support.decoder),
            _table("moose_errors", support.errors),
            _table("moose_widths", np.diff(support.errors)),
            _table("moose_gains", np.diff(support.quantiles)),
        ]
    )


def _table(name: str, values: npt.ArrayLike) -> str:
    numbers = [_literal(value) for value in np.asarray(values, np.float32).ravel()]
    rows = [
        "  " + ", ".join(numbers[i : i + _NUMBERS_A_LINE])
        for i in range(0, len(numbers), _NUMBERS_A_LINE)
    ]
    return f"static const float {name}[{len(numbers)}] = {{\n" + ",\n".join(rows) + "\n};\n"


def _literal(value: np.float32) -> str:
    """A float32 as C reads it back, bit for bit."""
    if np.isnan(value):
        return "NAN"
    if np.isinf(value):
        return "INFINITY" if value > 0 else "-INFINITY"
    text = f"{float(value):.9g}"
    return f"{text}f" if re.search(r"[.e]", text) else f"{text}.0f"


_COMMON = """static float moose_front[MOOSE_WIDEST];
static float moose_back[MOOSE_WIDEST];
static const float *moose_rows[MOOSE_WIDEST + 3];
static float moose_values[MOOSE_WIDEST + 3];
static float moose_window[MOOSE_FEATURES];
static float moose_features[MOOSE_FEATURES];
static float moose_clamped[MOOSE_FEATURES];
static int moose_is_begun = 0;

static float moose_clamp(float value, float fill, float low, float high)
{
  const float number = isnan(value) ? fill : value;
  const float raised = number < low ? low : number;
  return raised > high ? high : raised;
}

/* Add four weighted rows to the sums; one pass for all four, since writing takes its time too. */
static void moose_add(float *restrict sums, const float *restrict a, const float *restrict b,
                      const float *restrict c, const float *restrict d, const float *values,
                      int outputs)
{
  const float p = values[0], q = values[1], r = values[2], s = values[3];
  int j;
  for (j = 0; j < outputs; j++) {
    sums[j] += (p * a[j] + q * b[j]) + (r * c[j] + s * d[j]);
  }
}

/* moose_front to moose_front: an affine layer, with ReLU if asked for. The rows of inputs that are
   0, as about half are after a ReLU, are not read. */
static void moose_layer(const float *weight, const float *bias, int inputs, int outputs, int relu)
{
  int i, j, count = 0;
  for (i = 0; i < inputs; i++) {
    moose_rows[count] = weight + (long)i * outputs;
    moose_values[count] = moose_front[i];
    count += moose_front[i] != 0.0f;
  }
  for (i = count; i < count + 3; i++) { /* fills the last four up */
    moose_rows[i] = weight;
    moose_values[i] = 0.0f;
  }
  for (j = 0; j < outputs; j++) {
    moose_back[j] = bias[j];
  }
  for (i = 0; i < count; i += 4) {
    moose_add(moose_back, moose_rows[i], moose_rows[i + 1], moose_rows[i + 2], moose_rows[i + 3],
              moose_values + i, outputs);
  }
  for (j = 0; j < outputs; j++) {
    moose_front[j] = relu && moose_back[j] < 0.0f ? 0.0f : moose_back[j];
  }
}
"""


def _calls(name: str, layers: Layers) -> Iterable[str]:
    for i, (weight, bias) in enumerate(layers):
        sizes = f"{len(weight)}, {len(bias)}, {int(i < len(layers) - 1)}"
        yield f"  moose_layer({name}_weight_{i}, {name}_bias_{i}, {sizes});"


def _policy_code(controller: Controller) -> str:
    parts = controller.parts
    load = """  for (i = 0; i < MOOSE_FEATURES; i++) {
    moose_front[i] = moose_features[i];
  }"""
    if parts.kind == "network":
        choose: Sequence[str] = [
            load,
            *_calls("moose_network", parts.networks["network"]),
            "  for (i = 0; i < MOOSE_ACTIONS; i++) {",
            "    action[i] = tanhf(moose_front[i]);",
            "  }",
        ]
    else:
        choose = [
            load,
            *_calls("moose_decoder", parts.networks["decoder"]),
            "  for (i = 0; i < MOOSE_ACTIONS; i++) {",
            "    action[i] = tanhf(moose_front[i]);",
            "  }",
            load,
            "  for (i = 0; i < MOOSE_ACTIONS; i++) {",
            "    moose_front[MOOSE_FEATURES + i] = action[i];",
            "  }",
            *_calls("moose_perturbation", parts.networks["perturbation"]),
            "  for (i = 0; i < MOOSE_ACTIONS; i++) {",
            f"    action[i] += {_literal(np.float32(parts.limit))} * tanhf(moose_front[i]);",
            "    action[i] = moose_clamp(action[i], 0.0f, -1.0f, 1.0f);",
            "  }",
        ]
    return "\n".join(
        [
            """static void moose_choose(const float *window, float *action)
{
  int i;
  for (i = 0; i < MOOSE_FEATURES; i++) {
    moose_clamped[i] = moose_clamp(window[i], moose_fill[i], moose_low[i], moose_high[i]);
    moose_features[i] = (moose_clamped[i] - moose_mean[i]) / moose_deviation[i];
  }""",
            *choose,
            """  for (i = 0; i < MOOSE_ACTIONS; i++) {
    const float raw = moose_action_middle[i] + action[i] * moose_action_half[i];
    action[i] = moose_clamp(raw, moose_action_middle[i], moose_action_low[i],
                            moose_action_high[i]);
  }
}
""",
        ]
    )


def _novelty_code(support: SupportParts) -> str:
    states, pieces = support.frames * len(support.frame_mean), len(support.errors) - 1
    return "\n".join(
        [
            f"""#define MOOSE_STATES {states}
#define MOOSE_PAIR (MOOSE_STATES + MOOSE_ACTIONS)
static float moose_pair[MOOSE_PAIR];

/* After moose_choose: how unusual the action is in what moose_choose has seen. */
static float moose_novelty(const float *action)
{{
  int i;
  float error = 0.0f, score = 0.0f;
  for (i = 0; i < MOOSE_STATES; i++) {{
    moose_pair[i] = (moose_clamped[i] - moose_support_mean[i]) / moose_support_deviation[i];
  }}
  for (i = 0; i < MOOSE_ACTIONS; i++) {{
    moose_pair[MOOSE_STATES + i] =
        (action[i] - moose_support_action_mean[i]) / moose_support_action_deviation[i];
  }}
  for (i = 0; i < MOOSE_PAIR; i++) {{
    moose_front[i] = moose_pair[i];
  }}""",
            *_calls("moose_encoder", support.encoder),
            *_calls("moose_reconstruction", support.decoder),
            f"""  for (i = 0; i < MOOSE_PAIR; i++) {{
    const float difference = moose_front[i] - moose_pair[i];
    error += difference * difference;
  }}
  error /= (float)MOOSE_PAIR;
  for (i = 0; i < {pieces}; i++) {{
    const float share = (error - moose_errors[i]) / moose_widths[i];
    score += moose_clamp(share, 1.0f, 0.0f, 1.0f) * moose_gains[i];
  }}
  error = error / moose_errors[{pieces}] - 1.0f;
  return error > 0.0f ? score + error : score;
}}
""",
        ]
    )


_ENTRY_POINTS = """void moose_policy(const float *window, float *action, float *novelty)
{
  moose_choose(window, action);
  if (novelty) {
#ifdef MOOSE_HAS_NOVELTY
    *novelty = moose_novelty(action);
#else
    *novelty = -1.0f;
#endif
  }
}

void moose_reset(void)
{
  moose_is_begun = 0;
}

void moose_act(const float *observation, float *action, float *novelty)
{
  int i;
  for (i = MOOSE_FEATURES - 1; i >= 0; i--) {
    if (i < MOOSE_SIGNALS || !moose_is_begun) {
      moose_window[i] = observation[i % MOOSE_SIGNALS];
    } else {
      moose_window[i] = moose_window[i - MOOSE_SIGNALS];
    }
  }
  moose_is_begun = 1;
  moose_policy(moose_window, action, novelty);
}
"""


def _self_test(controller: Controller, examples: Mapping[str, Floats]) -> str:
    windows, actions = examples["windows"], examples["actions"]
    novelty = examples.get("novelty", np.full(len(actions), -1.0, np.float32))
    return "\n".join(
        [
            "#ifdef MOOSE_SELF_TEST",
            "#include <stdio.h>",
            _table("moose_test_windows", windows),
            _table("moose_test_actions", actions),
            _table("moose_test_novelty", novelty),
            f"""int main(void)
{{
  int i, j, failures = 0;
  for (i = 0; i < {len(actions)}; i++) {{
    float action[MOOSE_ACTIONS], novelty, allowed;
    moose_policy(moose_test_windows + i * MOOSE_FEATURES, action, &novelty);
    for (j = 0; j < MOOSE_ACTIONS; j++) {{
      const float expected = moose_test_actions[i * MOOSE_ACTIONS + j];
      if (!(fabsf(action[j] - expected) <= {ACTION_TOLERANCE:g}f * moose_action_half[j])) {{
        printf("example %d, action %d: %.9g, expected %.9g\\n", i, j, (double)action[j],
               (double)expected);
        failures++;
      }}
    }}
#ifdef MOOSE_HAS_NOVELTY
    allowed = {NOVELTY_TOLERANCE:g}f * (novelty > 1.0f ? novelty : 1.0f);
    if (!(fabsf(novelty - moose_test_novelty[i]) <= allowed)) {{
      printf("example %d, novelty: %.9g, expected %.9g\\n", i, (double)novelty,
             (double)moose_test_novelty[i]);
      failures++;
    }}
#else
    (void)allowed;
    (void)moose_test_novelty;
#endif
  }}
  printf("%d examples, %d failures\\n", {len(actions)}, failures);
  return failures != 0;
}}""",
            "#endif\n",
        ]
    )
