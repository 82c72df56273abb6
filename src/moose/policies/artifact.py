"""A policy on disk: a folder, or the same as one ``.moose`` file. Nothing here needs JAX.

    manifest.json          what it is: task, scaling, kind, origin, SHA-256 of the other files
    tensors.safetensors    weights and scales
    support.safetensors    the support model and the errors it makes on its own data (MOOSE)
    examples.safetensors   a few inputs and what the policy answered when it was saved

No code runs on load. Everything is read into memory once, checked there and used from there; what
is damaged, altered, too large or of an unknown kind is refused by name. A ``.moose`` file is a zip
in one exact form: what is not byte for byte as :func:`bundle` would write it is refused.
"""

from __future__ import annotations

import hashlib
import io
import itertools
import math
import stat
import struct
import zipfile
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from safetensors import SafetensorError
from safetensors.numpy import load as load_tensors

from moose.errors import DataError, StorageError
from moose.storage import MANIFEST, TENSORS, atomic_file, check_manifest, named_os_errors

FORMAT = ("moose-policy", 3)
SUPPORT = "support.safetensors"
EXAMPLES = "examples.safetensors"
MEMBERS = (MANIFEST, TENSORS, SUPPORT, EXAMPLES)
"""All files that an artifact may have, in their order in a bundle."""
SUFFIX = ".moose"
WIDENING = 3.0
"""How far beyond the data's range an input may lie before it is clamped, in widths of it."""

_POLICY_OF_RUN = "policy"
_LARGEST_BYTES = 256 << 20
_LARGEST_HEADER = 1 << 20
_SAFE = float(np.finfo(np.float32).max) / 4
_FOREIGN = {
    b"\x80": "a pickle, which could run code",
    b"\x93NUMPY": "a NumPy array, which could run code",
    b"\x89HDF": "an HDF5 file",
    b"\x08": "perhaps an ONNX model",
}
_STATISTICS = ("mean", "deviation", "minimum", "maximum")

Floats = npt.NDArray[np.float32]
Tensors = dict[str, Floats]


@dataclass(frozen=True)
class TaskFacts:
    """What a controller has to know of its task.

    Attributes:
        name: The task's name.
        observation_names: The n signals of a frame, in order.
        action_names: The d actions, in order.
        action_low: Lower bounds of the actions.
        action_high: Upper bounds of the actions.
        history: Frames that the policy sees.
        discount: Discount factor of the return it was trained for.
        observation_units: Units of the signals, or nothing.
        action_units: Units of the actions, or nothing.
        action_rates: The largest change of each action from one step to the next, if limited.
        hold_action: The action that changes nothing, if there is one.
    """

    name: str
    observation_names: tuple[str, ...]
    action_names: tuple[str, ...]
    action_low: tuple[float, ...]
    action_high: tuple[float, ...]
    history: int
    discount: float
    observation_units: tuple[str, ...] = ()
    action_units: tuple[str, ...] = ()
    action_rates: tuple[float, ...] | None = None
    hold_action: tuple[float, ...] | None = None

    @property
    def window_shape(self) -> tuple[int, int]:
        """[F, n]."""
        return self.history, len(self.observation_names)


class Artifact(NamedTuple):
    """A policy's files, read and checked."""

    manifest: dict[str, Any]
    facts: TaskFacts | None
    """None in files of the first two versions, which have only the task's name."""
    networks: dict[str, list[int]]
    """Sizes of the layers of each network."""
    signals: int
    tensors: Tensors
    support: Tensors | None
    examples: Tensors | None


class Clamp(NamedTuple):
    """What an input is turned into before anything is computed from it."""

    fill: Floats
    """[n]: instead of NaN."""
    low: Floats
    high: Floats


class Box(NamedTuple):
    """The bounds of an action in float32, never outside of the task's own."""

    low: Floats
    high: Floats
    middle: Floats
    half: Floats


