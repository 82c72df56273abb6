"""``moose serve`` as a process of its own, and questions to it."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path


@dataclass
class Service:
    """A service that answers."""

    process: subprocess.Popen[str]
    port: int
    errors: str = ""
    """What it printed, once it has ended."""

    @property
    def home(self) -> str:
        """Where it is."""
        return f"http://127.0.0.1:{self.port}"

    def post(self, path: str, **body: object) -> dict:
        """Its answer."""
        request = urllib.request.Request(  # noqa: S310
            f"{self.home}{path}", json.dumps(body).encode(), {"Content-Type": "application/json"}
        )
        with urllib.request.urlopen(request, timeout=30) as answer:  # noqa: S310
            return json.load(answer)

    def stop(self) -> None:
        """Ask it to end, and wait."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        self.errors += self.process.communicate(timeout=60)[1]


def free_port() -> int:
    """A port of this machine that nobody listens on."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]


@contextmanager
def serving(policy: Path, *options: str, port: int | None = None) -> Iterator[Service]:
    """Start it, wait for its first answer, and stop it in the end."""
    port = free_port() if port is None else port
    program = "import moose.cli; moose.cli.main()"
    command = [sys.executable, "-c", program, "serve", str(policy), "--port", str(port), *options]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    service = Service(process, port)
    try:
        for _ in range(600):
            try:
                urllib.request.urlopen(f"{service.home}/health", timeout=5).close()  # noqa: S310
                break
            except urllib.error.URLError:
                assert process.poll() is None, process.stderr.read()
                time.sleep(0.1)
        yield service
    finally:
        if not service.errors:
            service.stop()
