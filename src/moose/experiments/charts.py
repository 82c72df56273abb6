"""Small charts as SVG, drawn for pages: colours come from the page, light or dark.

A chart is a piece of markup with classes (``s0`` … ``s3`` for series, ``axis``, ``grid``); the
page's style sheet says what they look like.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from moose.experiments.markup import Markup, element, join, number

WIDTH, HEIGHT = 330, 190
_LEFT, _RIGHT, _TOP, _BOTTOM = 48, 10, 26, 30
_MOST_POINTS = 240

Values = Sequence[float] | npt.NDArray[np.floating]


@dataclass(frozen=True)
class Series:
    """A line, perhaps with a band around it.

    Attributes:
        name: What the legend calls it.
        style: The number of its colour.
        x: Where its points are.
        y: Their values.
        low: Lower edge of the band.
        high: Upper edge of the band.
        is_dashed: Whether the line is dashed.
    """

    name: str
    style: int
    x: Values
    y: Values
    low: Values | None = None
    high: Values | None = None
    is_dashed: bool = False


class Level(NamedTuple):
    """A horizontal line to compare with."""

    name: str
    style: int
    value: float


class Span(NamedTuple):
    """A value with its interval, one row of a forest plot."""

    name: str
    value: float
    low: float
    high: float


class _Frame(NamedTuple):
    """Where values are on the picture."""

    x: Callable[[float], float]
    y: Callable[[float], float]
    width: int
    height: int


def line_chart(
    title: str,
    series: Sequence[Series],
    *,
    x_label: str = "",
    levels: Sequence[Level] = (),
    least: float | None = None,
    width: int = WIDTH,
    height: int = HEIGHT,
) -> Markup:
    """Lines with bands over a common axis.

    Args:
        title: What is drawn, with its unit.
        series: The lines; the first is drawn last, on top.
        x_label: What the horizontal axis is.
        levels: Horizontal lines.
        least: A value the vertical axis has to reach down to.
        width: Of the picture.
        height: Of the picture.

    Returns:
        The picture.
    """
    thinned = [_thinned(one) for one in series]
    heights = [
        np.asarray(part) for s in thinned for part in (s.y, s.low, s.high) if part is not None
    ]
    extremes = [*(level.value for level in levels), *([] if least is None else [least])]
    y_range = _range(np.concatenate([*heights, np.asarray(extremes, np.float64)]))
    x_range = _range(np.concatenate([np.asarray(s.x, np.float64) for s in thinned]), 0.0)
    frame = _frame(x_range, y_range, width, height)
    drawn = [_axes(frame, x_range, y_range, x_label)]
    for level in levels:
        y = frame.y(level.value)
        line = {"x1": _LEFT, "x2": width - _RIGHT, "y1": _at(y), "y2": _at(y)}
        drawn.append(element("line", **line, class_=f"s{level.style} line dashed"))
    for one in reversed(thinned):
        if one.low is not None and one.high is not None:
            drawn.append(_band(one, frame))
    for one in reversed(thinned):
        dashed = " dashed" if one.is_dashed else ""
        points = _points(one.x, one.y, frame)
        drawn.append(
            element(
                "polyline",
                element("title", one.name),
                points=points,
                class_=f"s{one.style} line{dashed}",
            )
        )
    return _picture(title, drawn, width, height)


def scatter_chart(title: str, x: Values, y: Values, *, x_label: str, y_label: str) -> Markup:
    """Points beside the diagonal on which both are the same."""
    both = np.concatenate([np.asarray(x, np.float64), np.asarray(y, np.float64)])
    limits = _range(both)
    frame = _frame(limits, limits, WIDTH, HEIGHT)
    start, stop = ((_at(frame.x(v)), _at(frame.y(v))) for v in limits)
    drawn = [
        _axes(frame, limits, limits, x_label),
        element("line", x1=start[0], y1=start[1], x2=stop[0], y2=stop[1], class_="s3 line dashed"),
        *(
            element("circle", cx=_at(frame.x(a)), cy=_at(frame.y(b)), r=2, class_="s0 dot")
            for a, b in zip(x, y, strict=True)
        ),
        element("text", y_label, x=_LEFT + 6, y=_TOP + 10, class_="label"),
    ]
    return _picture(title, drawn, WIDTH, HEIGHT)


def histogram(
    title: str, values: Values, *, marks: Sequence[tuple[str, float]] = (), bins: int = 40
) -> Markup:
    """How often values occur; marks are vertical lines with a name."""
    numbers = np.asarray(values, np.float64)
    everything = np.concatenate([numbers, [value for _, value in marks]])
    limits = _range(everything, 0.0)
    counts, edges = np.histogram(numbers, min(bins, max(5, len(numbers) // 4)), limits)
    frame = _frame(limits, (0.0, float(counts.max() or 1) * 1.05), WIDTH, HEIGHT)
    drawn = [_axes(frame, limits, None, "")]
    for count, left, right in zip(counts, edges[:-1], edges[1:], strict=True):
        top, bottom = frame.y(float(count)), frame.y(0.0)
        sizes = {"width": _at(max(frame.x(right) - frame.x(left) - 1, 0.5))}
        place = {"x": _at(frame.x(left)), "y": _at(top), "height": _at(bottom - top)}
        drawn.append(element("rect", **place, **sizes, class_="s0 bar"))
    for i, (name, value) in enumerate(marks):
        x = _at(frame.x(value))
        drawn.append(element("line", x1=x, x2=x, y1=_TOP, y2=frame.y(0.0), class_="s1 line"))
        is_right = frame.x(value) > WIDTH / 2
        anchor = "end" if is_right else "start"
        place = {"x": _at(frame.x(value) + (-4 if is_right else 4)), "y": _at(_TOP + 10 + 12 * i)}
        drawn.append(element("text", name, **place, text_anchor=anchor, class_="label"))
    return _picture(title, drawn, WIDTH, HEIGHT)


def forest_chart(title: str, spans: Sequence[Span], *, width: int = 2 * WIDTH) -> Markup:
    """Values with their intervals, one below the other, and a line at nothing."""
    left, row = 190, 34
    height = _TOP + row * len(spans) + _BOTTOM
    limits = _range(np.array([v for s in spans for v in (s.low, s.high)] + [0.0]))
    low, high = limits

    def x(value: float) -> float:
        return left + (value - low) / (high - low) * (width - left - 20)

    drawn = []
    for tick in _ticks(low, high, 7):
        place = {"x1": _at(x(tick)), "x2": _at(x(tick)), "y1": _TOP, "y2": height - _BOTTOM}
        drawn.append(element("line", **place, class_="grid" if tick else "axis"))
        drawn.append(
            element(
                "text",
                number(tick),
                x=_at(x(tick)),
                y=height - _BOTTOM + 16,
                text_anchor="middle",
                class_="tick",
            )
        )
    for i, span in enumerate(spans):
        y = _TOP + row * (i + 0.5)
        style = "s2" if span.low > 0 else "s1"
        ends = {"x1": _at(x(span.low)), "x2": _at(x(span.high)), "y1": y, "y2": y}
        told = f"{span.name}: {number(span.value)} ({number(span.low)} to {number(span.high)})"
        drawn += [
            element("text", span.name, x=left - 12, y=y + 4, text_anchor="end", class_="name"),
            element("line", **ends, class_=f"{style} span"),
            element(
                "circle", element("title", told), cx=_at(x(span.value)), cy=y, r=5.5, class_=style
            ),
        ]
    return _picture(title, drawn, width, height)


def legend(names: Sequence[tuple[str, int]]) -> Markup:
    """What the colours mean."""
    entries = [
        element("span", element("i", "", class_=f"s{style} swatch"), name) for name, style in names
    ]
    return element("p", *entries, class_="legend")


def _picture(title: str, drawn: Sequence[Markup], width: int, height: int) -> Markup:
    heading = element("text", _shortened(title, width), x=2, y=14, class_="title")
    return element(
        "svg",
        element("title", title),
        heading,
        join(drawn),
        viewBox=f"0 0 {width} {height}",
        width=width,
        height=height,
        role="img",
        class_="chart",
    )


def _axes(
    frame: _Frame,
    x_range: tuple[float, float],
    y_range: tuple[float, float] | None,
    x_label: str,
) -> Markup:
    bottom, right = frame.height - _BOTTOM, frame.width - _RIGHT
    drawn = []
    for tick in _ticks(*y_range, 4) if y_range else ():
        y = _at(frame.y(tick))
        drawn.append(element("line", x1=_LEFT, x2=right, y1=y, y2=y, class_="grid"))
        place = {"x": _LEFT - 5, "y": _at(frame.y(tick) + 3.5)}
        drawn.append(element("text", number(tick), **place, text_anchor="end", class_="tick"))
    for tick in _ticks(*x_range, 5):
        place = {"x": _at(frame.x(tick)), "y": bottom + 13}
        drawn.append(element("text", number(tick), **place, text_anchor="middle", class_="tick"))
    drawn.append(element("line", x1=_LEFT, x2=right, y1=bottom, y2=bottom, class_="axis"))
    if x_label:
        place = {"x": right, "y": frame.height - 4}
        drawn.append(element("text", x_label, **place, text_anchor="end", class_="label"))
    return join(drawn)


def _band(series: Series, frame: _Frame) -> Markup:
    there = _points(series.x, series.low or (), frame)
    back = _points(list(series.x)[::-1], list(series.high or ())[::-1], frame)
    return element("polygon", points=f"{there} {back}", class_=f"s{series.style} band")


def _points(x: Values, y: Values, frame: _Frame) -> str:
    pairs = zip(x, y, strict=True)
    return " ".join(f"{_at(frame.x(float(a)))},{_at(frame.y(float(b)))}" for a, b in pairs)


def _frame(
    x_range: tuple[float, float], y_range: tuple[float, float], width: int, height: int
) -> _Frame:
    inner, tall = width - _LEFT - _RIGHT, height - _TOP - _BOTTOM
    return _Frame(
        lambda value: _LEFT + (value - x_range[0]) / (x_range[1] - x_range[0]) * inner,
        lambda value: height - _BOTTOM - (value - y_range[0]) / (y_range[1] - y_range[0]) * tall,
        width,
        height,
    )


def _range(values: npt.NDArray[np.float64], margin: float = 0.06) -> tuple[float, float]:
    """From the least to the greatest value and a little more; never empty."""
    low, high = float(values.min()), float(values.max())
    width = high - low
    if width <= 1e-9 * max(abs(low), abs(high), 1e-30):
        width = max(abs(low), 1.0) * 0.1
        return low - width, high + width
    return low - margin * width, high + margin * width


def _ticks(low: float, high: float, about: int) -> list[float]:
    """Round numbers between two values."""
    rough = (high - low) / about
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(power * factor for factor in (1, 2, 2.5, 5, 10) if power * factor >= rough)
    first, last = math.ceil(low / step), math.floor(high / step)
    return [round(i * step, 12 - math.floor(math.log10(power))) for i in range(first, last + 1)]


def _thinned(series: Series) -> Series:
    """At most so many points as a picture can show; lists, of plain numbers."""
    every = -(-len(series.x) // _MOST_POINTS)

    def thin(values: Values | None) -> list[float] | None:
        return None if values is None else [float(value) for value in list(values)[::every]]

    low, high = thin(series.low), thin(series.high)
    return Series(
        series.name,
        series.style,
        thin(series.x) or [],
        thin(series.y) or [],
        low,
        high,
        series.is_dashed,
    )


def _shortened(title: str, width: int) -> str:
    most = width // 7
    return title if len(title) <= most else title[: most - 1] + "…"


def _at(value: float) -> str:
    return f"{value:.1f}"
