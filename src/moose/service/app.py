"""A guarded policy behind HTTP: one session a plant, limits on everything that comes in.

FastAPI is an optional dependency (extra ``serve``); only ``moose serve`` imports this module.
"""

from __future__ import annotations

import hmac
import math
import time
from collections import Counter, deque
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from importlib.resources import files
from itertools import islice
from typing import Annotated, Any

from fastapi import APIRouter, FastAPI, Query, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, PlainTextResponse, Response
from fastapi.routing import APIRoute
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from pydantic_core import to_json
from starlette.exceptions import HTTPException
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from moose.errors import UserError
from moose.policies.guard import REASONS, Decision, Fallback, Guard, GuardSettings, Reason, Source
from moose.policies.plain import Controller
from moose.service.dial import Tuned, dial_router
from moose.version import __version__

LARGEST_BODY = 64 << 10
MOST_SESSIONS = 100
POINTS_KEPT = 300
"""Steps of a session that are remembered for the page."""
_ASSETS = {
    "/": ("page.html", "text/html"),
    "/dial": ("dial.html", "text/html"),
    **{f"/{name}.css": (f"{name}.css", "text/css") for name in ("page", "dial")},
    **{
        f"/{name}.js": (f"{name}.js", "text/javascript")
        for name in ("page", "dial", "asking", "drawing")
    },
}
_JSON = "application/json"
_OPEN_PATHS = {*_ASSETS, "/health"}  # which tell nothing of the plant

SessionName = Annotated[str, Field(pattern=r"^[A-Za-z0-9_.-]{1,64}$")]
Values = Annotated[list[float | None], Field(max_length=10_000)]


class Act(BaseModel):
    """One observation of one plant."""

    model_config = ConfigDict(extra="forbid")
    session: SessionName = "plant"
    observation: Values | dict[str, float | None]
    """In the task's order, or by name; null or left out for what is missing."""


class Told(BaseModel):
    """One thing that the guard did."""

    reason: Reason
    detail: str


class Answer(BaseModel):
    """What is to be done, and how it came about."""

    step: int
    action: dict[str, float]
    source: Source
    novelty: float | None
    interventions: list[Told]


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
        self._is_first = True
        self._heard = time.monotonic()

    def act(self, observation: list[float | None]) -> dict[str, Any]:
        """Decide, remember the step and tell it."""
        decision = self.guard.act([_or_nan(value) for value in observation])
        answer = _answer(decision, self.guard.policy)
        self.points.append(answer | {"observation": observation, "is_first": self._is_first})
        self._is_first = False
        self._heard = time.monotonic()
        return answer

    def reset(self, last_action: list[float | None] | None) -> None:
        """Begin a new episode."""
        self.guard.reset(None if last_action is None else [_or_nan(v) for v in last_action])
        self._is_first = True

    def summary(self) -> dict[str, Any]:
        """What the page's list of sessions tells."""
        last = self.points[-1] if self.points else None
        return {
            "steps": self.guard.steps,
            "source": None if last is None else last["source"],
            "idle_seconds": None if last is None else round(time.monotonic() - self._heard, 1),
        }

    def points_after(self, step: int) -> list[dict[str, Any]]:
        """The remembered steps with a higher number."""
        fresh = min(max(self.guard.steps - 1 - step, 0), len(self.points))
        return list(islice(self.points, len(self.points) - fresh, None))


def make_app(
    policy: Controller,
    settings: GuardSettings | None = None,
    *,
    fallback: Fallback | None = None,
    hosts: tuple[str, ...] = ("127.0.0.1", "localhost", "[::1]"),
    token: str | None = None,
    tuned: Tuned | None = None,
) -> FastAPI:
    """The service as an ASGI application.

    Args:
        policy: The policy, shared by all sessions.
        settings: The guards'.
        fallback: The guards'.
        hosts: Names under which it may be asked for.
        token: What a caller has to know, if anything.
        tuned: What is known of the policy's dial, for its page.

    Returns:
        The application.
    """
    app = FastAPI(title="moose", version=__version__, docs_url=None, redoc_url=None)
    sessions: dict[str, Session] = {}
    requests: Counter[str] = Counter()
    started = time.time()

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

    first = session_of("plant")  # so that settings that do not fit are told at the start

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

    @app.exception_handler(HTTPException)
    async def tell_path(request: Request, error: HTTPException) -> Response:
        where = f"{request.method} {request.url.path}"
        return _refuse(error.status_code, f"{error.detail}.", where, "see /openapi.json")

    direct = APIRouter(route_class=_Direct)

    @direct.post("/act", responses={200: {"model": Answer}}, openapi_extra=_body_of(Act))
    async def act(request: Request) -> Response:
        """The action for the newest observation of a plant."""
        requests["act"] += 1
        body = _parsed(request, await request.body())
        observation = _in_order(body.observation, policy)
        return Response(to_json(session_of(body.session).act(observation)), media_type=_JSON)

    @app.post("/reset")
    async def reset(body: Reset) -> dict[str, Any]:
        """Forget the history of a plant, which begins a new episode."""
        requests["reset"] += 1
        session_of(body.session).reset(body.last_action)
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
    async def live(
        session: SessionName = "plant", after: Annotated[int, Query(ge=-1)] = -1
    ) -> Response:
        """The latest steps of a plant, and what its guard has done so far.

        Of the steps only those with a number above `after` are told, so that who asks often need
        not be told everything again; numbers begin anew when `started` changes.
        """
        found = sessions.get(session)
        told = {
            "started": started,
            "sessions": {name: each.summary() for name, each in sessions.items()},
            "settings": first.guard.settings.model_dump(mode="json"),
            "novelty_release": first.guard.novelty_release,
            "has_novelty": policy.has_novelty,
            "has_tuning": tuned is not None,
            "points_kept": POINTS_KEPT,
            "counts": {} if found is None else dict(found.guard.counts),
            "points": [] if found is None else found.points_after(after),
        }
        return Response(to_json(told), media_type=_JSON)

    @app.get("/metrics")
    async def metrics() -> PlainTextResponse:
        """Counters in Prometheus' text format."""
        return PlainTextResponse(
            _metrics(sessions, requests), media_type="text/plain; version=0.0.4"
        )

    app.include_router(direct)
    app.include_router(dial_router(policy, tuned))
    for path, (name, kind) in _ASSETS.items():
        app.add_api_route(path, _asset_route(name, kind), include_in_schema=False)

    app.add_middleware(_Gate, token=token)
    app.add_middleware(TrustedHostMiddleware, allowed_hosts=list(hosts))
    return app


