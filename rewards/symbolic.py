r"""Whether two mathematical answers are the same.

Formulas are compared as functions: by remainders where they are quotients of polynomials
(:mod:`trajgym.rewards.symbolic_modular`), otherwise by their values at random points
(:mod:`trajgym.rewards.symbolic_numeric`); both say how likely a mistake is. Nothing is simplified, so nothing takes
long. Sets have no order, tuples and intervals have one and their brackets count. A name in front of a value is
ignored, as in ``x = 3`` beside ``3``; two equations or inequalities are the same when one is a multiple of the other.

>>> equal_expressions(r"\frac{1}{2}x", "x/2"), equal_expressions("(0, 1)", "[0, 1]")
(True, False)
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction

from trajgym.rewards.answer import TOLERANCE, equal
from trajgym.rewards.expression import read_expression
from trajgym.rewards.expression_tree import (
    Call,
    Constant,
    Listing,
    Matrix,
    Node,
    Number,
    Product,
    Relation,
    Scalar,
    Sum,
    Symbol,
    Union,
    Words,
    symbols,
)
from trajgym.rewards.symbolic_exact import UndefinedError, constant
from trajgym.rewards.symbolic_modular import proportional, same_function
from trajgym.rewards.symbolic_numeric import bounded_work, has_a_value, same_values, sign_of_ratio, values_in_proportion

__all__ = ["equal_expressions", "equal_trees"]

_INFINITY = Constant("infinity")
_MINUS_INFINITY = Call("negative", (_INFINITY,))
_UNORDERED = ("set", "list")
_FLIPPED = {"<": ">", "<=": ">=", ">": "<", ">=": "<=", "=": "=", "!=": "!="}


def equal_expressions(a: str, b: str) -> bool:
    """Whether two texts say the same mathematical answer; what cannot be read equals nothing, not even itself.

    It takes some milliseconds, and below a second whatever the texts are (the first call loads sympy, half a second).

    Raises:
        ConfigError: When sympy is not installed.
    """
    left, right = read_expression(a).tree, read_expression(b).tree
    if left is None or right is None:
        return False
    return equal_trees(left, right)


def equal_trees(a: Node, b: Node) -> bool:
    """Whether two trees are the same answer.

    Raises:
        ConfigError: When sympy is not installed.
    """
    try:
        with bounded_work():
            return _same(a, b)
    except UndefinedError:
        return False


def _same(a: Node, b: Node) -> bool:
    if isinstance(a, Relation) and isinstance(b, Relation):
        return _same_relations(a, b)
    if isinstance(a, Relation) or isinstance(b, Relation):
        left, right = (_value(side) if isinstance(side, Relation) else side for side in (a, b))
        return left is not None and right is not None and _same(left, right)
    if isinstance(a, Scalar) and isinstance(b, Scalar):
        return _same_scalars(a, b)
    if isinstance(a, Words) or isinstance(b, Words):
        words, others = _spelled(a), _spelled(b)
        return words is not None and others is not None and words.split() == others.split()
    if isinstance(a, Listing) and isinstance(b, Listing):
        if a.kind in _UNORDERED and b.kind in _UNORDERED:
            return _same_without_order(a.items, b.items)
        return a.kind == b.kind and _same_in_order(a.items, b.items)
    if isinstance(a, Matrix) and isinstance(b, Matrix):
        return len(a.rows) == len(b.rows) and all(map(_same_in_order, a.rows, b.rows))
    if isinstance(a, Union) and isinstance(b, Union):
        return _same_without_order(a.parts, b.parts)
    return False


def _same_in_order(a: Sequence[Node], b: Sequence[Node]) -> bool:
    return len(a) == len(b) and all(map(_same, a, b))


def _same_without_order(a: Sequence[Node], b: Sequence[Node]) -> bool:
    """Whether each value of one is a value of the other; each pair is compared once, however deep sets are nested."""
    matched: set[int] = set()
    for value in a:
        matches = [index for index, other in enumerate(b) if _same(value, other)]
        if not matches:
            return False
        matched.update(matches)
    return len(matched) == len(b)


def _same_scalars(a: Scalar, b: Scalar) -> bool:
    if any(node in (_INFINITY, _MINUS_INFINITY) for node in (a, b)):
        return a == b
    left, right = constant(a), constant(b)
    if left is not None and right is not None:
        # Float noise is forgiven as for number answers, but not among numbers that are as small as the noise.
        return equal(left, right) and abs(left - right) <= TOLERANCE * max(abs(left), abs(right))
    exactly = same_function(a, b)
    return same_values(a, b) if exactly is None else exactly and has_a_value(a) and has_a_value(b)


def _same_relations(a: Relation, b: Relation) -> bool:
    if isinstance(a.sides[0], Words) or isinstance(b.sides[0], Words):
        left, right = _value(a), _value(b)
        return left is not None and right is not None and _same(left, right)
    if a.operators[0] == b.operators[0] == "in":
        return a.sides[0] == b.sides[0] and _same_in_order(a.sides, b.sides)
    first, second = _interval(a), _interval(b)
    if first and second:
        return first[0] == second[0] and _same(first[1], second[1])
    if not symbols(a) and not symbols(b):
        return _same(a.sides[-1], b.sides[-1]) and a.operators == b.operators  # 48 + 24 = 72
    return _multiples(_ends(a), _ends(b))


def _ends(relation: Relation) -> Relation:
    """Leave out what stands between in a chain of equations: ``x = 2 + 1 = 3``."""
    if len(relation.sides) > 2 and set(relation.operators) == {"="}:
        return Relation(("=",), (relation.sides[0], relation.sides[-1]))
    return relation


def _multiples(a: Relation, b: Relation) -> bool:
    """Whether ``left - right`` of one is a multiple of the other's, a positive one where the sign matters."""
    if len(a.operators) > 1 or len(b.operators) > 1:
        return a.operators == b.operators and _same_in_order(a.sides, b.sides)
    if isinstance(a.sides[0], Scalar) and isinstance(a.sides[1], Scalar):
        if not (isinstance(b.sides[0], Scalar) and isinstance(b.sides[1], Scalar)):
            return False
        sign = _sign_of_multiple(_difference(a), _difference(b))
        operator = b.operators[0] if sign > 0 else _FLIPPED.get(b.operators[0])
        return sign != 0 and a.operators[0] == operator
    return a.operators == b.operators and _same_in_order(a.sides, b.sides)


