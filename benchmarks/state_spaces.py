r"""The same problems as one-turn and as agentic tasks: how large their state spaces are, by going through all of them.

    python benchmarks/state_spaces.py [--level 3] [--problems 5] [--gamma 1.0]

The problems are those of ``ToolChoice-v0`` with six tools, whose answers are the 900 numbers from 100 to 999. As a
one-turn task the policy must say the number at once (T = 1: s_0 is the prompt, the episode ends with its first action).
As an agentic task it may also call the tools. Prompt, answer and reward (``sparse``) are the same. A language model has
as many actions as there are texts; here it has those that matter: each of the 900 answers and, where there are tools,
each of the six calls that make sense for the problem. So the numbers are a lower bound of what a model meets.

States are told apart by what decides everything behind them: turns taken, places open, what the tools have answered.
Two policies have the mean and the variance of their return computed exactly, backwards from the horizon. The *blind*
one draws from all actions alike. The *reader* draws alike from the calls and from the numbers that it has been shown;
as long as there are none, it guesses.
"""

from __future__ import annotations

import argparse
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field
from statistics import fmean

from trajgym.envs.choice import ToolChoiceEnv
from trajgym.envs.choice_office import Office
from trajgym.envs.mdp import MDP, State
from trajgym.types import ExpertTurn, Task, ToolCall

__all__ = ["Space", "explore", "main", "table"]

TOOLS = 6
ANSWERS = 900


@dataclass(frozen=True)
class Space:
    """The state space of one problem.

    Args:
        horizon: Most turns.
        states: Different states in which a turn is to be taken.
        branching: Actions in such a state.
        trajectories: How many sequences of actions there are.
        blind: Mean and variance of the blind policy's return.
        reader: The same of the reader's.
        best: The largest return.
    """

    horizon: int
    states: int
    branching: int
    trajectories: int
    blind: tuple[float, float]
    reader: tuple[float, float]
    best: float


@dataclass(frozen=True)
class _Behind:
    """What lies behind a state: mean and mean square of each policy's return, the best, and action sequences."""

    blind: tuple[float, float] = (0.0, 0.0)
    reader: tuple[float, float] = (0.0, 0.0)
    best: float = 0.0
    count: int = 1


@dataclass
class _Search:
    process: MDP
    calls: Sequence[str]
    answer: str
    known: dict[Hashable, _Behind] = field(default_factory=dict)

    def follow(self, state: State) -> _Behind:
        """Return what lies behind a state, each one looked at once."""
        if state.over:
            return _Behind()
        if _key(state) not in self.known:
            self.known[_key(state)] = self._behind(state)
        return self.known[_key(state)]

    def _behind(self, state: State) -> _Behind:
        shown = {m.content for m in state.messages if m.role == "tool" and m.content.isdigit()}
        knows = self.answer in shown
        guess = (1 / ANSWERS, 1 - 1 / ANSWERS)
        says = (float(knows), float(len(shown) - knows)) if shown else guess
        # All wrong answers lead to the same: one stands for all of them.
        answers = [(f"#### {self.answer}", 1, says[0]), ("#### 1", ANSWERS - 1, says[1])]
        actions = [*((call, 1, 1.0) for call in self.calls), *answers]
        reached = [self.process.transition(state, action) for action, *_ in actions]
        behind = [self.follow(after) for after in reached]
        gamma = self.process.gamma

        def moments(weights: Sequence[float], policy: str) -> tuple[float, float]:
            mean = square = 0.0
            for weight, after, later in zip(weights, reached, behind, strict=True):
                m, s = getattr(later, policy)
                r = after.reward
                mean += weight * (r + gamma * m)
                square += weight * (r * r + 2 * r * gamma * m + gamma * gamma * s)
            return mean / sum(weights), square / sum(weights)

        return _Behind(
            moments([many for _, many, _ in actions], "blind"),
            moments([weight for *_, weight in actions], "reader"),
            max(after.reward + gamma * later.best for after, later in zip(reached, behind, strict=True)),
            sum(many * later.count for (_, many, _), later in zip(actions, behind, strict=True)),
        )


def explore(task: Task, *, agentic: bool, max_turns: int, gamma: float = 1.0) -> Space:
    """Go through all states of a problem.

    Args:
        task: One of ``ToolChoice-v0``.
        agentic: Whether tools may be called.
        max_turns: Most turns where they may; without tools there is one.
        gamma: Discount per turn.
    """
    office, item = Office.of(task), task.metadata["item"]
    names = list(ToolChoiceEnv(tools_count=TOOLS).tools)
    code = office.number("archive_code", item)
    about = {"archive_box": {"code": code}, "enter_archive": {}}
    calls = [ToolCall(name, about.get(name, {"item": item})) for name in names]
    options = {"max_turns": max_turns} if agentic else {"tools": (), "max_turns": 1}
    env = ToolChoiceEnv(tools_count=TOOLS, tasks=[task], reward="sparse", **options)
    written = [env.protocol.render_turn(ExpertTurn(calls=(call,))) for call in calls] if agentic else []
    search = _Search(MDP.of(env, gamma), written, task.answer)
    found = search.follow(search.process.begin(task=task))
    blind, reader = ((mean, max(0.0, square - mean * mean)) for mean, square in (found.blind, found.reader))
    return Space(env.max_turns, len(search.known), len(written) + ANSWERS, found.count, blind, reader, found.best)


def _key(state: State) -> Hashable:
    """Return what decides everything behind a state that is not over: turns taken, and what has been answered."""
    return len(state.env._steps), frozenset(m.content for m in state.messages if m.role == "tool")


def table(level: int, problems: int, gamma: float) -> list[str]:
    """Return the rows of a Markdown table: means over some problems of a level."""
    source = ToolChoiceEnv(tools_count=TOOLS, difficulty=level).tasks
    tasks = [source.get(f"choice/train/{TOOLS}/{level}/{seed}") for seed in range(problems)]
    rows = [
        "| task | T | states | actions in a state | action sequences | blind: E[R] | Var[R] | reader: E[R] | Var[R] "
        "| best |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    for name, agentic, turns in [("one turn", False, 1), *(("agentic", True, t) for t in (2, 3, 4, 5))]:
        spaces = [explore(task, agentic=agentic, max_turns=turns, gamma=gamma) for task in tasks]
        counts = [
            fmean(values) for values in zip(*((s.states, s.branching, s.trajectories) for s in spaces), strict=True)
        ]
        values = [fmean(values) for values in zip(*((*s.blind, *s.reader, s.best) for s in spaces), strict=True)]
        cells = [name, str(turns), *(f"{count:,.0f}" for count in counts), *(f"{value:.3g}" for value in values)]
        rows.append(f"| {' | '.join(cells)} |")
    return rows


def main(args: Sequence[str] | None = None) -> int:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--level", type=int, default=3, choices=(1, 2, 3), help="calls that a problem needs (3)")
    parser.add_argument("--problems", type=int, default=5, help="problems to average over (5)")
    parser.add_argument("--gamma", type=float, default=1.0, help="discount per turn (1)")
    options = parser.parse_args(args)
    print("\n".join(table(options.level, options.problems, options.gamma)))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
