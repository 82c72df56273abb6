"""MOOSE against its equations, its known answers and its promises."""

from __future__ import annotations

import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from moose.algorithms import moose
from moose.config import build_settings, merge
from moose.data.dataset import Dataset
from moose.data.episodes import Episode
from moose.data.normalize import measure
from moose.data.split import split_episodes
from moose.errors import RunError
from moose.models.actor import Actor, choose_action, init_actor
from moose.models.dynamics import init_members, measure_scales
from moose.models.ensembles import fit_ensemble, init_ensemble, ready
from moose.models.supervised import make_table
from moose.models.support import (
    fit_support,
    frames_seen,
    init_autoencoder,
    init_support,
    measure_support_scales,
    num_latents,
)
from moose.tasks.task import Task
from moose.training import FORGETFUL
from toys import (
    MemoryJournal,
    altered,
    assert_close,
    assert_same_bits,
    differ,
    make_toy_log,
    make_toy_task,
    toy_physics_numpy,
    toy_reward_numpy,
)

SMALL = {
    "dynamics": {"members": 3, "hidden": [8], "epochs": 2, "batch_size": 40, "learning_rate": 1e-2},
    "support": {"width": 8, "epochs": 2, "batch_size": 40, "learning_rate": 1e-2},
    "search": {"hidden": [6], "updates": 4, "checks": 2, "start_states": 4, "horizon": 5},
}


def make_config(**changes):
    return build_settings(moose.Config, merge(SMALL, changes))


def member_of(tree, index):
    return jax.tree.map(lambda leaf: leaf[index], tree)


# The objective, written once more in NumPy


def reference_loss(actor, members, autoencoder, given, task, config, starts, noise):
    """L(θ) straight from the equations: loops over models, start states and time.

    ``members`` are the weight-normalised networks; ``noise`` is [H, K, N, L]. Returns the loss and
    what the test wants to know of the way there.
    """
    search = config.search
    horizon, discount = search.horizon or task.horizon, search.discount or task.discount
    num_members, num_starts = len(members.dynamics[0].bias), len(starts)
    scales, columns = given.scales, list(task.predicted)
    returns = np.zeros((num_members, num_starts))
    penalties = np.zeros((num_members, num_starts))
    raw_returns = np.zeros((num_members, num_starts))
    seen = {"clipped": 0, "free": 0, "lever": 0}
    for k, i in itertools.product(range(num_members), range(num_starts)):
        dynamics = weight_normalised(member_of(members.dynamics, k))
        window = np.array(starts[i])
        for t in range(horizon):
            box = np.tanh(mlp(actor.network, standard(window, actor.scale).ravel()))
            low, high = np.array(task.action_low), np.array(task.action_high)
            action = low + (box + 1.0) * (high - low) / 2.0
            # Penalty of the pair, before the step.
            frames = window[: frames_seen(task, config.support)]
            pair = np.concatenate(
                [
                    standard(frames, given.support_scales.frame).ravel(),
                    standard(action, given.support_scales.action),
                ]
            )
            draw = noise[t, k, i] if search.latent == "sample" else 0.0
            penalties[k, i] += np.mean((pair - reconstruct(autoencoder, pair, draw)) ** 2)
            # The step.
            inputs = np.concatenate(
                [standard(window, scales.frame).ravel(), standard(action, scales.action)]
            )
            predicted = mlp(dynamics, inputs) * scales.target.deviation + scales.target.mean
            if task.target == "delta":
                predicted = predicted + window[0, columns]
            bounded = within(predicted, scales.predicted)
            frame = toy_physics_numpy(window[0], action, bounded)
            # The reward, standardised.
            if task.reward is not None:
                reward = toy_reward_numpy(window[0], action, frame)
            else:
                network = weight_normalised(member_of(members.reward, k))
                output = mlp(network, np.concatenate([inputs, standard(frame, scales.frame)]))[0]
                unclipped = output * scales.reward.deviation + scales.reward.mean
                reward = within(unclipped, scales.reward)
            raw_returns[k, i] += discount**t * reward
            returns[k, i] += discount**t * standard(reward, scales.reward)
            window = np.vstack([frame, window[:-1]])
            seen["clipped"] += int((bounded != predicted).any())
            seen["free"] += int((bounded == predicted).all())
            seen["lever"] += int(abs(frame[2]) == 0.8)
    if search.return_reduction == "mean":
        returns = returns / horizon
    if search.penalty_reduction == "mean":
        penalties = penalties / horizon
    eta, weight = search.pessimism, search.return_weight
    expected_return = np.mean(eta * returns.min(axis=0) + (1 - eta) * returns.mean(axis=0))
    loss = -weight * expected_return + (1 - weight) * penalties.mean()
    seen["worst"] = len(np.unique(returns.argmin(axis=0)))
    metrics = {
        "loss": loss,
        "imagined_return": raw_returns.mean(),
        "model_spread": raw_returns.std(axis=0).mean(),
        "penalty": penalties.mean(),
    }
    return loss, metrics, seen


