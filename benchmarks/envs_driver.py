"""Run inside a contender's own environment: play episodes with its environments and time the steps.

    python envs_driver.py NAME FOLDER

Reads one JSON object a line and answers each with one; the first lists the problems. The clock runs here, around the
steps alone: making episodes, checking what came back and reaching this process cost the contender nothing.
"""

from __future__ import annotations

import abc
import importlib
import json
import os
import resource
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, ClassVar

__all__ = ["MIX", "Contender", "arithmetic", "descendants", "main", "mixed"]

EXPRESSION = "48/2+48"
VALUE = "72"
CODE = f"print({EXPRESSION})"
EPISODES = 16  # per visit, each with some steps of its own
REPEATS = 3  # further calls of an episode that has made its first
SLOW = 0.2  # seconds that the slow tool takes
FINAL_REWARD = 1.0
MIX = ("calculator", "python", "final")  # of a mixed step, dealt in turn to the episodes


class Contender(abc.ABC):
    """What the driver asks of a project; each module ``envs_NAME`` has a class of it called ``Make``.

    Args:
        problems: Question and answer of each.
    """

    lacks: ClassVar[dict[str, str]] = {}  # kinds of step there are none of, and why
    gives_up = ""  # why a right answer may go unpaid on a slow machine; it is counted then, and refused otherwise

    def __init__(self, problems: Sequence[dict[str, str]]) -> None:
        self.problems = problems

    @abc.abstractmethod
    def open(self, number: int) -> Any:
        """Return an episode of a problem that is ready for its first step."""

    @abc.abstractmethod
    def step(self, episode: Any, kind: str) -> Any:
        """Take one step, ``"final"``, ``"calculator"`` or ``"python"``, and return what the environment gave."""

    def close(self, episode: Any) -> None:
        """End an episode."""
        return

    @abc.abstractmethod
    def text(self, outcome: Any) -> str:
        """Return what a tool answered."""

    @abc.abstractmethod
    def reward(self, outcome: Any) -> float:
        """Return what the step paid."""

    def run(self, episodes: Sequence[Any], kind: str) -> list[Any]:
        """Take one step in each of several episodes, one after the other."""
        return [self.step(episode, kind) for episode in episodes]

    def fleet(self, count: int) -> Any:
        """Return many episodes at once, in the project's own vector environment where it has one."""
        return [self.open(number) for number in range(count)]

    def renew(self, fleet: Any) -> Any:
        """Begin the episodes of a fleet anew."""
        self.scrap(fleet)
        return self.fleet(len(fleet))

    def together(self, fleet: Any, kinds: Sequence[str]) -> list[Any]:
        """Take one step in every episode of a fleet, each of its own kind."""
        return [self.step(episode, kind) for episode, kind in zip(fleet, kinds, strict=True)]

    def scrap(self, fleet: Any) -> None:
        """End the episodes of a fleet."""
        for episode in fleet:
            self.close(episode)

    @abc.abstractmethod
    def slow(self) -> Callable[[], Any]:
        """Return a function that has four calls of a tool that sleeps 0.2 s made in as few turns as the project can."""

    @abc.abstractmethod
    def try_tool(self, tool: Any) -> str:
        """Call the tool of ``lines/NAME_tool.py`` from within an environment and return what it answered."""

    @abc.abstractmethod
    def try_env(self, module: Any) -> tuple[str, float]:
        """Answer the question of ``lines/NAME_env.py`` and return the question and the reward."""


def mixed(kind: str, count: int) -> list[str]:
    """Return the kind of step that each episode of a fleet takes.

    >>> mixed("final", 2), mixed("mixed", 4)
    (['final', 'final'], ['calculator', 'python', 'final', 'calculator'])
    """
    return [MIX[i % len(MIX)] if kind == "mixed" else kind for i in range(count)]


def arithmetic(expression: str) -> str:
    """Evaluate plain arithmetic: the calculator that a user writes for a project without one."""
    import ast
    import operator

    operators: dict[type, Callable[..., float]] = {
        ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.Div: operator.truediv,
        ast.USub: operator.neg,
    }  # fmt: skip

    def value(node: ast.AST) -> float:
        match node:
            case ast.Constant(value=int() | float() as number):
                return number
            case ast.BinOp(left=left, op=op, right=right):
                return operators[type(op)](value(left), value(right))
            case ast.UnaryOp(op=op, operand=operand):
                return operators[type(op)](value(operand))
        raise ValueError(f"not arithmetic: {ast.unparse(node)}")

    return format(value(ast.parse(expression, mode="eval").body), "g")


class Clock:
    """Wall time, and processor time of this process and everything below it.

    What a process further down used and ended before the clock stops is lost where its parent lives on.
    """

    def __init__(self) -> None:
        self._before = _used()
        children = resource.getrusage(resource.RUSAGE_CHILDREN)
        self._reaped = children.ru_utime + children.ru_stime
        self._own = time.process_time()
        self._wall = time.perf_counter()

    def stop(self) -> tuple[float, float]:
        """Return the seconds of both since the clock was made."""
        wall = time.perf_counter() - self._wall
        own = time.process_time() - self._own
        children = resource.getrusage(resource.RUSAGE_CHILDREN)
        reaped = children.ru_utime + children.ru_stime - self._reaped
        # One that has ended and been reaped meanwhile was begun before: what it had used then is in `reaped` too.
        alive = _used()
        living = sum(seconds - self._before.get(pid, 0.0) for pid, seconds in alive.items())
        gone = sum(seconds for pid, seconds in self._before.items() if pid not in alive)
        return wall, own + max(0.0, reaped - gone) + living


def _used() -> dict[int, float]:
    """Return the processor time, in seconds, that each process below this one has used, of those that still tell."""
    return {pid: used for pid in descendants(os.getpid()) if (used := _processor(pid)) is not None}


