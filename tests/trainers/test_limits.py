"""What supervised learning cannot do and reinforcement learning from the same start can, with one learner for both.

The learner is a table: a logit for each choice, by the turn and the word that is asked for. Imitation follows the
gradient of −Σ log π(demonstrated choice), reinforcement that of the expected return, by the trainer's own estimator.
"""

from __future__ import annotations

import math
import random
import re
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from trajgym.envs.choice import ToolChoiceEnv
from trajgym.policies.base import TextPolicy
from trajgym.protocols import get_protocol
from trajgym.rollout import EnvPool, Episode, collect, derive_seed
from trajgym.trainers.advantages import bind
from trajgym.types import ExpertTurn, Message, Task, ToolCall, Trajectory

HERMES = get_protocol("hermes")
ANSWER = "answer"

Choose = Callable[[str, random.Random], str]
"""A demonstrator: from what a choice depends on to the choice."""


class Table(TextPolicy):
    """Chooses a tool or the answer; arguments are the item of the question, or the last number that was shown."""

    def __init__(self, tools: Sequence[str], demonstrator: Choose | None = None) -> None:
        super().__init__()
        self.options = [*tools, ANSWER]
        self.logits: dict[str, list[float]] = {}
        self.demonstrator = demonstrator

    def act(self, messages: Sequence[Message], task: Task, seed: int = 0) -> str:
        key = self.key(task, sum(m.role == "assistant" for m in messages))
        draw = random.Random(f"{seed}/{len(messages)}")
        chosen = self.demonstrator(key, draw) if self.demonstrator else draw.choices(self.options, self.chances(key))[0]
        shown = [m.content for m in messages if m.role == "tool" and m.content.isdigit()] or ["0"]
        if chosen == ANSWER:
            return f"#### {shown[-1]}"
        item = task.metadata["item"]
        arguments = {} if chosen.startswith("enter") else {"code": shown[-1]} if "_box" in chosen else {"item": item}
        return HERMES.render_turn(ExpertTurn(calls=(ToolCall(chosen, arguments),)))

    def key(self, task: Task, turn: int) -> str:
        return f"{turn} {task.metadata['tool']}"

    def chances(self, key: str) -> list[float]:
        weights = [math.exp(logit) for logit in self.logits.setdefault(key, [0.0] * len(self.options))]
        return [weight / sum(weights) for weight in weights]

    def follow(self, trajectory: Trajectory, weights: Sequence[float], rate: float) -> None:
        """Take a step of Σ_t weight_t · ∇ log π(a_t | s_t)."""
        for turn, (step, weight) in enumerate(zip(trajectory.steps, weights, strict=True)):
            key = self.key(trajectory.task, turn)
            chosen = step.action.text and (re.findall(r'"name": "(\w+)"', step.action.text) or [ANSWER])[0]
            for i, chance in enumerate(self.chances(key)):
                self.logits[key][i] += rate * weight * ((self.options[i] == chosen) - chance)


def play(policy: TextPolicy, count: int, seed: int, size: int = 1, **options: Any) -> list[list[Trajectory]]:
    """Play groups of episodes, each of one task."""
    episodes = [Episode(derive_seed(seed, i), derive_seed(seed, i, j)) for i in range(count) for j in range(size)]
    with EnvPool(lambda: ToolChoiceEnv(**{"tools_count": 6, "reward": "sparse", **options}), threads=1) as pool:
        played = collect(policy, pool, episodes)
    return [played[i : i + size] for i in range(0, len(played), size)]


def success(policy: TextPolicy, **options: Any) -> float:
    groups = play(policy, 150, 99, split="test", **options)
    return sum(t.total_reward for group in groups for t in group) / len(groups)


def imitate(table: Table, demonstrations: Sequence[Trajectory], passes: int) -> None:
    for _ in range(passes):
        for trajectory in demonstrations:
            table.follow(trajectory, [1.0] * len(trajectory.steps), rate=0.1)


def reinforce(table: Table, updates: int, **options: Any) -> None:
    estimate = bind("return_to_go", gamma=1.0)
    for update in range(updates):
        for group in play(table, 4, 1000 + update, 8, **options):
            advantages = estimate([trajectory.rewards for trajectory in group])
            for trajectory, row in zip(group, advantages, strict=True):
                table.follow(trajectory, row, rate=0.5)


TOOLS = list(ToolChoiceEnv(tools_count=6).tools)
FREE = {"tools_count": 3, "difficulty": 1}
DEEP = {"tools_count": 6, "difficulty": 3, "max_turns": 4}


def always_the_price(key: str, draw: random.Random) -> str:
    return "get_price" if key.startswith("0") else ANSWER


def careless(key: str, draw: random.Random) -> str:
    """Knows the three calls and their order, and makes each in seven of ten cases."""
    right = ["enter_archive", "archive_code", "archive_box", ANSWER][int(key[0])]
    return right if right == ANSWER or draw.random() < 0.7 else draw.choice(TOOLS)


def cloned(demonstrator: Choose, tools: Sequence[str], passes: int, **options: Any) -> tuple[Table, float]:
    """Return an imitator and the success of the one it imitates."""
    demonstrations = [group[0] for group in play(Table(tools, demonstrator), 150, 7, **options)]
    table = Table(tools)
    imitate(table, demonstrations, passes)
    return table, success(Table(tools, demonstrator), **options)


def test_what_was_never_shown_is_not_found_by_imitation() -> None:
    """No exploration: the more often the data are gone through, the less likely is what they do not have."""
    right, found = {}, {}
    for passes in (1, 4):
        table, shown = cloned(always_the_price, TOOLS[:3], passes, **FREE)
        right[passes] = table.chances("0 get_weight")[table.options.index("get_weight")]
        found[passes] = success(table, **FREE)
        assert found[passes] == pytest.approx(shown, abs=0.12)
    assert right[4] < right[1] < 0.2
    table, _ = cloned(always_the_price, TOOLS[:3], 1, **FREE)
    reinforce(table, 60, **FREE)
    assert table.chances("0 get_weight")[table.options.index("get_weight")] > 0.8
    assert success(table, **FREE) > 0.85 > found[1]


def test_imitation_gets_as_good_as_its_data_and_credit_reaches_back_over_turns() -> None:
    """The one reward stands behind the fourth turn; what it teaches of the first is what the data could not."""
    table, shown = cloned(careless, TOOLS, 2, **DEEP)
    clone = success(table, **DEEP)
    more, _ = cloned(careless, TOOLS, 6, **DEEP)
    assert 0.2 < shown < 0.6
    assert clone == pytest.approx(shown, abs=0.15)
    assert success(more, **DEEP) == pytest.approx(shown, abs=0.15), "more of the same does not help"
    first = table.chances("0 archive_box")[table.options.index("enter_archive")]
    reinforce(table, 40, **DEEP)
    assert success(table, **DEEP) > 0.85
    assert table.chances("0 archive_box")[table.options.index("enter_archive")] > max(0.9, first)
    # The same updates, with each turn credited by its own reward alone, teach the first turns nothing.
    near, _ = cloned(careless, TOOLS, 2, **DEEP)
    before = {key: list(logits) for key, logits in near.logits.items()}
    for update in range(5):
        for group in play(near, 4, 1000 + update, 8, **DEEP):
            for trajectory in group:
                near.follow(trajectory, trajectory.rewards, rate=0.5)
    assert near.logits["0 archive_box"] == before["0 archive_box"]
