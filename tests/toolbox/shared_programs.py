"""Compiled programs that all processes of a test run share, in one folder.

JAX writes the files of its cache in place: another process may read half of one, and one that is
killed leaves half of one for good. Where this module is used they appear whole, and what a process
that does not use it has left half-written is as good as missing.
"""

from __future__ import annotations

import os
import tempfile

from jax._src import compilation_cache
from jax._src.lru_cache import LRUCache


class WholeFiles(LRUCache):
    """A file for each program, which is there or is not."""

    def get(self, key: str) -> bytes | None:
        """The compressed program, if there is a sound one."""
        value = super().get(key)
        try:
            if value is not None:
                compilation_cache.decompress_executable(value)
        except Exception:  # each way to compress has its own
            return None
        return value

    def put(self, key: str, value: bytes) -> None:
        """Keep a program, in the place of half of one if need be."""
        with tempfile.NamedTemporaryFile(dir=self.path, delete=False) as file:
            file.write(value)
        os.replace(file.name, self.path / f"{key}-cache")


def share_programs() -> None:
    """Let this process and its forks keep to whole files, before anything is compiled."""
    compilation_cache.get_file_cache = lambda path: (WholeFiles(path, max_size=-1), path)
