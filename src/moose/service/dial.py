"""The dial's page: what was measured at each position, and the policy at any of them as a file.

The measurements are those that ``moose tune`` leaves in the folder of a run.
"""

from __future__ import annotations

import shlex
import tempfile
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from fastapi import APIRouter
from fastapi.responses import Response
from pydantic_core import to_json

from moose.errors import UserError
from moose.policies.dial import no_dial, require_position
from moose.policies.export import Format, export_policy
from moose.policies.plain import Controller


class Tuned(NamedTuple):
    """A policy whose dial was measured."""

    tuning: Mapping[str, Any]
    """The content of the run's ``tuning.json``."""
    policy: Path
    """The policy's folder or ``.moose`` file."""
    run: Path
    """The run as its user calls it."""


def dial_router(policy: Controller, tuned: Tuned | None) -> APIRouter:
    """What the page asks for.

    Args:
        policy: The policy that is served.
        tuned: What is known of its dial, if anything.

    Returns:
        The routes ``/dial.json`` and ``/dial/policy``.
    """
    router = APIRouter()
    told = None if tuned is None else to_json({**tuned.tuning, "run": shlex.quote(str(tuned.run))})
    one_at_a_time = threading.Lock()

    @router.get("/dial.json")
    async def tuning() -> Response:
        """What was measured at each position of the dial."""
        if told is None:
            raise _not_measured(policy)
        return Response(told, media_type="application/json")

    @router.get("/dial/policy", response_class=Response)
    def download(position: float, form: Format = "moose", turnable: bool = False) -> Response:
        """The policy with its dial at a position, as a file.

        In `onnx` and `c` the position can also be an input, which is then at first as given.
        """
        if tuned is None:
            raise _not_measured(policy)
        place = require_position(position)
        name = f"policy-{_digits(place)}{'-dial' if turnable else ''}.{form}"
        with one_at_a_time, tempfile.TemporaryDirectory(prefix="moose-dial-") as folder:
            file = Path(folder) / name
            export_policy(tuned.policy, file, form, position=place, is_turnable=turnable)
            content = file.read_bytes()
        attached = {"Content-Disposition": f'attachment; filename="{name}"'}
        return Response(content, media_type="application/octet-stream", headers=attached)

    return router


def _digits(position: float) -> str:
    return f"{position:.2f}" if round(position, 2) == position else f"{position:g}"


def _not_measured(policy: Controller) -> UserError:
    if policy.position is None:
        return no_dial(policy.manifest.get("kind"), "/dial")
    return UserError(
        "Nobody has measured yet what the positions of this policy's dial are worth.",
        where="/dial",
        advice="measure them with 'moose tune RUN', then serve the run's folder: 'moose serve RUN'",
    )
