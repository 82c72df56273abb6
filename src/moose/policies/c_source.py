"""A policy as one C99 file for controllers and edge devices: static memory, no heap, float32.

The file needs nothing but ``math.h``. It computes what :mod:`moose.policies.plain` does, step for
step, and carries the policy's stored examples: compiled with ``-DMOOSE_SELF_TEST`` it becomes a
program that answers them and returns 0 if all is well.

A policy with a dial is written where the dial stands. On request it can be turned by
``moose_set_position``, and its test of itself has answers at several positions.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from moose.policies.c_acting import dial_code, dial_declaration, policy_code, used_networks
from moose.policies.c_text import calls, comment, network_tables, table
from moose.policies.examples import ACTION_TOLERANCE, NOVELTY_TOLERANCE
from moose.policies.facts import Floats
from moose.policies.parts import Layers, SupportParts, algorithm_of
from moose.policies.plain import Controller
from moose.storage import atomic_file
from moose.version import __version__


def write_c(
    controller: Controller,
    examples: Mapping[str, Floats],
    file: Path,
    *,
    is_turnable: bool = False,
) -> None:
    """Write a policy as a C file.

    Args:
        controller: The policy.
        examples: What it is to answer in its self-test.
        file: The file to write or replace.
        is_turnable: Let the position of the policy's dial be set.

    Raises:
        ConfigError: The policy is to be turnable and has no dial.
    """
    text = c_source(controller, examples, is_turnable=is_turnable)
    with atomic_file(file) as temporary:
        temporary.write_text(text, encoding="ascii")


def c_source(
    controller: Controller, examples: Mapping[str, Floats], *, is_turnable: bool = False
) -> str:
    """The text of the file."""
    if is_turnable:
        controller.require_dial()
    parts, networks = controller.parts, used_networks(controller.parts, is_turnable)
    sections = [
        _heading(controller, is_turnable),
        _sizes(controller, networks, is_turnable),
        # Repeated for every frame, so that a compiler can handle several numbers at a time.
        *(
            table(f"moose_{name}", np.tile(values, parts.facts.history))
            for name, values in (
                *parts.clamp._asdict().items(),
                ("mean", parts.mean),
                ("deviation", parts.deviation),
            )
        ),
        table("moose_action_low", parts.box.low),
        table("moose_action_high", parts.box.high),
        table("moose_action_middle", parts.box.middle),
        table("moose_action_half", parts.box.half),
        *(network_tables(f"moose_{name}", layers) for name, layers in networks.items()),
    ]
    if parts.support is not None:
        sections += ["#ifndef MOOSE_NO_NOVELTY", "#define MOOSE_HAS_NOVELTY"]
        sections += [_support_tables(parts.support), "#endif"]
    sections += [dial_declaration(parts, is_turnable), _COMMON, policy_code(parts, is_turnable)]
    if parts.support is not None:
        sections += ["#ifdef MOOSE_HAS_NOVELTY", _novelty_code(parts.support), "#endif"]
    sections += [_ENTRY_POINTS, dial_code(parts) if is_turnable else ""]
    sections += [_self_test(examples, is_turnable)]
    return "\n".join(section for section in sections if section)


def _heading(controller: Controller, is_turnable: bool) -> str:
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
    dial, turning = [], []
    if controller.position is not None:
        how = "at first, see moose_set_position" if is_turnable else "fixed"
        dial = [f"position of the dial: {controller.position!r}, {how}"]
    if is_turnable:
        turning = ["moose_set_position(position);             turns the dial, from 0 to 1"]
    lines = [
        f"A policy for the task '{facts.name}', written by moose {__version__}. Do not edit.",
        "",
        f"algorithm: {algorithm_of(controller.manifest)}",
        f"digest: {origin.get('digest', 'unknown')}",
        f"data: {json.dumps(origin.get('data', {}), sort_keys=True)}",
        *dial,
        *columns,
        "",
        "moose_reset();                            before the first observation",
        "moose_act(observation, action, &novelty); once a step; keeps the history",
        "moose_policy(window, action, &novelty);   the same for a history, the newest frame first",
        *turning,
        "",
        "Any input gives a finite action within bounds. All memory is static, so that only one",
        "thread may call these. With -DMOOSE_NO_NOVELTY the support model is left out and the",
        "novelty is -1. Compile with -lm, and never with -ffast-math.",
        "Self-test: cc -std=c99 -O2 -DMOOSE_SELF_TEST policy.c -lm && ./a.out",
    ]
    return "/*\n" + "".join(f" * {comment(line)}".rstrip() + "\n" for line in lines) + " */\n"


def _sizes(controller: Controller, networks: Mapping[str, Layers], is_turnable: bool) -> str:
    parts, facts = controller.parts, controller.facts
    widths = [len(bias) for layers in networks.values() for _, bias in layers]
    inputs = [len(weight) for layers in networks.values() for weight, _ in layers]
    dial = "void moose_set_position(float position);\n" if is_turnable else ""
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
{dial}"""


