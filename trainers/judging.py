"""A judge's opinion of sampled answers, as preference pairs: asked in portions, written down as it comes.

Each verdict is a line of ``verdicts.jsonl``; whoever goes on after a break asks only for those that are missing.
"""

from __future__ import annotations

import itertools
import json
import random
import threading
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal, TypeAlias

from trajgym.errors import DataError
from trajgym.policies.base import LostTurn, Policy
from trajgym.rewards.compare import PairJudge
from trajgym.rewards.judge import Judge, own_words
from trajgym.rollout import derive_seed
from trajgym.trainers.preference_sources import by_task, is_whole, pair_of, pairs_from_scores
from trajgym.trainers.preferences import PreferencePair
from trajgym.trainers.runfolder import storage_errors
from trajgym.types import Message, StopReason, Task, Trajectory

__all__ = ["Ask", "Judged", "ask_policy", "judge_choices", "judge_grades"]

Ask: TypeAlias = Callable[[list[str]], Sequence[str]]
"""Turns prompts into replies."""

_PORTION = 64  # cases between two writes


@dataclass(frozen=True)
class Judged:
    """What a judge made of candidates.

    Args:
        kind: How it was asked.
        candidates: Sampled answers.
        unanswered: Those that gave no final answer, or in which something failed; nobody was asked about them.
        cases: Answers to grade, or pairs to compare.
        unreadable: Cases without a verdict in the form asked for.
        inconsistent: Pairs of which the judge preferred whatever stood first, or whatever stood second.
        equal: Pairs of the same worth to it.
        pairs: What is left.
    """

    kind: Literal["grades", "choices"]
    candidates: int
    unanswered: int
    cases: int
    unreadable: int
    inconsistent: int
    equal: int
    pairs: int

    def to_json(self) -> dict[str, Any]:
        """Return the counts as JSON values."""
        return asdict(self)


def judge_grades(
    judge: Judge, candidates: Sequence[Trajectory], log: Path, *, least_gap: float, most_per_task: int, seed: int
) -> tuple[list[PreferencePair], Judged]:
    """Return pairs of answers to the same task that a judge has graded differently.

    Args:
        judge: Grades each answer by itself.
        candidates: Sampled answers, several to each task.
        log: File of the verdicts; those that stand there already are not asked for.
        least_gap: Grades, 0 … 10, that differ by no more than this are equal.
        most_per_task: Most pairs about one task.
        seed: Decides which, where there are more.

    Raises:
        EnvironmentFault: When the judge is out of order; what it said before is in the log.
        DataError: When no pair comes of it.
    """
    answers = _answers(candidates)
    cases = [(t.task, own_words(t.steps)) for t in answers]
    grades = _asked(cases, judge.grades, log)
    pairs = pairs_from_scores(
        answers, grades, least_gap=least_gap, most_per_task=most_per_task, seed=seed, origin="grades"
    )
    graded = [grade is not None for grade in grades]
    possible = sum(len(list(itertools.combinations([i for i in group if graded[i]], 2))) for group in by_task(answers))
    everything = pairs_from_scores(answers, grades, least_gap=least_gap, most_per_task=possible + 1)
    found = Judged(
        kind="grades",
        candidates=len(candidates),
        unanswered=len(candidates) - len(answers),
        cases=len(cases),
        unreadable=graded.count(False),
        inconsistent=0,
        equal=possible - len(everything),
        pairs=len(pairs),
    )
    return _some(pairs, found)


