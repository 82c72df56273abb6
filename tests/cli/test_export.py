"""``moose export`` as its users meet it, and the commands that the page on the controller shows."""

from __future__ import annotations

import json
import shlex
import sys

import numpy as np
import onnx
import pytest

from documents import ROOT, blocks
from moose.cli import main
from moose.policies.plain import load_policy
from moose.policies.policy import save_policy
from policies import make_toy_policy


@pytest.fixture
def moose(monkeypatch, capsys, tmp_path):
    """Runs a command in this process; gives exit code, standard output and standard error."""
    monkeypatch.chdir(tmp_path)
    for kind in ("dial", "network", "sampled"):
        save_policy(make_toy_policy(kind), tmp_path / kind)

    def run(*arguments):
        monkeypatch.setattr(sys, "argv", ["moose", *map(str, arguments)])
        with pytest.raises(SystemExit) as stop:
            main()
        return stop.value.code or 0, *capsys.readouterr()

    return run


def test_a_policy_is_written_at_a_position(moose, tmp_path):
    code, out, _ = moose("export", "dial", "--position", "0.7", "--out", "p.moose")
    assert code == 0
    assert out.splitlines()[1] == "dial: at 0.7, can be turned"
    assert load_policy(tmp_path / "p.moose").position == 0.7
    _, out, _ = moose("export", "p.moose", "--out", "again.moose", "--json")
    told = json.loads(out)
    assert (told["position"], told["is_turnable"]) == (0.7, True)
    assert (tmp_path / "again.moose").read_bytes() == (tmp_path / "p.moose").read_bytes()
    code, out, _ = moose("export", "network", "--out", "n.moose")
    assert (code, len(out.splitlines())) == (0, 2)
    assert "dial" not in out


@pytest.mark.parametrize("form", ["onnx", "c"])
def test_the_position_is_fixed_unless_the_dial_is_asked_for(moose, tmp_path, form):
    fixed = ("export", "dial", "--format", form, "--position", "0.7", "--out", "fixed")
    code, out, _ = moose(*fixed)
    assert (code, out.splitlines()[1]) == (0, "dial: at 0.7, fixed")
    code, out, _ = moose(*fixed[:-1], "turnable", "--dial")
    assert (code, out.splitlines()[1]) == (0, "dial: at 0.7, can be turned")
    if form == "c":
        assert "moose_set_position" not in (tmp_path / "fixed").read_text()
        assert "moose_position = 0.699999988f" in (tmp_path / "turnable").read_text()
    else:
        inputs = [
            [each.name for each in onnx.load(tmp_path / name).graph.input]
            for name in ("fixed", "turnable")
        ]
        assert inputs == [["history"], ["history", "position"]]


@pytest.mark.parametrize(
    ("arguments", "parts"),
    [
        (["dial", "--position", "2"], ["no position 2.0", "from 0 (what the log did) to 1"]),
        (["dial", "--position", "nan"], ["no position nan"]),
        (["dial", "--position", "-1", "--format", "c"], ["no position -1.0"]),
        (["dial", "--position", "half"], ["--position"]),
        (["dial", "--dial"], ["can always be turned", "leave --dial out"]),
        (["network", "--position", "0.5"], ["no dial: it is of the kind 'network'", "network"]),
        (["network", "--dial", "--format", "onnx"], ["no dial"]),
        (["sampled", "--position", "0.5"], ["no dial: it is of the kind 'sampled'"]),
        (["nowhere", "--position", "0.5"], ["nowhere"]),
    ],
)
def test_what_cannot_be_is_told(moose, tmp_path, arguments, parts):
    code, out, err = moose("export", *arguments, "--out", "p")
    assert (code, out) == (2, "")
    assert "Traceback" not in err
    for part in parts:
        assert part in err
    assert not (tmp_path / "p").exists()


def test_the_commands_of_the_page_do_what_it_says(moose, tmp_path):
    """Which it shows for the run of an algorithm with a dial, here one that learnt nothing."""
    page = ROOT / "docs" / "controller.md"
    commands = [
        line
        for text in blocks(page, "sh")
        for line in text.splitlines()
        if line.startswith("moose export runs/lion")
    ]
    assert len(commands) == 4
    save_policy(make_toy_policy("dial"), tmp_path / "runs" / "lion" / "policy")
    for command in commands:
        code, _, err = moose(*shlex.split(command, comments=True)[1:])
        assert code == 0, err
    assert load_policy(tmp_path / "careful.moose").position == 0.3
    np.testing.assert_array_equal(
        load_policy(tmp_path / "careful.moose")(np.zeros((2, 3))),
        load_policy(tmp_path / "runs" / "lion" / "policy").at(0.3)(np.zeros((2, 3))),
    )
