"""One schema for Python, files and the command line.

A configuration is a frozen :class:`Settings` tree. The same tree comes from keyword arguments, from
a YAML file, from ``--set a.b=c`` and from any mixture of them; later sources win. Everything that
is wrong is reported at once, with its path and the nearest valid name. The digest of a
configuration names a run.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from numbers import Integral, Real
from pathlib import Path
from typing import Any, TypeVar, get_args

import yaml
from pydantic import BaseModel, ConfigDict, ValidationError
from pydantic_core import ErrorDetails

from moose.errors import ConfigError, StorageError, nearest

Tree = dict[str, Any]

_DEEPEST_PATH = 32


class Settings(BaseModel):
    """A frozen group of settings; unknown names and wrong types are refused."""

    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        strict=True,
        allow_inf_nan=False,
        use_attribute_docstrings=True,
        validate_default=True,
    )


SettingsT = TypeVar("SettingsT", bound=Settings)


def load_settings(
    schema: type[SettingsT],
    *,
    base: Mapping[str, Any] | None = None,
    file: Path | None = None,
    overrides: Sequence[str] = (),
) -> SettingsT:
    """Build settings from a base, then a YAML file, then ``a.b=c`` overrides; later ones win.

    Args:
        schema: The settings class to build.
        base: Values to start from, for example a preset.
        file: A YAML file.
        overrides: Texts of the form ``path.to.setting=value``; the value is read as YAML.

    Returns:
        The validated settings.

    Raises:
        ConfigError: Listing every unknown, ill-typed or impossible setting with its path.
    """
    tree = merge({}, base or {})
    if file is not None:
        tree = merge(tree, read_yaml(file))
    for text in overrides:
        tree = merge(tree, parse_override(text))
    sources = [str(file)] * (file is not None) + ["--set"] * bool(overrides)
    return build_settings(schema, tree, source=" and ".join(sources))


def build_settings(schema: type[SettingsT], tree: Mapping[str, Any], source: str = "") -> SettingsT:
    """Validate a plain tree against ``schema``; ``source`` is named in the error."""
    try:
        # Through JSON, so that lists serve as tuples and names as enumeration members.
        return schema.model_validate_json(json.dumps(tree, default=_plain))
    except ValidationError as error:
        details = _without_echoes(error.errors())
        problems = [_describe(schema, detail) for detail in details]
        count = "One setting is" if len(problems) == 1 else f"{len(problems)} settings are"
        lines = "".join(f"\n  - {problem}" for problem in problems)
        advice = "change what is named, or leave it out for its default"
        raise ConfigError(f"{count} wrong:{lines}", where=source, advice=advice) from error


def settings_tree(settings: Settings) -> Tree:
    """The settings as plain dictionaries, lists, numbers and texts."""
    tree: Tree = settings.model_dump(mode="json")
    return tree


def digest(*parts: Any) -> str:
    """Twelve hexadecimal digits that name this content: settings, texts, numbers or plain trees."""
    plain = [settings_tree(part) if isinstance(part, Settings) else part for part in parts]
    text = json.dumps(plain, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def to_yaml(settings: Settings) -> str:
    """The settings as a YAML text that :func:`load_settings` reads back to the same settings."""
    text: str = yaml.dump(
        settings_tree(settings), Dumper=_StrictDumper, sort_keys=False, allow_unicode=True
    )
    return text


def merge(base: Mapping[str, Any], patch: Mapping[str, Any]) -> Tree:
    """A new tree: ``base`` with the leaves of ``patch`` put over it."""
    merged = dict(base)
    for key, value in patch.items():
        below = merged.get(key)
        if isinstance(value, Mapping):
            merged[key] = merge(below if isinstance(below, Mapping) else {}, value)
        else:
            merged[key] = value
    return merged


def parse_override(text: str) -> Tree:
    """Turn ``a.b=c`` into ``{"a": {"b": c}}``.

    Args:
        text: The override; what follows the first ``=`` is read as YAML.

    Returns:
        The tree with that one leaf.
    """
    path, equals, value = text.partition("=")
    names = path.strip().split(".")
    if not equals or not all(names) or len(names) > _DEEPEST_PATH:
        raise ConfigError(
            f"{_short(text)} is not of the form name=value.",
            where="--set",
            advice="write for example --set policy.updates=200",
        )
    tree = _parse(
        value,
        f"The value of '{path.strip()}'",
        where=f"--set {_short(text)}",
        advice="put the value in quotes if it is a text",
    )
    for name in reversed(names):
        tree = {name: tree}
    return dict(tree)


def read_yaml(path: Path) -> Tree:
    """Read a YAML mapping; duplicate keys, tags and anything but plain data are refused."""
    try:
        text = Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise StorageError(
            f"Cannot read the configuration file: {error}.",
            where=str(path),
            advice="check the path; the file must be text in UTF-8",
        ) from error
    return parse_yaml(text, str(path))


def parse_yaml(text: str, source: str) -> Tree:
    """A text as :func:`read_yaml` reads a file; ``source`` is named in errors."""
    tree = _parse(text, "The file", where=source, advice="mend the file at the line named")
    if tree is None:
        return {}
    if not isinstance(tree, dict):
        raise ConfigError(
            "A configuration file holds names and values, not a list or a single value.",
            where=source,
            advice="write lines such as 'seed: 0'",
        )
    return tree


def _parse(text: str, what: str, *, where: str, advice: str) -> Any:
    try:
        return yaml.load(text, Loader=_StrictLoader)  # noqa: S506 (a SafeLoader)
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        # A ValueError is a number with more digits than Python cares to read.
        raise ConfigError(
            f"{what} is not valid YAML: {_yaml_problem(error)}.", where=where, advice=advice
        ) from error


class _StrictLoader(yaml.SafeLoader):
    """Reads plain data only: no tags, no anchors, no name twice, scalars as in YAML 1.2."""

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        event = self.peek_event()  # type: ignore[no-untyped-call]
        # An alias may stand for itself, or for more data than fit into memory.
        if isinstance(event, yaml.AliasEvent) or getattr(event, "tag", None) is not None:
            raise yaml.composer.ComposerError(
                None, None, "aliases (*name) and tags (!name) are not supported", event.start_mark
            )
        return super().compose_node(parent, index)

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen: set[str] = set()
        for key_node, _ in node.value:
            if not isinstance(key_node, yaml.ScalarNode):
                raise yaml.constructor.ConstructorError(
                    None, None, "a name has to be a text", key_node.start_mark
                )
            if key_node.value in seen:
                raise yaml.constructor.ConstructorError(
                    None, None, f"the name '{key_node.value}' stands twice", key_node.start_mark
                )
            seen.add(key_node.value)
        return super().construct_mapping(node, deep)


class _StrictDumper(yaml.SafeDumper):
    """Quotes exactly those texts that :class:`_StrictLoader` would take for something else."""

    def represent_text(self, text: str) -> yaml.ScalarNode:
        # Unicode's own line breaks survive as escapes only.
        style = '"' if any(mark in text for mark in "\x85\u2028\u2029") else None
        return self.represent_scalar("tag:yaml.org,2002:str", text, style=style)


_StrictDumper.add_representer(str, _StrictDumper.represent_text)

# The scalars of the YAML 1.2 core schema: 1e-4 is a number; no, 1:30 and 2026-01-01 are texts.
_SCALARS = {
    "null": (r"^(?:~|null|Null|NULL|)$", ["~", "n", "N", ""]),
    "bool": (r"^(?:true|True|TRUE|false|False|FALSE)$", list("tTfF")),
    "int": (r"^[-+]?(?:0|[1-9][0-9]*)$", list("-+0123456789")),
    "float": (
        r"^[-+]?(?:(?:\.[0-9]+|[0-9]+\.[0-9]*)(?:[eE][-+]?[0-9]+)?|[0-9]+[eE][-+]?[0-9]+)$",
        list("-+.0123456789"),
    ),
}
for _strict in (_StrictLoader, _StrictDumper):
    _strict.yaml_implicit_resolvers = {}
    for _tag, (_pattern, _first) in _SCALARS.items():
        _strict.add_implicit_resolver(f"tag:yaml.org,2002:{_tag}", re.compile(_pattern), _first)


def _without_echoes(details: list[ErrorDetails]) -> list[ErrorDetails]:
    """The errors, without lists that are called too short because of an error in an item."""

    def is_echo(detail: ErrorDetails) -> bool:
        depth = len(detail["loc"])
        return detail["type"] == "too_short" and any(
            len(other["loc"]) > depth and other["loc"][:depth] == detail["loc"] for other in details
        )

    return [detail for detail in details if not is_echo(detail)]


def _describe(schema: type[Settings], detail: ErrorDetails) -> str:
    path = ".".join(str(part) for part in detail["loc"])
    if detail["type"] == "extra_forbidden":
        valid = _names_at(schema, detail["loc"][:-1])
        return f"{path}: there is no such setting; {nearest(str(detail['loc'][-1]), valid)}"
    if detail["type"] == "missing":
        return f"{path}: this setting is required"
    if detail["type"] == "value_error":
        return f"{path or 'configuration'}: {detail['ctx']['error']}"
    message = detail["msg"][0].lower() + detail["msg"][1:]
    if detail["type"] in {"literal_error", "enum"} and isinstance(detail["input"], str):
        expected = re.findall(r"'([^']*)'", detail["msg"])
        return f"{path}: {detail['input']!r} is not known; {nearest(detail['input'], expected)}"
    if detail["type"] == "too_short":
        message = f"at least {detail['ctx']['min_length']} of them needed"
    elif detail["type"] == "string_pattern_mismatch" and (
        examples := _examples_at(schema, detail["loc"])
    ):
        message = f"it has to be like {_either(examples)}"
    elif detail["type"] in {"tuple_type", "list_type"}:
        message = "this is a list, such as [a, b]"
    return f"{path or 'configuration'}: {message}, not {_short(detail['input'])}"


def _names_at(schema: type[BaseModel], path: Sequence[int | str]) -> list[str]:
    """The names a settings tree accepts below ``path``."""
    return list(_schema_at(schema, path).model_fields)


def _examples_at(schema: type[BaseModel], path: Sequence[int | str]) -> list[str]:
    """What the setting at ``path`` could be, as its declaration shows it."""
    *above, name = path
    field = _schema_at(schema, above).model_fields.get(str(name))
    return [str(example) for example in (field.examples or [])] if field else []


def _either(choices: Sequence[str]) -> str:
    *others, last = map(repr, choices)
    return f"{', '.join(others)} or {last}" if others else last


def _schema_at(schema: type[BaseModel], path: Sequence[int | str]) -> type[BaseModel]:
    for part in path:
        field = schema.model_fields.get(str(part))
        below = [] if field is None else _models_in(field.annotation)
        if not below:
            continue  # a list index or the tag of a union: stay where we are
        schema = below[0]
    return schema


def _models_in(annotation: Any) -> list[type[BaseModel]]:
    """The settings that a field may hold: by itself, or in unions, lists and mappings."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    return [model for part in get_args(annotation) for model in _models_in(part)]


def _plain(value: Any) -> Any:
    """What JSON makes of a value it does not know: NumPy scalars as numbers, paths as texts."""
    if isinstance(value, Integral):
        return int(value)
    return float(value) if isinstance(value, Real) else str(value)


def _short(value: Any, limit: int = 60) -> str:
    text = repr(value)
    return text if len(text) <= limit else text[: limit - 1] + "…"


def _yaml_problem(error: Exception) -> str:
    mark = getattr(error, "problem_mark", None)
    text = " ".join(str(getattr(error, "problem", None) or error).split())
    return text if mark is None else f"{text} (line {mark.line + 1}, column {mark.column + 1})"
