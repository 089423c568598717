"""The sampler over vLLM's engine, with another engine behind the same few calls; vLLM's own is in test_vllm_engine."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM

from trajgym.envs.make import make
from trajgym.errors import ConfigError, EpisodeError, TrainingError, UnknownNameError
from trajgym.policies import vllm, vllm_engine
from trajgym.policies.base import SampledTurn
from trajgym.policies.llm import LLMPolicy
from trajgym.policies.render import Renderer
from trajgym.policies.turns import Order, turn_seed
from trajgym.policies.vllm import VLLMSampler
from trajgym.policies.vllm_engine import VLLMEngine, Written
from trajgym.policies.vllm_options import ServerOptions, VLLMOptions, read_sampler_options
from trajgym.policies.vllm_weights import checkpoint_weights, gap
from trajgym.rollout import EnvPool, Episode, collect
from trajgym.trainers.models import add_lora
from trajgym.types import Message, Task

VOCABULARY = 37
STOPS = (0, 1)
BLOCK = 4


def llama(seed: int = 0, *, tied: bool = True, vocabulary: int = VOCABULARY) -> Any:
    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=vocabulary,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=512,
        tie_word_embeddings=tied,
        initializer_range=0.2,
    )
    return LlamaForCausalLM(config).eval()


class PlainEngine:
    """Computes every token from the whole stream, and counts blocks of prefixes as vLLM does."""

    def __init__(self, model: Any, *, temperature: float = 1.0, stop_ids: Iterable[int] = STOPS) -> None:
        self.model, self.temperature, self.stops = copy.deepcopy(model).eval(), temperature, set(stop_ids)
        self.reported = temperature  # the temperature of the log-probabilities
        self.deaf = False  # does not take other weights
        self.calls: list[str] = []
        self.orders: list[Order] = []
        self.live: dict[int, tuple[Order, list[int], list[float], torch.Generator, int]] = {}
        self.known: set[tuple[int, ...]] = set()

    vocabulary = VOCABULARY

    def add(self, order: Order) -> None:
        self.orders.append(order)
        whole = range(BLOCK, len(order.ids), BLOCK)
        cached = max((n for n in whole if order.ids[:n] in self.known), default=0)
        self.live[order.stream] = (order, [], [], torch.Generator().manual_seed(order.seed), cached)

    def step(self) -> list[Written]:
        done = []
        for stream, (order, ids, logprobs, generator, cached) in list(self.live.items()):
            with torch.no_grad():
                logits = self.model(torch.tensor([[*order.ids, *ids]])).logits[0, -1].float()
            reported = torch.log_softmax(logits / self.reported, -1)
            probabilities = torch.softmax(logits / self.temperature, -1)
            token = 5 if probabilities.isnan().any() else int(torch.multinomial(probabilities, 1, generator=generator))
            ids.append(token)
            logprobs.append(float(reported[token]))
            if token in self.stops or len(ids) == order.max_new_tokens:
                del self.live[stream]
                stream_ids = (*order.ids, *ids[:-1])
                self.known |= {stream_ids[:n] for n in range(BLOCK, len(stream_ids) + 1, BLOCK)}
                done.append(Written(stream, tuple(ids), tuple(logprobs), cached))
        return done

    def abort(self, streams: Sequence[int]) -> None:
        for stream in streams:
            del self.live[stream]

    def load(self, weights: Iterable[tuple[str, Tensor]]) -> None:
        self.calls.append("load")
        if not self.deaf:
            self.model.load_state_dict(dict(weights))

    def forget(self) -> None:
        assert not self.live
        self.calls.append("forget")
        self.known.clear()

    def finite(self) -> bool:
        return all(bool(p.isfinite().all()) for p in self.model.parameters())

    def close(self) -> None:
        self.calls.append("close")


def sampler(engine: PlainEngine, **changes: Any) -> VLLMSampler:
    options: dict[str, Any] = {"slots": 3, "max_length": 200, "stop_ids": sorted(engine.stops)}
    options |= {"temperature": engine.temperature}
    return VLLMSampler("unused", make=lambda source, **arguments: engine, **options | changes)


def run(engine: VLLMSampler, *streams: int) -> dict[int, SampledTurn]:
    turns: dict[int, SampledTurn] = {}
    for _ in range(1000):
        turns |= {turn.stream: turn for turn in engine.step()}
        if set(streams) <= set(turns):
            return turns
    raise AssertionError(f"turns of {streams} never came out")


def test_a_dialogue_is_sampled_token_for_token_under_the_temperature() -> None:
    model = llama()
    engine = PlainEngine(model, temperature=0.7)
    ours = sampler(engine)
    stream = ours.open([5, 6, 7], seed=3)
    ids = [5, 6, 7]
    for observation, budget in (([], 9), ([8, 9], 4), ([10], 30)):
        ours.extend(stream, observation)
        ids += observation
        ours.generate(stream, max_new_tokens=budget)
        turn = run(ours, stream)[stream]
        assert engine.orders[-1].ids == tuple(ids)
        assert gap(model, ids, turn.ids, turn.logprobs, 0.7) < 1e-5
        assert turn.finish == ("stop" if turn.ids[-1] in STOPS else "length")
        assert turn.finish == "stop" or len(turn.ids) == budget
        ids += turn.ids
    assert ours.step() == []  # nothing to do


def test_turns_come_out_as_they_finish() -> None:
    ours = sampler(PlainEngine(llama(), stop_ids=()))
    short, long = ours.open([5], seed=0), ours.open([6], seed=0)
    ours.generate(long, max_new_tokens=9)
    ours.generate(short, max_new_tokens=2)
    assert [t.stream for _ in range(2) for t in ours.step()] == [short]
    assert ours.step() == []
    assert list(run(ours, long)) == [long]


def test_draws_depend_on_the_seed_and_on_nothing_beside() -> None:
    def turns(seed: int, crowd: int) -> list[tuple[int, ...]]:
        ours = sampler(PlainEngine(llama(), stop_ids=()))
        for other in range(crowd):
            ours.generate(ours.open([9, other], seed=other), max_new_tokens=50)
        stream, out = ours.open([5, 6], seed=seed), []
        for _ in range(2):
            ours.generate(stream, max_new_tokens=12)
            out.append(run(ours, stream)[stream].ids)
        return out

    alone = turns(1, 0)
    assert alone == turns(1, 2)
    assert alone != turns(2, 0)
    assert alone[0] != alone[1]  # a new turn has draws of its own
    assert turn_seed(1, 0) != turn_seed(1, 1) != turn_seed(2, 1)
    assert 0 <= turn_seed(2**70, 5) < 2**63


@pytest.mark.parametrize(
    ("act", "kind", "words"),
    [
        (lambda s, a: s.open([], seed=0), ConfigError, "at least one prompt token"),
        (lambda s, a: s.open([VOCABULARY], seed=0), ConfigError, "vocabulary of 37"),
        (lambda s, a: s.open([3] * 201, seed=0), ConfigError, "max_length=200"),
        (lambda s, a: [s.open([3], seed=0) for _ in range(3)], EpisodeError, "All 3 slots"),
        (lambda s, a: s.extend(a, [-1]), ConfigError, "vocabulary of 37"),
        (lambda s, a: s.extend(a, [3] * 200), ConfigError, "cannot take 200 more"),
        (lambda s, a: s.generate(a, max_new_tokens=0), ConfigError, "at least 1"),
        (lambda s, a: s.generate(a, max_new_tokens=200), ConfigError, "no room"),
        (lambda s, a: s.extend(99, [3]), EpisodeError, "no open stream 99"),
        (lambda s, a: [s.close(a), s.close(a)], EpisodeError, "no open stream"),
        (lambda s, a: [s.generate(a, max_new_tokens=9), s.extend(a, [3])], EpisodeError, "middle of a turn"),
        (lambda s, a: s.update_weights(llama()), EpisodeError, "between rollouts"),
    ],
)
def test_what_cannot_be_asked_for(act: Callable[[VLLMSampler, int], object], kind: type[Exception], words: str) -> None:
    ours = sampler(PlainEngine(llama()))
    stream = ours.open([5, 6], seed=0)
    with pytest.raises(kind, match=words):
        act(ours, stream)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"slots": 0}, "slots must be at least 1"),
        ({"max_length": 0}, "max_length"),
        ({"temperature": -1.0}, "finite and not negative"),
        ({"temperature": math.inf}, "finite and not negative"),
        ({"temperature": 0.001}, "at least 0.01 for vLLM"),
    ],
)
def test_options_out_of_range(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        sampler(PlainEngine(llama()), **changes)


def test_closing_and_resetting_drop_turns_under_way() -> None:
    engine = PlainEngine(llama(), stop_ids=())
    ours = sampler(engine)
    first, second = ours.open([5], seed=0), ours.open([6], seed=0)
    for stream in (first, second):
        ours.generate(stream, max_new_tokens=3)
    ours.step()
    ours.close(first)
    assert list(engine.live) == [second]
    ours.reset()
    assert not engine.live
    assert engine.calls == ["forget"]
    assert [ours.open([7], seed=0) for _ in range(3)]  # all slots are free again


def test_a_later_turn_computes_what_is_new() -> None:
    ours = sampler(PlainEngine(llama(), stop_ids=()))
    stream = ours.open([5] * 10, seed=0)
    ours.generate(stream, max_new_tokens=7)
    run(ours, stream)
    assert ours.computed_tokens == 10 + 6  # the last token has not gone through the model
    ours.extend(stream, [8, 9, 10])
    ours.generate(stream, max_new_tokens=2)
    run(ours, stream)
    assert ours.computed_tokens == 16 + (20 - 16) + 1  # 16 of 20 are whole blocks known already
    assert (ours.counters.prompt_tokens, ours.counters.sampled_tokens) == (13, 9)


@pytest.mark.parametrize("tied", [True, False])
def test_weights_follow_and_nothing_cached_survives(tied: bool) -> None:
    engine = PlainEngine(llama(tied=tied))
    ours, other = sampler(engine), llama(7, tied=tied)
    ours.update_weights(other)
    assert ours.gap < 1e-5
    assert engine.calls == ["load", "forget"]
    assert not engine.known
    assert all(torch.equal(a, b) for a, b in zip(engine.model.parameters(), other.parameters(), strict=True))


def test_adapters_are_added_on_the_way() -> None:
    model = add_lora(llama(), rank=3, alpha=6, targets=("q_proj", "down_proj"), seed=0)
    engine = PlainEngine(llama())
    with torch.no_grad():
        for name, p in model.named_parameters():
            if "lora_B" in name:
                p.normal_()
    before = {name: p.clone() for name, p in model.named_parameters()}
    ours = sampler(engine, temperature=1.0)
    ours.update_weights(model)
    assert ours.gap < 1e-4
    assert all(torch.equal(before[name], p) for name, p in model.named_parameters())
    merged = copy.deepcopy(model).merge_and_unload()
    for name, weight in checkpoint_weights(model):
        torch.testing.assert_close(weight, merged.state_dict()[name])


@pytest.mark.filterwarnings("ignore:.*is_gradient_checkpointing:FutureWarning")  # peft asks by an old name
def test_adapters_that_cannot_be_added_are_refused() -> None:
    from peft import LoraConfig, get_peft_model

    for changes in ({"use_dora": True}, {"modules_to_save": ["lm_head"]}):
        given = LoraConfig(r=2, target_modules=["q_proj"], task_type="CAUSAL_LM", **changes)
        with pytest.raises(ConfigError, match="only plain LoRA"):
            checkpoint_weights(get_peft_model(llama(tied=False), given))


def test_names_are_those_of_a_checkpoint_and_tied_ones_have_both() -> None:
    model = llama()
    names = dict(checkpoint_weights(model))
    assert names.keys() == model.state_dict().keys()
    assert names["lm_head.weight"].data_ptr() == names["model.embed_tokens.weight"].data_ptr()


def test_an_engine_that_does_not_follow_is_noticed() -> None:
    engine = PlainEngine(llama())
    engine.deaf = True
    with pytest.raises(ConfigError, match="samples from another model"):
        sampler(engine).update_weights(llama(7))


def test_logprobs_of_another_temperature_are_noticed() -> None:
    engine = PlainEngine(llama(), temperature=0.3)
    engine.reported = 1.0
    with pytest.raises(ConfigError, match="processed_logprobs"):
        sampler(engine).update_weights(llama())


def test_numbers_that_are_none() -> None:
    engine = PlainEngine(llama(), stop_ids=())
    ours = sampler(engine)
    engine.model.model.norm.register_forward_hook(lambda *_: torch.full((1, 1, 32), math.nan))
    stream = ours.open([5], seed=0)
    ours.generate(stream, max_new_tokens=1)
    assert math.isnan(run(ours, stream)[stream].logprobs[0])  # the rollout makes that trajectory invalid
    with torch.no_grad():
        engine.model.model.embed_tokens.weight[0, 0] = math.nan
    ours.generate(stream, max_new_tokens=1)
    with pytest.raises(TrainingError, match="diverged"):
        run(ours, stream)


@pytest.mark.parametrize(
    "broken",
    [
        lambda w: replace(w, logprobs=w.logprobs[:-1]),
        lambda w: replace(w, ids=(), logprobs=()),
        lambda w: replace(w, ids=w.ids[:1], logprobs=w.logprobs[:1]),
        lambda w: replace(w, ids=w.ids * 2, logprobs=w.logprobs * 2),
    ],
)
def test_an_engine_that_breaks_its_promises(broken: Callable[[Written], Written]) -> None:
    engine = PlainEngine(llama(), stop_ids=())
    ours, honest = sampler(engine), engine.step
    engine.step = lambda: [broken(written) for written in honest()]  # type: ignore[method-assign]
    stream = ours.open([5], seed=0)
    ours.generate(stream, max_new_tokens=3)
    with pytest.raises(RuntimeError, match="The engine wrote"):
        run(ours, stream)


@pytest.mark.parametrize("thinking", [False, True])
def test_episodes_are_played_also_with_a_stream_for_each_turn(
    thinking: bool, make_tokenizer: Callable[..., Any], template_of: Callable[[str], str]
) -> None:
    tokenizer = make_tokenizer(*([template_of("qwen3")] if thinking else []))
    renderer = Renderer(tokenizer, thinking=thinking)
    assert renderer.append_only is not thinking
    engine = PlainEngine(llama(vocabulary=len(tokenizer)), stop_ids=renderer.stop_ids)
    engine.vocabulary = len(tokenizer)  # type: ignore[misc]
    ours = sampler(engine, max_length=400)
    policy = LLMPolicy(ours, renderer, max_turn_tokens=30, max_episode_tokens=400)
    task = Task("t", "", "")
    policy.start(0, [Message("user", "48 + 24")], task=task, seed=4)
    finished = 0
    while finished < 3:
        for _, action in policy.poll():
            finished += 1
            if action.finish != "stop":
                finished = 3
            elif finished < 3:
                policy.observe(0, [Message("user", "the tool returns 72")])
    rows = policy.finish(0)
    assert len(rows) == (len(engine.orders) if thinking else 1)
    for row in rows:
        sampled = [k for k, bit in enumerate(row.mask) if bit]
        first, last = sampled[0], sampled[-1] + 1
        turns = [k for k in sampled if row.turns[k] == row.turns[first]]
        ids = row.ids[first : first + len(turns)]
        assert gap(engine.model, row.ids[:first], ids, row.logprobs[first : first + len(turns)], 1.0) < 1e-5
        assert last <= len(row.ids)
    assert not ours._streams


def test_a_fault_of_the_engine_costs_the_episodes_under_way_alone(make_tokenizer: Callable[..., Any]) -> None:
    tokenizer = make_tokenizer()
    renderer = Renderer(tokenizer)
    engine = PlainEngine(llama(vocabulary=len(tokenizer)), stop_ids=renderer.stop_ids)
    engine.vocabulary = len(tokenizer)  # type: ignore[misc]
    honest, steps = engine.step, iter(range(10**6))

    def failing() -> list[Written]:
        if next(steps) == 3:
            raise RuntimeError("out of blocks")
        return honest()

    engine.step = failing  # type: ignore[method-assign]
    policy = LLMPolicy(sampler(engine, slots=2, max_length=500), renderer, max_turn_tokens=12, max_episode_tokens=500)
    with EnvPool(lambda: make("ArithmeticTool-v0", tools=()), threads=0) as pool:
        played = collect(policy, pool, [Episode(k, k) for k in range(5)], policy_may_fail=True)
    assert [t.valid for t in played] == [False, False, True, True, True]
    assert "out of blocks" in str(played[0].fault)


def test_without_vllm_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vllm_engine, "installed", lambda: False)
    with pytest.raises(ConfigError, match=r"trajgym\[vllm\]"):
        VLLMEngine("x", slots=1, max_length=8, stop_ids=(), temperature=1.0, arguments={})
    with pytest.raises(ConfigError, match="sampler: hf"):
        VLLMSampler("x", slots=1, max_length=8, stop_ids=())
    assert vllm.VLLMEngine is VLLMEngine


def test_options_are_read_and_unknown_ones_listed() -> None:
    options = read_sampler_options("vllm", {"kv_cache_gib": 2, "engine": {"kv_cache_dtype": "fp8"}})
    assert isinstance(options, VLLMOptions)
    assert options.arguments("bfloat16") == {
        "gpu_memory_utilization": 0.4,
        "enforce_eager": False,
        "dtype": "bfloat16",
        "kv_cache_memory_bytes": 2**31,
        "kv_cache_dtype": "fp8",
    }
    assert isinstance(read_sampler_options("vllm_server", {"url": "http://here:1"}), ServerOptions)
    assert read_sampler_options("hf", {}) is None
    with pytest.raises(UnknownNameError, match=r"Did you mean 'enforce_eager'.*kv_cache_gib.*sampler_options"):
        read_sampler_options("vllm", {"enforce_eagre": True})
    for sampler_name, values, words in (
        ("vllm", {"gpu_memory_utilization": 1.5}, "gpu_memory_utilization: .*less than or equal to 1, got 1.5"),
        ("vllm", {"engine": {"dtype": "float16"}}, "engine holds dtype"),
        ("vllm_server", {}, "url: Field required"),
        ("vllm_server", {"url": "here:1"}, "web address"),
        ("hf", {"url": "http://here:1"}, "mean nothing to sampler hf"),
    ):
        with pytest.raises(ConfigError, match=words):
            read_sampler_options(sampler_name, values)