def standard(values, scale):
    return (values - scale.mean) / scale.deviation


def within(values, scale):
    return np.minimum(np.maximum(values, scale.minimum), scale.maximum)


def weight_normalised(layers):
    return [
        (layer.direction / np.sqrt(np.sum(layer.direction**2, axis=0)) * layer.gain, layer.bias)
        for layer in layers
    ]


def mlp(layers, inputs):
    for weight, bias in layers[:-1]:
        inputs = np.maximum(inputs @ weight + bias, 0.0)
    weight, bias = layers[-1]
    return inputs @ weight + bias


def reconstruct(autoencoder, pair, draw):
    hidden = np.maximum(pair @ autoencoder.encoder.weight + autoencoder.encoder.bias, 0.0)
    mean = hidden @ autoencoder.mean_head.weight + autoencoder.mean_head.bias
    head = autoencoder.log_deviation_head
    log_deviation = np.clip(hidden @ head.weight + head.bias, -4.0, 15.0)
    return mlp(autoencoder.decoder, mean + np.exp(log_deviation) * draw)


def make_case(task, config, seed=0):
    """Random float64 networks, wide enough for clipping to happen, and the data's scales."""
    log = make_toy_log(task, unfinished=(1,))
    scales, support_scales = measure_scales(log, task), measure_support_scales(log)
    shapes = jax.eval_shape(
        lambda key: (
            init_actor(task, scales.frame, config.search.hidden, key).network,
            init_members(task, config.dynamics, key),
            init_autoencoder(task, config.support, key),
        ),
        jax.random.key(0),
    )
    rng = np.random.default_rng(seed)
    network, members, autoencoder = jax.tree.map(
        lambda leaf: rng.normal(size=leaf.shape) * (0.8 if leaf.ndim > 1 else 0.5), shapes
    )
    members = members._replace(
        dynamics=tuple(layer._replace(gain=3.0 * layer.gain) for layer in members.dynamics)
    )
    autoencoder = jax.tree.map(lambda leaf: 0.5 * leaf, autoencoder)
    rows = log.observation_rows[[3, 40, 95, 120]]
    starts = log.observations[rows[:, None] - np.arange(task.history)]
    scales, support_scales, starts = jax.tree.map(
        lambda leaf: np.asarray(leaf, np.float64), (scales, support_scales, starts)
    )
    given = moose.Given(make_table(log), scales, support_scales, jnp.arange(3))
    return Actor(network, scales.frame), members, autoencoder, given, starts


