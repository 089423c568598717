from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM

from trajgym.errors import ConfigError, EpisodeError, TemplateError
from trajgym.policies.base import SampledTurn, Sampler
from trajgym.policies.hf import HFSampler
from trajgym.policies.llm import LLMPolicy
from trajgym.policies.render import Renderer
from trajgym.types import Action, Message, Task, TokenStream

TASK = Task("t", "48 + 24?", "72")
PROMPT = [Message("system", "Be brief."), Message("user", "48 + 24?")]
TOOL = [Message("tool", "72")]


class Recorded(Sampler):
    """A sampler that hands out these turns, cut by the budget, and remembers what each stream was given."""

    def __init__(self, turns: Sequence[Sequence[int]], *, stop_ids: Sequence[int], slots: int = 4) -> None:
        self._turns = iter(turns)
        self._stop_ids = set(stop_ids)
        self._slots = slots
        self._handles = itertools.count(100)
        self._asked: dict[int, int] = {}
        self.contexts: dict[int, list[int]] = {}
        self.seeds: list[int] = []
        self.closed: list[int] = []

    slots = property(lambda self: self._slots)
    max_length = property(lambda self: 2000)

    def open(self, ids: Sequence[int], *, seed: int) -> int:
        handle = next(self._handles)
        self.contexts[handle] = list(ids)
        self.seeds.append(seed)
        return handle

    def extend(self, stream: int, ids: Sequence[int]) -> None:
        self.contexts[stream] += ids

    def generate(self, stream: int, *, max_new_tokens: int) -> None:
        self._asked[stream] = max_new_tokens

    def step(self) -> list[SampledTurn]:
        out = []
        for stream, budget in self._asked.items():
            ids = tuple(next(self._turns))[:budget]
            self.contexts[stream] += ids
            finish = "stop" if ids[-1] in self._stop_ids else "length"
            out.append(SampledTurn(stream, ids, tuple(-0.5 - k for k in range(len(ids))), finish))
        self._asked = {}
        return out

    def close(self, stream: int) -> None:
        self._asked.pop(stream, None)
        self.closed.append(stream)


@pytest.fixture(scope="module")
def tokenizer(make_tokenizer: Callable[..., Any]) -> Any:
    return make_tokenizer()


@pytest.fixture(scope="module")
def renderer(tokenizer: Any) -> Renderer:
    return Renderer(tokenizer, stop_ids=[tokenizer.convert_tokens_to_ids("<|endoftext|>")])


@pytest.fixture(scope="module")
def thinker(make_tokenizer: Callable[..., Any], template_of: Callable[[str], str]) -> Renderer:
    return Renderer(make_tokenizer(template_of("qwen3")), thinking=True)


def recorded(
    renderer: Renderer, *turns: Sequence[int], turn: int = 50, episode: int = 500
) -> tuple[LLMPolicy, Recorded]:
    sampler = Recorded(turns, stop_ids=sorted(renderer.stop_ids))
    return LLMPolicy(sampler, renderer, max_turn_tokens=turn, max_episode_tokens=episode), sampler


def begun(policy: LLMPolicy, episode: int = 0, seed: int = 11) -> None:
    policy.start(episode, PROMPT, task=TASK, seed=seed)


def only(policy: LLMPolicy) -> Action:
    ((_, action),) = policy.poll()
    return action


def sampled(row: TokenStream, turn: int) -> tuple[int, ...]:
    return tuple(i for i, t in zip(row.ids, row.turns, strict=True) if t == turn)


def consistent(row: TokenStream) -> bool:
    return all(
        (mask == 1) == (turn >= 0) and (mask == 1 or logprob == 0.0)
        for mask, turn, logprob in zip(row.mask, row.turns, row.logprobs, strict=True)
    )


def test_a_dialogue_is_one_row_equal_to_the_one_shot_render(renderer: Renderer) -> None:
    texts = ["<tool_call>\n{}\n</tool_call>", "#### 72"]
    turns = [[*renderer.turn(text), renderer.end_id] for text in texts]
    policy, sampler = recorded(renderer, *turns)
    begun(policy)
    first = only(policy)
    policy.observe(0, TOOL)
    second = only(policy)
    assert [first.text, second.text] == texts
    assert [first.finish, second.finish] == ["stop", "stop"]
    assert [list(first.token_ids), list(second.token_ids)] == turns
    (row,) = policy.finish(0)
    whole = renderer.one_shot([*PROMPT, Message("assistant", texts[0]), *TOOL, Message("assistant", texts[1])])
    assert list(row.ids) == whole[: len(row.ids)]
    assert len(whole) - len(row.ids) == 1  # the newline behind the last turn
    assert list(row.ids) == sampler.contexts[100]
    assert consistent(row)
    assert [sampled(row, 0), sampled(row, 1)] == [first.token_ids, second.token_ids]
    assert [p for p, m in zip(row.logprobs, row.mask, strict=True) if m] == [*first.logprobs, *second.logprobs]
    assert sampler.closed == [100]
    assert sampler.seeds == [11]


