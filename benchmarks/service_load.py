"""The service under load: `moose serve` on loopback, beside an app that does nothing.

    python benchmarks/service_load.py [--calls 20000] [--connections 8] [--novelty] [--json]

A few client processes keep connections open and ask again as soon as they are answered, over plain
sockets, so that they cost little. The rival is a FastAPI app with one endpoint that returns a
constant, behind the same uvicorn: the ratio says what reading the observation, the guard, a policy
of the paper's sizes and the books add. Both take turns in ten rounds of the same run; after each
the service's resident memory is read. For memory over a million calls:

    python benchmarks/service_load.py --calls 1000000 --seconds 1800
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import selectors
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections import deque
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ[name] = "1"

ROUNDS = 10
WARM_UP = 500
MOST_BARE_CALLS = 2000
"""A round; enough for a ratio."""
OBSERVATION = [70.0, 50.0, 50.0, 50.0, 10.0, 100.0]
TIMEOUT = 30.0


def request_bytes(port: int) -> bytes:
    """One observation, as a plant's gateway sends it."""
    body = json.dumps({"session": "line-1", "observation": OBSERVATION}).encode()
    head = (
        f"POST /act HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\n"
        f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    )
    return head.encode() + body


class Connection:
    """One that is kept open, with at most one question under way."""

    def __init__(self, port: int) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port), timeout=TIMEOUT)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._received = b""
        self._asked = 0.0

    def ask(self, request: bytes) -> None:
        """Send a question."""
        self._asked = time.perf_counter()
        self.socket.sendall(request)

    def answer(self) -> tuple[float, bool] | None:
        """Seconds it took and whether it was good, or None while it is not complete."""
        self._received += self.socket.recv(65536)
        head, end, body = self._received.partition(b"\r\n\r\n")
        if not end:
            assert self._received, "the server has closed the connection"
            return None
        length = int(head.lower().partition(b"content-length:")[2].split(b"\r\n")[0])
        if len(body) < length:
            return None
        self._received = b""
        return time.perf_counter() - self._asked, head.startswith(b"HTTP/1.1 200 ")


def client(port: int, connections: int, calls: int, results) -> None:
    """A process that keeps its connections busy until all calls are answered."""
    request = request_bytes(port)
    waiting = selectors.DefaultSelector()
    for each in [Connection(port) for _ in range(connections)]:
        waiting.register(each.socket, selectors.EVENT_READ, each)
    seconds: list[float] = []
    errors, asked = 0, 0
    start = time.perf_counter()
    idle = deque(key.data for key in waiting.get_map().values())
    while len(seconds) < calls:
        while idle and asked < calls:
            idle.popleft().ask(request)
            asked += 1
        ready = waiting.select(TIMEOUT)
        assert ready, f"no answer within {TIMEOUT} s"
        for key, _ in ready:
            answer = key.data.answer()
            if answer is not None:
                seconds.append(answer[0])
                errors += not answer[1]
                idle.append(key.data)
    results.put((seconds, errors, start, time.perf_counter()))


class Round(NamedTuple):
    """What came of a number of calls."""

    latencies: list[float]
    errors: int
    seconds: float
    processor_seconds: float
    """Of the server, which a busy machine changes less than the rest."""


def load(server: Server, calls: int, options: argparse.Namespace) -> Round:
    """Let the clients make so many calls."""
    results = multiprocessing.Queue()
    share, mine = calls // options.clients, options.connections // options.clients
    processes = [
        multiprocessing.Process(target=client, args=(server.port, mine, share, results))
        for _ in range(options.clients)
    ]
    before = server.processor_seconds()
    for process in processes:
        process.start()
    found = [results.get(timeout=max(60.0, calls / 50)) for _ in processes]
    for process in processes:
        process.join()
    latencies, errors, starts, ends = zip(*found, strict=True)
    return Round(
        [each for part in latencies for each in part],
        sum(errors),
        max(ends) - min(starts),
        server.processor_seconds() - before,
    )


def serve_bare(port: int) -> None:
    """The rival: what FastAPI and uvicorn need to say anything at all."""
    import uvicorn
    from fastapi import FastAPI

    app = FastAPI()

    @app.post("/act")
    async def constant() -> dict[str, float]:
        return {"action": 0.0}

    uvicorn.run(app, port=port, log_level="warning", access_log=False, http="httptools")


