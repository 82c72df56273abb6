"""A guarded policy behind HTTP: one session a plant, limits on everything that comes in.

FastAPI is an optional dependency (extra ``serve``); only ``moose serve`` imports this module.
"""

from __future__ import annotations

import hmac
import math
from collections import Counter, OrderedDict, deque
from collections.abc import Mapping
from importlib.resources import files
from typing import Annotated, Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import HTMLResponse, JSONResponse, PlainTextResponse, Response
from pydantic import BaseModel, ConfigDict, Field
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from moose.errors import UserError
from moose.policies.guard import REASONS, Fallback, Guard, GuardSettings
from moose.policies.plain import Controller
from moose.version import __version__

LARGEST_BODY = 64 << 10
MOST_SESSIONS = 100
POINTS_KEPT = 300
"""Steps that the page shows."""
_OPEN_PATHS = {"/", "/page.js", "/health"}  # which tell nothing of the plant

SessionName = Annotated[str, Field(pattern=r"^[A-Za-z0-9_.-]{1,64}$")]
Values = Annotated[list[float | None], Field(max_length=10_000)]


class Act(BaseModel):
    """One observation of one plant."""

    model_config = ConfigDict(extra="forbid")
    session: SessionName = "plant"
    observation: Values | dict[str, float | None]
    """In the task's order, or by name; null or left out for what is missing."""


class Reset(BaseModel):
    """The beginning of a new episode."""

    model_config = ConfigDict(extra="forbid")
    session: SessionName = "plant"
    last_action: Values | None = None
    """What the actuators do now."""


class Session:
    """The guard of one plant, and its latest steps."""

    def __init__(self, guard: Guard) -> None:
        self.guard = guard
        self.points: deque[dict[str, Any]] = deque(maxlen=POINTS_KEPT)


def make_app(
    policy: Controller,
    settings: GuardSettings | None = None,
    *,
    fallback: Fallback | None = None,
    hosts: tuple[str, ...] = ("127.0.0.1", "localhost", "[::1]"),
    token: str | None = None,
) -> FastAPI:
    """The service as an ASGI application.

    Args:
        policy: The policy, shared by all sessions.
        settings: The guards'.
        fallback: The guards'.
        hosts: Names under which it may be asked for.
        token: What a caller has to know, if anything.

    Returns:
        The application.
    """
    app = FastAPI(title="moose", version=__version__, docs_url=None, redoc_url=None)
    sessions: OrderedDict[str, Session] = OrderedDict()
    requests: Counter[str] = Counter()

    def session_of(name: str) -> Session:
        if name not in sessions:
            if len(sessions) >= MOST_SESSIONS:
                raise UserError(
                    f"There are {MOST_SESSIONS} sessions already.",
                    where=f"session '{name}'",
                    advice="use the name of one that is there, or restart the service",
                )
            sessions[name] = Session(Guard(policy, settings, fallback=fallback))
        return sessions[name]

    session_of("plant")  # so that settings that do not fit are told at the start

    @app.exception_handler(UserError)
    async def tell(request: Request, error: UserError) -> Response:
        content = {"what": error.what, "where": error.where, "advice": error.advice}
        return JSONResponse(content, status_code=422)

    @app.exception_handler(RequestValidationError)
    async def tell_form(request: Request, error: RequestValidationError) -> Response:
        # Without what was sent, which may hold what JSON cannot.
        first = error.errors()[0]
        place = ".".join(str(part) for part in first["loc"])
        content = {"what": first["msg"], "where": place, "advice": "see /openapi.json"}
        return JSONResponse(content, status_code=422)

    @app.post("/act")
    async def act(body: Act) -> dict[str, Any]:
        """The action for the newest observation of a plant."""
        requests["act"] += 1
        observation = _in_order(body.observation, policy)
        session = session_of(body.session)
        decision = session.guard.act([_or_nan(value) for value in observation])
        answer = {
            "step": decision.step,
            "action": dict(zip(policy.facts.action_names, decision.action.tolist(), strict=True)),
            "source": decision.source,
            "novelty": decision.novelty,
            "interventions": [
                {"reason": each.reason, "detail": each.detail} for each in decision.interventions
            ],
        }
        session.points.append(answer | {"observation": observation})
        return answer

    @app.post("/reset")
    async def reset(body: Reset) -> dict[str, Any]:
        """Forget the history of a plant, which begins a new episode."""
        requests["reset"] += 1
        last = body.last_action
        session_of(body.session).guard.reset(None if last is None else [_or_nan(v) for v in last])
        return {"session": body.session}

    @app.get("/health")
    async def health() -> dict[str, str]:
        """Whether the service answers."""
        return {"status": "ok", "version": __version__}

    @app.get("/policy")
    async def describe() -> dict[str, Any]:
        """What the policy is: task, scaling, origin and checksums."""
        return dict(policy.manifest)

    @app.get("/live")
    async def live(session: SessionName = "plant") -> dict[str, Any]:
        """The latest steps of a plant, and what its guard has done so far."""
        found = sessions.get(session)
        return {
            "sessions": list(sessions),
            "observations": policy.facts.observation_names,
            "actions": policy.facts.action_names,
            "novelty_limit": None if settings is None else settings.novelty_limit,
            "counts": {} if found is None else dict(found.guard.counts),
            "points": [] if found is None else list(found.points),
        }

    @app.get("/metrics")
    async def metrics() -> PlainTextResponse:
        """Counters in Prometheus' text format."""
        return PlainTextResponse(
            _metrics(sessions, requests), media_type="text/plain; version=0.0.4"
        )

    @app.get("/", include_in_schema=False)
    async def page() -> HTMLResponse:
        return HTMLResponse(_asset("page.html"))

    @app.get("/page.js", include_in_schema=False)
    async def script() -> Response:
        return Response(_asset("page.js"), media_type="text/javascript")

    app.add_middleware(_Gate, token=token)
    app.add_middleware(TrustedHostMiddleware, allowed_hosts=list(hosts))
    return app


