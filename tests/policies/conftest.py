"""A policy on disk, for all tests of policies that only read it."""

from __future__ import annotations

import pytest

from moose.policies.artifact import write_bundle
from moose.policies.policy import save_policy
from policies import make_toy_policy


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("artifact") / "policy"
    save_policy(make_toy_policy(), path)
    return path


@pytest.fixture
def file(folder, tmp_path):
    write_bundle(folder, tmp_path / "policy.moose")
    return tmp_path / "policy.moose"
