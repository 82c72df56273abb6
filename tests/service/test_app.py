"""The service: the guard's answers over HTTP, and nothing for those who may not ask."""

from __future__ import annotations

import contextlib
import gc
import json
import re
import signal
import socket
import tracemalloc
import urllib.request

import pytest
from fastapi.testclient import TestClient

from moose.cli.serve import bind, require_token
from moose.errors import ConfigError
from moose.policies.guard import Guard, GuardSettings
from moose.policies.plain import load_policy
from moose.policies.policy import save_policy
from moose.service.app import LARGEST_BODY, MOST_SESSIONS, POINTS_KEPT, Answer, Session, make_app
from policies import make_toy_policy
from serving import serving

HOME = "http://127.0.0.1"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("service") / "policy"
    save_policy(make_toy_policy(), path)
    return path


@pytest.fixture(scope="module")
def controller(folder):
    return load_policy(folder)


@pytest.fixture
def client(controller):
    return TestClient(make_app(controller, GuardSettings(novelty_limit=2.0)), base_url=HOME)


def test_it_answers_as_the_guard_does(client, controller):
    guard = Guard(controller, GuardSettings(novelty_limit=2.0))
    for frame in ([0.1, 0.2, 0.3], [0.1, None, 0.4], [50.0, 50.0, -50.0]):
        answer = client.post("/act", json={"observation": frame})
        assert answer.status_code == 200
        found, expected = answer.json(), guard.act(frame)
        assert list(found["action"].values()) == expected.action.tolist()
        assert (found["source"], found["novelty"]) == (expected.source, expected.novelty)
        reasons = [each["reason"] for each in found["interventions"]]
        assert reasons == [each.reason for each in expected.interventions]
    text = b'{"session": "w", "observation": [NaN, 1e999, -Infinity]}'
    is_json = {"Content-Type": "application/json"}
    wild = client.post("/act", content=text, headers=is_json)
    assert client.post("/act", content=b'{"x": NaN}', headers=is_json).status_code == 422
    assert (wild.status_code, wild.json()["source"]) == (200, "fallback")
    assert client.get("/live?session=w").json()["points"][0]["observation"] == [None] * 3
    live = client.get("/live").json()
    assert [point["step"] for point in live["points"]] == [0, 1, 2]
    assert live["counts"] == dict(guard.counts)
    text = client.get("/metrics").text
    assert 'moose_steps_total{session="plant"} 3' in text
    assert 'reason="sensor-held"} 1' in text
    assert 'moose_requests_total{path="/act"} 5' in text  # the refused one too
    assert all(
        re.fullmatch(r"(# TYPE \w+ \w+)|(# HELP \w+ .*)|([a-z_]+\{.*\} \S+)", x)
        for x in text.splitlines()
    )


@pytest.mark.parametrize("position", [0, 0.5, 1])
def test_a_policy_with_a_dial_is_served_where_it_stands(tmp_path, position):
    save_policy(make_toy_policy("dial").at(position), tmp_path / "policy")
    controller = load_policy(tmp_path / "policy")
    client = TestClient(make_app(controller), base_url=HOME)
    guard = Guard(controller)
    for frame in ([0.1, 0.2, 0.3], [0.1, None, 0.4]):
        found = client.post("/act", json={"observation": frame}).json()
        assert list(found["action"].values()) == guard.act(frame).action.tolist()
    assert client.get("/policy").json()["numbers"] == {"position": position}
    turned = TestClient(make_app(controller.at(0.25)), base_url=HOME)
    assert turned.get("/policy").json()["numbers"] == {"position": 0.25}
    assert turned.post("/act", json={"observation": [0.1, 0.2, 0.3]}).status_code == 200


def test_names_and_sessions(client):
    named = {"lever": 0.3, "x": 0.1, "y": 0.2}
    first = client.post("/act", json={"observation": [0.1, 0.2, 0.3]}).json()
    other = client.post("/act", json={"session": "b", "observation": named}).json()
    assert other == first  # the same, with a history of its own
    assert client.get("/live?session=b").json()["sessions"].keys() == {"plant", "b"}
    assert client.post("/reset", json={"session": "b"}).status_code == 200
    bad_reset = client.post("/reset", json={"last_action": [None, 1.0]})
    assert (bad_reset.status_code, "finite" in bad_reset.json()["what"]) == (422, True)
    wrong = client.post("/act", json={"observation": {"z": 1.0}})
    assert (wrong.status_code, wrong.json()["what"]) == (422, "There is no signal 'z'.")
    for i in range(MOST_SESSIONS + 5):
        last = client.post("/act", json={"session": f"s{i}", "observation": [0, 0, 0]})
    assert (last.status_code, "sessions already" in last.json()["what"]) == (422, True)


