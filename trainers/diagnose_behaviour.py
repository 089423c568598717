"""Rules on what the policy does: work that is lost, tools, length, form, and rewards that pay something else."""

from __future__ import annotations

import math
from dataclasses import dataclass

from trajgym.rewards.criteria import DOMINANT
from trajgym.trainers.diagnose_changes import (
    LONGER_EPISODES,
    LONGER_TURNS,
    OVERLONG_PENALTY,
    RAISE_KL,
    Move,
    Options,
)
from trajgym.trainers.diagnose_history import LONG, SHORT, History
from trajgym.trainers.diagnose_rule import Evidence, Rule, Severity

__all__ = ["BEHAVIOUR"]

_RISE, _FACTOR, _HIGH = 0.10, 2.0, 0.5  # of a share: above its best, times its best, worth a warning from the start
_SHARE = "reward_variance/"  # metrics: share of the variance of returns that a term makes


@dataclass(frozen=True)
class _LostShare:
    """Watches a share of work that is lost: high from the start, or much more than it was at its best.

    Args:
        metric: The share, in [0, 1].
        what: Ends a sentence that begins with a percentage.
    """

    metric: str
    what: str

    def __call__(self, history: History, options: Options) -> Evidence | None:
        share, best = history.recent(self.metric), history.track(self.metric, SHORT).lowest
        if share is None or best is None:
            return None
        moved = share >= best.value + _RISE and share >= _FACTOR * best.value
        if not moved and share < _HIGH:
            return None
        before = f"; it was {best.value:.0%} up to update {best.update}" if moved else ""
        return Evidence(f"{share:.0%} of {self.what}{before}.", size=share)


def _gain(history: History, name: str) -> tuple[float, float] | None:
    """Return how much a metric has gained since the start, and twice the standard error of that."""
    track = history.track(name, LONG)
    if track.first is None or track.recent is None or history.now(name) is None:
        return None
    return track.recent.value - track.first.value, 2 * math.hypot(track.first.error, track.recent.error)


def _level(history: History, name: str) -> str:
    track = history.track(name, LONG)
    return f"{track.first.value:.3g} to {track.recent.value:.3g}" if track.first and track.recent else "unknown"


def _format_name(history: History) -> str | None:
    """Return the metric that says how often the form is kept."""
    paid = next((name for name in history.names("reward/") if "format" in name), None)
    return paid or ("format_share" if history.now("format_share") is not None else None)


def _format_lost(history: History, options: Options) -> Evidence | None:
    name = _format_name(history)
    right = next((n for n in ("success", "reward/accuracy", "reward") if history.now(n) is not None), None)
    if name is None or right is None:
        return None
    best, recent, gain = history.track(name, LONG).highest, history.track(name, LONG).recent, _gain(history, right)
    if best is None or recent is None or gain is None:
        return None
    least = 0.15 * best.value if best.value > 0 else 0.1
    fallen = best.value - recent.value
    if fallen < max(least, 2 * math.hypot(best.error, recent.error)) or gain[0] <= max(gain[1], 0.02):
        return None
    return Evidence(
        f"{name} has fallen from {best.value:.3g} (up to update {best.update}) to {recent.value:.3g}, while {right} "
        f"went from {_level(history, right)}.",
        size=fallen,
    )


def _reward_hacking(history: History, options: Options) -> Evidence | None:
    reward, success, gain = history.track("reward", LONG), history.track("success", LONG), _gain(history, "reward")
    if gain is None or history.now("success") is None or options.get("reward_schedule"):
        return None
    if not (reward.highest and reward.recent and success.highest and success.recent):
        return None
    at_best = reward.highest.value - reward.recent.value <= 2 * math.hypot(reward.highest.error, reward.recent.error)
    fallen = success.highest.value - success.recent.value
    noise = 4 * math.hypot(success.highest.error, success.recent.error)
    if gain[0] <= max(gain[1], 1e-9) or not at_best or fallen <= max(noise, 0.05):
        return None
    return Evidence(
        f"The reward went from {_level(history, 'reward')} and is at its best, while the share of right answers fell "
        f"from {success.highest.value:.0%} (up to update {success.highest.update}) to {success.recent.value:.0%}.",
        size=fallen,
    )


def _length_hacking(history: History, options: Options) -> Evidence | None:
    tokens, success = history.track("tokens_per_trajectory", LONG), _gain(history, "success")
    if tokens.first is None or tokens.recent is None or success is None or tokens.first.value <= 0:
        return None
    factor = tokens.recent.value / tokens.first.value
    grown = tokens.recent.value - tokens.first.value > 2 * math.hypot(tokens.first.error, tokens.recent.error)
    if factor < 1.5 or not grown or success[0] > max(success[1], 0.02):
        return None
    return Evidence(
        f"Trajectories went from {_level(history, 'tokens_per_trajectory')} tokens ({factor:.1f} times as many), while "
        f"the share of right answers went from {_level(history, 'success')}.",
        size=factor,
    )


