"""Scales of recurrent models, and what they find out about known physics."""

from __future__ import annotations

import dataclasses

import jax.numpy as jnp
import numpy as np

from moose.data.normalize import measure
from moose.models.recurrent_scales import measure_recurrent_scales, probe_physics
from toys import TINY_RECURRENT as TINY
from toys import altered, assert_same_bits, make_toy_log, make_toy_task, push_physics


def test_physics_is_tried_for_what_it_gives_and_shows():
    frames = np.random.default_rng(0).normal(size=(20, 3)).astype(np.float32)

    def probed(physics, predicted=("y", "x")):
        task = dataclasses.replace(make_toy_task(), physics=physics, predicted_names=predicted)
        return [part.tolist() for part in probe_physics(frames, task)]

    assert probed(make_toy_task().physics) == [[0, 0, 1], [0, 0]]
    assert probed(push_physics) == [[0, 0, 1], [0, 1]]
    # An action that shows at the end of its range only, and hardly ever.
    assert probed(
        lambda frame, action, predicted: jnp.stack(
            [predicted[1], predicted[0], jnp.minimum(frame[2], 0.0) + jnp.floor(action[1] / 1.5)]
        )
    ) == [[0, 0, 1], [1, 0]]
    # What follows from a prediction is not known before, and shows nothing that is.
    assert probed(
        lambda frame, action, predicted: jnp.stack(
            [predicted[1], predicted[0], predicted[0] - action[0]]
        )
    ) == [[0, 0, 0], [1, 1]]
    nothing_known = probed(lambda frame, action, predicted: predicted, ("x", "y", "lever"))
    assert nothing_known == [[0, 0, 0], [1, 1]]


def test_a_physical_range_is_the_scale_of_what_hardly_varies():
    limits = ((None, None), (-9.0, 9.0), (-2.0, 6.0))
    task = dataclasses.replace(make_toy_task(), observation_limits=limits)
    log = make_toy_log(task)
    stuck = log.observations.copy()
    stuck[:, 2] = 0.5 + 1e-4 * stuck[:, 2]
    log = altered(log, observations=stuck)
    scale = measure_recurrent_scales(log, task, TINY.early_share).frame
    assert (scale.mean[2], scale.deviation[2]) == (2.0, 2.0)  # four deviations wide
    whole = measure(log.observations)
    np.testing.assert_allclose(scale.mean[:2], whole.mean[:2], atol=0.2)  # a predicted one's, too
    np.testing.assert_allclose(scale.deviation[:2], whole.deviation[:2], rtol=0.2)
    # What a policy on disk calls the range of the data is the range of all data.
    assert_same_bits((scale.minimum, scale.maximum), (whole.minimum, whole.maximum))
