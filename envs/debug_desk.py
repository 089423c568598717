"""The desk of the debugging tasks: one file, its tests, some pages of documentation.

Whatever runs the file does so in the isolated interpreter, and results are compared outside of it: a file can print or
redefine what it likes, it never gets to see what is expected.
"""

from __future__ import annotations

import ast
import functools
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from trajgym.envs.sandbox import Limits
from trajgym.envs.stage import verbs
from trajgym.envs.tools import ToolFailure
from trajgym.envs.tools.python import python_tool
from trajgym.errors import ConfigError
from trajgym.types import Step, Task

__all__ = ["DOCS", "VERBS", "Case", "Desk", "results"]

DOCS = {
    "range": "range(a, b) goes from a to b - 1; range(b) begins at 0. To include b, write range(a, b + 1).",
    "slices": "values[a:b] has the items a to b - 1, so b - a of them.",
    "indices": "The first item is values[0], the last one values[len(values) - 1]; table[i][j] is row i, column j.",
    "comparison": "> is greater, >= greater or equal, == equal, != not equal. 'At least' is >=, 'more than' is >.",
    "operators": "% is the remainder, // the whole quotient, += adds to a name. a * b + c multiplies first.",
    "counting": "A sum or a count begins at 0 and grows with +=; a plain = forgets what was there before.",
    "min and max": "max(a, b) is the larger one, min(a, b) the smaller one.",
    "loops": "The loop's own name changes from pass to pass; what was given to the function stays the same.",
    "return": "return ends the function at once. Within a loop, that is in the first pass.",
    "enumerate": "enumerate(values) counts from 0, enumerate(values, 1) from 1.",
}
"""What can be looked up."""

_SHOWN = 3  # failing tests in one report
_LONGEST = 200  # characters of a line
_RUNNER = python_tool(name="tests", stateless=True, packages=(), limits=Limits(cpu=1.0, output=4_000, scratch=0)).target


@dataclass(frozen=True)
class Case:
    """A test.

    Args:
        arguments: Of the call.
        expected: What it returns.
    """

    arguments: tuple[Any, ...]
    expected: int


@functools.lru_cache(maxsize=4096)
def results(source: str, calls: tuple[str, ...]) -> tuple[str, ...] | str:
    """Return what expressions come to behind a file, as text, an error as its name; or why there is nothing at all.

    Args:
        source: The file.
        calls: Expressions in Python.
    """
    lines = "\n".join(
        f"try:\n    print(repr({call})[:100])\nexcept Exception as _e:\n    print(type(_e).__name__)" for call in calls
    )
    runner = _RUNNER()
    runner.open(0)
    try:
        shown = runner(f"{source}\n{lines}").split("\n")
    except ToolFailure as failure:
        return f"The file does not run: {failure.message.strip().splitlines()[-1][:_LONGEST]}"
    finally:
        runner.close()
    return tuple(shown) if len(shown) == len(calls) else "The file prints something of its own."


