"""How many cases a fuzzing test draws: a thousand in all by default, more in ``make fuzz``."""

from __future__ import annotations

import os

import hypothesis

# Eight fuzzing tests of 130 cases are more than a thousand.
CASES = int(os.environ.get("MOOSE_FUZZ_CASES", "130"))


def fuzzed(test):
    """Run a property test for as many cases as were asked for."""
    health = [hypothesis.HealthCheck.too_slow, hypothesis.HealthCheck.function_scoped_fixture]
    return hypothesis.settings(max_examples=CASES, suppress_health_check=health)(test)