# Every pair of values of two settings occurs (history 1 and 3, what the support sees, γ too).
CASES = [
    # target, reward known, latent, reduction, rematerialised, λ, history, sees, η, actions
    ("direct", True, "mean", ("sum", "mean"), False, 0.01, 3, "window", 0.5, 2),
    ("direct", True, "sample", ("sum", "sum"), True, 1.0, 1, "frame", 1.0, 1),
    ("direct", False, "mean", ("mean", "sum"), True, 0.0, 3, "frame", 0.0, 1),
    ("direct", False, "sample", ("mean", "mean"), False, 0.01, 1, "window", 0.5, 2),
    ("delta", True, "mean", ("sum", "sum"), False, 1.0, 3, "window", 0.0, 2),
    ("delta", True, "sample", ("sum", "mean"), True, 0.0, 3, "window", 0.5, 1),
    ("delta", False, "mean", ("mean", "mean"), True, 1.0, 1, "frame", 1.0, 2),
    ("delta", False, "sample", ("mean", "sum"), False, 0.01, 3, "frame", 0.5, 1),
    ("direct", False, "mean", ("sum", "mean"), False, 1.0, 3, "frame", 0.5, 1),
    ("delta", True, "sample", ("sum", "sum"), True, 0.01, 1, "window", 1.0, 2),
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: "-".join(map(str, case)))
def test_loss_and_gradient_are_those_of_the_equations(case):
    target, is_known, latent, reduction, is_rematerialised, weight, history, sees, eta, size = case
    task = make_toy_task(target=target, is_reward_known=is_known, history=history, num_actions=size)
    config = make_config(
        support={"sees": sees},
        search={
            "latent": latent,
            "return_reduction": reduction[0],
            "penalty_reduction": reduction[1],
            "is_rematerialised": is_rematerialised,
            "return_weight": weight,
            "pessimism": eta,
        },
    )
    key = jax.random.key(11)
    with jax.enable_x64(True):
        shape = (3, 4, num_latents(task, config.support))
        keys = [jax.random.fold_in(key, t) for t in range(5)]
        noise = np.stack([jax.random.normal(k, shape, jnp.float64) for k in keys])

    # Networks with which the test sees both sides of every kink that it means to.
    for seed in range(30):
        actor, members, autoencoder, given, starts = make_case(task, config, seed)

        def reference(actor, rest=(members, autoencoder, given, task, config, starts, noise)):
            return reference_loss(actor, *rest)

        expected, expected_metrics, seen = reference(actor)
        if min(seen["clipped"], seen["free"], seen["lever"]) > 4 and seen["worst"] > 1:
            break
    else:
        pytest.fail("no such networks found")

    with jax.enable_x64(True):
        # Compiled once and run once: the less the compiler tries, the sooner it is done.
        @functools.partial(jax.jit, compiler_options={"xla_backend_optimization_level": 0})
        def value_and_gradient(network, members, autoencoder):
            knowledge = moose.Knowledge(ready(members), autoencoder, key)

            def loss(network):
                return moose.policy_loss(
                    actor._replace(network=network), knowledge, given, task, config, starts, key
                )

            return jax.value_and_grad(loss, has_aux=True)(network)

        (loss, metrics), gradient = value_and_gradient(actor.network, members, autoencoder)
    np.testing.assert_allclose(loss, expected, rtol=1e-10)
    assert metrics.keys() == expected_metrics.keys()
    for name, value in metrics.items():
        np.testing.assert_allclose(value, expected_metrics[name], rtol=1e-10, err_msg=name)

    leaves, structure = jax.tree.flatten(actor.network)
    flat = np.concatenate([leaf.ravel() for leaf in leaves])
    found = np.concatenate([np.asarray(leaf).ravel() for leaf in jax.tree.leaves(gradient)])
    borders = np.cumsum([leaf.size for leaf in leaves])[:-1]

    def loss_at(numbers):
        parts = np.split(numbers, borders)
        network = structure.unflatten(
            [part.reshape(leaf.shape) for part, leaf in zip(parts, leaves, strict=True)]
        )
        return reference(actor._replace(network=network))[0]

    # All parameters would take a while in NumPy: some, and a few directions through all of them.
    rng = np.random.default_rng(0)
    directions = [
        *(np.eye(len(flat))[rng.permutation(len(flat))[:4]]),
        *rng.normal(size=(3, len(flat))),
    ]
    for direction in directions:
        step = 1e-6 * direction
        slope = (loss_at(flat + step) - loss_at(flat - step)) / 2e-6
        np.testing.assert_allclose(found @ direction, slope, rtol=1e-6, atol=1e-8)
    assert np.abs(found).max() > 1e-6


# Start states

START_TASK = make_toy_task(history=3)
START_LOG = make_toy_log(START_TASK, episodes=3, steps=5, unfinished=(1,))


@pytest.mark.parametrize(
    ("rule", "expected"),
    [
        ("first", [0, 5, 10]),
        ("early", [0, 1, 2, 5, 6, 7, 10, 11, 12]),
        ("any", list(range(15))),
    ],
)
def test_start_rules_choose_exactly_their_states(rule, expected):
    starts = moose.start_transitions(START_LOG, START_TASK, rule)
    np.testing.assert_array_equal(starts, expected)


