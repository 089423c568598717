"""Small decision processes, and what an estimator makes of them: exactly, by going through every possible group.

A process has a few states and two actions; the policy has one parameter per state, its logit of the second action. All
trajectories are enumerated with their probabilities, then all groups of them. That gives the true gradient of
``J = E[Σ_t γ^t r_t]``, and mean and variance of an estimated one, up to rounding.

>>> process = stop_or_go((0.3, -0.4, 0.2), go=(0.5, 0.3, 1.0), stop=(0.2, 0.6, 0.0))
>>> [path.rewards for path in paths(process, gamma=1.0)]
[(0.2,), (0.5, 0.6), (0.5, 0.3, 0.0), (0.5, 0.3, 1.0)]
"""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

__all__ = [
    "Estimate",
    "Moments",
    "Path",
    "Process",
    "moments",
    "paths",
    "random_process",
    "stop_or_go",
    "true_gradient",
]

Vector: TypeAlias = NDArray[np.float64]
Outcomes: TypeAlias = tuple[tuple[float, int | None], ...]
"""(probability, next state) of what may follow an action; None is the end."""

Estimate: TypeAlias = Callable[..., Sequence[Sequence[float]]]
"""``estimate(rewards, states=…, values=…) -> advantages`` of one group; it treats the members alike."""


@dataclass(frozen=True)
class Process:
    """A decision process with two actions, and a policy on it.

    Args:
        logits: θ_s of each state; the second action is taken with probability σ(θ_s). Episodes begin in state 0.
        rewards: ``rewards[s][a]``.
        outcomes: ``outcomes[s][a]``, what may come next.
        horizon: Most turns; what would come after is worth nothing.
    """

    logits: tuple[float, ...]
    rewards: tuple[tuple[float, float], ...]
    outcomes: tuple[tuple[Outcomes, Outcomes], ...]
    horizon: int

    def policy(self, state: int) -> tuple[float, float]:
        """Return the probabilities of the two actions."""
        second = 1.0 / (1.0 + math.exp(-self.logits[state]))
        return 1.0 - second, second


@dataclass(frozen=True)
class Path:
    """One trajectory of T turns.

    Args:
        probability: Under the policy and the process.
        rewards: r_0 … r_{T−1}.
        states: s_0 … s_{T−1}.
        scores: ∂ log π(a_t | s_t) / ∂θ. Shape: (T, number of states).
        values: V(s_0) … V(s_T) at that time; the last is 0.
    """

    probability: float
    rewards: tuple[float, ...]
    states: tuple[int, ...]
    scores: Vector
    values: tuple[float, ...]


@dataclass(frozen=True)
class Moments:
    """Mean of an estimated gradient, and the trace of its covariance.

    Args:
        mean: Shape: (number of states,).
        variance: The sum of the variances of its components.
    """

    mean: Vector
    variance: float


def stop_or_go(logits: Sequence[float], go: Sequence[float], stop: Sequence[float]) -> Process:
    """Return a process of one state per turn: *go* pays ``go[t]`` and leads on, *stop* pays ``stop[t]`` and ends it."""
    last = len(logits) - 1
    return Process(
        logits=tuple(logits),
        rewards=tuple(zip(stop, go, strict=True)),
        outcomes=tuple((((1.0, None),), ((1.0, t + 1 if t < last else None),)) for t in range(last + 1)),
        horizon=last + 1,
    )


def random_process(rng: np.random.Generator, *, states: int = 3, horizon: int = 3, most: int = 12) -> Process:
    """Return a process with random rewards, in which states can be visited again and actions can end the episode.

    Args:
        rng: Where it comes from.
        states: Number of states.
        horizon: Most turns.
        most: Most trajectories; those with more, or with fewer than four, are drawn again.
    """
    while True:
        process = Process(
            logits=tuple(rng.normal(size=states).tolist()),
            rewards=tuple((float(a), float(b)) for a, b in rng.uniform(-1, 1, size=(states, 2))),
            outcomes=tuple((_random_outcomes(rng, states), _random_outcomes(rng, states)) for _ in range(states)),
            horizon=horizon,
        )
        if 4 <= len(paths(process, gamma=1.0)) <= most:
            return process


