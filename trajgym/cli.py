"""The command line: ``trajgym COMMAND [OPTIONS]``.

Each command is a file in ``scripts/`` with a ``main(args) -> int`` and a docstring whose first line is its help.
"""

from __future__ import annotations

import ast
import importlib
import importlib.metadata
import io
import os
import re
import sys
from collections.abc import Sequence
from pathlib import Path

from trajgym.errors import TrajgymError, UnknownNameError

__all__ = ["commands", "main"]


def commands() -> dict[str, str]:
    """Return the name of each command and the first line of its help, without importing it."""
    found = {}
    for path in sorted((Path(__file__).parent / "scripts").glob("*.py")):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        if any(isinstance(node, ast.FunctionDef) and _is_command(node) for node in tree.body):
            found[path.stem.replace("_", "-")] = (ast.get_docstring(tree) or "").split("\n")[0]
    return found


def main(args: Sequence[str] | None = None) -> int:
    """Run one command and return its exit status: 0 done, 1 failed, 2 wrong use, 130 interrupted."""
    arguments = list(sys.argv[1:] if args is None else args)
    _accept_any_text()
    try:
        status = _run(arguments)
        if sys.stdout is not None:  # `>&-` closes it
            sys.stdout.flush()
        return status
    except BrokenPipeError:  # the reader went away, e.g. `trajgym envs | head -1`
        _discard_output()
        return 0


def _run(arguments: list[str]) -> int:
    if not arguments or arguments[0] in ("-h", "--help", "help"):
        print(_usage())
        return 0
    if arguments[0] == "--version":
        from trajgym import __version__

        print(f"trajgym {__version__}")
        return 0
    name, *rest = arguments
    try:
        if name not in commands():
            raise UnknownNameError("command", name, commands())
        command = importlib.import_module(f"trajgym.scripts.{name.replace('-', '_')}")
        return int(command.main(rest))
    except TrajgymError as error:
        print(f"trajgym {name}: {error}", file=sys.stderr)
        return 2 if isinstance(error, ValueError) else 1
    except KeyboardInterrupt as stop:
        print(f"\n{stop}" if str(stop) else "\nInterrupted.", file=sys.stderr)
        return 130
    except ModuleNotFoundError as error:
        if error.name is None or error.name.split(".")[0] == "trajgym":
            raise
        package = error.name.split(".")[0]
        print(
            f"trajgym {name}: needs the package {package!r}, which is not installed. It comes with: "
            f"pip install 'trajgym[{_extra_with(package)}]'",
            file=sys.stderr,
        )
        return 1


def _extra_with(package: str) -> str:
    """Return the extra of trajgym that brings a package; ``train`` where none names it, since most does."""
    for requirement in importlib.metadata.requires("trajgym") or ():
        extra = re.search(r"extra == ['\"](\w+)", requirement)
        needed = re.match(r"[\w.-]+", requirement)
        if extra and needed and extra[1] != "dev" and needed[0].replace("-", "_") == package:
            return extra[1]
    return "train"


def _is_command(function: ast.FunctionDef) -> bool:
    return function.name == "main" and [argument.arg for argument in function.args.args] == ["args"]


def _usage() -> str:
    width = max(map(len, commands()))
    lines = [f"  {name.ljust(width)}  {text}" for name, text in commands().items()]
    return "\n".join(["usage: trajgym COMMAND [OPTIONS]", "", *lines, "", "trajgym COMMAND --help tells more."])


def _accept_any_text() -> None:
    """Let no character that a terminal cannot show, and no byte that is not text, end a command."""
    for stream, errors in ((sys.stdin, "surrogateescape"), (sys.stdout, "backslashreplace")):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors=errors)


def _discard_output() -> None:
    """Send what is still buffered nowhere, or the interpreter would complain about it at its end."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, sys.stdout.fileno())
    os.close(nowhere)


if __name__ == "__main__":
    sys.exit(main())
