"""The tools of one episode: order, concurrency, state, errors."""

from __future__ import annotations

import copy
import logging
import os
import pickle
import signal
import subprocess
import sys
import threading
import time
from typing import Any

import cloudpickle
import pytest

from trajgym.envs.tools import Tool, ToolFailure, ToolSessions, tool
from trajgym.errors import ConfigError, EnvironmentFault, EpisodeError, UnknownNameError
from trajgym.types import ToolCall, to_json


@tool
def nap(seconds: float, label: str) -> str:
    """Sleep, then answer."""
    time.sleep(seconds)
    return label


@tool
def whoami() -> str:
    """Tell the thread."""
    return threading.current_thread().name


@tool
def fail(how: str) -> str:
    """Fail."""
    raise {
        "value": ValueError("bad\nvalue"),
        "exit": SystemExit(1),
        "interrupt": KeyboardInterrupt(),
        "failure": ToolFailure("not_found", "No such thing."),
        "fault": EnvironmentFault("disk"),
    }[how]


@tool
class Counter:
    """Count up."""

    log: list[str] = []  # noqa: RUF012

    def open(self, seed: int) -> None:
        self.count = seed
        self.log.append(f"open {seed}")

    def __call__(self, by: int = 1, seconds: float = 0.0) -> int:
        before = self.count
        time.sleep(seconds)
        self.count = before + by
        return self.count

    def close(self) -> None:
        self.log.append(f"close {self.count}")


@pytest.fixture(autouse=True)
def _fresh_log() -> None:
    Counter.target.log.clear()  # type: ignore[attr-defined]


def log() -> list[str]:
    return list(Counter.target.log)  # type: ignore[attr-defined]


def run(used: Tool, **arguments: Any) -> Any:
    with ToolSessions([used], seed=0) as sessions:
        return sessions.run([ToolCall(used.name, arguments, "c1")])[0]


class TestOrder:
    def test_calls_are_concurrent_and_answers_in_order(self) -> None:
        calls = [ToolCall("nap", {"seconds": 0.25 - 0.05 * i, "label": str(i)}, f"c{i}") for i in range(4)]
        with ToolSessions([nap], seed=0) as sessions:
            began = time.perf_counter()
            results = sessions.run(calls)
            took = time.perf_counter() - began
        assert [result.content for result in results] == ["0", "1", "2", "3"]
        assert [result.call for result in results] == calls
        assert took < 0.45
        assert [round(result.seconds, 1) for result in results] == pytest.approx([0.25, 0.2, 0.15, 0.1], abs=0.1)

    def test_a_single_call_needs_no_thread(self) -> None:
        assert run(whoami).content == threading.current_thread().name

    def test_threads_end_with_the_turn(self) -> None:
        before = threading.active_count()
        with ToolSessions([whoami], seed=0) as sessions:
            names = {result.content for result in sessions.run([ToolCall("whoami")] * 100)}
            assert all(name.startswith("trajgym-tool") for name in names)
            assert len(names) <= 16
            assert threading.active_count() == before

    def test_no_calls(self) -> None:
        with ToolSessions([nap], seed=0) as sessions:
            assert sessions.run([]) == ()

    def test_results_print_as_json(self) -> None:
        assert to_json(run(nap, seconds=0, label="x"))["call"]["id"] == "c1"


class TestState:
    def test_calls_to_one_instance_run_one_after_the_other(self) -> None:
        with ToolSessions([Counter, nap], seed=5) as sessions:
            calls = [ToolCall("Counter", {"by": by, "seconds": 0.05}) for by in (1, 10, 100)]
            results = sessions.run([calls[0], ToolCall("nap", {"seconds": 0, "label": "x"}), *calls[1:]])
            assert [result.content for result in results] == ["6", "x", "16", "116"]
            assert sessions.run([ToolCall("Counter")])[0].content == "117"
        assert log() == ["open 5", "close 117"]

    def test_every_episode_has_its_own(self) -> None:
        with ToolSessions([Counter], seed=1) as one, ToolSessions([Counter], seed=100) as other:
            assert one.run([ToolCall("Counter")])[0].content == "2"
            assert other.run([ToolCall("Counter")])[0].content == "101"

    def test_an_instance_may_say_how_it_is_isolated(self) -> None:
        @tool
        class Cell:
            """Run apart."""

            def open(self, seed: int) -> None:
                self.isolation = f"cell {seed}"

            def __call__(self) -> None: ...

        assert run(Cell).isolation == "cell 0"
        assert run(nap, seconds=0, label="x").isolation == "none"

    def test_what_was_not_used_is_neither_opened_nor_closed(self) -> None:
        ToolSessions([Counter], seed=1).close()
        assert log() == []

    def test_closing(self) -> None:
        sessions = ToolSessions([Counter], seed=1)
        sessions.run([ToolCall("Counter")])
        sessions.close()
        sessions.close()
        assert log() == ["open 1", "close 2"]
        with pytest.raises(EpisodeError, match="closed"):
            sessions.run([ToolCall("Counter")])

    def test_closed_whatever_happens(self) -> None:
        with pytest.raises(EnvironmentFault), ToolSessions([Counter, fail], seed=1) as sessions:
            sessions.run([ToolCall("Counter"), ToolCall("fail", {"how": "fault"})])
        assert log() == ["open 1", "close 2"]

    def test_one_that_fails_to_close_does_not_keep_the_others_open(self, caplog: pytest.LogCaptureFixture) -> None:
        @tool
        class Stuck:
            """Stick."""

            def __call__(self) -> None: ...

            def close(self) -> None:
                raise OSError("stuck")

        with caplog.at_level(logging.WARNING), ToolSessions([Stuck, Counter], seed=1) as sessions:
            sessions.run([ToolCall("Stuck"), ToolCall("Counter")])
        assert log() == ["open 1", "close 2"]
        assert "'Stuck' failed to close" in caplog.text

    def test_one_that_fails_to_open_is_a_fault(self) -> None:
        @tool
        class Shut:
            """Stay shut."""

            def open(self, seed: int) -> None:
                raise OSError("no table")

            def __call__(self) -> None: ...

        with pytest.raises(EnvironmentFault, match=r"'Shut' did not open.*no table"):
            run(Shut)


