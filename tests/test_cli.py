"""The command line: what it prints, where, and with which exit status."""

from __future__ import annotations

import os
import subprocess
import sys
from types import ModuleType
from typing import Any

import pytest

import trajgym
from trajgym import cli
from trajgym.errors import ConfigError, DataError, TrainingError

COMMANDS = [
    *(
        "audit",
        "data",
        "diagnose",
        "doctor",
        "dpo",
        "envs",
        "evaluate",
        "export",
        "grade",
        "online",
        "pipeline",
        "plan",
    ),
    *("play", "quickstart", "reward-model", "rlaif", "serve", "sft", "train", "tune"),
]


def process(code: str, *args: str, **options: Any) -> subprocess.CompletedProcess[str]:
    """Run ``code`` and then the command line in a fresh interpreter."""
    command = [sys.executable, "-c", f"{code}\nimport sys; from trajgym.cli import main; sys.exit(main())", *args]
    streams = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE} | options
    return subprocess.run(command, text=True, check=False, timeout=120, **streams)


@pytest.fixture
def command(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Let ``trajgym envs`` do something else."""

    def replace(main: Any) -> None:
        module = ModuleType("trajgym.scripts.envs")
        module.main = main  # type: ignore[attr-defined]
        monkeypatch.setitem(sys.modules, "trajgym.scripts.envs", module)

    return replace


def raising(error: BaseException) -> Any:
    def main(args: Any) -> int:
        raise error

    return main


@pytest.mark.parametrize("args", [[], ["-h"], ["--help"], ["help"]])
def test_help_lists_the_commands(args: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(args) == 0
    out, err = capsys.readouterr()
    assert [line.split()[0] for line in out.splitlines() if line.startswith("  ")] == COMMANDS
    assert "Play an environment in the terminal: you are the policy." in out
    assert err == ""


def test_only_files_that_take_arguments_are_commands() -> None:
    assert list(cli.commands()) == COMMANDS
    assert all(cli.commands().values())


def test_the_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["--version"]) == 0
    assert capsys.readouterr().out == f"trajgym {trajgym.__version__}\n"


def test_an_unknown_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["trian"]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("trajgym trian: Unknown command 'trian'. Did you mean 'train'? Known: 'audit', 'data', ")


@pytest.mark.parametrize("name", ["", "envs.py", "make-tiny", "../cli", "__init__"])
def test_what_is_no_command_is_never_imported(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main([name]) == 2
    assert "Unknown command" in capsys.readouterr().err


def test_a_command_gets_its_arguments_and_gives_the_status(command: Any) -> None:
    seen = []
    command(lambda args: seen.append(list(args)) or 7)
    assert cli.main(["envs", "--x", "1"]) == 7
    assert seen == [["--x", "1"]]


@pytest.mark.parametrize(
    ("error", "status", "message"),
    [
        (ConfigError("no such thing"), 2, "trajgym envs: no such thing\n"),
        (DataError("no such file"), 1, "trajgym envs: no such file\n"),
        (TrainingError("not a number"), 1, "trajgym envs: not a number\n"),
        (KeyboardInterrupt(), 130, "\nInterrupted.\n"),
        (KeyboardInterrupt("Stopped after 3 updates."), 130, "\nStopped after 3 updates.\n"),
        (ModuleNotFoundError("No module named 'peft.x'", name="peft.x"), 1, "needs the package 'peft', "),
        (ModuleNotFoundError("x", name="prometheus_client.core"), 1, "pip install 'trajgym[serve]'\n"),
        (ModuleNotFoundError("x", name="openai"), 1, "pip install 'trajgym[api]'\n"),
        (ModuleNotFoundError("x", name="elsewhere"), 1, "pip install 'trajgym[train]'\n"),
    ],
)
def test_errors_are_one_line_and_a_status(
    error: BaseException, status: int, message: str, command: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    command(raising(error))
    assert cli.main(["envs"]) == status
    out, err = capsys.readouterr()
    assert out == ""
    assert message in err
    assert "Traceback" not in err


@pytest.mark.parametrize("error", [ZeroDivisionError("bug"), ModuleNotFoundError("x", name="trajgym.nowhere")])
def test_bugs_of_ours_are_not_hidden(error: Exception, command: Any) -> None:
    command(raising(error))
    with pytest.raises(type(error)):
        cli.main(["envs"])


def test_a_package_whose_name_begins_like_ours_is_not_ours(command: Any, capsys: pytest.CaptureFixture[str]) -> None:
    command(raising(ModuleNotFoundError("x", name="trajgym_plugin")))
    assert cli.main(["envs"]) == 1
    assert "'trajgym_plugin'" in capsys.readouterr().err


@pytest.mark.parametrize("args", [["train", "quickstart"], ["quickstart"]])
def test_without_torch_it_says_what_to_install(args: list[str]) -> None:
    done = process("import sys; sys.modules['torch'] = None", *args)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == (
        f"trajgym {args[0]}: needs the package 'torch', which is not installed. "
        "It comes with: pip install 'trajgym[train]'\n"
    )


def test_without_torch_the_rest_works() -> None:
    done = process("import sys; sys.modules['torch'] = None", "play", "ArithmeticTool-v0", "--seed", "0")
    assert (done.returncode, done.stderr) == (0, "")
    assert "system    │" in done.stdout


@pytest.mark.parametrize("args", [[], ["envs"], ["envs", "ArithmeticTool-v0"], ["play", "Arithmetic-v0"]])
def test_a_reader_that_went_away_is_no_error(args: list[str]) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    buffered = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    done = process("", *args, stdout=writing, env=buffered)
    os.close(writing)
    assert (done.returncode, done.stderr) == (0, "")


def test_text_that_the_terminal_cannot_show_ends_nothing() -> None:
    code = "import os, sys; sys.stdin.reconfigure(encoding='utf-8', errors='strict')"
    ascii_only = os.environ | {"PYTHONIOENCODING": "ascii:strict"}
    reading, writing = os.pipe()
    os.write(writing, b"\xff\xe2\x82\xac\n")
    os.close(writing)
    done = process(code, "play", "Arithmetic-v0", "--seed", "0", env=ascii_only, stdin=reading)
    os.close(reading)
    assert (done.returncode, done.stderr) == (0, "")
    assert "assistant \\u2502 \\udcff\\u20ac\n" in done.stdout
