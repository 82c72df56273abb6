"""The tutorial is true: its commands print what it shows, and its policy is what it says."""

from __future__ import annotations

import shlex

import pytest

from documents import ROOT, perform, require_shown, sessions

# What takes minutes for a person takes less here: fewer start states, epochs and episodes.
_JUDGED = "--set folds=2 --set support.epochs=3"
LIGHTER = {
    "train": "--set search.start_states=20",
    "report": _JUDGED,
    "judge": _JUDGED,
    "examples/hidden_plant.py": "--episodes 200",
}


@pytest.mark.slow
def test_the_tutorial_is_true(workplace, monkeypatch, capsys):
    """Its policy beats the behaviour in the plant that it has not seen, and the verdict says so."""
    printed = {}
    for command, shown in sessions(ROOT / "docs" / "tutorial.md"):
        action = shlex.split(command)[1]
        printed[action] = perform(f"{command} {LIGHTER.get(action, '')}", monkeypatch, capsys)
        require_shown(shown, printed[action])
    (gain,) = [line for line in printed["examples/hidden_plant.py"] if line.startswith("gain")]
    _, mean, _, error = gain.split()
    assert float(mean) > 1.0
    assert float(mean) > 5 * float(error)
    assert "verdict: deploy candidate" in printed["report"]
    page = (workplace / "runs" / "engine" / "report.html").read_text()
    assert "deploy candidate" in page
    assert len(page) < 2_000_000
