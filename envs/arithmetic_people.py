"""Stories of people: what they collect, their money, their points in a game.

How to read a wording stands in :mod:`trajgym.envs.arithmetic_wording`.
"""

from __future__ import annotations

from trajgym.envs.arithmetic_wording import PEOPLE, Cast, Domain

__all__ = ["PEOPLE_DOMAINS"]

_COLLECTION = Domain(
    casts=(
        Cast(
            PEOPLE,
            (
                *("apples", "pears", "cookies", "eggs", "shells", "stickers", "marbles", "cards", "coins"),
                *("beads", "books", "pencils", "stamps", "toys", "balloons", "flowers", "stones", "buttons"),
            ),
        ),
    ),
    start=(
        "{A} has {n} {things}.",
        "{A} starts with {n} {things}.",
        "{A} owns {n} {things}.",
        "On Monday, {A} has {n} {things}.",
        "{A} has a box with {n} {things}.",
        "In the morning, {A} has {n} {things}.",
    ),
    steps={
        "+": (
            "{s} buys {n} more {things}.",
            "{s} finds {n} more {things}.",
            "{s} gets {n} {things} from a friend.",
            "A friend gives {o} {n} more {things}.",
            "Then {s} wins {n} {things} in a game.",
            "Later, {s} picks up {n} more {things}.",
            "{s} gets {n} {things} as a gift.",
            "After a while, {s} has {n} more {things} than before.",
            "{B} has {n} more {things} than {A}.",
            "Now {B} has {n} more {things} than {A}.",
            "{A} has {n} fewer {things} than {B}.",
        ),
        "-": (
            "{s} gives {n} {things} to a friend.",
            "{s} loses {n} {things}.",
            "{s} sells {n} of the {things}.",
            "Then {s} uses up {n} {things}.",
            "{s} throws away {n} of the {things}.",
            "{s} leaves {n} {things} at school.",
            "A thief takes {n} {things} from {o}.",
            "Later, {s} has {n} fewer {things} than before.",
            "{B} has {n} fewer {things} than {A}.",
            "Now {B} has {n} fewer {things} than {A}.",
            "{A} has {n} more {things} than {B}.",
        ),
        "*": (
            "{B} has {n} times as many {things} as {A}.",
            "{B} has twice as many {things} as {A}.",
            "{B} has three times as many {things} as {A}.",
            "{B} has four times as many {things} as {A}.",
            "The number of {things} that {A} has doubles.",
            "The number of {things} that {A} has triples.",
            "After a year, {s} has {n} times as many {things} as before.",
            "{s} trades all the {things} and gets {n} {others} for each.",
            "A friend gives {o} {n} {others} for each of the {things}.",
        ),
        "/": (
            "{B} has half as many {things} as {A}.",
            "{B} has a third as many {things} as {A}.",
            "{B} has a quarter as many {things} as {A}.",
            "{s} gives away half of the {things}.",
            "{s} keeps half of the {things} and sells the rest.",
            "{s} keeps only a third of the {things}.",
            "The {things} are shared equally among {n} people, and {A} is one.",
            "{s} keeps only one of {n} equal groups of {things}.",
            "{s} packs the {things} equally into {n} bags and keeps one.",
            "{A} has {n} times as many {things} as {B}.",
            "{A} has twice as many {things} as {B}.",
        ),
    },
    ask=(
        "How many {things} does {A} have now?",
        "How many {things} does {A} have in the end?",
        "Find the number of {things} {A} has now.",
        "What is the number of {things} {A} has now?",
    ),
)

_MONEY = Domain(
    casts=(Cast(PEOPLE, ("dollars",)),),
    start=(
        "{A} has {n} {things}.",
        "At first, {A} has {n} {things}.",
        "{A} starts the week with {n} {things}.",
        "On Monday, {A} has {n} {things} in a bag.",
    ),
    steps={
        "+": (
            "{s} earns {n} more {things}.",
            "{s} gets {n} {things} from a friend.",
            "A friend pays {o} {n} {things}.",
            "Then {s} sells a lamp for {n} {things}.",
            "{s} finds {n} {things} on the way home.",
            "{B} has {n} {things} more than {A}.",
            "{A} has {n} {things} less than {B}.",
        ),
        "-": (
            "{s} spends {n} {things} on food.",
            "{s} pays {n} {things} for a book.",
            "Then {s} gives {n} {things} to a friend.",
            "{s} loses {n} {things} on the way home.",
            "A new lamp costs {o} {n} {things}.",
            "{B} has {n} {things} less than {A}.",
            "{A} has {n} {things} more than {B}.",
        ),
        "*": (
            "{s} doubles {his} money.",
            "{s} triples {his} money.",
            "{B} has twice as much money as {A}.",
            "{B} has {n} times as much money as {A}.",
            "After a year, {s} has {n} times as much money as before.",
        ),
        "/": (
            "{s} spends half of {his} money.",
            "{B} has half as much money as {A}.",
            "{A} has {n} times as much money as {B}.",
            "{s} keeps only one of {n} equal parts of {his} money.",
            "Then {s} keeps only a quarter of {his} money.",
        ),
    },
    ask=(
        "How many {things} does {A} have now?",
        "How much money does {A} have now, in {things}?",
        "How many {things} does {A} have in the end?",
    ),
)

_POINTS = Domain(
    casts=(Cast(PEOPLE, ("points",)),),
    start=(
        "{A} has {n} {things} in a game.",
        "{A} starts a game with {n} {things}.",
        "In a game, {A} has {n} {things}.",
    ),
    steps={
        "+": (
            "{s} wins {n} more {things}.",
            "A bonus gives {o} {n} {things}.",
            "Then {s} wins {n} {things} in the next round.",
            "{B} has {n} more {things} than {A}.",
        ),
        "-": (
            "{s} loses {n} {things}.",
            "In the next round, {s} loses {n} {things}.",
            "A mistake costs {o} {n} {things}.",
            "{B} has {n} fewer {things} than {A}.",
        ),
        "*": (
            "{s} doubles {his} {things} with a card.",
            "A card triples the number of {things} {A} has.",
            "After the next round, {s} has {n} times as many {things} as before.",
            "{B} has twice as many {things} as {A}.",
            "{B} has {n} times as many {things} as {A}.",
        ),
        "/": (
            "{s} loses half of {his} {things}.",
            "A mistake leaves {o} with a third of the {things}.",
            "{B} has half as many {things} as {A}.",
            "{A} has {n} times as many {things} as {B}.",
        ),
    },
    ask=(
        "How many {things} does {A} have now?",
        "How many {things} does {A} have in the end?",
        "What is the number of {things} {A} has now?",
    ),
)

# Each is drawn with the same probability; the widest one stands here twice.
PEOPLE_DOMAINS = (_COLLECTION, _COLLECTION, _MONEY, _POINTS)
