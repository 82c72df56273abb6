"""One schema for Python, files and the command line: everything wrong is told at once."""

from __future__ import annotations

import contextlib
import enum
from pathlib import Path
from typing import Literal

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import example, given
from pydantic import Field, ValidationError

from moose.config import (
    Settings,
    build_settings,
    digest,
    load_settings,
    merge,
    parse_override,
    read_yaml,
    settings_tree,
    to_yaml,
)
from moose.errors import ConfigError, StorageError, UserError


class Optimiser(enum.Enum):
    SGD = "sgd"
    ADAM = "adam"


class ModelSettings(Settings):
    members: int = Field(default=4, ge=1)
    rate: float = Field(default=1e-4, gt=0.0)
    target: Literal["direct", "delta"] = "direct"
    layers: tuple[int, ...] = (400, 300)


class RunSettings(Settings):
    model: ModelSettings = ModelSettings()
    label: str = "run"
    is_fast: bool = False
    seed: int | None = None
    optimiser: Optimiser = Optimiser.ADAM
    stages: tuple[ModelSettings, ...] = ()


def test_the_same_settings_from_python_file_and_command_line(tmp_path):
    expected = RunSettings(
        model=ModelSettings(members=2, rate=3e-4), label="x", optimiser=Optimiser.SGD
    )
    file = tmp_path / "run.yaml"
    file.write_text("model: {members: 2, rate: 3e-4}\nlabel: x\noptimiser: sgd\n")
    overrides = ["model.members=2", "model.rate=3e-4", "label=x", "optimiser=sgd"]
    tree = {"model": {"members": np.int64(2), "rate": 3e-4}, "label": "x", "optimiser": "sgd"}

    assert load_settings(RunSettings, file=file) == expected
    assert load_settings(RunSettings, overrides=overrides) == expected
    assert load_settings(RunSettings, base=tree) == expected
    assert build_settings(RunSettings, settings_tree(expected)) == expected


def test_later_sources_win(tmp_path):
    file = tmp_path / "run.yaml"
    file.write_text("model:\n  members: 2\n  rate: 0.5\n")
    settings = load_settings(
        RunSettings,
        base={"model": {"members": 1, "target": "delta"}, "label": "base"},
        file=file,
        overrides=["model.rate=0.1", "model.rate=0.2"],
    )
    assert settings == RunSettings(
        model=ModelSettings(members=2, rate=0.2, target="delta"), label="base"
    )


def test_settings_are_frozen_and_checked():
    with pytest.raises(ValidationError, match="frozen"):
        RunSettings().label = "other"
    with pytest.raises(ValidationError):
        ModelSettings(members=True)
    with pytest.raises(ValidationError):
        ModelSettings(rate=float("nan"))


def test_every_error_is_listed_with_its_path_and_the_nearest_name(tmp_path):
    file = tmp_path / "run.yaml"
    file.write_text("modle: {}\nlabel: 3\nstages: [{membres: 1}, {rate: fast}]\n")
    with pytest.raises(ConfigError) as caught:
        load_settings(
            RunSettings,
            file=file,
            overrides=["model.rate=-1", "model.target=directt", "model.layers=[1, two]"],
        )
    text = str(caught.value)
    assert "7 settings are wrong" in text
    assert "modle: there is no such setting; did you mean 'model'?" in text
    assert "stages.0.membres: there is no such setting; did you mean 'members'?" in text
    assert "stages.1.rate: input should be a valid number, not 'fast'" in text
    assert "label: input should be a valid string, not 3" in text
    assert "model.rate: input should be greater than 0, not -1" in text
    assert "model.target: 'directt' is not known; did you mean 'direct'?" in text
    assert "model.layers.1: input should be a valid integer, not 'two'" in text
    assert str(file) in text
    assert "--set" in text


