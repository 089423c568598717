"""``trajgym play``: a person at a real terminal (a pseudo-terminal), and what the screen shows."""

from __future__ import annotations

import contextlib
import io
import os
import pty
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from typing import Any

import gymnasium
import pytest

from trajgym import cli
from trajgym.envs.base import ToolEnv
from trajgym.types import Task

SECONDS = 60


class Terminal:
    """``trajgym play`` in a terminal of 60 columns."""

    def __init__(self, *args: str) -> None:
        self.fd, child = pty.openpty()
        environment = os.environ | {"COLUMNS": "60", "PYTHONIOENCODING": "utf-8:strict", "TERM": "dumb"}
        self.process = subprocess.Popen(
            [sys.executable, "-m", "trajgym.cli", "play", *args],
            stdin=child, stdout=child, stderr=child, env=environment, start_new_session=True,
        )  # fmt: skip
        os.close(child)

    def read(self, until: str) -> str:
        """Return what the screen shows next, up to and without ``until``."""
        shown = b""
        end = time.monotonic() + SECONDS
        while not shown.endswith(until.encode()):
            assert select.select([self.fd], [], [], max(0.0, end - time.monotonic()))[0], (
                f"no {until!r} after {shown!r}"
            )
            try:
                shown += os.read(self.fd, 1)
            except OSError:  # the program has ended
                break
        return shown.decode().replace("\r\n", "\n").removesuffix(until)

    def type(self, line: str | bytes, until: str = "\n> ") -> str:
        """Type a line and return what it leads to, without the echo."""
        raw = line if isinstance(line, bytes) else f"{line}\n".encode()
        os.write(self.fd, raw)
        shown = self.read(until)
        return shown.removeprefix(line.rstrip("\n") + "\n") if isinstance(line, str) else shown

    def rest(self) -> tuple[str, int]:
        """Return what is shown until the end, and the exit status."""
        shown = self.read("\0")
        return shown, self.process.wait(SECONDS)


@pytest.fixture
def terminal() -> Iterator[Any]:
    made: list[Terminal] = []

    def start(*args: str) -> Terminal:
        made.append(Terminal(*args))
        return made[-1]

    yield start
    for one in made:
        if one.process.poll() is None:
            one.process.kill()
            one.process.wait()
        os.close(one.fd)


def test_a_game_from_beginning_to_end(terminal: Any) -> None:
    player = terminal("ArithmeticTool-v0", "--seed", "0")
    opening = player.read("\n> ")
    assert max(map(len, opening.split("\n"))) <= 80
    lines = opening.split("\n")
    assert "  =48+24      calls the calculator" in lines
    dialogue = lines[lines.index("system    │ Tools:") :]
    assert all(line[10:12] == "│ " for line in dialogue)
    assert max(map(len, dialogue)) <= 60

    assert player.type("=48+24") == (
        "assistant │ <tool_call>\n"
        '          │ {"name": "calculator", "arguments":\n'
        '          │ {"expression": "48+24"}}\n'
        "          │ </tool_call>\n"
        "          │ reward 0.1 (tool_success +0.1)\n"
        "calculator│ 72"
    )
    assert "\n          │ reward 0\ncalculator│ Division by zero." in player.type("  = 1/0 ")
    # Two turns are taken, so this is the demonstration's third move; typed over three lines, it is a call.
    call = player.type(":expert")
    assert call.startswith('<tool_call>\n{"name": "calculator"')
    shown = player.type(call.replace("\n", "\\\n"))
    assert shown.startswith("… … assistant │ <tool_call>\n")
    assert "\n          │ reward 0.1 (tool_success +0.1)\ncalculator│ " in shown
    assert player.type("") == ""  # Enter alone is no turn
    assert player.type(":help") == "There is no :help here, only :expert and :quit."
    assert player.type("it is\\", "… ") == ""
    end = player.type("#### 14", "[Y/n] ")
    assert end.startswith(
        "assistant │ it is\n          │ #### 14\n          │ reward 1 (accuracy +1)  [answered]\n\nTotal"
    )
    assert "Total reward 1.2. The answer is 14." in end
    assert player.type("").count("user      │") == 1
    player.type(":quit", "\n")
    assert player.rest() == ("", 0)


@pytest.mark.parametrize("how", ["\x04", ":quit\n"])
def test_leaving(terminal: Any, how: str) -> None:
    player = terminal("Arithmetic-v0")
    player.read("\n> ")
    os.write(player.fd, how.encode())
    shown, status = player.rest()
    assert status == 0
    assert "Traceback" not in shown


