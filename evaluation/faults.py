"""Why an answer is wrong: four classes of error, told apart by executed arithmetic and the demonstration.

Nothing is guessed, and no model is asked. :func:`diagnose` goes down the list of rules in ``docs/evaluation.md`` and
stops at the first that holds; what none explains stays ``unclassified``, with the reason.

=================  ===================================================================================================
``format``         the right answer without its marker, or an answer that cannot be read
``calculation``    arithmetic that does not come to what the reply says: ``48/2 = 25``
``comprehension``  an intermediate value as the answer (a part for the total), or other numbers than the problem's
``reasoning``      sound arithmetic on the problem's numbers, but not the operations or the order that solve it
=================  ===================================================================================================
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from fractions import Fraction

from trajgym.errors import ConfigError, DataError, UnknownNameError
from trajgym.evaluation.measures import newcombe
from trajgym.evaluation.working import (
    CONVERSIONS,
    Given,
    Working,
    demonstrated,
    numbers_given,
    rounds,
    shown,
    stands_for,
)
from trajgym.rewards.answer import equal, read, truth
from trajgym.rewards.answer_kinds import answer_kind
from trajgym.types import StopReason, Task, Trajectory

__all__ = ["CLASSES", "UNCLASSIFIED", "Fault", "conclusions", "diagnose", "distribution"]

CLASSES = ("calculation", "reasoning", "comprehension", "format")
UNCLASSIFIED = "unclassified"

_UNREADABLE = ("unreadable", "no_number", "unclosed_marker")
_CLEARLY_LESS = 0.2  # share by which hard tasks must be worse than easy ones to be called a weakness
_SMALL = frozenset(map(Fraction, (0, 1, 2)))  # as operands they come and go without meaning much
_FEW = 0.1  # share of format errors among all errors

_WEAKNESS = {
    "calculation": "Arithmetic is the weakness: offer a calculator, or train on more tool trajectories.",
    "reasoning": "Choosing and ordering the operations is the weakness: train on solutions that show every step.",
    "comprehension": "Reading the problem is the weakness: train on varied wordings and on problems with distractors.",
    "format": "The written form is the weakness: more or better SFT before any RL.",
    UNCLASSIFIED: "Most errors have no class: look at the dialogues, and see whether the model answers at all.",
}


@dataclass(frozen=True)
class Fault:
    """What is wrong with an answer.

    Args:
        kind: One of :data:`CLASSES`, or :data:`UNCLASSIFIED`.
        reason: The rule that held, with the numbers it is about.
    """

    kind: str
    reason: str


def diagnose(trajectory: Trajectory, *, right: bool) -> Fault | None:
    """Return the class of error of one episode, ``None`` for a right answer behind its marker.

    Args:
        trajectory: What was played; one without steps is a fault of the machinery and stays unclassified.
        right: Whether the answer was graded as right.
    """
    if not trajectory.valid:
        return Fault(UNCLASSIFIED, "the machinery failed, not the policy")
    last = trajectory.steps[-1]
    if answer_kind_or_number(trajectory.task) != "number":
        return None if right else Fault(UNCLASSIFIED, "the answer is a formula, whose working is not executed")
    reading = read(last.action.text)
    if right:
        missing = Fault("format", f"the right answer without its marker ({reading.rule})")
        return None if reading.marked else missing
    working, wanted = shown(trajectory.steps), demonstrated(trajectory.task)
    try:
        answer = truth(trajectory.task.answer)
    except DataError:
        return Fault(UNCLASSIFIED, "the ground truth is not a number")
    ended = last.stop_reason is StopReason.ANSWERED
    given = reading.value if ended else None
    form = _form(trajectory, reading.reason if ended else "", reading.value, answer, working)
    slip = _slip(given, answer, working)
    misread = _part(given, answer, working, wanted) or _numbers(trajectory.task, given, working, wanted)
    return form or slip or _unfinished(trajectory, given) or misread or _order(working, wanted)


def distribution(kinds: Iterable[str]) -> dict[str, tuple[int, float]]:
    """Return the count and the share of each class among all errors, in a fixed order.

    >>> distribution(["calculation"] * 3 + ["format"])["calculation"]
    (3, 0.75)

    Raises:
        UnknownNameError: For something that is no class.
    """
    counts = dict.fromkeys((*CLASSES, UNCLASSIFIED), 0)
    for kind in kinds:
        if kind not in counts:
            raise UnknownNameError("class of error", kind, counts)
        counts[kind] += 1
    total = sum(counts.values())
    return {kind: (count, count / total if total else 0.0) for kind, count in counts.items()}


def conclusions(counts: Mapping[str, int], strata: Mapping[str, tuple[float, int]]) -> list[str]:
    """Say what the errors and the strata mean for the next training.

    Args:
        counts: Errors of each class.
        strata: Right answers and tasks of the strata ``easy`` and ``hard``, where there are such.

    Raises:
        ConfigError: When more answers are right than there are tasks.
    """
    said = []
    total = sum(counts.values())
    if total:
        biggest = max(counts, key=lambda kind: counts[kind])
        said.append(f"{counts[biggest] / total:.1%} of the errors are {biggest}. {_WEAKNESS[biggest]}")
        if counts.get("format", 0) / total < _FEW:
            said.append("Few errors are of format: the form is learned, SFT has done its work.")
    for name, (right, tasks) in strata.items():
        if right > tasks:
            raise ConfigError(f"The stratum {name!r} has {right} right answers in {tasks} tasks.")
    easy, hard = strata.get("easy", (0, 0)), strata.get("hard", (0, 0))
    if easy[1] and hard[1]:
        drop = easy[0] / easy[1] - hard[0] / hard[1]
        if drop > _CLEARLY_LESS and newcombe(hard, easy)[0] > 0:  # or a handful of tasks would say so
            said.append(
                f"Hard tasks are {100 * drop:.1f} points worse than easy ones: long chains of steps are a weakness."
            )
    return said


def answer_kind_or_number(task: Task) -> str:
    """Return the kind of a task's answer; an unknown one counts as a number here, and is refused where it is graded."""
    try:
        return answer_kind(task)
    except DataError:
        return "number"


