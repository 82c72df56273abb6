"""How fast a policy is searched and models are fitted, against PyTorch and the machine's peak.

Run from the root of the repository with ``pip install -e '.[bench]'``, the machine idle otherwise::

    python benchmarks/policy_update.py                     # tables; about 10 minutes on 2 cores
    python benchmarks/policy_update.py --profile           # and where an update's time goes
    python benchmarks/policy_update.py --json FILE         # the numbers for a program as well
    python benchmarks/policy_update.py --rounds 1 --chunk 1 --episodes 5   # does it work at all?
    python benchmarks/policy_update.py --data gym/Hopper-v4   # a plant of which nothing is known

One update of MOOSE at the paper's size (30 frames of 6 numbers, 3 actions, 4 models, 100 start
states, 100 steps, networks of 400-300, autoencoder of 750 with 6 latents; or one frame of a
Gymnasium environment, changes and reward learned, with ``paper-mujoco``) is timed for

- ours: ``search_policy``, the very loop of a training run, compiled in chunks as there;
- PyTorch: the independent version in ``pytorch_rival.py``, eager and under ``torch.compile``
  (each time step compiled once; compilation is not counted);
- the bound: the floating-point operations of the matrix products that an update cannot do without,
  at the highest rate that JAX, PyTorch or NumPy reach with any of a few shapes in the same run.

Before anything is timed the PyTorch version has to agree with ours: loss and gradient to 1e-5 in
float64 over a short horizon, the loss to 1e-5 in float32 at full size. All contestants take turns,
round by round, so that they meet the same machine; medians and minima over the rounds are reported.
Models and support are fitted by ``fit_stacked`` and ``fit_support`` in the same way; PyTorch's
predictions and loss agree to 1e-5 with ours before training, for a batch and the same noise.
"""

from __future__ import annotations

import argparse
import importlib.util
import itertools
import json
import os
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from moose.algorithms import moose
from moose.algorithms.imagination import expected_penalty, support_penalties
from moose.config import build_settings
from moose.data.dataset import Dataset
from moose.data.normalize import standardise
from moose.envs.catalog import make_dataset
from moose.envs.gymnasium_recipes import gymnasium_recipe_of, is_gymnasium
from moose.envs.recipes import recipe_of
from moose.models.actor import Actor, choose_action, init_actor
from moose.models.dynamics import (
    Ensemble,
    StackedModel,
    fit_stacked,
    init_stacked,
    model_inputs,
    ready_stacked,
    reward_inputs,
)
from moose.models.networks import apply_network
from moose.models.rollout import Imagined, imagine
from moose.models.supervised import make_table, successors_of, windows_of
from moose.models.support import (
    Support,
    autoencoder_loss,
    fit_support,
    frames_seen,
    init_support,
    kl_weight_of,
    num_inputs,
    num_latents,
    support_inputs,
)
from moose.tasks.registry import task_of
from moose.tasks.task import Task
from moose.training import FORGETFUL

DATASET = "ib/bad-0.2"
STEPS_OF_EPISODE = 1000
GOAL_EAGER = 1.5
GOAL_BOUND = 0.8
GOAL_MEMORY = 2.0  # gigabytes
TOLERANCE = 1e-5
SHORT_HORIZON = 5

Work = Callable[[], object]


class Problem(NamedTuple):
    """A data set, and networks with random weights at the paper's size."""

    dataset: Dataset
    task: Task
    config: moose.Config
    actor: Actor
    ensemble: Ensemble
    support: Support
    knowledge: moose.Knowledge
    given: moose.Given


@dataclass
class Times:
    """Seconds of one contestant: the first call, which may compile, and one number for each round.

    Attributes:
        per_call: Updates or transitions that a call makes.
        first: Seconds of the first call.
        calls: Seconds of the others.
    """

    per_call: int
    first: float = float("nan")
    calls: list[float] = field(default_factory=list)

    @property
    def median(self) -> float:
        """Seconds of one update or transition."""
        return statistics.median(self.calls) / self.per_call

    @property
    def least(self) -> float:
        """The same, of the fastest round."""
        return min(self.calls) / self.per_call