def _sign_of_multiple(a: Scalar, b: Scalar) -> int:
    """Return the sign of the number that ``a`` is a multiple of ``b`` by; 0 when there is none."""
    exactly = proportional(a, b)
    if exactly is None:
        return values_in_proportion(a, b)
    return sign_of_ratio(a, b) if exactly else 0


def _difference(relation: Relation) -> Scalar:
    left, right = relation.sides
    assert isinstance(left, Scalar)
    assert isinstance(right, Scalar)
    return Sum((left, Product((Number(Fraction(-1)), right))))


def _value(relation: Relation) -> Node | None:
    """Return the value that a relation gives to a name, if that is what it does."""
    first, last = relation.sides[0], relation.sides[-1]
    if relation.operators[0] == "in":
        return last if isinstance(first, Symbol) and len(relation.sides) == 2 else None
    if set(relation.operators) != {"="}:
        interval = _interval(relation)
        return interval[1] if interval else None
    if isinstance(first, Words) or _names(first, last):
        return last
    if _names(last, first):
        return first
    return None if symbols(first) or symbols(last) else last  # 48 + 24 = 72


def _names(name: Node, value: Node) -> bool:
    return isinstance(name, Symbol) and name.name not in symbols(value)


def _interval(relation: Relation) -> tuple[str, Listing] | None:
    """Return the name and the interval of ``x > 3``, ``3 < x`` or ``1 < x <= 2``."""
    operators, sides = relation.operators, relation.sides
    if operators[0] in (">", ">="):
        operators, sides = tuple(_FLIPPED.get(o, o) for o in reversed(operators)), sides[::-1]
    if any(operator not in ("<", "<=") for operator in operators):
        return None
    if len(sides) == 2:
        if isinstance(sides[0], Symbol):
            sides, operators = (_MINUS_INFINITY, *sides), ("<", *operators)
        else:
            sides, operators = (*sides, _INFINITY), (*operators, "<")
    if len(sides) != 3 or not (_names(sides[1], sides[0]) and _names(sides[1], sides[2])):
        return None
    assert isinstance(sides[1], Symbol)
    kind = ("[" if operators[0] == "<=" else "(") + ("]" if operators[1] == "<=" else ")")
    return sides[1].name, Listing(kind, (sides[0], sides[2]))


def _spelled(node: Node) -> str | None:
    r"""Return an answer in words; ``red`` without ``\\text{}`` has been read as a product of three letters."""
    if isinstance(node, Words):
        return node.text
    letters = node.factors if isinstance(node, Product) else (node,)
    names = [letter.name for letter in letters if isinstance(letter, Symbol | Constant)]
    return "".join(names).casefold() if len(names) == len(letters) else None
