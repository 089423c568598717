"""Comparing formulas by their remainders: one random point modulo one random prime.

A quotient of polynomials is evaluated modulo a prime of 127 bits at a random point. Where two of them differ there,
they are two; where they agree they are one, but for a chance below 2^-60: neither high powers nor tiny coefficients
hide anything, and nothing is written out, so the time is in proportion to the formulas. The prime and the points are
drawn from the system's entropy, so no formula can be prepared for them.

Whatever else a formula holds, such as ``sin(x)``, gets a remainder drawn by its name and the remainders of its
arguments: formulas that agree even then are the same, whatever those functions are; those that differ may still agree.

Source: Schwartz, J. T. (1980), Fast probabilistic algorithms for verification of polynomial identities, J. ACM 27(4).
"""

from __future__ import annotations

import functools
import hashlib
import math
import secrets
from typing import NamedTuple

from trajgym.errors import ConfigError
from trajgym.rewards.expression_tree import Call, Constant, Node, Number, Power, Product, Scalar, Sum, Symbol
from trajgym.rewards.symbolic_exact import UndefinedError, constant

__all__ = ["proportional", "same_function"]

_BITS = 127  # of the prime
_MAX_SIZE = 2**50  # degree plus bits of the coefficients, of each power: some hundred of them stay below 2^60
_TRIES = 3  # points, where one happens to make a denominator vanish


class _Field(NamedTuple):
    """The remainders modulo a prime.

    Args:
        prime: The prime, 1 modulo 4.
        root: A square root of -1.
    """

    prime: int
    root: int


def same_function(a: Scalar, b: Scalar) -> bool | None:
    """Say whether two formulas are the same function.

    Quotients are the same when they agree wherever both are defined: ``(x^2 - 1)/(x - 1)`` is ``x + 1``.

    Returns:
        The answer, or ``None`` when it cannot be told this way.

    Raises:
        UndefinedError: When a denominator is zero everywhere.
        ConfigError: When sympy is not installed.
    """
    (first,), rational = _remainders(a, b, points=1)
    return first[0] == first[1] or (False if rational else None)


def proportional(a: Scalar, b: Scalar) -> bool | None:
    """Say whether one formula is a multiple of the other, by a number that is not zero.

    Returns:
        The answer, or ``None`` when it cannot be told this way.

    Raises:
        UndefinedError: When a denominator is zero everywhere.
        ConfigError: When sympy is not installed.
    """
    (first, second), rational = _remainders(a, b, points=2)
    prime = _field().prime
    crossed = (first[0] * second[1] - first[1] * second[0]) % prime
    return (not crossed and all(first) and all(second)) or (False if rational else None)


def _remainders(a: Scalar, b: Scalar, points: int) -> tuple[list[tuple[int, int]], bool]:
    """Return the remainders of both formulas at some points, and whether both are quotients of polynomials."""
    found: list[tuple[int, int]] = []
    rational = True
    for _ in range(_TRIES * points):
        point = _Point(_field())
        try:
            found.append((point.remainder(a), point.remainder(b)))
        except UndefinedError:
            continue
        rational = rational and point.rational
        if len(found) == points:
            return found, rational
    raise UndefinedError


@functools.cache
def _field() -> _Field:
    """Return the field of this process."""
    try:
        from sympy import isprime
    except ImportError as error:
        raise ConfigError(
            "Comparing formulas needs sympy, which is not installed: pip install 'trajgym[math]'."
        ) from error
    while True:
        prime = (1 << (_BITS - 1)) + 4 * secrets.randbits(_BITS - 3) + 1
        if isprime(prime):
            break
    while True:
        root = pow(secrets.randbelow(prime), (prime - 1) // 4, prime)
        if root * root % prime == prime - 1:
            return _Field(prime, root)


class _Point:
    """Remainders of formulas at one random point.

    Args:
        field: Where to compute.
    """

    def __init__(self, field: _Field) -> None:
        self.field = field
        self.rational = True  # so far nothing but quotients of polynomials has been seen
        self._key = secrets.token_bytes(16)

    def remainder(self, node: Node) -> int:
        """Return the remainder of a formula.

        Raises:
            UndefinedError: When a denominator is zero here.
        """
        return self._sized(node)[0]

    def _sized(self, node: Node) -> tuple[int, int]:
        """Return the remainder, and a bound of the degree and of the bits of all coefficients."""
        prime = self.field.prime
        match node:
            case Number(value):
                low = value.denominator % prime
                if not low:
                    raise UndefinedError
                size = value.numerator.bit_length() + value.denominator.bit_length()
                return value.numerator * pow(low, -1, prime) % prime, size
            case Symbol(name):
                return self._drawn("symbol", name), 1
            case Constant("i"):
                return self.field.root, 1
            case Sum(terms):
                each = [self._sized(term) for term in terms]
                return sum(value for value, _ in each) % prime, sum(size + 1 for _, size in each)
            case Product(factors):
                each = [self._sized(factor) for factor in factors]
                return math.prod(value for value, _ in each) % prime, sum(size for _, size in each)
            case Power(base, exponent):
                return self._power(base, exponent)
            case Call(name, arguments):
                return self._other(name, *arguments)
            case Constant(name):
                return self._other(name)
        raise UndefinedError

    def _power(self, base: Scalar, exponent: Scalar) -> tuple[int, int]:
        exact = constant(exponent)
        if exact is None or exact.denominator != 1:
            return self._other("power", base, exponent)
        value, size = self._sized(base)
        size *= abs(int(exact))
        if size > _MAX_SIZE:
            return self._other("power", base, exponent)
        if not value and exact < 0:
            raise UndefinedError
        return pow(value, int(exact), self.field.prime), size

    def _other(self, name: str, *arguments: Scalar) -> tuple[int, int]:
        """Draw a remainder for what is no quotient of polynomials."""
        self.rational = False
        return self._drawn(name, *(self.remainder(argument) for argument in arguments)), 1

    def _drawn(self, *what: str | int) -> int:
        """Draw a remainder that is the same for the same things at this point."""
        digest = hashlib.blake2b(repr(what).encode(), key=self._key, digest_size=32)
        return int.from_bytes(digest.digest(), "big") % self.field.prime
