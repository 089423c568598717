"""Sixty tools, each of its own use, and the office in which they answer.

The catalogue is made of blocks of six: three tools that anybody may call, one that opens a place, one that works only
in that place, and one that works there and takes what the one before has answered. So a tool that another one depends
on always stands before it, and the first so many of the catalogue make an office that works.

>>> office = Office(seed=7)
>>> office.call("archive_code", "lamp")
Traceback (most recent call last):
    ...
trajgym.envs.tools.base.ToolFailure: The archive is closed. Call enter_archive first.
>>> _ = office.call("enter_archive")
>>> office.call("archive_box", office.call("archive_code", "lamp")).isdigit()
True
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from typing import Any

from trajgym.envs.tools import Tool, ToolFailure, ToolSessions
from trajgym.errors import ConfigError
from trajgym.types import Task, ToolCall, ToolResult

__all__ = ["BLOCK", "CATALOGUE", "ITEMS", "Office", "OfficeTools", "office_tools"]

BLOCK = 6
"""Tools of a block: three free ones, the one that opens a place, and two that work in it."""

ITEMS = (
    *("lamp", "chair", "kettle", "radio", "ladder", "mirror", "basket", "carpet", "piano", "globe"),
    *("clock", "anchor", "easel", "drum", "kite", "tent", "sledge", "vase", "stove", "bench"),
)
"""What one can ask about."""

_FREE = (
    *("price", "weight", "height", "width", "age", "stock", "rating", "power", "speed", "area"),
    *("rent", "tax", "margin", "discount", "deposit", "orders", "returns", "visits", "votes", "shares"),
    *("volume", "noise", "heat", "range", "depth", "length", "parts", "screws", "colours", "owners"),
)
_PLACES = ("archive", "vault", "lab", "bank", "depot", "museum", "library", "harbour", "mill", "tower")


def _catalogue() -> tuple[str, ...]:
    names: list[str] = []
    for i, place in enumerate(_PLACES):
        names += [*(f"get_{topic}" for topic in _FREE[3 * i : 3 * i + 3])]
        names += [f"enter_{place}", f"{place}_code", f"{place}_box"]
    return tuple(names)


CATALOGUE = _catalogue()
"""Every tool's name, in the order in which an office gets them."""


class Office:
    """What the tools know, and which places are open.

    Args:
        seed: Decides every answer.
    """

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.open: set[str] = set()

    @classmethod
    def of(cls, task: Task) -> Office:
        """Open a task's ``metadata["office"]``, a whole number.

        Raises:
            ConfigError: When there is none.
        """
        seed: Any = task.metadata.get("office")
        if isinstance(seed, bool) or not isinstance(seed, int):
            raise ConfigError(
                f"Task {task.id!r} holds no office. Its metadata needs a whole number 'office', as those of "
                f"trajgym.envs.choice_tasks have; got {seed!r:.200}."
            )
        return cls(seed)

    def number(self, name: str, key: str) -> str:
        """Return what a tool answers about something, from 100 to 999."""
        return str(100 + zlib.crc32(f"{self.seed}/{name}/{key}".encode()) % 900)

    def call(self, name: str, about: str = "") -> str:
        """Return what a tool of the catalogue answers.

        Raises:
            ToolFailure: When its place is closed, or it knows nothing about that.
        """
        kind, _, place = name.partition("_")
        if kind == "enter":
            self.open.add(place)
            return f"The {place} is open."
        if kind != "get" and kind not in self.open:
            raise ToolFailure("closed", f"The {kind} is closed. Call enter_{kind} first.")
        known = ITEMS if not name.endswith("_box") else [self.number(f"{kind}_code", item) for item in ITEMS]
        if about not in known:
            what = f"box {about!r}" if name.endswith("_box") else f"item {about!r}"
            raise ToolFailure("not_found", f"There is no {what}.")
        return self.number(name, about)


class OfficeTools(ToolSessions):
    """An episode's calls, answered by its office, one after the other.

    Args:
        tools: The tools on offer; those that are not of the catalogue run as everywhere else.
        office: Who answers.
        seed: For the others.
    """

    def __init__(self, tools: Sequence[Tool], office: Office, *, seed: int = 0) -> None:
        super().__init__(tools, seed=seed)
        self.office = office

    def run(self, calls: Sequence[ToolCall]) -> tuple[ToolResult, ...]:
        """Run the calls of one turn in their order; see :meth:`ToolSessions.run`."""
        return tuple(self._answer(call) for call in calls)

    def clone(self) -> OfficeTools:
        """Return tools that go on from here on their own."""
        twin = super().clone()
        twin.office = Office(self.office.seed)
        twin.office.open = set(self.office.open)
        return twin

    def _answer(self, call: ToolCall) -> ToolResult:
        tool = self.tools.get(call.name)
        arguments = tool.read(call.arguments) if tool is not None and tool in _TOOLS.values() else None
        if not isinstance(arguments, dict):
            return super().run([call])[0]
        try:
            return ToolResult(call, self.office.call(call.name, *arguments.values()))
        except ToolFailure as failure:
            return ToolResult(call, failure.message, failure.kind)


def office_tools(count: int) -> tuple[Tool, ...]:
    """Return the first tools of the catalogue.

    Args:
        count: How many, from 1 to 60.

    Raises:
        ConfigError: For another number.
    """
    if isinstance(count, bool) or not isinstance(count, int) or not 1 <= count <= len(CATALOGUE):
        raise ConfigError(f"tools_count= must be a whole number from 1 to {len(CATALOGUE)}, got {count!r}.")
    return tuple(_TOOLS[name] for name in CATALOGUE[:count])


def _enter() -> str:
    raise NotImplementedError  # an office answers


def _about(item: str) -> str:
    raise NotImplementedError


def _box(code: str) -> str:
    raise NotImplementedError


def _tool(name: str) -> Tool:
    kind, _, rest = name.partition("_")
    if kind == "enter":
        return Tool(_enter, name=name, description=f"Open the {rest}.")
    if kind == "get":
        return Tool(_about, name=name, description=f"Return the {rest} of an item.")
    if rest == "code":
        return Tool(_about, name=name, description=f"Return an item's code in the {kind}; call enter_{kind} before.")
    return Tool(_box, name=name, description=f"Return what the {kind}'s box of a code holds; call enter_{kind} before.")


_TOOLS = {name: _tool(name) for name in CATALOGUE}
