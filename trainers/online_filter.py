"""Which logged trajectories are fit to learn from, and why the others are not."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from trajgym.errors import DataError, TemplateError
from trajgym.evaluation.evaluate import succeeded
from trajgym.evaluation.records import read_trajectories
from trajgym.policies.render import Renderer
from trajgym.trainers.preference_sources import by_task, load_trajectories
from trajgym.types import Trajectory

__all__ = ["Dropped", "Logged", "Sifted", "read_logs", "sift", "sift_for_imitation", "sift_for_policy"]

FOREIGN = "tokens of another template or tokenizer"
STALE = "too far from the present policy"
SILENT = "no log-probabilities"


@dataclass(frozen=True)
class Logged:
    """A trajectory and where it stands.

    Args:
        trajectory: What was logged.
        source: The log.
        number: Its place there, from 0.
    """

    trajectory: Trajectory
    source: str
    number: int


@dataclass(frozen=True)
class Dropped:
    """What was left out.

    Args:
        logged: The trajectory.
        reason: Why.
    """

    logged: Logged
    reason: str


@dataclass
class Sifted:
    """A log after some filters.

    Args:
        used: What is left, in its order.
        dropped: What is not.
    """

    used: list[Logged]
    dropped: list[Dropped] = field(default_factory=list)

    def drop(self, reason: str, unfit: Callable[[Logged], bool]) -> None:
        """Leave out what is unfit; each trajectory is looked at once, in its order."""
        kept = []
        for logged in self.used:
            if unfit(logged):
                self.dropped.append(Dropped(logged, reason))
            else:
                kept.append(logged)
        self.used = kept

    @property
    def reasons(self) -> dict[str, int]:
        """How many were left out, by reason."""
        return dict(Counter(item.reason for item in self.dropped))


def read_logs(paths: Iterable[Path]) -> list[Logged]:
    """Read all trajectories of some logs.

    Args:
        paths: Run folders, or files of trajectories.

    Raises:
        DataError: When one cannot be read or holds none.
    """
    out = []
    for path in paths:
        place = path.expanduser()
        found = read_trajectories(place) if place.suffix == ".parquet" else load_trajectories(place)
        if not found:
            raise DataError(f"{place} holds no trajectories.")
        out += [Logged(trajectory, str(path), number) for number, trajectory in enumerate(found)]
    return out


def sift(logged: Sequence[Logged]) -> Sifted:
    """Leave out what nobody should learn from: faults, episodes without a grade, and those that a budget cut."""
    found = Sifted(list(logged))
    found.drop("a fault of the machinery", lambda item: not item.trajectory.valid)
    found.drop("not graded", lambda item: not any(step.reward_terms for step in item.trajectory.steps))
    found.drop("cut by a budget", lambda item: _cut(item.trajectory))
    return found


def sift_for_imitation(found: Sifted, min_reward: float | None) -> None:
    """Keep right answers, each wording once.

    Args:
        found: From :func:`sift`; changed in place.
        min_reward: Least total reward, if any.

    Raises:
        DataError: When nothing is left.
    """
    found.drop("wrong answer", lambda item: not succeeded(item.trajectory))
    if min_reward is not None:
        found.drop(f"reward below {min_reward:g}", lambda item: item.trajectory.total_reward < min_reward)
    seen: set[Any] = set()
    found.drop("duplicate", _seen_before(seen, lambda t: (t.prompt, tuple(step.action.text for step in t.steps))))
    _require_some(found, "There is no right answer to imitate.")


def sift_for_policy(
    found: Sifted, renderer: Renderer, gaps: Callable[[Sequence[Trajectory]], list[float]], max_gap: float
) -> None:
    """Keep groups of trajectories whose log-probabilities the present policy can be compared with.

    Two samples of a group may well say the same; only one and the same episode, logged twice, is a duplicate.

    Args:
        found: From :func:`sift`; changed in place.
        renderer: Of the present policy.
        gaps: Mean |log π − log π_log| per token (nats) of each trajectory.
        max_gap: Most of it.

    Raises:
        TemplateError: When no trajectory is in the tokens of the present policy.
        DataError: When nothing else is left.
    """
    seen: set[Any] = set()
    found.drop("duplicate", _seen_before(seen, lambda t: (t.task.id, t.prompt, t.seed, t.rows)))
    found.drop(SILENT, lambda item: not _has_logprobs(item.trajectory))
    _require_some(
        found, "Without log-probabilities nobody knows how old the log is: take mode imitate, which needs none."
    )
    before = len(found.used)
    found.drop(FOREIGN, lambda item: not _same_tokens(item.trajectory, renderer))
    if before and not found.used:
        raise TemplateError(
            f"None of {before} logged trajectories is in the tokens that the present model would have written: the log "
            "is of another tokenizer or chat template. Give the model it was played with, or take mode imitate."
        )
    distance = dict(zip(map(id, found.used), gaps([item.trajectory for item in found.used]), strict=True))
    found.drop(STALE, lambda item: not distance[id(item)] <= max_gap)
    nearest = min(distance.values())
    _require_some(
        found,
        f"The nearest is {nearest:.2f} nats per token away, and max_gap is {max_gap:g}: the log is of another "
        "model, or of one that has moved on. Raise max_gap, or take mode imitate.",
    )
    alone = {id(found.used[group[0]]) for group in by_task(_trajectories(found)) if len(group) < 2}
    found.drop("no other of its task to compare with", lambda item: id(item) in alone)
    _require_some(found, "Every task was played once; log several trajectories of each, or take mode imitate.")


def _trajectories(found: Sifted) -> list[Trajectory]:
    return [item.trajectory for item in found.used]


def _seen_before(seen: set[Any], key: Callable[[Trajectory], Any]) -> Callable[[Logged], bool]:
    def check(item: Logged) -> bool:
        mark = key(item.trajectory)
        known = mark in seen
        seen.add(mark)
        return known

    return check


def _cut(trajectory: Trajectory) -> bool:
    return not trajectory.stop_reason.terminates or any(step.action.finish != "stop" for step in trajectory.steps)


def _has_logprobs(trajectory: Trajectory) -> bool:
    """Whether sampled tokens come with numbers; in a log without any all are 0, and no sampler is as sure as that."""
    sampled = [p for row in trajectory.rows for p, mine in zip(row.logprobs, row.mask, strict=True) if mine]
    return any(p != 0.0 for p in sampled)


def _same_tokens(trajectory: Trajectory, renderer: Renderer) -> bool:
    """Whether the prompt and the sampled turns are what this renderer makes of the same dialogue."""
    first = trajectory.rows[0]
    begin = first.mask.index(1) if 1 in first.mask else len(first.mask)
    try:
        same = renderer.prompt(trajectory.prompt) == list(first.ids[:begin])
        return same and all(renderer.decode(s.action.token_ids) == s.action.text for s in trajectory.steps)
    except (TemplateError, IndexError, OverflowError, TypeError, ValueError):  # ids that this tokenizer does not have
        return False


def _require_some(found: Sifted, otherwise: str) -> None:
    if not found.used:
        reasons = ", ".join(f"{count} {reason}" for reason, count in found.reasons.items())
        raise DataError(f"Nothing of the log is left to learn from ({reasons}). {otherwise}")
