"""Procedural ledgers: endless, seeded, with a demonstration and a held-out split.

A task id such as ``memory/test/3/4/918273`` (split, level, notes, seed) says everything: the same id gives the same
pages on every platform.

>>> task = MemoryTasks("test").get("memory/test/2/4/7")
>>> task.answer == str(Plan.of(task).answer), MemoryTasks("test").get(task.id) == task
(True, True)
"""

from __future__ import annotations

import itertools
import json
import random
import zlib
from collections.abc import Iterator
from dataclasses import asdict

from trajgym.envs.memory_notes import Event, Plan
from trajgym.envs.procedural import SPLITS, ProceduralTasks
from trajgym.errors import ConfigError
from trajgym.types import ExpertTurn, Task, ToolCall

__all__ = ["LEVELS", "ROOM", "MemoryTasks", "solution"]

LEVELS = 3
ROOM = 4
"""Notes at a time, unless another number is asked for."""

_TEST_SHARE = 8  # one ledger in so many belongs to the test split
_MOST_ROOM = 8
_PEOPLE = (
    *("Ana", "Ben", "Cleo", "Dan", "Eva", "Finn", "Gina", "Hugo", "Ida", "Jon"),
    *("Kim", "Leo", "Mia", "Nils", "Olga", "Pia", "Quin", "Rosa", "Sam", "Tina"),
)
_THINGS = ("bicycle", "badge", "desk", "ticket")


class MemoryTasks(ProceduralTasks):
    """Ledgers of lockers, page by page, made up as they are asked for.

    Level 1 has three pages and at most as many people as there are notes: storing is enough. Level 2 has four, and some
    people move to another locker: notes must be updated. Level 3 has five, more people than notes, and some give their
    locker back: notes must be deleted. Never are there more lockers in use than notes. Half of the sentences are noise.
    The question is for one locker in level 1, for the sum of two above. A hash of the pages, numbers left out, decides
    to which split a ledger belongs (1 in 8 is test).

    Args:
        split: ``"train"`` or ``"test"``.
        difficulty: Level from 1 to 3, or the lowest and the highest level; drawn uniformly.
        room: Most notes at a time, from 2 to 8.

    Raises:
        UnknownNameError: For another split.
        ConfigError: For a level or a number of notes outside these bounds.
    """

    family = "memory"
    deciding = "split=, difficulty= and room="

    def __init__(self, split: str = "train", difficulty: int | tuple[int, int] = (1, 3), room: int = ROOM) -> None:
        if isinstance(room, bool) or not isinstance(room, int) or not 2 <= room <= _MOST_ROOM:
            raise ConfigError(f"room= must be a number of notes from 2 to {_MOST_ROOM}, got {room!r}.")
        super().__init__(split, difficulty, highest=LEVELS)
        self.room = room

    def __repr__(self) -> str:
        return f"MemoryTasks({self.split!r}, difficulty={self.difficulty}, room={self.room})"

    def stem(self, level: int) -> str:
        """Return what stands before the seed in the ids of a level."""
        return f"{super().stem(level)}/{self.room}"

    def make(self, level: int, seed: int) -> Task:
        """Build ledgers from one sub-seed after the other until one belongs to the split."""
        for attempt in itertools.count():
            rng = random.Random(f"{self.split}/{level}/{seed}/{attempt}")  # a text seeds alike in every process
            plan = _build(rng, level, self.room)
            if _split(plan) == self.split:
                break
        return Task(
            id=f"{self.stem(level)}/{seed}",
            question=plan.question,
            answer=str(plan.answer),
            solution=solution(plan),
            difficulty=level,
            metadata={"ledger": json.loads(json.dumps(asdict(plan)))},
        )


def solution(plan: Plan) -> tuple[ExpertTurn, ...]:
    """Return the demonstration: on each page one turn that notes what has changed and turns it, then the answer."""
    turns = []
    for page in plan.pages:
        calls = []
        for event in page:
            note = {"key": event.who, "text": str(event.number)}
            if event.kind == "gone":
                calls.append(ToolCall("delete", {"key": event.who}))
            elif event.kind != "noise":
                calls.append(ToolCall("store" if event.kind == "new" else "update", note))
        turns.append(ExpertTurn(calls=(*calls, ToolCall("next_page"))))
    held = plan.held(len(plan.pages))
    sum_of = " + ".join(str(held[name]) for name in plan.asked)
    working = f"{sum_of} = {plan.answer}\n" if len(plan.asked) > 1 else ""
    return (*turns, ExpertTurn(f"{working}#### {plan.answer}"))


def _build(rng: random.Random, level: int, room: int) -> Plan:
    # Only random() is used: Python fixes its values across versions.
    people = iter(sorted(_PEOPLE, key=lambda _: rng.random()))
    numbers = iter(sorted(range(10, 100), key=lambda _: rng.random()))
    held: list[str] = []
    pages: list[tuple[Event, ...]] = []
    for kinds in _outline(rng, level, room):
        page: list[Event] = []
        for kind in kinds:
            if kind == "new":
                held.append(next(people))
                page.append(Event("new", held[-1], next(numbers)))
            elif kind == "gone":
                page.append(Event("gone", held.pop(_below(rng, len(held)))))
            elif kind == "change":
                page.append(Event("change", held[_below(rng, len(held))], next(numbers)))
            else:
                who, thing = _PEOPLE[_below(rng, len(_PEOPLE))], _THINGS[_below(rng, len(_THINGS))]
                page.append(Event("noise", who, next(numbers), thing))
        pages.append(tuple(page))
    asked = sorted(held, key=lambda _: rng.random())[: 1 if level == 1 else 2]
    return Plan(tuple(pages), tuple(asked), room)


def _outline(rng: random.Random, level: int, room: int) -> Iterator[list[str]]:
    """Yield the kinds of events of each page, what matters and what does not in a random order."""
    if level == 1:  # one locker after the other
        pages = [["new"] for _ in range(min(3, room))]
        pages += [[] for _ in range(3 - len(pages))]
    elif level == 2:  # lockers change
        pages = [["new", "new"], ["change"], ["new"] if room > 2 else ["change"], ["change"]]
    else:  # the notes run out
        pages = [["new", "new"], ["new"] * (room - 2) or ["change"], ["gone", "new"], ["change"], ["gone", "new"]]
    for page in pages:
        noise = ["noise"] * max(1, len(page))
        places = sorted(range(len(page) + len(noise)), key=lambda _: rng.random())[: len(page)]
        kinds = ["noise"] * (len(page) + len(noise))
        for place, kind in zip(sorted(places), page, strict=True):
            kinds[place] = kind
        yield kinds


def _below(rng: random.Random, bound: int) -> int:
    return int(rng.random() * bound)


def _split(plan: Plan) -> str:
    layout = json.dumps([[[e.kind, e.who, e.thing] for e in page] for page in plan.pages])
    return SPLITS[zlib.crc32(layout.encode()) % _TEST_SHARE == 0]