def test_a_turn_that_ended_with_another_stop_token_gets_the_end_of_turn_inserted(
    renderer: Renderer, tokenizer: Any
) -> None:
    end_of_text = tokenizer.convert_tokens_to_ids("<|endoftext|>")
    policy, _ = recorded(renderer, [*renderer.turn("a"), end_of_text], [*renderer.turn("b"), renderer.end_id])
    begun(policy)
    assert only(policy).text == "a"
    policy.observe(0, TOOL)
    only(policy)
    (row,) = policy.finish(0)
    at = row.ids.index(end_of_text)
    assert row.ids[at + 1] == renderer.end_id
    assert row.mask[at - 1 : at + 3] == (1, 1, 0, 0)  # sampled ends are trained, inserted ones are not
    assert (row.ids[-1], row.mask[-1]) == (renderer.end_id, 1)


def test_pieces_that_merge_again_are_trained_as_they_were_sampled(renderer: Renderer, tokenizer: Any) -> None:
    letters = [tokenizer.convert_tokens_to_ids(c) for c in "assistant"]
    assert renderer.turn("assistant") != letters  # the canonical form has longer pieces
    policy, sampler = recorded(renderer, [*letters, renderer.end_id], [*letters, renderer.end_id])
    begun(policy)
    assert only(policy).text == "assistant"
    policy.observe(0, TOOL)
    only(policy)
    (row,) = policy.finish(0)
    assert list(sampled(row, 0)) == list(sampled(row, 1)) == [*letters, renderer.end_id]
    assert list(row.ids) == sampler.contexts[100]


def test_an_observation_that_begins_anew_begins_a_row(renderer: Renderer) -> None:
    turns = [[*renderer.turn(text), renderer.end_id] for text in ("store", "turn", "#### 72")]
    policy, sampler = recorded(renderer, *turns, episode=len(renderer.prompt(PROMPT)) + 30)
    begun(policy)
    only(policy)
    policy.observe(0, TOOL)
    only(policy)
    page = [Message("system", "Be brief."), Message("user", "Notes: 72")]
    policy.observe(0, page)
    assert policy.context(0) == tuple(renderer.prompt(page))
    assert only(policy).finish == "stop"  # budgets count from the new dialogue on
    first, second = policy.finish(0)
    assert list(first.ids) == sampler.contexts[100]
    assert list(second.ids) == [*renderer.prompt(page), *turns[2]] == sampler.contexts[101]
    assert [set(row.turns) - {-1} for row in (first, second)] == [{0, 1}, {2}]
    assert consistent(first)
    assert consistent(second)
    assert sampler.closed == [100, 101]
    assert len(set(sampler.seeds)) == 2


def test_a_dialogue_that_began_anew_is_resumed_from_there(renderer: Renderer) -> None:
    policy, sampler = recorded(renderer, [*renderer.turn("a"), renderer.end_id])
    page = [Message("system", "Be brief."), Message("user", "Notes: 72")]
    policy.resume(0, [*PROMPT, Message("assistant", "turn"), *page], (), task=TASK, seed=1)
    assert sampler.contexts[100] == renderer.prompt(page)


