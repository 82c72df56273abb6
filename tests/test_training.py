"""The host loop: chunks, checkpoints, sanity, and what must not change the numbers."""

from __future__ import annotations

import itertools
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from devices import with_devices
from moose.errors import RunError
from moose.experiments.run_folder import read_run
from moose.policies.policy import load_policy
from moose.training import (
    chunk_size,
    init_optimiser,
    key_numbers,
    per_seed,
    repeat_update,
    split_keys,
)
from runs import log, tiny_words
from toys import MemoryJournal, assert_close, assert_same_bits, differ

TOTAL = 12
TARGETS = np.random.default_rng(0).normal(size=(8, 3)).astype(np.float32)


class State(NamedTuple):
    params: jax.Array
    momentum: jax.Array
    count: jax.Array


def first_state(seed):
    params = jnp.sin(seed * jnp.arange(1.0, 4.0))
    return State(params, jnp.zeros(3), jnp.zeros((), jnp.int32))


def update(state, seed, targets, step):
    """A noisy least squares step; the noise is cheap to compile, since this happens often here."""
    noise = jnp.sin(seed + step.astype(jnp.float32))

    def loss(params):
        return jnp.mean(jnp.tanh(targets * noise - params[None]) ** 2)

    value, gradient = jax.value_and_grad(loss)(state.params)
    momentum = 0.9 * state.momentum + gradient
    state = State(state.params - 0.1 * momentum, momentum, state.count + 1)
    return state, {"loss": value, "norm": jnp.linalg.norm(gradient)}


def run(*, chunk=4, total=TOTAL, seed=0.5, update=update, **options):
    seed = jnp.float32(seed)
    return repeat_update(
        "toy", update, first_state(seed), seed, TARGETS, total=total, chunk=chunk, **options
    )


# Chunks


@pytest.mark.parametrize(
    ("total", "checks", "looks"), [(1000, 100, 100), (7, 3, 3), (9, 4, 3), (2, 5, 2)]
)
def test_a_chunk_is_as_long_as_the_checks_ask_for(total, checks, looks):
    chunk, steps = chunk_size(total, checks), []
    run(chunk=chunk, total=total, observe=lambda step, state: steps.append(step))
    assert steps == [*range(0, total, chunk), total]
    assert len(steps) - 1 == looks


@pytest.mark.parametrize("chunk", [1, 5, 100])
def test_chunks_do_not_change_the_result(chunk):
    assert_close(run(chunk=chunk), run(chunk=4), rtol=1e-6)


def test_it_is_the_loop_that_it_says():
    seed = jnp.float32(0.5)
    state = first_state(seed)
    for step in range(TOTAL):
        state, _ = update(state, seed, TARGETS, jnp.asarray(step))
    assert_close(run(), state)


def test_zero_chunks_are_left_when_all_is_done():
    journal = MemoryJournal()
    done = run(journal=journal)
    assert_same_bits(run(journal=journal), done)
    assert journal.kept == [("toy", 4), ("toy", 8), ("toy", 12)]


# Resuming


@pytest.mark.parametrize(("chunk", "fail_at"), [(4, 4), (4, 12), (5, 10), (5, 12)])
def test_a_resumed_fit_ends_with_the_same_bits(chunk, fail_at):
    undisturbed = MemoryJournal()
    expected = run(chunk=chunk, journal=undisturbed)
    journal = MemoryJournal()
    journal.fail_at = ("toy", fail_at)
    with pytest.raises(KeyboardInterrupt):
        run(chunk=chunk, journal=journal)
    journal.fail_at = None
    assert_same_bits(run(chunk=chunk, journal=journal), expected)
    assert [line[:2] for line in journal.lines] == [("toy", step) for step in range(TOTAL)]
    for (_, _, found), (_, _, wanted) in zip(journal.lines, undisturbed.lines, strict=True):
        assert_same_bits(found, wanted)


def test_metrics_are_recorded_once_a_step():
    journal = MemoryJournal()
    run(chunk=5, journal=journal)
    assert [line[1] for line in journal.lines] == list(range(TOTAL))
    assert all(list(line[2]) == ["loss", "norm"] for line in journal.lines)


def test_the_loss_falls():
    journal = MemoryJournal()
    run(total=100, journal=journal)
    losses = [line[2]["loss"] for line in journal.lines]
    assert np.mean(losses[-20:]) < np.mean(losses[:20])


# What must not change anything