def _random_outcomes(rng: np.random.Generator, states: int) -> Outcomes:
    """End with probability 0.4; else lead to one state, or with probability 0.3 to one of two things."""
    kind = rng.random()
    if kind < 0.4:
        return ((1.0, None),)
    first = int(rng.integers(states))
    if kind < 0.7:
        return ((1.0, first),)
    p = float(rng.uniform(0.2, 0.8))
    return ((p, first), (1.0 - p, None))


def paths(process: Process, gamma: float) -> list[Path]:
    """Return every trajectory of positive probability.

    Args:
        process: The process.
        gamma: Discount per turn of the values.
    """
    values = _values(process, gamma)
    return list(_extend(process, values, 0, Path(1.0, (), (), np.zeros((0, len(process.logits))), ())))


def _extend(process: Process, values: Vector, state: int, so_far: Path) -> Iterator[Path]:
    t = len(so_far.rewards)
    chances = process.policy(state)
    for action, chance in enumerate(chances):
        score = np.zeros((1, len(process.logits)))
        score[0, state] = action - chances[1]
        for probability, following in process.outcomes[state][action]:
            over = following is None or t + 1 == process.horizon
            path = Path(
                so_far.probability * chance * probability,
                (*so_far.rewards, process.rewards[state][action]),
                (*so_far.states, state),
                np.concatenate([so_far.scores, score]),
                (*so_far.values, float(values[t, state]), *([0.0] if over else [])),
            )
            if following is None or over:
                yield path
            else:
                yield from _extend(process, values, following, path)


def _values(process: Process, gamma: float) -> Vector:
    """Return V_t(s), backwards from the horizon. Shape: (horizon + 1, number of states)."""
    values = np.zeros((process.horizon + 1, len(process.logits)))
    for t in reversed(range(process.horizon)):
        for state in range(len(process.logits)):
            for action, chance in enumerate(process.policy(state)):
                later = sum(p * values[t + 1, s] for p, s in process.outcomes[state][action] if s is not None)
                values[t, state] += chance * (process.rewards[state][action] + gamma * later)
    return values


def true_gradient(trajectories: Sequence[Path], gamma: float) -> Vector:
    """Return ``∇J = Σ_τ p(τ)·(Σ_t γ^t r_t)·(Σ_t ∂ log π(a_t|s_t))``. Shape: (number of states,)."""
    total = np.zeros(trajectories[0].scores.shape[1])
    for path in trajectories:
        earned = sum(gamma**t * reward for t, reward in enumerate(path.rewards))
        total += path.probability * earned * path.scores.sum(axis=0)
    return total


def moments(trajectories: Sequence[Path], size: int, estimate: Estimate) -> Moments:
    """Return mean and variance of ``ĝ = (1/G)·Σ_i Σ_t A_{i,t}·∂ log π(a_{i,t}|s_{i,t})`` over all groups.

    Args:
        trajectories: All of them.
        size: G.
        estimate: The estimator.
    """
    mean = np.zeros(trajectories[0].scores.shape[1])
    square = 0.0
    for group in itertools.combinations_with_replacement(range(len(trajectories)), size):
        # Groups that differ in the order of their members alone are one, as often as there are orders.
        orders = math.factorial(size)
        for count in Counter(group).values():
            orders //= math.factorial(count)
        members = [trajectories[i] for i in group]
        probability = orders * math.prod(path.probability for path in members)
        advantages = estimate(
            [path.rewards for path in members],
            states=[path.states for path in members],
            values=[path.values for path in members],
        )
        gradient = np.zeros_like(mean)
        for row, path in zip(advantages, members, strict=True):
            gradient += np.asarray(row) @ path.scores / size
        mean += probability * gradient
        square += probability * float(gradient @ gradient)
    return Moments(mean, max(0.0, square - float(mean @ mean)))