class TestErrors:
    @pytest.mark.parametrize(
        ("how", "content", "error"),
        [
            ("value", "ValueError: bad value", "tool_error"),
            ("exit", "SystemExit: 1", "tool_error"),
            ("interrupt", "KeyboardInterrupt", "tool_error"),
            ("failure", "No such thing.", "not_found"),
            ("unheard of", "KeyError: 'unheard of'", "tool_error"),
        ],
    )
    @pytest.mark.parametrize("calls", [1, 2])
    def test_what_a_tool_raises(self, how: str, content: str, error: str, calls: int) -> None:
        with ToolSessions([fail], seed=0) as sessions:
            for result in sessions.run([ToolCall("fail", {"how": how})] * calls):
                assert (result.content, result.error) == (content, error)

    @pytest.mark.parametrize("calls", [1, 2])
    def test_faults_pass_through(self, calls: int) -> None:
        with ToolSessions([fail], seed=0) as sessions, pytest.raises(EnvironmentFault, match="disk"):
            sessions.run([ToolCall("fail", {"how": "fault"})] * calls)

    def test_calls_that_cannot_be_run(self) -> None:
        with ToolSessions([nap], seed=0) as sessions:
            unknown, wrong, right = sessions.run(
                [
                    ToolCall("napp", {}),
                    ToolCall("nap", {"seconds": "1", "label": "x"}),
                    ToolCall("nap", {"seconds": 0, "label": "x"}),
                ]
            )
        assert (unknown.error, unknown.content) == (
            "unknown_tool",
            "There is no tool 'napp'. Did you mean 'nap'? Tools: nap.",
        )
        assert wrong.error == "wrong_type"
        assert (right.error, right.content) == (None, "x")

    def test_ctrl_c_at_the_keyboard_is_not_the_tools(self) -> None:
        @tool
        def interrupted() -> None:
            """Be interrupted."""
            os.kill(os.getpid(), signal.SIGINT)
            time.sleep(5)

        handler = signal.getsignal(signal.SIGINT)
        with pytest.raises(KeyboardInterrupt):
            run(interrupted)
        assert signal.getsignal(signal.SIGINT) is handler


class TestContent:
    def test_is_clean_and_bounded(self) -> None:
        @tool
        def noisy(size: int) -> str:
            """Make noise."""
            return "\x00\ud800" + "x" * size

        assert run(noisy, size=3).content == "\\x00\\ud800xxx"
        with ToolSessions([noisy], seed=0, max_chars=200) as sessions:
            content = sessions.run([ToolCall("noisy", {"size": 5000})])[0].content
        assert len(content) <= 200
        assert "characters dropped" in content
        assert len(run(noisy, size=50_000).content) <= 10_000

    def test_a_default_is_not_shared_between_episodes(self) -> None:
        @tool
        def collect(items: list[str] = []) -> list[str]:  # noqa: B006
            """Collect."""
            items.append("x")
            return items

        assert [run(collect).content for _ in range(2)] == ['["x"]', '["x"]']


class TestChoice:
    def test_names_and_objects(self) -> None:
        with ToolSessions(["calculator", nap], seed=0) as sessions:
            assert list(sessions.tools) == ["calculator", "nap"]

    def test_unknown_and_double_names(self) -> None:
        with pytest.raises(UnknownNameError, match="calculator"):
            ToolSessions(["calculater"], seed=0)
        with pytest.raises(ConfigError, match="Two tools"):
            ToolSessions([nap, nap], seed=0)


