"""Rollout: what breaks costs the episode it happens in, and nothing else."""

from __future__ import annotations

import sys
from asyncio import CancelledError
from collections.abc import Sequence
from typing import Any

import gymnasium
import pytest

from trajgym.envs.base import ToolEnv
from trajgym.envs.spaces import Unicode
from trajgym.envs.tools import tool
from trajgym.errors import ConfigError, DataError, EnvironmentFault
from trajgym.policies.base import LostTurn, TextPolicy
from trajgym.rollout import EnvPool, Episode, collect, fault_counts, fault_summary
from trajgym.types import Action, Message, Observation, Step, StopReason, Task, Trajectory


class Flaky(gymnasium.Env[str, str]):
    """Fails in its second step when the seed is odd; not one of our environments."""

    def __init__(self, error: Exception) -> None:
        self.observation_space = Unicode()
        self.action_space = Unicode()
        self._error = error

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        super().reset(seed=seed)
        self._odd, self._count = bool((seed or 0) % 2), 0
        return f"seed {seed}", {}

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        self._count += 1
        if self._odd and self._count == 2:
            raise self._error
        return "go on", 0.5, self._count == 3, False, {}


class Chatter(TextPolicy):
    def act(self, messages: Sequence[Message], task: Task, seed: int = 0) -> str:
        return "hm"


@pytest.mark.parametrize("error", [EnvironmentFault("the worker died"), ZeroDivisionError("bug"), OSError("no disk")])
def test_a_fault_invalidates_its_own_trajectory_only(error: Exception) -> None:
    with EnvPool(lambda: Flaky(error)) as pool:
        found = collect(Chatter(), pool, [Episode(s, 0) for s in range(6)])
    assert [t.valid for t in found] == [True, False] * 3
    for bad in found[1::2]:
        assert bad.stop_reason is StopReason.FAULT
        assert str(error) in (bad.fault or "")
        assert [s.reward for s in bad.steps] == [0.5, 0.0]  # what happened before, and the turn that met the fault
        assert (bad.steps[-1].action.text, bad.steps[-1].stop_reason) == ("hm", StopReason.FAULT)
    for good in found[::2]:
        assert good.rewards == [0.5, 0.5, 0.5]
        assert good.steps[-1].terminated
        assert good.prompt == (Message("user", f"seed {good.task.id.removeprefix('seed-')}"),)


class Notebook:
    """Remember a word."""

    fails = ""

    def open(self, seed: int) -> None:
        if self.fails == "open":
            raise OSError("no more processes")

    def __call__(self, word: str) -> str:
        """Remember a word.

        Args:
            word: Any.
        """
        if self.fails == word:
            raise EnvironmentFault("the pool died")
        return "noted"


class Note(TextPolicy):
    def act(self, messages: Sequence[Message], task: Task, seed: int = 0) -> str:
        words = [task.question, "again"]
        turn = sum(m.role == "assistant" for m in messages)
        if turn == len(words):
            return f"#### {task.answer}"
        return f'<tool_call>\n{{"name": "Notebook", "arguments": {{"word": "{words[turn]}"}}}}\n</tool_call>'


