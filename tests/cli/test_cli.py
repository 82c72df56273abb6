"""The command line as its users meet it: real processes where it matters, quick calls elsewhere."""

from __future__ import annotations

import json
import os
import resource
import signal
import subprocess
import sys

import pytest
import typer

from moose.cli import app, main
from moose.data.files import load_dataset
from moose.envs import mujoco, recipes
from moose.version import __version__

SMALL = ["--episodes", "3", "--steps", "30", "--quiet"]


@pytest.fixture
def moose(monkeypatch, capsys):
    """Runs a command in this process; gives exit code, standard output and standard error."""

    def run(*arguments):
        monkeypatch.setattr(sys, "argv", ["moose", *map(str, arguments)])
        with pytest.raises(SystemExit) as stop:
            main()
        return stop.value.code or 0, *capsys.readouterr()

    return run


def run_process(*arguments, first="pass"):
    return subprocess.run(
        process_line(*arguments, first=first),
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


def process_line(*arguments, first):
    """A command line that executes a statement in the new process before the program starts."""
    program = f"import os, sys; {first}; os.execv(sys.executable, [sys.executable, *sys.argv[1:]])"
    return [sys.executable, "-c", program, "-m", "moose", *map(str, arguments)]


def check_error(code, out, err, *parts):
    assert code == 2
    assert out == ""
    assert err.startswith("Error: ")
    assert "Traceback" not in err
    for part in parts:
        assert part in err


# Start-up


@pytest.mark.parametrize(
    "arguments", [["--version"], ["--help"], ["data", "list", "--json"], ["grid", "run", "--help"]]
)
def test_simple_questions_are_answered_at_once(arguments):
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    result = run_process(*arguments)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert result.returncode == 0
    # Processor time, since other processes may keep the clock running.
    assert after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime < 1.0


def test_the_command_line_does_not_import_what_it_may_not_need():
    program = "import sys, moose.cli; print({'jax', 'numpy', 'pyarrow', 'yaml'} & set(sys.modules))"
    assert subprocess.check_output([sys.executable, "-c", program], text=True).strip() == "set()"


def test_version():
    assert run_process("--version").stdout == f"moose {__version__}\n"


def commands(group, path):
    if not hasattr(group, "commands"):
        return [path]
    return [
        found
        for name, command in group.commands.items()
        for found in commands(command, f"{path} {name}")
    ]


@pytest.mark.parametrize("command", commands(typer.main.get_command(app), "moose"))
def test_every_command_explains_itself_with_an_example(moose, command):
    code, out, _ = moose(*command.split()[1:], "--help")
    assert code == 0
    assert out.count(command) >= 2  # in the usage and in an example
    assert "xample" in out


def test_no_command_is_a_request_for_help():
    result = run_process()
    assert "Usage: moose" in result.stdout + result.stderr


# moose data


def test_list_shows_the_data_sets_and_the_cache(moose, tmp_path):
    moose("data", "make", "ib/bad-0.2", *SMALL, "--cache", tmp_path)
    code, out, _ = moose("data", "list", "--cache", tmp_path)
    assert code == 0
    for name in (*recipes.dataset_names(), *mujoco.dataset_names()):
        assert name in out
    assert "-326.8" in out
    assert "104.1" in out

    code, out, _ = moose("data", "list", "--json", "--cache", tmp_path)
    rows = json.loads(out)
    assert [row["name"] for row in rows] == [*recipes.dataset_names(), *mujoco.dataset_names()]
    # Only the data set as the name alone describes it counts.
    assert not any(row["is_cached"] for row in rows)
    os.makedirs(rows[0]["path"])
    assert "yes" in moose("data", "list", "--cache", tmp_path)[1]


def test_make_fills_the_cache_or_a_folder(moose, tmp_path):
    code, out, err = moose("data", "make", "ib/bad-0.2", *SMALL, "--cache", tmp_path, "--json")
    assert (code, err) == (0, "")
    made = json.loads(out)
    assert made["transitions"] == 90
    assert made["path"].startswith(str(tmp_path))
    assert load_dataset(made["path"]).fingerprint == made["fingerprint"]
    assert made["returns"]["discount"] == 0.97
    assert made["returns"]["minimum"] <= made["returns"]["mean"] <= made["returns"]["maximum"]

    out_folder = tmp_path / "deep" / "mine"
    code, out, _ = moose("data", "make", "ib/bad-0.2", *SMALL, "--out", out_folder)
    assert code == 0
    assert made["fingerprint"] in out
    assert f"{made['returns']['mean']:.2f} ± " in out
    assert "90 transitions in 3 episodes" in out
    assert str(out_folder) in out
    assert load_dataset(out_folder).fingerprint == made["fingerprint"]

    other = json.loads(moose("data", "make", "ib/bad-0.2", *SMALL, "--seed", 1, "--json")[1])
    assert other["fingerprint"] != made["fingerprint"]


def test_make_replaces_only_when_asked(moose, tmp_path):
    out = tmp_path / "mine"
    assert moose("data", "make", "ib/bad-0.2", *SMALL, "--out", out)[0] == 0
    before = load_dataset(out).fingerprint
    result = moose("data", "make", "ib/bad-0.2", *SMALL, "--seed", 1, "--out", out)
    check_error(*result, "exists already", str(out), "--overwrite")
    assert load_dataset(out).fingerprint == before
    result = moose("data", "make", "ib/bad-0.2", *SMALL, "--seed", 1, "--out", out, "--overwrite")
    assert result[0] == 0
    assert load_dataset(out).fingerprint != before


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (["gym/Pendulum-v1", "--episodes", 3], "gym/… takes --transitions, --policy, --expert"),
        (["mujoco/hopper", "--setpoint", 3], "--setpoint cannot be chosen for mujoco/hopper"),
        (["ib/bad-0.2", "--transitions", 3], "ib/… takes --episodes, --setpoint"),
        (["ib/bad-0.2", "--expert", "e", "--out", "o"], "--policy cannot be chosen for ib/bad-0.2"),
        (["gym/Pendulum-v1", "--expert", "e"], "give --out FOLDER"),
        (["Pendulum-v1"], "gym/Pendulum-v1"),
        (["Hopper-v4", "--transitions", 3], "with gym/ before it: gym/Hopper-v4"),
    ],
)
def test_make_takes_what_fits_the_kind_of_data(moose, words, problem):
    check_error(*moose("data", "make", *words), problem)


