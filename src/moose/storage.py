"""Folders and files that are either whole or absent, with checksums to prove it.

Everything the project keeps (data sets, checkpoints, policies, results) is written through
:func:`atomic_folder` or :func:`atomic_file`: into a hidden sibling first, flushed to disk, then
renamed. An interruption, a full disk or a killed process leaves the old version or nothing under
the name, never a half. A killed process may leave a hidden ``.tmp-`` sibling;
:func:`remove_stale_temporaries` sweeps those up and leaves alone what a live process is writing.

What is *not* promised: on systems that cannot swap two names in one step (anything but Linux, and
some network file systems) a process killed while it replaces a folder may leave nothing under the
name for as long as it takes until :func:`remove_stale_temporaries` puts the ``.old-`` sibling
back. Surviving a loss of power is up to the disk: files and folders are flushed, no more.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import hashlib
import json
import math
import os
import shutil
import uuid
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NoReturn

from moose.errors import DataError, StorageError

try:
    import fcntl
except ImportError:  # not on Windows; there stale temporaries are never removed
    fcntl = None  # type: ignore[assignment]

MANIFEST = "manifest.json"
TENSORS = "tensors.safetensors"
_SEAL = "manifest_sha256"
_TEMPORARY_PREFIX = ".tmp-"
_PREVIOUS_PREFIX = ".old-"


@contextlib.contextmanager
def atomic_folder(path: Path, *, replaces: str | None = None) -> Iterator[Path]:
    """Yield a temporary folder that becomes ``path`` when the block ends without an error.

    Missing parent folders are made, and stay if the block fails. Links are followed, so the
    folder that a link points to is replaced and the link stays.

    Args:
        path: The folder to create.
        replaces: What may be there already and is replaced, such as ``moose-dataset``: a folder
            whose manifest says so. Anything else but an empty folder is refused, so that a slip
            of the pen cannot delete a run or a home folder.

    Yields:
        The folder to write into.
    """
    with named_os_errors(path):
        target = _real(path)
        require_replaceable(target, replaces)
        target.parent.mkdir(parents=True, exist_ok=True)
        temporary = _sibling(target, _TEMPORARY_PREFIX)
        try:
            temporary.mkdir()
            with _claimed(temporary):
                yield temporary
                for file in sorted(temporary.rglob("*")):
                    _flush(file)
                _flush(temporary)
                # Asked again: another process may have made the folder in the meantime.
                require_replaceable(target, replaces)
                _replace_folder(temporary, target)
        except BaseException:
            shutil.rmtree(temporary, ignore_errors=True)
            raise
        _flush(target.parent)


@contextlib.contextmanager
def atomic_file(path: Path) -> Iterator[Path]:
    """Yield a temporary file name that replaces ``path`` when the block ends without an error.

    Args:
        path: The file to write or replace; links are followed.

    Yields:
        The name to write to (an empty file is there already).
    """
    with named_os_errors(path):
        target = _real(path)
        target.parent.mkdir(parents=True, exist_ok=True)
        temporary = _sibling(target, _TEMPORARY_PREFIX)
        try:
            temporary.touch(exist_ok=False)
            with _claimed(temporary):
                yield temporary
                _flush(temporary)
                os.replace(temporary, target)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise
        _flush(target.parent)


def remove_stale_temporaries(folder: Path) -> None:
    """Tidy up after killed processes: delete what is half-written, put back what was set aside.

    What a live process is writing is left alone, on this machine and, where the file system
    shares its locks, on others.

    Args:
        folder: The folder that holds the leftovers (not its subfolders).
    """
    for leftover in sorted(Path(folder).glob(_PREVIOUS_PREFIX + "*")):
        name = leftover.name.removeprefix(_PREVIOUS_PREFIX).rpartition("-")[0]
        if not name or _is_claimed(leftover):
            continue
        if os.path.lexists(leftover.with_name(name)):
            _remove(leftover)
        else:
            with contextlib.suppress(OSError):
                os.rename(leftover, leftover.with_name(name))
    for leftover in sorted(Path(folder).glob(_TEMPORARY_PREFIX + "*")):
        if not _is_claimed(leftover):
            _remove(leftover)


def write_json(path: Path, content: Any) -> None:
    """Write JSON with sorted keys and a final newline (not atomic: use inside the above)."""
    with named_os_errors(path):
        Path(path).write_text(_json_text(content), encoding="utf-8")


def read_json(path: Path) -> Any:
    """Read a JSON file, or say which file is missing or broken."""
    return _parse_json(path, _read_bytes(path))


def write_manifest(
    folder: Path, format_name: str, schema_version: int, content: Mapping[str, Any]
) -> None:
    """Write the manifest that makes ``folder`` self-describing; call it after all other files.

    The manifest gets the format's name and version, the SHA-256 of every other file and a seal:
    the SHA-256 of its own content, so that a change of any byte is noticed.

    Args:
        folder: The folder to describe, as yielded by :func:`atomic_folder`.
        format_name: What the folder is, such as ``moose-dataset``.
        schema_version: The version of that format.
        content: All else worth keeping, as plain JSON values.
    """
    text = manifest_text(format_name, schema_version, content, checksums(folder))
    with named_os_errors(folder / MANIFEST):
        (folder / MANIFEST).write_bytes(text)


def manifest_text(
    format_name: str, schema_version: int, content: Mapping[str, Any], files: Mapping[str, str]
) -> bytes:
    """A manifest as :func:`write_manifest` writes it.

    Args:
        format_name: What it describes, such as ``moose-dataset``.
        schema_version: The version of that format.
        content: All else worth keeping, as plain JSON values.
        files: The SHA-256 of every other file, by name.

    Returns:
        The text, with its seal.
    """
    manifest = dict(content) | {
        "format": format_name,
        "schema_version": schema_version,
        "files": dict(files),
    }
    return _json_text(manifest | {_SEAL: _seal(manifest)}).encode()


def read_manifest(folder: Path, format_name: str, schema_version: int) -> dict[str, Any]:
    """Read and check a manifest, and check that the files it names are there and unaltered.

    Args:
        folder: The folder that :func:`write_manifest` described.
        format_name: What the folder has to be.
        schema_version: The newest version the caller can read; older ones are passed on.

    Returns:
        The manifest. ``files`` is sound; what the caller put in is as good as its caller.

    Raises:
        StorageError: The folder is missing, damaged, altered or of a newer version.
        DataError: The folder is something else.
    """
    folder = Path(folder)
    file = folder / MANIFEST
    kind = format_name.removeprefix("moose-")
    with named_os_errors(folder):
        names = {entry.name for entry in os.scandir(folder)}
    if MANIFEST not in names:
        raise DataError(
            f"This folder is not a {kind}: it has no {MANIFEST}.",
            where=str(folder),
            advice=f"give the folder that a {kind} was saved to",
        )
    content = check_manifest(_read_bytes(file), file, format_name, schema_version)
    verify_checksums(folder, content["files"])
    return content


def check_manifest(
    text: bytes, file: Path, format_name: str, schema_version: int
) -> dict[str, Any]:
    """Check a manifest's text by itself, without looking at the files it names.

    Args:
        text: What the manifest's file holds.
        file: Where it is from, for errors.
        format_name: What it has to describe.
        schema_version: The newest version the caller can read; older ones are passed on.

    Returns:
        The manifest, as from :func:`read_manifest`.
    """
    kind = format_name.removeprefix("moose-")
    manifest = _parse_json(file, text)
    found = manifest.get("format") if isinstance(manifest, dict) else None
    if found != format_name:
        raise DataError(
            f"This is not a {kind}: its manifest says {found!r}, not {format_name!r}.",
            where=str(file),
            advice=f"give the folder that a {kind} was saved to",
        )
    version = manifest.get("schema_version")
    # The version is looked at before the seal: a newer version may be sealed in another way.
    if not isinstance(version, int) or isinstance(version, bool) or version < 1:
        raise StorageError(
            f"The manifest has no sound schema version ({version!r}).",
            where=str(file),
            advice="the file is damaged or was edited; restore or remake it",
        )
    if version > schema_version:
        raise StorageError(
            f"This {kind} has schema version {version}; this program reads up to {schema_version}.",
            where=str(file),
            advice="use the newer version of moose that wrote it, or write it anew with this one",
        )
    content = {key: value for key, value in manifest.items() if key != _SEAL}
    # The text is compared too, since JSON says the same with other white space or escapes.
    sealed = content | {_SEAL: _seal(content)}
    if text != _json_text(sealed).encode():
        raise StorageError(
            "The manifest's own checksum differs: it is damaged or was edited.",
            where=str(file),
            advice="restore the file or remake the folder",
        )
    files = content.get("files")
    if not isinstance(files, dict):
        raise StorageError(
            "The manifest has no table of files.",
            where=str(file),
            advice="restore the file or remake the folder",
        )
    return content


def sha256_of(path: Path) -> str:
    """The SHA-256 of a file's bytes, in hexadecimal."""
    with named_os_errors(path), open(path, "rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def checksums(folder: Path) -> dict[str, str]:
    """SHA-256 of every file below ``folder`` but its own manifest, by relative name."""
    return {
        file.relative_to(folder).as_posix(): sha256_of(file)
        for file in sorted(folder.rglob("*"))
        if file.is_file() and file != folder / MANIFEST
    }


def verify_checksums(folder: Path, expected: Mapping[str, str]) -> None:
    """Raise a :class:`StorageError` that names the first file that is missing or altered."""
    root = os.path.realpath(folder)
    for name, digest in expected.items():
        file = Path(folder) / name
        if not _is_inside(file, root):
            raise StorageError(
                "A manifest names a file outside its own folder.",
                where=f"{Path(folder) / MANIFEST}: {name!r}",
                advice="do not trust this folder; get it again from its source",
            )
        if not file.is_file():
            raise StorageError(
                "A file named in the manifest is missing.",
                where=str(file),
                advice="restore the file or remake the folder",
            )
        if sha256_of(file) != digest:
            raise StorageError(
                "The file's checksum differs from the manifest: it is damaged or was altered.",
                where=str(file),
                advice="restore the file or remake the folder",
            )


def require_replaceable(path: Path, replaces: str | None = None) -> None:
    """Raise a :class:`StorageError` if :func:`atomic_folder` could not take this place."""
    if not os.path.lexists(path):
        return
    if not path.is_dir():
        raise StorageError(
            "There is a file where the folder should go.",
            where=str(path),
            advice="choose another place, or move the file away",
        )
    if not any(path.iterdir()):
        return
    if replaces is None:
        raise StorageError(
            "The folder exists already.",
            where=str(path),
            advice="choose another place, or ask for it to be overwritten (--overwrite)",
        )
    if (found := _format_in(path)) != replaces:
        kind = replaces.removeprefix("moose-").replace("-", " ")
        holds = "something else" if found is None else f"a {found.removeprefix('moose-')}"
        raise StorageError(
            f"The folder to overwrite holds {holds}, not a {kind}.",
            where=str(path),
            advice="choose another place, or move the folder away yourself",
        )


def _format_in(folder: Path) -> str | None:
    """What a folder's manifest says it is; None if it has none of ours."""
    if not (folder / MANIFEST).is_file():
        return None
    try:
        manifest = read_json(folder / MANIFEST)
    except StorageError:
        return None
    found = manifest.get("format") if isinstance(manifest, dict) else None
    return found if isinstance(found, str) and found.startswith("moose-") else None


def _replace_folder(temporary: Path, path: Path) -> None:
    if not path.exists():
        os.rename(temporary, path)
    elif _exchange(temporary, path):
        shutil.rmtree(temporary, ignore_errors=True)
    else:
        _replace_in_two_steps(temporary, path)


def _replace_in_two_steps(temporary: Path, path: Path) -> None:
    # For a moment nothing has the name. A process killed just then leaves the old version under
    # the other prefix, which remove_stale_temporaries puts back instead of deleting.
    previous = _sibling(path, _PREVIOUS_PREFIX)
    with _claimed(path):
        os.rename(path, previous)
        try:
            os.rename(temporary, path)
        except BaseException:
            os.rename(previous, path)
            raise
    shutil.rmtree(previous, ignore_errors=True)


def _exchange(first: Path, second: Path) -> bool:
    """Swap two names in one step; False where the system cannot."""
    try:
        renameat2 = ctypes.CDLL(None, use_errno=True).renameat2
    except (AttributeError, OSError, TypeError):  # not Linux, or an old C library
        return False
    renameat2.argtypes = [
        ctypes.c_int,
        ctypes.c_char_p,
        ctypes.c_int,
        ctypes.c_char_p,
        ctypes.c_uint,
    ]
    here, exchange = -100, 2  # AT_FDCWD and RENAME_EXCHANGE of <linux/fs.h>
    if renameat2(here, os.fsencode(first), here, os.fsencode(second), exchange) == 0:
        return True
    number = ctypes.get_errno()
    if number in (errno.ENOSYS, errno.EINVAL, errno.ENOTSUP):  # the file system cannot
        return False
    raise OSError(number, os.strerror(number), str(second))


def _real(path: Path) -> Path:
    # Relative paths, "." and links have no useful name or parent until they are resolved.
    return Path(os.path.realpath(path))


def _sibling(path: Path, prefix: str) -> Path:
    return path.parent / f"{prefix}{path.name}-{uuid.uuid4().hex[:8]}"


@contextlib.contextmanager
def _claimed(path: Path) -> Iterator[None]:
    """Hold a lock that says a live process works on ``path``; it dies with the process."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        if fcntl is not None:
            with contextlib.suppress(OSError):  # some file systems have no locks
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    finally:
        os.close(descriptor)


def _is_claimed(path: Path) -> bool:
    if fcntl is None:
        return True
    try:
        descriptor = os.open(path, os.O_RDONLY)
    except OSError:
        return True  # gone, or not ours to judge
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return True
    finally:
        os.close(descriptor)
    return False


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        with contextlib.suppress(OSError):
            path.unlink(missing_ok=True)


def _flush(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        # Some file systems cannot flush a folder; that is no reason to lose the user's data.
        if not (path.is_dir() and error.errno in (errno.EINVAL, errno.ENOTSUP, errno.EBADF)):
            raise
    finally:
        os.close(descriptor)


def _is_inside(file: Path, root: str) -> bool:
    try:
        return Path(os.path.realpath(file)).is_relative_to(root)
    except ValueError:  # a NUL or half a surrogate pair: no file has such a name
        return False


def _read_bytes(path: Path) -> bytes:
    with named_os_errors(path):
        return Path(path).read_bytes()


def _parse_json(path: Path, text: bytes) -> Any:
    try:
        return json.loads(text, parse_constant=_refuse_constant, parse_float=_finite_float)
    except (ValueError, RecursionError) as error:
        raise StorageError(
            f"This is not valid JSON ({error}).",
            where=str(path),
            advice="the file is damaged or was edited; restore or remake it",
        ) from error


def _seal(content: Mapping[str, Any]) -> str:
    return hashlib.sha256(_json_text(content).encode()).hexdigest()


def _json_text(content: Any) -> str:
    return json.dumps(content, indent=2, sort_keys=True, allow_nan=False) + "\n"


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a JSON number")


def _finite_float(digits: str) -> float:
    number = float(digits)
    if not math.isfinite(number):  # such as 1e999, which could not be written again
        raise ValueError(f"{digits} is too large a number")
    return number


@contextlib.contextmanager
def named_os_errors(path: Path) -> Iterator[None]:
    """Turn the operating system's refusals into errors that name the place and a remedy."""
    try:
        yield
    except OSError as error:
        advice = {
            errno.ENOSPC: "free some space or choose another disk",
            errno.EFBIG: "free some space, raise the file-size limit or choose another disk",
            errno.EDQUOT: "free some of your quota or choose another disk",
            errno.EACCES: "check the permissions or choose another place",
            errno.EPERM: "check the permissions or choose another place",
            errno.EROFS: "the file system is read-only; choose another place",
            errno.ENOTDIR: "a part of this path is a file; choose another place",
            errno.EEXIST: "a part of this path is a file; choose another place",
            errno.EISDIR: "this is a folder; give the name of a file",
            errno.ENAMETOOLONG: "choose a shorter name",
            errno.ENOENT: "check the path",
        }.get(error.errno or 0, "check the path and the disk")
        reason = error.strerror or str(error)
        raise StorageError(
            f"Cannot read or write here: {reason}.", where=str(path), advice=advice
        ) from error
