"""JAX, NumPy, ONNX Runtime and compiled C give the same answers, for any input."""

from __future__ import annotations

import ctypes
import dataclasses
import json
import os
import shutil
import subprocess
from typing import NamedTuple

import jax
import numpy as np
import onnx
import onnxruntime
import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as st_numpy

from moose.errors import ConfigError, StorageError
from moose.models.actor import Actor, act
from moose.policies import onnx as onnx_export
from moose.policies.artifact import read_artifact
from moose.policies.export import export_policy
from moose.policies.plain import Controller, load_policy
from moose.policies.policy import Policy, save_policy
from policies import float64_reference, make_toy_policy, wild_windows

STRICT = ("-std=c99", "-Wall", "-Wextra", "-Wpedantic", "-Werror")
LOW, HIGH = np.array([-1.0, 0.5]), np.array([2.0, 1.5])
BATCHES = (1, 7, 1000)
COUNT = 2500  # for each of five policies
POSITIONS = (0.0, 0.05, 0.3, 0.5, 0.7, 1.0)
SMALL = np.nextafter(np.float32(0), np.float32(1))
TOLD = {-0.5: 0.0, -np.inf: 0.0, -SMALL: 0.0, 1.0001: 1.0, np.inf: 1.0, 3e38: 1.0}
"""Positions that there are not, and what they mean."""


def compiler():
    found = shutil.which("cc") or shutil.which("gcc")
    if found is None and os.environ.get("CI"):
        pytest.fail("a C compiler is needed: apt-get install gcc")
    return found or pytest.skip("a C compiler is needed: apt-get install gcc")


class Forms(NamedTuple):
    policy: Policy
    controller: Controller
    session: onnxruntime.InferenceSession
    library: ctypes.CDLL

    def onnx(self, windows, position=None):
        answers = []
        for batch in np.split(windows, np.cumsum(cuts(len(windows)))[:-1]):
            inputs = {"history": batch}
            if position is not None:
                inputs["position"] = np.full((len(batch), 1), position, np.float32)
            answers.append(self.session.run(None, inputs))
        return [np.concatenate(each) for each in zip(*answers, strict=True)]

    def c(self, windows):
        actions, novelty = np.empty((len(windows), 2), np.float32), np.empty(1, np.float32)
        scores = []
        for window, action in zip(np.ascontiguousarray(windows), actions, strict=True):
            self.library.moose_policy(*(array.ctypes.data for array in (window, action, novelty)))
            scores.append(novelty[0])
        return actions, np.array(scores)


def cuts(total):
    """Batches of 1, 7 and 1000 until all is done."""
    sizes = []
    while sum(sizes) < total:
        sizes.append(min(BATCHES[len(sizes) % 3], total - sum(sizes)))
    return sizes


def make_forms(folder, policy, **options):
    save_policy(policy, folder / "policy")
    for form in ("onnx", "c"):
        export_policy(folder / "policy", folder / f"policy.{form}", form, **options)
    session_options = onnxruntime.SessionOptions()
    session_options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(
        (folder / "policy.onnx").read_bytes(), session_options, providers=["CPUExecutionProvider"]
    )
    shared = (*STRICT, "-O2", "-shared", "-fPIC", "-o", folder / "policy.so")
    subprocess.run([compiler(), *shared, folder / "policy.c", "-lm"], check=True)
    library = ctypes.CDLL(str(folder / "policy.so"))
    library.moose_policy.argtypes = library.moose_act.argtypes = [ctypes.c_void_p] * 3
    library.moose_policy.restype = library.moose_act.restype = None
    if options.get("is_turnable"):
        library.moose_set_position.argtypes = [ctypes.c_float]
        library.moose_set_position.restype = None
    return Forms(policy, load_policy(folder / "policy"), session, library)


@pytest.fixture(
    scope="module",
    params=[
        {"kind": "network", "hidden": (40, 30)},
        {"kind": "network", "history": 30, "sees": "frame", "hidden": (64,)},
        {"kind": "decoded", "hidden": (20, 10)},
        {"kind": "decoded", "history": 1, "has_support": False},
        {"kind": "dial", "hidden": (20, 10)},
    ],
    ids=str,
)
def forms(request, tmp_path_factory):
    return make_forms(tmp_path_factory.mktemp("forms"), make_toy_policy(**request.param))


@pytest.fixture(
    scope="module",
    params=[
        {"hidden": (20, 10)},
        {"history": 30, "sees": "frame", "hidden": (64,)},
        {"history": 1, "has_support": False, "hidden": ()},
    ],
    ids=str,
)
def turnable(request, tmp_path_factory):
    policy = make_toy_policy("dial", **request.param)
    return make_forms(tmp_path_factory.mktemp("turnable"), policy, is_turnable=True)


