"""Procedural houses: endless, seeded, with the shortest way to the chest and a held-out split.

A task id such as ``detour/test/2/918273`` (split, doors to the key, seed) says everything: the same id gives the same
house on every platform.

>>> task = DetourTasks("test").get("detour/test/1/7")
>>> [call.name for turn in task.solution for call in turn.calls][-1], DetourTasks("test").get(task.id) == task
('open', True)
"""

from __future__ import annotations

import itertools
import json
import random
import zlib
from dataclasses import asdict

from trajgym.envs.detour_house import Plan
from trajgym.envs.procedural import SPLITS, ProceduralTasks
from trajgym.types import ExpertTurn, Task, ToolCall

__all__ = ["DetourTasks", "solution"]

_TEST_SHARE = 8  # one house in so many belongs to the test split
_FARTHEST = 3
_ROOMS = (
    *("attic", "barn", "cabin", "cave", "cellar", "dock", "forge", "garden", "hall", "kitchen"),
    *("lobby", "mill", "office", "pantry", "shed", "stable", "studio", "tower", "tunnel", "yard"),
)


class DetourTasks(ProceduralTasks):
    """Houses with a box at hand, a chest, and its key some doors away, made up as they are asked for.

    The box stands where the player does. The chest stands there too or one door away, never on the way to the key, and
    one more room leads nowhere. The splits share no house: a hash of the plan, the numbers left out, decides where one
    belongs (1 in 8 is test).

    Args:
        split: ``"train"`` or ``"test"``.
        difficulty: Doors from the player to the key (1 to 3), or the lowest and the highest number; drawn uniformly.

    Raises:
        UnknownNameError: For another split.
        ConfigError: For a difficulty outside these bounds.
    """

    family = "detour"

    def __init__(self, split: str = "train", difficulty: int | tuple[int, int] = (1, 3)) -> None:
        super().__init__(split, difficulty, highest=_FARTHEST, level="number of doors")

    def make(self, level: int, seed: int) -> Task:
        """Build houses from one sub-seed after the other until one belongs to the split."""
        for attempt in itertools.count():
            rng = random.Random(f"{self.split}/{level}/{seed}/{attempt}")  # a text seeds alike in every process
            plan = _build(rng, level)
            if _split(plan) == self.split:
                break
        return Task(
            id=f"{self.stem(level)}/{seed}",
            question=_describe(plan),
            answer=str(plan.numbers[1]),
            solution=solution(plan),
            difficulty=level,
            metadata={"house": json.loads(json.dumps(asdict(plan)))},
        )


def solution(plan: Plan) -> tuple[ExpertTurn, ...]:
    """Return a shortest way to the chest's number: fetch the key, open the chest, say what it says."""
    calls = [ToolCall("go", {"room": room}) for room in plan.way(plan.start, plan.key)]
    calls.append(ToolCall("take", {"thing": "key"}))
    calls += [ToolCall("go", {"room": room}) for room in plan.way(plan.key, plan.chest)]
    calls.append(ToolCall("open", {"thing": "chest"}))
    return (*(ExpertTurn(calls=(call,)) for call in calls), ExpertTurn(f"#### {plan.numbers[1]}"))


def _build(rng: random.Random, doors: int) -> Plan:
    # Only random() is used: Python fixes its values across versions.
    rooms = sorted(_ROOMS, key=lambda _: rng.random())
    way, (spare, aside) = rooms[: doors + 1], rooms[doors + 1 : doors + 3]
    start, key = way[0], way[-1]
    chest = start if rng.random() < 0.5 else spare
    every = [*itertools.pairwise(way), (start if chest == spare else way[int(rng.random() * len(way))], spare)]
    every.append((way[int(rng.random() * len(way))], aside))
    box_number = 10 + int(rng.random() * 90)
    chest_number = 10 + (box_number - 10 + 1 + int(rng.random() * 89)) % 90  # any other one
    return Plan(
        start=start,
        doors=tuple(sorted(every, key=lambda _: rng.random())),
        box=start,
        key=key,
        chest=chest,
        numbers=(box_number, chest_number),
    )


def _describe(plan: Plan) -> str:
    doors = ", ".join(f"{a}-{b}" for a, b in plan.doors)
    return f"You are in the {plan.start}. Doors: {doors}. Box: {plan.box}. Key: {plan.key}. Chest: {plan.chest}."


def _split(plan: Plan) -> str:
    layout = json.dumps([plan.start, sorted(sorted(pair) for pair in plan.doors), plan.box, plan.key, plan.chest])
    return SPLITS[zlib.crc32(layout.encode()) % _TEST_SHARE == 0]