def test_ctrl_c(terminal: Any) -> None:
    player = terminal("Arithmetic-v0")
    player.read("\n> ")
    while player.process.poll() is None:  # one that comes just before the program reads waits for the next
        player.process.send_signal(signal.SIGINT)
        with contextlib.suppress(subprocess.TimeoutExpired):
            player.process.wait(2)
    shown, status = player.rest()
    assert (status, shown.split("\n")[-3:]) == (130, ["", "Interrupted.", ""])


@pytest.mark.parametrize("reply", ["n", ":quit", "no thanks", b"\x04"])
def test_not_another_one(terminal: Any, reply: str | bytes) -> None:
    player = terminal("Arithmetic-v0", "--seed", "0")
    player.read("\n> ")
    player.type("#### 0", "[Y/n] ")
    os.write(player.fd, reply if isinstance(reply, bytes) else f"{reply}\n".encode())
    assert player.rest()[1] == 0


def test_bytes_that_are_no_text_are_shown_as_such(terminal: Any) -> None:
    player = terminal("Arithmetic-v0")
    player.read("\n> ")
    os.write(player.fd, b"\xff\x1b[2J\n")
    shown = ""
    while "[answered]" not in shown:
        shown += os.read(player.fd, 1000).decode(errors="backslashreplace")
    assert "assistant │ \\udcff\\x1b[2J" in shown


def play(monkeypatch: pytest.MonkeyPatch, typed: str, *args: str) -> int:
    monkeypatch.setattr("sys.stdin", io.StringIO(typed))
    return cli.main(["play", *args])


def test_without_tools_help_and_demonstration_speak_of_answers_alone(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert play(monkeypatch, ":expert\n=48+24\n", "Arithmetic-v0", "--seed", "0") == 0
    out = capsys.readouterr().out
    assert "calculator" not in out
    assert "> #### 14\n> assistant │ =48+24\n          │ reward 0  [answered]\n" in out


def test_tasks_without_a_demonstration_say_so(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    gymnasium.register("Bare-v0", entry_point=lambda **kwargs: ToolEnv([Task("t", "1?", "1")]))
    try:
        assert play(monkeypatch, ":expert\n#### 1\n\n#### 2\n", "Bare-v0") == 0
    finally:
        del gymnasium.registry["Bare-v0"]
    out = capsys.readouterr().out
    assert "This task has no demonstration." in out
    assert [line for line in out.splitlines() if line.startswith("Total")] == [
        "Total reward 1. The answer is 1.", "Total reward 0. The answer is 1."
    ]  # fmt: skip


def test_the_seed_is_the_first_episodes(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def questions(*args: str) -> list[str]:
        assert play(monkeypatch, "#### x\ny\n", "Arithmetic-v0", *args) == 0
        return capsys.readouterr().out.split("user      │ ")[1:]

    first = questions("--seed", "3")
    assert first == questions("--seed", "3")
    assert first[0].split("\n")[0] != first[1].split("\n")[0]
    assert first != questions("--seed", "4")


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["Nope-v0"], "Unknown environment 'Nope-v0'"),
        (["CartPole-v1"], "CartPole-v1 is no dialogue: its class CartPoleEnv is not a trajgym ToolEnv."),
        (["ArithmeticTool-v0", "--env-kwargs", '{"dificulty": 3}'], "Did you mean 'difficulty'?"),
        (["ArithmeticTool-v0", "--env-kwargs", '{"max_turns": 0}'], "max_turns must be"),
    ],
)
def test_wrong_use_is_said(args: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["play", *args]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("trajgym play: ")
    assert message in err


@pytest.mark.parametrize(
    ("args", "message"),
    [
        ([], "required: env"),
        (["X-v0", "--env-kwargs", "{bad"], "argument --env-kwargs: not JSON: Expecting property name"),
        (["X-v0", "--env-kwargs", "[1]"], 'argument --env-kwargs: must be an object such as {"difficulty": 3}'),
        (["X-v0", "--seed", "-1"], "argument --seed: must be a whole number of 0 or more, got '-1'"),
        (["X-v0", "--seed", "x"], "argument --seed: must be a whole number of 0 or more, got 'x'"),
    ],
)
def test_wrong_arguments_are_said(args: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        cli.main(["play", *args])
    assert message in capsys.readouterr().err