@pytest.mark.parametrize(
    "body",
    [
        {"observation": [1.0, 2.0]},
        {"observation": "abc"},
        {"observation": [1, 2, "x"]},
        {"observation": [1, 2, 3], "more": 1},
        {"observation": [1, 2, 3], "session": "a b"},
        {"observation": [1, 2, 3], "session": "x" * 65},
        {},
    ],
)
def test_bad_requests_are_refused_and_change_nothing(client, body):
    assert client.post("/act", json=body).status_code == 422
    assert client.get("/live").json()["points"] == []


def test_limits_of_size_host_and_token(client, controller):
    long = b" " * (LARGEST_BODY + 1)
    assert client.post("/act", content=long).status_code == 413
    assert client.post("/act", content=iter([long[:-9], long])).status_code == 413  # chunked
    assert client.get("/health", headers={"host": "evil.example"}).status_code == 400
    guarded = TestClient(make_app(controller, token="t" * 20), base_url=HOME)
    body = {"observation": [0, 0, 0]}
    for headers in ({}, {"Authorization": "Bearer wrong"}, {"Authorization": "t" * 20}):
        for path in ("/act", "/live", "/metrics", "/policy", "/openapi.json"):
            refused = guarded.request("POST" if path == "/act" else "GET", path, headers=headers)
            assert refused.status_code == 401, path
    right = {"Authorization": "Bearer " + "t" * 20}
    assert guarded.post("/act", json=body, headers=right).status_code == 200
    assert guarded.get("/health").json()["status"] == "ok"
    for host in ("0.0.0.0", "192.168.0.1", "example.org", "::"):  # noqa: S104
        with pytest.raises(ConfigError, match="Other machines"):
            require_token(host, None)
        require_token(host, "t" * 16)
    for host in ("127.0.0.1", "localhost", "::1"):
        require_token(host, None)
    with pytest.raises(ConfigError, match="characters"):
        require_token("127.0.0.1", "short")


def test_only_what_is_new_is_told_again(client):
    for i in range(POINTS_KEPT + 20):
        if i == POINTS_KEPT:
            client.post("/reset", json={})
        client.post("/act", json={"observation": [0.1, 0.2, i / 1000]})
    whole = client.get("/live").json()
    steps = [point["step"] for point in whole["points"]]
    assert steps == list(range(20, POINTS_KEPT + 20))
    assert [p["step"] for p in whole["points"] if p["is_first"]] == [POINTS_KEPT]
    assert whole["sessions"]["plant"]["steps"] == POINTS_KEPT + 20
    assert (whole["settings"]["novelty_limit"], whole["novelty_release"]) == (2.0, 1.6)
    for after, count in (
        (POINTS_KEPT + 17, 2),
        (POINTS_KEPT + 19, 0),
        (10**9, 0),
        (5, POINTS_KEPT),
    ):
        rest = client.get(f"/live?after={after}").json()
        assert rest["points"] == whole["points"][len(steps) - count :]
        assert rest["started"] == whole["started"]
    assert client.get("/live?after=-2").status_code == 422
    assert client.get("/live?session=nobody").json()["points"] == []
    assert "nobody" not in client.get("/live").json()["sessions"]


def test_a_session_remembers_so_much_and_no_more(controller):
    session = Session(Guard(controller, GuardSettings(novelty_limit=2.0)))

    def run(steps):
        for i in range(steps):
            session.act([0.1, None if i % 3 else 0.2, i % 7 / 10])
        gc.collect()
        return tracemalloc.get_traced_memory()[0]

    tracemalloc.start()
    try:
        before = run(1500)
        after = run(3500)
    finally:
        tracemalloc.stop()
    assert (session.guard.steps, len(session.points)) == (5000, POINTS_KEPT)
    assert after - before < 50_000


