"""The page of the dial: what was measured is shown, and what is downloaded is what was shown."""

from __future__ import annotations

import json
import re
import urllib.request

import numpy as np
import onnxruntime
import pytest
from fastapi.testclient import TestClient
from playwright.sync_api import expect

from browser import visit
from moose.errors import DataError, StorageError
from moose.experiments.tuning_file import TUNING, read_tuning
from moose.policies.plain import load_policy
from moose.policies.policy import save_policy
from moose.service.app import make_app
from moose.service.dial import Tuned
from policies import make_toy_policy, wild_windows
from serving import serving
from tunings import STEPS, make_tuning

expect.set_options(timeout=30_000)  # a busy machine may take its time
HOME = "http://127.0.0.1"
HOSTILE = "<b>x</b>"


@pytest.fixture(scope="module")
def make_run(tmp_path_factory):
    """Makes the folder of a run: a policy with a dial at 0.5, and what tuning has left."""

    def make(tuning=None, kind="dial"):
        folder = tmp_path_factory.mktemp("run")
        save_policy(make_toy_policy(kind), folder / "policy")
        if tuning is not None:
            (folder / TUNING).write_text(tuning if isinstance(tuning, str) else json.dumps(tuning))
        return folder

    return make


@pytest.fixture(scope="module")
def run(make_run):
    return make_run(make_tuning())


@pytest.fixture(scope="module")
def service(run):
    with serving(run) as started:
        yield started


def client_of(folder, **options):
    tuning, policy = read_tuning(folder), folder / "policy"
    tuned = None if tuning is None else Tuned(tuning, policy, folder)
    return TestClient(make_app(load_policy(policy), tuned=tuned, **options), base_url=HOME)


def same_actions(found, expected):
    windows = wild_windows(make_toy_policy("dial"), 20)
    return np.array_equal(found(windows), expected(windows))


# ------------------------------------------------------------------------------------ over HTTP


def test_what_was_measured_is_told(run):
    client = client_of(run)
    assert client.get("/dial.json").json() == make_tuning() | {"run": str(run)}
    assert client.get("/live").json()["has_tuning"] is True
    page = client.get("/dial")
    assert page.headers["content-type"].startswith("text/html")
    assert "script-src 'self'" in page.headers["content-security-policy"]
    for path in ("/dial", "/dial.css", "/dial.js", "/asking.js", "/drawing.js"):
        text = client.get(path).text
        assert "http" not in text
        assert "//" not in text.replace("// ", "")
        assert "innerHTML" not in text
    assert client.get("/openapi.json").json()["paths"].keys() >= {"/dial.json", "/dial/policy"}


@pytest.mark.parametrize("position", [0, 0.35, 0.5, 1])
def test_the_policy_at_a_position(run, tmp_path, position):
    answer = client_of(run).get(f"/dial/policy?position={position}")
    name = f"policy-{position:.2f}.moose"
    assert answer.headers["content-disposition"] == f'attachment; filename="{name}"'
    (tmp_path / name).write_bytes(answer.content)
    found = load_policy(tmp_path / name)
    assert found.position == position
    assert same_actions(found, load_policy(run / "policy").at(position))


def test_other_forms_with_and_without_the_position_as_an_input(run):
    client = client_of(run)
    for is_turnable, inputs in ((False, ["history"]), (True, ["history", "position"])):
        query = f"position=0.625&turnable={str(is_turnable).lower()}"
        graph = client.get(f"/dial/policy?{query}&form=onnx")
        assert ("-dial" in graph.headers["content-disposition"]) == is_turnable
        assert "policy-0.625" in graph.headers["content-disposition"]
        session = onnxruntime.InferenceSession(graph.content)
        assert [each.name for each in session.get_inputs()] == inputs
        source = client.get(f"/dial/policy?{query}&form=c").text
        assert ("moose_set_position" in source) == is_turnable


@pytest.mark.parametrize(
    ("query", "place"),
    [
        ("position=1.01", "position"),
        ("position=-0.1", "position"),
        ("position=nan", "position"),
        ("position=inf", "position"),
        ("position=half", "query.position"),
        ("", "query.position"),
        ("position=0.5&form=exe", "query.form"),
        ("position=0.5&turnable=perhaps", "query.turnable"),
        ("position=0.5&form=moose&turnable=true", "--dial with the format 'moose'"),
    ],
)
def test_what_cannot_be_had_is_told_in_the_usual_form(run, query, place):
    answer = client_of(run).get(f"/dial/policy?{query}")
    assert answer.status_code == 422
    told = answer.json()
    assert told.keys() == {"what", "where", "advice"}
    assert told["where"] == place
    assert told["what"]
    assert told["advice"]


def test_without_measurements_it_says_what_to_do(make_run):
    client = client_of(make_run())
    for path in ("/dial.json", "/dial/policy?position=0.5"):
        answer = client.get(path)
        assert (answer.status_code, "moose tune RUN" in answer.json()["advice"]) == (422, True)
    assert client.get("/dial").status_code == 200
    assert client.get("/live").json()["has_tuning"] is False
    other = client_of(make_run(kind="network")).get("/dial.json")
    assert (other.status_code, "has no dial" in other.json()["what"]) == (422, True)


