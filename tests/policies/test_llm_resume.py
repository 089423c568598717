"""A language model that goes on in the middle of a dialogue: in the tokens in which it was held, drawn anew."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from trajgym.errors import EpisodeError
from trajgym.policies.hf import HFSampler
from trajgym.policies.llm import LLMPolicy
from trajgym.policies.render import Renderer
from trajgym.types import Action, Message, Task, TokenStream

TASK = Task("t", "48 + 24?", "72")
PROMPT = [Message("system", "Be brief."), Message("user", "48 + 24?")]


@pytest.fixture(scope="module")
def tokenizer(make_tokenizer: Callable[..., Any]) -> Any:
    return make_tokenizer()


@pytest.fixture(scope="module")
def thinker_tokenizer(make_tokenizer: Callable[..., Any], template_of: Callable[[str], str]) -> Any:
    return make_tokenizer(template_of("qwen3"))


@pytest.fixture(scope="module")
def model(tokenizer: Any) -> Any:
    torch.manual_seed(0)
    sizes = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4}
    return LlamaForCausalLM(
        LlamaConfig(vocab_size=len(tokenizer), max_position_embeddings=1024, initializer_range=0.1, **sizes)
    ).eval()


def policy_of(
    model: Any, renderer: Renderer, *, slots: int = 4, turn: int = 20, episode: int = 700, temperature: float = 1.0
) -> LLMPolicy:
    # A random model hardly ever ends a turn by itself: let common pieces do it as well.
    stops = renderer.stop_ids | set(range(0, model.config.vocab_size, 7))
    sampler = HFSampler(model, slots=slots, max_length=episode, stop_ids=stops, temperature=temperature)
    return LLMPolicy(sampler, renderer, max_turn_tokens=turn, max_episode_tokens=episode)


def next_turn(policy: LLMPolicy) -> Action:
    while True:
        for _, action in policy.poll():
            return action


def begun(policy: LLMPolicy, turns: int, *, seed: int = 0) -> tuple[list[Message], list[Action]]:
    """Play until turn ``turns`` is asked for; return the dialogue up to there."""
    dialogue, actions = list(PROMPT), []
    policy.start(0, PROMPT, task=TASK, seed=seed)
    for number in range(turns):
        action = next_turn(policy)
        assert action.finish == "stop"
        answer = [Message("tool", f"answer {number}")]
        policy.observe(0, answer)
        dialogue += [Message("assistant", action.text), *answer]
        actions.append(action)
    return dialogue, actions


def whole_pass(model: Any, row: TokenStream) -> None:
    """Every sampled token's log-probability is that of one pass over its row."""
    with torch.no_grad():
        logprobs = torch.log_softmax(model(input_ids=torch.tensor([row.ids])).logits[0].float(), -1)
    for at in (k for k, m in enumerate(row.mask) if m):
        assert row.logprobs[at] == pytest.approx(logprobs[at - 1, row.ids[at]].item(), abs=1e-5)


def seed_with_turns(model: Any, renderer: Renderer, turns: int, check: Callable[[Sequence[Action]], bool]) -> int:
    """Find a seed whose first turns end by themselves and satisfy ``check``."""
    for seed in range(200):
        try:
            _, actions = begun(policy_of(model, renderer), turns, seed=seed)
        except AssertionError:
            continue
        if check(actions):
            return seed
    raise LookupError("no seed gives such turns")


def test_the_context_is_what_was_sampled_and_not_its_text_encoded_again(model: Any, tokenizer: Any) -> None:
    renderer = Renderer(tokenizer)
    seed = seed_with_turns(
        model, renderer, 2, lambda turns: any(renderer.turn(a.text) != list(a.token_ids[:-1]) for a in turns)
    )
    policy = policy_of(model, renderer)
    dialogue, actions = begun(policy, 2, seed=seed)
    context = policy.context(0)
    assert list(context) != renderer.prompt(dialogue)

    other = policy_of(model, renderer)
    other.resume(7, dialogue, context, task=TASK, seed=99)
    assert other.context(7) == context
    first = next_turn(other)
    policy.poll()
    (old,), (new,) = policy.finish(0), other.finish(7)
    assert old.ids[: len(context)] == new.ids[: len(context)] == context
    sampled = [i for i, m in zip(old.ids[: len(context)], old.mask, strict=False) if m]
    assert sampled == [i for a in actions for i in a.token_ids]
    assert set(new.mask[: len(context)]) == {0}  # what was said before is not trained in this row
    assert new.ids[len(context) :] == first.token_ids
    assert set(new.turns[len(context) :]) == {0}
    whole_pass(model, new)


