"""Stories of places and objects: what a place has, what a vessel contains, who rides along, how long something is.

How to read a wording stands in :mod:`trajgym.envs.arithmetic_wording`.
"""

from __future__ import annotations

from trajgym.envs.arithmetic_wording import Cast, Domain, Holder

__all__ = ["SCENE_DOMAINS"]

_LOOKS = ("red", "blue", "green", "old", "new", "big", "small")


def _each(noun: str) -> tuple[Holder, ...]:
    return tuple(Holder(f"the {look} {noun}") for look in _LOOKS)


_PLACE = Domain(
    casts=(
        Cast(_each("shop"), ("lamps", "chairs", "hats", "books")),
        Cast(_each("farm"), ("cows", "sheep", "goats", "hens")),
        Cast(_each("zoo"), ("birds", "monkeys", "snakes")),
        Cast(_each("museum"), ("coins", "stamps", "stones", "masks")),
    ),
    start=(
        "{A} has {n} {things}.",
        "There are {n} {things} at {A}.",
        "On Monday, {A} has {n} {things}.",
        "At first, {A} has {n} {things}.",
    ),
    steps={
        "+": (
            "{s} gets {n} more {things}.",
            "A truck brings {n} {things} to {o}.",
            "A worker brings {n} more {things} to {o}.",
            "Then {s} buys {n} {things}.",
            "{B} has {n} more {things} than {A}.",
            "{A} has {n} fewer {things} than {B}.",
        ),
        "-": (
            "{s} sells {n} of the {things}.",
            "A truck takes {n} {things} away from {o}.",
            "{s} loses {n} {things} in a storm.",
            "Then {s} gives {n} {things} to a school.",
            "{B} has {n} fewer {things} than {A}.",
            "{A} has {n} more {things} than {B}.",
        ),
        "*": (
            "The number of {things} at {A} doubles.",
            "The number of {things} at {A} triples.",
            "After a year, {s} has {n} times as many {things} as before.",
            "{B} has twice as many {things} as {A}.",
            "{B} has {n} times as many {things} as {A}.",
        ),
        "/": (
            "{s} sells half of the {things}.",
            "{s} keeps only a quarter of the {things}.",
            "{s} keeps only one of {n} equal groups of {things}.",
            "{B} has half as many {things} as {A}.",
            "{A} has {n} times as many {things} as {B}.",
        ),
    },
    ask=(
        "How many {things} does {A} have now?",
        "How many {things} are at {A} now?",
        "Find the number of {things} at {A}.",
    ),
)

_TANK = Domain(
    casts=tuple(Cast(_each(noun), ("liters",)) for noun in ("tank", "barrel", "pot")),
    start=(
        "There are {n} {things} of water in {A}.",
        "{A} contains {n} {things} of milk.",
        "At first, {A} contains {n} {things} of water.",
    ),
    steps={
        "+": (
            "A pump adds {n} {things} to {o}.",
            "A worker pours {n} more {things} into {o}.",
            "Then {s} gets {n} more {things}.",
            "{B} contains {n} more {things} than {A}.",
        ),
        "-": (
            "A worker takes {n} {things} out of {o}.",
            "At night, {n} {things} leak out of {o}.",
            "Then {s} loses {n} {things}.",
            "{B} contains {n} fewer {things} than {A}.",
        ),
        "*": (
            "A pump doubles the amount in {o}.",
            "The amount in {A} triples.",
            "A worker makes the amount in {o} {n} times as large.",
            "{B} contains {n} times as many {things} as {A}.",
            "{B} contains three times as many {things} as {A}.",
        ),
        "/": (
            "Half of the amount in {o} leaks out.",
            "A leak leaves {o} with a third of the amount.",
            "{B} contains half as many {things} as {A}.",
            "{A} contains {n} times as many {things} as {B}.",
        ),
    },
    ask=(
        "How many {things} are in {A} now?",
        "How many {things} does {A} contain in the end?",
        "Find the number of {things} in {A}.",
    ),
)

_RIDE = Domain(
    casts=tuple(Cast(_each(noun), ("people", "children", "students")) for noun in ("bus", "train", "boat")),
    start=(
        "There are {n} {things} on {A}.",
        "{A} carries {n} {things}.",
        "At first, {n} {things} are on {A}.",
        "{A} leaves with {n} {things}.",
    ),
    steps={
        "+": (
            "At the next stop, {n} {things} get on {o}.",
            "Then {n} more {things} get on {o}.",
            "{s} picks up {n} more {things}.",
            "{B} carries {n} more {things} than {A}.",
        ),
        "-": (
            "At the next stop, {n} {things} get off {o}.",
            "Then {n} of the {things} get off {o}.",
            "Later, {n} {things} leave {o}.",
            "{B} carries {n} fewer {things} than {A}.",
        ),
        "*": (
            "The number of {things} on {A} doubles.",
            "Then the number of {things} on {o} triples.",
            "{B} carries {n} times as many {things} as {A}.",
            "{B} carries twice as many {things} as {A}.",
        ),
        "/": (
            "Half of the {things} get off {o}.",
            "Only a third of the {things} stay on {o}.",
            "{B} carries half as many {things} as {A}.",
            "{A} carries {n} times as many {things} as {B}.",
        ),
    },
    ask=(
        "How many {things} are on {A} now?",
        "How many {things} does {A} carry in the end?",
        "Find the number of {things} on {A}.",
    ),
)

_LENGTH = Domain(
    casts=tuple(Cast(_each(noun), ("meters", "feet")) for noun in ("rope", "fence", "wall")),
    start=("{A} is {n} {things} long.", "At first, {A} is {n} {things} long."),
    steps={
        "+": (
            "A worker adds {n} {things} to {o}.",
            "Then {s} gets {n} {things} longer.",
            "{B} is {n} {things} longer than {A}.",
            "{A} is {n} {things} shorter than {B}.",
        ),
        "-": (
            "A worker takes {n} {things} away from {o}.",
            "{s} loses {n} {things} in a storm.",
            "{B} is {n} {things} shorter than {A}.",
            "{A} is {n} {things} longer than {B}.",
        ),
        "*": (
            "A worker makes {o} {n} times as long as before.",
            "A worker doubles the length of {o}.",
            "{B} is {n} times as long as {A}.",
            "{B} is twice as long as {A}.",
        ),
        "/": (
            "A storm leaves only half of {o}.",
            "A worker leaves only one of {n} equal parts of {o}.",
            "{B} is half as long as {A}.",
            "{A} is {n} times as long as {B}.",
        ),
    },
    ask=(
        "How many {things} long is {A} now?",
        "How long is {A} now, in {things}?",
        "What is the length of {A} now, in {things}?",
    ),
)

SCENE_DOMAINS = (_PLACE, _TANK, _RIDE, _LENGTH)
