"""Charts: the right places, no numbers that are none, nothing of a user's that is markup."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET

import numpy as np
import pytest

from moose.experiments.charts import (
    Level,
    Series,
    Span,
    forest_chart,
    histogram,
    legend,
    line_chart,
    scatter_chart,
)

WILD = '<script>"&'


def parsed(chart):
    assert not re.search(r"\bnan\b|\binf\b", chart)
    return ET.fromstring(chart)  # noqa: S314 (our own)


def points_of(line):
    return np.array([[float(n) for n in p.split(",")] for p in line.get("points").split()])


def test_a_line_goes_through_its_points():
    series = Series("rising", 0, [0, 1, 2, 3], [0.0, 10.0, 20.0, 30.0], [-1] * 4, [31] * 4)
    root = parsed(line_chart("a chart", [series], levels=[Level("mean", 2, 15.0)]))
    (line,) = root.iter("polyline")
    points = points_of(line)
    np.testing.assert_allclose(np.diff(points[:, 0]), np.diff(points[:, 0])[0], atol=0.2)
    np.testing.assert_allclose(np.diff(points[:, 1]), np.diff(points[:, 1])[0], atol=0.2)
    assert (np.diff(points[:, 1]) < 0).all()  # up is less in SVG
    (band,) = root.iter("polygon")
    assert len(points_of(band)) == 8
    (level,) = [e for e in root.iter("line") if "dashed" in e.get("class")]
    assert float(level.get("y1")) == pytest.approx(points[1:3, 1].mean(), abs=0.2)
    assert root.get("role") == "img"
    assert root.find("title").text == "a chart"


@pytest.mark.parametrize("values", [[3.0], [2.0, 2.0], [0.0, 0.0], [1e-30, 2e-30], [-1e9, 1e9]])
def test_odd_ranges_are_drawn(values):
    parsed(line_chart("odd", [Series("one", 0, range(len(values)), values)]))
    parsed(histogram("odd", values, marks=[("mark", values[0])]))
    parsed(scatter_chart("odd", values, values, x_label="x", y_label="y"))


def test_long_lines_are_thinned():
    many = np.arange(5000.0)
    chart = line_chart("long", [Series("one", 0, many, many, many - 1, many + 1)])
    (line,) = parsed(chart).iter("polyline")
    assert len(points_of(line)) <= 240
    assert len(chart) < 15_000


def test_a_histogram_counts():
    root = parsed(histogram("counts", [1.0] * 30 + [2.0] * 10, bins=2))
    heights = [
        float(bar.get("height")) for bar in root.iter("rect") if bar.get("class") == "s0 bar"
    ]
    shown = [height for height in heights if height > 0]
    assert len(shown) == 2
    assert shown[0] == pytest.approx(3 * shown[1], rel=0.02)


def test_an_interval_above_nothing_looks_different():
    spans = [Span("better", 2.0, 1.0, 3.0), Span("unclear", 0.5, -1.0, 2.0)]
    better, unclear = parsed(forest_chart("gains", spans)).iter("circle")
    assert better.get("class") != unclear.get("class")
    assert float(better.get("cx")) > float(unclear.get("cx"))
    assert "better: 2 (1 to 3)" in better.find("title").text


def test_names_are_text():
    charts = [
        line_chart(WILD, [Series(WILD, 0, [0, 1], [0, 1])], x_label=WILD),
        histogram(WILD, [0.0, 1.0], marks=[(WILD, 0.5)]),
        scatter_chart(WILD, [0.0], [1.0], x_label=WILD, y_label=WILD),
        forest_chart(WILD, [Span(WILD, 0, -1, 1)]),
        legend([(WILD, 0)]),
    ]
    for chart in charts:
        root = parsed(chart)
        assert not list(root.iter("script"))
        assert any(WILD in (one.text or "") or WILD in (one.tail or "") for one in root.iter())
