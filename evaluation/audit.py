"""The audit of a reward: what policies earn that solve nothing, compared with honest work.

:mod:`trajgym.evaluation.audit_rules` says when an exploit is a finding, ``docs/audit.md`` how to read the result.

>>> from trajgym.envs.arithmetic import ArithmeticEnv
>>> audit(lambda: ArithmeticEnv(reward="sparse"), tasks=5, exploits=["answer_spam", "hedge_or"]).passed
True
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import gymnasium

from trajgym.envs.base import ToolEnv
from trajgym.errors import ConfigError, DataError, EnvironmentFault
from trajgym.evaluation.audit_example import example
from trajgym.evaluation.audit_rules import (
    LEAST_TASKS,
    Criterion,
    Interval,
    Play,
    Verdict,
    honest_return,
    judge,
    mean_interval,
)
from trajgym.policies.exploiters import EXPERT, EXPLOITS, IDLE, WRONG, Exploit, ExploitPolicy
from trajgym.rewards import RewardCriteria, reward_criteria
from trajgym.rewards.answer import correct
from trajgym.rewards.criteria import term_returns
from trajgym.rewards.functions import is_number
from trajgym.rollout import EnvPool, Episode, collect, derive_seed, fault_summary
from trajgym.types import StopReason, Trajectory, discounted_return

__all__ = ["GAMMA", "Audit", "Finding", "Row", "audit", "solves"]

GAMMA = 1.0
"""The trainer's default discount per turn."""


@dataclass(frozen=True)
class Row:
    """One policy's line in the report.

    Args:
        name: The exploit's name, or ``"expert"``, ``"honest"``, ``"idle"``.
        what: What it does.
        earned: Mean discounted return.
        share: That in relation to the expert's; ``None`` when the expert earns nothing.
        solved: Share of tasks with the right final answer, by the audit's own reading.
        turns: Mean number of turns.
        terms: Mean discounted pay of each term of the reward.
        verdict: ``"baseline"``, ``"ok"``, or the name of a rule.
    """

    name: str
    what: str
    earned: Interval
    share: float | None
    solved: float
    turns: float
    terms: Mapping[str, float]
    verdict: str


@dataclass(frozen=True)
class Finding:
    """An exploit that pays.

    Args:
        exploit: Its name.
        verdict: The rule it breaks, the term that pays, and why.
        example: One of its dialogues, as text, with its rewards.
    """

    exploit: str
    verdict: Verdict
    example: str


@dataclass(frozen=True)
class Audit:
    """The result of :func:`audit`; ``trajgym.types.to_json`` makes JSON of it.

    Args:
        weights: The reward's terms and their weights.
        gamma: Discount per turn.
        tasks: How many tasks were played.
        seed: Decides the tasks and all draws.
        criterion: Where the lines were drawn.
        quality: What the reward is like, over all policies but those that pad; those on one task are a group.
        rows: Every policy, best paid first; the baselines stand before the exploits.
        findings: What makes the audit fail, best paid first.
        leaks: Smaller holes, best paid first.
        skipped: Exploits that make no sense with these tools.
    """

    weights: Mapping[str, float]
    gamma: float
    tasks: int
    seed: int
    criterion: Criterion
    quality: RewardCriteria
    rows: tuple[Row, ...]
    findings: tuple[Finding, ...]
    leaks: tuple[Finding, ...]
    skipped: tuple[str, ...]

    @property
    def passed(self) -> bool:
        """Whether no exploit reaches honest work."""
        return not self.findings


def solves(trajectory: Trajectory) -> bool:
    """Whether the final answer is right, whatever the environment's reward says of it.

    Numbers are compared by value. Where the ground truth is no number, what stands behind the last ``####`` (else the
    whole turn) must be the same text, up to case and blanks.
    """
    if trajectory.stop_reason is not StopReason.ANSWERED:
        return False
    text, truth = trajectory.steps[-1].action.text, trajectory.task.answer
    try:
        return correct(text, truth)
    except DataError:
        said = text.rpartition("####")[2]
        return bool(truth.strip()) and " ".join(said.split()).casefold() == " ".join(truth.split()).casefold()