def read_artifact(path: Path | str) -> Artifact:
    """Read a policy's folder or ``.moose`` file and check all that can be checked without acting.

    Args:
        path: The folder or the file.

    Returns:
        Manifest and tensors.

    Raises:
        StorageError: Something is missing, damaged, altered, too large or of a newer version.
        DataError: It is something else than a policy.
    """
    path = Path(path)
    members = _members_in_folder(path) if path.is_dir() else unbundle(path)
    manifest = check_manifest(members[MANIFEST], path / MANIFEST, *FORMAT)
    _check_members(members, manifest["files"], path)
    if manifest["schema_version"] == 1:  # which knew one kind of policy
        manifest |= {"kind": "network", "networks": {"network": manifest.get("sizes")}}
    networks, signals = _networks_in(manifest), _count_in(manifest.get("signals"))
    if networks is None or signals is None:
        raise _not_described(path)
    facts = None
    if manifest["schema_version"] >= 3:
        facts = facts_in(manifest.get("task"), path)
        if len(facts.observation_names) != signals:
            raise _not_described(path)
    elif not isinstance(manifest.get("task"), str):
        raise _not_described(path)
    tensors = _parse_tensors(members[TENSORS], path / TENSORS)
    _check_tensors(tensors, networks, signals, path / TENSORS)
    if facts is not None and manifest.get("scaling") != scaling_of(tensors, facts):
        raise StorageError(
            "The scaling in the manifest is not that of the tensors.",
            where=f"{path / MANIFEST}: scaling",
            advice="do not trust this policy; get it again from its source",
        )
    return Artifact(
        manifest,
        facts,
        networks,
        signals,
        tensors,
        _parse_tensors(members[SUPPORT], path / SUPPORT) if SUPPORT in members else None,
        _parse_tensors(members[EXAMPLES], path / EXAMPLES) if EXAMPLES in members else None,
    )


def bundle(members: Mapping[str, bytes]) -> bytes:
    """The one and only ``.moose`` file of these members: a zip without compression.

    Times, permissions and all else that a zip could say are fixed, so that the same policy gives
    the same bytes everywhere and a reader can compare them.
    """
    parts: list[bytes] = []
    directory: list[bytes] = []
    offset = 0
    for name in (name for name in MEMBERS if name in members):
        data, encoded = members[name], name.encode("ascii")
        # Version 2.0, no flags, stored, 1 January 1980, checksum, sizes, name, no extras.
        common = struct.pack(
            "<HHHHHIIIHH", *(20, 0, 0, 0, 33, zlib.crc32(data)), *(len(data),) * 2, len(encoded), 0
        )
        local = b"PK\x03\x04" + common + encoded + data
        directory.append(
            b"PK\x01\x02\x14\x03" + common + struct.pack("<HHHII", 0, 0, 0, 0o100644 << 16, offset)
        )
        directory[-1] += encoded
        parts.append(local)
        offset += len(local)
    tail = b"".join(directory)
    counts = (0, 0, len(directory), len(directory), len(tail), offset, 0)
    return b"".join([*parts, tail, b"PK\x05\x06", struct.pack("<HHHHIIH", *counts)])


def unbundle(path: Path) -> dict[str, bytes]:
    """The members of a ``.moose`` file, whose form is checked and whose content is not."""
    with named_os_errors(path):
        size = path.stat().st_size
        if size > _LARGEST_BYTES:
            raise _too_large(path, size)
        data = path.read_bytes()
    if not data.startswith(b"PK\x03\x04"):
        raise DataError(
            f"This file is not a policy: it is {_kind_of_file(data)}.",
            where=str(path),
            advice="give a .moose file or a policy's folder",
        )
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            infos = archive.infolist()
            for info in infos:
                _check_info(info, path)
            names = [info.filename for info in infos]
            for name in names:
                if names.count(name) > 1:
                    raise _bad_member(path, name, "is there twice")
            if sum(info.file_size for info in infos) > size:
                raise _too_large(path, sum(info.file_size for info in infos))
            members = {info.filename: archive.read(info) for info in infos}
    except (zipfile.BadZipFile, NotImplementedError, EOFError, ValueError, RuntimeError) as error:
        raise _damaged(path, str(error).rstrip(".")) from error
    for name in (MANIFEST, TENSORS):
        if name not in members:
            raise _bad_member(path, name, "is missing")
    if bundle(members) != data:
        raise _damaged(path, "it is not in the form that this program writes")
    return members