def _processor(pid: int) -> float | None:
    """Return the processor time that a process has used, in seconds, or nothing when it is gone."""
    try:
        return time.clock_gettime((~pid << 3) | 2)  # MAKE_PROCESS_CPUCLOCK in the kernel's posix-timers.h
    except OSError:
        return None


def descendants(ancestor: int) -> set[int]:
    """Return the ids of the processes below a process, in every generation."""
    found: set[int] = set()
    waiting = [ancestor]
    while waiting:
        for thread in _listed(Path(f"/proc/{waiting.pop()}/task")):
            try:
                children = {int(pid) for pid in (thread / "children").read_text().split()} - found
            except OSError:
                continue  # it ended meanwhile
            found |= children
            waiting.extend(children)
    return found


def _listed(folder: Path) -> list[Path]:
    try:
        return list(folder.iterdir())
    except OSError:
        return []  # the process ended meanwhile


class Driver:
    """Carries out what is asked.

    Args:
        contender: Whose environments.
    """

    def __init__(self, contender: Contender) -> None:
        self._contender = contender
        self._fleet: Any = None
        self._unpaid = self._answers = 0

    def steps(self, kind: str) -> dict[str, Any]:
        """Time steps of one kind: the first of some new episodes, and, of a tool, further ones of the same episodes."""
        made = self._contender
        assert kind not in made.lacks, made.lacks[kind]
        episodes = [made.open(number) for number in range(EPISODES)]
        times = []
        for _ in range(1 if kind == "final" else 1 + REPEATS):
            clock = Clock()
            outcomes = made.run(episodes, kind)
            times.append([seconds / EPISODES for seconds in clock.stop()])
            self._check(outcomes, kind)
        for episode in episodes:
            made.close(episode)
        return {"first": times[0], "later": times[1:]}

    def open_fleet(self, count: int) -> dict[str, Any]:
        """Open many episodes, in place of those before."""
        self.close_fleet()
        clock = Clock()
        self._fleet = self._contender.fleet(count)
        return {"seconds": clock.stop()}

    def fly(self, count: int, kinds: Sequence[str]) -> dict[str, Any]:
        """Take one step of each kind in every episode of the fleet, in this order.

        In a ``"mixed"`` step the episodes take the kinds of :data:`MIX` in turn, all within one call. After final
        answers all episodes begin anew.
        """
        made = self._contender
        times = []
        for kind in kinds:
            each = mixed(kind, count)
            clock = Clock()
            outcomes = made.together(self._fleet, each)
            times.append([seconds / count for seconds in clock.stop()])
            assert len(outcomes) == count, f"{len(outcomes)} outcomes of {count} steps"
            for outcome, taken in zip(outcomes, each, strict=True):
                self._check([outcome], taken)
            if "final" in each:
                self._fleet = made.renew(self._fleet)
        return {"times": times}

    def close_fleet(self) -> dict[str, Any]:
        """Close the episodes of the fleet."""
        if self._fleet is not None:
            fleet, self._fleet = self._fleet, None
            self._contender.scrap(fleet)
        return {}

    def slow(self) -> dict[str, Any]:
        """Time four calls of a slow tool."""
        call = self._contender.slow()
        clock = Clock()
        call()
        return {"seconds": clock.stop()}

    def unpaid(self) -> dict[str, Any]:
        """Return how many of how many right answers went unpaid so far, and why."""
        return {"unpaid": self._unpaid, "answers": self._answers, "why": self._contender.gives_up}

    def lines(self, folder: str, name: str) -> dict[str, Any]:
        """Run the three files whose lines are counted, and say what came of each."""
        tool = _loaded(folder, f"{name}_tool")
        answer = self._contender.try_tool(tool)
        question, reward = self._contender.try_env(_loaded(folder, f"{name}_env"))
        episode = _loaded(folder, f"{name}_episode")
        return {"tool": answer, "env": [question, reward], "episode": float(episode.reward)}

    def _check(self, outcomes: Sequence[Any], kind: str) -> None:
        """Refuse to have timed something that did not do its work."""
        made = self._contender
        for outcome in outcomes:
            if kind == "final":
                unpaid = made.reward(outcome) != FINAL_REWARD
                if unpaid and not made.gives_up:
                    raise AssertionError(f"the right answer was paid {made.reward(outcome)}")
                self._answers += 1
                self._unpaid += unpaid
            if kind != "final" and VALUE not in made.text(outcome):
                raise AssertionError(f"{kind}: expected {VALUE} in {made.text(outcome)!r}")


def _loaded(folder: str, name: str) -> Any:
    if folder not in sys.path:
        sys.path.append(folder)
    return importlib.import_module(name)


def main(name: str, folder: str) -> None:
    """Answer until the input ends."""
    # What is measured may inherit stdin and write to stdout: both must not be the pipes that we speak through.
    requests, answers = os.fdopen(os.dup(0)), os.fdopen(os.dup(1), "w")
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(2, 1)
    sys.modules["envs_driver"] = sys.modules[__name__]
    sys.path.append(folder)  # last: the files beside this one are no modules of the contender's
    contender: Contender | None = None
    driver: Driver | None = None
    for line in requests:
        request = json.loads(line)
        try:
            if driver is None:
                contender = importlib.import_module(f"envs_{name}").Make(request["problems"])
                driver = Driver(contender)
                answer: dict[str, Any] = {"lacks": contender.lacks}
            else:
                answer = getattr(driver, request.pop("do"))(**request)
        except Exception as error:
            traceback.print_exc()
            answer = {"error": f"{type(error).__name__}: {error}"}
        answers.write(json.dumps(answer) + "\n")
        answers.flush()


if __name__ == "__main__":
    main(*sys.argv[1:])
