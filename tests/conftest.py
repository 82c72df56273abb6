"""What all tests share: one thread, strict types, and no trace outside of a temporary folder."""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path

# Before anything imports JAX: results depend on the number of threads.
os.environ.setdefault("NPROC", "1")

# The first process makes the folder and the other ones of a parallel run inherit its name, so that
# data sets and matplotlib's font cache are made once.
_IS_FIRST_PROCESS = "PYTEST_XDIST_WORKER" not in os.environ
if _IS_FIRST_PROCESS:
    os.environ["MOOSE_TEST_FOLDER"] = tempfile.mkdtemp(prefix="moose-tests-")
_FOLDER = Path(os.environ["MOOSE_TEST_FOLDER"])
os.environ["MOOSE_CACHE"] = str(_FOLDER / "cache")
os.environ["MPLCONFIGDIR"] = str(_FOLDER / "matplotlib")
# Programs started by tests find what was compiled before; one folder for each worker, since a
# folder that several write to may be read half-written.
_WORKER = os.environ.get("PYTEST_XDIST_WORKER", "first")
os.environ["JAX_COMPILATION_CACHE_DIR"] = str(_FOLDER / f"compiled-{_WORKER}")
os.environ["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] = "0"
os.environ["JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES"] = "-1"
os.environ["COLUMNS"] = "120"
for _name in ("FORCE_COLOR", "TTY_COMPATIBLE", "TTY_INTERACTIVE"):
    os.environ.pop(_name, None)

import hypothesis  # noqa: E402
import jax  # noqa: E402
import optax  # noqa: E402
import pytest  # noqa: E402

jax.config.update("jax_numpy_dtype_promotion", "strict")

# Tests compile the same small programs again and again. One folder a process, since JAX does not
# write the files of this cache atomically.
_WORKER = os.environ.get("PYTEST_XDIST_WORKER", "main")
jax.config.update("jax_compilation_cache_dir", str(_FOLDER / f"programs-{_WORKER}"))
jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)

# Optax raises a decay to the power of an integer count; all else is ours to keep strict.
_bias_correction = optax.tree.bias_correction


def _lenient_bias_correction(*arguments):
    with jax.numpy_dtype_promotion("standard"):
        return _bias_correction(*arguments)


optax.tree.bias_correction = _lenient_bias_correction

# No deadlines: the first example of a test may have to wait for a compiler or a busy machine.
hypothesis.settings.register_profile("moose", deadline=None, derandomize="CI" in os.environ)
hypothesis.settings.load_profile("moose")


# Tests of equations and learning spend most of their time in the compiler and need no fast code.
# All others have the bits that users have: they may leave data and fits where other tests look.
COMPILED_HASTILY = {"algorithms", "models"}


@pytest.fixture(autouse=True, scope="module")
def programs(request):
    """Compiled programs take memory; the next module loads the few it shares from the cache."""
    is_hasty = request.path.parent.name in COMPILED_HASTILY
    jax.config.update("jax_disable_most_optimizations", is_hasty)
    yield
    jax.clear_caches()


def pytest_unconfigure():
    if _IS_FIRST_PROCESS:
        shutil.rmtree(_FOLDER, ignore_errors=True)