class Gemm(NamedTuple):
    """A matrix product [m, k] · [k, n] that an update needs ``count`` times."""

    part: str
    name: str
    batch: int
    m: int
    k: int
    n: int
    count: int

    @property
    def operations(self) -> int:
        """Floating-point operations of all of them."""
        return 2 * self.batch * self.m * self.k * self.n * self.count


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, print, and fail if a goal is missed."""
    options = parse(arguments)
    if options.memory_only:
        run_ours_only(options)
        return 0
    memory = measure_memory(options)
    problem = make_problem(options)
    report: dict[str, Any] = {"machine": describe_machine(), "options": vars(options)}
    report["agreement"] = check_agreement(problem)
    print_agreement(report["agreement"])
    peak = Peak()
    update, notes = time_update(problem, options, peak)
    report["update"] = summarise_update(update, problem, peak, memory) | {"notes": notes}
    print_update(report["update"])
    report["fits"] = time_fits(problem, options)
    print_fits(report["fits"])
    if options.profile:
        report["profile"] = profile(problem, options, peak)
        print_profile(report["profile"], peak)
    if options.json is not None:
        options.json.write_text(json.dumps(report, indent=2, default=str) + "\n")
    print("\ngoals met" if report["update"]["is_met"] else "\ngoals MISSED")
    return 0 if report["update"]["is_met"] else 1


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5, help="turns of each (%(default)s)")
    parser.add_argument(
        "--chunk", type=int, default=5, help="updates in a turn, compiled as one (%(default)s)"
    )
    parser.add_argument(
        "--data", default=DATASET, help="ib/… or gym/…, played at random (%(default)s)"
    )
    parser.add_argument(
        "--episodes", type=int, default=20, help="thousands of steps to fit (%(default)s)"
    )
    parser.add_argument("--no-compile", action="store_true", help="leave torch.compile out")
    parser.add_argument("--profile", action="store_true", help="time the parts of an update, too")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all numbers to FILE")
    parser.add_argument("--memory-only", action="store_true", help=argparse.SUPPRESS)
    return parser.parse_args(arguments)


def make_problem(options: argparse.Namespace) -> Problem:
    """Data from the simulator and untrained networks; the settings are those of the paper."""
    if is_gymnasium(options.data):
        count, preset = STEPS_OF_EPISODE * options.episodes, "paper-mujoco"
        dataset = make_dataset(gymnasium_recipe_of(options.data, transitions=count))
    else:
        dataset = make_dataset(recipe_of(options.data, episodes=options.episodes))
        preset = "paper"
    task = task_of(dataset.provenance)
    # With the latent's mean: the samples of two libraries are not the same numbers.
    config = with_search(build_settings(moose.Config, moose.PRESETS[preset]), latent="mean")
    models_key, support_key, actor_key, search_key = jax.random.split(jax.random.key(0), 4)
    ensemble = init_stacked(dataset, task, config.dynamics, models_key)
    support = init_support(dataset, task, config.support, support_key)
    return Problem(
        dataset,
        task,
        config,
        init_actor(task, ensemble.scales.frame, config.search.hidden, actor_key),
        ensemble,
        support,
        moose.Knowledge(ready_stacked(ensemble.members), support.autoencoder, search_key),
        moose.Given(
            make_table(dataset),
            ensemble.scales,
            support.scales,
            moose.start_transitions(dataset, task, config.search.starts),
        ),
    )


# Agreement with the rival


def check_agreement(problem: Problem) -> dict[str, float]:
    """Relative differences between PyTorch's loss and gradient and ours; exits if too large."""
    import torch

    differences = {}
    for name, dtype, horizon in (
        ("float64", np.float64, SHORT_HORIZON),
        ("float32", np.float32, problem.task.horizon),
    ):
        with jax.enable_x64(dtype == np.float64):
            loss, gradient, starts = our_gradient(problem, dtype, horizon)
        search = make_rival(problem, horizon, torch.from_numpy(starts).dtype)
        their_loss, their_gradient = rival().policy_gradient(search, torch.from_numpy(starts))
        scale = max(float(np.abs(leaf).max()) for leaf in gradient)
        differences[f"{name} loss"] = abs(loss - their_loss) / abs(loss)
        differences[f"{name} gradient"] = max(
            float(np.abs(ours - theirs).max()) / scale
            for ours, theirs in zip(gradient, their_gradient, strict=True)
        )
    # Rounding grows along a hundred steps: the gradient in float32 is reported, not judged.
    judged = ("float64 loss", "float64 gradient", "float32 loss")
    wrong = [name for name in judged if not differences[name] <= TOLERANCE]
    if wrong:
        raise SystemExit(
            f"The PyTorch version does not agree with ours ({', '.join(wrong)}): {differences}"
        )
    return differences


def our_gradient(
    problem: Problem, dtype: type[np.floating[Any]], horizon: int
) -> tuple[float, list[np.ndarray], np.ndarray]:
    """Loss, its gradient (weight, bias, weight, …) and the start states used."""

    def cast(tree: Any) -> Any:
        return jax.tree.map(
            lambda x: jnp.asarray(x, dtype) if jnp.issubdtype(x.dtype, jnp.floating) else x, tree
        )

    config = with_search(problem.config, horizon=horizon)
    key = jax.random.key(1)
    actor, knowledge, given = cast((problem.actor, problem.knowledge, problem.given))
    starts = moose.draw_starts(given, problem.task, config.search.start_states, key)

    def loss(network: Any) -> jax.Array:
        changed = actor._replace(network=network)
        args = (knowledge, given, problem.task, config, starts, key)
        return moose.policy_loss(changed, *args)[0]

    value, gradient = jax.jit(jax.value_and_grad(loss))(actor.network)
    return float(value), [np.asarray(leaf) for leaf in jax.tree.leaves(gradient)], np.array(starts)