def test_without_chance_the_dialogue_goes_on_as_it_would_have(model: Any, tokenizer: Any) -> None:
    renderer = Renderer(tokenizer)
    policy = policy_of(model, renderer, temperature=0.0, turn=8)
    policy.start(0, PROMPT, task=TASK, seed=1)
    other = policy_of(model, renderer, temperature=0.0, turn=8)
    other.resume(0, PROMPT, policy.context(0), task=TASK, seed=2)
    assert next_turn(other).token_ids == next_turn(policy).token_ids


def test_draws_are_fresh_and_the_same_whatever_runs_beside(model: Any, tokenizer: Any) -> None:
    renderer = Renderer(tokenizer)
    seed = seed_with_turns(model, renderer, 1, lambda turns: True)
    source = policy_of(model, renderer)
    dialogue, _ = begun(source, 1, seed=seed)
    context = source.context(0)

    def turns(slots: int) -> list[tuple[int, ...]]:
        policy = policy_of(model, renderer, slots=slots)
        out: dict[int, tuple[int, ...]] = {}
        for first in range(0, 6, slots):
            for k in range(first, first + slots):
                policy.resume(k, dialogue, context, task=TASK, seed=100 + k)
            while len(out) < first + slots:
                out |= {k: action.token_ids for k, action in policy.poll()}
            for k in range(first, first + slots):
                policy.finish(k)
        return [out[k] for k in range(6)]

    alone = turns(1)
    assert alone == turns(6) == turns(3)
    assert len(set(alone)) > 2


def test_where_each_turn_is_a_row_the_context_is_that_of_the_turn(model: Any, thinker_tokenizer: Any) -> None:
    renderer = Renderer(thinker_tokenizer, thinking=True)
    assert not renderer.append_only
    seed = seed_with_turns(model, renderer, 2, lambda turns: True)
    policy = policy_of(model, renderer)
    dialogue, _ = begun(policy, 2, seed=seed)
    context = policy.context(0)
    assert list(context) == renderer.prompt(dialogue)
    other = policy_of(model, renderer)
    other.resume(0, dialogue, context, task=TASK, seed=5)
    action = next_turn(other)
    if action.finish == "stop":
        other.observe(0, [Message("tool", "more")])
        later = [*dialogue, Message("assistant", action.text), Message("tool", "more")]
        assert list(other.context(0)) == renderer.prompt(later)
    rows = other.finish(0)
    assert rows[0].ids == (*context, *action.token_ids)
    whole_pass(model, rows[0])


def test_the_budget_counts_from_the_beginning_of_the_dialogue(model: Any, tokenizer: Any) -> None:
    renderer = Renderer(tokenizer)
    seed = seed_with_turns(model, renderer, 1, lambda turns: True)
    source = policy_of(model, renderer)
    dialogue, _ = begun(source, 1, seed=seed)
    context = source.context(0)
    short = policy_of(model, renderer, episode=len(context) + 1)
    short.resume(0, dialogue, context, task=TASK, seed=0)
    action = next_turn(short)
    assert len(action.token_ids) == 1
    assert action.finish in ("episode_tokens", "stop")


def test_a_state_without_room_is_without_room_again(model: Any, tokenizer: Any) -> None:
    renderer = Renderer(tokenizer)
    seed = seed_with_turns(model, renderer, 1, lambda turns: True)
    source = policy_of(model, renderer)
    begun(source, 1, seed=seed)
    full = len(source.context(0))  # one token of room would be needed beyond this
    policy, other = policy_of(model, renderer, episode=full), policy_of(model, renderer, episode=full)
    dialogue, _ = begun(policy, 1, seed=seed)
    assert len(policy.context(0)) == full
    other.resume(0, dialogue, policy.context(0), task=TASK, seed=4)
    assert other.poll() == policy.poll() == [(0, Action("", finish="episode_tokens"))]
    assert other.finish(0) == ()


def test_a_dialogue_that_no_model_held_is_rendered(model: Any, tokenizer: Any) -> None:
    renderer = Renderer(tokenizer)
    dialogue = [*PROMPT, Message("assistant", "hm"), Message("tool", "72")]
    policy = policy_of(model, renderer)
    policy.resume(0, dialogue, (), task=TASK, seed=0)
    assert list(policy.context(0)) == renderer.prompt(dialogue)
    with pytest.raises(EpisodeError, match="live already"):
        policy.resume(0, dialogue, (), task=TASK, seed=0)
    with pytest.raises(EpisodeError, match="no live episode 3"):
        policy.context(3)