def write_bundle(source: Path, file: Path) -> None:
    """Write the policy in a folder or ``.moose`` file as a ``.moose`` file, after checking it."""
    read_artifact(source)
    members = _members_in_folder(source) if source.is_dir() else unbundle(source)
    with atomic_file(file) as temporary:
        temporary.write_bytes(bundle(members))


def clamp_of(tensors: Mapping[str, Any]) -> Clamp:
    """The range of the data, widened on either side, from the tensors ``scale/…``.

    A width is the range of the data, or the deviation that a constant signal is given.
    """
    minimum, maximum, deviation = (
        np.asarray(tensors[f"scale/{name}"], np.float64)
        for name in ("minimum", "maximum", "deviation")
    )
    # With inputs in raw units the deviation is 1 whatever the data.
    width = np.where(maximum > minimum, maximum - minimum, deviation)
    low, high = minimum - WIDENING * width, maximum + WIDENING * width
    fill = minimum + (maximum - minimum) / 2
    return Clamp(*(np.clip(each, -_SAFE, _SAFE).astype(np.float32) for each in (fill, low, high)))


def box_of(facts: TaskFacts) -> Box:
    """The bounds of the actions, rounded inwards."""
    low, high = np.asarray(facts.action_low), np.asarray(facts.action_high)
    first, last = low.astype(np.float32), high.astype(np.float32)
    two = np.float32(2.0)  # as in training, where all of this is float32
    return Box(
        low=np.where(first < low, np.nextafter(first, np.float32(np.inf)), first),
        high=np.where(last > high, np.nextafter(last, np.float32(-np.inf)), last),
        middle=((last + first) / two).astype(np.float32),
        half=((last - first) / two).astype(np.float32),
    )


def scaling_of(tensors: Mapping[str, Any], facts: TaskFacts) -> dict[str, dict[str, float]]:
    """The scale of each signal for people to read."""
    columns = {name: np.asarray(tensors[f"scale/{name}"]) for name in _STATISTICS}
    return {
        signal: {name: float(column[i]) for name, column in columns.items()}
        for i, signal in enumerate(facts.observation_names)
    }


def task_tree(facts: TaskFacts) -> dict[str, Any]:
    """The facts as the manifest has them."""
    return {
        "name": facts.name,
        "observations": _columns(facts.observation_names, facts.observation_units),
        "actions": [
            column | {"low": low, "high": high}
            for column, low, high in zip(
                _columns(facts.action_names, facts.action_units),
                facts.action_low,
                facts.action_high,
                strict=True,
            )
        ],
        "action_rates": None if facts.action_rates is None else list(facts.action_rates),
        "hold_action": None if facts.hold_action is None else list(facts.hold_action),
        "history": facts.history,
        "discount": facts.discount,
        "widening": WIDENING,
    }


def facts_in(tree: Any, path: Path) -> TaskFacts:
    """The facts that :func:`task_tree` wrote, or an error if it did not."""
    try:
        observations, actions = tree["observations"], tree["actions"]
        rates, hold = tree["action_rates"], tree["hold_action"]
        facts = TaskFacts(
            name=tree["name"],
            observation_names=tuple(column["name"] for column in observations),
            action_names=tuple(column["name"] for column in actions),
            action_low=_numbers(column["low"] for column in actions),
            action_high=_numbers(column["high"] for column in actions),
            history=tree["history"],
            discount=float(tree["discount"]),
            observation_units=_units_in(observations),
            action_units=_units_in(actions),
            action_rates=None if rates is None else _numbers(rates),
            hold_action=None if hold is None else _numbers(hold),
        )
        is_same = task_tree(facts) == tree
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise _not_described(path) from error
    names = [facts.name, *facts.observation_names, *facts.action_names]
    vectors = [v for v in (facts.action_rates, facts.hold_action) if v is not None]
    if not (
        is_same
        and all(isinstance(name, str) and name for name in names)
        and facts.observation_names
        and facts.action_names
        and len({*facts.observation_names}) == len(facts.observation_names)
        and len({*facts.action_names}) == len(facts.action_names)
        and _count_in(facts.history) is not None
        and all(map(_is_below, facts.action_low, facts.action_high))
        and all(len(vector) == len(facts.action_names) for vector in vectors)
        and all(rate > 0 for rate in facts.action_rates or ())
    ):
        raise _not_described(path)
    return facts


