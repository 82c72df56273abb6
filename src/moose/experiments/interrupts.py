"""Steps that an interrupt must not cut in two."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def interrupts_put_off() -> Iterator[None]:
    """Let Ctrl-C take effect only when the block has been left; blocks may be nested."""
    if threading.current_thread() is not threading.main_thread():
        yield  # interrupts reach the main thread only
        return
    noted: list[int] = []
    before = signal.signal(signal.SIGINT, lambda number, _: noted.append(number))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
        if noted:
            signal.raise_signal(signal.SIGINT)
