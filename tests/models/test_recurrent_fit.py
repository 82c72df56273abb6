"""Training recurrent models."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from moose.data.dataset import Dataset
from moose.data.episodes import Episode
from moose.errors import DataError
from moose.models import recurrent_fit
from moose.models.accuracy import measure_model_errors
from moose.models.dynamics import StackedModel, StackedSettings, fit_stacked, ready_stacked
from moose.models.recurrent import (
    RecurrentModel,
    RecurrentSettings,
    init_recurrent,
)
from moose.models.recurrent_fit import fit_recurrent
from moose.models.supervised import make_table
from moose.tasks.task import Task
from toys import (
    TINY_RECURRENT as TINY,
)
from toys import (
    MemoryJournal,
    assert_close,
    assert_same_bits,
    differ,
    make_push_task,
    make_toy_log,
)


def member_of(tree, index):
    return jax.tree.map(lambda leaf: leaf[index], tree)


class PatientJournal(MemoryJournal):
    """Remembers every state."""

    def __init__(self):
        super().__init__()
        self.history = []

    def keep(self, stage, step, state):
        super().keep(stage, step, state)
        self.history.append(self.states[stage][0])


def make_mixed_log(task):
    """Long and short episodes, some of them without their last frame."""
    parts = [
        make_toy_log(task, episodes=10, steps=12, unfinished=(1, 4)),
        make_toy_log(task, episodes=4, steps=3, unfinished=(0,), seed=1),
    ]
    episodes = [
        Episode(
            log.observations[row : row + length + observed],
            log.actions[first : first + length],
            log.rewards[first : first + length],
        )
        for log in parts
        for row, first, length, observed in zip(
            log.offsets[:-1] + np.arange(log.num_episodes),
            log.offsets[:-1],
            log.lengths,
            log.final_observed,
            strict=True,
        )
    ]
    return Dataset.from_episodes(episodes, task.observation_names, task.action_names, {})


TASK = make_push_task(is_reward_known=False)
LOG = make_mixed_log(TASK)
# Large steps, so that models get worse at times; a horizon that no episode has.
WILD = TINY.model_copy(
    update={"learning_rate": 0.5, "gradient_clip": 100.0, "rounds": 6, "horizon": 50}
)


def fit(log=LOG, key=0, **options):
    return fit_recurrent(log, TASK, 2, WILD, jax.random.key(key), **options)


@pytest.fixture(scope="module")
def undisturbed():
    journal = PatientJournal()
    return fit(journal=journal), journal


def test_each_member_keeps_the_weights_that_were_best(undisturbed):
    fitted, journal = undisturbed
    least = np.array([state.least for state in journal.history])  # [rounds, K]
    best = [int(np.flatnonzero(least[:, k] == least[-1, k])[0]) for k in range(2)]
    assert min(best) < len(least) - 1
    for k in range(2):
        kept = member_of(journal.history[best[k]].members, k)
        assert_same_bits(member_of(jax.tree.map(np.asarray, fitted.members), k), kept)
    for line, lowest in zip(journal.lines, least, strict=True):
        assert line[2].keys() == {"loss", "validation", "best_validation"}
        np.testing.assert_allclose(line[2]["best_validation"], lowest.mean(), rtol=1e-6)
        assert line[2]["validation"] >= line[2]["best_validation"] * (1 - 1e-6)
    assert differ(member_of(fitted.members, 0), member_of(fitted.members, 1))


def test_half_of_the_members_have_a_delay_line(undisturbed):
    cells = jax.tree.map(np.asarray, undisturbed[0].members).cells
    made = cells.input_weight[:, :, -TINY.features :]
    untrained = init_recurrent(LOG, TASK, 2, WILD, jax.random.key(0)).members.cells
    assert differ(cells.line[0], untrained.line[0])
    assert (made[0] != 0).all()
    # The other one has none, and training does not give it one.
    assert (cells.line[1] == 0).all()
    assert (cells.line_bias[1] == 0).all()
    assert (made[1] == 0).all()


def test_a_fit_interrupted_ends_with_the_same_bits(undisturbed):
    fitted, journal = undisturbed
    resumed = MemoryJournal()
    resumed.fail_at = ("models", 4)
    with pytest.raises(KeyboardInterrupt):
        fit(journal=resumed)
    resumed.fail_at = None
    assert_same_bits(fit(journal=resumed), fitted)
    for found, expected in zip(resumed.lines, journal.lines, strict=True):
        assert found[:2] == expected[:2]
        assert_same_bits(found[2], expected[2])


def test_placeholders_are_never_learned_from(undisturbed, monkeypatch):
    def poisoned_table(dataset):
        observed = dataset.is_observed[:, None]
        table = make_table(dataset)
        return table._replace(observations=jnp.where(observed, table.observations, 1e30))

    monkeypatch.setattr(recurrent_fit, "make_table", poisoned_table)
    assert_same_bits(fit(), undisturbed[0])


def test_seeds_together_are_seeds_in_turn(undisturbed):
    def after_two_rounds(keys):
        journal = MemoryJournal()
        journal.fail_at = ("models", 3)
        with pytest.raises(KeyboardInterrupt):
            fit_recurrent(LOG, TASK, 2, WILD, keys, journal=journal)
        return journal.states["models"][0]

    keys = jnp.stack([jax.random.key(1), jax.random.key(0)])
    together, alone = after_two_rounds(keys), after_two_rounds(keys[0])
    for seed, expected in enumerate([alone, undisturbed[1].history[1]]):
        found = member_of(together, seed)
        assert_close(found.members, expected.members, rtol=1e-3, atol=1e-3)
        assert_close(found.least, expected.least, rtol=1e-3)
    assert differ(member_of(together.members, 0), member_of(together.members, 1))


def test_runs_begin_where_they_are_known_and_in_all_of_a_short_episode():
    log = recurrent_fit._make_log(LOG, 6)
    steps = set(np.asarray(log.draw.steps).tolist())
    expected = set()
    for episode, (first, length) in enumerate(zip(LOG.offsets[:-1], LOG.lengths, strict=True)):
        known = length - (not LOG.final_observed[episode])
        expected |= set(range(first, first + (known - 5 if known >= 6 else known)))
    assert steps == expected
    np.testing.assert_array_equal(np.asarray(log.remaining)[:12], np.arange(12, 0, -1))
    np.testing.assert_array_equal(np.asarray(log.remaining)[12:24], np.arange(11, -1, -1))


@pytest.mark.parametrize("unfinished", [(), (0, 1)])
def test_too_little_to_set_anything_apart_is_said(unfinished):
    log = make_toy_log(TASK, episodes=1 + bool(unfinished), steps=1, unfinished=unfinished)
    with pytest.raises(DataError, match="none can be set apart") as caught:
        fit_recurrent(log, TASK, 1, TINY, jax.random.key(0))
    assert caught.value.where == "recurrent models"
    assert "add more of the log" in caught.value.advice


# A plant with a memory

DELAY = 3


def make_delay_task(history):
    """A level that follows a valve some steps later; the valve itself is known."""
    return Task(
        name="delay",
        observation_names=("level", "valve"),
        action_names=("set",),
        action_low=(-1.0,),
        action_high=(1.0,),
        history=history,
        discount=0.9,
        horizon=10,
        target="direct",
        predicted_names=("level",),
        physics=lambda frame, action, predicted: jnp.stack([predicted[0], action[0]]),
        reward=lambda frame, action, following: -(following[0] ** 2),
    )


def make_delay_log(task, seed, episodes=1, steps=1000):
    rng = np.random.default_rng(seed)
    parts = []
    for _ in range(episodes):
        valve = [0.0] * DELAY + list(rng.uniform(-1, 1, steps))
        level = [rng.normal() * 0.5]
        for time in range(steps):
            level.append(0.7 * level[-1] + 0.5 * valve[time])
        frames = np.column_stack([level, [0.0, *valve[DELAY:]]])
        rewards = -np.square(level[1:])
        parts.append(Episode(frames, np.array(valve[DELAY:])[:, None], rewards))
    return Dataset.from_episodes(parts, task.observation_names, task.action_names, {})


def test_what_happened_some_steps_ago_is_remembered():
    task, key = make_delay_task(history=5), jax.random.key(0)
    log, held_out = make_delay_log(task, seed=0), make_delay_log(task, seed=1)
    # One long episode, of which blocks are set apart.
    training, validation = recurrent_fit._set_apart(log, TINY)
    assert (training.lengths == 100).all()
    assert (training.num_episodes, validation.num_episodes) == (9, 1)
    settings = RecurrentSettings(
        units=8, horizon=10, updates=250, batch_size=16, learning_rate=3e-2, rounds=5
    )
    fitted = fit_recurrent(log, task, 2, settings, key)

    def error_of(model, members):
        errors = measure_model_errors(
            model, members, held_out, model.task, horizon=10, num_starts=200, key=key
        )
        return errors.by_step[-1, 0], errors.baseline[-1, 0]

    error, no_change = error_of(RecurrentModel(task, fitted.scales), fitted.members)
    short = make_delay_task(history=1)
    sizes = StackedSettings(members=2, hidden=(16,), epochs=40, batch_size=100, learning_rate=1e-2)
    stacked = fit_stacked(log, short, sizes, key)
    forgetful, _ = error_of(StackedModel(short, stacked.scales), ready_stacked(stacked.members))
    assert error < 0.25 * no_change
    assert error < 0.5 * forgetful
