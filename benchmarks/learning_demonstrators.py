"""Who the models of the learning benchmark imitate: agents that know the way and lose their patience."""

from __future__ import annotations

import random
import re
from collections.abc import Sequence

from trajgym.envs.detour_house import Plan
from trajgym.policies.scripted import ExpertPolicy
from trajgym.types import ExpertTurn, Message, Task, ToolCall

__all__ = ["Calculating", "Walking"]

_NUMBER = re.compile(r"\d+")
_IN = re.compile(r"In the (\w+):")
_SAYS = re.compile(r"The (?:box|chest) says (\d+)\.")


class Calculating(ExpertPolicy):
    """Plays the demonstration of a word problem, but may stop at any turn and answer with the latest number.

    Args:
        haste: Chance of stopping at each turn.
    """

    def __init__(self, haste: float) -> None:
        super().__init__(capacity=64)
        self._haste = haste

    def act(self, messages: Sequence[Message], task: Task, seed: int = 0) -> str:
        """Write the next turn."""
        turn = super().act(messages, task, seed)
        if turn.startswith("####") or not _hasty(self._haste, messages, seed):
            return turn
        *_, (number, *_) = [found for m in messages if (found := _NUMBER.findall(m.content))]
        return f"#### {number}"


class Walking(ExpertPolicy):
    """Walks to the chest of a house, but at any turn may go for the box instead, one turn long.

    Such a turn opens the box where it stands, and elsewhere goes one door back towards it. The next turn goes on from
    there.

    Args:
        haste: Chance of such a turn.
    """

    def __init__(self, haste: float) -> None:
        super().__init__(capacity=64)
        self._haste = haste

    def act(self, messages: Sequence[Message], task: Task, seed: int = 0) -> str:
        """Write the next turn."""
        plan = Plan.of(task)
        said = "\n".join(m.content for m in messages if m.role == "tool")
        numbers = _SAYS.findall(said)
        if numbers:
            return f"#### {numbers[-1]}"
        room = (_IN.findall(said) or [plan.start])[-1]
        hasty = _hasty(self._haste, messages, seed)
        aim, act = (plan.box, ("open", "box")) if hasty else (plan.key, ("take", "key"))
        if not hasty and "You have the key." in said:
            aim, act = plan.chest, ("open", "chest")
        way = plan.way(room, aim)
        call = ToolCall("go", {"room": way[0]}) if way else ToolCall(act[0], {"thing": act[1]})
        return self._protocol.render_turn(ExpertTurn(calls=(call,)))


def _hasty(chance: float, messages: Sequence[Message], seed: int) -> bool:
    return random.Random(f"{seed}/{len(messages)}").random() < chance