class TestBudgets:
    def test_a_turn_cut_by_length_ends_the_episode(self, renderer: Renderer) -> None:
        policy, _ = recorded(renderer, [*renderer.turn("a b c d e f"), renderer.end_id], turn=3)
        begun(policy)
        action = only(policy)
        assert (action.finish, len(action.token_ids)) == ("turn_tokens", 3)
        with pytest.raises(EpisodeError, match="cut by a budget"):
            policy.observe(0, TOOL)
        assert policy.poll() == []
        (row,) = policy.finish(0)
        assert sampled(row, 0) == action.token_ids
        assert row.mask[-3:] == (1, 1, 1)

    def test_a_turn_cut_by_the_rest_of_the_episodes_budget(self, renderer: Renderer) -> None:
        length = len(renderer.prompt(PROMPT))
        policy, _ = recorded(renderer, renderer.turn("a b c d e f"), turn=3, episode=length + 2)
        begun(policy)
        action = only(policy)
        assert (action.finish, len(action.token_ids)) == ("episode_tokens", 2)

    def test_a_turn_that_ends_with_its_last_token_is_whole(self, renderer: Renderer) -> None:
        ids = [*renderer.turn("a"), renderer.end_id]
        policy, _ = recorded(renderer, ids, turn=len(ids))
        begun(policy)
        assert only(policy).finish == "stop"

    @pytest.mark.parametrize("spare", [0, 1])
    def test_an_observation_needs_room_for_one_new_token(self, renderer: Renderer, spare: int) -> None:
        turn = [*renderer.turn("a"), renderer.end_id]
        length = len(renderer.prompt(PROMPT)) + len(turn) + len(renderer.bridge(TOOL, ended=True))
        policy, sampler = recorded(renderer, turn, turn, episode=length + spare)
        begun(policy)
        only(policy)
        policy.observe(0, TOOL)
        action = only(policy)
        assert action.finish == "episode_tokens"
        assert len(action.token_ids) == spare
        if not spare:
            assert action == Action("", finish="episode_tokens")
            assert len(sampler.contexts[100]) < length  # the sampler never saw the observation
        with pytest.raises(EpisodeError, match="cut by a budget"):
            policy.observe(0, TOOL)
        (row,) = policy.finish(0)
        assert len(row.ids) <= length + spare
        assert consistent(row)

    def test_a_prompt_that_does_not_fit(self, renderer: Renderer) -> None:
        policy, sampler = recorded(renderer, episode=len(renderer.prompt(PROMPT)))
        begun(policy)
        assert only(policy) == Action("", finish="episode_tokens")
        assert policy.finish(0) == ()
        assert sampler.contexts == {}

    def test_values_out_of_range(self, renderer: Renderer) -> None:
        for options, message in [
            ({"turn": 0}, "max_turn_tokens must be at least 1"),
            ({"episode": 0}, "max_episode_tokens must be at least 1"),
            ({"episode": 2001}, "exceeds the sampler's max_length=2000"),
        ]:
            with pytest.raises(ConfigError, match=message):
                recorded(renderer, **options)  # type: ignore[arg-type]


class TestRewrittenHistory:
    def test_each_turn_is_a_row_in_the_context_it_was_sampled_in(self, thinker: Renderer) -> None:
        assert not thinker.append_only
        texts = ["<think>\nhm\n</think>\n\nwhat?", "<think>\nso\n</think>\n\n72"]
        turns = [[*thinker.turn(text), thinker.end_id] for text in texts]
        policy, sampler = recorded(thinker, *turns)
        begun(policy)
        only(policy)
        follow = [Message("user", "48 + 24")]
        policy.observe(0, follow)
        only(policy)
        rows = policy.finish(0)
        assert len(rows) == 2
        history = [*PROMPT, Message("assistant", texts[0]), *follow]
        for number, (row, context) in enumerate(zip(rows, (PROMPT, history), strict=True)):
            assert list(row.ids) == [*thinker.prompt(context), *turns[number]]
            assert list(sampled(row, number)) == turns[number]
            assert consistent(row)
        assert [list(row.ids) for row in rows] == list(sampler.contexts.values())
        assert "hm" not in thinker.decode(rows[1].ids)
        assert sampler.closed == [100, 101]
        assert len(set(sampler.seeds)) == 2

    def test_a_context_without_room(self, thinker: Renderer) -> None:
        turn = [*thinker.turn("<think>\nhm\n</think>\n\nwhat?"), thinker.end_id]
        policy, _ = recorded(thinker, turn, episode=len(thinker.prompt(PROMPT)) + len(turn))
        begun(policy)
        only(policy)
        policy.observe(0, [Message("user", "a long observation " * 20)])
        assert only(policy) == Action("", finish="episode_tokens")
        assert len(policy.finish(0)) == 1


def test_use_out_of_order(renderer: Renderer) -> None:
    policy, sampler = recorded(renderer, [*renderer.turn("a"), renderer.end_id])
    assert policy.capacity == 4
    assert policy.poll() == []
    begun(policy)
    with pytest.raises(EpisodeError, match="live already"):
        begun(policy)
    with pytest.raises(EpisodeError, match="still owes a turn"):
        policy.observe(0, TOOL)
    for use in (lambda: policy.observe(7, TOOL), lambda: policy.finish(7)):
        with pytest.raises(EpisodeError, match=r"no live episode 7. Live: \[0\]"):
            use()
    assert policy.finish(0) == ()  # in mid-turn: nothing was sampled
    assert sampler.closed == [100]
    begun(policy)  # the number is free again


def test_a_refused_dialogue_leaves_the_policy_usable(
    make_tokenizer: Callable[..., Any], template_of: Callable[[str], str]
) -> None:
    gemma = Renderer(make_tokenizer(template_of("gemma")))
    policy, _ = recorded(gemma, [*gemma.turn("a"), gemma.end_id])
    with pytest.raises(TemplateError, match="roles must alternate"):
        policy.start(0, [Message("assistant", "first")], task=TASK, seed=0)
    begun(policy)
    assert only(policy).text == "a"


