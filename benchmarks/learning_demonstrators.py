"""Who the models of the learning benchmark imitate: agents that know the way and are careless, or lose patience."""

from __future__ import annotations

import random
import re
from collections.abc import Sequence

from trajgym.envs.detour_house import Plan
from trajgym.policies.scripted import ExpertPolicy
from trajgym.types import ExpertTurn, Message, Task, ToolCall

__all__ = ["Calculating", "Walking"]

_EXPRESSION = re.compile(r"([\d.]+)([-+*/])([\d.]+)")
_CONFUSED = {"+": "-", "-": "+", "*": "/", "/": "*"}
_IN = re.compile(r"In the (\w+):")
_SAYS = re.compile(r"The (?:box|chest) says (\d+)\.")


class Calculating(ExpertPolicy):
    """Works through a word problem call by call, but at each step may add for subtract, or multiply for divide.

    It goes on with what came of that, so that one slip spoils the answer, and the next step is as likely to be right.

    Args:
        habit: Chance of a slip at each step.
    """

    def __init__(self, habit: float) -> None:
        super().__init__(capacity=64)
        self._habit = habit

    def act(self, messages: Sequence[Message], task: Task, seed: int = 0) -> str:
        """Write the next turn."""
        results = [m.content for m in messages if m.role == "tool"]
        if len(results) == len(task.solution) - 1:
            return f"#### {results[-1]}"
        (call,) = task.solution[len(results)].calls
        found = _EXPRESSION.fullmatch(call.arguments["expression"])
        assert found is not None, call
        value, sign, other = found.groups()
        value = results[-1] if results else value
        sign = _CONFUSED[sign] if _gives_way(self._habit, messages, seed) else sign
        slip = ToolCall(call.name, {"expression": f"{value}{sign}{other}"})
        return self._protocol.render_turn(ExpertTurn(calls=(slip,)))


class Walking(ExpertPolicy):
    """Walks to the chest of a house, but at any turn may go for the box instead, one turn long.

    Such a turn opens the box where it stands, and elsewhere goes one door back towards it. The next turn goes on from
    there.

    Args:
        habit: Chance of such a turn.
    """

    def __init__(self, habit: float) -> None:
        super().__init__(capacity=64)
        self._habit = habit

    def act(self, messages: Sequence[Message], task: Task, seed: int = 0) -> str:
        """Write the next turn."""
        plan = Plan.of(task)
        said = "\n".join(m.content for m in messages if m.role == "tool")
        numbers = _SAYS.findall(said)
        if numbers:
            return f"#### {numbers[-1]}"
        room = (_IN.findall(said) or [plan.start])[-1]
        hasty = _gives_way(self._habit, messages, seed)
        aim, act = (plan.box, ("open", "box")) if hasty else (plan.key, ("take", "key"))
        if not hasty and "You have the key." in said:
            aim, act = plan.chest, ("open", "chest")
        way = plan.way(room, aim)
        call = ToolCall("go", {"room": way[0]}) if way else ToolCall(act[0], {"thing": act[1]})
        return self._protocol.render_turn(ExpertTurn(calls=(call,)))


def _gives_way(chance: float, messages: Sequence[Message], seed: int) -> bool:
    return random.Random(f"{seed}/{len(messages)}").random() < chance