def _members_in_folder(path: Path) -> dict[str, bytes]:
    with named_os_errors(path):
        entries = {entry.name: entry for entry in path.iterdir() if entry.name[0] != "."}
        if MANIFEST not in entries:
            raise DataError(
                f"This folder is not a policy: it has no {MANIFEST}.",
                where=str(path),
                advice="give the folder that a policy was saved to",
            )
        if (path / _POLICY_OF_RUN / MANIFEST).is_file():
            raise DataError(
                "This is the folder of a run, not of a policy.",
                where=str(path),
                advice=f"give the policy in it: {path / _POLICY_OF_RUN}",
            )
        for name, entry in entries.items():
            if name not in MEMBERS or entry.is_symlink() or not entry.is_file():
                raise _bad_member(path, name, "does not belong to a policy")
        total = sum(entry.stat().st_size for entry in entries.values())
        if total > _LARGEST_BYTES:
            raise _too_large(path, total)
        return {name: entries[name].read_bytes() for name in MEMBERS if name in entries}


def _check_info(info: zipfile.ZipInfo, path: Path) -> None:
    name = info.orig_filename
    if name not in MEMBERS or info.filename != name:
        raise _bad_member(path, name, "does not belong to a policy")
    if stat.S_ISLNK(info.external_attr >> 16) or info.is_dir():
        raise _bad_member(path, name, "is not a plain file")
    if info.compress_type != zipfile.ZIP_STORED or info.flag_bits:
        raise _bad_member(path, name, "is compressed or encrypted")
    if info.file_size > _LARGEST_BYTES:
        raise _too_large(path, info.file_size)


def _check_members(members: Mapping[str, bytes], files: Mapping[str, str], path: Path) -> None:
    for name in files:
        if name not in MEMBERS:
            raise _bad_member(path, name, "is named in the manifest and does not belong there")
        if name not in members:
            raise _bad_member(path, name, "is named in the manifest and missing")
    if TENSORS not in files:
        raise _bad_member(path, TENSORS, "is missing in the manifest")
    for name, content in members.items():
        if name == MANIFEST:
            continue
        if name not in files:
            raise _bad_member(path, name, "is not named in the manifest")
        if hashlib.sha256(content).hexdigest() != files[name]:
            raise StorageError(
                "The file's checksum differs from the manifest: it is damaged or was altered.",
                where=str(path / name),
                advice="restore the file or get the policy again",
            )


def _parse_tensors(data: bytes, where: Path) -> Tensors:
    try:
        if len(data) >= 8 and struct.unpack("<Q", data[:8])[0] > _LARGEST_HEADER:
            raise SafetensorError("the header is larger than any policy's")
        found = load_tensors(data)
    except (SafetensorError, ValueError, TypeError, KeyError, MemoryError) as error:
        raise StorageError(
            f"Cannot read the tensors: {error}.",
            where=str(where),
            advice="the file is damaged; restore it or get the policy again",
        ) from error
    for name, values in found.items():
        if values.dtype != np.float32:
            raise StorageError(
                f"The tensor '{name}' is {values.dtype}, expected float32.",
                where=str(where),
                advice="the file belongs to another program or version",
            )
    return found


