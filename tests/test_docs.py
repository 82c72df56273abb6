"""What the documents show is what happens: their code runs, their commands print what they say."""

from __future__ import annotations

import math
import re
import runpy
import shlex
import shutil
import sys

import pytest

import moose.cli
from documents import ROOT, blocks, sessions

DOCUMENTS = sorted([ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").glob("*.md")])


def write_files(document, folder):
    """Write the files that a document shows: YAML whose first line is a comment with the name."""
    for text in blocks(document, "yaml"):
        name = re.match(r"# ([\w-]+\.yaml)\n", text)
        if name:
            (folder / name[1]).write_text(text)


@pytest.fixture
def workplace(tmp_path, monkeypatch):
    """A folder to work in that has the examples which the documents speak of."""
    shutil.copytree(ROOT / "examples", tmp_path / "examples")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def named(documents):
    return [pytest.param(path, id=path.name) for path in documents]


@pytest.mark.parametrize("document", named(d for d in DOCUMENTS if blocks(d, "python")))
def test_python_runs(document, workplace):
    write_files(document, workplace)
    names = {}
    for number, text in enumerate(blocks(document, "python")):
        exec(compile(text, f"{document.name}, block {number}", "exec", dont_inherit=True), names)  # noqa: S102


@pytest.mark.parametrize(
    "document", named(d for d in DOCUMENTS if sessions(d) and d.name != "tutorial.md")
)
def test_commands_print_what_is_shown(document, workplace, monkeypatch, capsys):
    write_files(document, workplace)
    for command, shown in sessions(document):
        require_shown(shown, perform(command, monkeypatch, capsys))


# What takes minutes for a person takes less here: fewer start states, epochs and episodes.
_JUDGED = "--set folds=2 --set support.epochs=3"
LIGHTER = {
    "train": "--set support.epochs=6 --set search.start_states=10 --set search.updates=150",
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
    assert "verdict: deploy candidate" in printed["judge"]
    page = (workplace / "runs" / "engine" / "report.html").read_text()
    assert "deploy candidate" in page
    assert len(page) < 2_000_000


def perform(command, monkeypatch, capsys):
    """Run a command of a document and give the lines it prints; None for what is left out."""
    program, *arguments = shlex.split(command)
    if program in {"make", ".venv/bin/pre-commit"}:
        return None
    if arguments[0] == "demo":  # test_demo runs it, with smaller networks
        return None
    monkeypatch.setattr(sys, "argv", [program, *arguments])
    if program == "python":
        monkeypatch.setattr(sys, "argv", arguments)
        runpy.run_path(arguments[0], run_name="__main__")
    else:
        assert program == "moose"
        with pytest.raises(SystemExit) as stop:
            moose.cli.main()
        assert not stop.value.code, command
    return capsys.readouterr().out.splitlines()


def require_shown(shown, printed):
    """Every line that a document shows has been printed."""
    words_printed = [line.split() for line in printed or ()]
    for line in shown if printed is not None else ():
        words = line.split()
        assert not words or any(is_alike(words, other) for other in words_printed), line


def is_alike(shown, printed):
    """The same words; … stands for anything, and numbers need not agree in the last digit."""
    if shown and shown[-1] == "…":
        shown, printed = shown[:-1], printed[: len(shown) - 1]
    return len(shown) == len(printed) and all(map(is_same_word, shown, printed))


def is_same_word(shown, printed):
    try:
        return math.isclose(float(shown), float(printed), rel_tol=0.01)
    except ValueError:
        return shown == printed


def test_the_comparison_can_fail():
    assert is_alike(["return", "-61.5", "…"], ["return", "-61.52", "±", "0.1"])
    assert not is_alike(["return", "-61.5"], ["return", "-64.9"])
    assert not is_alike(["return"], ["return", "-64.9"])
    assert not is_alike(["return", "…"], ["profit", "-64.9"])


def test_the_makefile_has_the_targets_that_the_documents_name():
    makefile = (ROOT / "Makefile").read_text()
    targets = set(re.findall(r"^([a-z-]+):", makefile, re.MULTILINE))
    phony = set(re.search(r"^\.PHONY: (.*)$", makefile, re.MULTILINE)[1].split())
    assert targets == phony
    named_ones = {
        name for path in DOCUMENTS for name in re.findall(r"`make ([\w-]+)`", path.read_text())
    }
    assert named_ones <= targets
    assert {"demo", "test", "check"} <= named_ones
    first_two = [command for command, _ in sessions(ROOT / "README.md")][:2]
    assert first_two == ["make demo", "make test"]


@pytest.mark.parametrize("document", named([*DOCUMENTS, ROOT / "CHANGELOG.md"]))
def test_links_lead_somewhere(document):
    for target in re.findall(r"\]\(([^)#]+)[^)]*\)", document.read_text()):
        if not target.startswith("https://"):
            assert (document.parent / target).exists(), target


def test_the_table_of_returns_is_the_one_in_the_program():
    from moose.envs import recipes

    text = (ROOT / "docs" / "industrial_benchmark.md").read_text().replace("−", "-")
    for name in ("bad", "mediocre", "optimized"):
        row = re.search(rf"^\| {name} \|(.*)\|$", text, re.MULTILINE)[1]
        values = [float(cell) for cell in row.split("|")]
        expected = [
            recipes.EXPECTED_RETURNS[name, epsilon] for epsilon in (0.0, 0.2, 0.4, 0.6, 0.8)
        ]
        assert values == [*expected, recipes.EXPECTED_RETURNS["global", 1.0]]
    assert f"(`hold`) earns {recipes.EXPECTED_HOLD}" in text
    assert f"earn {recipes.EXPECTED_SET_POINT} " in text
