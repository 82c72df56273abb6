"""``moose serve``."""

from __future__ import annotations

import importlib.util
import ipaddress
import os
import socket
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from moose.cli.replay import GuardSet
from moose.errors import ConfigError, MissingExtraError

if TYPE_CHECKING:
    from fastapi import FastAPI

TOKEN = "MOOSE_SERVE_TOKEN"  # noqa: S105 (the name of a variable)
_SHORTEST_TOKEN = 16
MOST_CONNECTIONS = 200
LOCAL = "127.0.0.1"
"""This machine only."""


def serve_command(
    policy: Annotated[
        Path, typer.Argument(help="A .moose file, a policy's folder or a finished run.")
    ],
    host: Annotated[str, typer.Option(help="Address to listen on.")] = LOCAL,
    port: Annotated[int, typer.Option(help="Port to listen on.", min=1, max=65535)] = 8765,
    settings: GuardSet = None,
    fallback: Annotated[
        Path | None, typer.Option(help="A policy to fall back on, such as a clone.")
    ] = None,
) -> None:
    """Serve a guarded policy over HTTP, with a page that shows what it does.

    It listens on this machine only. Any other address needs a token of at least 16 characters in
    the environment variable MOOSE_SERVE_TOKEN, which callers send as `Authorization: Bearer …`.

    For a run that `moose tune` has measured there is also the page of its dial, at /dial.

    For example:

    - `moose serve policy.moose`

    - `moose serve policy.moose --set novelty_limit=1 --fallback clone.moose --port 9000`
    """
    app = make_service(policy, host, settings or [], fallback)
    run_service(app, host, port, f"serving {policy}")


def make_service(
    policy: Path, host: str, settings: Sequence[str] = (), fallback: Path | None = None
) -> FastAPI:
    """The service of a policy, with the page of its dial where the run has been tuned.

    Args:
        policy: A ``.moose`` file, a policy's folder or a finished run.
        host: The address that it is for.
        settings: The guard's, as ``name=value``.
        fallback: A policy to fall back on.

    Returns:
        The application, for :func:`run_service`.

    Raises:
        ConfigError: Other machines could reach the address, and there is no token.
        MissingExtraError: A package that serving needs is not installed.
    """
    token = os.environ.get(TOKEN)
    require_token(host, token)
    require_service()

    from moose.config import load_settings
    from moose.experiments.run_folder import find_policy
    from moose.experiments.tuning_file import read_tuning
    from moose.policies.guard import GuardSettings
    from moose.policies.plain import load_policy
    from moose.service.app import make_app
    from moose.service.dial import Tuned

    source = find_policy(policy)
    tuning = read_tuning(policy)
    return make_app(
        load_policy(source),
        load_settings(GuardSettings, overrides=settings),
        fallback=None if fallback is None else load_policy(find_policy(fallback)),
        hosts=(LOCAL, "localhost", "[::1]", host),
        token=token,
        tuned=None if tuning is None else Tuned(tuning, source, policy),
    )


def require_service() -> None:
    """Raise if a package that serving needs is not installed."""
    for package in ("fastapi", "uvicorn", "httptools"):
        if importlib.util.find_spec(package) is None:
            raise MissingExtraError(package, "serve", "Serving a policy")


def run_service(app: FastAPI, host: str, port: int, told: str) -> None:
    """Serve until the process is asked to end.

    Args:
        app: What :func:`make_service` made.
        host: Address to listen on.
        port: Port to listen on.
        told: What to say that is served, once the address is taken.
    """
    import uvicorn

    from moose.service.protocol import LimitedProtocol

    config = uvicorn.Config(
        app,
        http=LimitedProtocol,
        ws="none",
        log_level="warning",
        access_log=False,
        limit_concurrency=MOST_CONNECTIONS,
        timeout_keep_alive=30,
        timeout_graceful_shutdown=10,
    )
    with bind(host, port) as listening:
        typer.echo(f"{told} on http://{host}:{port}", err=True)
        uvicorn.Server(config).run(sockets=[listening])


def bind(host: str, port: int) -> socket.socket:
    """Take the address, or say why it cannot be had."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        listening = socket.socket(family, kind, protocol)
        try:
            listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listening.bind(address)
        except BaseException:
            listening.close()
            raise
    except OSError as error:
        raise ConfigError(
            f"The service cannot listen on port {port} of {host}: {error.strerror}.",
            where="moose serve",
            advice="choose another port with --port, or end what is listening there",
        ) from error
    return listening


def require_token(host: str, token: str | None) -> None:
    """Raise unless only this machine can reach the address, or callers need a token."""
    try:
        is_own = host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        is_own = False
    if token is None and not is_own:
        raise ConfigError(
            f"Other machines could reach the service at {host}, and nothing would stop them.",
            where="--host",
            advice=f"set a token in the environment variable {TOKEN}, or leave --host out",
        )
    if token is not None and len(token) < _SHORTEST_TOKEN:
        raise ConfigError(
            f"The token has {len(token)} characters.",
            where=TOKEN,
            advice=f"give it at least {_SHORTEST_TOKEN}",
        )
