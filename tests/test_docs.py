"""What the documents show is what happens: their code runs, their commands print what they say."""

from __future__ import annotations

import re

import pytest

from documents import ROOT, blocks, is_alike, perform, require_shown, sessions

DOCUMENTS = sorted([ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").glob("*.md")])


def write_files(document, folder):
    """Write the files that a document shows: YAML whose first line is a comment with the name."""
    for text in blocks(document, "yaml"):
        name = re.match(r"# ([\w-]+\.yaml)\n", text)
        if name:
            (folder / name[1]).write_text(text)


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
