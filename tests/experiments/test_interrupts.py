"""An interrupt waits for the end of what must not be cut in two."""

from __future__ import annotations

import signal
import threading

import pytest

from moose.experiments.interrupts import interrupts_put_off


@pytest.fixture(autouse=True)
def _interrupts_reach_us():
    # Where pytest runs in the background, interrupts may be ignored from the start.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def test_the_block_is_finished_first():
    done = []

    def work():
        with interrupts_put_off():
            signal.raise_signal(signal.SIGINT)
            done.append("inside")
        done.append("after")

    with pytest.raises(KeyboardInterrupt):
        work()
    assert done == ["inside"]
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_the_outermost_of_nested_blocks_counts():
    done = []

    def work():
        with interrupts_put_off():
            with interrupts_put_off():
                signal.raise_signal(signal.SIGINT)
            done.append("outer")
        done.append("after")

    with pytest.raises(KeyboardInterrupt):
        work()
    assert done == ["outer"]


def test_without_an_interrupt_nothing_happens_and_errors_pass():
    with interrupts_put_off():
        pass
    with pytest.raises(ValueError, match="mine"), interrupts_put_off():
        raise ValueError("mine")
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_other_threads_are_left_alone():
    seen = []

    def work():
        with interrupts_put_off():
            seen.append(signal.getsignal(signal.SIGINT))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert seen == [signal.default_int_handler]
