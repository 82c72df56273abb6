"""Whatever a user's file calls its columns, a page shows it as text."""

from __future__ import annotations

import html.parser

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moose.experiments.markup import Markup, element, join, number, percent, text


class Reader(html.parser.HTMLParser):
    def __init__(self):
        super().__init__()
        self.elements, self.texts, self.attributes = [], [], []

    def handle_starttag(self, tag, attributes):
        self.elements.append(tag)
        self.attributes += attributes

    def handle_data(self, data):
        self.texts.append(data)


def read(markup):
    reader = Reader()
    reader.feed(markup)
    reader.close()
    return reader


@given(st.text(st.characters(exclude_categories=["Cs", "Cc"]), min_size=1))
def test_any_text_comes_out_as_it_went_in(name):
    found = read(element("td", name, title=name))
    assert found.elements == ["td"]
    shown = name.replace("\ufffe", "�").replace("\uffff", "�")
    assert "".join(found.texts) == shown
    assert found.attributes == [("title", shown)]


@pytest.mark.parametrize(
    "name", ["<script>alert(1)</script>", "\"><img src=x onerror='y'>", "&lt;"]
)
def test_markup_in_a_name_is_not_markup(name):
    found = read(element("p", "before ", name, element("b", name)))
    assert found.elements == ["p", "b"]
    assert "".join(found.texts) == f"before {name}{name}"


def test_what_no_page_may_hold_is_replaced():
    assert text("a\x00b\x1bc\x7f") == "a�b�c\x7f"
    assert element("p", "\ud800") == "<p>�</p>"


def test_elements_hold_elements():
    assert element("p", "a", None, element("br"), class_="x", stroke_width=2, id=None) == (
        '<p class="x" stroke-width="2">a<br/></p>'
    )
    assert isinstance(join(["a", Markup("<b/>")], " · "), Markup)
    assert join(["<", Markup("<b/>")], " · ") == "&lt; · <b/>"


def test_numbers_are_for_people():
    assert number(-73.4812) == "−73.48"
    assert number(0.0) == "0"
    assert number(None) == "–"
    assert number(-1.5e-7) == "−1.500e−07"
    assert number(12_345_678.0) == "1.235e+07"
    assert percent(0.0061) == "0.61\u00a0%"
    assert percent(0.562) == "56.2\u00a0%"
