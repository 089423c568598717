"""Environments with a world of their own: calls act on it one after the other, each on what the one before has left."""

from __future__ import annotations

import abc
import copy
from collections.abc import Mapping, Sequence
from typing import Any

from trajgym.envs.base import ToolEnv
from trajgym.envs.tools import Tool, ToolFailure, ToolSessions
from trajgym.types import Task, ToolCall, ToolResult

__all__ = ["Stage", "StageEnv", "verbs"]


def verbs(*methods: Any) -> tuple[Tool, ...]:
    """Make the tools that describe a world's methods and check their arguments; :class:`Stage` carries them out.

    Args:
        *methods: Bound methods of any instance of the world's class.
    """
    return tuple(Tool(method) for method in methods)


class Stage(ToolSessions):
    """An episode's calls, carried out by the methods of the episode's world.

    One after the other in the order they were written, where other tools run side by side. A tool that is no method
    of the world's class, such as a calculator that somebody adds, runs as everywhere else.

    Args:
        tools: The tools on offer.
        world: Where to act. Its methods may raise :class:`ToolFailure`.
        seed: For the tools that are none of the world's.
    """

    def __init__(self, tools: Mapping[str, Tool], world: object, *, seed: int = 0) -> None:
        super().__init__(tuple(tools.values()), seed=seed)
        self.world = world

    def run(self, calls: Sequence[ToolCall]) -> tuple[ToolResult, ...]:
        """Run the calls of one turn in their order; see :meth:`ToolSessions.run`."""
        return tuple(self._act(call) for call in calls)

    def clone(self) -> Stage:
        """Return a stage that goes on from here on its own."""
        twin = super().clone()
        twin.world = copy.deepcopy(self.world)
        return twin

    def _act(self, call: ToolCall) -> ToolResult:
        tool = self.tools.get(call.name)
        if tool is None or type(getattr(tool.target, "__self__", None)) is not type(self.world):
            return super().run([call])[0]
        arguments = tool.read(call.arguments)
        if not isinstance(arguments, dict):
            return super().run([call])[0]  # no such arguments: said as for every other tool
        verb: Any = getattr(self.world, tool.target.__name__)
        try:
            return ToolResult(call, str(verb(**arguments)))
        except ToolFailure as failure:
            return ToolResult(call, failure.message, failure.kind)


class StageEnv(ToolEnv):
    """A :class:`ToolEnv` whose episodes have a world; families give it with :meth:`world`."""

    @abc.abstractmethod
    def world(self, task: Task) -> object:
        """Return the world in which an episode of ``task`` begins.

        Raises:
            ConfigError: When the task does not describe one.
        """

    def _open_tools(self, task: Task, seed: int) -> ToolSessions:
        return Stage(self.tools, self.world(task), seed=seed)