def _tools_die(history: History, options: Options) -> Evidence | None:
    best, recent = history.track("calls", SHORT).highest, history.recent("calls")
    if best is None or recent is None or best.value < 0.2 or recent > 0.2 * best.value:
        return None
    success = _gain(history, "success")
    better = success is not None and success[0] > max(success[1], 0.05)
    tail = " More answers are right than at the start, so they may not be needed." if better else ""
    return Evidence(
        f"Calls per trajectory have fallen from {best.value:.2g} (up to update {best.update}) to {recent:.2g}.{tail}",
        severity=Severity.NOTE if better else None,
    )


def _dominance(history: History, options: Options) -> Evidence | None:
    names = history.names(_SHARE)
    if len(names) < 2:
        return None
    share, name = max((history.recent(name) or 0.0, name) for name in names)
    if share <= DOMINANT:
        return None
    term = name.removeprefix(_SHARE)
    others = ", ".join(other.removeprefix(_SHARE) for other in names if other != name)
    return Evidence(f"{share:.0%} of the reward's variance comes from {term!r}; beside it, {others} hardly counts.")


def _lost(
    name: str, metric: str, what: str, symptom: str, cause: str, remedy: str, moves: tuple[Move, ...] = ()
) -> Rule:
    grown = f"{symptom}: half or more, or doubled and 10 points above the best"
    return Rule(name, Severity.WARNING, grown, cause, remedy, _LostShare(metric, what), moves)


BEHAVIOUR: tuple[Rule, ...] = (
    Rule(
        "reward_hacking",
        Severity.SERIOUS,
        "the reward is at its best while the share of right answers has fallen from its own",
        "The policy has found something that pays more than being right.",
        "Find the term that grows (`reward/…` in the metrics), look for the trick with `trajgym audit`, and cap the "
        "term or pay it for right answers only.",
        _reward_hacking,
    ),
    Rule(
        "format_lost",
        Severity.SERIOUS,
        "the form of answers gets worse while accuracy (or the reward) rises",
        "Only the result is paid, so the policy drops the form that people or programs read.",
        "Pay the form as well (a combined reward with a format term), raise `kl_coef`, train for fewer `epochs` or on "
        "more data.",
        _format_lost,
        (RAISE_KL,),
    ),
    Rule(
        "length_hacking",
        Severity.WARNING,
        "trajectories are half as long again as at the start, and no more answers are right",
        "Something pays for length: a term per step or turn, or a loss in which long wrong answers cost less.",
        "Cap what a step pays, add a length term for right answers, set `overlong_penalty`, or keep `normalizer` at "
        "constant.",
        _length_hacking,
        (OVERLONG_PENALTY,),
    ),
    Rule(
        "tools_die",
        Severity.WARNING,
        "calls per trajectory have fallen below a fifth of what they were",
        "Calls cost more than they bring: they fail, they are punished, or guessing pays nearly as well.",
        "Look at the observations in trajectories/ for failing tools; pay successful calls (reward hybrid); choose "
        "tasks that cannot be guessed; raise `kl_coef`.",
        _tools_die,
        (RAISE_KL,),
    ),
    Rule(
        "dominance",
        Severity.WARNING,
        f"one reward term makes more than {DOMINANT:.0%} of the variance of returns",
        "Its weight or its range is much larger than that of the others.",
        "Rescale the terms, or change their weights (`env_kwargs`, `reward_schedule`); leave out what need not count.",
        _dominance,
    ),
    _lost(
        "unreadable_answers",
        "unreadable_share",
        "answers could not be read, and count as wrong",
        "final answers in which no answer is found",
        "The policy does not know in what form to answer.",
        "Look at some with `trajgym grade`; state the answer's form in the prompt, or demonstrate it.",
    ),
    _lost(
        "call_errors",
        "call_error_share",
        "turns held a call that could not be parsed or checked",
        "turns with a call that cannot be parsed or checked",
        "The written form of calls may not be the one that the model was trained on.",
        "Set `protocol` to auto; trajectories/ shows the kinds of error.",
    ),
    _lost(
        "unknown_tools",
        "unknown_tool_share",
        "calls named a tool that does not exist",
        "calls of tools that do not exist",
        "The prompt may not list the tools.",
        "Describe them (instructions in `env_kwargs`), or train on demonstrations first.",
    ),
    _lost(
        "tool_errors",
        "tool_error_share",
        "calls ended in a tool's error",
        "calls that end in a tool's error",
        "Arguments are wrong, or the tool is not up to what it is asked.",
        "Look at the observations in trajectories/; say in the tool's description what it takes.",
    ),
    _lost(
        "cut_turns",
        "cut_turn_share",
        "episodes ended in a turn that ran out of tokens",
        "episodes that end in a turn cut by its budget",
        "Turns are longer than `max_turn_tokens`.",
        "Raise `max_turn_tokens`, or reward brevity with `overlong_penalty`.",
        (LONGER_TURNS, OVERLONG_PENALTY),
    ),
    _lost(
        "truncation",
        "truncated_share",
        "episodes were cut by a budget",
        "episodes cut by any budget",
        "Episodes need more turns or tokens than they are given, or the policy does not come to an end.",
        "Raise max_turns (in `env_kwargs`) or `max_episode_tokens` and `max_turn_tokens`, or reward brevity.",
        (LONGER_EPISODES, LONGER_TURNS),
    ),
)
"""On what trajectories look like; most important first."""