def play(
    policy: LLMPolicy, episodes: int, turns: int, delay: Callable[[int], int]
) -> dict[int, tuple[list[Action], tuple[TokenStream, ...]]]:
    """Play episodes whose environment answers each turn after some polls; return actions and rows."""
    waiting = list(range(episodes))
    actions: dict[int, list[Action]] = {}
    busy: dict[int, int] = {}
    out = {}
    for _ in range(5000):
        while waiting and len(actions) - len(out) < policy.capacity:
            episode = waiting.pop(0)
            actions[episode] = []
            policy.start(episode, [Message("user", f"question {episode}")], task=TASK, seed=episode)
        for episode in [e for e, left in busy.items() if left == 0]:
            del busy[episode]
            policy.observe(episode, [Message("tool", f"answer {episode}")])
        busy = {e: left - 1 for e, left in busy.items()}
        for episode, action in policy.poll():
            actions[episode].append(action)
            if action.finish == "stop" and len(actions[episode]) < turns:
                busy[episode] = delay(episode)
            else:
                out[episode] = (actions[episode], policy.finish(episode))
        if not waiting and len(out) == episodes:
            return out
    raise AssertionError("the episodes never ended")


def random_model(tokenizer: Any) -> Any:
    torch.manual_seed(0)
    sizes = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4}
    return LlamaForCausalLM(
        LlamaConfig(vocab_size=len(tokenizer), max_position_embeddings=512, initializer_range=0.1, **sizes)
    )


def engine(model: Any, renderer: Renderer, tokenizer: Any, slots: int) -> LLMPolicy:
    # A random model hardly ever ends a turn by itself: let common pieces do it as well.
    stops = renderer.stop_ids | set(range(0, len(tokenizer), 9))
    sampler = HFSampler(model, slots=slots, max_length=400, stop_ids=stops)
    return LLMPolicy(sampler, renderer, max_turn_tokens=30, max_episode_tokens=300)


def test_random_tokens_end_to_end(renderer: Renderer, tokenizer: Any) -> None:
    model = random_model(tokenizer)
    one = play(engine(model, renderer, tokenizer, 1), 6, 4, lambda episode: 0)
    many = play(engine(model, renderer, tokenizer, 4), 6, 4, lambda episode: 3 * episode)
    merged_again = 0
    for episode, (actions, rows) in many.items():
        (row,) = rows
        assert consistent(row)
        assert row.ids == one[episode][1][0].ids  # whatever ran beside it
        for number, action in enumerate(actions):
            assert sampled(row, number) == action.token_ids
            merged_again += renderer.turn(action.text) != list(action.token_ids)
        with torch.no_grad():
            logprobs = torch.log_softmax(model.eval()(input_ids=torch.tensor([row.ids])).logits[0].float(), -1)
        for at in (k for k, m in enumerate(row.mask) if m):
            assert row.logprobs[at] == pytest.approx(logprobs[at - 1, row.ids[at]].item(), abs=1e-5)
    assert merged_again > 5  # encode(decode(ids)) is not ids, and it does not matter


@pytest.mark.slow
def test_smollm2(smollm2_folder: Path, smollm2_tokenizer: Any) -> None:
    renderer = Renderer(smollm2_tokenizer)
    model = AutoModelForCausalLM.from_pretrained(smollm2_folder).eval()
    sampler = HFSampler(model, slots=3, max_length=400, stop_ids=renderer.stop_ids, temperature=0.0)
    policy = LLMPolicy(sampler, renderer, max_turn_tokens=24, max_episode_tokens=400)
    questions = ["What is the capital of France?", "Name a colour.", "How much is 2 + 2?"]
    for episode, question in enumerate(questions):
        policy.start(episode, [Message("user", question)], task=TASK, seed=episode)
    texts: dict[int, list[str]] = {0: [], 1: [], 2: []}
    rows: dict[int, TokenStream] = {}
    while len(rows) < 3:
        for episode, action in policy.poll():
            texts[episode].append(action.text)
            if action.finish == "stop" and len(texts[episode]) < 2:
                policy.observe(episode, [Message("user", "Are you sure? Answer in one word.")])
            else:
                (rows[episode],) = policy.finish(episode)
    assert "Paris" in texts[0][0]
    assert any(len(turns) == 2 for turns in texts.values())
    for row in rows.values():
        with torch.no_grad():
            logits = model(input_ids=torch.tensor([row.ids])).logits[0]
        logprobs = torch.log_softmax(logits.float(), -1)
        for at in (k for k, m in enumerate(row.mask) if m):
            assert row.ids[at] == logits[at - 1].argmax()
            assert row.logprobs[at] == pytest.approx(logprobs[at - 1, row.ids[at]].item(), abs=1e-4)