def test_drawn_starts_are_windows_of_allowed_states_and_reach_them_all():
    starts = moose.start_transitions(START_LOG, START_TASK, "early")
    given = moose.Given(make_table(START_LOG), None, None, starts)
    windows = np.asarray(moose.draw_starts(given, START_TASK, 500, jax.random.key(0)))
    assert windows.shape == (500, 3, 3)
    frames = np.split(START_LOG.observations, [6, 12])
    allowed = {
        np.stack([episode[max(time - age, 0)] for age in range(3)]).tobytes()
        for episode in frames
        for time in range(3)
    }
    assert {window.tobytes() for window in windows} == allowed


# What must not be read

TOY_TASK = make_toy_task(is_reward_known=False)
TOY_LOG = make_toy_log(TOY_TASK, episodes=10)
TOY_SEARCH = {"latent": "sample", "optimiser": "adam", "learning_rate": 1e-2}


def test_held_out_episodes_never_enter_training():
    task, log, config = TOY_TASK, TOY_LOG, make_config(search=TOY_SEARCH)
    _, held_out = split_episodes(10, config.held_out, config.split_seed)
    rows = np.concatenate([np.arange(31 * e, 31 * (e + 1)) for e in held_out])
    transitions = np.concatenate([np.arange(30 * e, 30 * (e + 1)) for e in held_out])
    observations, actions, rewards = (
        np.array(part) for part in (log.observations, log.actions, log.rewards)
    )
    observations[rows], actions[transitions], rewards[transitions] = 1e30, -1e30, 1e30
    poisoned = altered(log, observations=observations, actions=actions, rewards=rewards)
    assert_same_bits(
        moose.fit(poisoned, task, config, jax.random.key(0)),
        moose.fit(log, task, config, jax.random.key(0)),
    )


def test_placeholders_never_enter_the_search():
    task = make_toy_task()
    log, config = make_toy_log(task, unfinished=(0, 2, 5)), make_config()
    key = jax.random.key(0)
    ensemble = fit_ensemble(log, task, config.dynamics, key)
    support = fit_support(log, task, config.support, key)
    poison = np.array(log.observations)
    poison[~log.is_observed] = 1e30
    clean, poisoned = (
        moose.search_policy(data, task, config, ensemble, support, key)
        for data in (log, altered(log, observations=poison))
    )
    assert_same_bits(poisoned, clean)


# Seeds, sweeps, checks


def test_seeds_together_are_seeds_in_turn():
    task, log, config = TOY_TASK, TOY_LOG, make_config(search=TOY_SEARCH)
    keys = jax.random.split(jax.random.key(3), 2)
    journal = MemoryJournal()
    together = moose.fit(log, task, config, keys, journal=journal)
    for seed, key in enumerate(keys):
        alone_journal = MemoryJournal()
        alone = moose.fit(log, task, config, key, journal=alone_journal)
        one = member_of((together.actor, together.ensemble.members, together.support[0]), seed)
        other = (alone.actor, alone.ensemble.members, alone.support.autoencoder)
        assert_close(one, other, rtol=1e-3, atol=1e-4)
        for line, alone_line in zip(journal.lines, alone_journal.lines, strict=True):
            assert line[:2] == alone_line[:2]
            for name, value in line[2].items():
                np.testing.assert_allclose(value[seed], alone_line[2][name], rtol=1e-3)
    assert differ(member_of(together.actor.network, 0), member_of(together.actor.network, 1))


def test_a_search_in_recurrent_models_keeps_the_same_promises():
    task = make_toy_task()
    log = make_toy_log(task)
    recurrent = {"kind": "recurrent", "recurrent": {"units": 3}}
    config = make_config(dynamics=recurrent, search=TOY_SEARCH)

    def search(key, journal=FORGETFUL):
        # Untrained models do: their training has tests of its own.
        ensemble = init_ensemble(log, task, config.dynamics, key)
        support = init_support(log, task, config.support, key)
        actor = moose.search_policy(log, task, config, ensemble, support, key, journal=journal)
        return actor, ensemble

    key, journal = jax.random.key(3), MemoryJournal()
    alone, ensemble = search(key)
    # The policy's inputs have the models' scale, and what is kept on disk the range of the data.
    assert_same_bits(alone.scale, jax.tree.map(jnp.asarray, ensemble.scales.frame))
    whole = measure(log.observations)
    assert_same_bits((alone.scale.minimum, alone.scale.maximum), (whole.minimum, whole.maximum))
    journal.fail_at = ("policy", 4)
    with pytest.raises(KeyboardInterrupt):
        search(key, journal)
    journal.fail_at = None
    assert_same_bits(search(key, journal)[0], alone)
    together, _ = search(jnp.stack([jax.random.key(1), key]))
    assert_close(member_of(together, 1), alone, rtol=1e-3, atol=1e-4)
    assert differ(member_of(together, 0).network, member_of(together, 1).network)