def judge_choices(
    judge: PairJudge, candidates: Sequence[Trajectory], log: Path, *, most_per_task: int, seed: int
) -> tuple[list[PreferencePair], Judged]:
    """Return pairs of answers to the same task of which a judge prefers one, in whichever order it sees them.

    Args:
        judge: Compares two answers.
        candidates: Sampled answers, several to each task.
        log: File of the verdicts; those that stand there already are not asked for.
        most_per_task: Most pairs about one task that are asked about.
        seed: Decides which, where there are more.

    Raises:
        EnvironmentFault, DataError: As for :func:`judge_grades`.
    """
    answers = _answers(candidates)
    chosen: list[tuple[int, int]] = []
    for number, group in enumerate(by_task(answers)):
        couples = list(itertools.combinations(group, 2))
        if len(couples) > most_per_task:
            couples = random.Random(derive_seed(seed, "choices", number)).sample(couples, most_per_task)
        chosen += couples
    cases = [(answers[a].task, own_words(answers[a].steps), own_words(answers[b].steps)) for a, b in chosen]
    outcomes = _asked(cases, judge.compare, log)
    pairs = [
        pair_of(*((answers[a], answers[b]) if outcome == "first" else (answers[b], answers[a])), origin="choices")
        for (a, b), outcome in zip(chosen, outcomes, strict=True)
        if outcome in ("first", "second")
    ]
    counts = Counter(outcomes)
    found = Judged(
        kind="choices",
        candidates=len(candidates),
        unanswered=len(candidates) - len(answers),
        cases=len(cases),
        unreadable=counts["unreadable"],
        inconsistent=counts["inconsistent"],
        equal=counts["equal"],
        pairs=len(pairs),
    )
    return _some(pairs, found)


def ask_policy(policy: Policy) -> Ask:
    """Return a policy as a function from prompts to replies, each the first turn of a dialogue of its own.

    Args:
        policy: Any policy; one that samples should do so at temperature 0.
    """
    lock = threading.Lock()

    def ask(prompts: list[str]) -> list[str]:
        replies: dict[int, str] = {}
        waiting = list(enumerate(prompts))[::-1]
        live: set[int] = set()
        with lock:  # a policy belongs to one thread at a time
            try:
                while waiting or live:
                    while waiting and len(live) < policy.capacity:
                        number, prompt = waiting.pop()
                        task = Task(f"judge-{number}", prompt, "")
                        seed = derive_seed("judge", prompt.encode("utf-8", "replace").decode())
                        policy.start(number, [Message("user", prompt)], task=task, seed=seed)
                        live.add(number)
                    for number, action in policy.poll():
                        if isinstance(action, LostTurn):
                            raise action.error  # no reply is not an empty one
                        replies[number] = action.text
                        policy.finish(number)
                        live.discard(number)
            finally:
                for number in live:
                    policy.finish(number)
        return [replies[i] for i in range(len(prompts))]

    return ask


def _answers(candidates: Sequence[Trajectory]) -> list[Trajectory]:
    """Return the candidates that a reward model would be asked about."""
    return [t for t in candidates if is_whole(t) and t.stop_reason is StopReason.ANSWERED]


def _asked(cases: Sequence[Any], ask: Callable[[Sequence[Any]], Sequence[Any]], log: Path) -> list[Any]:
    """Return the verdict on each case, from the log or by asking."""
    known = _read(log, len(cases))
    if known:
        with storage_errors(log.parent):  # drop a line that a crash cut short
            _write(log, known, "w")
    for start in range(len(known), len(cases), _PORTION):
        verdicts = list(ask(cases[start : start + _PORTION]))
        with storage_errors(log.parent):
            _write(log, verdicts, "a")
        known += verdicts
    return known


def _read(log: Path, most: int) -> list[Any]:
    if not log.exists():
        return []
    verdicts = []
    with log.open(encoding="utf-8") as lines:
        for line in lines:
            try:
                verdicts.append(json.loads(line)["verdict"])
            except (ValueError, KeyError, TypeError):
                break
    if len(verdicts) > most:
        raise DataError(f"{log} holds {len(verdicts)} verdicts on {most} cases; it belongs to other candidates.")
    return verdicts


def _write(log: Path, verdicts: Sequence[Any], mode: Literal["a", "w"]) -> None:
    with log.open(mode, encoding="utf-8") as file:
        file.writelines(json.dumps({"verdict": verdict}) + "\n" for verdict in verdicts)


def _some(pairs: list[PreferencePair], found: Judged) -> tuple[list[PreferencePair], Judged]:
    if not pairs:
        raise DataError(
            f"The judge prefers nothing: of {found.candidates} candidates, {found.unanswered} gave no answer; of "
            f"{found.cases} cases, {found.unreadable} were unreadable, {found.inconsistent} depended on the order; "
            f"{found.equal} pairs were equal. Sample more or more different candidates, or take another criterion or "
            "judge."
        )
    return pairs, found
