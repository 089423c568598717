"""Demonstrations as training rows: exactly the assistant's turns and their ends are trained."""

from __future__ import annotations

import copy
from typing import Any

import gymnasium
import pytest
from transformers import PreTrainedTokenizerFast

from trajgym.errors import DataError, TemplateError
from trajgym.policies.render import Renderer
from trajgym.policies.scripted import ExpertPolicy
from trajgym.policies.tiny import build_tokenizer
from trajgym.rollout import EnvPool, Episode, collect
from trajgym.trainers.data import demonstration, dialogues, tokenized
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


def text_rows(tokenizer: Any, *pairs: tuple[str, str]) -> list[dict[str, str]]:
    asked = "<|im_start|>user\n{}<|im_end|>\n<|im_start|>assistant\n"
    return [{"prompt": asked.format(question), "completion": f"{answer}<|im_end|>"} for question, answer in pairs]


def said(tokenizer: Any, row: dict[str, list[int]], trained: int) -> list[str]:
    """The text of each run of tokens that is trained (1) or not (0)."""
    ids, mask = tuple(row["input_ids"]), tuple(row["completion_mask"])
    return spans(tokenizer, TokenStream(ids, mask, (0,) * len(ids), (0.0,) * len(ids)), trained)


def test_texts_in_template_form(tokenizer: Any, renderer: Renderer) -> None:
    (row,) = tokenized(text_rows(tokenizer, ("48 + 24?", "#### 72")), renderer)
    assert set(row) == {"input_ids", "completion_mask"}
    assert said(tokenizer, row, 1) == ["#### 72<|im_end|>"]
    assert row["input_ids"][-1] == renderer.end_id
    prompt = renderer.prompt([Message("user", "48 + 24?")])
    assert row["input_ids"][: len(prompt)] == prompt
    assert row["completion_mask"][: len(prompt)] == [0] * len(prompt)


def test_all_forms_of_one_dialogue_give_the_same_tokens(tokenizer: Any, renderer: Renderer) -> None:
    prompt, answer = {"role": "user", "content": "48 + 24?"}, {"role": "assistant", "content": "#### 72"}
    steps = (Step(Action("#### 72"), Observation(), stop_reason=StopReason.ANSWERED),)
    forms: list[Any] = [
        *text_rows(tokenizer, ("48 + 24?", "#### 72")),
        {"prompt": [prompt], "completion": [answer]},
        {"messages": [prompt, answer], "label": "is not looked at"},
        Trajectory(TASK, (Message("user", "48 + 24?"),), steps),
    ]
    first, *others = tokenized(forms, renderer)
    assert others == [first] * 3


def test_only_the_completion_of_two_lists_is_trained(tokenizer: Any, renderer: Renderer) -> None:
    dialogue = [
        {"role": role, "content": content}
        for role, content in (("user", "a"), ("assistant", "b"), ("user", "c"), ("assistant", "d"))
    ]
    split, whole = tokenized([{"prompt": dialogue[:3], "completion": dialogue[3:]}, {"messages": dialogue}], renderer)
    assert split["input_ids"] == whole["input_ids"]
    assert said(tokenizer, split, 1) == ["d<|im_end|>"]
    assert said(tokenizer, whole, 1) == ["b<|im_end|>", "d<|im_end|>"]


def test_what_follows_the_last_answer_is_left_out(tokenizer: Any, renderer: Renderer) -> None:
    messages = [{"role": r, "content": r[0]} for r in ("user", "assistant", "user")]
    (row,) = tokenized([{"messages": messages}], renderer)
    assert row["input_ids"][-1] == renderer.end_id
    assert row["completion_mask"][-1] == 1


