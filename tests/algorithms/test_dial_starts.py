"""Where the search of a policy with a dial begins."""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from moose.algorithms import dial_starts
from moose.algorithms.dial_loss import Given, Knowledge, Problem, SearchSettings, draw_starts
from moose.algorithms.dial_starts import StartSettings
from moose.data.draws import draw_within
from moose.data.normalize import measure
from moose.models.ensembles import DynamicsSettings, init_ensemble, ready
from moose.models.recurrent import physical_scale
from moose.models.situations import SituationSettings, measure_situations
from moose.models.supervised import make_table
from moose.models.support import SupportSettings, init_support
from moose.training import Learner
from toys import MemoryJournal, assert_close, assert_same_bits, make_toy_log, make_toy_task

SETTINGS = StartSettings(
    tried=100, tried_states=4, kept=3, updates=30, start_states=4, growth=0.5, checks=3
)


class Search(NamedTuple):
    problem: Problem
    sizes: tuple[int, ...]
    knowledge: Knowledge
    given: Given


@pytest.fixture(scope="module")
def search():
    """Untrained models, in which actions matter all the same."""
    task = make_toy_task(history=2)
    log = make_toy_log(task)
    dynamics = DynamicsSettings(hidden=(8,), members=2)
    ensemble = init_ensemble(log, task, dynamics, jax.random.key(0))
    settings = SearchSettings(hidden=(8,), distrust=0.2, learning_rate=1e-2)
    situations, support = SituationSettings(references=50), SupportSettings(width=8)
    autoencoder = init_support(log, task, support, jax.random.key(1))
    frame = measure(log.observations)
    problem = Problem(task, settings, situations, support)
    return Search(
        problem,
        (task.history * len(problem.columns) + 1, 8, 2),
        Knowledge(ready(ensemble.members), autoencoder.autoencoder, (), jax.random.key(2)),
        Given(
            make_table(log),
            draw_within(log),
            ensemble.scales,
            autoencoder.scales,
            measure_situations(log, task, situations, jax.random.key(3)),
            frame,
            physical_scale(frame, task),
            return_size=jnp.float32(2.0),
            reward_size=jnp.float32(0.5),
        ),
    )


def believed(search, networks, starts):
    return [
        float(
            dial_starts.believed_return(
                jax.tree.map(lambda leaf, i=i: leaf[i], networks),
                search.knowledge,
                search.given,
                search.problem,
                starts,
            )
        )
        for i in range(len(networks[0].bias))
    ]


def test_the_best_of_all_tried_networks_are_kept(search):
    update = jax.jit(dial_starts.make_trial(search.problem, SETTINGS, search.sizes))
    network_key, start_key = jax.random.split(search.knowledge.key)
    draw = jax.vmap(lambda key: dial_starts.random_search(key, search.sizes, search.problem))
    starts = draw_starts(search.given, search.problem, 4, start_key, 1.0)
    none = jax.tree.map(lambda leaf: leaf[:3], draw(jax.random.split(jax.random.key(9), 50)))
    tries = dial_starts.Tries(none, jnp.full(3, -jnp.inf, jnp.float32))
    networks, returns = [], []
    for step in range(2):
        tries, metrics = update(tries, search.knowledge, search.given, jnp.asarray(step))
        drawn = draw(jax.random.split(jax.random.fold_in(network_key, step), 50))
        networks.append(drawn)
        returns += believed(search, drawn, starts)
        assert float(metrics["best_return"]) == pytest.approx(max(returns), rel=1e-4)
    best = np.argsort(returns)[::-1][:3]
    np.testing.assert_allclose(tries.returns, np.array(returns)[best], rtol=1e-4)
    both = jax.tree.map(lambda *parts: jnp.concatenate(parts), *networks)
    assert_close(tries.networks, jax.tree.map(lambda leaf: leaf[best], both))
    assert len(set(returns)) > 90  # they do not all do the same


def test_an_improvement_raises_what_is_believed_of_every_network(search):
    draw = jax.vmap(lambda key: dial_starts.random_search(key, search.sizes, search.problem))
    networks = draw(jax.random.split(jax.random.key(5), 3))
    optimiser = optax.adam(1e-2)
    update = jax.jit(dial_starts.make_improvement(search.problem, SETTINGS, optimiser))
    learners = Learner(networks, jax.vmap(optimiser.init)(networks))
    for step in range(30):
        learners, _ = update(learners, search.knowledge, search.given, jnp.asarray(step))
    starts = draw_starts(search.given, search.problem, 30, jax.random.key(6))
    before, after = (believed(search, found, starts) for found in (networks, learners.params))
    assert all(late > early for early, late in zip(before, after, strict=True))


def test_a_start_is_at_least_as_good_as_an_improved_holding_still(search):
    key = jax.random.key(7)

    def find(kept, journal=None):
        settings = SETTINGS.model_copy(update={"kept": kept})
        options = {} if journal is None else {"journal": journal}
        return dial_starts.find_start(
            search.problem, settings, search.sizes, search.knowledge, search.given, key, **options
        )

    journal = MemoryJournal()
    still, best = find(0), find(3, journal)
    stack = jax.tree.map(lambda *leaves: jnp.stack(leaves), still, best)
    _, _, _, judge_key = jax.random.split(key, 4)
    starts = draw_starts(search.given, search.problem, 16, judge_key, 1.0)
    of_still, of_best = believed(search, stack, starts)
    assert of_best >= of_still - 1e-4
    # The candidates as they ended, of which it is the best.
    candidates = journal.states["starts"][0].params
    assert len(candidates[0].bias) == 4
    assert of_best == pytest.approx(max(believed(search, candidates, starts)), rel=1e-5)
    assert {line[0] for line in journal.lines} == {"tries", "starts"}
    assert_same_bits(find(3), best)


def test_several_seeds_have_a_start_each(search):
    keys = jnp.stack([jax.random.key(7), jax.random.key(8)])
    double = jax.tree.map(lambda leaf: jnp.stack([leaf, leaf]), search.knowledge)
    found = dial_starts.find_start(
        search.problem, SETTINGS, search.sizes, double, search.given, keys
    )
    alone = dial_starts.find_start(
        search.problem, SETTINGS, search.sizes, search.knowledge, search.given, keys[1]
    )
    assert_close(jax.tree.map(lambda leaf: leaf[1], found), alone, rtol=0.05, atol=0.02)


def test_what_is_not_a_number_is_never_the_best():
    values = dial_starts._finite(jnp.array([jnp.nan, -5.0, -jnp.inf], jnp.float32))
    assert int(jnp.argmax(values)) == 1
    assert bool(jnp.isfinite(values).all())
