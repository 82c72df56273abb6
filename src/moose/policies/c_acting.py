"""How each kind of policy acts, in C."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from moose.policies.c_text import calls, literal
from moose.policies.parts import Layers, Parts


def used_networks(parts: Parts, is_turnable: bool) -> Mapping[str, Layers]:
    """The networks that the code will call: a dial that is fixed at 0 needs no search."""
    if _is_mixed(parts, is_turnable) or parts.kind != "dial":
        return parts.networks
    return {"behaviour": parts.networks["behaviour"]}


def dial_declaration(parts: Parts, is_turnable: bool) -> str:
    """The position, where the code needs one."""
    if not _is_mixed(parts, is_turnable):
        return ""
    return f"static {'' if is_turnable else 'const '}float moose_position = {_stored(parts)};\n"


def policy_code(parts: Parts, is_turnable: bool) -> str:
    """``moose_choose``, from a history to an action, and what it needs."""
    mixture, choose = "", _ACTING[parts.kind](parts)
    if _is_mixed(parts, is_turnable):
        mixture = _mixture_code(parts)
        choose += "\n  if (moose_position > 0.0f) {\n    moose_mix(action);\n  }"
    return f"""{mixture}static void moose_choose(const float *window, float *action)
{{
  int i;
  for (i = 0; i < MOOSE_FEATURES; i++) {{
    moose_clamped[i] = moose_clamp(window[i], moose_fill[i], moose_low[i], moose_high[i]);
    moose_features[i] = (moose_clamped[i] - moose_mean[i]) / moose_deviation[i];
  }}
{choose}
  for (i = 0; i < MOOSE_ACTIONS; i++) {{
    const float raw = moose_action_middle[i] + action[i] * moose_action_half[i];
    action[i] = moose_clamp(raw, moose_action_middle[i], moose_action_low[i],
                            moose_action_high[i]);
  }}
}}
"""


def dial_code(parts: Parts) -> str:
    """``moose_set_position``, of a policy that can be turned."""
    return f"""void moose_set_position(float position)
{{
  moose_position = moose_clamp(position, {_stored(parts)}, 0.0f, 1.0f);
}}
"""


def _network_code(parts: Parts) -> str:
    return _bounded_code("network", parts)


def _decoded_code(parts: Parts) -> str:
    return "\n".join(
        [
            _bounded_code("decoder", parts),
            _LOAD,
            "  for (i = 0; i < MOOSE_ACTIONS; i++) {",
            "    moose_front[MOOSE_FEATURES + i] = action[i];",
            "  }",
            *calls("moose_perturbation", parts.networks["perturbation"]),
            "  for (i = 0; i < MOOSE_ACTIONS; i++) {",
            f"    action[i] += {literal(np.float32(parts.limit))} * tanhf(moose_front[i]);",
            "    action[i] = moose_clamp(action[i], 0.0f, -1.0f, 1.0f);",
            "  }",
        ]
    )


def _behaviour_code(parts: Parts) -> str:
    return _bounded_code("behaviour", parts)


_ACTING = {"network": _network_code, "decoded": _decoded_code, "dial": _behaviour_code}


def _bounded_code(name: str, parts: Parts) -> str:
    """The action of one network, in the box."""
    return "\n".join(
        [
            _LOAD,
            *calls(f"moose_{name}", parts.networks[name]),
            "  for (i = 0; i < MOOSE_ACTIONS; i++) {",
            "    action[i] = tanhf(moose_front[i]);",
            "  }",
        ]
    )


def _mixture_code(parts: Parts) -> str:
    return "\n".join(
        [
            """/* From the behaviour's action, in the box, towards what the search says. */
static void moose_mix(float *action)
{
  int i;""",
            _LOAD,
            "  moose_front[MOOSE_FEATURES] = moose_position;",
            *calls("moose_search", parts.networks["search"]),
            """  for (i = 0; i < MOOSE_ACTIONS; i++) {
    action[i] += moose_position * (tanhf(moose_front[i]) - action[i]);
  }
}

""",
        ]
    )


def _is_mixed(parts: Parts, is_turnable: bool) -> bool:
    return parts.kind == "dial" and (is_turnable or np.float32(parts.position or 0.0) != 0)


def _stored(parts: Parts) -> str:
    return literal(np.float32(parts.position or 0.0))


_LOAD = """  for (i = 0; i < MOOSE_FEATURES; i++) {
    moose_front[i] = moose_features[i];
  }"""
