"""Where preference pairs come from: trajectories of one task, of which one earned, or was given, more than another.

>>> from trajgym.types import Action, Observation, Step
>>> asked, prompt = Task("t", "48 + 24?", "72"), (Message("user", "48 + 24?"),)
>>> def said(text):
...     return Trajectory(asked, prompt, (Step(Action(text), Observation()),))
>>> made = pairs_from_scores([said("#### 72"), said("#### 73")], [1.0, 0.0])
>>> [(pair.words("chosen"), pair.words("rejected"), pair.margin) for pair in made]
[('#### 72', '#### 73', 1.0)]
"""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from trajgym.errors import DataError
from trajgym.evaluation.evaluate import succeeded
from trajgym.evaluation.records import read_trajectories
from trajgym.rollout import derive_seed
from trajgym.trainers.preferences import PreferencePair, read_pairs
from trajgym.types import Message, Task, Trajectory

__all__ = [
    "by_task",
    "is_whole",
    "load_pairs",
    "load_trajectories",
    "pair_of",
    "pairs_from_rewards",
    "pairs_from_scores",
]

MOST_PER_TASK = 8


def load_pairs(path: str | Path, *, most_per_task: int = MOST_PER_TASK, seed: int = 0) -> list[PreferencePair]:
    """Return the pairs of a file, or right answers against wrong ones from the trajectories of a run folder.

    Args:
        path: A file of pairs, a file of trajectories, or a run folder.
        most_per_task: Most pairs about one task, where they are made from trajectories.
        seed: Decides which.

    Raises:
        DataError: When there is nothing of the kind, or all trajectories of every task are right, or all are wrong.
    """
    place = Path(path).expanduser()
    if place.is_dir() or place.suffix == ".parquet" or _holds_trajectories(place):
        return pairs_from_rewards(load_trajectories(place), most_per_task=most_per_task, seed=seed)
    return read_pairs(place)


def load_trajectories(path: str | Path) -> list[Trajectory]:
    """Return the trajectories of a file, or of the ``trajectories/`` of a run folder.

    Raises:
        DataError: When there are none.
    """
    place = Path(path).expanduser()
    folder = place / "trajectories" if (place / "trajectories").is_dir() else place
    files = sorted(folder.glob("*.jsonl")) if place.is_dir() else [place]
    found = [t for file in files for t in read_trajectories(file)]
    if not found:
        raise DataError(f"{place} holds no trajectories (JSON lines, as runs write them into trajectories/).")
    return found


def pairs_from_rewards(
    trajectories: Sequence[Trajectory],
    *,
    score: Callable[[Trajectory], float] = succeeded,
    least_gap: float = 0.0,
    most_per_task: int = MOST_PER_TASK,
    seed: int = 0,
) -> list[PreferencePair]:
    """Return pairs of a better and a worse trajectory of the same task, by what the environment paid.

    Args:
        trajectories: Of any environment; those with a fault, and those of which a turn was cut, are left out.
        score: What a trajectory is worth: whether its answer was right; or e.g. ``lambda t: t.total_reward``.
        least_gap: See :func:`pairs_from_scores`.
        most_per_task: Likewise.
        seed: Likewise.

    Raises:
        DataError: When no two trajectories of a task differ in what they are worth.
    """
    valid = [t for t in trajectories if is_whole(t)]
    scores = [float(score(t)) for t in valid]
    pairs = pairs_from_scores(
        valid, scores, least_gap=least_gap, most_per_task=most_per_task, seed=seed, origin="reward"
    )
    if not pairs:
        only = ", ".join(_called(value, score is succeeded) for value in sorted(set(scores))[:5])
        raise DataError(
            f"{len(valid)} whole trajectories of {len(by_task(valid))} tasks make no pair: within each task, all are "
            f"worth the same ({only or 'there is none'}). Play several trajectories of each task (num_generations), at "
            "tasks that are neither too easy nor too hard for the policy."
        )
    return pairs


def pairs_from_scores(
    trajectories: Sequence[Trajectory],
    scores: Sequence[float | None],
    *,
    least_gap: float = 0.0,
    most_per_task: int = MOST_PER_TASK,
    seed: int = 0,
    origin: str = "scores",
) -> list[PreferencePair]:
    """Return pairs of trajectories of the same task whose scores differ.

    Args:
        trajectories: Answers.
        scores: What each is worth; ``None`` where nobody knows.
        least_gap: Scores that differ by no more than this are a tie, and no pair.
        most_per_task: Most pairs about one task.
        seed: Decides which, where there are more.
        origin: Noted in the pairs.

    Raises:
        DataError: When a score is not a finite number.
    """
    for trajectory, value in zip(trajectories, scores, strict=True):
        if value is not None and not math.isfinite(value):
            raise DataError(f"The score of an answer to task {trajectory.task.id!r} is {value}; it must be finite.")
    known = [(t, s) for t, s in zip(trajectories, scores, strict=True) if s is not None]
    out = []
    for number, group in enumerate(by_task([t for t, _ in known])):
        scored = [known[i] for i in group]
        found = [
            pair_of(*((a, b) if x > y else (b, a)), margin=abs(x - y), origin=origin)
            for (a, x), (b, y) in itertools.combinations(scored, 2)
            if abs(x - y) > least_gap
        ]
        if len(found) > most_per_task:
            found = random.Random(derive_seed(seed, "pairs", number)).sample(found, most_per_task)
        out += found
    return out


def is_whole(trajectory: Trajectory) -> bool:
    """Whether a trajectory can be compared: nothing failed, and the policy has ended all of its turns itself."""
    return trajectory.valid and all(step.action.finish == "stop" for step in trajectory.steps)


def pair_of(better: Trajectory, worse: Trajectory, *, margin: float | None = None, origin: str = "") -> PreferencePair:
    """Return two trajectories of one task as a pair."""
    return PreferencePair(
        better.prompt, _answer(better), _answer(worse), margin=margin, task_id=better.task.id, origin=origin
    )


def by_task(trajectories: Iterable[Trajectory]) -> list[list[int]]:
    """Return the indices of the trajectories that answer the same prompt, in the order of their first."""
    groups: dict[tuple[str, tuple[Message, ...]], list[int]] = {}
    for index, trajectory in enumerate(trajectories):
        groups.setdefault((_name(trajectory.task), trajectory.prompt), []).append(index)
    return list(groups.values())


def _called(value: float, is_success: bool) -> str:
    return f"worth {value:g}" if not is_success else "right" if value else "wrong"


def _name(task: Task) -> str:
    return f"{task.id}\x1f{task.question}"


def _answer(trajectory: Trajectory) -> tuple[Message, ...]:
    """Return everything behind the prompt, up to the last thing that the policy said."""
    messages = trajectory.messages[len(trajectory.prompt) :]
    last = max((i for i, m in enumerate(messages) if m.role == "assistant"), default=-1)
    return messages[: last + 1]


def _holds_trajectories(file: Path) -> bool:
    try:
        with file.open(encoding="utf-8") as lines:
            return '"trajectory": ' in lines.readline()
    except (OSError, UnicodeDecodeError):
        return False
