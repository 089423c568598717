"""What many samples come to: every measure with its unit, its interval, and how many samples it rests on."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from trajgym.errors import ConfigError
from trajgym.evaluation.evaluate import Share
from trajgym.evaluation.faults import conclusions, distribution
from trajgym.evaluation.measures import accuracy_at_k, bootstrap, share_interval
from trajgym.evaluation.samples import STRATA, Sample

__all__ = ["HEALTHY_STEPS", "Measure", "SharedTasks", "Spent", "Summary", "summarise"]

HEALTHY_STEPS = (2, 5)
"""Mean steps of a healthy solution: fewer jump to the answer, more are redundant."""


@dataclass(frozen=True)
class SharedTasks(Share):
    """Right ones among several attempts at each of some tasks.

    Args:
        rates: Share of right attempts at each task.
    """

    rates: tuple[float, ...] = ()

    @property
    def interval(self) -> tuple[float, float]:
        """95 % interval over tasks."""
        return share_interval(self.rates)

    @property
    def tasks(self) -> int:
        """How many tasks these are."""
        return len(self.rates)


@dataclass(frozen=True)
class Measure:
    """A number with what it takes to read it.

    Args:
        value: The number, ``None`` when nothing could be measured.
        low: Lower end of its 95 % interval; ``None`` where none is given.
        high: Upper end.
        unit: ``"share"``, ``"tokens"``, ``"seconds"``, …; empty for a bare number.
        count: How many samples it rests on; of tasks, where attempts at one task are taken together.
    """

    value: float | None
    low: float | None
    high: float | None
    unit: str
    count: int


@dataclass(frozen=True)
class Spent:
    """What an evaluation took in all, as far as tokens were counted.

    Args:
        read: Tokens that the model read; an endpoint reads the dialogue anew in each turn.
        written: Tokens that it wrote.
        cost: In ``currency``; ``None`` without a price.
        currency: Of the cost.
        counted: Episodes whose tokens are known.
        episodes: All episodes, those that were remembered from an earlier call among them.
    """

    read: int
    written: int
    cost: float | None
    currency: str
    counted: int
    episodes: int

    def __str__(self) -> str:
        known = f"{self.episodes} episodes" if self.counted == self.episodes else (
            f"{self.counted} of {self.episodes} episodes, of the others it is not known"
        )  # fmt: skip
        cost = "" if self.cost is None else f", {self.currency}{self.cost:,.6g}"
        return f"{self.read:,} tokens read, {self.written:,} written{cost} ({known})"


@dataclass(frozen=True)
class Summary:
    """All measures of one model on one set of tasks.

    Args:
        tasks: How many tasks.
        attempts: How many attempts at each.
        measures: By name; ``docs/evaluation.md`` says what each counts.
        strata: Right answers by difficulty; only strata that occur.
        errors: Count and share of each class of error.
        conclusions: What follows from the last two, in sentences.
        spent: Tokens and price of all episodes together; ``None`` where no tokens were counted.
    """

    tasks: int
    attempts: int
    measures: dict[str, Measure]
    strata: dict[str, Share]
    errors: dict[str, tuple[int, float]]
    conclusions: tuple[str, ...]
    spent: Spent | None = None

    @property
    def accuracy(self) -> float:
        """Lenient accuracy, in [0, 1]."""
        return self.measures["accuracy"].value or 0.0


def summarise(samples: Sequence[Sample], *, k: Iterable[int] = (1,), currency: str = "$", seed: int = 0) -> Summary:
    """Count everything there is to count.

    Args:
        samples: As many attempts at each task, at least one.
        k: For Accuracy@K; values above the number of attempts are refused.
        currency: Of the costs.
        seed: Decides the draws of the bootstrap.

    Raises:
        ConfigError: When there is no sample, tasks have different numbers of attempts, or ``k`` is out of range.
    """
    groups: dict[str, list[Sample]] = {}
    for sample in samples:
        groups.setdefault(sample.task_id, []).append(sample)
    sizes = {len(group) for group in groups.values()}
    if len(sizes) != 1:
        what = f"tasks have {sorted(sizes)} attempts" if sizes else "there is no sample"
        raise ConfigError(f"A summary needs the same number of attempts at each of at least one task; {what}.")
    (attempts,) = sizes

    def share(name: Callable[[Sample], bool]) -> Measure:
        counts = [sum(map(name, group)) for group in groups.values()]
        if attempts == 1:
            found = Share(sum(counts), len(counts))
            return Measure(found.value, *found.interval, "share", len(counts))
        return _mean([count / attempts for count in counts], "share", seed)

    def mean(name: Callable[[Sample], float | int | None], unit: str) -> Measure:
        values = [value for sample in samples if (value := name(sample)) is not None]
        return _mean(values, unit, seed)

    measures = {
        "accuracy": share(lambda s: s.correct),
        "strict_accuracy": share(lambda s: s.strict),
        **{f"accuracy@{n}": _at_k(list(groups.values()), n, seed) for n in k if (n, attempts) != (1, 1)},
        "numeric_error": mean(lambda s: s.numeric_error, ""),
        "format": share(lambda s: s.marked),
        "step_markers": share(lambda s: s.step_markers),
        "steps": mean(lambda s: s.steps, "steps"),
        "turns": mean(lambda s: s.turns, "turns"),
        "length_tokens": mean(lambda s: s.tokens, "tokens"),
        "prompt_tokens": mean(lambda s: s.prompt_tokens, "tokens"),
        "length_characters": mean(lambda s: s.characters, "characters"),
        "time": mean(lambda s: s.seconds, "seconds"),
        "tool_use": share(lambda s: s.calls > 0),
        "tool_errors": _of_all(((s.tool_errors, s.calls) for s in samples), "share of calls"),
        "unparsed": _of_all(((s.unparsed, s.turns) for s in samples), "share of turns"),
        "truncated": share(lambda s: s.truncated),
        "faults": share(lambda s: bool(s.fault)),
        "reward": mean(lambda s: s.reward, ""),
        "coherence": mean(lambda s: s.coherence, ""),
        "cost": mean(lambda s: s.cost, f"{currency} per episode"),
    }
    strata = {name: [group for group in groups.values() if group[0].stratum == name] for name in STRATA}
    shares = {name: _share(found, attempts) for name, found in strata.items() if found}
    errors = distribution(s.error for s in samples if s.error)
    said = conclusions(
        {kind: count for kind, (count, _) in errors.items()},
        {name: (found.value * found.tasks, found.tasks) for name, found in shares.items()},
    )
    sentences = (*said, *_about_steps(measures["steps"]))
    return Summary(len(groups), attempts, measures, shares, errors, sentences, _spent(samples, currency))


def _spent(samples: Sequence[Sample], currency: str) -> Spent | None:
    counted = [(s.prompt_tokens, s.tokens) for s in samples if s.prompt_tokens is not None and s.tokens is not None]
    if not counted:
        return None
    costs = [s.cost for s in samples if s.cost is not None]
    read, written = (sum(column) for column in zip(*counted, strict=True))
    return Spent(read, written, sum(costs) if costs else None, currency, len(counted), len(samples))


def _share(groups: Sequence[Sequence[Sample]], attempts: int) -> Share:
    right = [sum(sample.correct for sample in group) for group in groups]
    if attempts == 1:
        return Share(sum(right), len(groups))
    return SharedTasks(sum(right), attempts * len(groups), tuple(count / attempts for count in right))


def _at_k(groups: Sequence[Sequence[Sample]], k: int, seed: int) -> Measure:
    return _mean([accuracy_at_k(len(group), sum(s.correct for s in group), k) for group in groups], "share", seed)


def _mean(values: Sequence[float], unit: str, seed: int) -> Measure:
    if not values:
        return Measure(None, None, None, unit, 0)
    mean = sum(values) / len(values)
    if unit == "share":
        return Measure(mean, *share_interval(values, seed=seed), unit, len(values))
    if len(values) == 1:
        return Measure(mean, None, None, unit, 1)  # one value says nothing of how far others lie from it
    return Measure(mean, *bootstrap(values, seed=seed), unit, len(values))


def _of_all(pairs: Iterable[tuple[int, int]], unit: str) -> Measure:
    """Return a share of things that come several to a sample; without an interval, since they are not independent."""
    counted = list(pairs)
    total = sum(of for _, of in counted)
    value = sum(part for part, _ in counted) / total if total else None
    return Measure(value, None, None, unit, total)


def _about_steps(steps: Measure) -> list[str]:
    low, high = HEALTHY_STEPS
    if steps.value is None or low <= steps.value <= high:
        return []
    what = "jumps to its answers" if steps.value < low else "takes redundant steps"
    return [f"{steps.value:.1f} steps on average, {low} to {high} are healthy: the model {what}."]