def _support_tables(support: SupportParts) -> str:
    return "\n".join(
        [
            table("moose_support_mean", np.tile(support.frame_mean, support.frames)),
            table("moose_support_deviation", np.tile(support.frame_deviation, support.frames)),
            table("moose_support_action_mean", support.action_mean),
            table("moose_support_action_deviation", support.action_deviation),
            network_tables("moose_encoder", support.encoder),
            network_tables("moose_reconstruction", support.decoder),
            table("moose_errors", support.errors),
            table("moose_widths", np.diff(support.errors)),
            table("moose_gains", np.diff(support.quantiles)),
        ]
    )


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
            *calls("moose_encoder", support.encoder),
            *calls("moose_reconstruction", support.decoder),
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


def _self_test(examples: Mapping[str, Floats], is_turnable: bool) -> str:
    windows, actions = examples["windows"], examples["actions"]
    count, total = len(actions), len(actions)
    novelty = examples.get("novelty", np.full(count, -1.0, np.float32))
    tables, turning = [], ""
    if is_turnable:
        positions, turned = examples["positions"], examples["turned"]
        tables = [table("moose_test_positions", positions), table("moose_test_turned", turned)]
        total += count * len(positions)
        turning = f"""
  for (i = 0; i < {len(positions) * count}; i++) {{
    float action[MOOSE_ACTIONS];
    moose_set_position(moose_test_positions[i / {count}]);
    moose_policy(moose_test_windows + (i % {count}) * MOOSE_FEATURES, action, 0);
    failures += moose_differ({count} + i, action, moose_test_turned + i * MOOSE_ACTIONS);
  }}"""
    return "\n".join(
        [
            "#ifdef MOOSE_SELF_TEST",
            "#include <stdio.h>",
            table("moose_test_windows", windows),
            table("moose_test_actions", actions),
            table("moose_test_novelty", novelty),
            *tables,
            f"""static int moose_differ(int example, const float *action, const float *expected)
{{
  int j, failures = 0;
  for (j = 0; j < MOOSE_ACTIONS; j++) {{
    if (!(fabsf(action[j] - expected[j]) <= {ACTION_TOLERANCE:g}f * moose_action_half[j])) {{
      printf("example %d, action %d: %.9g, expected %.9g\\n", example, j, (double)action[j],
             (double)expected[j]);
      failures++;
    }}
  }}
  return failures;
}}

int main(void)
{{
  int i, failures = 0;
  for (i = 0; i < {count}; i++) {{
    float action[MOOSE_ACTIONS], novelty, allowed;
    moose_policy(moose_test_windows + i * MOOSE_FEATURES, action, &novelty);
    failures += moose_differ(i, action, moose_test_actions + i * MOOSE_ACTIONS);
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
  }}{turning}
  printf("%d examples, %d failures\\n", {total}, failures);
  return failures != 0;
}}""",
            "#endif\n",
        ]
    )