class _Direct(APIRoute):
    """For the one path that has to be fast: FastAPI describes it, but leaves the body to it."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """The endpoint itself, without the search for what it depends on."""
        endpoint: Callable[[Request], Coroutine[Any, Any, Response]] = self.endpoint
        return endpoint


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
            await _refuse(401, *_NO_TOKEN)(scope, receive, send)
            return
        length = headers.get(b"content-length", b"0")
        if not length.isdigit() or int(length) > LARGEST_BODY:
            await _refuse(413, *_TOO_LARGE)(scope, receive, send)
            return
        # Read here, so that a body that does not tell its length is counted as well.
        body = b""
        while True:
            message = await receive()
            if message["type"] != "http.request":
                return
            body += message.get("body", b"")
            if len(body) > LARGEST_BODY:
                await _refuse(413, *_TOO_LARGE)(scope, receive, send)
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
                    b"default-src 'none'; script-src 'self'; style-src 'self'; "
                    b"connect-src 'self'; img-src data:; frame-ancestors 'none'",
                ),
                (b"x-content-type-options", b"nosniff"),
                (b"cache-control", b"no-store"),
            ]
        await send(message)

    return safely


_NO_TOKEN = (
    "A token is needed, and it has to be the right one.",
    "header Authorization",
    "send 'Authorization: Bearer …' with the token that the service was started with",
)
_TOO_LARGE = (
    f"The request has more than {LARGEST_BODY} bytes.",
    "body",
    "send one observation at a time",
)


def _refuse(status: int, what: str, where: str, advice: str) -> Response:
    return JSONResponse({"what": what, "where": where, "advice": advice}, status_code=status)


def _body_of(model: type[BaseModel]) -> dict[str, Any]:
    """What OpenAPI says of a body that FastAPI does not read itself."""
    content = {_JSON: {"schema": model.model_json_schema()}}
    return {"requestBody": {"content": content, "required": True}}


def _parsed(request: Request, body: bytes) -> Act:
    """The body of /act."""
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != _JSON:  # which a browser sends only to where the page came from
        raise UserError(
            "The body is not said to be JSON.",
            where="Content-Type",
            advice=f"send the header Content-Type: {_JSON}",
        )
    try:
        return Act.model_validate_json(body)
    except ValidationError as error:
        raise RequestValidationError(error.errors()) from error


def _answer(decision: Decision, policy: Controller) -> dict[str, Any]:
    return {
        "step": decision.step,
        "action": dict(zip(policy.facts.action_names, decision.action.tolist(), strict=True)),
        "source": decision.source,
        "novelty": decision.novelty,
        "interventions": [
            {"reason": each.reason, "detail": each.detail} for each in decision.interventions
        ],
    }


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
    lines = ["# HELP moose_requests_total Requests, refused ones among them."]
    lines += ["# TYPE moose_requests_total counter"]
    lines += [f'moose_requests_total{{path="/{n}"}} {requests.get(n, 0)}' for n in ("act", "reset")]
    lines += ["# HELP moose_steps_total Observations that were answered with an action."]
    lines += ["# TYPE moose_steps_total counter"]
    lines += [f'moose_steps_total{{session="{n}"}} {s.guard.steps}' for n, s in sessions.items()]
    lines += ["# HELP moose_interventions_total Steps in which the guard intervened, by reason."]
    lines += ["# TYPE moose_interventions_total counter"]
    lines += [
        f'moose_interventions_total{{session="{n}",reason="{reason}"}} {s.guard.counts[reason]}'
        for n, s in sessions.items()
        for reason in REASONS
    ]
    lines += ["# HELP moose_novelty Novelty of the last step, as a quantile of the data's own."]
    lines += ["# TYPE moose_novelty gauge"]
    lines += [
        f'moose_novelty{{session="{n}"}} {s.points[-1]["novelty"]}'
        for n, s in sessions.items()
        if s.points and s.points[-1]["novelty"] is not None
    ]
    return "\n".join(lines) + "\n"


def _asset_route(name: str, kind: str) -> Callable[[], Awaitable[Response]]:
    content = files("moose.service").joinpath(name).read_bytes()

    async def asset() -> Response:
        return Response(content, media_type=kind)

    return asset
