"""Estimators from states: compare a turn with what others did in the same place, whenever they came by.

A state is named by a hashable key. Any key that says nothing of the turn's own action and what follows will do; the
coarser it is, the more visits there are to average over, and the less alike they are.
"""

from __future__ import annotations

import json
import math
from collections import defaultdict
from collections.abc import Hashable

from trajgym.trainers.advantages_base import Advantages, Rewards, States, check_choice, check_others, estimator
from trajgym.trainers.advantages_returns import discounts, mean_of_others, returns
from trajgym.types import Step, Trajectory

__all__ = ["anchor", "state_keys"]

_write = json.JSONEncoder(sort_keys=True, default=str, ensure_ascii=False).encode


@estimator("anchor", unbiased=True)
def anchor(rewards: Rewards, *, gamma: float, states: States, fallback: str = "step") -> Advantages:
    """Give each turn what came after it, minus what others got from the same state on. Unbiased.

    ``A_{i,t} = c_t·(G_{i,t} − mean{G_{j,u} : j ≠ i, s_{j,u} = s_{i,t}})``, over every visit u of every other
    trajectory. Visits of one's own are left out: what they got contains the turn's own reward.

    Args:
        rewards: The group, ragged.
        gamma: Discount per turn, in [0, 1].
        states: The key of the state each turn began in, ragged as the rewards; see :func:`state_keys`.
        fallback: The baseline where no other trajectory came by, as in ``return_to_go``: ``"step"``, ``"absorbing"``
            or ``"none"``.

    Raises:
        RewardError: For rewards that are not finite numbers, or a trajectory without turns.
        ConfigError: For fewer than two trajectories, or states that do not fit.

    Source: after the step-level groups of GiGPO, Feng et al. 2025, arXiv 2505.10978, without one's own visits, without
    the division by a standard deviation, and with c_t; each of the three would bias it.

    >>> anchor([[0.0, 1.0], [3.0]], gamma=1.0, states=[["a", "b"], ["b"]])
    [[-2.0, -2.0], [2.0]]
    """
    check_choice("fallback of 'anchor'", fallback, ("step", "absorbing", "none"))
    check_others(rewards, "choose another estimator")
    to_go = [returns(row, gamma) for row in rewards]
    visits: defaultdict[Hashable, list[tuple[int, float]]] = defaultdict(list)
    for j, (row, keys) in enumerate(zip(to_go, states, strict=True)):
        for value, key in zip(row, keys, strict=True):
            visits[key].append((j, value))
    advantages: Advantages = []
    for i, mine in enumerate(to_go):
        row = []
        for t, (weight, value) in enumerate(zip(discounts(len(mine), gamma, "exact"), mine, strict=True)):
            others = [g for j, g in visits[states[i][t]] if j != i]
            expected = math.fsum(others) / len(others) if others else mean_of_others(to_go, i, t, fallback)
            row.append(weight * (value - expected))
        advantages.append(row)
    return advantages


def state_keys(trajectory: Trajectory) -> list[Hashable]:
    """Name the state before each turn by what has been done and seen so far, however it was worded.

    Two states of the same task are the same when the same tools were called with the same arguments (keys in any
    order) in the same turns, and the same came back; what the policy wrote around the calls is left out. It is read
    from the steps alone, so environments whose state is smaller than their history, such as a grid, are split more
    finely than they need be.

    Args:
        trajectory: Of any environment of text and tools.

    Returns:
        One key per turn, the first of them alike in all trajectories.
    """
    keys: list[Hashable] = []
    history: tuple[Hashable, ...] = ()
    for step in trajectory.steps:
        keys.append(history)
        history = (*history, _done_and_seen(step))
    return keys


def _done_and_seen(step: Step) -> Hashable:
    done = tuple((call.name, _write(call.arguments)) for call in step.action.calls)
    seen = tuple((message.role, message.name, message.content) for message in step.observation.messages)
    return done, seen
