"""From rows to a data set: timing of actions and rewards, fixes, and what is recorded."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from moose.data.assemble import load_tables
from moose.data.schema import Fixes
from moose.errors import ConfigError, DataError
from moose.tasks.intake import load_plant, with_fixes
from moose.tasks.task_file import check_task_file, make_schema
from plant_log import HEADER, INTERVAL, TREE, loaded, rows, tree_with, write

X, A = np.arange(10.0), np.arange(10.0) / 100


def plain_tree(**changes):
    tree = {
        "name": "plain",
        "observations": {"x": None},
        "actions": {"a": {"low": -1, "high": 1}},
        "reward": {"column": "r"},
    }
    return tree | changes


def from_frame(tree, **columns):
    return loaded([pa.table(columns)], tree).dataset


def test_an_action_belongs_to_its_row_and_its_effect_to_the_next():
    dataset = from_frame(plain_tree(), x=X, a=A, r=-2 * X)
    assert dataset.num_transitions == 9
    np.testing.assert_array_equal(dataset.observations[:, 0], X)
    np.testing.assert_allclose(dataset.actions[:, 0], A[:-1])
    np.testing.assert_array_equal(dataset.rewards, -2 * X[:-1])
    assert dataset.final_observed.all()


def test_a_formula_sees_the_row_after_the_action():
    tree = plain_tree(reward={"formula": "10 * x + x[1] + 1000 * a"})
    dataset = from_frame(tree, x=X, a=A)
    np.testing.assert_allclose(dataset.rewards, 10 * X[1:] + X[:-1] + 1000 * A[:-1], rtol=1e-6)


def test_of_setpoints_the_frame_has_the_old_one_and_the_action_is_the_change():
    valve = np.array([50.0, 50, 52, 55, 55, 40, 41, 41, 39, 39])
    tree = plain_tree(
        actions={"a": {"low": 0, "high": 100, "rate": 20}},
        hold="last",
        reward={"formula": "x + 100 * a + 10000 * a[1] + 1000000 * d_a"},
    )
    dataset = from_frame(tree, x=X, a=valve)
    assert dataset.observation_names == ("x", "a")
    assert dataset.action_names == ("d_a",)
    np.testing.assert_array_equal(dataset.observations[:, 0], X[1:])
    np.testing.assert_array_equal(dataset.observations[:, 1], valve[:-1])
    np.testing.assert_array_equal(dataset.actions[:, 0], np.diff(valve)[:-1])
    # The set-point in force after the step is the one that was logged with it.
    np.testing.assert_array_equal(
        dataset.observations[1:, 1], dataset.observations[:-1, 1] + dataset.actions[:, 0]
    )
    steps = slice(1, 9)
    expected = X[2:] + 100 * valve[steps] + 10000 * valve[:-2] + 1e6 * np.diff(valve)[:-1]
    np.testing.assert_allclose(dataset.rewards, expected, rtol=1e-6)


def test_files_and_names_cut_episodes(tmp_path):
    first = write(tmp_path, rows(seed=1), "a.csv")
    second = write(tmp_path, rows(seed=2), "b.csv")
    dataset = loaded([first, second], tree_with(hold=None, actions__valve__rate=None)).dataset
    assert dataset.lengths.tolist() == [199] * 6
    assert loaded([tmp_path], tree_with(hold=None, actions__valve__rate=None)).dataset.fingerprint
    assert dataset.provenance["files"] == ["a.csv", "b.csv"]
    assert dataset.provenance["rows"] == 1200


def test_what_is_wrong_keeps_a_log_from_being_loaded(tmp_path):
    table = rows()
    table[300][HEADER.index("pressure")] = ""
    with pytest.raises(DataError, match="The value is missing") as caught:
        loaded([write(tmp_path, table)])
    assert "row 301" in caught.value.where
    assert "--fix missing=split" in caught.value.advice


SIMPLE = {"time": "t", "interval": 1, "reward": {"column": "r"}}


def fixed(fixes, **columns):
    columns = {"t": np.arange(10.0), "x": X, "a": A, "r": -2 * X} | columns
    content = check_task_file(plain_tree(**SIMPLE, fixes=fixes))
    return load_tables([pa.table(columns)], make_schema(content), content.fixes, {}).dataset


def spoil(values, changes):
    copy = np.array(values, float)
    for at, value in changes.items():
        copy[at] = value
    return copy


NAN = np.nan


@pytest.mark.parametrize(
    ("fixes", "columns", "lengths", "frames", "changed"),
    [
        (
            {"missing": "split"},
            {"x": spoil(X, {4: NAN})},
            [3, 4],
            [0, 1, 2, 3, 5, 6, 7, 8, 9],
            {"rows left out": 1},
        ),
        (
            {"missing": "interpolate:2"},
            {"x": spoil(X**2, {4: NAN, 5: NAN})},
            [9],
            [0, 1, 4, 9, 18, 27, 36, 49, 64, 81],
            {"missing": 2},
        ),
        (
            {"missing": "interpolate:1"},
            {"x": spoil(X, {4: NAN, 5: NAN, 8: NAN})},
            [3, 3],
            [0, 1, 2, 3, 6, 7, 8, 9],
            {"missing": 1, "rows left out": 2},
        ),
        (
            {"missing": "interpolate:9"},
            {"x": spoil(X, {0: NAN, 9: NAN})},
            [7],
            [1, 2, 3, 4, 5, 6, 7, 8],
            {"rows left out": 2},
        ),
        (
            {"missing": "last:2"},
            {"x": spoil(X, {4: NAN, 5: NAN})},
            [9],
            [0, 1, 2, 3, 3, 3, 6, 7, 8, 9],
            {"missing": 2},
        ),
        (
            {"gaps": "split"},
            {"t": [0, 1, 2, 3, 9, 10, 11, 12, 13, 14]},
            [3, 5],
            X,
            {"gaps": 1},
        ),
        (
            {"gaps": "interpolate:2"},
            {"t": [0, 1, 2, 3, 6, 7, 8, 99, 100, 101]},
            [8, 2],
            [0, 1, 2, 3, 3 + 1 / 3, 3 + 2 / 3, 4, 5, 6, 7, 8, 9],
            {"gaps": 2, "interpolated rows": 2},
        ),
        (
            {"duplicates": "first"},
            {"t": [0, 1, 2, 2, 3, 4, 5, 6, 7, 8]},
            [8],
            [0, 1, 2, 4, 5, 6, 7, 8, 9],
            {"duplicates": 1},
        ),
        (
            {"duplicates": "last"},
            {"t": [0, 1, 2, 2, 3, 4, 5, 6, 7, 8]},
            [8],
            [0, 1, 3, 4, 5, 6, 7, 8, 9],
            {"duplicates": 1},
        ),
        (
            {"order": "split"},
            {"t": [0, 1, 2, 3, 0, 1, 2, 3, 4, 5]},
            [3, 5],
            X,
            {"order": 1},
        ),
        (
            {"bounds": "split"},
            {"a": spoil(A, {3: 2.0})},
            [2, 5],
            [0, 1, 2, 4, 5, 6, 7, 8, 9],
            {"bounds": 1, "rows left out": 1},
        ),
    ],
)
def test_fixes_do_what_they_say(fixes, columns, lengths, frames, changed):
    dataset = fixed(fixes, **columns)
    assert dataset.lengths.tolist() == lengths
    np.testing.assert_allclose(dataset.observations[:, 0], frames, rtol=1e-6)
    assert dataset.provenance["changed"] == changed
    assert dataset.provenance["fixes"] == fixes
    # No pair goes across a cut: rewards and actions still belong to their rows.
    starts = dataset.observations[dataset.observation_rows, 0]
    if not {"x", "t"} & set(columns):
        np.testing.assert_allclose(dataset.rewards, -2 * starts, rtol=1e-6)


def test_clipping_moves_actions_to_their_bounds():
    dataset = fixed({"bounds": "clip"}, a=spoil(A, {3: 2.0, 5: -7.0}))
    np.testing.assert_allclose(dataset.actions[[3, 5], 0], [1.0, -1.0])
    assert dataset.provenance["changed"] == {"bounds": 2}


def test_the_last_duplicate_may_begin_an_episode():
    dataset = fixed({"duplicates": "last"}, t=[0, 0, 1, 2, 3, 4, 5, 6, 7, 8])
    assert dataset.lengths.tolist() == [8]
    np.testing.assert_array_equal(dataset.observations[:, 0], X[1:])


def spoiled_log(tmp_path):
    """One of each: text, ragged, stuck, outlier, out of range and short episode."""
    table = rows()
    pressure, temperature = HEADER.index("pressure"), HEADER.index("temperature")
    table[100][pressure] = "Bad"
    table[150].append("more")
    for row in range(250, 330):
        table[row][pressure] = "4.6"
    table[400][temperature] = "400"
    table[450][pressure] = "-3"
    for row in (599, 600):
        table[row][5] = "b9"
    return write(tmp_path, table)


def test_all_fixes_together(tmp_path):
    fixes = {
        **{"text": "missing", "ragged": "drop", "stuck": "split", "outliers": "missing"},
        **{"ranges": "missing", "short": "drop", "gaps": "split"},
    }
    dataset = loaded([spoiled_log(tmp_path)], tree_with(fixes=fixes)).dataset
    changed = dataset.provenance["changed"]
    assert changed["stuck"] == 80
    assert changed["rows left out"] == 80 + 3
    assert changed["short"] >= 1
    # Cut at 100, 150, the stuck stretch, 400, 401 (a batch's end), 450 and the short episode; the
    # batches of 200 rows cut as well. Two rows of each piece are no transitions.
    assert dataset.num_transitions == 600 - 1 - 80 - 3 - 2 - 2 * dataset.num_episodes
    assert np.abs(dataset.observations[:, 0]).max() < 200
    assert dataset.observations[:, 1].min() > 0


def test_fixes_may_come_from_outside(tmp_path):
    path = spoiled_log(tmp_path)
    content = check_task_file(TREE)
    fixes = ["text=missing", "ragged=drop", "ranges=missing", "gaps=split"]
    dataset, findings = load_plant(content, [path], fixes=fixes)
    assert dataset.provenance["fixes"]["ragged"] == "drop"
    assert {finding.code for finding in findings} >= {"text", "ragged-row", "stuck", "outlier"}
    with pytest.raises(ConfigError, match="there is no such setting; did you mean 'gaps'"):
        with_fixes(content, ["gasp=split"])
    with pytest.raises(ConfigError, match="gaps"):
        with_fixes(content, ["gaps=glue"])
    assert with_fixes(content, []).fixes == Fixes()


def test_nothing_left_is_an_error(tmp_path):
    with pytest.raises(DataError, match="Nothing is left"):
        fixed({"missing": "split"}, x=[1.0, NAN, 3, NAN, 5, NAN, 7, NAN, 9, NAN])


def test_the_data_set_carries_its_task(tmp_path):
    from moose.data.files import load_dataset, save_dataset
    from moose.tasks.registry import task_of

    dataset, _ = load_plant(check_task_file(TREE), [write(tmp_path, rows())])
    save_dataset(dataset, tmp_path / "saved")
    task = task_of(load_dataset(tmp_path / "saved").provenance)
    task.require(dataset)
    assert task.observation_names == ("temperature", "pressure", "valve")
    assert task.action_high == (8.0,)
    assert task.reward is None
    assert check_task_file(TREE).interval == INTERVAL