@pytest.mark.parametrize(("fails", "lost", "message"), [
    ("b", [1], "EnvironmentFault: the pool died"),
    ("again", [0, 1, 2], "EnvironmentFault: the pool died"),
    ("open", [0, 1, 2], "EnvironmentFault: The tool 'Notebook' did not open: OSError('no more processes')"),
])  # fmt: skip
def test_a_tool_that_breaks_is_a_fault_and_the_pool_goes_on(
    fails: str, lost: list[int], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    tasks = [Task(word, word, "1") for word in "abc"]
    with EnvPool(lambda: ToolEnv(tasks, tools=[tool(Notebook)])) as pool:
        plans = [Episode(0, 0, t.id) for t in tasks]
        monkeypatch.setattr(Notebook, "fails", fails)
        found = collect(Note(), pool, plans)
        assert [i for i, t in enumerate(found) if not t.valid] == lost
        assert {t.fault for t in found} - {None} == {message}
        assert all(t.total_reward > 1 for i, t in enumerate(found) if i not in lost)
        monkeypatch.setattr(Notebook, "fails", "")
        assert all(t.valid for t in collect(Note(), pool, plans))


class Unspeakable(Exception):
    def __str__(self) -> str:
        raise ValueError("no words")


@pytest.mark.parametrize(
    ("error", "fault"),
    [
        (EnvironmentFault("two\nlines\x1b[0m and \ud83d"), r"EnvironmentFault: two lines\x1b[0m and \ud83d"),
        (Unspeakable(), "Unspeakable"),
        (ValueError(), "ValueError"),
    ],
)
def test_faults_are_one_line_that_can_be_printed(error: Exception, fault: str) -> None:
    with EnvPool(lambda: Flaky(error)) as pool:
        (trajectory,) = collect(Chatter(), pool, [Episode(1, 0)])
    assert trajectory.fault == fault


def test_a_long_fault_is_cut() -> None:
    with EnvPool(lambda: Flaky(OSError("x" * 10**6))) as pool:
        (trajectory,) = collect(Chatter(), pool, [Episode(1, 0)])
    assert 500 < len(trajectory.fault or "") <= 1000


def test_a_failed_reset_still_tells_which_task_it_was() -> None:
    class Dead(Flaky):
        def reset(self, **kwargs: Any) -> Any:
            raise EnvironmentFault("gone")

    chosen = Task("t", "q", "1", difficulty=3)
    with EnvPool(lambda: Dead(ValueError())) as pool:
        found = collect(Chatter(), pool, [Episode(7, 1, chosen), Episode(7, 2, "an-id"), Episode(7, 3)])
    assert [t.task for t in found] == [chosen, Task("an-id", "", ""), Task("seed-7", "", "")]
    assert [(t.seed, t.prompt, t.steps, t.fault) for t in found] == [
        (seed, (), (), "EnvironmentFault: gone") for seed in (1, 2, 3)
    ]


def test_an_environment_that_cannot_be_made_is_a_fault() -> None:
    made: list[int] = []

    def make() -> Flaky:
        made.append(1)
        if len(made) in (2, 3):
            raise EnvironmentFault("no more processes")
        return Flaky(ValueError())

    with EnvPool(make) as pool:
        found = collect(Chatter(), pool, [Episode(2 * s, s) for s in range(5)])
    assert [t.fault for t in found] == [None, *["EnvironmentFault: no more processes"] * 2, None, None]
    assert [(t.task.id, t.seed) for t in found] == [(f"seed-{2 * s}", s) for s in range(5)]

    def mistaken() -> Flaky:
        raise ConfigError("no such tool")

    with EnvPool(mistaken) as pool, pytest.raises(ConfigError, match="no such tool"):
        collect(Chatter(), pool, [Episode(0, 0)])


def test_environments_that_fail_to_close_take_nobody_with_them(caplog: pytest.LogCaptureFixture) -> None:
    closed: list[int] = []

    class Stuck(Flaky):
        def close(self) -> None:
            closed.append(1)
            raise OSError("the socket is gone")

    class Stop(Exception):
        pass

    def stop(done: int) -> None:
        raise Stop

    with EnvPool(lambda: Stuck(ValueError("bug"))) as pool:
        found = collect(Chatter(), pool, [Episode(s, 0) for s in range(6)])
        assert [t.valid for t in found] == [True, False] * 3
        assert len(closed) == 3
        with pytest.raises(Stop):
            collect(Chatter(capacity=2), pool, [Episode(s, 0) for s in range(3)], on_tick=stop)
        assert len(closed) == 5
    assert len(closed) == 6
    assert "the socket is gone" in caplog.text


def test_faults_are_counted_by_class_and_summed_up() -> None:
    def lost(fault: str | None) -> Trajectory:
        return Trajectory(Task("t", "", ""), (), (), fault=fault)

    good = [Trajectory(Task("t", "", ""), (), (Step(Action(""), Observation()),))] * 2
    assert (fault_counts(good), fault_summary(good)) == ({}, "")
    some = [
        *good,
        lost("OSError: no disk: full."),
        lost("EnvironmentFault: a"),
        lost("Quiet"),
        lost("EnvironmentFault: b"),
    ]
    assert list(fault_counts(some).items()) == [("EnvironmentFault", 2), ("OSError", 1), ("Quiet", 1)]
    assert fault_summary(some) == "4 of 6 episodes failed, the first with OSError: no disk: full."
    assert fault_counts([lost(None)]) == {"no step": 1}


def test_the_callers_mistakes_are_raised() -> None:
    with EnvPool(lambda: Flaky(DataError("no such file"))) as pool, pytest.raises(DataError, match="no such file"):
        collect(Chatter(), pool, [Episode(1, 0)])


@pytest.mark.parametrize(
    "reply", [("ok", 1.0, False, {}), ("ok", None, True, False, {}), ("ok", 1.0, True, False, None)]
)
def test_odd_replies_are_faults(reply: tuple[Any, ...]) -> None:
    class Odd(Flaky):
        def step(self, action: str) -> Any:
            return reply

    with EnvPool(lambda: Odd(ValueError())) as pool:
        (trajectory,) = collect(Chatter(), pool, [Episode(0, 0)])
    assert not trajectory.valid


@pytest.mark.parametrize("error", [SystemExit(3), KeyboardInterrupt("its own"), GeneratorExit(), CancelledError()])
def test_whatever_an_environment_raises_ends_its_own_episode(error: BaseException) -> None:
    """Ctrl-C comes to the main thread; what is raised in a call of the environment is not the user's."""
    with EnvPool(lambda: Flaky(error)) as pool:  # type: ignore[arg-type]
        found = collect(Chatter(), pool, [Episode(s, 0) for s in range(2)])
    assert [t.valid for t in found] == [True, False]
    assert (found[1].fault or "").startswith(type(error).__name__)


def test_exit_while_an_environment_is_made_or_closed_is_a_fault(caplog: pytest.LogCaptureFixture) -> None:
    made: list[int] = []

    class Leaves(Flaky):
        def __init__(self) -> None:
            super().__init__(ValueError())
            made.append(1)
            if len(made) == 2:
                sys.exit("no licence")

        def close(self) -> None:
            sys.exit("good bye")

    with EnvPool(Leaves) as pool:
        found = collect(Chatter(), pool, [Episode(2 * s, s) for s in range(3)])
    assert [t.fault for t in found] == [None, "SystemExit: no licence", None]
    assert caplog.text.count("SystemExit: good bye") == 2


class Doubtful(Chatter):
    """Gives the second episode log-probabilities that are none."""

    def poll(self) -> list[tuple[int, Action]]:
        return [
            (i, Action(a.text, (1, 2), (-1.0, float("nan") if i == 1 else -2.0), finish="turn_tokens"))
            for i, a in super().poll()
        ]


def test_turns_made_of_no_probabilities_are_faults() -> None:
    with EnvPool(lambda: Flaky(ValueError())) as pool:
        found = collect(Doubtful(), pool, [Episode(0, 0), Episode(0, 1), Episode(0, 2)])
    assert [t.valid for t in found] == [True, False, True]
    assert found[1].fault == "SamplerFault: The logits of this turn were not finite."
    assert (found[1].steps[-1].action.logprobs, found[1].stop_reason) == ((), StopReason.FAULT)


class Lossy(Chatter):
    """Never hears the second turn of the second episode."""

    def poll(self) -> list[tuple[int, Action]]:
        lost = LostTurn("", error=OSError("no route"))
        return [(i, lost if i == 1 and len(self._live[i][0]) > 3 else a) for i, a in super().poll()]


def test_a_turn_that_never_comes_says_why() -> None:
    with EnvPool(lambda: Flaky(ValueError())) as pool:
        found = collect(Lossy(), pool, [Episode(0, 0), Episode(0, 1)])
    assert [t.fault for t in found] == [None, "OSError: no route"]
    assert [step.action.text for step in found[1].steps] == ["hm"]  # nobody wrote a second turn


class Broken(Chatter):
    """Breaks down in its second turn of writing."""

    def __init__(self, error: Exception, capacity: int) -> None:
        super().__init__(capacity)
        self._error, self._polls = error, 0

    def poll(self) -> list[tuple[int, Action]]:
        self._polls += 1
        if self._polls == 2:
            raise self._error
        return super().poll()


def test_a_policy_may_break_down_where_that_was_agreed() -> None:
    plans = [Episode(2 * s, s) for s in range(5)]
    with EnvPool(lambda: Flaky(ValueError())) as pool:
        found = collect(Broken(OSError("engine"), 2), pool, plans, deterministic=True, policy_may_fail=True)
        assert [t.fault for t in found] == ["OSError: engine"] * 2 + [None] * 3
        assert [len(t.steps) for t in found] == [1, 1, 3, 3, 3]  # the turn that was lost is in nobody's hands
        with pytest.raises(OSError, match="engine"):
            collect(Broken(OSError("engine"), 2), pool, plans)
        with pytest.raises(ConfigError, match="wrong"):
            collect(Broken(ConfigError("wrong"), 2), pool, plans, policy_may_fail=True)