def test_an_observer_changes_nothing_and_may_keep_what_it_sees():
    seen = {}

    def observe(step, state):
        seen[step] = state

    assert_same_bits(run(observe=observe), run())
    assert list(seen) == [0, 4, 8, 12]
    assert_same_bits(seen[0], first_state(jnp.float32(0.5)))
    assert_same_bits(seen[8], run(total=8))
    assert_same_bits(seen[12], run())


def test_a_resumed_fit_is_not_observed_from_the_start_again():
    journal = MemoryJournal()
    journal.fail_at = ("toy", 8)
    steps = []
    with pytest.raises(KeyboardInterrupt):
        run(journal=journal, observe=lambda step, state: steps.append(step))
    journal.fail_at = None
    run(journal=journal, observe=lambda step, state: steps.append(step))
    # Step 8 is seen twice: its checkpoint was not kept, so that its evaluation is not either.
    assert steps == [0, 4, 8, 8, 12]


def test_the_callers_state_survives():
    seed = jnp.float32(0.5)
    state, before = first_state(seed), first_state(seed)
    for _ in range(2):
        repeat_update("toy", update, state, seed, TARGETS, total=4, chunk=2)
        assert_same_bits(state, before)


def test_a_view_of_an_observed_state_is_not_overwritten():
    views = {}

    def observe(step, state):
        views[step] = (np.asarray(state[0]), np.array(state[0]))

    run(observe=observe)
    for view, copy in views.values():
        np.testing.assert_array_equal(view, copy)


# Sanity


def poisoned_update(poison_step, poison, names=("loss",)):
    def poisoned(state, seed, targets, step):
        state, metrics = update(state, seed, targets, step)
        value = jnp.where(step == poison_step, jnp.float32(poison), jnp.float32(0.5))
        return state, {**metrics, **dict.fromkeys(names, value)}

    return poisoned


@pytest.mark.parametrize(("poison", "step"), [(np.nan, 0), (np.inf, 6), (-np.inf, 11)])
def test_a_number_that_is_not_finite_stops_the_fit(poison, step):
    journal = MemoryJournal()
    with pytest.raises(RunError) as caught:
        run(update=poisoned_update(step, poison), journal=journal)
    assert caught.value.what.startswith("Training went astray: loss not finite")
    assert f"stage 'toy', step {step} (loss " in caught.value.where
    assert "norm" in caught.value.where
    assert caught.value.advice
    # Neither checkpoint nor line is from the chunk that went astray.
    assert all(kept <= step for _, kept in journal.kept)
    assert all(line[1] < step for line in journal.lines)


def test_several_culprits_are_all_named():
    with pytest.raises(RunError, match="astray: loss, pressure not finite"):
        run(update=poisoned_update(5, np.nan, ("loss", "pressure")))


@pytest.mark.parametrize("value", [3.0, -3.0])
def test_a_limit_stops_the_fit(value):
    run(update=poisoned_update(7, value), limits={"loss": (0.0, 3.0)})
    complaint = rf"loss not finite or beyond its limit[^$]*step 7 .*loss {value:g}\b"
    with pytest.raises(RunError, match=complaint):
        run(update=poisoned_update(7, value), limits={"loss": (0.0, 2.99)})


def test_with_patience_a_limit_is_for_all_steps_of_a_chunk():
    limits = {"loss": (0.0, 2.0)}
    run(update=poisoned_update(7, 3.0), chunk=3, limits=limits, is_patient=True)
    with pytest.raises(RunError, match=r"loss not finite or beyond its limit[^$]*step 7 "):
        run(update=poisoned_update(7, 3.0), chunk=1, limits=limits, is_patient=True)
    with pytest.raises(RunError, match=r"loss not finite[^$]*step 7 "):
        run(update=poisoned_update(7, np.nan), chunk=3, limits=limits, is_patient=True)


def test_a_metric_that_vanishes_stops_the_fit():
    run(update=poisoned_update(7, 1e-3), limits={"loss": (1e-3, 9.0)})
    with pytest.raises(RunError, match=r"loss vanished[^$]*step 7 "):
        run(update=poisoned_update(7, 9e-4), limits={"loss": (1e-3, 9.0)})


def test_the_first_bad_step_is_the_one_named():
    def grows(state, seed, targets, step):
        state, metrics = update(state, seed, targets, step)
        return state, {**metrics, "growth": 10.0 ** step.astype(jnp.float32)}

    with pytest.raises(RunError, match="growth") as caught:
        run(update=grows, chunk=12, limits={"growth": (0.0, 500.0)})
    assert "step 3 " in caught.value.where


