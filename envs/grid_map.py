"""The grid: walls, coloured squares with numbers, somebody who walks, and how all of it looks.

>>> walker = Walker(Plan(("..", "#."), (0, 0), {"green": (1, 1)}, {"green": 57}, asked="green"))
>>> walker.move("right"), walker.move("down")
('Moved.', 'You are on the green square. It says 57.')
>>> print(walker.text())
..
#@
"""

from __future__ import annotations

import base64
import struct
import zlib
from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trajgym.envs.stage import verbs
from trajgym.envs.tools import ToolFailure
from trajgym.errors import ConfigError
from trajgym.types import Step, Task

__all__ = ["CELL", "COLOURS", "MOVES", "VERBS", "Plan", "Walker", "png", "read_png"]

Place = tuple[int, int]
"""Row and column, from 0."""

MOVES = {"up": (-1, 0), "down": (1, 0), "left": (0, -1), "right": (0, 1)}

COLOURS = {
    "red": (214, 40, 40),
    "green": (42, 157, 67),
    "blue": (38, 90, 214),
    "yellow": (244, 200, 40),
    "purple": (130, 50, 160),
    "orange": (240, 130, 30),
}

CELL = 8
"""Pixels along a square."""

_WALL, _FLOOR, _UNSEEN, _WALKER = (60, 60, 60), (255, 255, 255), (190, 190, 190), (0, 0, 0)


@dataclass(frozen=True)
class Plan:
    """Where everything is.

    Args:
        rows: One text for each row: ``#`` is a wall, ``.`` is floor.
        start: Where the walker is at first.
        squares: The places of the coloured squares.
        numbers: What they say.
        asked: Which colour is asked for.
        fog: Whether only what is beside a visited place can be seen.
    """

    rows: tuple[str, ...]
    start: Place
    squares: Mapping[str, Place]
    numbers: Mapping[str, int]
    asked: str
    fog: bool = False

    @classmethod
    def of(cls, task: Task) -> Plan:
        """Read the plan from a task's ``metadata["grid"]``.

        Raises:
            ConfigError: When there is none, or it is not one.
        """
        stored: Any = task.metadata.get("grid")
        try:
            squares = {colour: (int(r), int(c)) for colour, (r, c) in stored["squares"].items()}
            start = (int(stored["start"][0]), int(stored["start"][1]))
            plan = cls(tuple(stored["rows"]), start, squares, dict(stored["numbers"]), stored["asked"], stored["fog"])
            reach = plan.distances(start)
            sound = plan.asked in squares and all(place in reach for place in squares.values())
            sound = sound and squares.keys() == plan.numbers.keys() and squares.keys() <= COLOURS.keys()
            sound = sound and len({len(row) for row in plan.rows}) == 1
        except (TypeError, ValueError, KeyError, IndexError, AttributeError):
            sound = False
        if not sound:
            raise ConfigError(
                f"Task {task.id!r} holds no grid. Its metadata needs a mapping 'grid' of rows, start, squares, "
                f"numbers, asked and fog, as those of trajgym.envs.grid_tasks have; got {stored!r:.200}."
            )
        return plan

    def free(self, place: Place) -> bool:
        """Whether one can stand there."""
        row, column = place
        return 0 <= row < len(self.rows) and 0 <= column < len(self.rows[0]) and self.rows[row][column] == "."

    def beside(self, place: Place) -> list[tuple[str, Place]]:
        """Return the moves that lead somewhere, and where."""
        out = [(name, (place[0] + down, place[1] + right)) for name, (down, right) in MOVES.items()]
        return [(name, there) for name, there in out if self.free(there)]

    def distances(self, place: Place) -> dict[Place, int]:
        """Return how many moves each place that can be reached is away."""
        found, waiting = ({place: 0} if self.free(place) else {}), deque([place])
        while waiting and found:
            here = waiting.popleft()
            for _, there in self.beside(here):
                if there not in found:
                    found[there] = found[here] + 1
                    waiting.append(there)
        return found


