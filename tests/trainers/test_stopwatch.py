from __future__ import annotations

import pytest

from trajgym.trainers.stopwatch import Stopwatch


def test_parts_add_up_whatever_lies_in_them() -> None:
    now = [0.0]
    watch = Stopwatch(clock=lambda: now[0])

    def wait(seconds: float) -> None:
        now[0] += seconds

    with watch("train"):
        wait(1.0)
        with watch("logprobs"):
            wait(2.0)
            with watch("sync"):
                wait(4.0)
        wait(8.0)
        with watch("sync"):
            wait(16.0)
    wait(32.0)
    with watch("train"):
        wait(64.0)
    assert watch.seconds() == {"sync": 20.0, "logprobs": 2.0, "train": 73.0}
    watch.reset()
    assert watch.seconds() == {}


def test_a_part_that_fails_is_counted_all_the_same() -> None:
    now = [0.0]
    watch = Stopwatch(clock=lambda: now[0])

    def fail() -> None:
        with watch("train"), watch("sync"):
            now[0] += 1.0
            raise ValueError

    with pytest.raises(ValueError):  # noqa: PT011 (raised right here)
        fail()
    with watch("train"):
        now[0] += 2.0
    assert watch.seconds() == {"sync": 1.0, "train": 2.0}
