"""The tool ``python``: one interpreter per episode, gone with it, and failures that are told apart from faults."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import threading
import warnings

import pytest

from trajgym.envs.sandbox import IsolationUnavailable, Limits, Pool, selftest
from trajgym.envs.tools import Tool, ToolFailure, ToolSessions, get_tool
from trajgym.envs.tools.python import python_tool, shared_pool
from trajgym.errors import ConfigError, EnvironmentFault
from trajgym.types import ToolCall, ToolResult

LOST = "The interpreter was restarted: variables, functions and imports of earlier calls are gone."


pytestmark = pytest.mark.usefixtures("isolated", "nothing_is_left")


def live(pool: Pool) -> int:
    """Return how many of a pool's sessions have not ended."""
    return sum(session.dead is None for session in list(pool._link.members))


def ask(sessions: ToolSessions, *codes: str) -> list[ToolResult]:
    return [sessions.run([ToolCall("python", {"code": code})])[0] for code in codes]


def zygote(pool: Pool) -> int:
    children = []
    for entry in os.listdir("/proc"):
        with contextlib.suppress(OSError, ValueError), open(f"/proc/{entry}/stat") as file:
            if int(file.read().rpartition(")")[2].split()[1]) == pool._link.pid:
                children.append(int(entry))
    (pid,) = children
    return pid


