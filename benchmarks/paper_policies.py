"""Untrained policies of the paper's sizes: how long they take does not depend on the numbers.

python benchmarks/paper_policies.py FOLDER
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np

HIDDEN = (400, 300)
WIDTH = 750
"""Of the support model."""


def save_policies(folder: Path, forms: tuple[str, ...] = ()) -> None:
    """Save ``action`` and, with a support model, ``novelty``; exported to the forms as well."""
    import jax

    from moose.data.normalize import measure
    from moose.models.actor import init_actor
    from moose.models.networks import init_network
    from moose.models.support import (
        NOVELTY_QUANTILES,
        Autoencoder,
        Familiarity,
        Support,
        SupportScales,
    )
    from moose.policies.export import export_policy
    from moose.policies.policy import Policy, facts_of, save_policy
    from moose.tasks.industrial_benchmark import make_task

    task = make_task()
    rng = np.random.default_rng(0)
    scale = measure(rng.uniform(0, 100, (1000, 6)).astype(np.float32))
    actions = measure(rng.uniform(-1, 1, (1000, 3)).astype(np.float32))
    actor = init_actor(task, scale, HIDDEN, jax.random.key(0))
    keys = jax.random.split(jax.random.key(1), 4)
    autoencoder = Autoencoder(
        init_network(keys[0], (183, WIDTH))[0],
        init_network(keys[1], (WIDTH, 6))[0],
        init_network(keys[2], (WIDTH, 6))[0],
        init_network(keys[3], (6, WIDTH, WIDTH, 183)),
    )
    errors = np.linspace(0.5, 2.0, len(NOVELTY_QUANTILES), dtype=np.float32)
    familiarity = Familiarity(Support(autoencoder, SupportScales(scale, actions)), errors)
    for name, known in (("action", None), ("novelty", familiarity)):
        save_policy(Policy(task.name, actor, facts_of(task), known), folder / name)
        for form in forms:
            export_policy(folder / name, folder / f"{name}.{form}", form)


if __name__ == "__main__":
    save_policies(Path(sys.argv[1]))