def test_a_pattern_is_told_by_examples():
    class Mended(Settings):
        gaps: str = Field(default="split", pattern="^(split|fill:[0-9])$", examples=["fill:5"])
        name: str = Field(default="a", pattern="^[a-z]$", examples=["b", "c"])

    class Plan(Settings):
        stages: tuple[Mended, ...]

    with pytest.raises(ConfigError) as caught:
        build_settings(Plan, {"stages": [{"gaps": "fil:5", "name": "B"}]})
    assert "stages.0.gaps: it has to be like 'fill:5', not 'fil:5'" in str(caught.value)
    assert "stages.0.name: it has to be like 'b' or 'c', not 'B'" in str(caught.value)


def test_missing_settings_are_named():
    class Needy(Settings):
        name: str

    with pytest.raises(ConfigError, match="name: this setting is required"):
        load_settings(Needy)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1e-4", 1e-4),
        ("1E5", 1e5),
        ("-.5", -0.5),
        ("7", 7),
        ("-0", 0),
        ("true", True),
        ("False", False),
        ("null", None),
        ("", None),
        ("[1, 2]", [1, 2]),
        ("{a: 1}", {"a": 1}),
        # Texts, whatever YAML 1.1 made of them.
        ("no", "no"),
        ("on", "on"),
        ("010", "010"),
        ("0x10", "0x10"),
        ("1_000", "1_000"),
        ("1:30", "1:30"),
        ("2026-01-01", "2026-01-01"),
        ("=", "="),
        (".inf", ".inf"),
        ("'7'", "7"),
        ("a=b", "a=b"),
    ],
)
def test_scalars_are_those_of_yaml_1_2(text, value):
    found = parse_override(f"a.b={text}")
    assert found == {"a": {"b": value}}
    assert type(found["a"]["b"]) is type(value)


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("a: 1\nb: 2\na: 3\n", "the name 'a' stands twice (line 3, column 1)"),
        ("a: {b: 1, b: 2}\n", "the name 'b' stands twice"),
        ("a: &x [1]\nb: *x\n", "aliases"),
        ("a: &x [*x]\n", "aliases"),
        ("a: !!python/object/apply:os.getcwd []\n", "tags"),
        ("a: !!binary aGVsbG8=\n", "tags"),
        ("? [1, 2]\n: 3\n", "a name has to be a text"),
        ("a: [1\n", "line 2"),
        ("- 1\n- 2\n", "not a list or a single value"),
        ("just text", "not a list or a single value"),
        ("a: " + "[" * 1000, "recursion"),
        ("a: " + "9" * 5000, "digits"),
        ("a: 1\n---\nb: 2\n", "document"),
    ],
)
def test_files_hold_plain_data_only(tmp_path, text, complaint):
    file = tmp_path / "run.yaml"
    file.write_text(text)
    with pytest.raises(ConfigError) as caught:
        read_yaml(file)
    assert complaint in caught.value.what
    assert caught.value.where == str(file)
    assert caught.value.advice


def test_empty_files_are_empty_settings(tmp_path):
    file = tmp_path / "run.yaml"
    file.write_text("# nothing but a comment\n")
    assert load_settings(RunSettings, file=file) == RunSettings()


def test_unreadable_files_are_named(tmp_path):
    binary = tmp_path / "binary.yaml"
    binary.write_bytes(b"\xff\xfe\x00")
    for path in (tmp_path / "absent.yaml", tmp_path, binary):
        with pytest.raises(StorageError) as caught:
            read_yaml(path)
        assert caught.value.where == str(path)


@pytest.mark.parametrize("text", ["", "a", "=1", "a..b=1", ".a=1", "a.=1", "x." * 40 + "x=1"])
def test_overrides_need_a_name_and_a_value(text):
    with pytest.raises(ConfigError, match=r"name=value"):
        parse_override(text)


