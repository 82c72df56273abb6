"""``moose grid`` as a user meets it."""

from __future__ import annotations

import json
import re
import sqlite3

import pytest

from moose.experiments.run_folder import Request, run_digest
from moose.experiments.store import STORE, Store, make_owner, now
from moose.storage import write_manifest
from runs import TINY_CLONE, grid_file, moose, run_grid, undisturbed_grid


def test_a_finished_grid_is_finished(tmp_path):
    folder = undisturbed_grid()
    file = grid_file(tmp_path)
    ended = run_grid(file, folder, folder.parent / "cache")
    assert ended.code == 0, ended.errors
    assert ended.out.splitlines() == [
        "tiny: 3 runs done, 0 failed",
        f"table: moose grid table {folder}",
    ]
    assert ended.seconds < 60  # no worker was started


def test_status_and_table_in_all_forms():
    folder = undisturbed_grid()
    status = json.loads(moose("grid", "status", folder, "--json").out)
    assert status["runs"]["done"] == 3
    assert status["evaluations"] == 25
    assert "3 of 3 runs done" in moose("grid", "status", folder).out
    table = json.loads(moose("grid", "table", folder, "--json").out)
    assert table["rows"] == ["behaviour", "hold", "clone", "moose"]
    assert moose("grid", "table", folder).out.startswith("| algorithm | log |\n")
    assert moose("grid", "table", folder, "--format", "latex").out.startswith(r"\begin{tabular}")
    lines = moose("grid", "table", folder, "--format", "csv").out.splitlines()
    assert len(lines) == 1 + 4


def test_a_failed_run_ends_with_advice(tmp_path):
    """Its settings are fine, but its training goes astray at once."""
    file = grid_file(tmp_path)
    tree = json.loads(file.read_text())
    tree["blocks"][0]["algorithms"][0]["settings"]["learning_rate"] = 1e30
    tree["blocks"][0]["seeds"] = [0]
    tree["blocks"] = tree["blocks"][:1]
    file.write_text(json.dumps(tree))
    ended = run_grid(file, tmp_path / "grid", tmp_path / "cache", "--json")
    assert ended.code == 2
    assert json.loads(ended.out)["runs"]["failed"] == 1
    assert "1 of 1 runs failed." in ended.errors
    assert "--retry" in ended.errors
    text = moose("grid", "status", tmp_path / "grid").out
    assert "failed: clone on" in text
    assert "Training went astray" in text
    assert "(1 attempts)" in text or ", 1 attempts)" in text


def test_a_grid_without_a_finished_run_draws_nothing(tmp_path):
    from filled_stores import filled_store

    place = ("moose", "ib/bad-0.2")
    filled_store(tmp_path, {place: 0.0}, seeds=1, done={place: 0}).close()
    ended = moose("grid", "figures", tmp_path)
    assert "nothing to draw" in ended.out
    with Store(tmp_path) as store:  # somebody is working on it
        store.claim(store.open_runs()[0], make_owner(), "worker-0", now())
    assert "1 running" in moose("grid", "status", tmp_path).out


def test_the_cost_is_told_before_the_start(tmp_path, capsys):
    from moose.cli.grid import _tell_estimate

    file = grid_file(tmp_path, seeds=(0, 1))
    tree = json.loads(file.read_text())
    tree["blocks"] = tree["blocks"][1:]
    file.write_text(json.dumps(tree))
    out, cache = tmp_path / "grid", tmp_path / "cache"
    ended = run_grid(file, out, cache, "--dry-run", "--json")
    assert ended.code == 0, ended.errors
    result = json.loads(ended.out)
    (cost,) = result["variants"]
    steps = {name: stage["steps"] for name, stage in cost["stages"].items()}
    assert steps == {"models": 2, "support": 1, "policy": 2}
    assert cost["shared"] > 0
    assert cost["own"] > cost["evaluations"] > 0
    assert min(cost["run_bytes"], cost["shared_bytes"]) > 10_000
    # Two seeds share nothing.
    seconds = 2 * (cost["own"] + cost["shared"])
    assert result["left"]["core_hours"] == pytest.approx(seconds / 3600)
    assert not (out / "store.sqlite").exists()
    assert not (out / "runs").exists()
    assert not (cache / "fitted").exists()
    _tell_estimate(result)
    first, second, third = capsys.readouterr().out.splitlines()
    assert first == "tiny: 2 runs, 0 of them done"
    assert second.startswith("left: 2 runs, ")
    assert "with 2 workers of 1 threads" in second
    assert third.startswith("  moose: ")


@pytest.fixture
def published(tmp_path):
    ended = moose("grid", "publish", undisturbed_grid(), tmp_path / "results")
    assert ended.code == 0, ended.errors
    return tmp_path / "results" / "tiny"


def cache():
    return undisturbed_grid().parent / "cache"