def with_search(config: moose.Config, **changes: object) -> moose.Config:
    """The settings with changes to the search."""
    return config.model_copy(update={"search": config.search.model_copy(update=changes)})


def rival() -> Any:
    """The PyTorch version; imported late, because the memory of ours is measured without it."""
    import pytorch_rival

    return pytorch_rival


def make_rival(problem: Problem, horizon: int, dtype: Any) -> Any:
    """The PyTorch version of the same problem."""
    module, search = rival(), problem.config.search
    scales, support_scales = problem.ensemble.scales, problem.support.scales
    autoencoder = problem.support.autoencoder

    def scale(ours: Any) -> Any:
        return module.Scale(ours.mean, ours.deviation, ours.minimum, ours.maximum)

    # It carries one standardised state for policy, models and autoencoder.
    assert np.array_equal(scales.frame.mean, support_scales.frame.mean)
    assert np.array_equal(scales.frame.deviation, support_scales.frame.deviation)
    assert (search.return_reduction, search.penalty_reduction) == ("sum", "mean")
    assert search.latent == "mean"
    return module.Search(
        module.Given(
            policy=arrays(problem.actor.network),
            members=arrays(problem.knowledge.members.dynamics),
            rewards=None
            if problem.knowledge.members.reward is None
            else arrays(problem.knowledge.members.reward),
            encoder=arrays([autoencoder.encoder, autoencoder.mean_head]),
            decoder=arrays(autoencoder.decoder),
            frame=scale(scales.frame),
            action=scale(scales.action),
            support_action=scale(support_scales.action),
            target=scale(scales.target),
            predicted=scale(scales.predicted),
            reward=scale(scales.reward),
        ),
        module.Objective(horizon, problem.task.discount, search.return_weight, search.pessimism),
        dtype,
    )


def arrays(layers: Any) -> list[tuple[np.ndarray, np.ndarray]]:
    """(weight, bias) of each layer; a weight-normalised layer's direction instead of its weight."""
    return [(np.array(layer[0]), np.array(layer.bias)) for layer in layers]


# Taking turns


class TakingTurns:
    """A journal that keeps nothing; after every chunk of ours it lets the others do as much.

    Our own time runs from the end of the others' turn to the next record, so it is the training
    loop's as it is, whatever it does between two chunks included.

    Args:
        ours: Where our times go.
        others: Contestants and where their times go.
    """

    def __init__(self, ours: Times, others: Sequence[tuple[Work, Times]]) -> None:
        self._ours, self._others = ours, others
        self.losses: list[float] = []
        self._start = time.perf_counter()

    restore = staticmethod(FORGETFUL.restore)
    keep = staticmethod(FORGETFUL.keep)
    once = staticmethod(FORGETFUL.once)

    def record(self, stage: str, step: int, metrics: Mapping[str, np.ndarray]) -> None:
        """Called by the training loop when a chunk is done."""
        note(self._ours, time.perf_counter() - self._start)
        self.losses.append(float(np.mean(metrics["loss"])))
        take_turns(self._others)
        self._start = time.perf_counter()


def take_turns(contestants: Sequence[tuple[Work, Times]]) -> None:
    """One turn of each."""
    for work, times in contestants:
        start = time.perf_counter()
        work()
        note(times, time.perf_counter() - start)


def note(times: Times, seconds: float) -> None:
    """Keep the seconds of a call; the first one apart."""
    if times.first != times.first:
        times.first = seconds
    else:
        times.calls.append(seconds)


# One update


def time_update(
    problem: Problem, options: argparse.Namespace, peak: Peak
) -> tuple[dict[str, Times], list[str]]:
    """Times of an update: ours, PyTorch eager, PyTorch compiled; and the peak, in between."""
    import torch

    times = {"ours": Times(options.chunk), "eager": Times(options.chunk)}
    starts = torch.from_numpy(our_starts(problem))
    works = [make_turn(problem, starts, options.chunk)]
    notes = [f"PyTorch uses {torch.get_num_threads()} threads"]
    if not options.no_compile:
        try:
            search = make_rival(problem, problem.task.horizon, torch.float32)
            search.advance = torch.compile(search.step, fullgraph=True)
            start = time.perf_counter()
            rival().policy_gradient(search, starts)
            notes.append(f"torch.compile took {time.perf_counter() - start:.0f} s")
            works.append(make_turn(problem, starts, options.chunk, search))
            times["compiled"] = Times(options.chunk)
        except Exception as error:  # whatever the compiler does not like
            notes.append(f"torch.compile does not work here: {error}")
    others = list(zip(works, list(times.values())[1:], strict=True))
    others.append((peak.measure, Times(1)))
    search_ours(problem, options, TakingTurns(times["ours"], others))
    return times, notes


