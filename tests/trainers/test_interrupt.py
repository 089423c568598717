"""Ctrl-C: the first one waits for a safe point, the second one does not."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
import time

import pytest

from trajgym.trainers.interrupt import Interrupt, Interrupted, StopRequested


@pytest.fixture(autouse=True)
def _handler_of_python() -> object:
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def press() -> None:
    signal.raise_signal(signal.SIGINT)


def test_the_first_is_noted_and_raised_at_the_next_safe_point(capfd: pytest.CaptureFixture[str]) -> None:
    with Interrupt() as interrupt:
        interrupt.check()
        press()
        assert interrupt.requested
        with pytest.raises(StopRequested):
            interrupt.check(3)
    assert "saving the last finished update; press again to stop at once" in capfd.readouterr().err


def test_the_second_stops_at_once() -> None:
    with Interrupt():
        press()
        with pytest.raises(KeyboardInterrupt):
            press()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_requests_to_end_save_too_however_often_they_come(
    number: signal.Signals, capfd: pytest.CaptureFixture[str]
) -> None:
    """Schedulers send SIGTERM, some with SIGHUP beside it; Ctrl-C after them stops at once."""
    assert signal.getsignal(number) == signal.SIG_DFL
    with Interrupt() as interrupt:
        for each in (number, signal.SIGTERM, signal.SIGHUP):
            signal.raise_signal(each)
        with pytest.raises(StopRequested):
            interrupt.check()
        with pytest.raises(KeyboardInterrupt):
            press()
    assert signal.getsignal(number) == signal.SIG_DFL
    assert capfd.readouterr().err == f"\n{number.name}: saving the last finished update.\n"


def test_a_signal_that_is_ignored_stays_ignored() -> None:
    """As under nohup."""
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with Interrupt() as interrupt:
            signal.raise_signal(signal.SIGHUP)
            interrupt.check()
    finally:
        signal.signal(signal.SIGHUP, before)


@pytest.mark.parametrize("error", [None, ValueError("x"), StopRequested()])
def test_the_handler_before_is_back_afterwards(error: BaseException | None) -> None:
    seen: list[int] = []
    signal.signal(signal.SIGINT, lambda number, frame: seen.append(number))
    with contextlib.suppress(ValueError, StopRequested), Interrupt() as interrupt:
        press()
        assert (interrupt.requested, seen) == (True, [])
        if error is not None:
            raise error
    press()
    assert seen == [signal.SIGINT]


def test_a_stop_passes_code_that_catches_exceptions() -> None:
    assert not issubclass(StopRequested, Exception)
    assert issubclass(Interrupted, KeyboardInterrupt)


def test_in_another_thread_it_can_only_be_asked() -> None:
    found: list[object] = []

    def work() -> None:
        with Interrupt() as interrupt:
            interrupt.check()
            interrupt.requested = True
            try:
                interrupt.check()
            except StopRequested:
                found.append(signal.getsignal(signal.SIGINT))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert found == [signal.default_int_handler]


def test_a_ctrl_c_in_the_middle_of_a_print_does_no_harm(monkeypatch: pytest.MonkeyPatch) -> None:
    """The pipe is full, so print() blocks until the reader comes, which is after Ctrl-C."""
    reading, writing = os.pipe()
    main = threading.main_thread().ident
    assert main is not None

    def press_and_read() -> None:
        time.sleep(0.2)
        signal.pthread_kill(main, signal.SIGINT)
        time.sleep(0.2)
        while os.read(reading, 1 << 20):
            pass

    reader = threading.Thread(target=press_and_read)
    with open(writing, "w") as out, Interrupt() as interrupt:
        monkeypatch.setattr(sys, "stdout", out)
        reader.start()
        print("x" * (1 << 20), flush=True)
        assert interrupt.requested
    reader.join()
    os.close(reading)
