"""How long a controller takes for one action, on one core: NumPy, ONNX Runtime, C and PyTorch.

    python benchmarks/controller_latency.py [--calls 3000] [--json]

The policy has the sizes of the paper's (180 inputs, 400 and 300 hidden units, 3 actions), with and
without its support model (750 wide). PyTorch, if it is installed (extra ``bench``), runs a network
of the same sizes in the way that offline reinforcement learning libraries do: an array in, scaled,
one forward pass without gradients, an array out. All take turns in the same run. Before anything is
timed, all forms have to agree with float64 on a thousand histories.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import subprocess
import tempfile
import time
from pathlib import Path

for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NPROC"):
    os.environ[name] = "1"
if hasattr(os, "sched_setaffinity"):
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})

import numpy as np

from paper_policies import save_policies


def onnx_call(file: Path):
    """A session on one thread."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    session = onnxruntime.InferenceSession(
        file.read_bytes(), options, providers=["CPUExecutionProvider"]
    )
    return lambda window: session.run(None, {"history": window[None]})[0][0]


def c_call(file: Path, has_novelty: bool):
    """The compiled file, called through ctypes, whose overhead counts."""
    library_file = file.with_suffix(".so")
    flags = ("-std=c99", "-O3", "-march=native", "-shared", "-fPIC", "-o", str(library_file))
    subprocess.run(["cc", *flags, str(file), "-lm"], check=True)
    policy = ctypes.CDLL(str(library_file)).moose_policy
    policy.argtypes, policy.restype = [ctypes.c_void_p] * 3, None
    history, action, novelty = (np.empty(n, np.float32) for n in ((30, 6), 3, 1))
    places = history.ctypes.data, action.ctypes.data, novelty.ctypes.data if has_novelty else None

    def call(window):
        history[...] = window
        policy(*places)
        return action

    return call


def numpy_call(folder: Path, has_novelty: bool):
    """The controller as people load it."""
    from moose.policies.plain import load_policy

    controller = load_policy(folder)

    def both(window):
        action = controller(window)
        controller.novelty(window, action)
        return action

    return both if has_novelty else controller


def torch_call(folder: Path):
    """A PyTorch network with the same weights, or None if it is not installed."""
    try:
        import torch
    except ImportError:
        return None
    from moose.policies.plain import load_policy

    torch.set_num_threads(1)
    parts = load_policy(folder).parts
    layers: list[torch.nn.Module] = []
    for i, (weight, bias) in enumerate(parts.networks["network"]):
        linear = torch.nn.Linear(*weight.shape)
        with torch.no_grad():
            linear.weight.copy_(torch.from_numpy(weight.T.copy()))
            linear.bias.copy_(torch.from_numpy(bias.copy()))
        is_last = i == len(parts.networks["network"]) - 1
        layers += [linear, torch.nn.Tanh() if is_last else torch.nn.ReLU()]
    network = torch.nn.Sequential(*layers).eval()
    mean, deviation = (
        torch.from_numpy(np.tile(each, parts.facts.history))
        for each in (parts.mean, parts.deviation)
    )

    def call(window):
        with torch.no_grad():
            inputs = torch.tensor(window.reshape(1, -1), dtype=torch.float32)
            return network((inputs - mean) / deviation).cpu().numpy()[0]

    return call


def reference(folder: Path, windows):
    """Actions in float64."""
    from moose.policies.plain import load_policy

    parts = load_policy(folder).parts
    values = ((windows.astype(np.float64) - parts.mean) / parts.deviation).reshape(len(windows), -1)
    layers = parts.networks["network"]
    for i, (weight, bias) in enumerate(layers):
        values = values @ weight.astype(np.float64) + bias
        values = np.maximum(values, 0) if i < len(layers) - 1 else values
    return np.tanh(values)


def measure_calls(calls, windows, rounds):
    """Seconds of each call; the rivals take turns, so that a busy moment hits all of them."""
    times = {name: [] for name in calls}
    for _ in range(rounds):
        for name, call in calls.items():
            for window in windows:
                start = time.perf_counter_ns()
                call(window)
                times[name].append(time.perf_counter_ns() - start)
    return times


def main() -> None:
    """Check, measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--calls", type=int, default=3000)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        save_policies(folder, ("onnx", "c"))
        windows = np.random.default_rng(1).uniform(0, 100, (1000, 30, 6)).astype(np.float32)
        calls = {
            "NumPy": numpy_call(folder / "action", False),
            "ONNX Runtime": onnx_call(folder / "action.onnx"),
            "C": c_call(folder / "action.c", False),
            "PyTorch": torch_call(folder / "action"),
            "NumPy, with novelty": numpy_call(folder / "novelty", True),
            "ONNX Runtime, with novelty": onnx_call(folder / "novelty.onnx"),
            "C, with novelty": c_call(folder / "novelty.c", True),
        }
        calls = {name: call for name, call in calls.items() if call is not None}
        expected = reference(folder / "action", windows)
        result = {}
        for name, call in calls.items():
            found = np.array([call(window).copy() for window in windows])
            result[name] = {"error": float(np.abs(found - expected).max())}
            assert result[name]["error"] < 1e-5, (name, result[name])
        for name, each in measure_calls(calls, windows[:100], max(1, options.calls // 100)).items():
            result[name] |= {
                f"p{q}_us": round(float(np.percentile(each, q)) / 1000, 1) for q in (50, 99)
            }
    if options.json:
        print(json.dumps(result, indent=2))
        return
    rival = result.get("PyTorch", {}).get("p50_us")
    print(f"{'':28}{'p50 µs':>9}{'p99 µs':>9}{'error':>10}{'of PyTorch':>12}")
    for name, row in result.items():
        ratio = f"{row['p50_us'] / rival:.2f}" if rival else "–"
        print(f"{name:28}{row['p50_us']:9.1f}{row['p99_us']:9.1f}{row['error']:10.1e}{ratio:>12}")


if __name__ == "__main__":
    main()
