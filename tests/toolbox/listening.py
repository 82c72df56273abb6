"""Progress that a test can look at afterwards."""

from __future__ import annotations

from moose.progress import SILENT


class Listener:
    """Remembers the names of all stages."""

    def __init__(self):
        self.stages = []

    def stage(self, name, total, done=0):
        self.stages.append(name)
        return SILENT.stage(name, total, done)
