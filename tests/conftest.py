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
# Tests and the programs that they start compile the same things again and again.
os.environ["JAX_COMPILATION_CACHE_DIR"] = str(_FOLDER / "programs")
os.environ["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] = "0"
os.environ["JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES"] = "-1"
os.environ["COLUMNS"] = "120"
for _name in ("FORCE_COLOR", "TTY_COMPATIBLE", "TTY_INTERACTIVE"):
    os.environ.pop(_name, None)

import hypothesis  # noqa: E402
import jax  # noqa: E402
import optax  # noqa: E402
import pytest  # noqa: E402
from jax._src import compiler  # noqa: E402

from documents import ROOT  # noqa: E402
from shared_programs import share_programs  # noqa: E402

jax.config.update("jax_numpy_dtype_promotion", "strict")
share_programs()

# Optax raises a decay to the power of an integer count; all else is ours to keep strict.
_bias_correction = optax.tree.bias_correction


def _lenient_bias_correction(*arguments):
    with jax.numpy_dtype_promotion("standard"):
        return _bias_correction(*arguments)


optax.tree.bias_correction = _lenient_bias_correction

# No deadlines: the first example of a test may have to wait for a compiler or a busy machine.
hypothesis.settings.register_profile("moose", deadline=None, derandomize="CI" in os.environ)
hypothesis.settings.load_profile("moose")


# Tests of equations and learning spend most of their time in the compiler and need no fast code,
# and those of experiments look at runs that were made so. All others have the bits that users have.
COMPILED_HASTILY = {
    *("algorithms", "evaluation", "experiments", "models"),
    *("test_benchmarks.py", "test_docs.py", "test_studies.py"),
}


_compile_options = compiler.get_compile_options


def _hasty_compile_options(*, env_options_overrides=None, **options):
    """Half of the compiler's time is its newer way to fuse loops; what is hasty has the older."""
    changes = dict(env_options_overrides or {})
    if jax.config.values["jax_disable_most_optimizations"]:
        changes.setdefault("xla_cpu_use_fusion_emitters", False)
    return _compile_options(env_options_overrides=changes, **options)


compiler.get_compile_options = _hasty_compile_options


@pytest.fixture(autouse=True, scope="module")
def programs(request):
    """Compiled programs take memory; the next module loads the few it shares from the cache."""
    is_hasty = not COMPILED_HASTILY.isdisjoint({request.path.name, request.path.parent.name})
    jax.config.update("jax_disable_most_optimizations", is_hasty)
    # Data sets of hasty programs have other bits and are kept apart.
    os.environ["MOOSE_CACHE"] = str(_FOLDER / ("hasty-cache" if is_hasty else "cache"))
    yield
    jax.clear_caches()


@pytest.fixture
def workplace(tmp_path, monkeypatch):
    """A folder to work in that has the examples which the documents speak of."""
    shutil.copytree(ROOT / "examples", tmp_path / "examples")
    monkeypatch.chdir(tmp_path)
    return tmp_path


# Modules with tests of a minute. One of these at the very end would run alone.
LONGEST_FIRST = ("test_tutorial.py", "test_docs.py", "test_conductor.py", "test_runner.py")


def pytest_collection_modifyitems(items):
    """Begin with the modules that have long tests, so that all processes end together."""
    places = {name: place for place, name in enumerate(LONGEST_FIRST)}
    items.sort(key=lambda item: places.get(item.path.name, len(places)))


def pytest_unconfigure():
    if _IS_FIRST_PROCESS:
        shutil.rmtree(_FOLDER, ignore_errors=True)
