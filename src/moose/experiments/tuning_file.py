"""The file in which the measurement of a dial is left, as light to read as it can be."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from moose.errors import DataError, StorageError
from moose.storage import read_json

TUNING = "tuning.json"
FORMAT = "moose-tuning"
SCHEMA_VERSION = 2  # 1: a position was chosen by another rule
_PARTS = {
    "advice": dict,
    "reasons": list,
    "protocol": dict,
    "positions": list,
    "dial": list,
    "logged": dict,
    "models": dict,
}


def read_tuning(folder: Path) -> dict[str, Any] | None:
    """What ``moose tune`` left in the folder of a run.

    Args:
        folder: The run's.

    Returns:
        The content of its ``tuning.json``; None without one.

    Raises:
        StorageError: The file is damaged or of a newer version.
        DataError: The file is something else.
    """
    file = folder / TUNING
    if not file.is_file():
        return None
    again = f"measure the dial again with 'moose tune {folder}'"
    tuning = read_json(file)
    found = tuning.get("format") if isinstance(tuning, dict) else None
    if found != FORMAT:
        raise DataError(
            f"This file does not tell of a dial: it says {found!r}, not {FORMAT!r}.",
            where=str(file),
            advice=again,
        )
    version = tuning.get("schema_version")
    if version != SCHEMA_VERSION:
        raise StorageError(
            f"The file has schema version {version!r}; this program reads {SCHEMA_VERSION}.",
            where=str(file),
            advice=f"use the version of moose that wrote it, or {again}",
        )
    for name, kind in _PARTS.items():
        if not isinstance(tuning.get(name), kind):
            raise _damaged(file, f"'{name}' is missing or not a {kind.__name__}", again)
    if not tuning["dial"] or len(tuning["dial"]) != len(tuning["positions"]):
        count = f"{len(tuning['dial'])} for {len(tuning['positions'])} positions"
        raise _damaged(file, f"the rows of 'dial' are {count}", again)
    return dict(tuning)


def _damaged(file: Path, why: str, advice: str) -> StorageError:
    return StorageError(
        f"The file is damaged or was edited: {why}.", where=str(file), advice=advice
    )
