"""Progress: nothing by default, bars for people, JSON lines for programs."""

from __future__ import annotations

import io
import json
import math

import numpy as np
import pytest

from moose.progress import SILENT, JsonProgress, TerminalProgress, make_progress


class Terminal(io.StringIO):
    def isatty(self):
        return True


def lines_of(stream):
    # Strict JSON: NaN and Infinity are not part of it.
    return [json.loads(line, parse_constant=pytest.fail) for line in stream.getvalue().splitlines()]


def test_silence_is_the_default_and_says_nothing(capsys):
    with SILENT.stage("train", 3) as stage:
        stage.advance()
        stage.advance(2, {"loss": math.nan})
    assert capsys.readouterr() == ("", "")


def test_terminal_shows_counts_times_and_numbers():
    stream = io.StringIO()
    with TerminalProgress(stream).stage("train", 200, done=50) as stage:
        stage.advance(25, {"loss": 0.12345678, "bad": math.nan})
        stage.advance(25, {"loss": np.float32(0.5)})
    text = stream.getvalue()
    for part in ("train", "100/200", "0:00:00", "eta", "loss 0.5"):
        assert part in text


def test_terminal_stages_may_be_nested_and_follow_each_other():
    stream = io.StringIO()
    progress = TerminalProgress(stream)
    with progress.stage("outer", 2) as outer:
        for _ in range(2):
            with progress.stage("inner", 1) as inner:
                inner.advance()
            outer.advance()
    with progress.stage("later", 4) as later:
        later.advance(4)
    text = stream.getvalue()
    assert text.count("outer") == 1
    assert text.count("inner") == 2
    assert "4/4" in text


def test_terminal_is_left_in_order_after_an_error():
    stream = Terminal()
    progress = TerminalProgress(stream)

    def fail():
        with progress.stage("train", 10) as stage:
            stage.advance()
            raise RuntimeError

    with pytest.raises(RuntimeError):
        fail()
    assert stream.getvalue().rstrip().endswith("\x1b[?25h")  # the cursor is shown again
    with progress.stage("again", 1) as stage:
        stage.advance()
    assert "again" in stream.getvalue()


def test_every_line_is_json_whatever_the_numbers():
    stream = io.StringIO()
    numbers = {"nan": math.nan, "inf": -math.inf, "small": np.float32(0.25), "stage": 1}
    with JsonProgress(stream, interval=0.0).stage("train", 3, done=1) as stage:
        stage.advance(1, numbers)
        stage.advance(1)
    first, last = lines_of(stream)
    assert first["stage"] == "train"
    assert (first["done"], first["total"], last["done"]) == (2, 3, 3)
    assert first["numbers"] == {"nan": None, "inf": None, "small": 0.25, "stage": 1.0}
    assert last["numbers"] == first["numbers"]
    assert 0.0 <= first["seconds"] <= last["seconds"]


def test_lines_come_seldom_but_the_first_and_the_last_always():
    stream = io.StringIO()
    with JsonProgress(stream, interval=1000.0).stage("train", 100) as stage:
        for step in range(60):
            stage.advance(1, {"step": step})
    assert [line["done"] for line in lines_of(stream)] == [1, 60]
    assert lines_of(stream)[-1]["numbers"] == {"step": 59.0}


def test_a_stage_without_steps_is_told_once():
    stream = io.StringIO()
    with JsonProgress(stream).stage("train", 5, done=5):
        pass
    assert [line["done"] for line in lines_of(stream)] == [5]


def test_the_stream_decides_how_progress_looks():
    assert isinstance(make_progress(Terminal()), TerminalProgress)
    assert isinstance(make_progress(io.StringIO()), JsonProgress)
    assert make_progress(Terminal(), is_quiet=True) is SILENT