def _form(
    trajectory: Trajectory, reason: str, value: Fraction | None, answer: Fraction, working: Working
) -> Fault | None:
    """Rule 1: an answer that is right or there, but not in a form that is read."""
    last = trajectory.steps[-1]
    if last.stop_reason is StopReason.INVALID_CALLS:
        return Fault("format", f"calls that cannot be read ({last.error.kind if last.error else 'no call'})")
    if value is None and working.equations and equal(working.equations[-1].value, answer):
        return Fault("format", f"{_text(answer)} is worked out, but not given as an answer that can be read")
    if reason in _UNREADABLE:
        return Fault("format", f"the answer cannot be read ({reason})")
    return None


def _slip(given: Fraction | None, answer: Fraction, working: Working) -> Fault | None:
    """Rule 2: arithmetic that comes to something else than the reply says."""
    for equation in working.equations:
        if equation.wrong:
            return Fault("calculation", f"{equation}, but it is {_text(equation.value)}")
    last = working.equations[-1] if working.equations else None
    if given is None or last is None or not equal(last.value, answer) or abs(given) in working.results:
        return None
    return Fault("calculation", f"{last.expression} is {_text(answer)}, not {_text(given)}")


def _unfinished(trajectory: Trajectory, given: Fraction | None) -> Fault | None:
    """Rule 3: without an answer there is nothing that the demonstration could be compared with."""
    if given is not None:
        return None
    reason = trajectory.stop_reason
    if reason is StopReason.ANSWERED:
        return Fault(UNCLASSIFIED, f"no answer ({read(trajectory.steps[-1].action.text).reason})")
    return Fault(UNCLASSIFIED, f"no answer: the episode ended by {reason.value}")


def _part(given: Fraction | None, answer: Fraction, working: Working, wanted: Working) -> Fault | None:
    """Rule 4: a value on the way to the answer, given as the answer.

    Where the reply works it out, it must share a number with the demonstration's own way to that value; small numbers
    come up by chance.
    """
    if given is None or equal(given, answer):
        return None
    ways = [e for e in wanted.equations if equal(abs(e.value), abs(given)) and len(e.operands) > 1]
    last = next((e for e in reversed(working.equations) if equal(abs(e.value), abs(given))), None)
    if any(not working.equations or (last and set(last.operands) & set(way.operands)) for way in ways):
        return Fault("comprehension", f"{_text(given)} is a value on the way to the answer, not the answer")
    return None


def _numbers(task: Task, given: Fraction | None, working: Working, wanted: Working) -> Fault | None:
    """Rule 5: other numbers of the problem than those that its demonstration uses."""
    if not wanted.equations:
        return None
    known = numbers_given(task.question)
    if not working.equations:
        if given is not None and abs(given) in known.numerals:
            return Fault("comprehension", f"{_text(given)} is a number that the problem gives")
        return None
    needed = {n for operand in wanted.operands for n in stands_for(operand, known.numerals)}
    used = {n for operand in working.operands for n in stands_for(operand, known.numerals)}
    allowed = known.all | CONVERSIONS | wanted.operands | frozenset(wanted.values)
    for number in sorted(working.brought):
        if not (number in allowed or stands_for(number, known.all) or rounds(number, working.results)):
            return Fault("comprehension", f"{_text(number)} stands neither in the problem nor in what was worked out")
    idle = sorted((working.brought & known.numerals) - needed - CONVERSIONS)
    if idle and _complete(wanted, known, task):
        return Fault("comprehension", f"{_text(idle[0])} has no part in the solution")
    left_out = sorted(needed - used - _SMALL)
    if left_out:
        return Fault("comprehension", f"{_text(left_out[0])} is left out of account")
    return None


def _complete(wanted: Working, known: Given, task: Task) -> bool:
    """Whether the demonstration shows all of its arithmetic: it reaches the answer from what the problem gives."""
    reached = truth(task.answer) in [equation.value for equation in wanted.equations]
    worked = all(len(equation.operands) > 1 for equation in wanted.equations)
    return reached and worked and all(n in known.all | CONVERSIONS or stands_for(n, known.all) for n in wanted.brought)


def _order(working: Working, wanted: Working) -> Fault:
    """Rule 6: the right numbers and sound arithmetic, so it is what was done with them."""
    if not working.equations:
        return Fault(UNCLASSIFIED, "no arithmetic is shown")
    if not wanted.equations:
        return Fault(UNCLASSIFIED, "the task has no demonstration with arithmetic to compare with")
    step = next((value for value in wanted.values if value not in working.results), None)
    missing = "" if step is None else f", the first of them {_text(step)}"
    return Fault("reasoning", f"sound arithmetic on the right numbers, but not the steps of the solution{missing}")


def _text(number: Fraction) -> str:
    return str(number.numerator) if number.denominator == 1 else f"{float(number):g}"
