"""Potential-based shaping telescopes, and progress is what the policy writes itself."""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trajgym.envs.arithmetic_tasks import held_out
from trajgym.envs.gsm8k_tasks import GSM8KTasks
from trajgym.errors import ConfigError
from trajgym.protocols import get_protocol
from trajgym.rewards import Shaped, get_rubric, progress
from trajgym.rewards.milestones import milestones
from trajgym.types import Action, Message, Observation, Step, StopReason, Task, ToolCall, ToolResult, discounted_return

TASK = Task("sum", "48 clips, then half as many. In all?", "72", metadata={"steps": [24, 72]})
gammas = st.floats(0, 1)
potentials = st.lists(st.floats(-100, 100), min_size=2, max_size=9)
ENDS = [*(reason for reason in StopReason if reason is not StopReason.FAULT)]


def episode(count: int, end: StopReason) -> list[Step]:
    going = [Step(Action(""), Observation())] * (count - 1)
    over = end.terminates
    return [*going, Step(Action(""), Observation(), terminated=over, truncated=not over, stop_reason=end)]


def paid(term: Any, steps: Sequence[Step], task: Task = TASK) -> list[float]:
    return [term(step, task, steps[:i]) for i, step in enumerate(steps)]


@given(gammas, potentials, st.sampled_from(ENDS), st.booleans())
def test_the_sum_telescopes(gamma: float, phi: list[float], end: StopReason, zero: bool) -> None:
    """Σ γ^t F_t = γ^T Φ(s_T) − Φ(s_0), with Φ(s_T) = 0 where the task has ended."""
    steps = episode(len(phi) - 1, end)
    shaped = Shaped(lambda task, so_far: phi[len(so_far)], gamma, zero_when_truncated=zero)
    last = 0.0 if end.terminates or zero else phi[-1]
    total = discounted_return(paid(shaped, steps), gamma)
    assert total == pytest.approx(gamma ** len(steps) * last - phi[0], abs=1e-9)


@given(gammas, st.floats(-10, 10))
def test_no_way_to_the_end_is_better_than_another(gamma: float, start: float) -> None:
    """Whatever happens on the way, and however long it takes, shaping adds −Φ(s_0)."""
    for length, spread in itertools.product(range(1, 6), (-3.0, 0.0, 7.0)):
        shaped = Shaped(lambda task, so_far, s=spread: start + s * len(so_far), gamma)  # type: ignore[misc]
        got = paid(shaped, episode(length, StopReason.ANSWERED))
        assert math.isclose(discounted_return(got, gamma), -start, abs_tol=1e-9)


def test_the_discount_is_1_until_somebody_tells() -> None:
    shaped = Shaped(lambda task, steps: 1.0)
    step = Step(Action(""), Observation())
    assert (shaped(step, TASK, []), shaped.discounted(0.9)(step, TASK, [])) == (0.0, pytest.approx(-0.1))
    with pytest.raises(ConfigError, match=r"gamma=0\.5 and the run 0\.9"):
        Shaped(lambda task, steps: 1.0, 0.5).discounted(0.9)
    assert Shaped(lambda task, steps: 1.0, 0.5, zero_when_truncated=True).discounted(0.5).zero_when_truncated


@pytest.mark.parametrize("gamma", [-0.1, 1.1, float("nan"), "1", True])
def test_wrong_discounts(gamma: Any) -> None:
    with pytest.raises(ConfigError, match="gamma"):
        Shaped(lambda task, steps: 1.0, gamma)
    with pytest.raises(ConfigError, match="potential"):
        Shaped(3)  # type: ignore[arg-type]


def said(text: str, *calls: Any, result: str = "") -> Step:
    made = tuple(ToolCall("calculator", {"expression": c}) for c in calls)
    messages = (Message("tool", result),) if result else ()
    return Step(Action(text, calls=made), Observation(messages), results=tuple(ToolResult(c, result) for c in made))


@pytest.mark.parametrize(
    ("steps", "share"),
    [
        ([], 0.0),
        ([said("", "48/2", result="24")], 0.0),  # the tool says it, nobody uses it
        ([said("", "48/2", result="24\n72\n#### 72")], 0.0),
        ([said("", "48/2", result="24"), said("", "48+24", result="72")], 0.5),
        ([said("I got 24.")], 0.5),
        ([said("24 and 72")], 1.0),
        ([said("24"), said("24"), said("24")], 0.5),
        ([said("48")], 0.0),  # given by the question
        ([said(" ".join(map(str, range(100))))], 0.0),  # a list of guesses
        ([said("", " ".join(map(str, range(100))))], 0.0),
    ],
)
def test_progress_is_what_the_policy_writes(steps: list[Step], share: float) -> None:
    assert progress(TASK, steps) == share


def test_tasks_without_milestones_have_no_progress() -> None:
    assert progress(Task("t", "?", "72"), [said("72")]) == 0.0


def demonstrations(tasks: Sequence[Task]) -> list[float]:
    """The best progress of each task's demonstration before it answers."""
    protocol = get_protocol("hermes")
    out = []
    for task in tasks:
        steps = [Step(Action(protocol.render_turn(turn), calls=turn.calls), Observation()) for turn in task.solution]
        shares = [progress(task, steps[:i]) for i in range(len(steps) + 1)]
        assert shares == sorted(shares)
        out.append(shares[-2])
    return out


def test_demonstrations_make_progress() -> None:
    shares = demonstrations([task for task in held_out(60, (3, 4)) if len(milestones(task)) >= 3])
    assert len(shares) > 30
    assert all(share >= 0.3 for share in shares)


def test_demonstrations_of_real_problems_make_progress(gsm8k_data: Path) -> None:
    tasks = GSM8KTasks("train", gsm8k_data / "gsm8k", limit=300).tasks
    hard = [task for task in tasks if (task.difficulty or 0) >= 3 and len(milestones(task)) >= 3]
    shares = demonstrations(hard)
    assert len(shares) > 100
    assert sum(share >= 0.3 for share in shares) > 0.9 * len(shares)


def test_milestones_never_reach_the_policy() -> None:
    """The reward's parts and messages hold shares, not the values."""
    parts = get_rubric("shaped").score(said("24"), TASK, [])
    assert json.dumps(parts) == '{"accuracy": 0.0, "progress": 0.25}'
