"""Errors advise: what, where, what to do."""

from __future__ import annotations

import copy

import pytest

from moose.errors import (
    ConfigError,
    DataError,
    MissingExtraError,
    RunError,
    StorageError,
    UserError,
    nearest,
)


def test_a_message_has_its_three_parts_in_order() -> None:
    error = UserError("It broke.", where="log.csv, row 3", advice="mend it")
    assert str(error).splitlines() == [
        "It broke.",
        "  where:      log.csv, row 3",
        "  what to do: mend it",
    ]


def test_parts_that_are_not_known_are_left_out() -> None:
    assert str(UserError("It broke.")) == "It broke."


@pytest.mark.parametrize("kind", [ConfigError, DataError, StorageError, RunError])
def test_every_kind_is_a_user_error_that_keeps_its_parts(kind: type[UserError]) -> None:
    error = kind("what", where="where", advice="advice")
    assert isinstance(error, UserError)
    assert (error.what, error.where, error.advice) == ("what", "where", "advice")


def test_an_error_survives_being_copied() -> None:
    # Worker processes send errors home this way.
    error = copy.copy(DataError("what", where="where", advice="advice"))
    assert str(error) == str(DataError("what", where="where", advice="advice"))


def test_a_missing_extra_says_what_to_install() -> None:
    error = MissingExtraError("onnx", "export", "Exporting a policy")
    assert "Exporting a policy needs the package 'onnx'" in str(error)
    assert "pip install 'moose-rl[export]'" in str(error)


@pytest.mark.parametrize(
    ("name", "valid", "advice"),
    [
        ("horizn", ["horizon", "history"], "did you mean 'horizon'?"),
        ("zzz", ["b", "a"], "choose one of: a, b"),
        ("zzz", [], "nothing is accepted here"),
    ],
)
def test_nearest(name: str, valid: list[str], advice: str) -> None:
    assert nearest(name, valid) == advice


def test_what_all_names_begin_with_brings_none_nearer() -> None:
    valid = ["plants/boiler", "plants/kiln"]
    assert nearest("plants/bioler", valid, prefix="plants/") == "did you mean 'plants/boiler'?"
    everything = "choose one of: plants/boiler, plants/kiln"
    assert nearest("plants/xyz", valid, prefix="plants/") == everything
    assert nearest("bioler", valid, prefix="plants/") == "did you mean 'plants/boiler'?"
