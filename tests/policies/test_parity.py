"""JAX, NumPy, ONNX Runtime and compiled C give the same answers, for any input."""

from __future__ import annotations

import ctypes
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
from moose.models.actor import act
from moose.policies import onnx as onnx_export
from moose.policies.artifact import read_artifact
from moose.policies.export import export_policy
from moose.policies.plain import Controller, load_policy
from moose.policies.policy import Policy, save_policy
from policies import float64_reference, make_toy_policy, wild_windows

STRICT = ("-std=c99", "-Wall", "-Wextra", "-Wpedantic", "-Werror")
LOW, HIGH = np.array([-1.0, 0.5]), np.array([2.0, 1.5])
BATCHES = (1, 7, 1000)
COUNT = 2500  # for each of four policies


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

    def onnx(self, windows):
        answers = [
            self.session.run(None, {"history": batch})
            for batch in np.split(windows, np.cumsum(cuts(len(windows)))[:-1])
        ]
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


@pytest.fixture(
    scope="module",
    params=[
        {"kind": "network", "hidden": (40, 30)},
        {"kind": "network", "history": 30, "sees": "frame", "hidden": (64,)},
        {"kind": "decoded", "hidden": (20, 10)},
        {"kind": "decoded", "history": 1, "has_support": False},
    ],
    ids=str,
)
def forms(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp("forms")
    policy = make_toy_policy(**request.param)
    save_policy(policy, folder / "policy")
    for form in ("onnx", "c"):
        export_policy(folder / "policy", folder / f"policy.{form}", form)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(
        (folder / "policy.onnx").read_bytes(), options, providers=["CPUExecutionProvider"]
    )
    shared = (*STRICT, "-O2", "-shared", "-fPIC", "-o", folder / "policy.so")
    subprocess.run([compiler(), *shared, folder / "policy.c", "-lm"], check=True)
    library = ctypes.CDLL(str(folder / "policy.so"))
    library.moose_policy.argtypes = library.moose_act.argtypes = [ctypes.c_void_p] * 3
    library.moose_policy.restype = library.moose_act.restype = None
    return Forms(policy, load_policy(folder / "policy"), session, library)


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


@pytest.mark.parametrize("options", [{}, {"kind": "decoded", "has_support": False}])
@pytest.mark.parametrize("flags", [["-O0"], ["-O2", "-DMOOSE_NO_NOVELTY"]])
def test_the_c_file_tests_itself(tmp_path, options, flags):
    save_policy(make_toy_policy(**options), tmp_path / "policy")
    export_policy(tmp_path / "policy", tmp_path / "policy.c", "c")

    def run(source):
        program = ("-DMOOSE_SELF_TEST", "-o", tmp_path / "test", source, "-lm")
        subprocess.run([compiler(), *STRICT, *flags, *program], check=True)
        return subprocess.run([tmp_path / "test"], capture_output=True, text=True, check=False)

    ended = run(tmp_path / "policy.c")
    assert (ended.returncode, ended.stdout) == (0, "6 examples, 0 failures\n")
    text = (tmp_path / "policy.c").read_text()
    for word in ("malloc", "calloc", "alloca", "free("):
        assert word not in text
    start = text.index("moose_action_half[2] = {") + len("moose_action_half[2] = {\n  ")
    (tmp_path / "forged.c").write_text(text[:start] + "9" + text[start:])
    assert run(tmp_path / "forged.c").returncode == 1


def test_names_cannot_leave_the_comment(tmp_path):
    import dataclasses

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


def test_a_model_that_disagrees_is_not_written(tmp_path, monkeypatch):
    """As if a version of ONNX computed something else."""
    save_policy(make_toy_policy(), tmp_path / "policy")
    save_policy(make_toy_policy(seed=2), tmp_path / "other")
    other = onnx_export.make_model(load_policy(tmp_path / "other"))
    monkeypatch.setattr(onnx_export, "make_model", lambda controller: other)
    with pytest.raises(StorageError, match="does not answer as the policy does"):
        export_policy(tmp_path / "policy", tmp_path / "policy.onnx", "onnx")
    assert not (tmp_path / "policy.onnx").exists()


@pytest.mark.parametrize("form", ["onnx", "c"])
def test_who_draws_samples_cannot_be_exported(tmp_path, form):
    save_policy(make_toy_policy("sampled"), tmp_path / "policy")
    with pytest.raises(ConfigError, match="--set acting=deterministic"):
        export_policy(tmp_path / "policy", tmp_path / "out", form)
    export_policy(tmp_path / "policy", tmp_path / "policy.moose", "moose")
