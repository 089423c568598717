"""Walking trees, and writing out what a sign of choice stands for."""

from __future__ import annotations

from fractions import Fraction

import pytest

from trajgym.rewards.expression_tree import (
    Call,
    Choice,
    Constant,
    Listing,
    Matrix,
    Node,
    Number,
    Power,
    Product,
    Relation,
    Sum,
    Symbol,
    Union,
    Words,
    branches,
    children,
    parts,
    symbols,
)

X, Y = Symbol("x"), Symbol("y")
ONE, MINUS = Number(Fraction(1)), Number(Fraction(-1))
EITHER = Choice(X, 1)

HOLDERS: list[tuple[Node, Node, Node]] = [
    (EITHER, X, Product((MINUS, X))),
    (Choice(X, -1), Product((MINUS, X)), X),
    (Sum((ONE, EITHER)), Sum((ONE, X)), Sum((ONE, Product((MINUS, X))))),
    (Product((Y, EITHER)), Product((Y, X)), Product((Y, Product((MINUS, X))))),
    (Power(Y, EITHER), Power(Y, X), Power(Y, Product((MINUS, X)))),
    (Call("sin", (EITHER,)), Call("sin", (X,)), Call("sin", (Product((MINUS, X)),))),
    (Listing("()", (ONE, EITHER)), Listing("()", (ONE, X)), Listing("()", (ONE, Product((MINUS, X))))),
    (Matrix(((EITHER,),)), Matrix(((X,),)), Matrix(((Product((MINUS, X)),),))),
    (Relation(("=",), (Y, EITHER)), Relation(("=",), (Y, X)), Relation(("=",), (Y, Product((MINUS, X))))),
    (
        Union((Listing("()", (EITHER, Y)),)),
        Union((Listing("()", (X, Y)),)),
        Union((Listing("()", (Product((MINUS, X)), Y)),)),
    ),
]


@pytest.mark.parametrize(("tree", "upper", "lower"), HOLDERS)
def test_branches(tree: Node, upper: Node, lower: Node) -> None:
    assert branches(tree) == [upper, lower]
    assert branches(upper) == [upper]


def test_signs_of_choice_go_together() -> None:
    upper, lower = branches(Sum((Choice(X, 1), Choice(Y, -1))))
    assert upper == Sum((X, Product((MINUS, Y))))
    assert lower == Sum((Product((MINUS, X)), Y))


@pytest.mark.parametrize(("tree", "upper", "lower"), HOLDERS)
def test_parts_hold_everything(tree: Node, upper: Node, lower: Node) -> None:
    assert next(iter(parts(tree))) is tree
    assert X in list(parts(tree))
    assert symbols(tree) == symbols(upper) == symbols(lower)


def test_leaves_have_no_parts() -> None:
    assert [children(leaf) for leaf in (X, ONE, Constant("pi"), Words("no"))] == [()] * 4
