"""The policy in NumPy: the same answers as JAX, for any input, without JAX."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest

import moose
from moose.errors import ConfigError, DataError, StorageError
from moose.policies.parts import growing_curve, score_on
from moose.policies.plain import load_policy
from moose.policies.policy import save_policy
from policies import float64_reference, make_toy_policy, wild_windows

KINDS = ("network", "decoded", "dial")


def saved(tmp_path, *arguments, **options):
    policy = make_toy_policy(*arguments, **options)
    save_policy(policy, tmp_path / "policy")
    return policy, load_policy(tmp_path / "policy")


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("sees", ["window", "frame"])
def test_it_agrees_with_float64_and_with_jax(tmp_path, kind, sees):
    policy, controller = saved(tmp_path, kind, sees=sees)
    windows = wild_windows(policy, 500)
    actions = controller(windows)
    assert actions.dtype == np.float32
    expected, novelty = float64_reference(policy, windows)
    np.testing.assert_allclose(actions, expected, atol=1e-5)
    np.testing.assert_allclose(controller.novelty(windows, actions), novelty, rtol=1e-4, atol=1e-4)
    for window, action in list(zip(windows, actions, strict=True))[:20]:
        np.testing.assert_allclose(policy.act(window), action, atol=1e-5)
        np.testing.assert_allclose(
            policy.novelty(window, action), controller.novelty(window, action), rtol=1e-4
        )
        np.testing.assert_allclose(controller(window), action, atol=1e-6)
    assert (novelty > 1).any()
    assert (novelty < 1).any()


def test_any_input_gives_an_action_within_bounds(tmp_path):
    policy, controller = saved(tmp_path)
    for window in (
        *np.full((5, 2, 3), [[[np.nan]], [[np.inf]], [[-np.inf]], [[1e30]], [[-1e30]]]),
        np.full((2, 3), 1e300),
    ):
        action = controller(window)
        assert np.isfinite(action).all()
        assert (action >= policy.facts.action_low).all()
        assert (action <= policy.facts.action_high).all()
        assert np.isfinite(controller.novelty(window, [np.nan, 1e30]))


def test_it_keeps_the_history_itself(tmp_path):
    _, controller = saved(tmp_path, history=3)
    frames = np.random.default_rng(0).normal(size=(5, 3)).astype(np.float32)
    assert controller.window is None
    for t in range(5):
        order = [max(t - k, 0) for k in range(3)]
        np.testing.assert_array_equal(controller.act(frames[t]), controller(frames[order]))
        np.testing.assert_array_equal(controller.window, frames[order])
    controller.reset()
    np.testing.assert_array_equal(controller.act(frames[4].tolist()), controller(frames[[4, 4, 4]]))


def test_nonsense_is_refused_and_forgets_nothing(tmp_path):
    _, controller = saved(tmp_path)
    controller.act([1.0, 2.0, 3.0])
    before = controller.window
    for wrong in ([1.0, 2.0], [[1.0, 2.0, 3.0]], ["a", "b", "c"], 3.0, [None, {}, 1]):
        with pytest.raises(DataError):
            controller.act(wrong)
    np.testing.assert_array_equal(controller.window, before)
    with pytest.raises(DataError, match=r"this task's is \(2, 3\)"):
        controller(np.zeros((3, 3)))
    with pytest.raises(DataError, match=r"The action has the shape \(3,\)"):
        controller.novelty(np.zeros((2, 3)), np.zeros(3))
    assert controller(np.zeros((0, 2, 3))).shape == (0, 2)


def test_without_a_support_model_nothing_is_called_new(tmp_path):
    _, controller = saved(tmp_path, has_support=False)
    assert not controller.has_novelty
    with pytest.raises(ConfigError, match="no support model"):
        controller.novelty(np.zeros((2, 3)), np.zeros(2))


def test_who_draws_samples_is_sent_elsewhere(tmp_path):
    policy = make_toy_policy("sampled")
    save_policy(policy, tmp_path / "policy")
    with pytest.raises(ConfigError, match="--set acting=deterministic"):
        load_policy(tmp_path / "policy")


def test_a_policy_of_an_early_version_says_what_to_do(tmp_path):
    from moose.checkpoint import save_tree

    content = {"task": "toy", "sizes": [6, 5, 4, 2], "signals": 3}
    kind = {"format_name": "moose-policy", "schema_version": 1}
    save_tree(tmp_path / "old", make_toy_policy().actor, content=content, **kind)
    with pytest.raises(StorageError, match="save it again"):
        load_policy(tmp_path / "old")


def test_the_scale_of_the_new_grows():
    curve = growing_curve(np.float32([1, 1, 2, 2, 4]), np.float32([0.1, 0.2, 0.5, 0.9, 1]))
    errors = np.float32([0, 0.5, 1, 1.5, 2, 3, 4, 8])
    expected = [0, 0.1, 0.2, 0.55, 0.9, 0.95, 1, 2]
    np.testing.assert_allclose(score_on(*curve, errors), expected, rtol=1e-6)
    flat = growing_curve(np.zeros(2, np.float32), np.float32([0.5, 1]))
    assert np.isfinite(score_on(*flat, np.float32([0, 1]))).all()


def test_it_starts_quickly_and_without_jax(tmp_path):
    policy = make_toy_policy(hidden=(400, 300))
    save_policy(policy, tmp_path / "policy")
    program = (
        "import sys, time; start = time.process_time(); import moose;"
        "controller = moose.load_policy(sys.argv[1]); controller.act([0.0, 0.0, 0.0]);"
        "seconds = time.process_time() - start;"
        "heavy = {'jax', 'pydantic', 'pyarrow', 'scipy', 'optax'} & set(sys.modules);"
        "assert not heavy, heavy; print(seconds)"
    )
    command = [sys.executable, "-c", program, str(tmp_path / "policy")]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr
    assert float(ended.stdout) < 0.5


def test_the_package_offers_it():
    assert moose.load_policy is load_policy
    with pytest.raises(AttributeError, match="no attribute 'load_toaster'"):
        _ = moose.load_toaster