def test_a_history_that_is_rewritten_gives_a_row_for_each_turn(tokenizer: Any) -> None:
    forgetful = copy.copy(tokenizer)
    said_now = "message['content'] if loop.last else message['content'].split('</think>')[-1].lstrip()"
    forgetful.chat_template = tokenizer.chat_template.replace("message['content']", f"({said_now})")
    renderer = Renderer(forgetful, thinking=True)
    assert not renderer.append_only
    messages = [
        {"role": "user", "content": "a"},
        {"role": "assistant", "content": "<think>\nsecret\n</think>\n\nb"},
        {"role": "user", "content": "c"},
        {"role": "assistant", "content": "d"},
    ]
    first, second = tokenized([{"messages": messages}], renderer)
    assert said(tokenizer, first, 1) == ["<think>\nsecret\n</think>\n\nb<|im_end|>"]
    assert said(tokenizer, second, 1) == ["d<|im_end|>"]
    assert "secret" not in tokenizer.decode(second["input_ids"])


def test_texts_of_another_template_are_refused(tokenizer: Any, renderer: Renderer) -> None:
    (good,) = text_rows(tokenizer, ("a", "b"))
    with pytest.raises(TemplateError, match=r"Row 1: the prompt must end as .*got …'User: a'"):
        tokenized([good, {**good, "prompt": "User: a"}], renderer)
    with pytest.raises(TemplateError, match=r"Row 0: the completion must be one turn with '<\|im_end\|>' at its end"):
        tokenized([{**good, "completion": "b"}], renderer)
    with pytest.raises(TemplateError, match="no other control token"):
        tokenized([{**good, "completion": "b<|im_end|>\n<|im_start|>user\nc<|im_end|>"}], renderer)


@pytest.mark.parametrize(
    ("row", "why"),
    [
        ({"question": "a"}, "Row 0: expected .* the columns are question"),
        ({}, "the columns are none"),
        ({"prompt": "a", "completion": [{"role": "assistant", "content": "b"}]}, "both texts or both lists"),
        ("a text", "got str"),
        ({"messages": [{"role": "user", "content": "a"}]}, "needs a prompt and then .* got user"),
        ({"messages": [{"role": "assistant", "content": "a"}]}, "needs a prompt and then .* got assistant"),
        (
            {"prompt": [{"role": "user", "content": "a"}], "completion": [{"role": "user", "content": "b"}]},
            "begin with",
        ),
    ],
)
def test_other_rows_are_refused(row: Any, why: str, renderer: Renderer) -> None:
    with pytest.raises(DataError, match=why):
        tokenized([row], renderer)


def test_trajectories_that_were_cut_or_failed_are_refused(renderer: Renderer) -> None:
    prompt = (Message("user", "?"),)
    cut = Step(Action("half a tho", finish="turn_tokens"), Observation(), stop_reason=StopReason.TURN_TOKENS)
    with pytest.raises(DataError, match=r"Row 0 \(task 'sum'\): turn 0 was cut by a budget \(turn_tokens\)"):
        tokenized([Trajectory(TASK, prompt, (cut,))], renderer)
    whole = Step(Action("72"), Observation(), stop_reason=StopReason.ANSWERED)
    with pytest.raises(DataError, match="a dead worker"):
        tokenized([Trajectory(TASK, prompt, (whole,), fault="a dead worker")], renderer)


def test_a_trajectory_that_begins_anew_becomes_a_row_for_each_dialogue(renderer: Renderer) -> None:
    page = (Message("system", "Be brief."), Message("user", "Notes: 72"))
    steps = (
        Step(Action("store"), Observation((Message("tool", "ok"),))),
        Step(Action("turn"), Observation(page)),
        Step(Action("#### 72"), Observation(), stop_reason=StopReason.ANSWERED),
    )
    whole = Trajectory(TASK, (Message("user", "48 + 24?"),), steps)
    first, second = dialogues(whole)
    assert [first.steps, second.steps, second.prompt] == [steps[:2], steps[2:], page]
    rows = tokenized([whole], renderer)
    assert [row["input_ids"] for row in rows] == [list(demonstration(renderer, part).ids) for part in (first, second)]
    assert rows[1]["input_ids"][: len(renderer.prompt(page))] == renderer.prompt(page)
    assert dialogues(first) == [first]
