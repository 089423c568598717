"""The form of the procedural problems' wordings, and the words that all of them share.

A story follows one quantity. In a wording

- ``{A}`` is the holder of the quantity by name, ``{s}`` the holder as a subject (a name or a pronoun), ``{o}`` the
  holder as an object, ``{his}`` the possessive (only beside ``{A}`` or ``{s}``, so that it refers to them);
- ``{B}`` is a new holder: the quantity is theirs from here on;
- ``{things}`` is what is counted, ``{others}`` something new that is counted from here on;
- ``{n}`` is the step's number. A wording without it holds exactly one of :data:`WORD_NUMBERS` instead.

Every wording names the holder, so that each sentence says whose quantity it changes. Everything is in the present
tense, and no number is one, so that verbs and nouns need no other forms. Sentence starts are capitalised later.
"""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["DISTRACTORS", "PEOPLE", "WORD_NUMBERS", "Cast", "Domain", "Holder"]

# Words that stand for a step's number; the only numbers of a problem that are not written in digits.
WORD_NUMBERS = {
    "half": 2,
    "twice": 2,
    "doubles": 2,
    "third": 3,
    "three": 3,
    "triples": 3,
    "quarter": 4,
    "four": 4,
}


@dataclass(frozen=True)
class Holder:
    """Who or what has the quantity: a name, and its pronouns as subject, object and possessive."""

    name: str
    he: str = "it"
    him: str = "it"
    his: str = "its"


@dataclass(frozen=True)
class Cast:
    """Holders and things that go together."""

    holders: tuple[Holder, ...]
    things: tuple[str, ...]


@dataclass(frozen=True)
class Domain:
    """One kind of story: its casts, first sentences, sentences per operation, and final questions."""

    casts: tuple[Cast, ...]
    start: tuple[str, ...]
    steps: dict[str, tuple[str, ...]]
    ask: tuple[str, ...]


_SHE = ("Mia", "Anna", "Lily", "Emma", "Nora", "Ella", "Zoe", "Ruby", "Ivy", "Maya")
_HE = ("Ben", "Tom", "Sam", "Jack", "Leo", "Max", "Noah", "Omar", "Luis", "Finn")
PEOPLE = (*(Holder(name, "she", "her", "her") for name in _SHE), *(Holder(name, "he", "him", "his") for name in _HE))

# Sentences whose number {n} does not matter; {C} is a person the story is not about. One that shares a word with the
# counted things of a story is not used in it.
DISTRACTORS = (
    "{C} is {n} years old.",
    "{C} has {n} spoons.",
    "{C} owns {n} pictures.",
    "{C} buys {n} nails.",
    "The trip takes {n} minutes.",
    "The school is {n} miles away.",
    "There are {n} rooms in the house.",
    "{C} reads {n} pages.",
    "A ticket costs {n} dollars.",
    "The room is {n} feet long.",
    "There are {n} people at the party.",
    "{C} sleeps for {n} minutes.",
)
