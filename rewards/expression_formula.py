"""Reading one number or formula: arithmetic, fractions, roots, functions."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from fractions import Fraction
from typing import Any, ClassVar

from trajgym.rewards.expression_cursor import INFINITY, MINUS_ONE, Cursor, inverse, negative, over
from trajgym.rewards.expression_tokens import RefusedError, Token
from trajgym.rewards.expression_tree import Call, Choice, Constant, Node, Number, Power, Product, Scalar, Sum, Symbol
from trajgym.rewards.numbers import VULGAR

__all__ = ["RELATIONS", "SEPARATORS", "FormulaReader"]

RELATIONS = frozenset(["=", "!=", "<", "<=", ">", ">=", "in"])
SEPARATORS = frozenset([",", "and"])

# What begins a factor even without a sign before it.
_FACTORS = frozenset(
    [
        "number",
        "symbol",
        "constant",
        "function",
        "frac",
        "binom",
        "sqrt",
        "(",
        "[",
        "{",
        "lvert",
        "lfloor",
        "lceil",
        "begin",
    ]
)
_BEHIND_UNITS = RELATIONS | SEPARATORS | {"words", ")", "]", "}", "\\}", "row", "&", "end", "end of text"}
_GROUPING = frozenset(["{", "}", "(", ")"])
_IN_DEGREES = frozenset(["sin", "cos", "tan", "cot", "sec", "csc"])
_INVERSE = {"sin": "arcsin", "cos": "arccos", "tan": "arctan"}
_RADIANS = Product((Constant("pi"), Number(Fraction(1, 180))))
_ROUNDING = {"|": ("abs", "|"), "lvert": ("abs", "rvert"), "lfloor": ("floor", "rfloor"), "lceil": ("ceil", "rceil")}


class FormulaReader(Cursor):
    """A recursive-descent parser; each method reads one rank of operators at the current token.

    A method returns a :class:`Node`, since brackets may hold a set or an interval; :meth:`scalar` refuses those where
    it computes with them.
    """

    operands: ClassVar[Mapping[str, Callable[[Any, Token], Node]]] = {}
    """How an operand is read, by the kind of its first token, which has been stepped over."""

    def __init__(self, found: list[Token]) -> None:
        super().__init__(found)
        self.degrees = False  # whether this is the argument of sin or its like

    def sum(self) -> Node:
        """Read terms with signs between them."""
        sign = self.take("+", "-", "±", "∓")
        first = self.product()
        if sign and first == INFINITY:
            return first if sign.kind == "+" else Call("negative", (INFINITY,))
        if sign:
            first = self._signed(sign, self.scalar(first))
        terms = [first]
        while sign := self.take("+", "-", "±", "∓"):
            terms.append(self._signed(sign, self.scalar(self.product())))
        return first if len(terms) == 1 else Sum(tuple(self.scalar(term) for term in terms))

    def _signed(self, sign: Token, term: Scalar) -> Scalar:
        if sign.kind == "+":
            return term
        return negative(term) if sign.kind == "-" else Choice(term, 1 if sign.kind == "±" else -1)

    def product(self) -> Node:
        """Read factors with ``*``, ``/`` or nothing between them."""
        factors = [self.power()]
        while True:
            if self.take("*"):
                factors.append(self._after_sign())
            elif self.take("/"):
                if _differential(self.tokens[self.index :]) and self._behind_a_differential():
                    raise RefusedError("a derivative is left to be worked out")
                factors.append(inverse(self.scalar(self._after_sign())))
            elif self._implicit():
                self._side_by_side(factors)
            else:
                break
        return factors[0] if len(factors) == 1 else Product(tuple(self.scalar(factor) for factor in factors))

    def _behind_a_differential(self) -> bool:
        """Whether the stroke that has just been read stands behind ``d``, ``dy`` or ``d^2y``."""
        before = [
            token for token in self.tokens[max(0, self.index - 7) : self.index - 1] if token.kind not in _GROUPING
        ]
        if before and before[-1].kind == "symbol" and not _is_d(before[-1]):
            before.pop()
        if [token.kind for token in before[-2:]] == ["^", "number"]:
            before = before[:-2]
        return bool(before) and _is_d(before[-1])

    def _side_by_side(self, factors: list[Any]) -> None:
        r"""Read a factor without a sign before it; with a whole number before it, ``\frac12`` makes a mixed number."""
        start = self.index
        factor = self.power()
        written = self.tokens[start - 1 : self.index]
        if (
            [token.kind for token in written[:2]] == ["number", "frac"]
            and not any("." in token.text for token in written)
            and isinstance(factors[-1], Number)
            and isinstance(factor, Number)
            and 0 < factor.value < 1
        ):
            factors[-1] = Number(factors[-1].value + factor.value)
        else:
            factors.append(factor)

    def _implicit(self) -> bool:
        """Whether the current token begins a factor that has no sign before it."""
        if self.kind == "number":
            before = self.tokens[self.index - 1].kind
            if before in ("number", "symbol", "subscript", "!", "degree"):
                raise RefusedError("a number stands behind a value with no sign between them")
        return self.kind in _FACTORS or (self.kind == "|" and not self.bars)

    def _after_sign(self) -> Node:
        minus = self._minus()
        factor = self.power()
        return negative(self.scalar(factor)) if minus else factor

    def _minus(self) -> bool:
        """Step over signs; return whether they are a minus in all."""
        minus = False
        while sign := self.take("+", "-"):
            minus ^= sign.kind == "-"
        return minus

    def power(self) -> Node:
        """Read an operand and what it is raised to."""
        base = self.postfix(self.primary())
        if not self.take("^"):
            return base
        return self.postfix(Power(self.scalar(base), self.scalar(self.inside(self._exponent))))

    def _exponent(self) -> Node:
        """Read an exponent; without braces, ``2`` in ``x^2 1/3`` is no mixed number."""
        minus = self._minus()
        number = self.take("number")
        node = Number(number.value) if number else self.primary()
        if self.take("^"):
            node = Power(self.scalar(node), self.scalar(self.inside(self._exponent)))
        return negative(self.scalar(node)) if minus else node

    def postfix(self, node: Node) -> Node:
        """Read what follows a value: a factorial, or signs and units that are dropped."""
        while True:
            if self.take("!"):
                if self.kind == "!":
                    raise RefusedError("double factorials are not read")
                node = Call("factorial", (self.scalar(node),))
            elif self.take("degree"):
                node = Product((self.scalar(node), _RADIANS)) if self.degrees else node
            elif self.take("words"):
                self._rest_of_unit()
            elif not self.take("%"):
                return node

    def _rest_of_unit(self) -> None:
        """Step over a unit's exponent; behind a unit, a formula does not go on."""
        if self.take("^"):
            self.take("{")
            self.expect("number")
            self.take("}")
        if self.kind not in _BEHIND_UNITS:
            raise self.unexpected()

    def primary(self) -> Node:
        """Read an operand."""
        token = self.tokens[self.index]
        read = self.operands.get(token.kind)
        if read is None:
            raise self.unexpected()
        self.index += 1
        return read(self, token)

    def number(self, token: Token) -> Node:
        """Read a number: also a mixed one, ``1 1/2`` or ``1½``."""
        following = self.tokens[self.index : self.index + 3]
        part, width = Fraction(0), 0
        if following[0].kind == "number" and following[0].text in VULGAR:
            part, width = following[0].value, 1
        elif [t.kind for t in following] == ["number", "/", "number"] and following[0].spaced and following[2].value:
            part, width = following[0].value / following[2].value, 3
        if 0 < part < 1 and not any("." in t.text for t in (token, *following[:width])):
            self.index += width
            return Number(token.value + part)
        return Number(token.value)

    def symbol(self, token: Token) -> Node:
        """Read a variable with its subscript."""
        subscript = self.take("subscript")
        return Symbol(f"{token.text}_{subscript.text}" if subscript else token.text)

    def constant(self, token: Token) -> Node:
        """Read π, e, i or ∞."""
        return Constant(token.text)

    def _group(self) -> Scalar:
        """Read the argument of a command: a group in braces, or one sign."""
        token = self.tokens[self.index]
        if token.kind == "number" and token.text.isdecimal() and len(token.text) > 1:
            # In \frac12 each digit is an argument.
            self.tokens[self.index : self.index + 1] = [Token("number", c, Fraction(int(c))) for c in token.text]
        return self.scalar(self.inside(self.primary))

    def fraction(self, token: Token) -> Node:
        r"""Read what stands behind ``\frac``."""
        start = self.index
        top = self._group()
        middle = self.index
        low = self._group()
        if _differential(self.tokens[middle : self.index]) and any(map(_is_d, self.tokens[start:middle])):
            raise RefusedError("a derivative is left to be worked out")
        return over(top, low)

    def binomial(self, token: Token) -> Node:
        r"""Read what stands behind ``\binom``."""
        top = self._group()
        return Call("binomial", (top, self._group()))

    def root(self, token: Token) -> Node:
        r"""Read what stands behind ``\sqrt``, ``√`` or ``sqrt``."""
        index: Scalar = Number(Fraction(2))
        if token.text == "sqrt" and self.take("["):
            index = self.scalar(self.inside(self.sum))
            self.expect("]")
        if self.kind == "number":  # sqrt2 and √12 take the whole number
            return Power(Number(self.expect("number").value), inverse(index))
        return Power(self._group(), inverse(index))

    def between(self, token: Token) -> Node:
        """Read what stands between bars, or between signs for rounding."""
        name, close = _ROUNDING[token.kind]

        def read() -> Node:
            self.bars = close == "|"
            return self.sum()

        argument = self.scalar(self.inside(read))
        self.expect(close)
        return Call(name, (argument,))

    def function(self, token: Token) -> Node:
        """Read a power and an argument behind the name of a function."""
        name = token.text
        if name in ("gcd", "lcm", "min", "max"):
            raise RefusedError(f"{name} is left to be worked out")
        base = self._log_base() if name == "log" else None
        power = self.scalar(self.inside(self._exponent_of_function)) if self.take("^") else None
        if power == MINUS_ONE and name in _INVERSE:
            name, power = _INVERSE[name], None
        degrees, self.degrees = self.degrees, name in _IN_DEGREES
        argument = self.scalar(self.inside(self._argument))
        self.degrees = degrees
        arguments: tuple[Scalar, ...] = (argument,) if base is None else (argument, base)
        call: Scalar = Power(Constant("e"), argument) if name == "exp" else Call(name, arguments)
        return Power(call, power) if power is not None else call

    def _log_base(self) -> Scalar | None:
        """Read the base of a logarithm."""
        subscript = self.take("subscript")
        if subscript is None:
            return None
        text = subscript.text
        if text.isdecimal():
            return Number(Fraction(int(text)))
        return Constant(text) if text == "e" else Symbol(text)

    def _exponent_of_function(self) -> Node:
        minus = self._minus()
        number = self.take("number")
        node = self.scalar(Number(number.value) if number else self.primary())
        return negative(node) if minus else node

    def _argument(self) -> Node:
        """Read an argument: a bracket, or factors without a sign between them, up to the next function."""
        if self.kind in ("(", "[", "{"):
            return self.postfix(self.primary())
        minus = self._minus()
        factors = [self.scalar(self.power())]
        while self.kind != "function" and self._implicit():
            factors.append(self.scalar(self.power()))
        argument: Scalar = factors[0] if len(factors) == 1 else Product(tuple(factors))
        return negative(argument) if minus else argument


def _is_d(token: Token) -> bool:
    return token.kind == "symbol" and token.text == "d"


def _differential(found: list[Token]) -> bool:
    """Whether tokens begin as ``dx`` does, with a bracket before it or not."""
    found = found[1:3] if found and found[0].kind in _GROUPING else found[:2]
    return len(found) == 2 and _is_d(found[0]) and found[1].kind == "symbol"
