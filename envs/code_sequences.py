"""Problems about sequences in which each term follows from earlier ones."""

from __future__ import annotations

import itertools
from collections import Counter

from trajgym.envs.code_problem import Draw, Problem, kinds_of

__all__ = ["KINDS"]


def digit_growth(draw: Draw) -> Problem:
    """Add the digit sum again and again."""
    start, n = draw.whole(10, 9_999), draw.whole(60, 400)
    value = start
    for _ in range(n - 1):
        rest = value
        while rest:
            rest, digit = divmod(rest, 10)
            value += digit
    question = draw.pick(
        (
            f"A sequence begins with {start}. Each further term is the term before it plus the sum of that term's "
            f"decimal digits. What is term number {n}, if {start} is term number 1?",
            f"Let a(1) = {start} and a(k+1) = a(k) + (sum of the decimal digits of a(k)). What is a({n})?",
            f"{draw.name()} writes down {start}, adds the digits of the number to it, writes down the result, adds the "
            f"digits of that to it, and so on. What is the last number written down when there are {n} numbers, the "
            f"{start} included?",
        )
    )
    program = f"""
        term = {start}
        for _ in range({n} - 1):
            term += sum(int(digit) for digit in str(term))
        term
    """
    return Problem(question, value, (program,))


def modular_recurrence(draw: Draw) -> Problem:
    """Follow a recurrence of two terms; the answer is a power of its matrix."""
    modulus = draw.whole(1_000, 99_999)
    first, second = draw.wholes(2, 1, 99)
    p, q = draw.wholes(2, 2, 20)
    n = draw.whole(150, 2_000)
    # The matrix (p q; 1 0) takes (x(k), x(k-1)) to (x(k+1), x(k)); its power is built by squaring.
    power, square, exponent = (1, 0, 0, 1), (p, q, 1, 0), n - 2
    while exponent:
        if exponent % 2:
            power = _times(power, square, modulus)
        square, exponent = _times(square, square, modulus), exponent // 2
    question = draw.pick(
        (
            f"Let x(1) = {first}, x(2) = {second}, and for n > 2 let x(n) be the remainder of {p}*x(n-1) + {q}*x(n-2) "
            f"on division by {modulus}. What is x({n})?",
            f"A sequence starts with the two terms {first} and {second}. Every next term is {p} times the last term "
            f"plus {q} times the term before that, reduced modulo {modulus} to a number from 0 to {modulus - 1}. What "
            f"is term number {n}, counting {first} as term number 1?",
        )
    )
    program = f"""
        before, last = {first}, {second}
        for _ in range({n} - 2):
            before, last = last, ({p} * last + {q} * before) % {modulus}
        last
    """
    return Problem(question, (power[0] * second + power[1] * first) % modulus, (program,))


def _times(a: tuple[int, ...], b: tuple[int, ...], modulus: int) -> tuple[int, int, int, int]:
    return (
        (a[0] * b[0] + a[1] * b[2]) % modulus,
        (a[0] * b[1] + a[1] * b[3]) % modulus,
        (a[2] * b[0] + a[3] * b[2]) % modulus,
        (a[2] * b[1] + a[3] * b[3]) % modulus,
    )


def collatz_total(draw: Draw) -> Problem:
    """Add up the lengths of 3n+1 walks; the answer remembers the lengths it has met."""
    low = draw.whole(10, 3_000)
    high = low + draw.whole(20, 80)
    steps = {1: 0}
    for start in range(low, high + 1):
        walk, n = [], start
        while n not in steps:
            walk.append(n)
            n = 3 * n + 1 if n % 2 else n // 2
        for count, met in enumerate(reversed(walk), steps[n] + 1):
            steps[met] = count
    question = draw.pick(
        (
            "One step replaces a number n by n/2 if n is even, and by 3n+1 if n is odd. For each start from "
            f"{low} to {high}, both ends included, count the steps until 1 is reached for the first time. What is the "
            "sum of these counts?",
            f"Every machine of a set holds one number; the numbers are {low}, {low + 1}, ..., {high}. In each round a "
            "machine whose number is not 1 halves it if it is even, and else triples it and adds 1; a machine that "
            "shows 1 has stopped. How many replacements do all machines make together until all of them have stopped?",
        )
    )
    program = f"""
        def steps(n):
            count = 0
            while n != 1:
                n = n // 2 if n % 2 == 0 else 3 * n + 1
                count += 1
            return count

        sum(steps(n) for n in range({low}, {high} + 1))
    """
    return Problem(question, sum(steps[n] for n in range(low, high + 1)), (program,))


def cycle_length(draw: Draw) -> Problem | None:
    """Count the values before the first repetition; the answer finds the cycle with two pointers (Floyd)."""
    modulus = draw.whole(2_000, 50_000)
    start, shift = draw.whole(2, 999), draw.whole(1, 99)

    def following(x: int) -> int:
        return (x * x + shift) % modulus

    slow, fast = following(start), following(following(start))
    while slow != fast:
        slow, fast = following(slow), following(following(fast))
    tail, slow = 0, start
    while slow != fast:
        tail, slow, fast = tail + 1, following(slow), following(fast)
    cycle, fast = 1, following(slow)
    while slow != fast:
        cycle, fast = cycle + 1, following(fast)
    if tail + cycle < 20:
        return None
    question = draw.pick(
        (
            f"Starting with x = {start}, x is replaced by the remainder of x*x + {shift} on division by {modulus}, "
            f"again and again. How many different values does x take in all, the {start} included?",
            f"Let x(0) = {start} and x(k+1) = (x(k)^2 + {shift}) mod {modulus}. What is the smallest k for which x(k) "
            "equals an earlier term?",
        )
    )
    program = f"""
        seen = set()
        x = {start}
        while x not in seen:
            seen.add(x)
            x = (x * x + {shift}) % {modulus}
        len(seen)
    """
    return Problem(question, tail + cycle, (program,))


def unique_sums(draw: Draw) -> Problem:
    """Extend a sequence by sums in one way (Ulam's); the answer counts the sums as the terms appear."""
    first, second = sorted(draw.some(range(1, 41), 2))
    n = draw.whole(14, 40)
    terms, ways = [first, second], Counter([first + second])
    while len(terms) < n:
        new = next(m for m in itertools.count(terms[-1] + 1) if ways[m] == 1)
        ways.update(new + term for term in terms)
        terms.append(new)
    question = draw.pick(
        (
            f"A sequence begins with {first}, {second}. Each further term is the smallest integer that is larger than "
            "the last term and is a sum of two different earlier terms in exactly one way (the order of the two does "
            f"not matter). What is term number {n}, if {first} is term number 1?",
            f"Start a list with {first} and {second}. Keep appending the least number greater than all in the list "
            "that can be written as the sum of two distinct members of the list in exactly one way, order ignored. "
            f"What number is appended last when the list has {n} members?",
        )
    )
    function = """
        def extended(terms):
            candidate = terms[-1] + 1
            while True:
                ways = 0
                for term in terms:
                    if term < candidate - term and candidate - term in terms:
                        ways += 1
                if ways == 1:
                    return [*terms, candidate]
                candidate += 1
    """
    run = f"""
        terms = [{first}, {second}]
        while len(terms) < {n}:
            terms = extended(terms)
        terms[-1]
    """
    return Problem(question, terms[-1], (function, run))


KINDS = kinds_of(
    "sequences",
    {
        1: (digit_growth, modular_recurrence),
        2: (collatz_total, cycle_length, unique_sums),
    },
)
