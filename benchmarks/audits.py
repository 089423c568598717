r"""Every registered environment with every registered reward, audited: a Markdown table of what pays and what does not.

    python benchmarks/audits.py [--tasks 20] [--seeds 0,1] [--env ID ...] [--reward NAME ...]

The GSM8K environments need their data (``$TRAJGYM_DATA``), those with an interpreter a sandbox; what cannot be
played is listed with its reason. Exit status 1 when a pair fails that is not known to be unsafe by its definition.
"""

from __future__ import annotations

import argparse
import functools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from trajgym.envs.make import ids, make
from trajgym.errors import TrajgymError
from trajgym.evaluation.audit import Audit, Finding, audit
from trajgym.rewards import REWARDS

__all__ = ["UNSAFE", "Pair", "audited", "line", "main"]

UNSAFE = {"partial_credit": "unsafe by definition: it pays near misses"}
"""Rewards that may fail, and why."""


@dataclass(frozen=True)
class Pair:
    """An environment, a reward, and what came of their audits.

    Args:
        env: The environment's id.
        reward: The reward's name.
        audits: One for each seed.
        problem: Why it could not be audited; empty when it was.
    """

    env: str
    reward: str
    audits: tuple[Audit, ...] = ()
    problem: str = ""

    @property
    def findings(self) -> dict[str, Finding]:
        """What pays, findings before leaks, an exploit once."""
        every = [f for one in self.audits for f in one.findings] + [f for one in self.audits for f in one.leaks]
        return {finding.exploit: finding for finding in reversed(every)}

    @property
    def passed(self) -> bool:
        """Whether no audit found anything."""
        return bool(self.audits) and all(one.passed for one in self.audits)

    @property
    def expected(self) -> bool:
        """Whether it passed, or fails by definition, or cannot be played here."""
        return self.passed or bool(self.problem) or self.reward in UNSAFE

    @property
    def cells(self) -> tuple[str, str, str, str, str]:
        """The row of the table."""
        if self.problem:
            return self.env, self.reward, "not played", self.problem, ""
        verdict = "pass" if self.passed else "**fail**"
        if not self.passed and self.expected:
            verdict += f", {UNSAFE[self.reward]}"
        found = self.findings.values()
        names = ", ".join(f"`{f.exploit}` ({f.verdict.rule.replace('_', ' ')})" for f in found)
        terms = ", ".join(dict.fromkeys(f"`{f.verdict.term}`" for f in found if f.verdict.term))
        return self.env, self.reward, verdict, names or "–", terms or "–"


def audited(
    envs: Sequence[str], rewards: Sequence[str], *, tasks: int = 20, seeds: Sequence[int] = (0,), gamma: float = 1.0
) -> Iterator[Pair]:
    """Audit each environment with each reward.

    Args:
        envs: Ids.
        rewards: Names.
        tasks: Tasks to play in each audit.
        seeds: Of the audits.
        gamma: Discount per turn.
    """
    for env in envs:
        for reward in rewards:
            make_env = functools.partial(make, env, reward=reward)
            try:
                make_env().close()
                found = tuple(audit(make_env, tasks=tasks, seed=seed, gamma=gamma) for seed in seeds)
            except (TrajgymError, OSError) as error:
                yield Pair(env, reward, problem=f"{type(error).__name__}: {str(error).splitlines()[0]:.80}")
            else:
                yield Pair(env, reward, found)


def line(cells: Sequence[str]) -> str:
    """Return a row of a Markdown table."""
    return f"| {' | '.join(cells)} |"


def main(args: Sequence[str] | None = None) -> int:
    """Print the table; 1 when a pair fails that should not."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tasks", type=int, default=20, metavar="N", help="tasks in each audit (20)")
    parser.add_argument("--seeds", default="0", metavar="A,B", help="seeds of the audits (0)")
    parser.add_argument("--gamma", type=float, default=1.0, help="discount per turn (1)")
    parser.add_argument("--env", nargs="*", default=ids(), metavar="ID", help="environments (all)")
    parser.add_argument("--reward", nargs="*", default=list(REWARDS), metavar="NAME", help="rewards (all)")
    options = parser.parse_args(args)
    seeds = [int(seed) for seed in options.seeds.split(",")]
    print(
        line(("environment", "reward", "audit", "what pays", "by the term")), line(("---",) * 5), sep="\n", flush=True
    )
    pairs = []
    for pair in audited(options.env, options.reward, tasks=options.tasks, seeds=seeds, gamma=options.gamma):
        print(line(pair.cells), flush=True)
        pairs.append(pair)
    wrong = [pair for pair in pairs if not pair.expected]
    print(f"\n{sum(pair.passed for pair in pairs)} of {len(pairs)} pass; {len(wrong)} fail that should not.")
    return 1 if wrong else 0


if __name__ == "__main__":
    raise SystemExit(main())
