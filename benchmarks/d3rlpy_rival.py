"""d3rlpy as a contestant of ``baselines.py``; runs in a virtual environment of its own.

It reads one JSON object a line and answers each with one: first ``{"data": FILE, "threads": N}``,
then for each contest ``{"make": {...}}`` and as often as wanted ``{"steps": N}``, which is answered
by the seconds that N gradient steps took. A step is what d3rlpy's own training loop does without
its logging: a batch drawn from the replay buffer, then ``update``.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Mapping
from typing import Any

import d3rlpy
import numpy as np
import torch
from d3rlpy.algos import BCQConfig, BEARConfig, DDPGConfig
from d3rlpy.models.encoders import VectorEncoderFactory

CONFIGS = {"ddpg": DDPGConfig, "bcq": BCQConfig, "bear": BEARConfig}


def main() -> None:
    """Answer until nothing more is asked."""
    answers = sys.stdout
    sys.stdout = sys.stderr  # what d3rlpy prints is not an answer
    buffer = algorithm = batch_size = None
    for line in sys.stdin:
        asked: dict[str, Any] = json.loads(line)
        answer: dict[str, Any] = {}
        if "data" in asked:
            torch.set_num_threads(asked["threads"])
            buffer = make_buffer(asked["data"])
            answer = {"d3rlpy": d3rlpy.__version__, "torch": torch.__version__}
        elif "make" in asked:
            algorithm, batch_size = make_algorithm(asked["make"]), asked["make"]["batch_size"]
            algorithm.build_with_dataset(buffer)
        else:
            start = time.perf_counter()
            for _ in range(asked["steps"]):
                algorithm.update(buffer.sample_transition_batch(batch_size))
            answer = {"seconds": time.perf_counter() - start}
        print(json.dumps(answer), file=answers, flush=True)


def make_buffer(file: str) -> Any:
    """A replay buffer of flat states, whose windows were made beforehand."""
    with np.load(file, allow_pickle=False) as arrays:
        return d3rlpy.dataset.create_infinite_replay_buffer(
            d3rlpy.dataset.MDPDataset(
                observations=arrays["states"],
                actions=arrays["actions"],
                rewards=arrays["rewards"],
                terminals=np.zeros(len(arrays["rewards"])),
                timeouts=arrays["timeouts"],
            ).episodes
        )


def make_algorithm(sizes: Mapping[str, Any]) -> Any:
    """An untrained learner of the same sizes and settings as ours."""
    name = sizes["algorithm"]
    networks = VectorEncoderFactory(hidden_units=sizes["hidden"])
    settings: dict[str, Any] = {
        "batch_size": sizes["batch_size"],
        "gamma": sizes["discount"],
        "actor_learning_rate": 1e-3,
        "critic_learning_rate": 1e-3,
        "actor_encoder_factory": networks,
        "critic_encoder_factory": networks,
    }
    if name in ("bcq", "bear"):
        settings["imitator_encoder_factory"] = VectorEncoderFactory(
            hidden_units=[sizes["vae_width"]] * 2
        )
    if name == "bcq":
        settings["n_action_samples"] = sizes["target_samples"]
    if name == "bear":
        settings |= {
            "n_target_samples": sizes["target_samples"],
            "n_mmd_action_samples": sizes["samples"],
            "warmup_steps": 0,
        }
    return CONFIGS[name](**settings).create(device="cpu:0")


if __name__ == "__main__":
    main()
