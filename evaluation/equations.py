r"""The arithmetic that a text shows, executed: ``48 / 2 = 25`` is an equation, and a wrong one.

An equation is a chain of expressions in digits with ``=`` between them. What holds a letter or a unit inside an
expression is not read, so that an equation which is found is one that was meant. Values are exact.

>>> [(e.expression, str(e.value), e.wrong) for e in equations("48 / 2 = 25 clips, so 48 + 25 = 73")]
[('48 / 2', '24', True), ('48 + 25', '73', False)]
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from fractions import Fraction

from trajgym.envs.tools.expression import CalculatorError, evaluate
from trajgym.rewards.milestones import all_numbers, one_number
from trajgym.types import ToolCall, ToolResult

__all__ = ["Equation", "asked", "called", "equations", "execute"]

_MOST_READ = 100_000  # characters of a text
_MOST_EQUATIONS = 500
_LONGEST = 300  # characters of one side
_NOISE = Fraction(1, 10**9)  # relative; floating-point numbers such as 3.8000000000000003 are no errors of anybody
_ANNOTATION = re.compile(r"<<([^<>=\n]{1,200})=([^<>\n]{0,60})>>")
_LATEX = (
    (re.compile(r"\\[cdt]?frac\{([^{}]{1,60})\}\{([^{}]{1,60})\}"), r"((\1)/(\2))"),
    (re.compile(r"\\(?:times|cdot)(?![a-zA-Z])"), "*"),
    (re.compile(r"\\div(?![a-zA-Z])"), "/"),
    (re.compile(r"\\(?:left|right|[,;!:\[\]()]|text\{[^{}]{0,60}\})"), " "),
    (re.compile(r"\\([$%#])"), r"\1"),
)
_BOLD = re.compile(r"(?<![\d)])\*\*|\*\*(?!\s?[\d(])")  # emphasis, where it cannot be a power
_NUMBERED = re.compile(r"^[ \t]*(?:\d{1,3}[.)]|[-*•])[ \t]+", re.MULTILINE)
_TIMES = re.compile(r"(?<=[\d)%])(\s?)[xX](?=\s?[\d($.£€])")
_COMMA = re.compile(r",(?=\s)")
_FRACTION = re.compile(r"(?<=\s)(\d+/\d+)(?!\S)")
_VARIABLE = re.compile(r"[A-Za-z](?![A-Za-z])")
_FACTOR = re.compile(r"(?:^|[\s\d)])[xX]\s*$")  # behind words, `x` multiplies too: 60 minutes x 3/4
_CHAIN = re.compile(r"[\d.,()+\-*/^%$£€×·⋅∗÷−–²³½¼¾ \t=≈]+")  # what a chain is made of; it ends at the first letter
_OPERATOR = re.compile(r"[\d)%½¼¾]\s*(?:\*\*|//|[-+*/^×·⋅∗÷−–])\s*[-($£€.\d½¼¾]")
_DANGLING = re.compile(r"^(?:[\s)*/^×·⋅∗÷,+%]|\.(?!\d))+|[\s(*/^×·⋅∗÷+\-−–,.$£€]+$")
_FIRST = re.compile(r"\s*[$£€]?\s?([-−]?(?:\d{1,3}(?: \d{3})+(?!\d)|(?:\d[\d,]*)?\.?\d+))(\s?%)?")


@dataclass(frozen=True)
class Equation:
    """One piece of arithmetic.

    Args:
        expression: As it was written.
        value: What it comes to, executed exactly.
        operands: The numbers in it, without signs, equal ones as often as they are written.
        claimed: What the text says it comes to; ``None`` for a call, which a tool has executed.
        wrong: Whether the claim is not the value, nor the value rounded up or down at its last written digit.
    """

    expression: str
    value: Fraction
    operands: tuple[Fraction, ...]
    claimed: Fraction | None = None
    wrong: bool = False

    def __str__(self) -> str:
        return self.expression if self.claimed is None else f"{self.expression} = {_shown(self.claimed)}"


def execute(expression: str) -> Fraction | None:
    """Return the exact value of an expression in digits, ``None`` where it has none.

    >>> execute("$1,250 / 4"), execute("1 / 0"), execute("clips")
    (Fraction(625, 2), None, None)
    """
    try:
        return Fraction(evaluate(expression))
    except (CalculatorError, ValueError):  # an irrational value is written with an exponent or as a decimal
        return None


def equations(text: str) -> list[Equation]:
    """Return the equations of a text in the order in which they stand, annotations ``<<48/2=24>>`` included.

    A sum in prose with its own annotation counts once. Chains such as ``2 + 3 = 5 + 4 = 9`` are read as people mean
    them: an equation claims the expression behind its sign, or the first number of it.

    Args:
        text: What a policy wrote, or a worked solution; at most the first 100,000 characters are read.
    """
    found: list[Equation] = []
    for line in text[:_MOST_READ].split("\n"):
        if "=" not in line and "≈" not in line:
            continue
        found += _once(itertools.islice(_of_line(line), _MOST_EQUATIONS))
        if len(found) >= _MOST_EQUATIONS:
            break
    return found[:_MOST_EQUATIONS]


def called(results: Iterable[ToolResult]) -> list[Equation]:
    """Return what tools have worked out: expressions they were given, and other calls whose answer is one number."""
    found: list[Equation] = []
    for result in results:
        if result.error is None:
            known = asked(result.call)
            value = one_number(result.content) if known is None else None
            if value is not None:
                numbers = all_numbers(" ".join(map(str, result.call.arguments.values()))[:_MOST_READ])
                known = Equation(result.call.name, value, tuple(numbers))
            found += [] if known is None else [known]
    return found


def asked(call: ToolCall) -> Equation | None:
    """Return the arithmetic in a call's argument ``expression``, executed; ``None`` where there is none."""
    expression = call.arguments.get("expression")
    value = execute(expression) if isinstance(expression, str) else None
    if not isinstance(expression, str) or value is None:
        return None
    return Equation(expression, value, tuple(all_numbers(expression)))