def test_all_forms_agree_with_float64(forms):
    policy = forms.policy
    windows = wild_windows(policy, COUNT)
    expected, expected_novelty = float64_reference(policy, windows)
    onnx_answers, (c_actions, c_novelty) = forms.onnx(windows), forms.c(windows)
    answers = {"numpy": forms.controller(windows), "onnx": onnx_answers[0], "c": c_actions}
    parts = forms.controller.parts
    clamped = np.clip(
        np.where(np.isnan(windows), parts.clamp.fill, windows), parts.clamp.low, parts.clamp.high
    )
    in_training = jax.jit(jax.vmap(lambda w: act(policy.actor, policy.facts, w, jax.random.key(0))))
    answers["jax"] = np.asarray(in_training(clamped))
    for name, actions in answers.items():
        assert actions.dtype == np.float32, name
        np.testing.assert_allclose(actions, expected, rtol=0, atol=1e-5, err_msg=name)
        if name != "jax":  # whose last step, to be within bounds, is the policy's own
            assert ((actions >= LOW) & (actions <= HIGH)).all(), name
    for window, action in zip(windows[:50], expected[:50], strict=True):
        answer = policy.act(window)
        np.testing.assert_allclose(answer, action, rtol=0, atol=1e-5)
        assert ((answer >= LOW) & (answer <= HIGH)).all()
    if policy.familiarity is None:
        assert len(onnx_answers) == 1
        assert (c_novelty == -1).all()
        return
    novelty = forms.controller.novelty(windows, answers["numpy"])
    for found in (novelty, onnx_answers[1], c_novelty):
        np.testing.assert_allclose(found, expected_novelty, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("position", POSITIONS)
def test_a_dial_that_can_be_turned_agrees_with_float64(turnable, position):
    policy, controller, _, library = turnable
    windows = wild_windows(policy, 500, seed=1)
    expected, expected_novelty = float64_reference(policy, windows, position)
    library.moose_set_position(position)
    onnx_answers, (c_actions, c_novelty) = turnable.onnx(windows, position), turnable.c(windows)
    actions = {"numpy": controller.at(position)(windows), "onnx": onnx_answers[0], "c": c_actions}
    actions["jax"] = np.stack([policy.at(position).act(window) for window in windows[:100]])
    for name, found in actions.items():
        assert found.dtype == np.float32, name
        np.testing.assert_allclose(found, expected[: len(found)], rtol=0, atol=1e-5, err_msg=name)
        assert ((found >= LOW) & (found <= HIGH)).all(), name
    if controller.has_novelty:
        for found in (onnx_answers[1], c_novelty):
            np.testing.assert_allclose(found, expected_novelty, rtol=1e-4, atol=1e-4)


def test_a_dial_that_is_told_anything_stands_somewhere(turnable):
    windows = wild_windows(turnable.policy, 20)
    stored = turnable.controller.position
    for told, meant in (TOLD | {np.nan: stored}).items():
        expected = turnable.controller.at(meant)(windows)
        turnable.library.moose_set_position(0.123)
        turnable.library.moose_set_position(told)
        for found in (turnable.onnx(windows, told)[0], turnable.c(windows)[0]):
            np.testing.assert_allclose(found, expected, rtol=0, atol=1e-5)


def test_every_history_has_a_position_of_its_own(turnable):
    windows = wild_windows(turnable.policy, 6)
    column = np.float32([[0], [0.2], [np.nan], [0.7], [5], [1]])
    answers = turnable.session.run(None, {"history": windows, "position": column})[0]
    for window, told, answer in zip(windows, (0, 0.2, 0.5, 0.7, 1, 1), answers, strict=True):
        expected = turnable.controller.at(told)(window)
        np.testing.assert_allclose(answer, expected, rtol=0, atol=1e-5)


def test_c_stands_where_it_was_written_until_it_is_turned(tmp_path):
    policy = make_toy_policy("dial")
    forms = make_forms(tmp_path, policy, is_turnable=True, position=0.9)
    windows = wild_windows(policy, 20)
    expected = float64_reference(policy, windows, 0.9)[0]
    np.testing.assert_allclose(forms.c(windows)[0], expected, rtol=0, atol=1e-5)
    forms.library.moose_set_position(0.1)
    forms.library.moose_reset()  # which is about the history only
    turned = float64_reference(policy, windows, 0.1)[0]
    np.testing.assert_allclose(forms.c(windows)[0], turned, rtol=0, atol=1e-5)
    forms.library.moose_set_position(np.nan)
    np.testing.assert_allclose(forms.c(windows)[0], expected, rtol=0, atol=1e-5)


@pytest.mark.parametrize("is_turnable", [False, True])
def test_position_0_is_the_behaviour_bit_for_bit(tmp_path, is_turnable):
    """Even if the search has nothing but numbers that are too large."""
    policy = make_toy_policy("dial", hidden=(20, 10))
    huge = jax.tree.map(lambda leaf: 3e38 * np.sign(leaf), policy.actor.search)
    wild = dataclasses.replace(policy, actor=dataclasses.replace(policy.actor, search=huge))
    alone = dataclasses.replace(policy, actor=Actor(policy.actor.behaviour, policy.actor.scale))
    windows = wild_windows(policy, 200)
    for name in ("alone", "sound", "wild"):
        (tmp_path / name).mkdir()
    expected = make_forms(tmp_path / "alone", alone)
    sound = make_forms(tmp_path / "sound", policy, position=0, is_turnable=is_turnable)
    position = 0 if is_turnable else None
    np.testing.assert_array_equal(sound.onnx(windows, position)[0], expected.onnx(windows)[0])
    np.testing.assert_array_equal(sound.c(windows)[0], expected.c(windows)[0])
    if is_turnable:
        other = make_forms(tmp_path / "wild", wild.at(0), is_turnable=True)
        np.testing.assert_array_equal(other.onnx(windows, 0)[0], expected.onnx(windows)[0])
        np.testing.assert_array_equal(other.c(windows)[0], expected.c(windows)[0])
    else:
        size = (tmp_path / "alone" / "policy.onnx").stat().st_size
        assert (tmp_path / "sound" / "policy.onnx").stat().st_size < 1.2 * size  # without a search


@hypothesis_settings(max_examples=50)
@given(data=st.data())
def test_no_input_breaks_any_form(forms, data):
    shape = (3, *forms.policy.facts.window_shape)
    windows = data.draw(st_numpy.arrays(np.float32, shape, elements=st.floats(width=32)))
    expected, _ = float64_reference(forms.policy, windows)
    actions = [forms.controller(windows), forms.onnx(windows)[0], forms.c(windows)[0]]
    for found in actions:
        np.testing.assert_allclose(found, expected, rtol=0, atol=1e-5)
        assert ((found >= LOW) & (found <= HIGH)).all()


def test_c_keeps_the_history_as_python_does(forms):
    frames = wild_windows(forms.policy, 5)[:, 0]
    for _ in range(2):
        forms.controller.reset()
        forms.library.moose_reset()
        for frame in frames:
            action = np.empty(2, np.float32)
            row = np.ascontiguousarray(frame)
            forms.library.moose_act(row.ctypes.data, action.ctypes.data, None)
            np.testing.assert_allclose(action, forms.controller.act(frame), atol=1e-5)


@pytest.mark.parametrize(
    ("options", "exported", "count"),
    [
        ({}, {}, 6),
        ({"kind": "decoded", "has_support": False}, {}, 6),
        ({"kind": "dial"}, {}, 6),
        ({"kind": "dial"}, {"position": 0.0}, 6),
        ({"kind": "dial"}, {"position": 0.8}, 6),
        ({"kind": "dial"}, {"is_turnable": True}, 36),
        ({"kind": "dial", "has_support": False}, {"position": 1, "is_turnable": True}, 36),
    ],
)
@pytest.mark.parametrize("flags", [["-O0"], ["-O2", "-DMOOSE_NO_NOVELTY"]])
def test_the_c_file_tests_itself(tmp_path, options, exported, count, flags):
    save_policy(make_toy_policy(**options), tmp_path / "policy")
    export_policy(tmp_path / "policy", tmp_path / "policy.c", "c", **exported)

    def run(source):
        program = ("-DMOOSE_SELF_TEST", "-o", tmp_path / "test", source, "-lm")
        subprocess.run([compiler(), *STRICT, *flags, *program], check=True)
        return subprocess.run([tmp_path / "test"], capture_output=True, text=True, check=False)

    def forged(place):
        (tmp_path / "forged.c").write_text(text.replace(place, f"{place}9"))
        return run(tmp_path / "forged.c")

    ended = run(tmp_path / "policy.c")
    assert (ended.returncode, ended.stdout) == (0, f"{count} examples, 0 failures\n")
    text = (tmp_path / "policy.c").read_text()
    for word in ("malloc", "calloc", "alloca", "free("):
        assert word not in text
    assert forged("moose_action_half[2] = {\n  ").returncode == 1
    assert ("moose_set_position" in text) == ("is_turnable" in exported)
    assert ("moose_search" in text) == (
        options.get("kind") == "dial" and exported.get("position") != 0
    )
    if "is_turnable" in exported:
        assert forged("moose_test_turned[60] = {\n  ").returncode == 1
        assert forged("moose_search_bias_2[2] = {\n  ").returncode == 1


def test_names_cannot_leave_the_comment(tmp_path):
    policy = make_toy_policy()
    evil = '*/ int main(void){return 9;} /* ??/\n#error "'
    facts = dataclasses.replace(policy.facts, observation_names=(evil, "b\\", "ü"))
    save_policy(dataclasses.replace(policy, facts=facts), tmp_path / "policy")
    export_policy(tmp_path / "policy", tmp_path / "policy.c", "c")
    output = ("-c", "-o", tmp_path / "policy.o")
    subprocess.run([compiler(), *STRICT, *output, tmp_path / "policy.c"], check=True)


def test_the_model_says_what_it_is(tmp_path):
    save_policy(make_toy_policy(), tmp_path / "policy")
    result = export_policy(tmp_path / "policy", tmp_path / "policy.onnx", "onnx")
    model = onnx.load_from_string((tmp_path / "policy.onnx").read_bytes())
    assert result["bytes"] == len(model.SerializeToString(deterministic=True))
    assert [(each.domain, each.version) for each in model.opset_import] == [("", 18)]
    assert model.ir_version == 10
    told = {each.key: each.value for each in model.metadata_props}
    manifest = read_artifact(tmp_path / "policy").manifest
    assert json.loads(told["task"]) == manifest["task"]
    assert json.loads(told["files"]) == manifest["files"]
    assert told["algorithm"] == "moose"
    assert not any(tensor.external_data for tensor in model.graph.initializer)
    before = (tmp_path / "policy.onnx").read_bytes()
    export_policy(tmp_path / "policy", tmp_path / "policy.onnx", "onnx")
    assert (tmp_path / "policy.onnx").read_bytes() == before


def test_the_model_of_a_dial_says_where_it_stands(tmp_path):
    save_policy(make_toy_policy("dial"), tmp_path / "policy")
    for options, inputs, position in (
        ({}, ["history"], 0.5),
        ({"position": 0.7}, ["history"], 0.7),
        ({"position": 0.7, "is_turnable": True}, ["history", "position"], 0.7),
    ):
        result = export_policy(tmp_path / "policy", tmp_path / "policy.onnx", "onnx", **options)
        assert result["position"] == position
        assert result["is_turnable"] == (len(inputs) == 2)
        model = onnx.load_from_string((tmp_path / "policy.onnx").read_bytes())
        assert [each.name for each in model.graph.input] == inputs
        told = {each.key: each.value for each in model.metadata_props}
        assert json.loads(told["position"]) == position
        assert json.loads(told["origin"]).get("turned_from", position) in {0.5, position}
    shape = [d.dim_param or d.dim_value for d in model.graph.input[1].type.tensor_type.shape.dim]
    assert shape == ["batch", 1]


@pytest.mark.parametrize("is_turnable", [False, True])
def test_a_model_that_disagrees_is_not_written(tmp_path, monkeypatch, is_turnable):
    """As if a version of ONNX computed something else."""
    kind = "dial" if is_turnable else "network"
    save_policy(make_toy_policy(kind), tmp_path / "policy")
    save_policy(make_toy_policy(kind, seed=2), tmp_path / "other")
    other = onnx_export.make_model(load_policy(tmp_path / "other"), is_turnable=is_turnable)
    monkeypatch.setattr(onnx_export, "make_model", lambda *_, **__: other)
    with pytest.raises(StorageError, match="does not answer as the policy does"):
        export_policy(
            tmp_path / "policy", tmp_path / "policy.onnx", "onnx", is_turnable=is_turnable
        )
    assert not (tmp_path / "policy.onnx").exists()


def test_a_model_that_disagrees_at_one_position_only_is_not_written(tmp_path, monkeypatch):
    """One that takes what is not a number for another position than the policy's own."""
    save_policy(make_toy_policy("dial"), tmp_path / "policy")
    other = load_policy(tmp_path / "policy").at(0.6)
    model = onnx_export.make_model(other, is_turnable=True)
    monkeypatch.setattr(onnx_export, "make_model", lambda *_, **__: model)
    with pytest.raises(StorageError, match="does not answer as the policy does"):
        export_policy(tmp_path / "policy", tmp_path / "policy.onnx", "onnx", is_turnable=True)


@pytest.mark.parametrize("form", ["onnx", "c"])
def test_who_draws_samples_cannot_be_exported(tmp_path, form):
    save_policy(make_toy_policy("sampled"), tmp_path / "policy")
    with pytest.raises(ConfigError, match="--set acting=deterministic"):
        export_policy(tmp_path / "policy", tmp_path / "out", form)
    export_policy(tmp_path / "policy", tmp_path / "policy.moose", "moose")
