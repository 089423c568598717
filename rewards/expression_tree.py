r"""Mathematical answers as trees: fractions of symbols, roots, sets, intervals, matrices, equations.

The trees are ours and hold no code: :mod:`trajgym.rewards.expression` reads them, :mod:`trajgym.rewards.symbolic`
compares them. A scalar is made of :class:`Number`, :class:`Symbol`, :class:`Constant`, :class:`Sum`, :class:`Product`,
:class:`Power` and :class:`Call`; a difference, a quotient and a sign are written with factors -1 and powers -1.

>>> half = Power(Number(Fraction(2)), Number(Fraction(-1)))
>>> sorted(symbols(Sum((Product((half, Symbol("x"))), Symbol("y")))))
['x', 'y']
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from typing import TypeAlias, cast

__all__ = [
    "MAX_CHARACTERS",
    "MAX_DEPTH",
    "MAX_ITEMS",
    "MAX_NODES",
    "Call",
    "Choice",
    "Constant",
    "Listing",
    "Matrix",
    "Node",
    "Number",
    "Power",
    "Product",
    "Relation",
    "Scalar",
    "Sum",
    "Symbol",
    "Union",
    "Words",
    "branches",
    "children",
    "parts",
    "symbols",
]

MAX_CHARACTERS = 1_000  # of one expression; longer ones are not read
MAX_DEPTH = 40  # brackets, fractions, roots and powers inside one another
MAX_NODES = 300
MAX_ITEMS = 40  # of all lists and sets together; half as many rows or columns of a matrix


@dataclass(frozen=True, slots=True)
class Number:
    """An exact rational; a decimal is what it says, so 0.5 is 1/2."""

    value: Fraction


@dataclass(frozen=True, slots=True)
class Symbol:
    """A variable, with its subscript: ``x``, ``x_1``, ``alpha``."""

    name: str


@dataclass(frozen=True, slots=True)
class Constant:
    """``pi``, ``e``, ``i`` or ``infinity``; the last one stands alone, with a sign at most."""

    name: str


@dataclass(frozen=True, slots=True)
class Sum:
    """Two or more scalars added."""

    terms: tuple[Scalar, ...]


@dataclass(frozen=True, slots=True)
class Product:
    """Two or more scalars multiplied."""

    factors: tuple[Scalar, ...]


@dataclass(frozen=True, slots=True)
class Power:
    """``base`` to the power of ``exponent``."""

    base: Scalar
    exponent: Scalar


@dataclass(frozen=True, slots=True)
class Call:
    """A function of scalars, by the reader's name for it, such as ``sin``, ``abs`` or ``log`` (argument, base)."""

    name: str
    arguments: tuple[Scalar, ...]


@dataclass(frozen=True, slots=True)
class Choice:
    """``±term`` (sign 1) or ``∓term`` (sign -1); the reader writes both branches out before it is done."""

    term: Scalar
    sign: int


@dataclass(frozen=True, slots=True)
class Listing:
    """Several values.

    Args:
        kind: ``set``; ``list`` for values without brackets, which have no order either; ``ratio``, with the last term
            scaled to 1; or the pair of brackets, ``()``, ``[]``, ``(]`` or ``[)``, whose values have an order.
        items: The values.
    """

    kind: str
    items: tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class Matrix:
    """Rows of equal length."""

    rows: tuple[tuple[Scalar, ...], ...]


@dataclass(frozen=True, slots=True)
class Union:
    """Sets or intervals joined by ∪."""

    parts: tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class Relation:
    """A chain of comparisons, such as ``1 < x <= 2``: one operator fewer than sides.

    Args:
        operators: Each one of ``=``, ``!=``, ``<``, ``<=``, ``>``, ``>=``, ``in``.
        sides: What is compared.
    """

    operators: tuple[str, ...]
    sides: tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class Words:
    """An answer in words, or a numeral in another base: compared as written, without case and blanks."""

    text: str


Scalar: TypeAlias = Number | Symbol | Constant | Sum | Product | Power | Call | Choice
Node: TypeAlias = Scalar | Listing | Matrix | Union | Relation | Words


def children(node: Node) -> tuple[Node, ...]:
    """Return the parts of a node, in order."""
    match node:
        case Sum(inner) | Product(inner) | Call(_, inner) | Listing(_, inner) | Union(inner) | Relation(_, inner):
            return inner
        case Power(base, exponent):
            return (base, exponent)
        case Choice(term, _):
            return (term,)
        case Matrix(rows):
            return tuple(entry for row in rows for entry in row)
        case _:
            return ()


def symbols(node: Node) -> set[str]:
    """Return the names of the variables in a tree."""
    return {part.name for part in parts(node) if isinstance(part, Symbol)}


def parts(node: Node) -> Iterator[Node]:
    """Yield a node and everything in it."""
    waiting: list[Node] = [node]
    while waiting:
        part = waiting.pop()
        yield part
        waiting.extend(children(part))


def branches(node: Node) -> list[Node]:
    """Write out what ``±`` stands for: the node itself where it holds none, else its upper and its lower reading."""
    if not any(isinstance(part, Choice) for part in parts(node)):
        return [node]
    return [_chosen(node, 1), _chosen(node, -1)]


def _chosen(node: Node, sign: int) -> Node:
    def each(parts: tuple[Scalar, ...]) -> tuple[Scalar, ...]:
        return tuple(cast(Scalar, _chosen(part, sign)) for part in parts)

    match node:
        case Choice(term, own):
            (chosen,) = each((term,))
            return chosen if own == sign else Product((Number(Fraction(-1)), chosen))
        case Sum(terms):
            return Sum(each(terms))
        case Product(factors):
            return Product(each(factors))
        case Power(base, exponent):
            return Power(*each((base, exponent)))
        case Call(name, arguments):
            return Call(name, each(arguments))
        case Matrix(rows):
            return Matrix(tuple(each(row) for row in rows))
        case Listing(kind, items):
            return Listing(kind, tuple(_chosen(item, sign) for item in items))
        case Union(joined):
            return Union(tuple(_chosen(part, sign) for part in joined))
        case Relation(operators, sides):
            return Relation(operators, tuple(_chosen(side, sign) for side in sides))
        case _:
            return node