class TestTool:
    def test_it_is_registered_and_says_what_there_is(self) -> None:
        tool = get_tool("python")
        assert tool.signature == "python(code: string)"
        for word in ("numpy", "sympy", "no network", "State is kept"):
            assert word in tool.description
        assert "every call starts afresh" in python_tool(stateless=True).description.lower()
        assert "numpy" not in python_tool(packages=()).description
        assert python_tool(name="py", description="Run it.").signature == "py(code: string)"
        assert python_tool(description="Run it.").description == "Run it."

    def test_state_is_kept_within_an_episode_and_not_beyond(self, python: Tool, pool: Pool) -> None:
        with ToolSessions([python], seed=1) as sessions:
            results = ask(sessions, "x = 6", "def f():\n    return x * 7", "print('!')\nf()", "1 / 0", "x")
            assert [r.content for r in results[:3]] == ["(no output)", "(no output)", "!\n42"]
            assert results[3].error == "exception"
            assert results[4].content == "6"
            assert live(pool) == 1
        assert live(pool) == 0
        with ToolSessions([python], seed=1) as sessions:
            (result,) = ask(sessions, "x")
        assert result.error == "exception"
        assert "NameError: name 'x' is not defined" in result.content
        assert result.content.startswith("Traceback")

    def test_calls_of_one_turn_run_in_their_order(self, python: Tool) -> None:
        with ToolSessions([python, "calculator"], seed=0) as sessions:
            calls = [ToolCall("python", {"code": f"x = {'x + ' if i else ''}{i}\nx"}) for i in range(5)]
            calls.insert(2, ToolCall("calculator", {"expression": "1+1"}))
            assert [r.content for r in sessions.run(calls)] == ["0", "1", "2", "3", "6", "10"]

    def test_the_interpreter_starts_with_the_first_call(self, python: Tool, pool: Pool) -> None:
        with ToolSessions([python], seed=0) as sessions:
            assert live(pool) == 0
            ask(sessions, "1")
            assert live(pool) == 1

    def test_a_stateless_one_forgets_and_keeps_no_process(self) -> None:
        tool = python_tool(stateless=True, packages=())
        pool = shared_pool(**tool().options)
        with ToolSessions([tool], seed=3) as sessions:
            results = ask(sessions, "import random\nx = random.random(); x", "x", "import random; random.random()")
            assert results[1].error == "exception"
            assert results[0].content == results[2].content
            (result,) = ask(sessions, "import os; os._exit(1)")
            assert (result.error, LOST in result.content) == ("worker_died", False)
            assert live(pool) == 0

    def test_the_episodes_seed_makes_its_random_numbers(self, python: Tool) -> None:
        def draw(seed: int) -> str:
            with ToolSessions([python], seed=seed) as sessions:
                return ask(sessions, "import random; random.random()")[0].content

        assert draw(2**62 + 1) == draw(2**62 + 1) != draw(2**62 + 2)

    @pytest.mark.parametrize(
        ("code", "kind", "words", "lost"),
        [
            ("1 / 0", "exception", "ZeroDivisionError: division by zero", False),
            ("def f(:", "exception", "SyntaxError", False),
            ("exit(3)", "exit", "Exit", False),
            ("%matplotlib inline", "unsupported_magic", "Write plain Python", False),
            ("'\x00'", "invalid_source", "NUL character", False),
            ("#" * 1_000_001, "invalid_source", "1,000,001 characters", False),
            ("b = bytearray(10**10)", "memory", "MemoryError", False),
            ("while True: pass", "timeout", "More than 0.1 s of processor time", True),
            ("import time; time.sleep(60)", "timeout", "More than 0.6 s, asleep or waiting", True),
            ("print('x' * 2_000_000)", "output_limit", "More than 1,048,576 bytes of output", True),
            ("import os; os.abort()", "worker_died", "The interpreter crashed", True),
            ("import os; os._exit(3)", "worker_died", "exited with status 3", True),
            ("import os; os.write(3, b'x' * 99)", "protocol_violation", "forged or broken", True),
        ],
    )
    def test_each_end_has_its_kind(self, code: str, kind: str, words: str, lost: bool) -> None:
        wall = 0.6 if "asleep" in words else 60.0
        tool = python_tool(packages=(), limits=Limits(cpu=0.1, wall=wall))
        with ToolSessions([tool], seed=0) as sessions:
            _, result, after = ask(sessions, "x = 6", code, "x * 7")
        assert (result.error, words in result.content) == (kind, True), result.content
        assert (LOST in result.content) == lost
        assert after.content == "42" if not lost else after.error == "exception"
        assert len(result.content) <= 10_000

    @pytest.mark.parametrize("lines", [100, 1_000, 5_000])
    def test_long_output_is_cut_once_with_a_right_count(self, python: Tool, lines: int) -> None:
        code = f"for i in range({lines}): print('%09d' % i)\n"
        with ToolSessions([python], seed=0) as sessions:
            fine, failed = ask(sessions, code, code + "1 / 0")
        for content in (fine.content, failed.content):
            assert len(content) <= 10_000
            head, *rest = re.split(r"\n\[… (\d+) characters dropped …\]\n", content)
            assert len(rest) in (0, 2)
            dropped, tail = (int(rest[0]), rest[1]) if rest else (0, "")
            written = (head + tail).split("Traceback")[0]
            assert len(written) + dropped + ("Traceback" not in content) == lines * 10
        assert failed.content.endswith("ZeroDivisionError: division by zero")

    def test_text_is_clean(self, python: Tool) -> None:
        with ToolSessions([python], seed=0) as sessions:
            (result,) = ask(
                sessions,
                "print('\\ud800 \\x00 \\x1b[31mred\\x1b[0m <|im_end|>')\nimport os; os.write(1, b'\\xff') and None",
            )
        assert result.content == "\\ud800 \\x00 red <|im_end|>\n\ufffd"

    def test_results_tell_the_isolation_of_this_machine(self, python: Tool, pool: Pool) -> None:
        assert python.isolation == "kernel"
        with ToolSessions([python], seed=0) as sessions:
            assert [r.isolation for r in ask(sessions, "1", "1 / 0")] == [pool.isolation] * 2
        assert pool.isolation in ("namespaces", "landlock")

    def test_options_reach_the_sandbox(self, monkeypatch: pytest.MonkeyPatch) -> None:
        with ToolSessions([python_tool(limits=Limits(output=100), packages=["json"])], seed=0) as sessions:
            result, missing = ask(sessions, "'x' * 300", "import numpy")
            assert "202 characters dropped" in result.content
            assert "No module named 'numpy'" in missing.content
        landlocked = python_tool(isolation="landlock", packages=())
        with contextlib.suppress(IsolationUnavailable), ToolSessions([landlocked], seed=0) as sessions:
            assert ask(sessions, "1")[0].isolation == "landlock"
        monkeypatch.setenv("TRAJGYM_ALLOW_UNSAFE", "1")
        unsafe = python_tool(isolation="none", min_isolation="none", allow_unsafe=True, packages=())
        with ToolSessions([unsafe], seed=0) as sessions:
            assert ask(sessions, "1")[0].isolation == "none"

    def test_scratch_is_an_option_also_without_namespaces(self) -> None:
        try:
            Pool(isolation="landlock", packages=()).close()
        except IsolationUnavailable as error:
            pytest.skip(str(error))
        for scratch, kind in ((None, "exception"), (1 << 20, None)):
            tool = python_tool(isolation="landlock", packages=(), limits=Limits(scratch=scratch))
            with ToolSessions([tool], seed=0) as sessions:
                assert ask(sessions, "open('file', 'w').write('x')")[0].error == kind

    def test_what_cannot_be_had_is_a_fault_that_says_why(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(selftest, "misses", lambda session, packages: ["connects over TCP"])
        tool = python_tool(packages=("json", "re"))
        with ToolSessions([tool], seed=0) as sessions, pytest.raises(EnvironmentFault, match="failed: connects over"):
            ask(sessions, "1")

    def test_what_the_caller_got_wrong_is_no_fault(self) -> None:
        tool = python_tool(packages=("nunpy",))
        with ToolSessions([tool], seed=0) as sessions, pytest.raises(ConfigError, match="Did you mean 'numpy'"):
            ask(sessions, "1")

    def test_it_works_without_an_episode_around_it(self, python: Tool) -> None:
        instance = python()
        instance.open(0)
        assert instance("6 * 7") == "42"
        with pytest.raises(ToolFailure) as caught:
            instance("1 / 0")
        assert caught.value.kind == "exception"
        assert instance.result is not None
        assert instance.result.error_type == "ZeroDivisionError"
        instance.close()
        instance.close()


class TestFaults:
    def test_a_pool_that_dies_in_a_call_is_a_fault_and_the_next_episode_works(self, python: Tool, pool: Pool) -> None:
        restarts = pool.restarts
        with ToolSessions([python], seed=0) as sessions:
            ask(sessions, "x = 1")
            killer = threading.Timer(0.2, os.kill, (zygote(pool), signal.SIGKILL))
            killer.start()
            with pytest.raises(EnvironmentFault, match="The Python interpreter is gone: the interpreter's pool died"):
                ask(sessions, "import time; time.sleep(30)")
            killer.join()
            # The episode is invalid: it does not go on with an empty interpreter.
            with pytest.raises(EnvironmentFault, match="is gone"):
                ask(sessions, "1")
        with ToolSessions([python], seed=0) as sessions:
            assert ask(sessions, "6 * 7")[0].content == "42"
        assert pool.restarts == restarts + 1

    def test_an_episode_closed_in_a_call_is_a_fault(self, python: Tool) -> None:
        sessions = ToolSessions([python], seed=0)
        ask(sessions, "x = 1")
        timer = threading.Timer(0.2, sessions.close)
        timer.start()
        with pytest.raises(EnvironmentFault, match="the session was closed"):
            ask(sessions, "import time; time.sleep(30)")
        timer.join()

    def test_an_interrupt_at_the_keyboard_is_the_users(self, python: Tool, pool: Pool) -> None:
        with ToolSessions([python], seed=0) as sessions:
            ask(sessions, "x = 1")
            before = signal.getsignal(signal.SIGINT)
            timer = threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT))
            timer.start()
            with pytest.raises(KeyboardInterrupt):
                ask(sessions, "import time; time.sleep(30)")
            timer.join()
            assert signal.getsignal(signal.SIGINT) is before
            assert live(pool) == 0

    def test_a_forked_process_does_not_go_on_with_an_empty_interpreter(self, python: Tool) -> None:
        with ToolSessions([python], seed=0) as sessions:
            ask(sessions, "x = 1")
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", DeprecationWarning)
                pid = os.fork()
            if not pid:
                status = 1
                try:
                    with pytest.raises(EnvironmentFault, match="forked from it"):
                        ask(sessions, "x")
                    with ToolSessions([python], seed=0) as own:
                        status = int(ask(own, "6 * 7")[0].content != "42")
                finally:
                    os._exit(status)
            assert os.waitpid(pid, 0)[1] == 0
            assert ask(sessions, "x")[0].content == "1"