def test_the_gate_is_before_the_dial_too(run):
    client = client_of(run, token="t" * 20)
    for path in ("/dial.json", "/dial/policy?position=0.5"):
        assert client.get(path).status_code == 401
        right = {"Authorization": "Bearer " + "t" * 20}
        assert client.get(path, headers=right).status_code == 200
        assert client.get(path, headers=right | {"host": "evil.example"}).status_code == 400
    assert client.get("/dial").status_code == 200


def without(name):
    return json.dumps({key: part for key, part in make_tuning().items() if key != name})


@pytest.mark.parametrize(
    ("text", "error", "told"),
    [
        ("{", StorageError, "not valid JSON"),
        ("[]", DataError, "'moose-tuning'"),
        (json.dumps(make_tuning() | {"format": "moose-run"}), DataError, "'moose-run'"),
        (json.dumps(make_tuning() | {"schema_version": 99}), StorageError, "version 99"),
        (without("reasons"), StorageError, "'reasons'"),
        (json.dumps(make_tuning() | {"dial": []}), StorageError, "0 for 21 positions"),
    ],
)
def test_a_damaged_file_is_told_with_what_to_do(tmp_path, text, error, told):
    (tmp_path / TUNING).write_text(text)
    with pytest.raises(error, match=told) as caught:
        read_tuning(tmp_path)
    assert caught.value.where == str(tmp_path / TUNING)
    assert caught.value.advice


# --------------------------------------------------------------------------------- in a browser


def test_a_person_turns_the_dial(service):
    with visit(f"{service.home}/") as seen:
        page = seen.page
        page.click("#to-dial")  # from the controller's page
        expect(page.locator("#stands")).to_have_text("0.75")
        expect(page.locator("#choice")).to_have_text("Advised: λ = 0.75")
        expect(page.locator("#scale text.mark")).to_have_text("advised 0.75")
        kinds = [item["kind"] for item in make_tuning()["reasons"]]
        marked = page.locator("#reasons li")
        assert [marked.nth(i).get_attribute("data-kind") for i in range(3)] == kinds
        assert numbers(page)["Imagined return"] == "-61.03"
        assert numbers(page)["Lower bound"] == "-64.22"
        assert numbers(page)["The log itself"] == "-77.2"
        assert numbers(page)["Never changing anything"] == "-70.25"
        assert page.locator("#returns .band").count() == 1
        assert page.locator("#returns .level").count() == 2
        assert abs(centre(page, "#returns .advised") - centre(page, "#scale path.mark")) < 1
        assert page.locator("#signals .card").count() == 3
        assert page.locator("#actions .card").count() == 2
        for whose in ("imagined", "logged"):
            drawn = page.locator(f"#signals .card:nth-child(1) .{whose}.line").get_attribute("d")
            assert len(re.findall("[ML]", drawn)) == STEPS + 1

        before = shapes(page)
        page.focus("#position")
        for _ in range(3):
            page.keyboard.press("ArrowLeft")
        expect(page.locator("#stands")).to_have_text("0.60")
        assert page.url.endswith("#position=0.6")
        assert page.get_attribute("#position", "aria-valuetext") == "λ = 0.60"
        assert numbers(page)["Imagined return"] == "-62.58"
        assert numbers(page)["New to the log"] == "7.5 %"
        assert numbers(page)["Actions at bounds"] == "9 %"
        after = shapes(page)
        assert all(old != new for old, new in zip(before, after, strict=True))
        handle = page.locator("#position").bounding_box()
        middle = handle["x"] + 14 + (handle["width"] - 28) * 0.6
        assert abs(centre(page, "#returns .cursor") - middle) < 1.5  # the handle is above its mark

        page.click("#advised")
        expect(page.locator("#stands")).to_have_text("0.75")
        box = page.locator("#returns").bounding_box()
        page.mouse.click(box["x"] + 48 + (box["width"] - 56) * 0.26, box["y"] + 50)
        expect(page.locator("#stands")).to_have_text("0.25")
        page.evaluate("location.hash = '#position=0.9'")  # as from another's message
        expect(page.locator("#stands")).to_have_text("0.90")
        page.reload()
        expect(page.locator("#stands")).to_have_text("0.90")
        page.evaluate("location.hash = '#position=7'")
        page.reload()
        expect(page.locator("#stands")).to_have_text("0.75")  # what is advised, not the end
        assert (seen.errors, seen.outside(home=service.home)) == ([], [])


def test_what_is_shown_can_be_taken_along(service, run, tmp_path):
    with visit(f"{service.home}/dial#position=0.61") as seen:  # the nearest that was measured
        page = seen.page
        expect(page.locator("#stands")).to_have_text("0.60")
        command = page.inner_text("#command")
        assert command == f"moose export {run} --position 0.6 --out policy-0.60.moose"
        with page.expect_download() as started:
            page.click("#download")
        assert started.value.suggested_filename == "policy-0.60.moose"
        started.value.save_as(tmp_path / "p.moose")
        assert same_actions(load_policy(tmp_path / "p.moose"), load_policy(run / "policy").at(0.6))
        expect(page.locator("#outcome")).to_contain_text("policy-0.60.moose:")

        assert page.is_disabled("#turnable")
        page.check("[value=c]")
        page.check("#turnable")
        assert page.inner_text("#command").endswith("--format c --dial --out policy-0.60-dial.c")
        with page.expect_download() as started:
            page.click("#download")
        assert "moose_set_position" in started.value.path().read_text()
        assert (seen.errors, seen.outside(home=service.home)) == ([], [])