class Server(NamedTuple):
    """A process that answers at a port."""

    process: subprocess.Popen
    port: int

    def memory(self) -> float:
        """Resident mebibytes."""
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        return round(int(status.partition("VmRSS:")[2].split()[0]) / 1024, 1)

    def processor_seconds(self) -> float:
        """That it has used so far."""
        fields = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


@contextmanager
def running(port: int, command: list[str]):
    """A server that listens."""
    process = subprocess.Popen([sys.executable, *command])
    try:
        for _ in range(600):
            try:
                socket.create_connection(("127.0.0.1", port), timeout=5).close()
                break
            except OSError:
                assert process.poll() is None, f"the server ended with {process.returncode}"
                time.sleep(0.1)
        yield Server(process, port)
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(timeout=60)


def free_port() -> int:
    """One that nobody listens on."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]


def summary(rounds: list[Round]) -> dict:
    """Rate, percentiles and errors over all rounds."""
    latencies = sorted(each for part in rounds for each in part.latencies)
    count = len(latencies)
    return {
        "calls": count,
        "calls/s": round(count / sum(each.seconds for each in rounds)),
        "best round/s": round(max(len(each.latencies) / each.seconds for each in rounds)),
        "p50 ms": round(1000 * latencies[count // 2], 2),
        "p99 ms": round(1000 * latencies[int(0.99 * count)], 2),
        "cpu us/call": round(1e6 * sum(each.processor_seconds for each in rounds) / count),
        "errors": sum(each.errors for each in rounds),
    }


def measure(options: argparse.Namespace) -> dict:
    """Both servers in turns."""
    program = "import moose.cli; moose.cli.main()"
    here = str(Path(__file__).resolve())
    with tempfile.TemporaryDirectory() as place:
        maker = str(Path(here).with_name("paper_policies.py"))
        subprocess.run([sys.executable, maker, place], check=True)
        our_port, bare_port = free_port(), free_port()
        serve = ["-c", program, "serve", f"{place}/{'novelty' if options.novelty else 'action'}"]
        serve += ["--port", str(our_port)]
        serve += ["--set", "novelty_limit=1"] if options.novelty else []
        with (
            running(our_port, serve) as ours,
            running(bare_port, [here, "--serve-bare", str(bare_port)]) as bare,
        ):
            for server in (ours, bare):
                load(server, WARM_UP, options)
            memory, rounds, rival = [ours.memory()], [], []
            end = time.monotonic() + options.seconds
            while len(rounds) < ROUNDS and time.monotonic() < end:
                rounds.append(load(ours, options.calls // ROUNDS, options))
                memory.append(ours.memory())
                rival.append(load(bare, min(options.calls // ROUNDS, MOST_BARE_CALLS), options))
                print(f"round {len(rounds)} of {ROUNDS}", file=sys.stderr, flush=True)
    result = {"moose serve": summary(rounds), "bare app": summary(rival)}
    ratios = {
        f"{name} ratio": round(result["moose serve"][name] / result["bare app"][name], 2)
        for name in ("calls/s", "cpu us/call")
    }
    return result | ratios | {"memory_mib": memory, "is_complete": len(rounds) == ROUNDS}


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--calls", type=int, default=20_000)
    parser.add_argument("--connections", type=int, default=8, help="kept open at the same time")
    parser.add_argument("--clients", type=int, default=2, help="processes that share them")
    parser.add_argument("--seconds", type=float, default=300.0, help="no new round after these")
    parser.add_argument("--novelty", action="store_true", help="let the guard watch the novelty")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--serve-bare", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve_bare:
        serve_bare(options.serve_bare)
        return
    result = measure(options)
    if options.json:
        print(json.dumps(result, indent=2))
        return
    print(f"{'':14}" + "".join(f"{name:>14}" for name in result["bare app"]))
    for name in ("moose serve", "bare app"):
        print(f"{name:14}" + "".join(f"{value:>14}" for value in result[name].values()))
    print("ours to the bare app's:", {k: v for k, v in result.items() if k.endswith("ratio")})
    print("resident MiB:", *result["memory_mib"])
    if not result["is_complete"]:
        print(f"stopped after {options.seconds:g} s")


if __name__ == "__main__":
    main()
