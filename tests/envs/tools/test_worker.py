"""What comes out of a tool: clean text, typed errors, frames."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trajgym.envs.tools import ToolFailure, worker
from trajgym.envs.tools.worker import Outcome, as_clean_text, finish, invoke, receive_frame, send_frame, start
from trajgym.errors import EnvironmentFault


class TestText:
    @pytest.mark.parametrize(
        ("value", "text"),
        [
            ("a\n\tb", "a\n\tb"),
            ("naïve 🙂 \u2028", "naïve 🙂 \u2028"),
            ("a\x00\x1b[31m\r\x7f\x85", "a\\x00\\x1b[31m\\r\\x7f\\x85"),
            ("\ud800x\udfff", "\\ud800x\\udfff"),
            (3, "3"),
            (True, "True"),
            (None, "None"),
            ({"a": [1, "é"]}, '{"a": [1, "é"]}'),
            ([{1}], "[{1}]"),
            ((1, 2), "(1, 2)"),
        ],
    )
    def test_values(self, value: object, text: str) -> None:
        assert as_clean_text(value, 1000) == text

    @given(st.text(alphabet=st.characters()), st.integers(60, 200))
    def test_always_encodable_and_bounded(self, text: str, limit: int) -> None:
        clean = as_clean_text(text * 9, limit)
        assert len(clean) <= limit
        clean.encode()
        assert not any(ord(c) < 32 and c not in "\n\t" for c in clean)

    def test_the_middle_is_cut_and_counted(self) -> None:
        text = "".join(chr(ord("a") + i % 26) for i in range(1000))
        cut = as_clean_text(text, 100)
        head, notice, tail = cut.split("\n")
        assert text.startswith(head)
        assert text.endswith(tail)
        assert notice == f"[… {1000 - len(head) - len(tail)} characters dropped …]"
        assert abs(len(head) - len(tail)) <= 1
        assert as_clean_text(text, 1000) == text

    def test_a_cyclic_list(self) -> None:
        cycle: list[object] = []
        cycle.append(cycle)
        assert as_clean_text(cycle, 100) == "[[...]]"


class TestInvoke:
    def raising(self, error: BaseException) -> Outcome:
        def tool() -> str:
            raise error

        return invoke(tool, {}, 200, (EnvironmentFault,))

    @pytest.mark.parametrize(
        ("error", "content"),
        [
            (ValueError("two\nlines"), "ValueError: two lines"),
            (KeyError("a"), "KeyError: 'a'"),
            (ValueError(), "ValueError"),
            (SystemExit(3), "SystemExit: 3"),
            (KeyboardInterrupt(), "KeyboardInterrupt"),
            (ValueError("\x00"), "ValueError: \\x00"),
        ],
    )
    def test_whatever_is_raised_is_one_line(self, error: BaseException, content: str) -> None:
        assert self.raising(error) == Outcome(content, "tool_error")

    def test_long_messages_are_cut(self) -> None:
        assert len(self.raising(ValueError("x" * 9000)).content) <= 200

    def test_an_error_that_cannot_be_printed(self) -> None:
        class Mute(Exception):
            def __str__(self) -> str:
                raise RuntimeError

        assert self.raising(Mute()) == Outcome("Mute", "tool_error")

    def test_a_result_that_cannot_be_printed(self) -> None:
        assert invoke(lambda: 10**9999, {}, 200).error == "tool_error"

    def test_endless_recursion(self) -> None:
        def tool() -> str:
            return tool()

        assert invoke(tool, {}, 200).content.startswith("RecursionError")

    def test_failures_and_faults(self) -> None:
        assert self.raising(ToolFailure("not_found", "No row 3.")) == Outcome("No row 3.", "not_found")
        with pytest.raises(EnvironmentFault, match="disk"):
            self.raising(EnvironmentFault("disk"))


def test_instances_are_opened_and_closed() -> None:
    class Stateful:
        seed = -1

        def open(self, seed: int) -> None:
            self.seed = seed

        def __call__(self) -> int:
            return self.seed

        def close(self) -> None:
            self.seed = -2

    class Plain:
        def __call__(self) -> int:
            return 1

    instance = start(Stateful, 7)
    assert instance() == 7
    finish(instance)
    assert instance() == -2
    finish(start(Plain, 7))
    assert start(len, 7) is len


class TestFrames:
    def test_any_bytes_travel(self) -> None:
        near, far = socket.socketpair()
        with near, far:
            for body in (b"", b"\x00" * 9, json.dumps("é").encode()):
                send_frame(near, body)
                assert receive_frame(far) == body

    def test_too_long_too_late_and_gone(self) -> None:
        near, far = socket.socketpair()
        with near, far:
            send_frame(near, b"12345")
            with pytest.raises(ValueError, match="5 bytes"):
                receive_frame(far, limit=4)
            assert far.recv(5) == b"12345"
            near.sendall(b"\x00\x00")
            with pytest.raises(TimeoutError):
                receive_frame(far, deadline=time.monotonic() + 0.05)
            near.close()
            with pytest.raises(EOFError):
                receive_frame(far)


def test_the_program_imports_little() -> None:
    heavy = ("numpy", "gymnasium", "pydantic", "torch")
    probe = f"import runpy, sys; runpy.run_path({worker.__file__!r}); print([m for m in {heavy} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", probe], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
