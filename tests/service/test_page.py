"""The page in a browser: a real service, real steps, and what a person gets to see of them."""

from __future__ import annotations

import re

import pytest
from playwright.sync_api import expect

from browser import visit
from moose.policies.policy import save_policy
from policies import make_toy_policy
from serving import free_port, serving

expect.set_options(timeout=30_000)  # a busy machine may take its time
STEPS = 30
FAULT = range(20, 26)  # the patience is 3: held for three steps, then lost


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("page") / "policy"
    save_policy(make_toy_policy(), path)
    return path


def send_steps(service):
    """A plant whose second sensor fails for a while, and another that is well."""
    for i in range(STEPS):
        y = None if i in FAULT else 0.2
        service.post("/act", session="line-1", observation=[i / 100, y, 0.3])
    service.post("/act", session="line-2", observation=[0.1, 0.2, 0.3])


def test_a_person_sees_what_the_guard_does(folder):
    with serving(folder, "--set", "novelty_limit=1e9") as service, visit(service.home) as seen:
        page = seen.page
        # Before the first step it says what to do, for this very service and task.
        expect(page.locator("#empty")).to_be_visible()
        example = page.inner_text("#example")
        assert f"curl -s {service.home}/act" in example
        assert "x, y, lever" in example

        send_steps(service)
        expect(page.locator("#session")).to_have_value("line-1")  # where something happens
        expect(page.locator("#reasons")).to_contain_text(f"step {STEPS - 1}:")
        expect(page.locator("#link")).to_have_text("live")
        expect(page.locator("#empty")).to_be_hidden()
        expect(page.locator("#source")).to_have_text("The policy acts")
        assert charts(page) == {"x": STEPS, "y": STEPS - len(FAULT), "lever": STEPS}
        marks = [page.locator(f"#signals .card:nth-child({i}) .missing").count() for i in (1, 2, 3)]
        assert marks == [0, len(FAULT), 0]
        assert page.locator("#actions .card .line").count() == 2
        assert page.locator("#actions .card .limit").count() == 4
        assert page.locator("#signals .card .range").count() == 3
        assert page.locator("#novelty .limit").count() == 2  # limit and release
        assert page.inner_text("#log tbody").splitlines() == [
            "23 to 25\tsensor-lost: a sensor has been missing for too long\ty",
            "20 to 22\tsensor-held: a missing sensor was replaced by its last value\ty",
        ]
        assert page.inner_text("#timeline .label:nth-child(4) ~ .count") == "3"

        # A step in the past, under the pointer, in all charts at once.
        box = page.locator("#signals .card:nth-child(1) svg").bounding_box()
        middle = box["x"] + 48 + (box["width"] - 56) * 24 / (STEPS - 1)
        page.mouse.move(middle, box["y"] + 20)
        expect(page.locator("#source")).to_have_text("The fallback acts")
        expect(page.locator("#reasons")).to_contain_text("step 24: sensor-lost (y)")
        assert page.inner_text("#signals .card:nth-child(2) .value") == "missing"
        assert page.locator(".cursor").count() == 6

        page.select_option("#session", "line-2")
        expect(page.locator("#reasons")).to_contain_text("step 0: no intervention")
        assert charts(page) == {"x": 1, "y": 1, "lever": 1}
        assert (seen.errors, seen.outside(home=service.home)) == ([], [])


def test_it_outlives_the_service_and_fits_a_small_dark_screen(folder):
    port = free_port()
    with serving(folder, port=port) as service:
        send_steps(service)
        with visit(f"{service.home}/#session=line-1", dark=True, width=600) as seen:
            page = seen.page
            expect(page.locator("#source")).to_have_text("The policy acts")
            expect(page.locator("#novelty")).to_contain_text("--set novelty_limit=1")
            assert page.evaluate("document.documentElement.scrollWidth") <= 600
            shade = page.evaluate("getComputedStyle(document.body).backgroundColor")
            assert max(map(int, re.findall(r"\d+", shade))) < 50
            assert seen.errors == []

            service.stop()
            expect(page.locator("#notice")).to_contain_text("has not answered since")
            expect(page.locator("#link")).to_have_text("no answer")
            assert charts(page)["x"] == STEPS  # the last that is known stays, and is marked as old
            assert "is-stale" in page.get_attribute("#data", "class")

            with serving(folder, port=port) as again:
                expect(page.locator("#link")).to_have_text("waiting")
                expect(page.locator("#notice")).to_be_hidden()
                expect(page.locator("#empty")).to_be_visible()  # its numbers begin anew
                again.post("/act", session="line-1", observation=[0.1, 0.2, 0.3])
                expect(page.locator("#reasons")).to_contain_text("step 0:")
                assert charts(page)["x"] == 1
            assert [e for e in seen.errors if e.startswith("script")] == []


def test_it_asks_for_the_token(folder, monkeypatch):
    monkeypatch.setenv("MOOSE_SERVE_TOKEN", "t" * 20)
    with serving(folder) as service, visit(service.home) as seen:
        expect(seen.page.locator("#notice")).to_contain_text("/#token=")
        seen.page.goto("about:blank")
        seen.page.goto(f"{service.home}/#token={'t' * 20}")
        expect(seen.page.locator("#link")).to_have_text("waiting")
        assert "t" * 20 not in seen.page.content()


def charts(page):
    """How many values the line of each signal goes through."""
    cards = page.locator("#signals .card")
    return {
        cards.nth(i).locator(".name").inner_text(): len(
            re.findall("[ML]", cards.nth(i).locator(".line").get_attribute("d"))
        )
        for i in range(cards.count())
    }
