"""Programs that are run with another number of devices than the tests themselves have."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path


def with_devices(count: int, *words: object) -> str:
    """What a Python with this many devices prints."""
    settings = {
        "XLA_FLAGS": f"--xla_force_host_platform_device_count={count}",
        "NPROC": "1",
        "PYTHONPATH": str(Path(__file__).parent),
    }
    command = [sys.executable, *map(str, words)]
    ended = subprocess.run(
        command, env=os.environ | settings, capture_output=True, text=True, check=False
    )
    assert ended.returncode == 0, ended.stderr
    return ended.stdout