class DigestJournal(MemoryJournal):
    """Notes what would be fitted, and stops before the search."""

    def once(self, name, digest, like, make, *, meanwhile=None):
        self.results[name] = digest
        if name == "support":
            raise StopIteration
        return like


def digests(task=TOY_TASK, key=0, log=TOY_LOG, **changes):
    journal = DigestJournal()
    with pytest.raises(StopIteration):
        moose.fit(log, task, make_config(**changes), jax.random.key(key), journal=journal)
    return journal.results["models"], journal.results["support"]


def test_models_are_fitted_again_only_when_something_about_them_changes():
    models, support = digests()
    assert digests(search={"return_weight": 1.0, "updates": 7}) == (models, support)
    assert digests(held_out=0.1001) == (models, support)  # the same episodes
    other_models, same_support = digests(dynamics={"epochs": 1})
    assert other_models != models
    assert same_support == support
    assert digests(dynamics={"kind": "recurrent"})[0] not in (models, other_models)
    same_models, other_support = digests(support={"kl_weight": 0.5})
    assert same_models == models
    assert other_support != support
    for change in (
        {"split_seed": 1},
        {"key": 1},
        {"task": make_toy_task(is_reward_known=False, target="delta")},
        {"log": make_toy_log(TOY_TASK, episodes=10, seed=1)},
    ):
        others = digests(**change)
        assert others[0] != models
        assert others[1] != support


class CrowdedJournal(MemoryJournal):
    """Of a run whose models another process is making when it comes to them."""

    def once(self, name, digest, like, make, *, meanwhile=None):
        if meanwhile is not None:
            meanwhile()
        return super().once(name, digest, like, make)


def test_while_another_process_makes_the_models_the_support_is_fitted():
    config, key = make_config(search={"updates": 1, "checks": 1}), jax.random.key(0)
    alone, crowded = MemoryJournal(), CrowdedJournal()
    first = moose.fit(TOY_LOG, TOY_TASK, config, key, journal=alone)
    second = moose.fit(TOY_LOG, TOY_TASK, config, key, journal=crowded)
    assert_same_bits(first, second)
    models, support = [("models", 1), ("models", 2)], [("support", 1), ("support", 2)]
    assert alone.kept == [*models, *support, ("policy", 1)]
    assert crowded.kept == [*support, *models, ("policy", 1)]


def test_only_the_networks_weights_are_trained():
    seen = {}
    fitted = moose.fit(
        TOY_LOG,
        TOY_TASK,
        make_config(search=TOY_SEARCH),
        jax.random.key(0),
        observe=lambda step, actor: seen.update({step: actor}),
    )
    assert list(seen) == [0, 2, 4]
    assert differ(seen[0].network, seen[2].network)
    assert_same_bits(seen[4], fitted.actor)
    assert_same_bits(seen[4].scale, jax.tree.map(jnp.asarray, fitted.ensemble.scales.frame))


