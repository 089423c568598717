"""A judge's opinion of sampled answers, as preference pairs: asked in portions, written down as it comes.

Each verdict is a line of ``verdicts.jsonl`` and says on which case and by which judge it is; whoever goes on after a
break asks only for those that are missing. A reply that could not be read is written down too, but is no verdict: it is
asked for again.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import os
import random
import threading
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
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
    judge: Judge,
    candidates: Sequence[Trajectory],
    log: Path,
    *,
    least_gap: float,
    most_per_task: int,
    seed: int,
    by: str = "",
) -> tuple[list[PreferencePair], Judged]:
    """Return pairs of answers to the same task that a judge has graded differently.

    Args:
        judge: Grades each answer by itself.
        candidates: Sampled answers, several to each task.
        log: File of the verdicts; those of this judge that stand there already are not asked for.
        least_gap: Grades, 0 … 10, that differ by no more than this are equal.
        most_per_task: Most pairs about one task.
        seed: Decides which, where there are more.
        by: Who answers the judge's questions, such as a model's name. The log's verdicts by another, by another
            criterion or on other answers are not taken for this judge's.

    Raises:
        EnvironmentFault: When the judge is out of order; what it said before is in the log.
        DataError: When no pair comes of it.
    """
    answers = _answers(candidates)
    cases = [(t.task, own_words(t.steps)) for t in answers]
    grades = _asked(cases, judge.grades, log, told=("grades", by, judge.criterion, judge.reference, judge.most))
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
    judge: PairJudge, candidates: Sequence[Trajectory], log: Path, *, most_per_task: int, seed: int, by: str = ""
) -> tuple[list[PreferencePair], Judged]:
    """Return pairs of answers to the same task of which a judge prefers one, in whichever order it sees them.

    Args:
        judge: Compares two answers.
        candidates: Sampled answers, several to each task.
        log: File of the verdicts; those of this judge that stand there already are not asked for.
        most_per_task: Most pairs about one task that are asked about.
        seed: Decides which, where there are more.
        by: As for :func:`judge_grades`.

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
    outcomes = _asked(cases, judge.compare, log, told=("choices", by, judge.criterion, judge.reference, judge.most))
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


def _asked(
    cases: Sequence[tuple[Task, *tuple[str, ...]]],
    ask: Callable[[Sequence[Any]], Sequence[Any]],
    log: Path,
    told: tuple[Any, ...],
) -> list[Any]:
    """Return the verdict on each case, from the log or by asking; ``told`` is what makes a judge another one."""
    keys = [_key(told, case) for case in cases]
    known = {case: verdict for case, verdict in _read(log) if not _unread(verdict)}
    others = len(known.keys() - set(keys))
    if others:
        print(f"  ! {others} verdicts in {log} are another judge's, or on other answers: not used.", flush=True)
    missing = {key: case for key, case in zip(keys, cases, strict=True) if key not in known}
    for start in range(0, len(missing), _PORTION):
        portion = list(missing)[start : start + _PORTION]
        said = dict(zip(portion, ask([missing[key] for key in portion]), strict=True))
        with storage_errors(log.parent):
            _write(log, said)
        known |= said
    return [known[key] for key in keys]


def _key(told: tuple[Any, ...], case: tuple[Task, *tuple[str, ...]]) -> str:
    """Return what tells a case before a judge from all others."""
    task, *texts = case
    whole = json.dumps([*told, task.question, task.answer, *texts])
    return hashlib.blake2b(whole.encode(), digest_size=12).hexdigest()


def _unread(verdict: Any) -> bool:
    """Whether a judge's reply was not in the form asked for, be it a grade or a choice."""
    return verdict is None or verdict == "unreadable"


def _read(log: Path) -> list[tuple[str, Any]]:
    """Return the cases of a log and what was said of them, in its order; a line that a crash cut short is none."""
    found = []
    for line in log.read_text(encoding="utf-8", errors="replace").split("\n") if log.exists() else []:
        try:
            whole = json.loads(line)
            found.append((str(whole["case"]), whole["verdict"]))
        except (ValueError, KeyError, TypeError):
            continue
    return found


def _write(log: Path, said: Mapping[str, Any]) -> None:
    """Append verdicts, behind a line that a crash cut short too."""
    with log.open("a+b") as file:
        if file.seek(0, os.SEEK_END):
            file.seek(-1, os.SEEK_END)
            file.write(b"" if file.read() == b"\n" else b"\n")
        for case, verdict in said.items():
            file.write(json.dumps({"case": case, "verdict": verdict}).encode() + b"\n")


def _some(pairs: list[PreferencePair], found: Judged) -> tuple[list[PreferencePair], Judged]:
    if not pairs:
        raise DataError(
            f"The judge prefers nothing: of {found.candidates} candidates, {found.unanswered} gave no answer; of "
            f"{found.cases} cases, {found.unreadable} were unreadable, {found.inconsistent} depended on the order; "
            f"{found.equal} pairs were equal. Take another criterion or judge and ask again about the same candidates "
            "(trajgym rlaif does so with --resume), or sample more or more different ones in a new run."
        )
    return pairs, found