def search_ours(problem: Problem, options: argparse.Namespace, journal: Any) -> None:
    """Search a policy with the package, ``chunk`` updates a turn."""
    turns = options.rounds + 1
    config = with_search(problem.config, updates=turns * options.chunk, checks=turns)
    key = jax.random.key(2)
    moose.search_policy(
        *(problem.dataset, problem.task, config, problem.ensemble, problem.support, key),
        journal=journal,
    )


def make_turn(problem: Problem, starts: Any, count: int, search: Any = None) -> Work:
    """``count`` updates by the PyTorch version."""
    if search is None:
        search = make_rival(problem, problem.task.horizon, starts.dtype)
    settings = problem.config.search
    update = rival().make_update(search, starts, settings.optimiser, settings.learning_rate)

    def turn() -> None:
        for _ in range(count):
            update()

    return turn


def our_starts(problem: Problem) -> np.ndarray:
    """The raw start windows of an update."""
    count = problem.config.search.start_states
    return np.array(moose.draw_starts(problem.given, problem.task, count, jax.random.key(1)))


def summarise_update(
    times: Mapping[str, Times], problem: Problem, peak: Peak, memory: float
) -> dict[str, Any]:
    """What is printed about an update."""
    gemms = needed_gemms(problem)
    operations = sum(gemm.operations for gemm in gemms)
    bound = operations / peak.rate
    ours = times["ours"]
    ratios = {name: other.median / ours.median for name, other in times.items() if name != "ours"}
    summary: dict[str, Any] = {
        "times": {name: seconds_of(each) for name, each in times.items()},
        "ratios": ratios,
        "operations": operations,
        "gemms": [gemm._asdict() for gemm in gemms],
        "peak": {f"{library} {shape}": rate for (library, shape), rate in peak.rates.items()},
        "peak_rate": peak.rate,
        "bound": bound,
        "share_of_bound": bound / ours.median,
        "share_of_bound_at_best": bound / ours.least,
        "memory_gigabytes": memory,
    }
    summary["goals"] = {
        f"at least {GOAL_EAGER} times as fast as eager PyTorch": ratios["eager"] >= GOAL_EAGER,
        f"at least {GOAL_BOUND:.0%} of the bound": summary["share_of_bound"] >= GOAL_BOUND,
        f"at most {GOAL_MEMORY:.0f} GB of memory": memory <= GOAL_MEMORY,
    }
    return summary | {"is_met": all(summary["goals"].values())}


def seconds_of(times: Times) -> dict[str, Any]:
    """For the report."""
    return asdict(times) | {"median": times.median, "least": times.least}


# The bound


def needed_gemms(problem: Problem) -> list[Gemm]:
    """Every matrix product an update cannot do without.

    Weights of models and autoencoder are fixed: only the gradient of their inputs is needed. The
    start states do not depend on the policy, so the first step needs no gradient of the state: none
    for the policy's input and only the action's columns for models and autoencoder.
    """
    task, config = problem.task, problem.config
    members, starts = config.dynamics.members, config.search.start_states
    rows, horizon = members * starts, config.search.horizon or task.horizon
    num_action, state = len(task.action_names), task.history * len(task.observation_names)
    policy = (state, *config.search.hidden, num_action)
    dynamics = (state + num_action, *config.dynamics.hidden, len(task.predicted))
    num_frame = len(task.observation_names)
    reward = (state + num_action + num_frame, *config.dynamics.hidden, 1)
    moved = num_action + num_frame  # what the first step's action changes of the reward's inputs
    pair, width = num_inputs(task, config.support), config.support.width
    support = (pair, width, num_latents(task, config.support), width, width, pair)
    return [
        *_gemms("policy", 1, rows, policy, horizon, first_columns=0),
        *(
            Gemm("policy", "gradient of weights", 1, inputs, rows, outputs, horizon)
            for inputs, outputs in itertools.pairwise(policy)
        ),
        *_gemms("models", members, starts, dynamics, horizon, first_columns=num_action),
        *(
            _gemms("models", members, starts, reward, horizon, first_columns=moved)
            if task.reward is None
            else []
        ),
        *_gemms("support", 1, rows, support, horizon, first_columns=num_action),
    ]