def test_an_expert_is_trained_and_plays(moose, tmp_path):
    expert, log = tmp_path / "expert", tmp_path / "log"
    sizes = ["--steps", 100, "--set", "evaluation_episodes=1", "--set", "learner.hidden=[8]"]
    code, _, err = moose("data", "expert", "gym/Pendulum-v1", *sizes, "--out", expert, "--quiet")
    assert code == 0
    assert "all 100 steps are random" in err
    words = ["--transitions", 50, "--out", log, "--json", "--quiet"]
    code, out, err = moose("data", "make", "gym/Pendulum-v1", "--expert", expert, *words)
    assert (code, err) == (0, "")
    assert json.loads(out)["transitions"] == 50
    assert json.loads(out)["returns"]["cut_episodes"] == 1
    assert load_dataset(log).provenance["recipe"]["policy"] == "expert"


def test_one_is_not_told_in_the_plural(moose, tmp_path):
    words = ["gym/Pendulum-v1", "--transitions", 1, "--out", tmp_path / "log", "--quiet"]
    code, out, _ = moose("data", "make", *words)
    assert code == 0
    assert "gym/Pendulum-v1: 1 transition in 1 episode\n" in out


def test_make_does_not_overwrite_what_is_no_data_set(moose, tmp_path):
    (tmp_path / "letters").mkdir()
    (tmp_path / "letters" / "to-my-love.txt").write_text("...")
    out = tmp_path / "letters"
    result = moose("data", "make", "ib/bad-0.2", *SMALL, "--out", out, "--overwrite")
    check_error(*result, str(out))
    assert [file.name for file in out.iterdir()] == ["to-my-love.txt"]


def test_show_gives_numbers_and_a_picture(moose, tmp_path):
    folder, picture = tmp_path / "mine", tmp_path / "mine.png"
    moose("data", "make", "ib/mediocre-0.4", *SMALL, "--out", folder)
    code, out, err = moose("data", "show", folder, "--plot", picture, "--quiet")
    assert (code, err) == (0, "")
    for part in ("velocity", "d_gain", "reward", "batch return", "mediocre", str(picture)):
        assert part in out
    assert picture.read_bytes().startswith(b"\x89PNG")

    code, out, _ = moose("data", "show", folder, "--json", "--discount", 1, "--steps", 2)
    content = json.loads(out)
    assert content["transitions"] == 90
    assert content["returns"]["steps"] == 2
    assert content["provenance"]["recipe"]["behaviour"] == "mediocre"


def test_show_refuses_a_picture_before_it_makes_data(moose, tmp_path):
    result = moose("data", "show", "ib/bad-0.2", "--plot", "picture.gif", "--cache", tmp_path)
    check_error(*result, "picture.gif", ".png or .svg or .pdf")
    assert not any(tmp_path.iterdir())


# Errors


