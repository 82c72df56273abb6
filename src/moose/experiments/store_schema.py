"""The tables of a grid's store, and how a store of an earlier version comes by the newer ones."""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Iterator
from pathlib import Path

from moose.errors import StorageError

SCHEMA_VERSION = 3
_APPLICATION = 0x4D4F4F53  # marks the file as ours
_FIRST_TABLES = """
CREATE TABLE facts (name TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE datasets (source TEXT PRIMARY KEY, facts TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE runs (
    id INTEGER PRIMARY KEY,
    digest TEXT NOT NULL UNIQUE,
    request TEXT NOT NULL,
    state TEXT NOT NULL CHECK (state IN ('waiting', 'running', 'done', 'failed')),
    attempts INTEGER NOT NULL DEFAULT 0,
    crashes INTEGER NOT NULL DEFAULT 0,
    owner TEXT,
    worker TEXT,
    heartbeat REAL,
    begun REAL,
    ended REAL,
    seconds REAL NOT NULL DEFAULT 0,
    updates INTEGER
);
CREATE TABLE cells (
    position INTEGER PRIMARY KEY,
    label TEXT NOT NULL,
    data TEXT NOT NULL,
    seed INTEGER NOT NULL,
    run INTEGER NOT NULL REFERENCES runs (id),
    UNIQUE (label, data, seed)
);
CREATE INDEX cells_by_run ON cells (run);
CREATE TABLE evaluations (
    run INTEGER NOT NULL REFERENCES runs (id),
    step INTEGER NOT NULL,
    mean REAL NOT NULL,
    deviation REAL NOT NULL,
    episodes INTEGER NOT NULL,
    PRIMARY KEY (run, step)
) WITHOUT ROWID;
CREATE TABLE failures (
    run INTEGER NOT NULL REFERENCES runs (id),
    number INTEGER NOT NULL,
    time REAL NOT NULL,
    message TEXT NOT NULL,
    traceback TEXT NOT NULL,
    PRIMARY KEY (run, number)
) WITHOUT ROWID;
"""
# Since version 2: finished runs that were not trained here, and where they are from. Since version
# 3 with the fingerprint of their data, which may be other bits under the same name.
_TAKEN_OVER = """TABLE taken_over (
    run INTEGER PRIMARY KEY REFERENCES runs (id),
    source TEXT NOT NULL,
    versions TEXT NOT NULL,
    time REAL NOT NULL,
    fingerprint TEXT
)"""


def prepare(connection: sqlite3.Connection, path: Path, *, is_writer: bool) -> None:
    """Make the tables of a new store; look at the version of one that is there.

    Args:
        connection: The open file, in which transactions are opened by hand.
        path: Its name, for errors.
        is_writer: Bring a store of an earlier version up to date. Who only looks at one leaves the
            file as it is: it may be read-only, or of a grid that an earlier program works on.
    """
    (application,) = connection.execute("PRAGMA application_id").fetchone()
    version = _version_of(connection)
    if application != _APPLICATION:
        # Another process may be making the same store: whoever comes second finds it made.
        connection.execute("PRAGMA journal_mode = WAL")
        with transaction(connection):
            _make_tables(connection, path)
    elif version > SCHEMA_VERSION:
        raise StorageError(
            f"This store has schema version {version}; this program reads up to {SCHEMA_VERSION}.",
            where=str(path),
            advice="use the newer version of moose that wrote it",
        )
    elif version < SCHEMA_VERSION and is_writer:
        with transaction(connection):
            version = _version_of(connection)  # somebody else may have done it meanwhile
            if version < 2:
                connection.execute(f"CREATE {_TAKEN_OVER}")
            elif version < 3:
                connection.execute("ALTER TABLE taken_over ADD COLUMN fingerprint TEXT")
            connection.execute(f"PRAGMA user_version = {SCHEMA_VERSION}")
    elif version < SCHEMA_VERSION:
        # As it would be in the file, before which it is found, and gone with the connection.
        connection.execute(f"CREATE TEMPORARY {_TAKEN_OVER}")
        if version == 2:
            connection.execute(
                "INSERT INTO taken_over SELECT run, source, versions, time, NULL "
                "FROM main.taken_over"
            )


@contextlib.contextmanager
def transaction(connection: sqlite3.Connection) -> Iterator[None]:
    """All that is written in the block or, whatever happens, nothing."""
    connection.execute("BEGIN IMMEDIATE")
    try:
        yield
    except BaseException:
        connection.execute("ROLLBACK")
        raise
    connection.execute("COMMIT")


def _make_tables(connection: sqlite3.Connection, path: Path) -> None:
    (tables,) = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
    (application,) = connection.execute("PRAGMA application_id").fetchone()
    if tables and application != _APPLICATION:
        raise StorageError(
            "This file is a database of something else.",
            where=str(path),
            advice="choose another folder with --out",
        )
    if not tables:
        for statement in filter(str.strip, [*_FIRST_TABLES.split(";"), f"CREATE {_TAKEN_OVER}"]):
            connection.execute(statement)
        connection.execute(f"PRAGMA user_version = {SCHEMA_VERSION}")
        connection.execute(f"PRAGMA application_id = {_APPLICATION}")


def _version_of(connection: sqlite3.Connection) -> int:
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    return int(version)