def _gemms(
    part: str, batch: int, rows: int, sizes: Sequence[int], horizon: int, *, first_columns: int
) -> list[Gemm]:
    """Forward through a network and back to its inputs, at every time step."""
    layers = list(itertools.pairwise(sizes))
    forward = [Gemm(part, "forward", batch, rows, i, o, horizon) for i, o in layers]
    (inputs, outputs), *later = layers
    back = "gradient of inputs"
    return [
        *forward,
        *(Gemm(part, back, batch, rows, o, i, horizon) for i, o in later),
        Gemm(part, back, batch, rows, outputs, inputs, horizon - 1),
        *([Gemm(part, back, batch, rows, outputs, first_columns, 1)] if first_columns else []),
    ]


class Peak:
    """The highest rate of matrix products seen so far, in operations per second.

    The libraries are JAX with its default (YNNPACK where the CPU has it) and with Eigen, NumPy, and
    PyTorch if it is installed.
    """

    shapes = ((400, 750, 750), (512, 512, 512), (1024, 1024, 1024), (2048, 2048, 2048))
    least_seconds = 0.1

    def __init__(self) -> None:
        self.rates: dict[tuple[str, tuple[int, int, int]], float] = {}
        self._works = {
            (library, shape): work
            for shape in self.shapes
            for library, work in _products(*shape).items()
        }

    @property
    def rate(self) -> float:
        """Of the best library and shape."""
        return max(self.rates.values())

    def measure(self) -> None:
        """Try every library and shape once more."""
        for (library, shape), work in self._works.items():
            work()
            seconds, end = [], time.perf_counter() + self.least_seconds
            while not seconds or time.perf_counter() < end:
                start = time.perf_counter()
                work()
                seconds.append(time.perf_counter() - start)
            rate = 2 * shape[0] * shape[1] * shape[2] / min(seconds)
            self.rates[library, shape] = max(rate, self.rates.get((library, shape), 0.0))


def _products(m: int, k: int, n: int) -> dict[str, Work]:
    """A single product of these shapes by each library."""
    generator = np.random.default_rng(0)
    left, right = (generator.normal(size=s).astype(np.float32) for s in ((m, k), (k, n)))
    works: dict[str, Work] = {"NumPy": lambda: left @ right}
    if importlib.util.find_spec("torch") is not None:
        import torch

        torch_left, torch_right = torch.from_numpy(left), torch.from_numpy(right)
        works["PyTorch"] = lambda: torch_left @ torch_right
    jax_left, jax_right = jnp.asarray(left), jnp.asarray(right)
    for name, compiler_options in (("JAX", {}), ("JAX with Eigen", EIGEN)):
        try:
            product = jax.jit(jnp.matmul, compiler_options=compiler_options)
            product(jax_left, jax_right).block_until_ready()
        except jax.errors.JaxRuntimeError:  # not an option of this version
            continue
        works[name] = lambda product=product: product(jax_left, jax_right).block_until_ready()
    return works


EIGEN = {"xla_cpu_experimental_ynn_fusion_type": ""}


# Memory


def measure_memory(options: argparse.Namespace) -> float:
    """Peak memory of a process that does nothing but our updates, in gigabytes."""
    command = [sys.executable, __file__, "--memory-only", "--rounds", "1"]
    command += ["--chunk", str(options.chunk), "--episodes", str(options.episodes)]
    command += ["--data", options.data]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    return float(done.stdout)


def run_ours_only(options: argparse.Namespace) -> None:
    """Two chunks of updates; prints the peak memory in gigabytes."""
    search_ours(make_problem(options), options, FORGETFUL)
    # Not getrusage: its maximum is inherited from the process that started this one.
    status = Path("/proc/self/status").read_text()
    (line,) = (line for line in status.splitlines() if line.startswith("VmHWM"))
    print(int(line.split()[1]) * 1024 / 1e9)


# Fits


def time_fits(problem: Problem, options: argparse.Namespace) -> dict[str, Any]:
    """Transitions per second in fits of the ensemble and of the autoencoder, ours and PyTorch's."""
    fits = {}
    for name, fit, make, compare in (
        ("models", fit_models_ours, make_ensemble_rival, compare_predictions),
        ("support", fit_support_ours, make_autoencoder_rival, compare_losses),
    ):
        theirs = make(problem)
        difference = compare(problem, theirs)
        if not difference <= TOLERANCE:
            raise SystemExit(f"The PyTorch version of {name} does not agree: {difference}")
        losses: list[float] = []
        batch = problem.config.dynamics.batch_size
        per_epoch = len(problem.given.table.transitions) // batch * batch
        times = {"ours": Times(per_epoch), "eager": Times(per_epoch)}
        turns = TakingTurns(
            times["ours"], [(lambda t=theirs, to=losses: to.append(t.run_epoch()), times["eager"])]
        )
        fit(problem, options.rounds + 1, turns)
        fits[name] = {
            "transitions_per_second": {k: 1 / v.median for k, v in times.items()},
            "at_best": {k: 1 / v.least for k, v in times.items()},
            "ratio": times["eager"].median / times["ours"].median,
            "difference": difference,
            "first_losses": [turns.losses[0], losses[0]],
            "times": {k: asdict(v) for k, v in times.items()},
        }
    return fits