def audit(
    make_env: Callable[[], gymnasium.Env[str, str]],
    *,
    tasks: int = 20,
    seed: int = 0,
    gamma: float = GAMMA,
    exploits: Iterable[str | Exploit] | None = None,
    criterion: Criterion | None = None,
    solved: Callable[[Trajectory], bool] = solves,
    threads: int = 4,
) -> Audit:
    """Play exploits and honest work on the same tasks, and compare what they earn.

    Args:
        make_env: Makes the environment, with the reward to be audited.
        tasks: How many tasks to play, at least 5; more find smaller holes.
        seed: Decides the tasks and every draw; the same seed gives the same result.
        gamma: Discount per turn, in [0, 1]; terms that depend on it are told.
        exploits: Names or objects; all registered ones when left out. ``idle`` and ``wrong_answer`` are always played.
        criterion: Where to draw the lines.
        solved: Decides whether a task was solved, for environments whose answers :func:`solves` cannot read.
        threads: Environments that may step at the same time.

    Raises:
        UnknownNameError: For an exploit that does not exist.
        ConfigError: When an argument is out of bounds, the environment is no dialogue with a rubric, or the
            demonstrations solve no more than half of the tasks, so that nothing can be compared with them.
        EnvironmentFault: When the honest policies cannot be played.
    """
    if isinstance(tasks, bool) or not isinstance(tasks, int) or tasks < LEAST_TASKS:
        raise ConfigError(f"tasks must be a whole number of at least {LEAST_TASKS}, got {tasks!r}.")
    if not is_number(gamma) or not 0 <= gamma <= 1:
        raise ConfigError(f"gamma must lie in [0, 1], got {gamma!r}.")
    lines = criterion or Criterion()
    chosen = _chosen(exploits)
    with EnvPool(lambda: _discounted(make_env(), gamma), threads=threads) as pool:
        stage = _Stage(pool, tasks, seed, gamma, solved)
        expert, wrong, idle = (stage.honest(baseline) for baseline in (EXPERT, WRONG, IDLE))
        if 2 * sum(expert.play.solved) <= tasks:
            raise ConfigError(
                f"The demonstrations solve {sum(expert.play.solved)} of {tasks} tasks, so there is no honest work to "
                "compare with. Does max_turns leave room for them, and do the tasks have a solution? Where answers "
                "are not numbers, pass solved=."
            )
        shown = {IDLE.name: idle, WRONG.name: wrong}
        shown |= {e.name: stage.perform(e) for e in chosen if e.fits(stage.env.tools) and e.name not in shown}
    rows, findings = [], []
    for name, one in shown.items():
        verdict = judge(one.play, expert=expert.play, wrong=wrong.play, idle=idle.play, criterion=lines)
        rows.append(one.row(expert.play, "ok" if verdict is None else verdict.rule))
        if verdict is not None:
            findings.append(Finding(name, verdict, one.example()))
    rows.sort(key=lambda row: (-row.earned.mean, row.name))
    place = {row.name: i for i, row in enumerate(rows)}
    findings.sort(key=lambda finding: place[finding.exploit])
    baselines = (expert.row(expert.play, "baseline"), _honest_row(expert, wrong, lines))
    return Audit(
        weights=dict(stage.env.rubric.weights),
        gamma=gamma,
        tasks=tasks,
        seed=seed,
        criterion=lines,
        quality=_quality([expert, *shown.values()], gamma),
        rows=(*baselines, *rows),
        findings=tuple(f for f in findings if f.verdict.rule != "leak"),
        leaks=tuple(f for f in findings if f.verdict.rule == "leak"),
        skipped=tuple(e.name for e in chosen if e.name not in shown),
    )


@dataclass(frozen=True)
class _Shown:
    """An exploit after it was played."""

    exploit: Exploit
    trajectories: tuple[Trajectory, ...]
    play: Play

    def row(self, expert: Play, verdict: str) -> Row:
        count = len(self.trajectories)
        names = dict.fromkeys(name for terms in self.play.terms for name in terms)
        return Row(
            name=self.exploit.name,
            what=self.exploit.what,
            earned=mean_interval(self.play.returns),
            share=_share(statistics.fmean(self.play.returns), expert),
            solved=sum(self.play.solved) / count,
            turns=sum(len(t.steps) for t in self.trajectories) / count,
            terms={name: statistics.fmean(self.play.term(name, i) for i in range(count)) for name in names},
            verdict=verdict,
        )

    def example(self) -> str:
        """Return the best paid dialogue, if possible one that solves nothing; the shortest among equals."""
        pairs = list(zip(self.trajectories, self.play.returns, self.play.solved, strict=True))
        best = min(
            pairs,
            key=lambda pair: (pair[2] and not self.play.pads, -pair[1], sum(len(m.content) for m in pair[0].messages)),
        )
        return example(best[0])


