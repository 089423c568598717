"""Problems about whole numbers: primes, divisors, digits, remainders."""

from __future__ import annotations

import math

from trajgym.envs.code_problem import Draw, Problem, kinds_of

__all__ = ["KINDS"]

_PRIMES = tuple(p for p in range(23, 300) if all(p % d for d in range(2, 18)))
_COPRIME = (7, 8, 9, 11, 13, 17, 19, 23, 25, 29)  # no two share a divisor


def multiples_without_digit(draw: Draw) -> Problem:
    """Count multiples that avoid a digit; the answer is counted place by place."""
    low = draw.whole(100, 9_000)
    high = low + draw.whole(2_000, 30_000)
    divisor, digit = draw.whole(3, 19), draw.whole(1, 9)
    question = draw.pick(
        (
            f"How many multiples of {divisor} from {low} to {high}, both ends included, are written without the digit "
            f"{digit}?",
            f"Count the whole numbers n with {low} <= n <= {high} that are divisible by {divisor} and do not contain "
            f"the digit {digit} in base ten. How many are there?",
            f"{draw.name()} writes down every multiple of {divisor} from {low} to {high} (the ends included, if they "
            f"are multiples) and then crosses out each number in which the digit {digit} occurs. How many numbers are "
            "left?",
        )
    )
    program = f'sum(1 for n in range({low}, {high} + 1) if n % {divisor} == 0 and "{digit}" not in str(n))'
    return Problem(question, _avoiding(high, divisor, digit) - _avoiding(low - 1, divisor, digit), (program,))


def _avoiding(limit: int, divisor: int, avoided: int) -> int:
    """Count the multiples of ``divisor`` from 0 to ``limit`` without the (non-zero) digit ``avoided``."""
    below = [0] * divisor  # by remainder: how many beginnings are already smaller than the limit's
    equal: int | None = 0  # remainder of the limit's own beginning, while it has no avoided digit
    for digit in map(int, str(limit)):
        longer = [0] * divisor
        for new in range(10):
            if new == avoided:
                continue
            for remainder, count in enumerate(below):
                longer[(10 * remainder + new) % divisor] += count
            if equal is not None and new < digit:
                longer[(10 * equal + new) % divisor] += 1
        below = longer
        equal = None if equal is None or digit == avoided else (10 * equal + digit) % divisor
    return below[0] + (equal == 0)


def prime_sum(draw: Draw) -> Problem:
    """Add up the primes of a range; the answer comes from a sieve."""
    low = draw.whole(100, 3_000)
    high = low + draw.whole(150, 900)
    prime = bytearray([1]) * (high + 1)
    for p in range(2, math.isqrt(high) + 1):
        if prime[p]:
            prime[p * p :: p] = bytes(len(range(p * p, high + 1, p)))
    question = draw.pick(
        (
            f"What is the sum of all prime numbers from {low} to {high}, both ends included?",
            f"Add up every prime p with {low} <= p <= {high}. What is the total?",
            f"{draw.name()} adds all prime numbers that are at least {low} and at most {high}. What is the result?",
        )
    )
    program = f"""
        def is_prime(n):
            return n > 1 and all(n % d for d in range(2, int(n**0.5) + 1))

        sum(n for n in range({low}, {high} + 1) if is_prime(n))
    """
    return Problem(question, sum(n for n in range(low, high + 1) if prime[n]), (program,))


def remainder_search(draw: Draw) -> Problem:
    """Search for three remainders; the answer comes from the Chinese remainder theorem."""
    moduli = sorted(draw.some(_COPRIME, 3))
    remainders = [draw.whole(1, m - 1) for m in moduli]
    above = draw.whole(1_000, 20_000)
    period = math.prod(moduli)
    common = sum(r * (period // m) * pow(period // m, -1, m) for m, r in zip(moduli, remainders, strict=True))
    a, b, c = moduli
    p, q, r = remainders
    question = draw.pick(
        (
            f"What is the smallest whole number greater than {above} that leaves the remainder {p} when divided by {a},"
            f" the remainder {q} when divided by {b}, and the remainder {r} when divided by {c}?",
            f"Find the least integer n > {above} with n mod {a} = {p}, n mod {b} = {q} and n mod {c} = {r}.",
            f"A stadium has more than {above} seats. Counted in rows of {a}, {p} seats are left over; in rows of {b}, "
            f"{q} are left over; in rows of {c}, {r} are left over. What is the smallest possible number of seats?",
        )
    )
    program = f"""
        n = {above} + 1
        while (n % {a}, n % {b}, n % {c}) != ({p}, {q}, {r}):
            n += 1
        n
    """
    return Problem(question, above + 1 + (common - above - 1) % period, (program,))


def gcd_pairs(draw: Draw) -> Problem:
    """Count pairs by their greatest common divisor; the answer leaves out the larger divisors one by one."""
    wide, high = sorted(draw.wholes(2, 40, 250))
    divisor = draw.whole(1, 6)
    exactly: dict[int, int] = {}
    for k in range(min(wide, high) // divisor, 0, -1):
        both = (wide // (k * divisor)) * (high // (k * divisor))
        exactly[k] = both - sum(exactly[m] for m in range(2 * k, min(wide, high) // divisor + 1, k))
    question = draw.pick(
        (
            f"How many ordered pairs (a, b) of integers with 1 <= a <= {wide} and 1 <= b <= {high} have a greatest "
            f"common divisor of exactly {divisor}?",
            f"A table has {wide} columns, numbered from 1, and {high} rows, numbered from 1. In each cell stands the "
            f"greatest common divisor of the numbers of its column and its row. How many cells hold {divisor}?",
        )
    )
    program = f"""
        from math import gcd

        count = 0
        for a in range(1, {wide} + 1):
            for b in range(1, {high} + 1):
                if gcd(a, b) == {divisor}:
                    count += 1
        count
    """
    return Problem(question, exactly[1], (program,))


def power_order(draw: Draw) -> Problem | None:
    """Find when powers return to 1; the answer is put together from the two prime divisors."""
    p, q = sorted(draw.some(_PRIMES, 2))
    base = draw.whole(2, 22)
    order = math.lcm(_order(base, p), _order(base, q))
    if order < 20:
        return None
    modulus = p * q
    question = draw.pick(
        (
            f"What is the smallest positive integer k for which {base}^k leaves the remainder 1 when divided by "
            f"{modulus}?",
            f"The powers {base}, {base}^2, {base}^3, ... are divided by {modulus}. What is the first exponent with the "
            "remainder 1?",
            f"A display shows 1. Each press of a button multiplies the number by {base} and keeps only the remainder "
            f"on division by {modulus}. After how many presses does it show 1 for the first time again?",
        )
    )
    program = f"""
        k, power = 1, {base} % {modulus}
        while power != 1:
            k, power = k + 1, power * {base} % {modulus}
        k
    """
    return Problem(question, order, (program,))


def _order(base: int, prime: int) -> int:
    """Return the first exponent that takes ``base`` to 1; it divides ``prime - 1``."""
    return next(d for d in range(1, prime) if (prime - 1) % d == 0 and pow(base, d, prime) == 1)


KINDS = kinds_of(
    "numbers",
    {
        1: (multiples_without_digit, prime_sum, remainder_search),
        2: (gcd_pairs, power_order),
    },
)
