"""Stepping through the tokens of an expression within bounds."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction

from trajgym.rewards.expression_tokens import RefusedError, Token
from trajgym.rewards.expression_tree import MAX_DEPTH, MAX_NODES, Constant, Node, Number, Power, Product, Scalar

__all__ = ["INFINITY", "MINUS_ONE", "Cursor", "inverse", "negative", "over"]

MINUS_ONE = Number(Fraction(-1))
INFINITY = Constant("infinity")


class Cursor:
    """A place in a list of tokens, and how deep and how large the tree has become there.

    Args:
        found: The tokens.
    """

    def __init__(self, found: list[Token]) -> None:
        self.tokens = [*found, Token("end of text", "")]
        self.index = 0
        self.depth = 0
        self.nodes = 0
        self.bars = False  # whether a | closes rather than opens

    @property
    def kind(self) -> str:
        """The kind of the current token."""
        return self.tokens[self.index].kind

    def take(self, *kinds: str) -> Token | None:
        """Step over the current token if it is one of ``kinds``."""
        token = self.tokens[self.index]
        if token.kind not in kinds:
            return None
        self.index += 1
        return token

    def expect(self, *kinds: str) -> Token:
        """Step over the current token, which must be one of ``kinds``."""
        token = self.take(*kinds)
        if token is None:
            raise self.unexpected()
        return token

    def unexpected(self) -> RefusedError:
        """Return the error that the current token is none that can stand here."""
        if self.kind == "end of text":
            return RefusedError("it ends where a value is missing" if self.index else "it is empty")
        return RefusedError(f"{self.tokens[self.index].text!r} stands where it cannot be read")

    def scalar(self, node: Node) -> Scalar:
        """Return ``node`` if it is one number or formula, and count it."""
        self.nodes += 1
        if self.nodes > MAX_NODES:
            raise RefusedError(f"it has more than {MAX_NODES} parts")
        if not isinstance(node, Scalar) or node == INFINITY:
            raise RefusedError("it computes with something that is no number")
        return node

    def inside(self, read: Callable[[], Node]) -> Node:
        """Read something nested one deeper."""
        self.depth += 1
        if self.depth > MAX_DEPTH:
            raise RefusedError(f"it is nested more than {MAX_DEPTH} deep")
        bars, self.bars = self.bars, False
        node = read()
        self.depth, self.bars = self.depth - 1, bars
        return node


def negative(node: Scalar) -> Scalar:
    """Return ``-node``."""
    return Number(-node.value) if isinstance(node, Number) else Product((MINUS_ONE, node))


def inverse(node: Scalar) -> Scalar:
    """Return ``1/node``."""
    return Power(node, MINUS_ONE)


def over(top: Scalar, low: Scalar) -> Scalar:
    """Return a quotient; of two numbers the rational itself."""
    if isinstance(top, Number) and isinstance(low, Number) and low.value:
        return Number(top.value / low.value)
    return Product((top, inverse(low)))