def test_an_update_is_a_gradient_step_from_new_start_states():
    config = make_config(search={"learning_rate": 1e-2, "updates": 2, "latent": "sample"})
    journal, seen, key = MemoryJournal(), {}, jax.random.key(0)
    fitted = moose.fit(
        TOY_LOG,
        TOY_TASK,
        config,
        key,
        journal=journal,
        observe=lambda step, actor: seen.update({step: actor}),
    )
    train, _ = split_episodes(10, config.held_out, config.split_seed)
    training = TOY_LOG.select_episodes(train)
    update_key = jax.random.split(jax.random.split(key, 3)[2], 2)[1]
    given = moose.Given(
        make_table(training),
        fitted.ensemble.scales,
        fitted.support.scales,
        moose.start_transitions(training, TOY_TASK, config.search.starts),
    )
    knowledge = moose.Knowledge(
        ready(fitted.ensemble.members), fitted.support.autoencoder, update_key
    )

    @jax.jit
    def gradient(network, step):
        start_key, latent_key = jax.random.split(jax.random.fold_in(update_key, step))
        starts = moose.draw_starts(given, TOY_TASK, 4, start_key)

        def loss(network):
            actor = seen[0]._replace(network=network)
            return moose.policy_loss(actor, knowledge, given, TOY_TASK, config, starts, latent_key)

        return jax.grad(loss, has_aux=True)(network)

    lines = [line[2] for line in journal.lines if line[0] == "policy"]
    assert len(lines) == 2
    for step in range(2):
        slopes, metrics = gradient(seen[step].network, step)
        expected = jax.tree.map(lambda w, slope: w - 0.01 * slope, seen[step].network, slopes)
        assert_close(seen[step + 1].network, expected)
        for name, value in metrics.items():
            np.testing.assert_allclose(lines[step][name], value, rtol=1e-4)
        norm = np.sqrt(sum(np.sum(np.square(slope)) for slope in jax.tree.leaves(slopes)))
        np.testing.assert_allclose(lines[step]["gradient_norm"], norm, rtol=1e-4)


def test_an_exploding_gradient_stops_the_run():
    config = make_config(search=TOY_SEARCH | {"gradient_limit": 1e-9})
    with pytest.raises(RunError, match="gradient_norm") as caught:
        moose.fit(TOY_LOG, TOY_TASK, config, jax.random.key(0))
    assert "stage 'policy', step 0" in caught.value.where


def test_a_step_that_saturates_the_policy_stops_the_run():
    config = make_config(search={"optimiser": "sgd", "learning_rate": 1e6, "updates": 6})
    with pytest.raises(RunError, match="gradient_norm vanished") as caught:
        moose.fit(TOY_LOG, TOY_TASK, config, jax.random.key(0))
    assert "stage 'policy', step 1" in caught.value.where
    assert "lower the learning rate" in caught.value.advice


@pytest.mark.parametrize("preset", sorted(moose.PRESETS))
def test_presets_are_valid(preset):
    config = build_settings(moose.Config, moose.PRESETS[preset])
    assert config.search.return_weight == 0.01
    assert config.search.pessimism == 0.5
    assert config.dynamics.members == 4


# Known answers

# A slightly unstable mass with a force; quadratic costs of the next state and of the force.
PLANT_A, PLANT_B = np.array([[1.0, 0.2], [-0.1, 0.9]]), np.array([[0.0], [0.3]])
COST_Q, COST_R = np.diag([1.0, 0.1]), 0.1
DISCOUNT, HORIZON = 0.95, 30


def linear_reward(frame, action, next_frame):
    position, speed = next_frame[0], next_frame[1]
    return -(COST_Q[0, 0] * position**2 + COST_Q[1, 1] * speed**2 + COST_R * action[0] ** 2)


def make_linear_log(task):
    rng = np.random.default_rng(0)
    episodes = []
    for _ in range(100):
        states, forces, rewards = [rng.uniform(-2, 2, 2)], rng.uniform(-4, 4, (20, 1)), []
        for force in forces:
            states.append(PLANT_A @ states[-1] + PLANT_B @ force)
            rewards.append(linear_reward(states[-2], force, states[-1]))
        episodes.append(Episode(np.array(states), forces, np.array(rewards)))
    return Dataset.from_episodes(episodes, task.observation_names, task.action_names, {})


def optimal_gains_and_costs():
    """Backward Riccati recursion over the horizon: time-varying gains, and the cost-to-go."""
    cost, gains = np.zeros((2, 2)), []
    for _ in range(HORIZON):
        ahead = COST_Q + DISCOUNT * cost
        gain = np.linalg.solve(COST_R + PLANT_B.T @ ahead @ PLANT_B, PLANT_B.T @ ahead @ PLANT_A)
        cost = PLANT_A.T @ ahead @ (PLANT_A - PLANT_B @ gain)
        gains.insert(0, gain)
    return gains, cost


def true_returns(policy, starts):
    states, totals = starts, np.zeros(len(starts))
    for time in range(HORIZON):
        forces = policy(states, time)
        states = states @ PLANT_A.T + forces @ PLANT_B.T
        costs = np.sum(states @ COST_Q * states, axis=1) + COST_R * forces[:, 0] ** 2
        totals = totals - DISCOUNT**time * costs
    return totals


