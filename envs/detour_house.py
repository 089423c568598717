"""The house of the detour: rooms and doors, a box that is open, a chest that needs a key.

>>> house = House(Plan("hall", doors=(("hall", "barn"),), box="hall", key="barn", chest="hall", numbers=(417, 805)))
>>> house.go("barn"), house.take("key"), house.go("hall"), house.open("chest")
('In the barn: key.', 'You have the key.', 'In the hall: box, chest.', 'The chest says 805.')
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import Any

from trajgym.envs.stage import verbs
from trajgym.envs.tools import ToolFailure
from trajgym.errors import ConfigError
from trajgym.types import Task

__all__ = ["VERBS", "House", "Plan"]


@dataclass(frozen=True)
class Plan:
    """Where everything is when an episode begins.

    Args:
        start: The room the player stands in.
        doors: Pairs of rooms; a door can be passed both ways, and any room can be reached from any other.
        box: The room of the box.
        key: The room of the key.
        chest: The room of the chest.
        numbers: What is written in the box and in the chest.
    """

    start: str
    doors: tuple[tuple[str, str], ...]
    box: str
    key: str
    chest: str
    numbers: tuple[int, int]

    @classmethod
    def of(cls, task: Task) -> Plan:
        """Read the plan from a task's ``metadata["house"]``.

        Raises:
            ConfigError: When there is none, or it is not one.
        """
        stored: Any = task.metadata.get("house")
        try:
            plan = cls(**{**stored, "doors": tuple((a, b) for a, b in stored["doors"])})
            box, chest = plan.numbers
            rooms = plan.distances(plan.start)
            sound = box != chest and all(room in rooms for room in (plan.box, plan.key, plan.chest))
        except (TypeError, ValueError, KeyError):
            sound = False
        if not sound:
            raise ConfigError(
                f"Task {task.id!r} holds no house. Its metadata needs a mapping 'house' of start, doors, box, key, "
                "chest and two different numbers, as those of trajgym.envs.detour_tasks have; got "
                f"{stored!r:.200}."
            )
        return plan

    def beside(self, room: str) -> list[str]:
        """Return the rooms one door away, in the order of the doors."""
        return [b if a == room else a for a, b in self.doors if room in (a, b)]

    def distances(self, room: str) -> dict[str, int]:
        """Return how many doors each room that can be reached is away."""
        found, waiting = {room: 0}, deque([room])
        while waiting:
            here = waiting.popleft()
            for there in self.beside(here):
                if there not in found:
                    found[there] = found[here] + 1
                    waiting.append(there)
        return found

    def way(self, room: str, to: str) -> list[str]:
        """Return the rooms on a shortest way, the first one left out."""
        left, steps = self.distances(to), []
        while room != to:
            room = min(self.beside(room), key=left.__getitem__)
            steps.append(room)
        return steps


class House:
    """A house in which somebody walks: the plan, and what has changed.

    Args:
        plan: Where everything is.
    """

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.room = plan.start
        self.has_key = False
        self.opened: str | None = None

    def go(self, room: str) -> str:
        """Go through a door.

        Args:
            room: A room next to this one.
        """
        if room not in self.plan.beside(self.room):
            raise ToolFailure("no_door", f"No door from {self.room} to {room}.")
        self.room = room
        return f"In the {room}: {', '.join(self._things()) or 'nothing'}."

    def take(self, thing: str) -> str:
        """Pick something up.

        Args:
            thing: "key".
        """
        if thing not in self._things():
            raise ToolFailure("not_here", f"No {thing} here.")
        if thing != "key":
            raise ToolFailure("too_heavy", f"The {thing} is too heavy.")
        self.has_key = True
        return "You have the key."

    def open(self, thing: str) -> str:
        """Open the box, or with the key the chest, and read its number.

        Args:
            thing: "box" or "chest".
        """
        if thing not in self._things() or thing == "key":
            raise ToolFailure("not_here", f"No {thing} here to open.")
        if thing == "chest" and not self.has_key:
            raise ToolFailure("locked", "The chest is locked.")
        if self.opened not in (None, thing):
            raise ToolFailure("sealed", f"The {thing} is sealed.")
        self.opened = thing
        return f"The {thing} says {self.plan.numbers[thing == 'chest']}."

    def _things(self) -> list[str]:
        """Return what is in this room."""
        plan = self.plan
        there = {"box": plan.box, "key": None if self.has_key else plan.key, "chest": plan.chest}
        return [thing for thing, room in there.items() if room == self.room]


_NOWHERE = House(Plan(start="hall", doors=(), box="hall", key="hall", chest="hall", numbers=(1, 2)))

VERBS = verbs(_NOWHERE.go, _NOWHERE.take, _NOWHERE.open)
"""What a policy may do. These describe and check the calls; :class:`~trajgym.envs.stage.Stage` carries them out in the
episode's house."""
