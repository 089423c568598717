"""Problems about texts, letter by letter."""

from __future__ import annotations

import itertools
import string

from trajgym.envs.code_problem import Draw, Problem, kinds_of

__all__ = ["KINDS"]


def checksum(draw: Draw) -> Problem:
    """Weigh letters by their places; the answer adds up sums of endings instead."""
    text = draw.letters(string.ascii_lowercase, draw.whole(35, 70))
    modulus = draw.whole(701, 9_999)
    values = [ord(letter) - 96 for letter in text]
    total = sum(itertools.accumulate(reversed(values)))
    question = draw.pick(
        (
            "Let a = 1, b = 2, ..., z = 26. Multiply the value of each letter of the following text by the letter's "
            f"position in the text (the first letter has position 1), and add up the products: {text}. What is the "
            f"remainder of the sum on division by {modulus}?",
            f'A check number is made from the code word "{text}": the letter at position i, counted from 1, adds i '
            f"times its place in the alphabet (a = 1 to z = 26), and the total is taken modulo {modulus}. What is the "
            "check number?",
        )
    )
    program = f"""
        text = "{text}"
        sum(i * (ord(letter) - ord("a") + 1) for i, letter in enumerate(text, start=1)) % {modulus}
    """
    return Problem(question, total % modulus, (program,))


def distinct_substrings(draw: Draw) -> Problem:
    """Count the different substrings; the answer comes from sorted endings and what neighbours share."""
    text = draw.letters(draw.pick(("ab", "abc", "xyz", "01", "012")), draw.whole(18, 40))
    endings = sorted(text[i:] for i in range(len(text)))
    shared = 0
    for a, b in itertools.pairwise(endings):
        shared += sum(1 for _ in itertools.takewhile(lambda pair: pair[0] == pair[1], zip(a, b, strict=False)))
    question = draw.pick(
        (
            f'How many different non-empty substrings does "{text}" have? (A substring is a run of neighbouring '
            "characters; the whole text is one of them.)",
            f"{draw.name()} cuts every possible piece of neighbouring characters, from one character up to the whole "
            f'text, out of copies of "{text}", and throws away duplicates. How many different pieces are left?',
        )
    )
    program = f"""
        text = "{text}"
        n = len(text)
        len({{text[i:j] for i in range(n) for j in range(i + 1, n + 1)}})
    """
    return Problem(question, len(text) * (len(text) + 1) // 2 - shared, (program,))


def letter_pairs(draw: Draw) -> Problem:
    """Count the pairs of letters in the wrong order; the answer sorts by merging."""
    text = draw.letters(string.ascii_lowercase, draw.whole(30, 60))
    question = draw.pick(
        (
            f'In the text "{text}", how many pairs of positions i < j are there for which the letter at position i '
            "comes later in the alphabet than the letter at position j?",
            f'The letters of "{text}" are put into alphabetical order by swapping two neighbours at a time. What is '
            "the smallest number of swaps that is enough?",
        )
    )
    program = f"""
        text = "{text}"
        sum(1 for j in range(len(text)) for i in range(j) if text[i] > text[j])
    """
    return Problem(question, _inversions(text)[1], (program,))


def _inversions(text: str) -> tuple[list[str], int]:
    """Return the letters in order, and how many pairs were not."""
    if len(text) < 2:
        return list(text), 0
    (left, a), (right, b) = _inversions(text[: len(text) // 2]), _inversions(text[len(text) // 2 :])
    merged: list[str] = []
    count = a + b
    while left and right:
        if left[0] <= right[0]:
            merged.append(left.pop(0))
        else:
            count += len(left)
            merged.append(right.pop(0))
    return merged + left + right, count


def hidden_words(draw: Draw) -> Problem | None:
    """Count the ways to pick a word's letters; the answer works backwards, position by position."""
    alphabet = "".join(draw.some("abcdeilnorst", draw.whole(4, 5)))
    text = draw.letters(alphabet, draw.whole(35, 70))
    word = "".join(draw.some(alphabet, draw.whole(3, 4)))
    count = _ways(text, word)
    if count < 50:
        return None
    question = draw.pick(
        (
            f'In how many ways can positions be chosen in the text "{text}" so that the letters there, read from left '
            f'to right, spell "{word}"? The positions need not be neighbours.',
            f'{draw.name()} deletes letters of "{text}" so that exactly "{word}" is left. How many choices of the '
            "positions to delete are there?",
        )
    )
    program = f"""
        text, word = "{text}", "{word}"
        ways = [1] + [0] * len(word)
        for letter in text:
            for k in range(len(word), 0, -1):
                if word[k - 1] == letter:
                    ways[k] += ways[k - 1]
        ways[-1]
    """
    return Problem(question, count, (program,))


def _ways(text: str, word: str) -> int:
    after = [1] * (len(text) + 1)  # ways to spell the letters behind the present one from each position on
    for wanted in reversed(word):
        here = [0] * (len(text) + 1)
        for i in range(len(text) - 1, -1, -1):
            here[i] = here[i + 1] + (after[i + 1] if text[i] == wanted else 0)
        after = here
    return after[0]


def look_and_say(draw: Draw) -> Problem:
    """Describe a row of digits again and again; the answer counts the runs by hand."""
    start, times = draw.letters("123456789", draw.whole(3, 5)), draw.whole(6, 13)
    digits = list(map(int, start))
    for _ in range(times):
        spoken: list[int] = []
        for i, digit in enumerate(digits):
            if i and digit == digits[i - 1]:
                spoken[-2] += 1
            else:
                spoken += [1, digit]
        digits = spoken  # no run is ever longer than 9
    rule = (
        "To describe a row of digits, each run of equal digits is replaced by its length and then the digit: "
        "1 1 2 becomes 2 1 1 2."
    )
    question = draw.pick(
        (
            f"{rule} The row {start} is described, the result is described, and so on, {times} times in all. What is "
            "the sum of the digits of the last row?",
            f"{rule} {draw.name()} writes {start} into line 0, and into each further line the description of the line "
            f"before it. What do the digits of line {times} add up to?",
        )
    )
    define = """
        from itertools import groupby

        def described(row):
            return "".join(f"{len(list(run))}{digit}" for digit, run in groupby(row))

        described("112")
    """
    run = f"""
        row = "{start}"
        for _ in range({times}):
            row = described(row)
        sum(map(int, row))
    """
    return Problem(question, sum(digits), (define, run))


KINDS = kinds_of(
    "text",
    {
        1: (checksum, distinct_substrings, letter_pairs),
        2: (hidden_words, look_and_say),
    },
)