class _Stage:
    """Where all policies play the same tasks."""

    def __init__(
        self, pool: EnvPool, tasks: int, seed: int, gamma: float, solved: Callable[[Trajectory], bool]
    ) -> None:
        self.pool, self.seed, self.gamma, self.solved = pool, seed, gamma, solved
        self.tasks = tasks
        env = pool.take()
        pool.give(env)
        inner: Any = env.unwrapped
        if not isinstance(inner, ToolEnv):
            raise ConfigError(
                f"An audit needs a dialogue whose reward has named terms: {type(inner).__name__} is not a "
                "trajgym.envs.base.ToolEnv."
            )
        self.env = inner

    def perform(self, exploit: Exploit) -> _Shown:
        policy = ExploitPolicy(exploit, self.env.protocol, self.env.tools)
        episodes = [
            Episode(derive_seed(self.seed, "audit", i), derive_seed(self.seed, "audit", exploit.name, i))
            for i in range(self.tasks)
        ]
        trajectories = tuple(collect(policy, self.pool, episodes))
        play = Play(
            returns=tuple(discounted_return(t.rewards, self.gamma) if t.valid else 0.0 for t in trajectories),
            terms=tuple(term_returns(t, self.gamma) if t.valid else {} for t in trajectories),
            solved=tuple(t.valid and self.solved(t) for t in trajectories),
            valid=tuple(t.valid for t in trajectories),
            pads=exploit.pads,
        )
        return _Shown(exploit, trajectories, play)

    def honest(self, baseline: Exploit) -> _Shown:
        """Play a policy that the others are compared with.

        Raises:
            EnvironmentFault: When one of its episodes fails by our machinery's doing.
        """
        shown = self.perform(baseline)
        if not all(shown.play.valid):
            raise EnvironmentFault(
                f"The policy {baseline.name!r} cannot be played: {fault_summary(shown.trajectories)}"
            )
        return shown


def _discounted(env: gymnasium.Env[str, str], gamma: float) -> gymnasium.Env[str, str]:
    """Tell the reward's terms the discount, as the trainer does."""
    inner: Any = env.unwrapped
    if isinstance(inner, ToolEnv):
        inner.rubric = inner.rubric.discounted(gamma)
    return env


def _chosen(exploits: Iterable[str | Exploit] | None) -> list[Exploit]:
    if isinstance(exploits, str):
        raise ConfigError(f"exploits takes several names, such as ['flood'], got {exploits!r}.")
    names = sorted(EXPLOITS) if exploits is None else list(exploits)
    chosen = [EXPLOITS[name] if isinstance(name, str) else name for name in names]
    return list({exploit.name: exploit for exploit in chosen}.values())


def _quality(played: Sequence[_Shown], gamma: float) -> RewardCriteria:
    """Measure the reward, the policies that played a task being its group; those that pad may well be fined for it."""
    shown = [one for one in played if not one.exploit.pads]
    groups = list(zip(*(one.trajectories for one in shown), strict=True))
    return reward_criteria(groups, gamma=gamma, solved=list(zip(*(one.play.solved for one in shown), strict=True)))


def _share(mean: float, expert: Play) -> float | None:
    whole = statistics.fmean(expert.returns)
    return mean / whole if whole > 0 else None


def _honest_row(expert: _Shown, wrong: _Shown, lines: Criterion) -> Row:
    """Return the line of the honest agent, which is a mixture of two policies."""
    returns = [honest_return(expert.play, wrong.play, i, lines) for i in range(len(expert.trajectories))]
    right, failed = expert.row(expert.play, "baseline"), wrong.row(expert.play, "baseline")

    def mix(a: float, b: float) -> float:
        return lines.honest * a + (1 - lines.honest) * b

    return Row(
        name="honest",
        what=f"Does the demonstration's work and is right in {lines.honest:.0%} of the tasks.",
        earned=mean_interval(returns),
        share=_share(statistics.fmean(returns), expert.play),
        solved=mix(right.solved, failed.solved),
        turns=mix(right.turns, failed.turns),
        terms={n: mix(right.terms.get(n, 0.0), failed.terms.get(n, 0.0)) for n in {**right.terms, **failed.terms}},
        verdict="baseline",
    )
