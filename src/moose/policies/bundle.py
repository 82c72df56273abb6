"""The files of a policy, as a folder or as one ``.moose`` file, read into memory as they are.

A ``.moose`` file is a zip in one exact form: what is not byte for byte as :func:`bundle` would
write it is refused.
"""

from __future__ import annotations

import io
import stat
import struct
import zipfile
import zlib
from collections.abc import Mapping
from pathlib import Path

from moose.errors import DataError, StorageError
from moose.storage import MANIFEST, TENSORS, named_os_errors

SUPPORT = "support.safetensors"
EXAMPLES = "examples.safetensors"
MEMBERS = (MANIFEST, TENSORS, SUPPORT, EXAMPLES)
"""All files that a policy may have, in their order in a bundle."""

_POLICY_OF_RUN = "policy"
_LARGEST_BYTES = 256 << 20
_FOREIGN = {
    b"\x80": "a pickle, which could run code",
    b"\x93NUMPY": "a NumPy array, which could run code",
    b"\x89HDF": "an HDF5 file",
    b"\x08": "perhaps an ONNX model",
}


def read_members(path: Path) -> dict[str, bytes]:
    """The files of a policy's folder or ``.moose`` file, whose content is not checked."""
    return _members_in_folder(path) if path.is_dir() else unbundle(path)


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
                    raise bad_member(path, name, "is there twice")
            if sum(info.file_size for info in infos) > size:
                raise _too_large(path, sum(info.file_size for info in infos))
            members = {info.filename: archive.read(info) for info in infos}
    except (zipfile.BadZipFile, NotImplementedError, EOFError, ValueError, RuntimeError) as error:
        raise _damaged(path, str(error).rstrip(".")) from error
    for name in (MANIFEST, TENSORS):
        if name not in members:
            raise bad_member(path, name, "is missing")
    if bundle(members) != data:
        raise _damaged(path, "it is not in the form that this program writes")
    return members


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
                raise bad_member(path, name, "does not belong to a policy")
        total = sum(entry.stat().st_size for entry in entries.values())
        if total > _LARGEST_BYTES:
            raise _too_large(path, total)
        return {name: entries[name].read_bytes() for name in MEMBERS if name in entries}


def _check_info(info: zipfile.ZipInfo, path: Path) -> None:
    name = info.orig_filename
    if name not in MEMBERS or info.filename != name:
        raise bad_member(path, name, "does not belong to a policy")
    if stat.S_ISLNK(info.external_attr >> 16) or info.is_dir():
        raise bad_member(path, name, "is not a plain file")
    if info.compress_type != zipfile.ZIP_STORED or info.flag_bits:
        raise bad_member(path, name, "is compressed or encrypted")
    if info.file_size > _LARGEST_BYTES:
        raise _too_large(path, info.file_size)


def _kind_of_file(data: bytes) -> str:
    for start, name in _FOREIGN.items():
        if data.startswith(start):
            return name
    return "something else" if data else "empty"


def bad_member(path: Path, name: str, problem: str) -> StorageError:
    """What to raise where one of the files is not as it should be."""
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