class _Gate:
    """Refuses bodies that are too large and callers without the token; adds safe headers."""

    def __init__(self, app: ASGIApp, token: str | None) -> None:
        self._app = app
        self._expected = None if token is None else f"Bearer {token}".encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = dict(scope["headers"])
        given = headers.get(b"authorization", b"")
        if (
            self._expected is not None
            and scope["path"] not in _OPEN_PATHS
            and not hmac.compare_digest(given, self._expected)
        ):
            await _refuse(401, "a token is needed: Authorization: Bearer …")(scope, receive, send)
            return
        length = headers.get(b"content-length", b"0")
        if not length.isdigit() or int(length) > LARGEST_BODY:
            await _refuse(413, f"at most {LARGEST_BODY} bytes")(scope, receive, send)
            return
        # Read here, so that a body that does not tell its length is counted as well.
        body = b""
        while True:
            message = await receive()
            if message["type"] != "http.request":
                return
            body += message.get("body", b"")
            if len(body) > LARGEST_BODY:
                await _refuse(413, f"at most {LARGEST_BODY} bytes")(scope, receive, send)
                return
            if not message.get("more_body"):
                break
        await self._app(scope, _once(body, receive), _with_headers(send))


def _once(body: bytes, receive: Receive) -> Receive:
    is_given = False

    async def again() -> Message:
        nonlocal is_given
        if is_given:
            return await receive()
        is_given = True
        return {"type": "http.request", "body": body, "more_body": False}

    return again


def _with_headers(send: Send) -> Send:
    async def safely(message: Message) -> None:
        if message["type"] == "http.response.start":
            message["headers"] = [
                *message["headers"],
                (
                    b"content-security-policy",
                    b"default-src 'none'; script-src 'self'; "
                    b"connect-src 'self'; style-src 'unsafe-inline'; frame-ancestors 'none'",
                ),
                (b"x-content-type-options", b"nosniff"),
                (b"cache-control", b"no-store"),
            ]
        await send(message)

    return safely


def _refuse(status: int, what: str) -> Response:
    return JSONResponse({"what": what, "where": "", "advice": ""}, status_code=status)


def _in_order(
    given: list[float | None] | Mapping[str, float | None], policy: Controller
) -> list[float | None]:
    if isinstance(given, list):
        return [_or_missing(value) for value in given]
    names = policy.facts.observation_names
    unknown = sorted(given.keys() - {*names})
    if unknown:
        raise UserError(
            f"There is no signal '{unknown[0]}'.",
            where="observation",
            advice=f"the signals are: {', '.join(names)}",
        )
    return [_or_missing(given.get(name)) for name in names]


def _or_missing(value: float | None) -> float | None:
    # JSON has no word for what is not finite, and the guard takes it for missing anyway.
    return value if value is not None and math.isfinite(value) else None


def _or_nan(value: float | None) -> float:
    return float("nan") if value is None else value


def _metrics(sessions: Mapping[str, Session], requests: Mapping[str, int]) -> str:
    lines = ["# TYPE moose_requests_total counter"]
    lines += [f'moose_requests_total{{path="/{n}"}} {requests.get(n, 0)}' for n in ("act", "reset")]
    lines += ["# TYPE moose_steps_total counter"]
    lines += [f'moose_steps_total{{session="{n}"}} {s.guard.steps}' for n, s in sessions.items()]
    lines += ["# TYPE moose_interventions_total counter"]
    lines += [
        f'moose_interventions_total{{session="{n}",reason="{reason}"}} {s.guard.counts[reason]}'
        for n, s in sessions.items()
        for reason in REASONS
    ]
    lines += ["# TYPE moose_novelty gauge"]
    lines += [
        f'moose_novelty{{session="{n}"}} {s.points[-1]["novelty"]}'
        for n, s in sessions.items()
        if s.points and s.points[-1]["novelty"] is not None
    ]
    return "\n".join(lines) + "\n"


def _asset(name: str) -> str:
    return files("moose.service").joinpath(name).read_text(encoding="utf-8")
