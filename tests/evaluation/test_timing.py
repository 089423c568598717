"""A policy's own time, and nobody else's."""

from __future__ import annotations

from collections.abc import Sequence

from trajgym.envs.base import ToolEnv
from trajgym.evaluation.evaluate import evaluate
from trajgym.evaluation.timing import Timed
from trajgym.policies.base import TextPolicy
from trajgym.types import Message, Task

TASK = Task("t", "?", "1")


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


class Slow(TextPolicy):
    def __init__(self, clock: Clock) -> None:
        super().__init__(capacity=2)
        self.clock = clock

    def act(self, messages: Sequence[Message], task: Task, seed: int = 0) -> str:
        self.clock.now += 2.0
        return "#### 1"


def test_the_time_from_asking_to_getting_is_summed_over_turns() -> None:
    clock = Clock()
    timed = Timed(Slow(clock), clock)
    timed.start(7, (), task=TASK, seed=0)
    timed.poll()
    clock.now += 100.0  # the environment is at work
    timed.observe(7, ())
    timed.poll()
    assert timed.seconds == {7: 4.0}
    assert timed.finish(7) == ()
    assert timed.capacity == 2
    assert timed.context(7) == ()


def test_an_evaluation_has_a_time_for_each_episode() -> None:
    found = evaluate(Slow(Clock()), lambda: ToolEnv([TASK]), [TASK] * 3)
    assert len(found.seconds) == 3
    assert all(seconds > 0 for seconds in found.seconds)
