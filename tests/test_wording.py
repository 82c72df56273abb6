"""Words for numbers."""

from __future__ import annotations

import pytest

from moose.wording import counted


@pytest.mark.parametrize(
    ("number", "words"), [(0, "0 steps"), (1, "1 step"), (2, "2 steps"), (1000, "1,000 steps")]
)
def test_counted(number: int, words: str) -> None:
    assert counted(number, "step") == words
