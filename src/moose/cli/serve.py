"""``moose serve``."""

from __future__ import annotations

import importlib.util
import ipaddress
import os
import socket
from pathlib import Path
from typing import Annotated

import typer

from moose.cli.replay import GuardSet
from moose.errors import ConfigError, MissingExtraError

TOKEN = "MOOSE_SERVE_TOKEN"  # noqa: S105 (the name of a variable)
_SHORTEST_TOKEN = 16
MOST_CONNECTIONS = 200


def serve_command(
    policy: Annotated[
        Path, typer.Argument(help="A .moose file, a policy's folder or a finished run.")
    ],
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="Port to listen on.", min=1, max=65535)] = 8765,
    settings: GuardSet = None,
    fallback: Annotated[
        Path | None, typer.Option(help="A policy to fall back on, such as a clone.")
    ] = None,
) -> None:
    """Serve a guarded policy over HTTP, with a page that shows what it does.

    It listens on this machine only. Any other address needs a token of at least 16 characters in
    the environment variable MOOSE_SERVE_TOKEN, which callers send as `Authorization: Bearer …`.

    For example:

    - `moose serve policy.moose`

    - `moose serve policy.moose --set novelty_limit=1 --fallback clone.moose --port 9000`
    """
    token = os.environ.get(TOKEN)
    require_token(host, token)
    for package in ("fastapi", "uvicorn", "httptools"):
        if importlib.util.find_spec(package) is None:
            raise MissingExtraError(package, "serve", "Serving a policy")
    import uvicorn

    from moose.config import load_settings
    from moose.experiments.run_folder import find_policy
    from moose.policies.guard import GuardSettings
    from moose.policies.plain import load_policy
    from moose.service.app import make_app
    from moose.service.protocol import LimitedProtocol

    app = make_app(
        load_policy(find_policy(policy)),
        load_settings(GuardSettings, overrides=settings or []),
        fallback=None if fallback is None else load_policy(find_policy(fallback)),
        hosts=("127.0.0.1", "localhost", "[::1]", host),
        token=token,
    )
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
        typer.echo(f"serving {policy} on http://{host}:{port}", err=True)
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
