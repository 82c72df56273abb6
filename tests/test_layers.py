"""The house rules that a program can check: who may import whom, and what nobody may use."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import moose

SOURCE = Path(moose.__file__).parent

# From the bottom up: a module may import those before its own layer, and its own.
LAYERS = (
    ("errors", "version", "wording"),
    ("storage",),
    ("checkpoint",),
    ("types",),
    ("config",),
    ("progress",),
    ("training",),
    ("data",),
    ("tasks",),
    ("envs",),
    ("models",),
    ("algorithms",),
    ("policies",),
    ("evaluation",),
    ("experiments",),
    ("service",),
    ("cli",),
    ("__main__",),
)
RANK = {name: rank for rank, names in enumerate(LAYERS) for name in names}
SHARED_BY_ALGORITHMS = {"critics", "dial_loss", "imagination"}
MAY_SEE_ALGORITHMS = {"registry"}
FORBIDDEN_MODULES = {"pickle", "cloudpickle", "dill", "marshal", "shelve"}
FORBIDDEN_CALLS = {"eval", "exec"}


def violations(files: dict[str, str]) -> list[str]:
    """What breaks the rules, by module name (such as ``moose.data.dataset``) and source text."""
    found = []
    for module, text in sorted(files.items()):
        tree = ast.parse(text)
        if module.rpartition(".")[2] in {"util", "utils"}:
            found.append(f"{module}: a name that says nothing")
        found += [f"{module}:{line}: {why}" for line, why in _forbidden(tree)]
        for line, target in imported_modules(module, tree, files):
            found += [f"{module}:{line}: {why}" for why in _layer_breaches(module, target)]
    return found


def imported_modules(module: str, tree: ast.AST, files: dict[str, str]) -> list[tuple[int, str]]:
    """Line and full name of everything imported, wherever in the file."""
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found += [(node.lineno, alias.name) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                is_package = any(name.startswith(module + ".") for name in files)
                parents = module.split(".")
                above = parents[: len(parents) - node.level + is_package]
                base = ".".join([*above, base] if base else above)
            found += [(node.lineno, f"{base}.{alias.name}") for alias in node.names]
    return found


def _layer_breaches(module: str, target: str) -> list[str]:
    if not target.startswith("moose.") or module == "moose":
        return []
    here, there = _layer(module), _layer(target)
    if there is None:
        return []
    if here not in RANK or there not in RANK:
        return [f"'{here if here not in RANK else there}' has no place among the layers"]
    if RANK[there] > RANK[here]:
        return [f"'{here}' is below '{there}' and must not import it"]
    if here == there == "algorithms":
        own, other = module.split(".")[2:3], target.split(".")[2:3]
        is_allowed = (
            own == other or {*own} <= MAY_SEE_ALGORITHMS or {*other} <= SHARED_BY_ALGORITHMS
        )
        return [] if is_allowed else ["algorithms do not import each other"]
    return []


def _layer(module: str) -> str | None:
    """The name right below ``moose``; None for the package itself and for what it re-exports."""
    parts = module.split(".")
    if len(parts) == 1:
        return None
    is_module = (SOURCE / parts[1]).is_dir() or (SOURCE / f"{parts[1]}.py").is_file()
    return parts[1] if is_module or parts[1] in RANK else None


def _forbidden(tree: ast.AST) -> list[tuple[int, str]]:
    found = []
    for line, target in imported_modules("", tree, {}):
        package = target.partition(".")[0]
        if package in FORBIDDEN_MODULES:
            found.append((line, f"{package} runs what it reads"))
    for node in ast.walk(tree):
        name = (
            node.func.id if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) else ""
        )
        if name in FORBIDDEN_CALLS:
            found.append((node.lineno, f"{name} runs what it is given"))
        if isinstance(node, ast.keyword) and node.arg == "allow_pickle":
            is_false = isinstance(node.value, ast.Constant) and node.value.value is False
            found += [] if is_false else [(node.value.lineno, "allow_pickle runs what it reads")]
    return found


def module_name(file: Path) -> str:
    parts = ["moose", *file.relative_to(SOURCE).with_suffix("").parts]
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def test_the_source_keeps_the_rules():
    files = {module_name(file): file.read_text() for file in sorted(SOURCE.rglob("*.py"))}
    assert len(files) > 20
    assert violations(files) == []


@pytest.mark.parametrize(
    ("module", "text", "complaint"),
    [
        ("moose.errors", "from moose.storage import sha256_of", "below 'storage'"),
        ("moose.data.dataset", "import moose.envs.catalog", "below 'envs'"),
        ("moose.data.dataset", "from moose import cli", "below 'cli'"),
        ("moose.data.dataset", "from ..envs import catalog", "below 'envs'"),
        ("moose.data.dataset", "def f():\n    from moose.models import networks", "below 'models'"),
        ("moose.envs.catalog", "from moose.evaluation.protocol import evaluate", "below"),
        ("moose.algorithms.bcq", "from moose.algorithms.moose import fit", "each other"),
        ("moose.algorithms.bcq", "from moose.algorithms import moose", "each other"),
        ("moose.algorithms.bcq", "from . import moose", "each other"),
        ("moose.extras", "from moose.errors import UserError", "no place"),
        ("moose.data.utils", "", "says nothing"),
        ("moose.data.files", "import pickle", "pickle"),
        ("moose.data.files", "from pickle import loads", "pickle"),
        ("moose.data.files", "eval('1')", "eval"),
        ("moose.data.files", "exec('1')", "exec"),
        ("moose.data.files", "np.load(f, allow_pickle=True)", "allow_pickle"),
    ],
)
def test_the_checker_catches_a_violation(module, text, complaint):
    found = violations({module: text})
    assert len(found) == 1
    assert complaint in found[0]


@pytest.mark.parametrize(
    ("module", "text"),
    [
        ("moose.cli.data", "from moose.envs import catalog"),
        ("moose.envs.catalog", "from moose.envs.collect import make_player"),
        ("moose.experiments.demo", "from moose import __version__"),
        ("moose.algorithms.bcq", "from moose.algorithms.critics import td_target"),
        ("moose.algorithms.moose", "from moose.algorithms.imagination import expected_return"),
        ("moose.algorithms.registry", "from moose.algorithms import bcq, moose"),
        ("moose.algorithms.bcq", "from moose.models.networks import mlp"),
        ("moose.data.files", "np.load(f, allow_pickle=False)"),
        ("moose", "from moose.cli import app"),
    ],
)
def test_the_checker_lets_the_rest_pass(module, text):
    assert violations({module: text}) == []
