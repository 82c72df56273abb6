"""HTML and SVG by construction: text is escaped unless it was made here.

Names of signals come from users' files and go into pages; there is no other way to put a text into
a page than :func:`element`, which escapes it.
"""

from __future__ import annotations

import html
import re
from collections.abc import Iterable, Sequence

_VOID = {"meta", "br", "hr", "line", "rect", "path", "circle", "polygon", "polyline"}
_FORBIDDEN = re.compile(r"[^\x09\x0a\x0d\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
_NAME = re.compile(r"[A-Za-z][A-Za-z0-9-]*")


class Markup(str):
    """A text that is markup already."""

    __slots__ = ()


Child = str | None
"""Plain text, which is escaped, or :class:`Markup`; None is nothing."""


def element(name: str, /, *children: Child, **attributes: object) -> Markup:
    """An element of HTML or SVG.

    Args:
        name: The element's name.
        children: What it holds.
        attributes: Its attributes; ``class_`` and ``stroke_width`` are written ``class`` and
            ``stroke-width``. None leaves one out.

    Returns:
        Its markup.
    """
    assert _NAME.fullmatch(name)  # noqa: S101 (names are ours, never a user's)
    shown = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{_escaped(str(value))}"'
        for key, value in attributes.items()
        if value is not None
    )
    if name in _VOID and not children:
        return Markup(f"<{name}{shown}/>")
    return Markup(f"<{name}{shown}>{join(children)}</{name}>")


def join(children: Iterable[Child], separator: str = "") -> Markup:
    """Several pieces one after the other."""
    return Markup(separator.join(text(child) for child in children if child is not None))


def text(child: str) -> Markup:
    """A piece of text as markup."""
    return child if isinstance(child, Markup) else Markup(_escaped(child))


def number(value: float | None, digits: int = 4) -> str:
    """A number for people: few digits, a true minus sign, a dash for none."""
    if value is None:
        return "–"
    if value and not 1e-4 <= abs(value) < 1e6:
        return f"{value:.{digits - 1}e}".replace("-", "−")
    return f"{value:.{digits}g}".replace("-", "−")


def percent(share: float) -> str:
    """A share of one in percent."""
    return f"{number(100 * share, 3 if share >= 0.1 else 2)}\u00a0%"


def _escaped(content: str) -> str:
    # Characters that no document may hold would make the whole page unreadable.
    return html.escape(_FORBIDDEN.sub("�", content), quote=True)


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> Markup:
    """A table of texts, in a frame that scrolls."""
    head = element("tr", *(element("th", name) for name in header))
    body = [element("tr", *(element("td", cell) for cell in row)) for row in rows]
    table = element("table", element("thead", head), element("tbody", *body))
    return element("div", table, class_="scroll")


def facts_table(facts: Sequence[tuple[str, str | None]]) -> Markup:
    """Names and values; a value of None is left out."""
    rows = [
        element("tr", element("td", name), element("td", value))
        for name, value in facts
        if value is not None
    ]
    return element("div", element("table", *rows, class_="facts"), class_="scroll")


def panel(chart: Markup) -> Markup:
    """A chart in its frame."""
    return element("div", chart, class_="panel")


def signed(value: float) -> str:
    """A number with its sign."""
    return ("+" if value > 0 else "") + number(value, 3)
