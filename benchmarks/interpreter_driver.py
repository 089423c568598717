"""Run inside a peer's own environment: run programs with the peer's code tool and time each call.

Reads one JSON object a line, ``{"code": …}``, and answers each with ``{"output": …, "seconds": …}``. The clock runs
here, around the call alone: what it costs to reach this process is not the peer's fault.
"""

from __future__ import annotations

import importlib
import importlib.util
import json
import os
import sys
import time
from collections.abc import Callable
from types import ModuleType

__all__ = ["TOOLS", "main"]


def gem() -> Callable[[str], str]:
    """GEM's ``PythonCodeTool`` with its defaults."""
    without_init("gem")
    tool = importlib.import_module("gem.tools.python_code_tool").PythonCodeTool()
    return lambda code: str(tool.execute_action(f"<python>{code}</python>")[2])


def skyrl() -> Callable[[str], str]:
    """SkyRL-gym's ``PythonCodeExecutorToolGroup`` with its defaults."""
    without_init("skyrl_gym")
    without_init("skyrl_gym.tools")
    group = importlib.import_module("skyrl_gym.tools.python").PythonCodeExecutorToolGroup()
    return lambda code: str(group.execute_tool("python", code))


TOOLS = {"gem": gem, "skyrl": skyrl}


def without_init(package: str) -> None:
    """Put an empty package in the place of one whose ``__init__`` imports what the code tool does not need.

    Raises:
        ModuleNotFoundError: When the package is not installed.
    """
    spec = importlib.util.find_spec(package)
    if spec is None:
        raise ModuleNotFoundError(f"No module named {package!r}")
    module = ModuleType(package)
    module.__path__ = list(spec.submodule_search_locations or ())
    sys.modules[package] = module


def main(name: str) -> None:
    """Answer until the input ends."""
    # A tool's children inherit stdin, and may write to stdout: both must not be the pipes that we speak through.
    requests, answers = os.fdopen(os.dup(0)), os.fdopen(os.dup(1), "w")
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(2, 1)
    run = TOOLS[name]()
    for line in requests:
        code = json.loads(line)["code"]
        start = time.perf_counter()
        output = run(code)
        seconds = time.perf_counter() - start
        answers.write(json.dumps({"output": output, "seconds": seconds}) + "\n")
        answers.flush()


if __name__ == "__main__":
    main(sys.argv[1])