def test_the_advice_to_hold_on_a_small_dark_screen(make_run):
    with (
        serving(make_run(make_tuning("hold"))) as service,
        visit(f"{service.home}/dial", dark=True, width=600) as seen,
    ):
        page = seen.page
        expect(page.locator("#choice")).to_have_text("Advised: change nothing")
        expect(page.locator("#promise")).to_contain_text("Doing nothing is what is advised")
        expect(page.locator("#promise")).to_contain_text("which is not what is advised")
        expect(page.locator("#stands")).to_have_text("0.75")
        expect(page.locator("#scale text.mark")).to_have_text("best lower bound 0.75")
        page.focus("#position")
        page.keyboard.press("Home")
        expect(page.locator("#stands")).to_have_text("0.00")
        page.click("#advised")
        expect(page.locator("#stands")).to_have_text("0.75")
        assert page.evaluate("document.documentElement.scrollWidth") <= 600
        shade = page.evaluate("getComputedStyle(document.body).backgroundColor")
        assert max(map(int, re.findall(r"\d+", shade))) < 50
        assert seen.errors == []


def test_names_are_text_and_holding_may_be_no_action(make_run):
    tuning = make_tuning(signals=(HOSTILE, "y"), actions=(HOSTILE + "!",), has_hold=False)
    tuning["reasons"] = [{"kind": "caution", "text": f"Beware of {HOSTILE}."}]
    with serving(make_run(tuning)) as service, visit(f"{service.home}/dial") as seen:
        page = seen.page
        expect(page.locator("#signals .card:nth-child(1) .name")).to_have_text(HOSTILE)
        assert page.inner_text("#actions .name") == HOSTILE + "!"
        assert page.inner_text("#reasons li") == f"Beware of {HOSTILE}."
        assert page.locator("main b").count() == 0
        assert numbers(page)["Never changing anything"] == "–"
        assert page.locator("#returns .level").count() == 1
        assert page.locator("#hold-key").is_hidden()
        assert seen.errors == []


def test_a_token_opens_the_page_and_the_download(run, monkeypatch):
    monkeypatch.setenv("MOOSE_SERVE_TOKEN", "t" * 20)
    with serving(run) as service, visit(f"{service.home}/dial") as seen:
        page = seen.page
        expect(page.locator("#notice")).to_contain_text("/dial#token=")
        page.evaluate(f"location.hash = '#token={'t' * 20}'")
        expect(page.locator("#stands")).to_have_text("0.75")
        expect(page.locator("#notice")).to_be_hidden()
        page.focus("#position")
        page.keyboard.press("End")
        assert page.url.endswith(f"#token={'t' * 20}&position=1")
        with page.expect_download() as started:
            page.click("#download")
        assert load_policy(started.value.path()).position == 1
        assert "t" * 20 not in page.content()
        page.click("#to-controller")
        expect(page.locator("#link")).to_have_text("waiting")


def test_without_measurements_the_page_says_what_to_do(make_run):
    with serving(make_run()) as service, visit(f"{service.home}/dial") as seen:
        expect(seen.page.locator("#remedy")).to_contain_text("moose tune RUN")
        expect(seen.page.locator("#data")).to_be_hidden()
        seen.page.goto(f"{service.home}/")
        expect(seen.page.locator("#link")).to_have_text("waiting")
        expect(seen.page.locator("#to-dial")).to_be_hidden()
        with urllib.request.urlopen(f"{service.home}/live", timeout=5) as answer:  # noqa: S310
            assert json.load(answer)["has_tuning"] is False
        assert [error for error in seen.errors if error.startswith("script")] == []


def numbers(page):
    """The table of numbers at the position, by name."""
    rows = page.locator("#numbers dl > div")
    told = [(rows.nth(i).locator("dt"), rows.nth(i).locator("dd")) for i in range(rows.count())]
    return {name.evaluate("e => e.firstChild.data"): value.inner_text() for name, value in told}


def shapes(page):
    """What is drawn of the position: in the overview, of a signal and of an action."""
    return [
        page.locator("#returns .cursor").get_attribute("x1"),
        page.locator("#newness .dot").get_attribute("cx"),
        page.locator("#distance .dot").get_attribute("cy"),
        page.locator("#signals .card:nth-child(1) .imagined.line").get_attribute("d"),
        page.locator("#actions .card:nth-child(1) .imagined.band").get_attribute("d"),
    ]


def centre(page, selector):
    """How far right the middle of something is on the screen."""
    box = page.locator(selector).bounding_box()
    return box["x"] + box["width"] / 2