class TestClone:
    """Tools in the middle of an episode, twice."""

    @staticmethod
    def counting(**parts: Any) -> Tool:
        """Return a tool that counts its calls; ``parts`` become attributes of its class."""

        def call(self: Any) -> int:
            """Count up."""
            self.count = getattr(self, "count", 0) + 1
            return int(self.count)

        return tool(type("counting", (), {"__call__": call, "__doc__": "Count up.", "closed": 0, **parts}))

    @staticmethod
    def counts(sessions: ToolSessions, times: int = 1, name: str = "counting") -> list[str]:
        return [sessions.run([ToolCall(name, {})])[0].content for _ in range(times)]

    def test_each_goes_on_alone(self) -> None:
        counting = self.counting(clone=copy.copy)
        assert counting.can_clone
        with ToolSessions([counting, whoami], seed=0) as sessions:
            assert self.counts(sessions, 2) == ["1", "2"]
            with sessions.clone() as twin, copy.deepcopy(sessions) as other:
                assert [self.counts(s, 2) for s in (twin, sessions, other)] == [["3", "4"]] * 3
            assert self.counts(sessions) == ["5"]  # closing a twin does not close this one
            with pytest.raises(EpisodeError, match="closed"):
                twin.run([])

    def test_a_tool_that_was_not_called_needs_no_clone(self) -> None:
        counting = self.counting()
        assert not counting.can_clone
        with ToolSessions([counting], seed=0) as sessions:
            with sessions.clone() as twin:
                assert self.counts(twin) == self.counts(sessions) == ["1"]
            with pytest.raises(ConfigError, match=r"'counting' has a state .* method clone\(self\)"):
                sessions.clone()

    def test_a_tool_may_say_that_it_cannot(self) -> None:
        def refuse(self: Any) -> Any:
            raise ConfigError("its file is open. Close it.")

        counting = self.counting(clone=refuse, can_clone=False)
        assert not counting.can_clone
        with ToolSessions([counting], seed=0) as sessions:
            self.counts(sessions)
            with pytest.raises(ConfigError, match="'counting' cannot be cloned now: its file is open"):
                sessions.clone()

    @pytest.mark.parametrize(
        ("clone", "error", "message"),
        [
            (lambda self: self, ConfigError, "another instance of its class"),
            (lambda self: None, ConfigError, "another instance of its class, got None"),
            (lambda self: 1 / 0, EnvironmentFault, "did not clone itself: ZeroDivisionError"),
        ],
    )
    def test_a_clone_that_is_none(self, clone: Any, error: type[Exception], message: str) -> None:
        with ToolSessions([self.counting(clone=clone)], seed=0) as sessions:
            self.counts(sessions)
            with pytest.raises(error, match=message):
                sessions.clone()

    def test_what_was_cloned_before_the_failure_is_closed(self) -> None:
        closed: list[Any] = []
        good = self.counting(clone=copy.copy, close=lambda self: closed.append(self))
        bad = tool(name="bad")(self.counting().target)
        with ToolSessions([good, bad], seed=0) as sessions:
            self.counts(sessions)
            self.counts(sessions, name="bad")
            with pytest.raises(ConfigError, match="'bad'"):
                sessions.clone()
            assert len(closed) == 1
        assert len(closed) == 2

    def test_a_state_behind_a_time_limit_stays_there(self) -> None:
        counting = tool(timeout=30)(self.counting(clone=copy.copy).target)
        assert not counting.can_clone
        with ToolSessions([counting], seed=0) as sessions:
            with sessions.clone() as twin:
                assert self.counts(twin) == ["1"]
            self.counts(sessions)
            for attempt in (sessions.clone, lambda: cloudpickle.dumps(sessions)):
                with pytest.raises(ConfigError, match=r"'counting' cannot be (cloned|pickled) now: with timeout="):
                    attempt()

    def test_without_a_state_a_time_limit_does_not_matter(self) -> None:
        limited = tool(timeout=30)(nap.target)
        assert limited.can_clone
        call = [ToolCall("nap", {"seconds": 0.0, "label": "a"})]
        with ToolSessions([limited], seed=0) as sessions:
            expected = sessions.run(call)
            with sessions.clone() as twin, pickle.loads(cloudpickle.dumps(sessions)) as other:
                assert twin.run(call) == other.run(call) == expected

    def test_the_form_of_clone_is_checked_when_the_tool_is_made(self) -> None:
        with pytest.raises(TypeError, match=r"needs the form clone\(self\)"):
            self.counting(clone=lambda self, deep: self)


def test_a_tool_that_never_returns_does_not_keep_the_process() -> None:
    program = """
import threading
from trajgym.envs.tools.base import tool
from trajgym.envs.tools.execution import ToolSessions
from trajgym.types import ToolCall

hangs = threading.Event()

@tool
def wait() -> str:
    "Wait for ever."
    hangs.set()
    threading.Event().wait()

sessions = ToolSessions([wait], seed=0)
threading.Thread(target=sessions.run, args=([ToolCall("wait", {})] * 2,), daemon=True).start()
hangs.wait()
print("over")
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout == "over\n"