def test_one_bad_seed_stops_all():
    def bad_seed(state, seed, targets, step):
        state, metrics = update(state, seed, targets, step)
        value = jnp.where((step == 2) & (seed == 1.0), jnp.nan, metrics["loss"])
        return state, {**metrics, "loss": value}

    seeds = jnp.arange(3.0)
    state = jax.vmap(first_state)(seeds)
    with pytest.raises(RunError, match="step 2 "):
        repeat_update("toy", bad_seed, state, seeds, TARGETS, total=4, chunk=4, is_seeded=True)


# Seeds


def test_seeds_together_are_the_seeds_in_turn():
    seeds = jnp.asarray([0.5, 1.5, 2.5])
    journal = MemoryJournal()
    together = repeat_update(
        "toy",
        update,
        per_seed(first_state, seeds),
        seeds,
        TARGETS,
        total=TOTAL,
        chunk=4,
        is_seeded=True,
        journal=journal,
    )
    for index, seed in enumerate(seeds):
        alone_journal = MemoryJournal()
        alone = run(seed=seed, journal=alone_journal)
        assert_close(jax.tree.map(lambda leaf, index=index: leaf[index], together), alone)
        for line, alone_line in zip(journal.lines, alone_journal.lines, strict=True):
            np.testing.assert_allclose(line[2]["loss"][index], alone_line[2]["loss"], rtol=1e-5)


def test_keys_split_alike_alone_and_together():
    keys = jax.random.split(jax.random.key(1), 3)
    together = split_keys(keys, 2)
    assert len(together) == 2
    for seed, key in enumerate(keys):
        for part, alone in zip(together, split_keys(key, 2), strict=True):
            assert part.shape == (3,)
            assert key_numbers(part[seed]) == key_numbers(alone)
    pairs = itertools.combinations([key_numbers(part[i]) for part in together for i in range(3)], 2)
    assert all(one != other for one, other in pairs)


def test_an_optimiser_has_a_state_for_each_seed():
    params, optimiser = jnp.zeros((4, 3)), optax.adam(1e-3)
    assert init_optimiser(optimiser, params, is_seeded=True)[0].count.shape == (4,)
    assert init_optimiser(optimiser, params, is_seeded=False)[0].count.shape == ()


def test_seeds_differ():
    assert differ(run(seed=0.5), run(seed=1.5))


# Several devices

SHARES = """
import jax, jax.numpy as jnp
from moose.training import by_shares, shared_out

shares = jax.jit(shared_out)(jnp.arange(6.0).reshape(6, 1)).addressable_shards
print([share.data.reshape(-1).tolist() for share in shares])
print(len(jax.jit(shared_out)(jnp.zeros((5, 1))).sharding.device_set))

@jax.jit
@jax.value_and_grad
def summed(common):
    seen = lambda common, members: (print("members:", members.shape), common * members[None])[1]
    return jnp.sum(by_shares(seen, common, jnp.arange(6.0), axis=1) ** 2)

print(*summed(2.0))
"""


def test_members_are_shared_out_equally_or_not_at_all():
    values = "220.0 220.0"  # the sum of (2 k)^2, and its slope
    one, two = (with_devices(count, "-c", SHARES).splitlines() for count in (1, 2))
    assert one == ["[[0.0, 1.0, 2.0, 3.0, 4.0, 5.0]]", "1", "members: (6,)", values]
    assert two == ["[[0.0, 1.0, 2.0], [3.0, 4.0, 5.0]]", "1", "members: (3,)", values]


def test_a_training_on_two_devices_is_that_on_one(tmp_path):
    words = ("train", log(), *tiny_words())  # two models
    seeds = ("--seeds", "0,1", "--seeds-mode", "together")
    for count in (1, 2):
        where = tmp_path / str(count)
        rest = ("--cache", where / "cache", "--evaluation-episodes", 2, "--quiet")
        with_devices(count, "-m", "moose", *words, *seeds, *rest, "--out", where / "run")
    for seed in ("seed-0", "seed-1"):
        one, two = (load_policy(tmp_path / n / "run" / seed / "policy").actor for n in "12")
        assert_close(two, one, rtol=1e-4, atol=1e-6)
    noted = [read_run(tmp_path / name / "run").versions["threads"] for name in "12"]
    assert noted == ["1", "1, 2 devices"]
