"""One row for each played episode: what was asked, what was answered, and everything the measures count."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction

from trajgym.errors import ConfigError, DataError
from trajgym.evaluation.evaluate import Evaluation, succeeded
from trajgym.evaluation.faults import diagnose
from trajgym.evaluation.working import shown
from trajgym.rewards.answer import read, truth
from trajgym.rewards.answer_formula import read_formula
from trajgym.rewards.answer_kinds import AnyReading, answer_kind
from trajgym.rewards.steps import count_steps
from trajgym.types import StopReason, Task, Trajectory

__all__ = ["STRATA", "Price", "Sample", "samples_of", "steps_shown", "stratum"]

STRATA = ("easy", "medium", "hard", "unknown")
"""Tasks of 1–2 steps, 3–4 steps, 5 and more, and those whose demonstration is not known step by step."""


@dataclass(frozen=True)
class Price:
    """What tokens cost.

    Args:
        prompt: For a million tokens that the model reads. Our own engine reads a dialogue once, an endpoint once for
            each turn.
        sampled: For a million tokens that it writes.
        currency: What it is counted in.

    Raises:
        ConfigError: When a price is negative.
    """

    prompt: float = 0.0
    sampled: float = 0.0
    currency: str = "$"

    def __post_init__(self) -> None:
        if not (0 <= self.prompt < float("inf") and 0 <= self.sampled < float("inf")):
            raise ConfigError(f"A price must be a finite number from 0, got {self.prompt} and {self.sampled}.")


@dataclass(frozen=True)
class Sample:
    """One attempt at one task.

    Args:
        task_id: The task.
        attempt: Which attempt at it, from 0.
        question: What was asked.
        prediction: What was read as the answer, as a number where it is one; ``None`` when nothing was.
        ground_truth: The right answer.
        correct: Whether the answer is right, wherever it stands (lenient).
        strict: Whether it is right and stands behind a marker.
        marked: Whether there is an answer behind a marker, right or wrong.
        rule: How the answer was found, one of :data:`trajgym.rewards.answer_reading.RULES`.
        reason: Why none was read; empty otherwise.
        numeric_error: Distance of the prediction from the ground truth; ``None`` where either is no number.
        steps: Steps that the solution shows, see :func:`steps_shown`.
        step_markers: Whether the solution has ``Step 1:`` and so on.
        gold_steps: Steps of the demonstration; ``None`` when unknown.
        stratum: One of :data:`STRATA`.
        turns: Assistant turns.
        characters: Length of everything the policy wrote.
        tokens: Tokens it wrote, as an endpoint counts them where it is one; ``None`` where nobody counts.
        prompt_tokens: Tokens it read, likewise; an endpoint reads the dialogue anew in each turn.
        seconds: What the policy took; ``None`` when it was not measured.
        calls: Tool calls that could be read.
        tool_errors: Calls that came back with an error.
        unparsed: Turns with a call that could not be read.
        stop_reason: Why the episode ended.
        truncated: Whether a budget ended it.
        fault: What of our machinery failed; empty otherwise.
        reward: Undiscounted sum of rewards.
        error: Class of error, see :mod:`trajgym.evaluation.faults`; empty for a right answer in its form.
        error_reason: The rule that held.
        coherence: A judge's or a person's grade in [0, 1], where there is one.
        cost: In the price's currency; ``None`` without a price or without tokens.
    """

    task_id: str
    attempt: int
    question: str
    prediction: str | None
    ground_truth: str
    correct: bool
    strict: bool
    marked: bool
    rule: str
    reason: str
    numeric_error: float | None
    steps: int
    step_markers: bool
    gold_steps: int | None
    stratum: str
    turns: int
    characters: int
    tokens: int | None
    prompt_tokens: int | None
    seconds: float | None
    calls: int
    tool_errors: int
    unparsed: int
    stop_reason: str
    truncated: bool
    fault: str
    reward: float
    error: str
    error_reason: str
    coherence: float | None = None
    cost: float | None = None


def samples_of(
    evaluation: Evaluation, *, price: Price | None = None, coherence: Mapping[tuple[str, int], float] | None = None
) -> list[Sample]:
    """Return a row for each trajectory of an evaluation.

    Args:
        evaluation: What was played.
        price: What its tokens cost.
        coherence: Grades in [0, 1] by (task id, attempt): a person's, or those of :func:`judged`.

    Raises:
        ConfigError: For a grade outside of [0, 1], or of an attempt that was not made.
    """
    grades = dict(coherence or {})
    count = len(evaluation.trajectories)
    seconds, spent = evaluation.seconds or (None,) * count, evaluation.tokens or (None,) * count
    rows = []
    for i, (trajectory, took, tokens) in enumerate(zip(evaluation.trajectories, seconds, spent, strict=True)):
        attempt = i % evaluation.attempts
        grade = grades.pop((trajectory.task.id, attempt), None)
        if grade is not None and not 0 <= grade <= 1:
            raise ConfigError(f"The coherence of {trajectory.task.id!r} must lie between 0 and 1, got {grade}.")
        rows.append(_sample(trajectory, attempt, took, tokens or _tokens(trajectory), price, grade))
    if grades:
        raise ConfigError(f"There are grades of coherence for what was not played: {sorted(grades)[:3]}.")
    return rows


def stratum(task: Task) -> str:
    """Return the difficulty of a task, by the steps of its demonstration."""
    steps = task.difficulty
    if steps is None or steps < 1:
        return "unknown"
    return "easy" if steps <= 2 else "medium" if steps <= 4 else "hard"


def steps_shown(trajectory: Trajectory) -> int:
    """Return how many steps a solution shows: ``Step k:`` markers, else pieces of arithmetic, those of tools too."""
    marked = count_steps("\n".join(step.action.text for step in trajectory.steps))
    worked = {(e.value, tuple(sorted(e.operands))) for e in shown(trajectory.steps).equations}
    return marked or len(worked)


def _sample(
    trajectory: Trajectory,
    attempt: int,
    seconds: float | None,
    tokens: tuple[int, int] | None,
    price: Price | None,
    coherence: float | None,
) -> Sample:
    task, steps = trajectory.task, trajectory.steps
    right = trajectory.valid and succeeded(trajectory)
    reading, kind = _reading(trajectory)
    fault = diagnose(trajectory, right=right)
    cost = None
    if price is not None and tokens is not None:
        cost = (price.prompt * tokens[0] + price.sampled * tokens[1]) / 1e6
    return Sample(
        task_id=task.id,
        attempt=attempt,
        question=task.question,
        prediction=_prediction(trajectory, reading, kind),
        ground_truth=task.answer,
        correct=right,
        strict=right and reading is not None and reading.marked,
        marked=reading is not None and reading.marked,
        rule="none" if reading is None else reading.rule,
        reason="" if reading is None else reading.reason,
        numeric_error=_distance(reading, task.answer) if kind == "number" else None,
        steps=steps_shown(trajectory),
        step_markers=any(count_steps(step.action.text) for step in steps),
        gold_steps=task.difficulty,
        stratum=stratum(task),
        turns=len(steps),
        characters=sum(len(step.action.text) for step in steps),
        tokens=None if tokens is None else tokens[1],
        prompt_tokens=None if tokens is None else tokens[0],
        seconds=seconds,
        calls=sum(len(step.action.calls) for step in steps),
        tool_errors=sum(result.error is not None for step in steps for result in step.results),
        unparsed=sum(step.error is not None for step in steps),
        stop_reason=trajectory.stop_reason.value,
        truncated=bool(steps) and steps[-1].truncated,
        fault=trajectory.fault or "",
        reward=trajectory.total_reward,
        error="" if fault is None else fault.kind,
        error_reason="" if fault is None else fault.reason,
        coherence=coherence,
        cost=cost,
    )


def _reading(trajectory: Trajectory) -> tuple[AnyReading | None, str]:
    """Read the answer of an episode that gave one, and say of which kind it is."""
    try:
        kind = answer_kind(trajectory.task)
    except DataError:
        kind = "number"
    if not trajectory.valid or trajectory.stop_reason is not StopReason.ANSWERED:
        return None, kind
    text = trajectory.steps[-1].action.text
    return (read(text) if kind == "number" else read_formula(text)), kind


def _prediction(trajectory: Trajectory, reading: AnyReading | None, kind: str) -> str | None:
    if reading is None or reading.value is None:
        return None
    if kind != "number":
        return reading.source(trajectory.steps[-1].action.text)
    value = reading.value
    return str(value) if not isinstance(value, Fraction) or value.denominator == 1 else f"{float(value):.12g}"


def _distance(reading: AnyReading | None, answer: str) -> float | None:
    if reading is None or not isinstance(reading.value, Fraction):
        return None
    try:
        return float(abs(reading.value - truth(answer)))
    except (DataError, OverflowError):
        return None


def _tokens(trajectory: Trajectory) -> tuple[int, int] | None:
    """Return how many tokens were read and sampled, where the policy has any."""
    if any(step.action.text and not step.action.token_ids for step in trajectory.steps) or not trajectory.rows:
        return None
    sampled = sum(sum(row.mask) for row in trajectory.rows)
    return sum(len(row.ids) for row in trajectory.rows) - sampled, sampled
