r"""Reading a mathematical answer, in LaTeX or plain text, into a tree.

``^`` and ``**`` are powers (right to left, above the sign), factors side by side multiply with the rank of ``*``, and
``1/2x`` is ``(1/2)x``. Units, currency, percent and degree signs are dropped, as in number answers; degrees count only
inside ``sin`` and its like. ``±`` gives two values. Nothing is evaluated or looked up.

>>> read_expression(r"x = 2 \text{ cm}").tree
Relation(operators=('=',), sides=(Symbol(name='x'), Number(value=Fraction(2, 1))))
>>> read_expression("2 +").reason
'it ends where a value is missing'
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any, ClassVar, NamedTuple

from trajgym.rewards.expression_cursor import over
from trajgym.rewards.expression_formula import RELATIONS, SEPARATORS, FormulaReader
from trajgym.rewards.expression_tokens import RefusedError, Token, tokens
from trajgym.rewards.expression_tree import (
    MAX_CHARACTERS,
    MAX_ITEMS,
    Listing,
    Matrix,
    Node,
    Relation,
    Scalar,
    Union,
    Words,
    branches,
)

__all__ = ["Parsed", "read_expression"]

_CLOSERS = {"(": (")", "]"), "[": ("]", ")"), "{": ("}",), "\\{": ("\\}",)}
_FUNCTION_OF = re.compile(r"\s*[A-Za-z]\s*\(\s*[A-Za-z]\s*\)\s*=(?!=)")  # `f(x) =` names the value behind it
_WORDS = re.compile(r"[A-Za-z]{2,}(?:[ '’-]{1,2}[A-Za-z]+)*")


class Parsed(NamedTuple):
    """The result of reading.

    Args:
        tree: What was read, or ``None``.
        reason: Why there is no tree; empty otherwise.
    """

    tree: Node | None
    reason: str = ""


def read_expression(text: str) -> Parsed:
    r"""Read a mathematical answer.

    The time is in proportion to the length of the text; length, depth and size of what is read are bounded.

    Args:
        text: For example ``\frac{1}{2}x``, ``x^2 + 1``, ``\{1, 2\}``, ``[0, 1)``, ``x = 3`` or ``2 \pm \sqrt{3}``.
    """
    text = text.strip().rstrip(".,;:").rstrip()
    if len(text) > MAX_CHARACTERS:
        return Parsed(None, f"it has more than {MAX_CHARACTERS:,} characters")
    named = _FUNCTION_OF.match(text)
    try:
        tree = _Reader(tokens(text[named.end() :] if named else text)).whole()
    except RefusedError as refused:
        return Parsed(Words(text.casefold())) if _WORDS.fullmatch(text) else Parsed(None, str(refused))
    return Parsed(tree)


class _Reader(FormulaReader):
    """Reads what formulas are put together to."""

    def __init__(self, found: list[Token]) -> None:
        super().__init__(found)
        self.listed = 0  # values in lists and sets: each may have to be compared with each of another answer

    def whole(self) -> Node:
        """Read the whole text."""
        if [token.kind for token in self.tokens[:-1]] == ["words"] or self._based():
            return Words("".join(token.text for token in self.tokens).strip(" ,.").casefold())
        items = self.items()
        self.expect("end of text")
        return items[0] if len(items) == 1 else Listing("list", tuple(items))

    def _based(self) -> bool:
        """Whether the text is a numeral with its base, ``1011_2``."""
        found = self.tokens[:-1]
        if len(found) == 2 and found[0].kind == "number" and found[1].kind == "subscript":
            self.tokens[1] = Token("words", f"_{found[1].text}")
            return True
        return False

    def items(self, *, branching: bool = True) -> list[Node]:
        """Read one value or several with commas or "and" between them."""
        items = [self.statement()]
        while self.take(*SEPARATORS):
            while self.take(*SEPARATORS):  # ", and"
                pass
            if self.kind in ("end of text", ")", "]", "}", "\\}"):
                raise self.unexpected()
            items.append(self.statement())
        if branching or len(items) > 1:
            items = [branch for item in items for branch in branches(item)]
        self.listed += len(items) if len(items) > 1 else 0
        if self.listed > MAX_ITEMS:
            raise RefusedError(f"it has more than {MAX_ITEMS} values")
        return items

    def statement(self) -> Node:
        """Read a value, a ratio, or a comparison of values."""
        operators: list[str] = []
        sides: list[Node] = [self.union()]
        if self.kind == ":":
            return self._ratio(sides)
        while self.kind in RELATIONS:
            operators.append(self.tokens[self.index].kind)
            self.index += 1
            sides.append(self.union())
        return Relation(tuple(operators), tuple(sides)) if operators else sides[0]

    def _ratio(self, sides: list[Node]) -> Node:
        while self.take(":"):
            sides.append(self.union())
        terms = [self.scalar(side) for side in sides]
        return Listing("ratio", tuple(over(term, terms[-1]) for term in terms[:-1]))

    def union(self) -> Node:
        """Read a value, or sets with ∪ between them."""
        parts = [self.sum()]
        while self.take("∪"):
            parts.append(self.sum())
        if len(parts) > 1 and any(not isinstance(part, Listing) for part in parts):
            raise RefusedError("∪ joins something that is no set")
        return Union(tuple(parts)) if len(parts) > 1 else parts[0]

    def empty(self, token: Token) -> Node:
        """Read ∅."""
        return Listing("set", ())

    def named(self, token: Token) -> Node:
        r"""Read words in front of a value: ``\text{Area} = 5``."""
        if self.kind != "=":
            raise RefusedError(f"{token.text!r} is neither a name nor a unit here")
        return Words(token.text.casefold())

    def bracket(self, token: Token) -> Node:
        """Read a group, a set, a tuple, a list or an interval."""
        if token.kind == "\\{" and self.take("\\}"):
            return Listing("set", ())
        items: list[Node] = []

        def read() -> Node:
            items.extend(self.items(branching=token.kind == "\\{"))
            return Words("")

        self.inside(read)
        close = self.expect(*_CLOSERS[token.kind]).kind
        if token.kind == "\\{" or (token.kind == "{" and len(items) > 1):
            return Listing("set", tuple(items))
        if len(items) == 1 and token.kind + close in ("()", "[]", "{}"):
            matrix = _as_matrix(items) if token.kind == "[" else None
            return matrix or items[0]
        if token.kind + close == "[]" and (matrix := _as_matrix(items)):
            return matrix
        if token.kind + close in ("(]", "[)") and len(items) != 2:
            raise RefusedError("an interval has two ends")
        return Listing(token.kind + close, tuple(items))

    def matrix(self, token: Token) -> Node:
        """Read the rows of a matrix, up to its end."""
        if "vmatrix" in token.text:
            raise RefusedError("a determinant is left to be worked out")
        rows: list[tuple[Scalar, ...]] = []
        row: list[Scalar] = []
        while True:
            row.append(self.scalar(self.inside(self.sum)))
            mark = self.expect("&", "row", "end")
            if mark.kind == "&":
                continue
            rows.append(tuple(row))
            row = []
            if mark.kind == "end" or self.take("end"):
                return _matrix_of(rows)

    operands: ClassVar[Mapping[str, Callable[[Any, Token], Node]]] = {
        **dict.fromkeys(("|", "lvert", "lfloor", "lceil"), FormulaReader.between),
        **dict.fromkeys(("(", "[", "{", "\\{"), bracket),
        "number": FormulaReader.number,
        "symbol": FormulaReader.symbol,
        "constant": FormulaReader.constant,
        "function": FormulaReader.function,
        "frac": FormulaReader.fraction,
        "binom": FormulaReader.binomial,
        "sqrt": FormulaReader.root,
        "empty": empty,
        "words": named,
        "begin": matrix,
    }


def _as_matrix(items: list[Node]) -> Matrix | None:
    """Return ``[[1, 2], [3, 4]]`` as a matrix."""
    rows: list[tuple[Scalar, ...]] = []
    for item in items:
        if not (isinstance(item, Listing) and item.kind == "[]"):
            return None
        rows.append(tuple(entry for entry in item.items if isinstance(entry, Scalar)))
        if len(rows[-1]) != len(item.items):
            return None
    return _matrix_of(rows)


def _matrix_of(rows: list[tuple[Scalar, ...]]) -> Matrix:
    if len({len(row) for row in rows}) != 1 or 2 * max(len(rows), len(rows[0])) > MAX_ITEMS:
        raise RefusedError("the rows of a matrix differ in length, or are too many")
    return Matrix(tuple(rows))
