"""Tables in, batches out: CSV, Parquet, NPZ and Arrow-compatible frames, streamed.

:mod:`moose.data.text_tables` and :mod:`moose.data.typed_tables` read them; what they give is in
:mod:`moose.data.batches`.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from moose.data.batches import Report, Table
from moose.data.schema import TextSettings
from moose.data.text_tables import TextTable
from moose.data.typed_tables import ArrayTable, FrameTable, ParquetTable
from moose.errors import DataError
from moose.storage import named_os_errors

_ENDINGS = (".csv", ".csv.gz", ".txt", ".txt.gz", ".tsv", ".tsv.gz", ".parquet", ".npz")


def find_files(paths: Sequence[str | Path]) -> list[Path]:
    """The files that are meant: files as given, and of folders all tables in them, by name."""
    found: list[Path] = []
    for path in map(Path, paths):
        if path.is_dir():
            inside = [file for file in sorted(path.iterdir()) if file.name.endswith(_ENDINGS)]
            if not inside:
                raise DataError(
                    "There is no table in this folder.",
                    where=str(path),
                    advice=f"give a folder with files that end in {', '.join(_ENDINGS)}",
                )
            found += inside
        elif path.is_file():
            found.append(path)
        else:
            raise DataError(
                "There is no such file or folder.", where=str(path), advice="check the path"
            )
    if not found:
        raise DataError(
            "There is no file to read.", where="files", advice="name at least one file or folder"
        )
    return found


def open_table(source: Any, text: TextSettings, report: Report) -> Table:
    """Open a table: a file by its name's ending, or an Arrow-compatible frame.

    Args:
        source: A path (``.parquet``, ``.npz``, anything else is text), a polars or pandas frame,
            an Arrow table or anything with ``__arrow_c_stream__``.
        text: How text files are written.
        report: Told what was detected.

    Returns:
        The table; nothing but its header has been read.
    """
    if not isinstance(source, str | Path):
        return FrameTable(source)
    path = Path(source)
    with named_os_errors(path), open(path, "rb") as stream:
        start = stream.read(8)
    if path.name.endswith(".parquet") or start.startswith(b"PAR1"):
        return ParquetTable(path)
    if path.name.endswith(".npz"):
        return ArrayTable(path)
    if start.startswith((b"\x89HDF", b"PK\x03\x04", b"\xd0\xcf\x11\xe0")):
        kind = {0x89: "an HDF5 file", 0x50: "an archive or workbook", 0xD0: "an old workbook"}
        raise DataError(
            f"This is {kind[start[0]]}, not a table of text.",
            where=str(path),
            advice="export it as CSV or Parquet; 'moose data import' reads data sets in HDF5",
        )
    return TextTable(path, text, report)