class Walker:
    """Somebody on a grid.

    Args:
        plan: Where everything is.
    """

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.place = plan.start
        self.seen: set[Place] = set()
        self._look()

    @classmethod
    def replay(cls, task: Task, steps: Iterable[Step]) -> Walker:
        """Return the walker as these steps leave it."""
        walker = cls(Plan.of(task))
        for step in steps:
            for result in step.results:
                if result.error is None and result.call.name == "move":
                    walker.move(**result.call.arguments)
        return walker

    def move(self, direction: str) -> str:
        """Walk to a neighbouring place.

        Args:
            direction: "up", "down", "left" or "right".
        """
        if direction not in MOVES:
            raise ToolFailure("no_direction", f"There is no direction {direction!r}: up, down, left, right.")
        down, right = MOVES[direction]
        there = (self.place[0] + down, self.place[1] + right)
        if not self.plan.free(there):
            raise ToolFailure("wall", "There is a wall.")
        self.place = there
        self._look()
        colour = next((colour for colour, place in self.plan.squares.items() if place == there), None)
        return "Moved." if colour is None else f"You are on the {colour} square. It says {self.plan.numbers[colour]}."

    def image(self) -> NDArray[np.uint8]:
        """Return the grid as a picture. Shape: (rows · CELL, columns · CELL, 3), RGB."""
        rows, columns = len(self.plan.rows), len(self.plan.rows[0])
        picture = np.empty((rows * CELL, columns * CELL, 3), dtype=np.uint8)
        for row in range(rows):
            for column in range(columns):
                picture[row * CELL : (row + 1) * CELL, column * CELL : (column + 1) * CELL] = self._colour(
                    (row, column)
                )
        top, left = self.place[0] * CELL, self.place[1] * CELL
        picture[top + 2 : top + CELL - 2, left + 2 : left + CELL - 2] = _WALKER
        return picture

    def text(self) -> str:
        """Return the grid in letters: ``@`` the walker, ``#`` a wall, ``?`` unseen, else a colour's first letter."""
        letters = {place: colour[0].upper() for colour, place in self.plan.squares.items()} | {self.place: "@"}
        return "\n".join(
            "".join(
                letters.get((r, c), cell) if (r, c) in self.seen else "?" for c, cell in enumerate(row)
            )
            for r, row in enumerate(self.plan.rows)
        )  # fmt: skip

    def _colour(self, place: Place) -> tuple[int, int, int]:
        if place not in self.seen:
            return _UNSEEN
        if not self.plan.free(place):
            return _WALL
        return next((COLOURS[colour] for colour, there in self.plan.squares.items() if there == place), _FLOOR)

    def _look(self) -> None:
        rows, columns = range(len(self.plan.rows)), range(len(self.plan.rows[0]))
        if self.plan.fog:
            row, column = self.place
            near = {(row + down, column + right) for down, right in MOVES.values()} | {self.place}
            self.seen |= {(r, c) for r, c in near if r in rows and c in columns}
        elif not self.seen:
            self.seen = {(r, c) for r in rows for c in columns}


def png(picture: NDArray[np.uint8]) -> bytes:
    """Return an RGB picture as a PNG file.

    Source: ISO/IEC 15948, Portable Network Graphics.
    """
    height, width, _ = picture.shape
    lines = b"".join(b"\0" + line.tobytes() for line in picture)  # each begins with its filter, none

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    head = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(lines, 9)) + chunk(b"IEND", b"")


def read_png(data: bytes) -> NDArray[np.uint8]:
    """Return the picture of a file that :func:`png` has made."""
    width, height = struct.unpack(">II", data[16:24])
    (size,) = struct.unpack(">I", data[33:37])
    lines = np.frombuffer(zlib.decompress(data[41 : 41 + size]), dtype=np.uint8).reshape(height, 1 + 3 * width)
    return lines[:, 1:].reshape(height, width, 3)


def markdown(picture: NDArray[np.uint8]) -> str:
    """Return a picture in the form in which it stands in a message."""
    return f"![grid](data:image/png;base64,{base64.b64encode(png(picture)).decode()})"


_NOWHERE = Walker(Plan((".",), (0, 0), {}, {}, ""))

VERBS = verbs(_NOWHERE.move)
"""What a policy may do; see :class:`trajgym.envs.stage.Stage`."""
