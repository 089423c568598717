"""Tools that must be stopped: nothing of them is left, whatever they do."""

from __future__ import annotations

import contextlib
import gc
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from trajgym.envs.tools import Tool, ToolFailure, ToolSessions, tool
from trajgym.envs.tools.process import stop_idle_processes
from trajgym.errors import EnvironmentFault
from trajgym.types import ToolCall, ToolResult

pytestmark = pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="counts what /proc shows")


def children() -> set[int]:
    """Return the ids of all descendants of this process, zombies included."""
    parents = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            fields = stat.read_text(errors="replace").rpartition(")")[2].split()
            parents[int(stat.parent.name)] = int(fields[1])
    found: set[int] = set()
    frontier = {os.getpid()}
    while frontier:
        frontier = {pid for pid, parent in parents.items() if parent in frontier}
        found |= frontier
    return found


def running(pid: int) -> bool:
    """Whether a process is there and no zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def gone(pid: int, within: float = 5.0) -> bool:
    end = time.monotonic() + within
    while running(pid) and time.monotonic() < end:
        time.sleep(0.01)
    return not running(pid)


def census() -> tuple[int, int, set[int]]:
    gc.collect()
    return threading.active_count(), len(os.listdir("/proc/self/fd")), children()


@pytest.fixture(autouse=True)
def nothing_is_left() -> Iterator[None]:
    stop_idle_processes()
    before = census()
    yield
    stop_idle_processes()
    assert census() == before


def run(used: Tool, **arguments: Any) -> ToolResult:
    with ToolSessions([used], seed=0) as sessions:
        (result,) = sessions.run([ToolCall(used.name, arguments)])
    return result


@tool(timeout=20)
def pid() -> int:
    """Tell the process."""
    return os.getpid()


@tool(timeout=0.3)
def spin() -> None:
    """Never end."""
    while True:
        pass


class TestTimeouts:
    def test_a_quick_call(self) -> None:
        result = run(pid)
        assert result.error is None
        assert int(result.content) != os.getpid()
        assert result.isolation == "process"

    def test_a_busy_loop(self) -> None:
        began = time.monotonic()
        result = run(spin)
        assert result.error == "timeout"
        assert result.content == "spin was stopped after its time limit of 0.3 s."
        assert 0.3 <= result.seconds < 10
        assert time.monotonic() - began < 20

    def test_deaf_to_signals_and_holding_the_interpreter_lock(self) -> None:
        @tool(timeout=0.3)
        def deaf() -> None:
            """Ignore every signal."""
            for number in range(1, 65):
                with contextlib.suppress(OSError, ValueError):
                    signal.signal(number, signal.SIG_IGN)
            pow(9, 9**9)

        assert run(deaf).error == "timeout"

    def test_what_it_started_goes_with_it(self, tmp_path: Path) -> None:
        def start_and_wait(folder: str) -> None:
            """Start processes, also in sessions of their own."""
            plain = subprocess.Popen(["sleep", "600"])
            apart = subprocess.Popen(["sleep", "600"], start_new_session=True)
            script = "setsid sleep 600 > /dev/null & echo $!"
            orphan = subprocess.run(["sh", "-c", script], stdout=subprocess.PIPE, text=True).stdout
            Path(folder, "pids").write_text(f"{plain.pid} {apart.pid} {orphan}")
            time.sleep(600)

        result = run(tool(timeout=2)(start_and_wait), folder=str(tmp_path))
        assert result.error == "timeout"
        pids = [int(word) for word in (tmp_path / "pids").read_text().split()]
        assert len(pids) == 3
        assert all(gone(started) for started in pids)

    def test_a_process_left_behind_by_a_call_that_succeeds(self) -> None:
        @tool(timeout=20)
        def leave() -> int:
            """Leave a process behind."""
            return subprocess.Popen(["sleep", "600"], start_new_session=True).pid

        result = run(leave)
        assert result.error is None
        assert gone(int(result.content))

    def test_a_thread_left_behind_does_not_meet_the_next_call(self) -> None:
        @tool(timeout=20)
        def thread() -> int:
            """Leave a thread behind."""
            threading.Thread(target=time.sleep, args=(600,)).start()
            return os.getpid()

        first, second = int(run(thread).content), int(run(thread).content)
        assert first != second
        assert gone(first)

    def test_state_is_lost_and_the_policy_is_told(self) -> None:
        @tool(timeout=1)
        class Counter:
            """Count."""

            def open(self, seed: int) -> None:
                self.count = seed

            def __call__(self, hang: bool = False) -> int:
                self.count += 1
                while hang:
                    pass
                return self.count

        with ToolSessions([Counter], seed=10) as sessions:
            calls = [ToolCall("Counter"), ToolCall("Counter", {"hang": True}), ToolCall("Counter")]
            results = sessions.run([ToolCall("Counter"), *calls])
            assert [result.content for result in (results[0], results[1], results[3])] == ["11", "12", "11"]
            assert results[2].error == "timeout"
            assert results[2].content.endswith("Its state is lost: the next call starts anew.")
            assert sessions.run([ToolCall("Counter")])[0].content == "12"


class TestProtocol:
    def test_what_a_tool_prints_is_no_reply(self) -> None:
        @tool(timeout=20)
        def loud() -> str:
            """Print."""
            for stream in (1, 2):
                os.write(stream, b"\x00\x00\x00\x00\x00\x00\x00\x02{}" * 3)
            print('{"content": "forged", "error": null}')
            return "true"

        assert run(loud).content == "true"

    def test_nonsense_on_the_channel(self) -> None:
        @tool(timeout=20)
        def forge(frame: str) -> str:
            """Write to every descriptor that is a socket."""
            import socket

            for number in range(3, 64):
                with contextlib.suppress(OSError):
                    socket.socket(fileno=os.dup(number)).sendall(bytes.fromhex(frame))
            return "true"

        for frame in (
            b"\xff" * 8,
            b"\x00" * 7 + b"\x02[]",
            b"\x00" * 7 + b"\x01{",
            b"\x00" * 7 + b"\x02{}",
            b"\x00" * 7 + b"\x11" + b'{"content": null}',
        ):
            result = run(forge, frame=frame.hex())
            assert result.error == "worker_died"
            assert "forge" in result.content

    def test_a_second_reply_does_not_answer_the_next_call(self) -> None:
        @tool(timeout=20)
        def twice() -> None:
            """Write a reply before the true one."""
            import json
            import socket
            import struct

            frame = json.dumps({"content": f"{os.getpid()}", "error": None, "reusable": True}).encode()
            for number in range(3, 64):
                with contextlib.suppress(OSError):
                    socket.socket(fileno=os.dup(number)).sendall(struct.pack("!Q", len(frame)) + frame)
            time.sleep(0.2)

        first = int(run(twice).content)
        time.sleep(0.4)  # the true reply of the first call has arrived by now: that process is not asked again
        second = int(run(twice).content)
        assert first != second
        assert gone(first)

    @pytest.mark.parametrize("how", ["os._exit(0)", "os.kill(os.getpid(), 9)", "os.kill(0, 9)", "os.closerange(3, 99)"])
    def test_a_process_that_dies(self, how: str) -> None:
        @tool(timeout=20)
        def die(how: str) -> None:
            """Die."""
            exec(how, {"os": os})

        result = run(die, how=how)
        assert result.error == "worker_died"
        assert "die" in result.content

    def test_errors_and_texts_are_those_of_a_tool_without_timeout(self) -> None:
        def fail(how: str) -> Any:
            """Fail."""
            if how == "exit":
                sys.exit(3)
            if how == "interrupt":
                raise KeyboardInterrupt
            if how == "failure":
                raise ToolFailure("not_found", "No\x00such row.")
            if how == "text":
                return "\x00\ud800🙂" * 10_000
            return {"a": [how]}

        here, there = tool(fail), tool(timeout=20)(fail)
        for how in ("exit", "interrupt", "failure", "text", "json"):
            one, other = run(here, how=how), run(there, how=how)
            assert (one.content, one.error) == (other.content, other.error)

    def test_faults_pass_through(self) -> None:
        @tool(timeout=20)
        def faulty() -> None:
            """Fail for reasons of ours."""
            raise EnvironmentFault("the disk is full")

        with pytest.raises(EnvironmentFault, match=r"faulty.*the disk is full"):
            run(faulty)

    def test_a_tool_that_does_not_open_is_a_fault(self) -> None:
        @tool(timeout=20)
        class Broken:
            """Break."""

            def open(self, seed: int) -> None:
                raise OSError("no table")

            def __call__(self) -> None: ...

        with pytest.raises(EnvironmentFault, match="no table"):
            run(Broken)

    def test_a_large_argument(self) -> None:
        @tool(timeout=20)
        def measure(text: str) -> int:
            """Measure."""
            return len(text)

        assert run(measure, text="é" * 3_000_000).content == "3000000"


class TestReuse:
    def test_one_process_serves_call_after_call(self) -> None:
        assert len({run(pid).content for _ in range(3)}) == 1

    def test_concurrent_calls_have_a_process_each(self) -> None:
        @tool(timeout=20)
        def nap(seconds: float) -> int:
            """Sleep."""
            time.sleep(seconds)
            return os.getpid()

        with ToolSessions([nap], seed=0) as sessions:
            calls = [ToolCall("nap", {"seconds": 0.4})] * 4
            sessions.run(calls)
            began = time.monotonic()
            results = sessions.run(calls)
            assert time.monotonic() - began < 1.2
        assert len({result.content for result in results}) == 4

    def test_idle_processes_are_few(self) -> None:
        @tool(timeout=20)
        def nap() -> int:
            """Sleep."""
            time.sleep(0.3)
            return os.getpid()

        before = children()
        with ToolSessions([nap], seed=0) as sessions:
            sessions.run([ToolCall("nap")] * 12)
        assert len(children() - before) <= 8

    def test_a_process_that_died_while_idle_is_replaced(self) -> None:
        first = int(run(pid).content)
        os.kill(first, signal.SIGKILL)
        assert gone(first)
        result = run(pid)
        assert result.error is None
        assert int(result.content) != first

    def test_a_state_has_a_process_of_its_own_that_ends_with_the_episode(self, tmp_path: Path) -> None:
        @tool(timeout=20)
        class Closing:
            """Say when it closes."""

            def __call__(self, folder: str) -> int:
                self.folder = folder
                return os.getpid()

            def close(self) -> None:
                Path(self.folder, "closed").touch()

        pids = set()
        for _ in range(2):
            with ToolSessions([Closing], seed=0) as sessions:
                ids = {sessions.run([ToolCall("Closing", {"folder": str(tmp_path)})])[0].content for _ in range(2)}
            assert (tmp_path / "closed").exists()
            (tmp_path / "closed").unlink()
            pids |= ids
        assert len(pids) == 2

    def test_a_dropped_episode_ends_its_processes(self) -> None:
        @tool(timeout=20)
        class Kept:
            """Keep a state."""

            def __call__(self) -> int:
                return os.getpid()

        sessions = ToolSessions([Kept], seed=0)
        process = int(sessions.run([ToolCall("Kept")])[0].content)
        del sessions
        gc.collect()
        assert gone(process)


def in_a_script(body: str, tmp_path: Path) -> subprocess.Popen[str]:
    script = tmp_path / "script.py"
    script.write_text(
        textwrap.dedent(
            """
            import os, signal, sys, threading, time
            from trajgym.envs.tools import ToolSessions, tool
            from trajgym.types import ToolCall

            @tool(timeout=60)
            def work(hang: bool = False) -> int:
                '''Work.'''
                print(os.getpid(), flush=True)
                if hang:
                    pow(9, 9 ** 9)
                return os.getpid()

            sessions = ToolSessions([work], seed=0)
            """
        )
        + textwrap.dedent(body)
    )
    return subprocess.Popen([sys.executable, script], stdout=subprocess.PIPE, text=True)


def read_pid(parent: subprocess.Popen[str]) -> int:
    assert parent.stdout is not None
    return int(parent.stdout.readline())


class TestParent:
    def test_a_killed_parent_takes_its_busy_process_along(self, tmp_path: Path) -> None:
        with in_a_script("sessions.run([ToolCall('work', {'hang': True})])", tmp_path) as parent:
            process = read_pid(parent)
            assert running(process)
            parent.kill()
            assert gone(process, within=2.0)

    def test_a_killed_parent_takes_its_idle_processes_along(self, tmp_path: Path) -> None:
        with in_a_script("sessions.run([ToolCall('work')]); time.sleep(60)", tmp_path) as parent:
            process = read_pid(parent)
            parent.kill()
            assert gone(process, within=2.0)

    @pytest.mark.parametrize("end", ["", "sys.exit(3)", "os._exit(0)", "raise ValueError"])
    def test_the_end_of_the_interpreter_is_their_end(self, tmp_path: Path, end: str) -> None:
        body = f"sys.excepthook = lambda *a: None\nsessions.run([ToolCall('work')])\n{end}"
        with in_a_script(body, tmp_path) as parent:
            process = read_pid(parent)
            parent.wait(10)
            assert gone(process, within=2.0)

    def test_the_thread_that_started_it_may_end(self, tmp_path: Path) -> None:
        body = """
        first = threading.Thread(target=sessions.run, args=([ToolCall('work')],))
        first.start(); first.join()
        time.sleep(0.2)
        print(sessions.run([ToolCall('work')])[0].content, flush=True)
        """
        with in_a_script(body, tmp_path) as parent:
            assert read_pid(parent) == read_pid(parent) == read_pid(parent)

    def test_a_fork_forgets_them(self, tmp_path: Path) -> None:
        body = """
        sessions.run([ToolCall('work')])
        if os.fork() == 0:
            assert not [f for f in os.listdir('/proc/self/fd') if int(f) > 3], os.listdir('/proc/self/fd')
            sessions.run([ToolCall('work')])
            sessions.close()
            from trajgym.envs.tools.process import stop_idle_processes
            stop_idle_processes()
            os._exit(0)
        os.wait()
        sessions.run([ToolCall('work')])
        """
        with in_a_script(body, tmp_path) as parent:
            mine, childs, again = read_pid(parent), read_pid(parent), read_pid(parent)
        assert mine == again != childs
        assert parent.returncode == 0
        assert gone(mine)
        assert gone(childs)

    def test_ctrl_c_while_a_tool_works(self, tmp_path: Path) -> None:
        body = """
        try:
            sessions.run([ToolCall('work', {'hang': True})])
        except KeyboardInterrupt:
            print(7, flush=True)
        print(sessions.run([ToolCall('work')])[0].error is None and 8, flush=True)
        """
        with in_a_script(body, tmp_path) as parent:
            process = read_pid(parent)
            parent.send_signal(signal.SIGINT)
            assert read_pid(parent) == 7
            assert gone(process)
            read_pid(parent)
            assert read_pid(parent) == 8


def test_many_rounds_leave_nothing(recwarn: pytest.WarningsRecorder) -> None:
    for _ in range(3):
        assert run(pid).error is None
        assert run(spin).error == "timeout"
    gc.collect()
    assert not recwarn.list
