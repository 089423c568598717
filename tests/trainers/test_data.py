"""Demonstrations as training rows: exactly the assistant's turns and their ends are trained."""

from __future__ import annotations

from typing import Any

import gymnasium
import pytest
from transformers import PreTrainedTokenizerFast

from trajgym.policies.render import Renderer
from trajgym.policies.scripted import ExpertPolicy
from trajgym.policies.tiny import build_tokenizer
from trajgym.rollout import EnvPool, Episode, collect
from trajgym.trainers.data import demonstration
from trajgym.types import Action, Message, Observation, Step, StopReason, Task, TokenStream, Trajectory

TASK = Task("sum", "48 + 24?", "72")


@pytest.fixture(scope="module")
def tokenizer() -> PreTrainedTokenizerFast:
    return build_tokenizer(["system\nuser\nassistant\ntool\n calculator <tool_call> 48 + 24"] * 9, 320)


@pytest.fixture(scope="module")
def renderer(tokenizer: PreTrainedTokenizerFast) -> Renderer:
    return Renderer(tokenizer)


def spans(tokenizer: Any, row: TokenStream, trained: int) -> list[str]:
    """The text of each run of tokens that is trained (1) or not (0)."""
    runs: list[list[int]] = [[]]
    for token, mask in zip(row.ids, row.mask, strict=True):
        if mask == trained:
            runs[-1].append(token)
        elif runs[-1]:
            runs.append([])
    return [tokenizer.decode(run) for run in runs if run]


def test_by_hand(tokenizer: Any, renderer: Renderer) -> None:
    steps = (
        Step(Action("call"), Observation((Message("tool", "7"), Message("tool", "2")))),
        Step(Action("#### 72 <|im_end|>"), Observation(), stop_reason=StopReason.ANSWERED),
    )
    row = demonstration(renderer, Trajectory(TASK, (Message("user", "48 + 24?"),), steps))
    assert spans(tokenizer, row, 1) == ["call<|im_end|>", "#### 72 <|im_end|><|im_end|>"]
    assert spans(tokenizer, row, 0) == [
        "<|im_start|>user\n48 + 24?<|im_end|>\n<|im_start|>assistant\n",
        "\n<|im_start|>tool\n7<|im_end|>\n<|im_start|>tool\n2<|im_end|>\n<|im_start|>assistant\n",
    ]
    assert row.ids.count(renderer.end_id) == 5  # the one that the policy wrote out is ordinary text
    assert set(row.logprobs) == {0.0}
    assert [t for t in dict.fromkeys(row.turns) if t >= 0] == [0, 1]
    assert [t >= 0 for t in row.turns] == [m == 1 for m in row.mask]


def test_a_row_is_the_dialogue_rendered_at_once(tokenizer: Any, renderer: Renderer) -> None:
    with EnvPool(lambda: gymnasium.make("ArithmeticTool-v0")) as pool:
        played = collect(ExpertPolicy(), pool, [Episode(seed, 0) for seed in range(5)])
    for trajectory in played:
        row = demonstration(renderer, trajectory)
        whole = renderer.one_shot(trajectory.messages)
        assert list(row.ids) == whole[: len(row.ids)]
        assert tokenizer.decode(whole[len(row.ids) :]) == "\n"  # what the template writes behind the end
        expected = [f"{step.action.text}<|im_end|>" for step in trajectory.steps]
        assert spans(tokenizer, row, 1) == expected


def test_a_turn_that_nothing_answered_is_followed_by_the_next_one(tokenizer: Any, renderer: Renderer) -> None:
    silent = (Step(Action("a"), Observation()), Step(Action("b"), Observation(), stop_reason=StopReason.ANSWERED))
    row = demonstration(renderer, Trajectory(TASK, (Message("user", "?"),), silent))
    assert spans(tokenizer, row, 1) == ["a<|im_end|>", "b<|im_end|>"]
    assert spans(tokenizer, row, 0)[1] == "\n<|im_start|>assistant\n"


def test_nothing_follows_the_last_turn(tokenizer: Any, renderer: Renderer) -> None:
    cut = Step(Action("call"), Observation((Message("tool", "72"),)), stop_reason=StopReason.MAX_TURNS)
    row = demonstration(renderer, Trajectory(TASK, (Message("user", "?"),), (cut,)))
    assert row.mask[-1] == 1
    assert spans(tokenizer, row, 1) == ["call<|im_end|>"]


def test_no_turns_nothing_to_train(tokenizer: Any, renderer: Renderer) -> None:
    row: Any = demonstration(renderer, Trajectory(TASK, (Message("user", "?"),), ()))
    assert set(row.mask) == {0}