def test_known_runs_are_told_and_other_versions_warned_of_once(tmp_path, published):
    file, out = grid_file(tmp_path), tmp_path / "grid"
    text = (published / "runs.json").read_text()
    text = re.sub(r'"jax":"[^"]*"', '"jax":"0.0.1"', text)
    (published / "runs.json").write_text(text.replace('"threads":"1"', '"threads":"7"'))
    write_manifest(published, "moose-results", 1, {"name": "tiny", "runs": {}})
    ended = run_grid(file, out, cache(), "--known", published, "--json")
    assert ended.code == 0, ended.errors
    assert json.loads(ended.out)["taken_over"] == 3
    (warning,) = ended.errors.splitlines()
    assert warning.startswith("warning: runs taken over may differ in the last bits")
    assert re.search(r"jax 0\.0\.1 \(here [\d.]+\), threads 7 \(here 1\)$", warning)
    status = json.loads(moose("grid", "status", out, "--json").out)
    assert (status["runs"]["done"], status["taken_over"]) == (3, 3)
    assert "3 of 3 runs done (3 taken over), 0 running" in moose("grid", "status", out).out
    ended = run_grid(file, out, cache(), "--known", published)
    assert (ended.code, ended.errors) == (0, "")


def test_known_runs_cost_nothing(tmp_path, published):
    out = tmp_path / "grid"
    ended = run_grid(grid_file(tmp_path), out, cache(), "--known", published, "--dry-run", "--json")
    assert ended.code == 0, ended.errors
    result = json.loads(ended.out)
    assert (result["runs"], result["done"], result["left"]["runs"]) == (3, 3, 0)
    assert not out.exists()


def test_runs_of_other_bits_of_a_named_data_set_are_taken_over_when_asked(tmp_path):
    clone = {"name": "clone", "preset": "quick", "settings": TINY_CLONE}
    block = {"data": ["ib/bad-0.2"], "algorithms": [clone], "seeds": [0]}
    file = tmp_path / "named.yaml"
    file.write_text(json.dumps({"name": "named", "evaluation_episodes": 2, "blocks": [block]}))
    assert run_grid(file, tmp_path / "there", tmp_path / "cache").code == 0
    assert moose("grid", "publish", tmp_path / "there", tmp_path / "results").code == 0
    published = tmp_path / "results" / "named"
    tree = json.loads((published / "runs.json").read_text())
    (run,) = tree["runs"]
    run["fingerprint"] = "of other bits"
    run["digest"] = run_digest(Request(**run["request"]), run["fingerprint"], None)
    (published / "runs.json").write_text(json.dumps(tree))
    write_manifest(published, "moose-results", 1, {"name": "named", "runs": {}})

    words = (file, tmp_path / "here", tmp_path / "cache", "--known", published, "--json")
    assert json.loads(run_grid(*words, "--dry-run").out)["left"]["runs"] == 1
    assert json.loads(run_grid(*words, "--dry-run", "--other-bits").out)["left"]["runs"] == 0
    ended = run_grid(*words, "--other-bits")
    assert json.loads(ended.out) == {
        "grid": str(tmp_path / "here"),
        "runs": {"waiting": 0, "running": 0, "done": 1, "failed": 0},
        "taken_over": 1,
    }
    assert "made with other bits" in ended.errors
    assert json.loads(moose("grid", "table", tmp_path / "here", "--json").out)["rows"]
    ended = run_grid(*words)  # by itself the very bits count
    assert json.loads(ended.out)["taken_over"] == 0
    assert "not taken over" in ended.errors
    assert "--other-bits" in ended.errors

    # A grid that was begun with another version of what makes the data looks at them anew.
    with sqlite3.connect(tmp_path / "here" / STORE) as connection:
        connection.execute(
            "UPDATE datasets "
            "SET facts = json_set(facts, '$.fingerprint', 'of old', '$.generator_version', 0)"
        )
    connection.close()
    assert "1 runs done" in run_grid(*words[:3]).out
    with Store(tmp_path / "here") as store:
        (found,) = store.datasets().values()
    assert len(found["fingerprint"]) == 64


@pytest.mark.parametrize("words", [[], ["--dry-run"]])
def test_a_known_folder_that_cannot_be_used_leaves_nothing_behind(tmp_path, published, words):
    file, out = grid_file(tmp_path), tmp_path / "grid"
    (published / "runs.json").write_text("{}")
    for place, complaint in (
        (published, "checksum"),
        (published.parent, "not a published grid"),
        (tmp_path / "nowhere", "not a published grid"),
    ):
        ended = run_grid(file, out, cache(), "--known", place, *words)
        assert ended.code == 2
        assert complaint in ended.errors
        assert "what to do:" in ended.errors
    assert not out.exists()


@pytest.mark.parametrize(
    ("words", "complaints"),
    [
        (["run", "missing.yaml"], ["Cannot read the configuration file"]),
        (["status", "."], ["There is no grid in this folder."]),
        (["table", "."], ["There is no grid in this folder."]),
        (["page", "nowhere"], ["There is no folder of results here."]),
    ],
)
def test_mistakes_get_advice(words, complaints, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    words = [str(tmp_path / word) if word == "." else word for word in words]
    ended = moose("grid", *words)
    assert ended.code == 2
    for complaint in complaints:
        assert complaint in ended.errors


def test_an_address_needs_ray(tmp_path):
    ended = moose("grid", "run", grid_file(tmp_path), "--address", "10.0.0.1:6379")
    assert ended.code == 2
    assert "add --engine ray" in ended.errors


def test_other_bits_need_known_runs(tmp_path):
    ended = moose("grid", "run", grid_file(tmp_path), "--other-bits")
    assert ended.code == 2
    assert "add --known" in ended.errors
