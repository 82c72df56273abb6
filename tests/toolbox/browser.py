"""A page as a person's browser shows it: what it loads, what goes wrong in it, how it looks."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import pytest

_NAMES = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome")


@dataclass
class Visit:
    """A page that is open, and what was noticed since."""

    page: object
    """Playwright's page."""
    errors: list[str] = field(default_factory=list)
    """Script errors, errors on the console and requests that failed."""
    requests: list[str] = field(default_factory=list)
    """The address of everything that was asked for."""

    def outside(self, *, home: str) -> list[str]:
        """Requests that do not begin with ``home`` and are not part of the page itself."""
        return [
            address for address in self.requests if not address.startswith((home, "data:", "blob:"))
        ]


def executable() -> str:
    """Chromium's path; without one the test is skipped, and fails where tests are the judge."""
    found = next((path for path in map(shutil.which, _NAMES) if path), None)
    if found is None:
        advice = "Chromium is missing: apt-get install chromium-headless-shell"
        assert os.environ.get("CI") != "true", advice
        pytest.skip(advice)
    return found


@contextmanager
def visit(
    address: str, *, dark: bool = False, width: int = 1280, height: int = 900
) -> Iterator[Visit]:
    """Open a page, with everything that goes wrong in it noted from the start."""
    from playwright.sync_api import sync_playwright

    path = executable()
    with sync_playwright() as playwright:
        # Root, as in a container, has no sandbox to use; the page is our own.
        browser = playwright.chromium.launch(executable_path=path, args=["--no-sandbox"])
        page = browser.new_page(
            viewport={"width": width, "height": height},
            color_scheme="dark" if dark else "light",
        )
        seen = Visit(page)
        page.on("pageerror", lambda error: seen.errors.append(f"script: {error}"))
        page.on(
            "console",
            lambda told: (
                seen.errors.append(f"console: {told.text}") if told.type == "error" else None
            ),
        )
        page.on("requestfailed", lambda request: seen.errors.append(f"request: {request.url}"))
        page.on("request", lambda request: seen.requests.append(request.url))
        page.goto(address)
        yield seen
        browser.close()