def fit_models_ours(problem: Problem, epochs: int, journal: Any) -> None:
    """The package's fit of the ensemble."""
    settings = problem.config.dynamics.model_copy(update={"epochs": epochs})
    models_key = jax.random.split(jax.random.key(0), 4)[0]
    fit_stacked(problem.dataset, problem.task, settings, models_key, journal=journal)


def fit_support_ours(problem: Problem, epochs: int, journal: Any) -> None:
    """The package's fit of the autoencoder."""
    settings = problem.config.support.model_copy(update={"epochs": epochs})
    support_key = jax.random.split(jax.random.key(0), 4)[1]
    fit_support(problem.dataset, problem.task, settings, support_key, journal=journal)


def make_ensemble_rival(problem: Problem) -> Any:
    """PyTorch's fit from the same weights; its inputs are made beforehand, once."""
    table, scales, task = problem.given.table, problem.ensemble.scales, problem.task
    windows = windows_of(table, table.transitions, task.history)
    inputs = jax.vmap(model_inputs, (None, 0, 0))(scales, windows, table.actions[table.transitions])
    frames, columns = successors_of(table, table.transitions), jnp.asarray(task.predicted)
    before = windows[:, 0, columns] if task.target == "delta" else 0.0
    targets = jax.vmap(standardise, (0, None))(frames[:, columns] - before, scales.target)
    members, settings = problem.ensemble.members, problem.config.dynamics

    def fit(networks: Any, inputs: jax.Array, targets: jax.Array) -> Any:
        return rival().EnsembleFit(
            arrays(networks),
            np.array(inputs),
            np.array(targets),
            settings.batch_size,
            settings.learning_rate,
        )

    fits = [fit(members.dynamics, inputs, targets)]
    if members.reward is not None:
        actions = table.actions[table.transitions]
        inputs = jax.vmap(reward_inputs, (None, 0, 0, 0))(scales, windows, actions, frames)
        rewards = table.rewards[table.transitions][:, None]
        fits.append(fit(members.reward, inputs, standardise(rewards, scales.reward)))
    return rival().ModelsFit(fits)


def make_autoencoder_rival(problem: Problem) -> Any:
    """PyTorch's fit from the same weights; its pairs are made beforehand, once."""
    table, task, settings = problem.given.table, problem.task, problem.config.support
    windows = windows_of(table, table.transitions, task.history)
    actions = table.actions[table.transitions]
    pairs = jax.vmap(support_inputs, (None, 0, 0))(problem.support.scales, windows, actions)
    autoencoder = problem.support.autoencoder
    return rival().AutoencoderFit(
        arrays([autoencoder.encoder]),
        arrays([autoencoder.mean_head, autoencoder.log_deviation_head]),
        arrays(autoencoder.decoder),
        np.array(pairs),
        kl_weight_of(task, settings),
        settings.batch_size,
        settings.learning_rate,
    )


def compare_predictions(problem: Problem, theirs: Any) -> float:
    """The largest difference of predictions for the first batch, relative to the largest one."""
    differences = []
    for members, fit in zip(ready_stacked(problem.ensemble.members), theirs.fits, strict=False):
        inputs = fit.inputs[: fit.batch_size]
        ours = np.asarray(jax.vmap(apply_network, (0, None))(members, jnp.asarray(inputs.numpy())))
        found = fit.predict(inputs.expand(len(ours), *inputs.shape)).detach().numpy()
        differences.append(float(np.abs(ours - found).max() / np.abs(ours).max()))
    return max(differences)


def compare_losses(problem: Problem, theirs: Any) -> float:
    """The relative difference of the loss of the first batch, with the same noise."""
    pairs, key = theirs.pairs[: theirs.batch_size], jax.random.key(0)
    weight = kl_weight_of(problem.task, problem.config.support)
    ours = autoencoder_loss(
        problem.support.autoencoder, jnp.asarray(pairs.numpy()), weight, key
    ).item()
    shape = (len(pairs), num_latents(problem.task, problem.config.support))
    noise = pairs.new_tensor(np.asarray(jax.random.normal(key, shape)))
    return abs(ours - theirs.loss(pairs, noise).item()) / abs(ours)