def _check_tensors(
    tensors: Tensors, networks: Mapping[str, Sequence[int]], signals: int, where: Path
) -> None:
    """Names and shapes as the manifest says, all numbers finite, scales that can be divided by."""
    shapes: dict[str, tuple[int, ...]] = {f"scale/{name}": (signals,) for name in _STATISTICS}
    for name, sizes in networks.items():
        for i, (n, m) in enumerate(itertools.pairwise(sizes)):
            shapes |= {f"{name}/{i}/weight": (n, m), f"{name}/{i}/bias": (m,)}
    require_shapes(tensors, shapes, where)
    if not (tensors["scale/deviation"] > 0).all():
        raise StorageError(
            "A deviation of the scaling is not above 0.",
            where=f"{where}: scale/deviation",
            advice="do not trust this policy; get it again from its source",
        )


def require_shapes(tensors: Tensors, shapes: Mapping[str, tuple[int, ...]], where: Path) -> None:
    """Raise a :class:`StorageError` unless these tensors are there, finite, and no others."""
    for name in sorted(tensors.keys() | shapes.keys()):
        if name not in tensors:
            problem = "is missing: the weights are fewer than the manifest says"
        elif name not in shapes:
            problem = "is not expected"
        elif tensors[name].shape != shapes[name]:
            problem = f"has the shape {tensors[name].shape}, the manifest says {shapes[name]}"
        elif not np.isfinite(tensors[name]).all():
            problem = "has a number that is not finite"
        else:
            continue
        raise StorageError(
            f"The tensor '{name}' {problem}.",
            where=str(where),
            advice="the file belongs to another policy or version; get the policy again",
        )


def _networks_in(manifest: Mapping[str, Any]) -> dict[str, list[int]] | None:
    found = manifest.get("networks")
    if not isinstance(found, Mapping) or not found:
        return None
    sizes = {str(name): _sizes_in(each) for name, each in found.items()}
    whole = {name: each for name, each in sizes.items() if each is not None}
    return whole if len(whole) == len(sizes) else None


def _sizes_in(found: Any) -> list[int] | None:
    sizes = [_count_in(size) for size in found] if isinstance(found, list) else []
    whole = [size for size in sizes if size is not None]
    return whole if len(whole) == len(sizes) >= 2 else None


def _count_in(value: Any) -> int | None:
    is_count = isinstance(value, int) and not isinstance(value, bool) and value >= 1
    return value if is_count else None


def _columns(names: Sequence[str], units: Sequence[str]) -> list[dict[str, Any]]:
    shown: Sequence[str | None] = units or [None] * len(names)
    return [{"name": name, "unit": unit} for name, unit in zip(names, shown, strict=True)]


def _units_in(columns: Sequence[Mapping[str, Any]]) -> tuple[str, ...]:
    units = [column["unit"] for column in columns]
    return () if all(unit is None for unit in units) else tuple(units)


def _numbers(values: Any) -> tuple[float, ...]:
    numbers = tuple(float(value) for value in values)
    if not all(map(math.isfinite, numbers)):
        raise ValueError("a number is not finite")
    return numbers


def _is_below(low: float, high: float) -> bool:
    return low < high


def _kind_of_file(data: bytes) -> str:
    for start, name in _FOREIGN.items():
        if data.startswith(start):
            return name
    return "something else" if data else "empty"


def _not_described(path: Path) -> StorageError:
    return StorageError(
        "The manifest does not describe a policy.",
        where=str(path / MANIFEST),
        advice="restore the policy or train again",
    )


def _bad_member(path: Path, name: str, problem: str) -> StorageError:
    return StorageError(
        f"The file {name!r} {problem}.",
        where=str(path),
        advice="do not trust this policy; get it again from its source",
    )


def _too_large(path: Path, size: int) -> StorageError:
    return StorageError(
        f"This is larger than any policy: {size:,} bytes.",
        where=str(path),
        advice=f"the largest that is read has {_LARGEST_BYTES:,} bytes",
    )


def _damaged(path: Path, why: str) -> StorageError:
    return StorageError(
        f"The file is damaged or was altered: {why}.",
        where=str(path),
        advice="restore the file or get the policy again",
    )
