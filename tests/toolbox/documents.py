"""What the documents show: blocks of code, commands and their output."""

from __future__ import annotations

import math
import re
import runpy
import shlex
import sys
from pathlib import Path

import pytest

import moose.cli

ROOT = Path(__file__).parent.parent.parent
BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def blocks(document, language):
    return [text for kind, text in BLOCK.findall(document.read_text()) if kind == language]


def sessions(document):
    """Commands and the output that the document shows for them."""
    found = []
    for text in blocks(document, "console"):
        for line in text.splitlines():
            if line.startswith("$ "):
                found.append((line.removeprefix("$ "), []))
            else:
                found[-1][1].append(line)
    return found


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