# Profile


def profile(problem: Problem, options: argparse.Namespace, peak: Peak) -> dict[str, Any]:
    """Seconds of parts of an update as programs of their own, beside their products' bounds."""
    programs = make_programs(problem)
    times = {name: Times(1) for name in programs}
    gemms = needed_gemms(problem)
    products = {gemm: make_gemm(gemm) for gemm in dict.fromkeys(_alone(gemm) for gemm in gemms)}
    product_times = {gemm: Times(gemm.count) for gemm in products}
    for _ in range(options.rounds + 1):
        take_turns([(programs[name], times[name]) for name in programs])
        take_turns([(products[gemm], product_times[gemm]) for gemm in products])
        peak.measure()

    def bound_of(name: str) -> float:
        parts = {"rollout": ("policy", "models"), "support": ("support",)}
        wanted = parts.get(name.split(",", maxsplit=1)[0], ("policy", "models", "support"))
        is_forward = name.endswith("forward")
        return sum(
            gemm.operations / peak.rate
            for gemm in gemms
            if gemm.part in wanted and (gemm.name == "forward" or not is_forward)
        )

    return {
        "programs": {
            name: seconds_of(each) | {"bound": bound_of(name)} for name, each in times.items()
        },
        "products": [
            gemm._asdict()
            | {
                "seconds": gemm.count * product_times[_alone(gemm)].least,
                "bound": gemm.operations / peak.rate,
            }
            for gemm in gemms
        ],
    }


def make_programs(problem: Problem) -> dict[str, Work]:
    """The parts of an update, each compiled for itself; its inputs are arguments, not constants."""
    task, config, key = problem.task, problem.config, jax.random.key(1)
    starts = jnp.asarray(our_starts(problem))
    network = problem.actor.network
    model = StackedModel(task, problem.given.scales)

    def roll(network: Any, knowledge: moose.Knowledge, starts: jax.Array) -> Imagined:
        actor = problem.actor._replace(network=network)
        policy = lambda window: choose_action(actor, task, window)  # noqa: E731
        return imagine(policy, model, knowledge.members, starts, task.horizon)

    def roll_sum(network: Any, knowledge: moose.Knowledge, starts: jax.Array) -> jax.Array:
        # The frames take part, as they do through the penalty.
        imagined = roll(network, knowledge, starts)
        return jnp.sum(imagined.rewards) + jnp.sum(imagined.frames) + jnp.sum(imagined.actions)

    def penalty(imagined: Imagined, knowledge: moose.Knowledge) -> jax.Array:
        return expected_penalty(
            support_penalties(
                imagined,
                knowledge.autoencoder,
                problem.given.support_scales,
                frames=frames_seen(task, config.support),
                noise=None,  # as in the settings of all contestants
            )
        )

    def loss(network: Any, knowledge: moose.Knowledge, starts: jax.Array) -> jax.Array:
        actor = problem.actor._replace(network=network)
        args = (knowledge, problem.given, task, config, starts, key)
        return moose.policy_loss(actor, *args)[0]

    rollout_args = (network, problem.knowledge, starts)
    imagined = jax.block_until_ready(jax.jit(roll)(*rollout_args))
    parts = {
        "rollout, forward": (roll, rollout_args),
        "rollout, both ways": (jax.value_and_grad(roll_sum), rollout_args),
        "support, forward": (penalty, (imagined, problem.knowledge)),
        "support, both ways": (jax.value_and_grad(penalty), (imagined, problem.knowledge)),
        "all, forward": (loss, rollout_args),
        "all, both ways": (jax.value_and_grad(loss), rollout_args),
    }
    return {name: _program(function, args) for name, (function, args) in parts.items()}


def _program(function: Callable[..., Any], args: tuple[Any, ...]) -> Work:
    compiled = jax.jit(function)
    return lambda: jax.block_until_ready(compiled(*args))


def _alone(gemm: Gemm) -> Gemm:
    """The product as it is timed: without its part, and as often as takes some 50 milliseconds."""
    operations = 2 * gemm.batch * gemm.m * gemm.k * gemm.n
    return gemm._replace(part="", count=max(2, min(100, round(5e9 / operations))))