@pytest.mark.slow
def test_a_linear_plant_is_controlled_as_well_as_can_be():
    task = Task(
        name="linear",
        observation_names=("position", "speed"),
        action_names=("force",),
        action_low=(-5.0,),
        action_high=(5.0,),
        history=1,
        discount=DISCOUNT,
        horizon=HORIZON,
        target="delta",
        predicted_names=("position", "speed"),
        physics=lambda frame, action, predicted: predicted,
        reward=linear_reward,
    )
    config = make_config(
        dynamics={"members": 2, "hidden": [32, 32], "epochs": 40, "batch_size": 100}
        | {"learning_rate": 3e-3},
        support={"width": 4, "epochs": 1},
        search={"hidden": [32, 32], "updates": 400, "start_states": 32, "horizon": None}
        | {"optimiser": "adam", "learning_rate": 3e-3, "return_weight": 1.0},
    )
    actor = moose.fit(make_linear_log(task), task, config, jax.random.key(0)).actor
    act = jax.jit(jax.vmap(lambda frame: choose_action(actor, task, frame[None])))

    starts = np.random.default_rng(5).uniform(-2, 2, (200, 2))
    gains, cost = optimal_gains_and_costs()
    optimum = -np.einsum("ni,ij,nj->n", starts, cost, starts)
    np.testing.assert_allclose(
        true_returns(lambda states, time: -states @ gains[time].T, starts), optimum, rtol=1e-9
    )
    found = true_returns(lambda states, time: act(states.astype(np.float32)), starts)
    assert 1.0 <= found.mean() / optimum.mean() < 1.02


CORNER, GOAL = 1.5, 10.0


def make_corner_log(task):
    """A walk that keeps to one corner of the world, far from the goal."""
    rng = np.random.default_rng(0)
    episodes = []
    for _ in range(60):
        states, moves = [rng.uniform(1.0, 2.0, 2)], []
        for _ in range(25):
            pull = 0.5 * (CORNER - states[-1])
            moves.append(np.clip(pull + rng.normal(0.0, 0.3, 2), -1.0, 1.0))
            states.append(states[-1] + moves[-1])
        rewards = -np.abs(np.array(states[1:]) - GOAL).sum(axis=1)
        episodes.append(Episode(np.array(states), np.array(moves), rewards))
    return Dataset.from_episodes(episodes, task.observation_names, task.action_names, {})


@pytest.mark.slow
def test_the_penalty_keeps_a_policy_where_the_data_are():
    task = Task(
        name="corner",
        observation_names=("x", "y"),
        action_names=("dx", "dy"),
        action_low=(-1.0, -1.0),
        action_high=(1.0, 1.0),
        history=1,
        discount=0.97,
        horizon=20,
        target="delta",
        predicted_names=("x", "y"),
        physics=lambda frame, action, predicted: predicted,
        reward=lambda frame, action, following: -jnp.sum(jnp.abs(following - GOAL)),
    )
    log = make_corner_log(task)
    low, high = log.observations.min(axis=0), log.observations.max(axis=0)
    journal = MemoryJournal()

    def visited(return_weight):
        """All states of 20 true steps from the log's first states: [T, E, n]."""
        config = make_config(
            dynamics={"members": 2, "hidden": [32], "epochs": 15, "batch_size": 100},
            support={"width": 32, "epochs": 30, "batch_size": 100, "learning_rate": 3e-3},
            search={"hidden": [32], "updates": 200, "start_states": 32, "horizon": None}
            | {"optimiser": "adam", "learning_rate": 3e-3, "return_weight": return_weight},
        )
        journal.states.clear()  # the fitted models are kept
        actor = moose.fit(log, task, config, jax.random.key(0), journal=journal).actor
        act = jax.jit(jax.vmap(lambda frame: choose_action(actor, task, frame[None])))
        states = [log.observations[:: log.lengths[0] + 1]]
        for _ in range(20):
            states.append(states[-1] + np.asarray(act(states[-1])))
        return np.array(states)

    penalised, unpenalised = visited(0.01), visited(1.0)
    assert len(journal.results) == 2
    assert (penalised >= low).all()
    assert (penalised <= high).all()
    # Without the penalty every trajectory runs past the goal, as if the world ended at the data.
    assert (unpenalised[-1] > high + 5.0).all()
