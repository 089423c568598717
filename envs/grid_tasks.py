"""Procedural grids: endless, seeded, with a demonstration and a held-out split.

A task id such as ``grid/test/3/918273`` (split, level, seed) says everything: the same id gives the same grid on every
platform.

>>> task = GridTasks("test").get("grid/test/1/7")
>>> task.question.startswith("Walk to the"), GridTasks("test").get(task.id) == task
(True, True)
"""

from __future__ import annotations

import itertools
import json
import random
import zlib
from dataclasses import asdict

from trajgym.envs.grid_map import COLOURS, Place, Plan, Walker
from trajgym.envs.procedural import SPLITS, ProceduralTasks
from trajgym.types import ExpertTurn, Task, ToolCall

__all__ = ["LEVELS", "GridTasks", "solution", "walk"]

LEVELS = 3

_TEST_SHARE = 8  # one grid in so many belongs to the test split


class GridTasks(ProceduralTasks):
    """Grids with coloured squares, made up as they are asked for.

    Level 1 is a room of 4 by 4 without walls. Level 2 has walls. Level 3 is a maze in fog: only what is beside a
    visited place can be seen, and whoever does not know the way goes into dead ends and must come back. A hash of the
    grid, numbers left out, decides to which split it belongs (1 in 8 is test).

    Args:
        split: ``"train"`` or ``"test"``.
        difficulty: Level from 1 to 3, or the lowest and the highest level; drawn uniformly.

    Raises:
        UnknownNameError: For another split.
        ConfigError: For a level outside these bounds.
    """

    family = "grid"

    def __init__(self, split: str = "train", difficulty: int | tuple[int, int] = (1, 3)) -> None:
        super().__init__(split, difficulty, highest=LEVELS)

    def make(self, level: int, seed: int) -> Task:
        """Build grids from one sub-seed after the other until one is fit, and belongs to the split."""
        for attempt in itertools.count():
            rng = random.Random(f"{self.split}/{level}/{seed}/{attempt}")  # a text seeds alike in every process
            plan = _build(rng, level)
            if plan is not None and _split(plan) == self.split and (level < 3 or _goes_back(plan)):
                break
        assert plan is not None
        return Task(
            id=f"{self.stem(level)}/{seed}",
            question=f"Walk to the {plan.asked} square and say its number.",
            answer=str(plan.numbers[plan.asked]),
            solution=solution(plan),
            difficulty=level,
            metadata={"grid": json.loads(json.dumps(asdict(plan)))},
        )


def walk(plan: Plan) -> list[list[str]]:
    """Return a way to the square that is asked for, found with what can be seen: moves, in turns.

    Where everything is in sight that is a shortest way. In fog it is a search that always goes to the nearest place it
    has not visited yet; it goes back where the way ends. A turn holds the moves up to the next place that is new.
    """
    walker, goal, visited, turns = Walker(plan), plan.squares[plan.asked], {plan.start}, list[list[str]]()
    while walker.place != goal:
        known = {place for place in walker.seen if plan.free(place)}
        targets = {goal} if goal in known else known - visited
        moves = _way(plan, walker.place, targets, known)
        for move in moves:
            walker.move(move)
            visited.add(walker.place)
        turns.append(moves)
    return turns


def solution(plan: Plan) -> tuple[ExpertTurn, ...]:
    """Return the demonstration: walk there, then say the number."""
    turns = [tuple(ToolCall("move", {"direction": move}) for move in moves) for moves in walk(plan)]
    return (*(ExpertTurn(calls=calls) for calls in turns), ExpertTurn(f"#### {plan.numbers[plan.asked]}"))


def _way(plan: Plan, start: Place, targets: set[Place], known: set[Place]) -> list[str]:
    """Return a shortest way through known places to the nearest target."""
    came: dict[Place, tuple[str, Place]] = {}
    waiting = [start]
    for here in waiting:
        if here in targets and here != start:
            moves: list[str] = []
            while here != start:
                move, here = came[here]
                moves.append(move)
            return moves[::-1]
        for move, there in plan.beside(here):
            if there in known and there != start and there not in came:
                came[there] = (move, here)
                waiting.append(there)
    raise AssertionError("every square can be reached")


def _goes_back(plan: Plan) -> bool:
    """Whether the search has to leave a dead end the way it came."""
    walker, visited = Walker(plan), [plan.start]
    for move in (move for turn in walk(plan) for move in turn):
        walker.move(move)
        visited.append(walker.place)
    return len(set(visited)) < len(visited)


def _build(rng: random.Random, level: int) -> Plan | None:
    # Only random() is used: Python fixes its values across versions.
    if level == 3:
        rows = _maze(rng, 7)
    else:
        size, share = (4, 0.0) if level == 1 else (5, 0.3)
        rows = tuple("".join("#" if rng.random() < share else "." for _ in range(size)) for _ in range(size))
    floor = [(r, c) for r, row in enumerate(rows) for c, cell in enumerate(row) if cell == "."]
    places = sorted(floor, key=lambda _: rng.random())
    colours = sorted(COLOURS, key=lambda _: rng.random())[: 3 if level == 2 else 2]
    numbers = sorted(range(10, 100), key=lambda _: rng.random())[: len(colours)]
    if len(places) <= len(colours):
        return None
    squares = dict(zip(colours, places[1:], strict=False))
    plan = Plan(rows, places[0], squares, dict(zip(colours, numbers, strict=True)), colours[0], level == 3)
    reach = plan.distances(plan.start)
    return plan if all(place in reach for place in squares.values()) and reach[squares[colours[0]]] > 1 else None


def _maze(rng: random.Random, size: int) -> tuple[str, ...]:
    """Return a maze without circles: passages between the places with even numbers."""
    cells = [["#"] * size for _ in range(size)]
    cells[0][0] = "."
    path = [(0, 0)]
    while path:
        row, column = path[-1]
        around = [(row + down, column + right) for down, right in ((-2, 0), (2, 0), (0, -2), (0, 2))]
        new = [(r, c) for r, c in around if 0 <= r < size and 0 <= c < size and cells[r][c] == "#"]
        if not new:
            path.pop()
            continue
        r, c = new[int(rng.random() * len(new))]
        cells[(row + r) // 2][(column + c) // 2] = cells[r][c] = "."
        path.append((r, c))
    return tuple("".join(row) for row in cells)


def _split(plan: Plan) -> str:
    layout = json.dumps([plan.rows, plan.start, plan.squares, plan.asked])
    return SPLITS[zlib.crc32(layout.encode()) % _TEST_SHARE == 0]