def test_a_wrong_name_gets_the_nearest_one(moose):
    check_error(*moose("data", "make", "ib/bda-0.2"), "'ib/bda-0.2'", "did you mean 'ib/bad-0.2'?")
    check_error(*moose("data", "show", "ib/bda-0.2"), "neither a folder", "'ib/bad-0.2'")
    result = run_process("data", "make", "ib/bda-0.2")
    check_error(result.returncode, result.stdout, result.stderr, "'ib/bad-0.2'")


def test_every_wrong_number_is_named(moose):
    result = moose("data", "make", "ib/bad-0.2", "--episodes", 0, "--setpoint", "nan")
    check_error(*result, "2 settings are wrong", "episodes: ", "setpoint: ")


@pytest.mark.parametrize(
    "arguments", [["data", "make"], ["data", "mkae"], ["--nonsense"], ["demo", "--episodes", "x"]]
)
def test_usage_errors_exit_with_2(moose, arguments):
    code, out, err = moose(*arguments)
    assert code == 2
    assert out == ""
    assert "Usage" in err
    assert "Traceback" not in err


def test_debug_shows_where_an_error_came_from(moose):
    code, _, err = moose("--debug", "data", "make", "ib/bda-0.2")
    assert code == 2
    assert "Traceback" in err
    assert "recipe_of" in err
    assert "Error: There is no data set named" in err
    # It holds for one call only.
    assert "Traceback" not in moose("data", "make", "ib/bda-0.2")[2]


def test_a_defect_of_ours_keeps_its_traceback(monkeypatch):
    monkeypatch.setattr(recipes, "recipe_of", lambda *a, **k: 1 // 0)
    monkeypatch.setattr(sys, "argv", ["moose", "data", "make", "ib/bad-0.2"])
    with pytest.raises(ZeroDivisionError):
        main()


# Takes from root the right to write everywhere (CAP_DAC_OVERRIDE, by PR_CAPBSET_DROP).
AS_ORDINARY_USER = "import ctypes; ctypes.CDLL(None).prctl(24, 1)"
WITH_LITTLE_SPACE = "import resource as r; r.setrlimit(r.RLIMIT_FSIZE, (20_000, 20_000))"
# A test run in the background may have been told to ignore the signal.
WITH_INTERRUPTS = "import signal; signal.signal(signal.SIGINT, signal.SIG_DFL)"


def test_a_read_only_folder_is_named_and_left_alone(tmp_path):
    folder = tmp_path / "locked"
    folder.mkdir()
    folder.chmod(0o555)
    try:
        result = run_process(
            *["data", "make", "ib/bad-0.2", *SMALL, "--out", folder / "mine"],
            first=AS_ORDINARY_USER,
        )
    finally:
        folder.chmod(0o755)
    check_error(result.returncode, result.stdout, result.stderr, str(folder / "mine"), "what to do")
    assert not any(folder.iterdir())


def test_a_full_disk_is_told_and_leaves_nothing(tmp_path):
    result = run_process(
        *["data", "make", "ib/bad-0.2", "--quiet", "--episodes", "100", "--steps", "30"],
        *["--out", tmp_path / "mine"],
        first=WITH_LITTLE_SPACE,
    )
    check_error(
        result.returncode, result.stdout, result.stderr, str(tmp_path / "mine"), "what to do"
    )
    assert not any(tmp_path.iterdir())


def test_an_interruption_leaves_nothing_and_exits_with_130(tmp_path):
    process = subprocess.Popen(
        process_line(
            *["data", "make", "ib/bad-0.2", "--episodes", "100000", "--out", tmp_path / "mine"],
            first=WITH_INTERRUPTS,
        ),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        first = json.loads(process.stderr.readline())
        assert first["stage"] == "episodes"
        assert 0 < first["done"] < first["total"]
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=60)
    finally:
        process.kill()
    assert process.returncode == 130
    assert out == ""
    assert err.splitlines()[-1] == "Interrupted; nothing was left half-written."
    assert "Traceback" not in err
    assert not any(tmp_path.iterdir())


def test_an_interruption_while_writing_leaves_what_was_there(moose, tmp_path, monkeypatch):
    out = tmp_path / "mine"
    moose("data", "make", "ib/bad-0.2", *SMALL, "--out", out)
    before = load_dataset(out).fingerprint

    def interrupt(*arguments):
        raise KeyboardInterrupt

    monkeypatch.setattr("moose.data.files.write_manifest", interrupt)
    code, _, err = moose(
        *["data", "make", "ib/bad-0.2", *SMALL, "--seed", 1, "--out", out, "--overwrite"]
    )
    assert code == 130
    assert "Interrupted" in err
    assert [entry.name for entry in tmp_path.iterdir()] == ["mine"]
    assert load_dataset(out).fingerprint == before
