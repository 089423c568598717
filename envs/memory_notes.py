"""The notebook of the memory tasks: pages that are shown once, and a few short notes that last.

>>> pages = (Event("new", "Ana", 47),), (Event("gone", "Ana"), Event("new", "Ben", 12))
>>> plan = Plan(pages, asked=("Ben",), room=1)
>>> book = Notebook(plan)
>>> book.store("Ana", "47"), book.next_page(), book.delete("Ana"), book.store("Ben", "12"), plan.answer
('Stored.', 'Page turned.', 'Deleted.', 'Stored.', 12)
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from trajgym.envs.stage import verbs
from trajgym.envs.tools import ToolFailure
from trajgym.errors import ConfigError
from trajgym.rewards.milestones import all_numbers
from trajgym.types import Step, Task

__all__ = ["LONGEST", "VERBS", "Event", "Notebook", "Plan"]

LONGEST = 16
"""Most characters of a note's key, and of its text."""

KINDS = ("new", "change", "gone", "noise")


@dataclass(frozen=True)
class Event:
    """A sentence of a page.

    Args:
        kind: ``"new"``, somebody gets a locker; ``"change"``, another one; ``"gone"``, gives it back; ``"noise"``, a
            number that nobody will ask for.
        who: Whom it is about.
        number: The number; 0 for ``"gone"``.
        thing: What has the number, for ``"noise"``.
    """

    kind: str
    who: str
    number: int = 0
    thing: str = "locker"

    def __str__(self) -> str:
        if self.kind == "gone":
            return f"{self.who} gives the locker back."
        verb = {"new": "gets", "change": "moves to", "noise": "has"}[self.kind]
        return f"{self.who} {verb} {self.thing} {self.number}."


@dataclass(frozen=True)
class Plan:
    """What the pages say, what is asked, and how many notes there may be.

    Args:
        pages: The events of each page.
        asked: One name, or two whose numbers are to be added up.
        room: Most notes at a time.
    """

    pages: tuple[tuple[Event, ...], ...]
    asked: tuple[str, ...]
    room: int

    @classmethod
    def of(cls, task: Task) -> Plan:
        """Read the plan from a task's ``metadata["ledger"]``.

        Raises:
            ConfigError: When there is none, or it is not one.
        """
        stored: Any = task.metadata.get("ledger")
        try:
            pages = tuple(tuple(Event(**event) for event in page) for page in stored["pages"])
            plan = cls(pages, tuple(stored["asked"]), stored["room"])
            held = plan.held(len(pages))
            sound = 1 <= len(plan.asked) <= 2 and all(name in held for name in plan.asked) and plan.room >= 1
            sound = sound and all(event.kind in KINDS for page in pages for event in page)
        except (TypeError, ValueError, KeyError):
            sound = False
        if not sound:
            raise ConfigError(
                f"Task {task.id!r} holds no ledger. Its metadata needs a mapping 'ledger' of pages, asked and room, as "
                f"those of trajgym.envs.memory_tasks have; got {stored!r:.200}."
            )
        return plan

    def held(self, pages: int) -> dict[str, int]:
        """Return who has which locker after so many pages."""
        out: dict[str, int] = {}
        for event in (event for page in self.pages[:pages] for event in page):
            if event.kind in ("new", "change"):
                out[event.who] = event.number
            elif event.kind == "gone":
                out.pop(event.who, None)
        return out

    @property
    def answer(self) -> int:
        """The number asked for."""
        held = self.held(len(self.pages))
        return sum(held[name] for name in self.asked)

    @property
    def question(self) -> str:
        """What is asked on the last page."""
        if len(self.asked) == 1:
            return f"Which locker does {self.asked[0]} have?"
        return f"What do the numbers of {self.asked[0]}'s and {self.asked[1]}'s lockers add up to?"


class Notebook:
    """Where the reader is, and the notes taken.

    Args:
        plan: What the pages say.
    """

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.page = 0
        self.notes: dict[str, str] = {}

    @classmethod
    def replay(cls, task: Task, steps: Iterable[Step]) -> Notebook:
        """Return the notebook as these steps leave it."""
        book = cls(Plan.of(task))
        for step in steps:
            for result in step.results:
                if result.error is None and result.call.name in _NAMES:
                    getattr(book, result.call.name)(**result.call.arguments)
        return book

    @property
    def asked(self) -> bool:
        """Whether the last page is open, which asks the question."""
        return self.page == len(self.plan.pages)

    def kept(self) -> float:
        """Return the share of the lockers in use for which there is a note: the name, and its number alone."""
        held = self.plan.held(self.page + 1)
        noted = {key.casefold(): [int(n) for n in all_numbers(text)] for key, text in self.notes.items()}
        right = sum(noted.get(name.casefold()) == [number] for name, number in held.items())
        return right / len(held) if held else 0.0

    def text(self) -> str:
        """Return the open page as the reader sees it."""
        pages = len(self.plan.pages)
        head = "Last page." if self.asked else f"Page {self.page + 1} of {pages}."
        notes = "; ".join(f"{key}: {text}" for key, text in self.notes.items()) or "none"
        body = self.plan.question if self.asked else " ".join(map(str, self.plan.pages[self.page]))
        return f"{head} Notes ({len(self.notes)} of {self.plan.room}): {notes}\n{body}"

    def store(self, key: str, text: str) -> str:
        """Write a new note.

        Args:
            key: Its name.
            text: What it says.
        """
        key, text = _note(key), _note(text)
        if key in self.notes:
            raise ToolFailure("exists", f"There is a note {key!r}; update or delete it.")
        if len(self.notes) >= self.plan.room:
            raise ToolFailure("full", f"All {self.plan.room} notes are in use; delete one first.")
        self.notes[key] = text
        return "Stored."

    def update(self, key: str, text: str) -> str:
        """Replace what a note says.

        Args:
            key: Its name.
            text: What it says from now on.
        """
        key, text = self._known(key), _note(text)
        self.notes[key] = text
        return "Updated."

    def delete(self, key: str) -> str:
        """Remove a note.

        Args:
            key: Its name.
        """
        del self.notes[self._known(key)]
        return "Deleted."

    def next_page(self) -> str:
        """Turn the page. Nothing but the notes is left of this one."""
        if self.asked:
            raise ToolFailure("last_page", "This is the last page.")
        self.page += 1
        return "Page turned."

    def _known(self, key: str) -> str:
        if (key := _note(key)) not in self.notes:
            raise ToolFailure("not_found", f"There is no note {key!r}.")
        return key


def _note(text: str) -> str:
    text = text.strip()
    if not text or len(text) > LONGEST or not text.isprintable():
        raise ToolFailure("bad_note", f"A key or a text has 1 to {LONGEST} characters in one line.")
    return text


_BLANK = Notebook(Plan(pages=(), asked=(), room=1))
_NAMES = ("store", "update", "delete", "next_page")

VERBS = verbs(_BLANK.store, _BLANK.update, _BLANK.delete, _BLANK.next_page)
"""What a policy may do; see :class:`trajgym.envs.stage.Stage`."""