@given(st.text())
@example("model.rate=\ud800")
@example("model=" + "[" * 1000)
@example("seed=" + "9" * 5000)
@example("a={[1]: 2}")
@example("a=" + "{a: " * 150 + "}" * 150)
def test_an_override_of_any_text_gives_settings_or_a_user_error(text):
    for override in (text, f"label={text}", f"{text}=1", f"model.{text}"):
        with contextlib.suppress(UserError):
            load_settings(RunSettings, overrides=[override])


_MODELS = st.builds(
    ModelSettings,
    members=st.integers(min_value=1, max_value=2**70),
    rate=st.floats(min_value=0, exclude_min=True, allow_infinity=False),
    target=st.sampled_from(["direct", "delta"]),
    layers=st.lists(st.integers(), max_size=3).map(tuple),
)
_LABELS = st.text(st.characters(exclude_categories=["Cs"])) | st.sampled_from(
    [
        "1e-4",
        "1",
        "no",
        "null",
        "true",
        "~",
        "",
        " ",
        "=",
        "a: b",
        "# c",
        "2026-01-01",
        "\x85",
        "\n",
    ]
)
_SETTINGS = st.builds(
    RunSettings,
    model=_MODELS,
    label=_LABELS,
    is_fast=st.booleans(),
    seed=st.none() | st.integers(),
    optimiser=st.sampled_from(Optimiser),
    stages=st.lists(_MODELS, max_size=2).map(tuple),
)


@given(settings=_SETTINGS)
def test_yaml_reads_back_to_the_same_settings(tmp_path_factory, settings):
    file = tmp_path_factory.getbasetemp() / "round-trip.yaml"
    file.write_bytes(to_yaml(settings).encode())
    again = load_settings(RunSettings, file=file)
    assert again == settings
    assert digest(again) == digest(settings)


@given(settings=_SETTINGS, label=_LABELS)
def test_the_digest_tells_settings_apart(settings, label):
    other = RunSettings.model_validate({**dict(settings), "label": label})
    assert (digest(other) == digest(settings)) == (label == settings.label)


def test_the_digest_is_the_same_everywhere_and_for_ever():
    # A changed digest gives every run and every cached data set another name.
    assert digest(RunSettings(), "stage", 1) == "33619f5d8915"
    assert digest({"b": 1, "a": 2}) == digest({"a": 2, "b": 1})
    assert digest(RunSettings()) != digest(RunSettings(), 1)


def test_the_digest_sees_every_setting():
    trees = [
        {},
        {"label": "other"},
        {"is_fast": True},
        {"seed": 0},
        {"optimiser": "sgd"},
        {"model": {"rate": 2e-4}},
        {"model": {"layers": [300, 400]}},
        {"stages": [{}]},
    ]
    digests = {digest(build_settings(RunSettings, tree)) for tree in trees}
    assert len(digests) == len(trees)


def test_merging_leaves_the_base_alone():
    base = {"a": {"b": 1, "c": [1]}, "d": 2}
    merged = merge(base, {"a": {"b": 3}, "d": {"e": 4}})
    assert merged == {"a": {"b": 3, "c": [1]}, "d": {"e": 4}}
    assert base == {"a": {"b": 1, "c": [1]}, "d": 2}


def test_paths_serve_as_texts():
    assert build_settings(RunSettings, {"label": Path("a/b")}).label == str(Path("a/b"))


class ShelfSettings(Settings):
    items: tuple[ModelSettings, ...] = Field(min_length=1)


def test_a_list_with_a_wrong_item_is_not_called_too_short():
    with pytest.raises(ConfigError) as error:
        build_settings(ShelfSettings, {"items": [{"members": "many"}]})
    assert str(error.value).startswith("One setting is wrong:\n  - items.0.members")
    with pytest.raises(ConfigError, match="items: at least 1 of them needed"):
        build_settings(ShelfSettings, {"items": []})
    with pytest.raises(ConfigError, match="items: this is a list, such as"):
        build_settings(ShelfSettings, {"items": "one"})