def test_a_body_is_json_and_says_so(client):
    body = json.dumps({"observation": [0.1, 0.2, 0.3]}).encode()
    for kind in ("text/plain", "application/x-www-form-urlencoded", ""):
        refused = client.post("/act", content=body, headers={"Content-Type": kind})
        assert (refused.status_code, refused.json()["where"]) == (422, "Content-Type")
    for kind in ("application/json", "Application/JSON; charset=utf-8"):
        assert client.post("/act", content=body, headers={"Content-Type": kind}).is_success
    broken = client.post("/act", content=b"{", headers={"Content-Type": "application/json"})
    assert (broken.status_code, "JSON" in broken.json()["what"]) == (422, True)


def test_the_interface_says_what_is_sent_and_answered(client):
    interface = client.get("/openapi.json").json()
    act = interface["paths"]["/act"]["post"]
    sent = act["requestBody"]["content"]["application/json"]["schema"]
    assert (sent["required"], sent["additionalProperties"]) == (["observation"], False)
    told = act["responses"]["200"]["content"]["application/json"]["schema"]["$ref"]
    described = interface["components"]["schemas"][told.rpartition("/")[2]]["properties"]
    answer = client.post("/act", json={"observation": [0.1, None, 0.3]}).json()
    assert described.keys() == answer.keys()
    assert Answer.model_validate(answer).model_dump() == answer


def test_settings_that_do_not_fit_are_told_at_the_start(controller):
    with pytest.raises(ConfigError, match="rates"):
        make_app(controller, GuardSettings(action_rates=(1.0,)))


def test_the_page_asks_nobody_else(client):
    page, *rest = (client.get(path) for path in ("/", "/page.css", "/page.js"))
    assert "default-src 'none'" in page.headers["content-security-policy"]
    for text in (page.text, *(each.text for each in rest)):
        assert "http:" not in text
        assert "https:" not in text
        assert "//" not in text.replace("// ", "")
    assert client.get("/openapi.json").json()["paths"].keys() >= {"/act", "/reset", "/metrics"}


def endless_header(port):
    """What the service says to somebody who never ends a header, after 10 MB at the latest."""
    with socket.create_connection(("127.0.0.1", port), timeout=30) as connection:
        connection.sendall(b"GET /health HTTP/1.1\r\nHost: 127.0.0.1\r\nX: ")
        with contextlib.suppress(ConnectionError):
            for _ in range(1000):
                connection.sendall(b"x" * 10_000)
        with contextlib.suppress(ConnectionError):
            return connection.recv(1000)
    return b""


def test_it_starts_on_this_machine_only_and_stops_gracefully(folder):
    with serving(folder) as service:
        with urllib.request.urlopen(f"{service.home}/health", timeout=5) as answer:  # noqa: S310
            assert json.load(answer)["status"] == "ok"
        hexadecimal = f"{service.port:04X}"
        with open("/proc/net/tcp") as table:
            listening = [line.split()[1] for line in table if f":{hexadecimal} 0000" in line]
        assert listening == [f"0100007F:{hexadecimal}"]
        refused = endless_header(service.port)
        assert refused.startswith(b"HTTP/1.1 400 ")
        assert service.post("/act", observation=[0.1, 0.2, 0.3])["step"] == 0
    assert service.process.returncode in (0, -signal.SIGTERM), service.errors
    assert "Traceback" not in service.errors


def test_an_address_that_cannot_be_had_is_told_before_the_service_claims_to_run():
    with bind("127.0.0.1", 0) as taken:
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(ConfigError, match=f"port {port} of 127.0.0.1") as error:
            bind("127.0.0.1", port)
    assert "--port" in error.value.advice
    with pytest.raises(ConfigError, match=re.escape("no.such.host.invalid")):
        bind("no.such.host.invalid", 0)


def test_every_refusal_has_the_same_shape_and_is_counted(client):
    missing = client.get("/nowhere")
    assert missing.status_code == 404
    assert missing.json() == {
        "what": "Not Found.",
        "where": "GET /nowhere",
        "advice": "see /openapi.json",
    }
    assert client.get("/act").status_code == 405
    large = client.post("/act", content=b"x" * (LARGEST_BODY + 1))
    assert large.status_code == 413
    assert str(LARGEST_BODY) in large.json()["what"]
    assert large.json()["advice"]
    assert client.post("/act", content=b"{").status_code == 422
    assert 'moose_requests_total{path="/act"} 1' in client.get("/metrics").text