class Desk:
    """The file as it stands, and what can be done with it.

    Args:
        function: The name of the function to be mended.
        spec: What it must return.
        source: The file.
        visible: The tests that may be run.
        hidden: Those that decide.
    """

    def __init__(
        self, function: str, spec: str, source: str, visible: Sequence[Case] = (), hidden: Sequence[Case] = ()
    ) -> None:
        self.function, self.spec, self.visible, self.hidden = function, spec, tuple(visible), tuple(hidden)
        self.lines = source.split("\n")

    @classmethod
    def of(cls, task: Task) -> Desk:
        """Lay out a task's ``metadata["program"]``.

        Raises:
            ConfigError: When there is none, or it is not one.
        """
        stored: Any = task.metadata.get("program")
        try:
            visible, hidden = (
                [Case(tuple(case["arguments"]), case["expected"]) for case in stored[key]]
                for key in ("visible", "hidden")
            )
            desk = cls(stored["function"], stored["spec"], stored["source"], visible, hidden)
            sound = desk.function.isidentifier() and bool(visible and hidden)
        except (TypeError, ValueError, KeyError, AttributeError):
            sound = False
        if not sound:
            raise ConfigError(
                f"Task {task.id!r} holds no program. Its metadata needs a mapping 'program' of function, spec, source, "
                f"visible and hidden tests, as those of trajgym.envs.debug_tasks have; got {stored!r:.200}."
            )
        return desk

    @classmethod
    def replay(cls, task: Task, steps: Iterable[Step]) -> Desk:
        """Return the desk as these steps leave it."""
        desk = cls.of(task)
        for step in steps:
            for result in step.results:
                if result.error is None and result.call.name == "replace_line":
                    desk.replace_line(**result.call.arguments)
        return desk

    @property
    def source(self) -> str:
        """The file."""
        return "\n".join(self.lines)

    def passed(self, cases: Sequence[Case]) -> int:
        """Return how many of these tests the file passes."""
        found = self._run(cases)
        if isinstance(found, str):
            return 0
        return sum(value == repr(case.expected) for value, case in zip(found, cases, strict=True))

    def read_file(self) -> str:
        """Show the file with the numbers of its lines."""
        return "\n".join(f"{i} {line}" for i, line in enumerate(self.lines, 1))

    def docs(self, topic: str) -> str:
        """Look something up.

        Args:
            topic: The function's name, or a topic of Python.
        """
        if topic == self.function:
            return f"{self.function} returns {self.spec}."
        if topic not in DOCS:
            raise ToolFailure(
                "not_found", f"There is nothing on {topic!r}. Topics: {self.function}, {', '.join(DOCS)}."
            )
        return DOCS[topic]

    def replace_line(self, line: int, text: str) -> str:
        """Replace a line of the file.

        Args:
            line: Its number.
            text: What it says from now on, with the blanks in front.
        """
        if not 1 <= line <= len(self.lines):
            raise ToolFailure("no_line", f"The file has the lines 1 to {len(self.lines)}.")
        if len(text) > _LONGEST or "\n" in text or "\r" in text:
            raise ToolFailure("bad_line", f"A line has at most {_LONGEST} characters and no line break.")
        self.lines[line - 1] = text
        return f"{line} {text}"

    def run_tests(self) -> str:
        """Run the tests and show how some of those that fail go wrong."""
        found = self._run(self.visible)
        if isinstance(found, str):
            return f"0 of {len(self.visible)} tests pass. {found}"
        wrong = [
            f"{_call(self.function, case.arguments)} gave {value}, not {case.expected}."
            for value, case in zip(found, self.visible, strict=True)
            if value != repr(case.expected)
        ]
        head = f"{len(self.visible) - len(wrong)} of {len(self.visible)} tests pass."
        return "\n".join([head, *wrong[:_SHOWN]])

    def evaluate(self, expression: str) -> str:
        """Run the file and show what an expression comes to.

        Args:
            expression: Such as a call of the function.
        """
        try:
            ast.parse(expression.strip(), mode="eval")
        except (SyntaxError, ValueError, MemoryError, RecursionError):
            raise ToolFailure("syntax", "That is no expression of Python.") from None
        found = results(self.source, (f"({expression.strip()}\n)",))
        if isinstance(found, str):
            raise ToolFailure("exception", found)
        return found[0]

    def _run(self, cases: Sequence[Case]) -> tuple[str, ...] | str:
        return results(self.source, tuple(_call(self.function, case.arguments) for case in cases))


def _call(function: str, arguments: Sequence[Any]) -> str:
    return f"{function}({', '.join(map(_literal, arguments))})"


def _literal(value: Any) -> str:
    return json.dumps(value)  # lists, whole numbers and plain texts look alike in JSON and in Python


_EMPTY = Desk("f", "", "")

VERBS = verbs(_EMPTY.read_file, _EMPTY.docs, _EMPTY.replace_line, _EMPTY.run_tests, _EMPTY.evaluate)
"""What a policy may do; see :class:`trajgym.envs.stage.Stage`."""