def _of_line(line: str) -> Iterator[Equation]:
    """Yield the annotations of a line, then its prose; what a calculator wrote tells best what was meant."""
    for annotation in _ANNOTATION.finditer(line):
        yield from _equation(annotation[1], annotation[2])
    prose = _plain(_ANNOTATION.sub("", line))
    for chain in _CHAIN.finditer(prose):
        parts = re.split("[=≈]", chain[0])
        pairs = list(itertools.pairwise(parts))
        first = int(bool(pairs) and _begins_inside(prose[: chain.start()], parts[0]))
        last = len(pairs) - int(bool(pairs) and _ends_inside(chain[0], prose[chain.end() :]))
        for left, right in pairs[first:last]:
            if max(len(left), len(right)) <= _LONGEST:
                yield from _equation(left, right)


def _equation(left: str, right: str) -> Iterator[Equation]:
    """Yield ``left = right`` where it is arithmetic: one side has an operator, and both have a value."""
    if not _OPERATOR.search(left) and _OPERATOR.search(right):
        left, right = right, left
    expression = _trimmed(left)
    value = execute(expression) if _OPERATOR.search(expression) else None
    claims = list(_claims(right)) if value is not None else []
    if value is None or not claims:
        return
    agreed = next((claim for claim, unit in claims if _rounds_to(value, claim, unit)), None)
    if agreed is None and (other := execute(_FRACTION.sub(r"(\1)", expression))) is not None:
        # `60 / 3/4 = 80`: what is written close together belongs together.
        agreed = next((claim for claim, unit in claims if _rounds_to(other, claim, unit)), None)
        value = value if agreed is None else other
    operands = tuple(all_numbers(expression))
    yield Equation(expression, value, operands, claims[0][0] if agreed is None else agreed, agreed is None)


def _claims(right: str) -> Iterator[tuple[Fraction, Fraction]]:
    """Yield what the right side may claim, each with the value of its last digit: its first number, its whole value."""
    first = _FIRST.match(right)
    if first:
        digits = first[1].replace(",", "").replace(" ", "").replace("−", "-")
        unit = Fraction(1, 10 ** len(digits.partition(".")[2]))
        yield Fraction(digits), unit
        if first[2]:
            yield Fraction(digits) / 100, unit / 100
        if right.strip().startswith("$"):
            yield Fraction(digits) * 100, unit * 100  # cents that are told in dollars
    whole = _trimmed(right)
    value = execute(whole) if _OPERATOR.search(whole) else None
    if value is not None:
        yield value, Fraction(0)


def _rounds_to(value: Fraction, claim: Fraction, unit: Fraction) -> bool:
    """Whether a claim is the value, or lies less than one unit of its last digit from a value with more digits.

    The sign is left out of account: a difference told as a size is no error of calculation.
    """
    if abs(abs(value) - abs(claim)) <= _NOISE * max(Fraction(1), abs(value)):
        return True
    return (value / unit).denominator != 1 and abs(abs(value) - abs(claim)) < unit if unit else False


def _begins_inside(before: str, run: str) -> bool:
    """Whether the first operand of a run is a word or a variable in front of it."""
    if _FACTOR.search(before[-40:]):
        return True
    return before.rstrip()[-1:].isalnum() and re.match(r"\s*[-+*/×·⋅∗÷−–^)]", run) is not None


def _ends_inside(run: str, after: str) -> bool:
    """Whether the last operand of a run is a word or a variable behind it: ``(5/2)x``, ``1/3 * the class``."""
    if not after[:1].isalpha():
        return False
    glued = not run[-1:].isspace() and _VARIABLE.match(after) is not None
    return glued or re.search(r"[-+*/×·⋅∗÷−–^(]\s*$", run) is not None


def _trimmed(run: str) -> str:
    """Return the part of a run that can be an expression: without loose marks and brackets at its ends."""
    run = _COMMA.split(run)[-1].strip()
    before = None
    while run != before:
        before = run
        run = _DANGLING.sub("", run).strip()
        depth, start = 0, 0
        for index, character in enumerate(run):
            depth += (character == "(") - (character == ")")
            if depth < 0:  # closes what stands in front of the run
                depth, start = 0, index + 1
        run = run[start:]
        if depth > 0:
            run = run[run.rfind("(") + 1 :] if run.count("(") == depth else run.replace("(", "", depth)
    return run


def _plain(line: str) -> str:
    r"""Write a line's LaTeX, emphasis and list marks as the calculator reads them."""
    if "\\" in line:
        for pattern, replacement in _LATEX:
            line = pattern.sub(replacement, line)
    return _TIMES.sub(r"\1*", _NUMBERED.sub("", _BOLD.sub("", line)))


def _once(found: Iterable[Equation]) -> list[Equation]:
    """Keep one of the equations of a line that come to the same value from the same numbers; a wrong one before all."""
    kept: dict[tuple[Fraction, tuple[Fraction, ...]], Equation] = {}
    for equation in found:
        key = (equation.value, tuple(sorted(equation.operands)))
        if key not in kept or (equation.wrong and not kept[key].wrong):
            kept[key] = equation
    return list(kept.values())


def _shown(value: Fraction) -> str:
    return str(value.numerator) if value.denominator == 1 else f"{float(value):g}"