def make_gemm(gemm: Gemm) -> Work:
    """``count`` products of this shape and orientation, one after the other, by JAX."""
    contract = {"forward": (1, 0), "gradient of inputs": (1, 1), "gradient of weights": (0, 0)}
    left_axis, right_axis = contract[gemm.name]
    left_shape = (gemm.m, gemm.k) if left_axis == 1 else (gemm.k, gemm.m)
    right_shape = (gemm.k, gemm.n) if right_axis == 0 else (gemm.n, gemm.k)
    generator = np.random.default_rng(0)
    lefts, right = (
        jnp.asarray(generator.normal(size=size), jnp.float32)
        for size in ((gemm.count, gemm.batch, *left_shape), (gemm.batch, *right_shape))
    )
    if gemm.batch == 1:  # as the update has it: without a batch axis
        lefts, right = lefts[:, 0], right[0]
    offset = lefts.ndim - 3
    axes = (((left_axis + offset,), (right_axis + offset,)), ((0,), (0,)) if offset else ((), ()))

    @jax.jit
    def multiply(lefts: jax.Array, right: jax.Array) -> jax.Array:
        def step(_: jax.Array, left: jax.Array) -> tuple[jax.Array, None]:
            return jax.lax.dot_general(left, right, axes), None

        first = jnp.zeros((gemm.batch, gemm.m, gemm.n)[1 - offset :])
        return jax.lax.scan(step, first, lefts)[0]

    return lambda: multiply(lefts, right).block_until_ready()


# Printing


def describe_machine() -> dict[str, object]:
    """Where and with what the numbers were made."""
    import torch

    lines = Path("/proc/cpuinfo").read_text().splitlines()
    models = {line.split(":")[1].strip() for line in lines if line.startswith("model name")}
    return {
        "cpu": ", ".join(sorted(models)),
        "cores": os.cpu_count(),
        "load": os.getloadavg(),
        "python": platform.python_version(),
        "jax": jax.__version__,
        "torch": torch.__version__,
        "numpy": np.__version__,
    }


def print_agreement(agreement: Mapping[str, float]) -> None:
    """One line."""
    print("PyTorch agrees with ours: ", end="")
    print(", ".join(f"{name} {value:.1e}" for name, value in agreement.items()))


def print_update(update: Mapping[str, Any]) -> None:
    """The table of the update."""
    print(f"\n{'one policy update':<24}{'median':>10}{'least':>10}{'against ours':>14}")
    for name, times in update["times"].items():
        ratio = update["ratios"].get(name, 1.0)
        print(f"{name:<24}{times['median']:>8.3f} s{times['least']:>8.3f} s{ratio:>13.2f}x")
    bound = update["bound"]
    print(f"{'products at peak':<24}{bound:>8.3f} s{'':>10}{update['share_of_bound']:>13.0%}")
    print(
        f"{update['operations'] / 1e9:.1f} G operations; peak {update['peak_rate'] / 1e9:.0f} G/s, "
        f"by {max(update['peak'], key=update['peak'].get)}; "
        f"{update['share_of_bound_at_best']:.0%} of the bound in the fastest round"
    )
    print(f"peak memory of our updates {update['memory_gigabytes']:.2f} GB")
    for text in update["notes"]:
        print(text)
    for goal, is_met in update["goals"].items():
        print(f"goal: {goal}: {'met' if is_met else 'MISSED'}")


def print_fits(fits: Mapping[str, Any]) -> None:
    """The table of the fits."""
    print(f"\n{'fit, transitions/s':<24}{'ours':>10}{'eager':>10}{'ratio':>14}")
    for name, fit in fits.items():
        ours, eager = fit["transitions_per_second"].values()
        print(f"{name:<24}{ours:>10,.0f}{eager:>10,.0f}{fit['ratio']:>13.2f}x")


def print_profile(measured: Mapping[str, Any], peak: Peak) -> None:
    """Where an update's time goes."""
    print(f"\n{'part of an update':<24}{'median':>10}{'least':>10}{'products at peak':>18}")
    for name, times in measured["programs"].items():
        share = times["bound"] / times["median"]
        print(
            f"{name:<24}{times['median']:>8.3f} s{times['least']:>8.3f} s"
            f"{times['bound']:>10.3f} s{share:>5.0%}"
        )
    print(f"\n{'product alone':<30}{'shape':>20}{'count':>7}{'seconds':>10}{'of peak':>9}")
    for row in measured["products"]:
        shape = "x".join(str(row[axis]) for axis in ("m", "k", "n"))
        shape = shape if row["batch"] == 1 else f"{row['batch']} of {shape}"
        print(
            f"{row['part'] + ', ' + row['name']:<30}{shape:>20}{row['count']:>7}"
            f"{row['seconds']:>9.3f}s{row['bound'] / row['seconds']:>9.0%}"
        )
    alone = sum(row["seconds"] for row in measured["products"])
    both = measured["programs"]["all, both ways"]
    print(
        f"an update: {both['bound']:.3f} s of products at {peak.rate / 1e9:.0f} G/s, "
        f"{alone - both['bound']:+.3f} s because their shapes do not reach that, "
        f"{both['median'] - alone:+.3f} s for everything else"
    )


if __name__ == "__main__":
    sys.exit(main())
