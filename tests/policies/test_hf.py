from __future__ import annotations

import math
import random
from collections.abc import Callable
from typing import Any

import pytest
import torch
from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM, Qwen3Config, Qwen3ForCausalLM

from trajgym.errors import EpisodeError
from trajgym.policies.base import SampledTurn
from trajgym.policies.hf import HFSampler

VOCABULARY = 37
SIZES = {"vocab_size": VOCABULARY, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2}


def llama(kv_heads: int = 4, attention: str = "sdpa") -> Any:
    torch.manual_seed(0)
    config = LlamaConfig(
        **SIZES,
        num_attention_heads=4,
        num_key_value_heads=kv_heads,
        max_position_embeddings=256,
        attn_implementation=attention,
        initializer_range=0.2,  # far from uniform, so that a wrong key changes the distribution
    )
    return LlamaForCausalLM(config).eval()


def qwen3() -> Any:
    torch.manual_seed(1)
    config = Qwen3Config(
        **SIZES,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=16,
        initializer_range=0.2,
        max_position_embeddings=256,
    )
    return Qwen3ForCausalLM(config).eval()


def gpt2() -> Any:
    torch.manual_seed(2)
    config = GPT2Config(vocab_size=VOCABULARY, n_embd=32, n_layer=2, n_head=4, n_positions=256, initializer_range=0.3)
    return GPT2LMHeadModel(config).eval()


MODELS: dict[str, Callable[[], Any]] = {
    "llama": llama,
    "llama grouped-query": lambda: llama(kv_heads=2),
    "llama multi-query eager": lambda: llama(kv_heads=1, attention="eager"),
    "qwen3": qwen3,
    "gpt2": gpt2,
}


def sampler(model: Any, **changes: Any) -> HFSampler:
    options: dict[str, Any] = {"slots": 3, "max_length": 200, "stop_ids": (0, 1)}
    return HFSampler(model, **options | changes)


def run(engine: HFSampler, *streams: int) -> dict[int, SampledTurn]:
    """Step until these streams' turns are out."""
    turns: dict[int, SampledTurn] = {}
    for _ in range(1000):
        turns |= {turn.stream: turn for turn in engine.step()}
        if set(streams) <= set(turns):
            return turns
    raise AssertionError(f"turns of {streams} never came out")


class Dialogue:
    """A stream with ragged prompt, turns and observations, all of them functions of its seed."""

    def __init__(self, seed: int, turns: int = 4, system: list[int] | None = None) -> None:
        draw = random.Random(seed)
        self.seed = seed
        self.prompt = (system or []) + [draw.randrange(2, VOCABULARY) for _ in range(draw.randint(1, 25))]
        self.parts = [[draw.randrange(2, VOCABULARY) for _ in range(draw.randint(0, 12))] for _ in range(turns - 1)]
        self.budgets = [draw.randint(1, 9) for _ in range(turns)]
        self.ids: list[int] = []
        self.logprobs: list[float] = []  # NaN where nothing was sampled
        self.turns: list[SampledTurn] = []

    def begin(self, engine: HFSampler) -> None:
        self.stream = engine.open(self.prompt, seed=self.seed)
        self._given(self.prompt)
        engine.generate(self.stream, max_new_tokens=self.budgets[0])

    def take(self, turn: SampledTurn, engine: HFSampler) -> bool:
        """Note the turn and ask for the next one; return whether there is one."""
        self.turns.append(turn)
        self.ids += turn.ids
        self.logprobs += turn.logprobs
        if len(self.turns) > len(self.parts):
            engine.close(self.stream)
            return False
        part = self.parts[len(self.turns) - 1]
        engine.extend(self.stream, part)
        self._given(part)
        engine.generate(self.stream, max_new_tokens=self.budgets[len(self.turns)])
        return True

    def _given(self, ids: list[int]) -> None:
        self.ids += ids
        self.logprobs += [math.nan] * len(ids)


def play(engine: HFSampler, dialogues: list[Dialogue], start: Callable[[int], bool] = lambda step: True) -> None:
    """Play all dialogues, each beginning as soon as a slot is free and ``start(step)`` allows it."""
    waiting, live = list(dialogues), dict[int, Dialogue]()
    for step in range(5000):
        if waiting and len(live) < engine.slots and start(step):
            dialogue = waiting.pop(0)
            dialogue.begin(engine)
            live[dialogue.stream] = dialogue
        for turn in engine.step():
            if not live[turn.stream].take(turn, engine):
                del live[turn.stream]
        if not waiting and not live:
            return
    raise AssertionError("the dialogues never ended")


@torch.no_grad()
def reference(model: Any, ids: list[int], temperature: float = 1.0) -> torch.Tensor:
    """Log-probability of each token but the first, by one pass over the whole sequence."""
    logits = model(input_ids=torch.tensor([ids])).logits[0].float() / temperature
    return torch.log_softmax(logits, -1)[:-1].gather(1, torch.tensor(ids)[1:, None])[:, 0]


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_cached_logprobs_equal_a_full_forward_pass(name: str, temperature: float) -> None:
    model = MODELS[name]()
    dialogues = [Dialogue(seed) for seed in range(9)]
    play(sampler(model, slots=4, temperature=temperature), dialogues, start=lambda step: step % 3 == 0)
    checked = 0
    for dialogue in dialogues:
        expected = reference(model, dialogue.ids, temperature).tolist()
        for got, want in zip(dialogue.logprobs[1:], expected, strict=True):
            if not math.isnan(got):
                assert got == pytest.approx(want, abs=1e-5)
                checked += 1
    assert checked == sum(len(turn.ids) for dialogue in dialogues for turn in dialogue.turns) > 100


@pytest.mark.parametrize("slots", [3, 8])
@pytest.mark.parametrize("pace", [1, 4])
def test_a_stream_draws_the_same_tokens_whatever_runs_beside_it(slots: int, pace: int) -> None:
    model = llama(kv_heads=2)
    alone, together = [Dialogue(seed) for seed in range(8)], [Dialogue(seed) for seed in range(8)]
    play(sampler(model, slots=1), alone)
    play(sampler(model, slots=slots), together, start=lambda step: step % pace == 0)
    assert [d.ids for d in alone] == [d.ids for d in together]
    assert len({tuple(d.ids) for d in alone}) == 8


def test_prompts_that_start_together_are_computed_once_and_sampled_apart() -> None:
    engine = sampler(llama(), slots=4, stop_ids=())
    prompt = list(range(2, 12))
    streams = [engine.open(prompt, seed=seed) for seed in (5, 6, 7)]
    for stream in streams:
        engine.generate(stream, max_new_tokens=6)
    turns = run(engine, *streams)
    assert engine.counters.computed_tokens == len(prompt) + 3 * 5
    assert engine.counters.prompt_tokens == 3 * len(prompt)
    assert engine.counters.sampled_tokens == 3 * 6
    for seed, stream in zip((5, 6, 7), streams, strict=True):
        single = sampler(llama(), stop_ids=())
        only = single.open(prompt, seed=seed)
        single.generate(only, max_new_tokens=6)
        assert run(single, only)[only].ids == turns[stream].ids


@pytest.mark.parametrize("make", [llama, qwen3])
def test_greedy_equals_generate(make: Callable[[], Any]) -> None:
    model = make()
    model.generation_config.eos_token_id = None
    engine = sampler(model, temperature=0.0, stop_ids=())
    prompts = [[5, 6, 7], [9], [3, 8, 4, 2, 20, 21]]
    streams = [engine.open(prompt, seed=k) for k, prompt in enumerate(prompts)]
    for stream in streams:
        engine.generate(stream, max_new_tokens=20)
    turns = run(engine, *streams)
    for stream, prompt in zip(streams, prompts, strict=True):
        ids = torch.tensor([prompt])
        options = {"do_sample": False, "max_new_tokens": 20, "pad_token_id": 0}
        expected = model.generate(ids, attention_mask=torch.ones_like(ids), **options)[0, len(prompt) :]
        assert list(turns[stream].ids) == expected.tolist()
        full = reference(model, prompt + list(turns[stream].ids))[len(prompt) - 1 :]
        assert turns[stream].logprobs == pytest.approx(full.tolist(), abs=1e-5)


def test_draws_follow_the_models_distribution() -> None:
    model = llama()
    engine = sampler(model, slots=64, stop_ids=())
    prompt, n = [4, 9, 3], 4096
    counts = torch.zeros(VOCABULARY)
    for first in range(0, n, 64):
        streams = [engine.open(prompt, seed=1000 + first + k) for k in range(64)]
        for stream in streams:
            engine.generate(stream, max_new_tokens=1)
        for turn in engine.step():
            counts[turn.ids[0]] += 1
            engine.close(turn.stream)
    with torch.no_grad():
        expected = n * torch.softmax(model(input_ids=torch.tensor([prompt])).logits[0, -1], -1)
    rare = expected < 5  # pooled, as the test wants at least 5 expected in each cell
    observed = torch.cat([counts[~rare], counts[rare].sum()[None]])
    wanted = torch.cat([expected[~rare], expected[rare].sum()[None]])
    freedom = len(wanted) - 1
    assert freedom >= 4
    chi_square = ((observed - wanted) ** 2 / wanted).sum().item()
    # Wilson and Hilferty's approximation of the 99.9 % point.
    assert chi_square < freedom * (1 - 2 / (9 * freedom) + 3.09 * math.sqrt(2 / (9 * freedom))) ** 3


def test_a_stop_token_ends_the_turn_and_is_part_of_it() -> None:
    model = llama()
    free = sampler(model, temperature=0.0, stop_ids=())
    stream = free.open([5, 6, 7], seed=0)
    free.generate(stream, max_new_tokens=12)
    ids = run(free, stream)[stream].ids
    stop = ids[4]
    engine = sampler(model, temperature=0.0, stop_ids=(stop,))
    stream = engine.open([5, 6, 7], seed=0)
    engine.generate(stream, max_new_tokens=12)
    turn = run(engine, stream)[stream]
    assert (turn.ids, turn.finish) == (ids[: ids.index(stop) + 1], "stop")


def test_a_budget_ends_the_turn() -> None:
    engine = sampler(llama(), stop_ids=())
    stream = engine.open([5], seed=0)
    for budget in (1, 7):
        engine.generate(stream, max_new_tokens=budget)
        turn = run(engine, stream)[stream]
        assert (len(turn.ids), len(turn.logprobs), turn.finish) == (budget, budget, "length")


def test_a_stop_token_at_the_last_chance_counts_as_stop() -> None:
    engine = sampler(llama(), stop_ids=range(VOCABULARY))
    stream = engine.open([5], seed=0)
    engine.generate(stream, max_new_tokens=1)
    assert run(engine, stream)[stream].finish == "stop"


def test_a_waiting_stream_costs_nothing_and_blocks_nobody() -> None:
    engine = sampler(llama(), stop_ids=())
    waits, works = engine.open([3, 4], seed=0), engine.open([5, 6, 7], seed=1)
    engine.generate(waits, max_new_tokens=2)
    run(engine, waits)  # from here on its environment is busy
    before = engine.counters.computed_tokens
    engine.generate(works, max_new_tokens=30)
    run(engine, works)
    assert engine.counters.computed_tokens - before == 3 + 29
    engine.extend(waits, [8, 9])
    engine.generate(waits, max_new_tokens=3)
    assert len(run(engine, waits)[waits].ids) == 3


def test_nothing_to_do() -> None:
    engine = sampler(llama())
    assert engine.step() == []
    engine.open([3], seed=0)
    assert engine.step() == []


def test_a_slot_is_used_again_without_a_trace() -> None:
    model = llama()
    engine = sampler(model, slots=1, stop_ids=())
    first = engine.open(list(range(2, 30)), seed=3)
    engine.generate(first, max_new_tokens=40)
    run(engine, first)
    engine.close(first)
    again = engine.open([7, 8], seed=4)
    engine.generate(again, max_new_tokens=10)
    fresh = sampler(model, slots=1, stop_ids=())
    other = fresh.open([7, 8], seed=4)
    fresh.generate(other, max_new_tokens=10)
    got, want = run(engine, again)[again], run(fresh, other)[other]
    assert got.ids == want.ids
    assert got.logprobs == pytest.approx(want.logprobs, abs=1e-6)


@pytest.mark.parametrize("steps", [0, 1, 3])
def test_closing_in_mid_turn_drops_the_turn_and_spares_the_others(steps: int) -> None:
    engine, undisturbed = sampler(llama(), stop_ids=()), sampler(llama(), stop_ids=())
    doomed, kept = engine.open([3, 4], seed=0), engine.open([5, 6, 7], seed=1)
    alone = undisturbed.open([5, 6, 7], seed=1)
    engine.generate(doomed, max_new_tokens=20)
    engine.generate(kept, max_new_tokens=8)
    undisturbed.generate(alone, max_new_tokens=8)
    for _ in range(steps):
        assert engine.step() == []
    engine.close(doomed)
    replacement = engine.open([9], seed=2)
    engine.generate(replacement, max_new_tokens=12)
    turns = run(engine, kept, replacement)
    assert set(turns) == {kept, replacement}
    assert turns[kept].ids == run(undisturbed, alone)[alone].ids


def test_reset_drops_everything_and_new_weights_are_used() -> None:
    model = llama()
    engine = sampler(model, stop_ids=())
    old = engine.open([3, 4, 5], seed=0)
    engine.generate(old, max_new_tokens=5)
    before = run(engine, old)[old].logprobs
    with torch.no_grad():
        model.lm_head.weight.mul_(0.5)
    engine.reset()
    with pytest.raises(EpisodeError, match="no open stream"):
        engine.generate(old, max_new_tokens=1)
    new = engine.open([3, 4, 5], seed=0)
    engine.generate(new, max_new_tokens=5)
    turn = run(engine, new)[new]
    assert turn.logprobs != before
    expected = reference(model, [3, 4, 5, *turn.ids])[2:]
    assert turn.logprobs == pytest.approx(expected.tolist(), abs=1e-5)


@pytest.mark.filterwarnings("ignore:.*is_gradient_checkpointing:FutureWarning")  # peft asks for the old name
def test_a_lora_wrapper_samples_with_its_adapters() -> None:
    peft = pytest.importorskip("peft")
    model = peft.get_peft_model(llama(), peft.LoraConfig(r=4, target_modules=["q_proj", "v_proj"]))
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "lora_B" in name:
                parameter.normal_()
    engine = sampler(model, stop_ids=())
    stream = engine.open([3, 4, 5], seed=0)
    engine.generate(stream, max_new_tokens=8)
    turn = run(engine, stream)[stream]
    assert turn.logprobs == pytest.approx(reference(model.eval(), [3, 4, 5, *turn.ids])[2:].tolist(), abs=1e-5)
    with model.disable_adapter():
        assert turn.logprobs != pytest.approx(reference(model, [3, 4, 5, *turn.ids])[2:].tolist(), abs=1e-2)


def test_the_model_stays_trainable_and_the_global_generator_untouched() -> None:
    model = llama().train()
    state = torch.get_rng_state()
    engine = sampler(model)
    stream = engine.open([3, 4, 5], seed=0)
    engine.generate(stream, max_new_tokens=5)
    run(engine, stream)
    assert model.training
    assert torch.equal(torch.get_rng_state(), state)
    model(input_ids=torch.tensor([[3, 4]])).logits.sum().backward()
    assert all(parameter.grad is not None for parameter in model.parameters())


def test_dropout_does_not_reach_the_sampler() -> None:
    model = gpt2().train()
    engine = sampler(model, stop_ids=())
    stream = engine.open([3, 4, 5], seed=0)
    engine.generate(stream, max_new_tokens=8)
    turn = run(engine, stream)[stream]
    expected = reference(model.eval(), [3, 4, 5, *turn.ids])[2:]
    assert turn.logprobs == pytest.approx(expected.tolist(), abs=1e-5)


def test_long_and_short_chunks_share_no_batch_and_still_agree() -> None:
    model = llama()
    engine = sampler(model, slots=6, stop_ids=(), prefill_tokens=32)
    prompts = [[5] * n for n in (1, 2, 40, 41, 90, 3)]
    streams = [engine.open(prompt, seed=k) for k, prompt in enumerate(prompts)]
    for stream in streams:
        engine.generate(stream, max_new_tokens=4)
    turns = run(engine, *streams)
    assert engine.counters.computed_tokens < 1.2 * sum(map(len, prompts)) + 6 * 3
    for stream, prompt in zip(streams, prompts, strict=True):
        expected = reference(model, prompt + list(turns[stream].ids))[len(prompt) - 1 :]
        assert turns[stream].logprobs == pytest.approx(expected.tolist(), abs=1e-5)


SYSTEM = [2 + k % 30 for k in range(70)]  # long enough for a pass of the model's own, and short rests for ours


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("pace", [1, 3])
def test_what_prompts_begin_with_is_computed_once(name: str, pace: int) -> None:
    model = MODELS[name]()
    dialogues = [Dialogue(seed, system=SYSTEM) for seed in range(9)] + [Dialogue(seed) for seed in range(9, 12)]
    engine = sampler(model, slots=4)
    play(engine, dialogues, start=lambda step: step % pace == 0)
    for d in dialogues:
        found = [(got, want) for got, want in zip(d.logprobs[1:], reference(model, d.ids), strict=True) if got == got]
        assert len(found) == sum(len(turn.ids) for turn in d.turns)
        assert [got for got, _ in found] == pytest.approx([float(want) for _, want in found], abs=1e-5)
    apart = sampler(model, slots=1)  # a stream that is closed leaves nothing behind
    alone = [Dialogue(seed, system=SYSTEM) for seed in range(9)] + [Dialogue(seed) for seed in range(9, 12)]
    play(apart, alone)
    assert [d.ids for d in dialogues] == [d.ids for d in alone]
    assert apart.counters.computed_tokens - engine.counters.computed_tokens > 5 * len(SYSTEM) - 100  # less padding


def test_tokens_taken_over_are_counted_exactly() -> None:
    engine = sampler(llama(), slots=6, stop_ids=())
    ends = ([3], [4], [4], [5, 6])
    streams = [engine.open(SYSTEM + end, seed=k) for k, end in enumerate(ends)]
    for stream in streams:
        engine.generate(stream, max_new_tokens=1)
    turns = run(engine, *streams)
    # The first prompt whole; of the others what is left, padded to the longest, and the group of two once.
    assert engine.counters.computed_tokens == len(SYSTEM) + 1 + 2 * 2
    late = engine.open([*SYSTEM, 4], seed=9)  # the very prompt of an open stream: its last token alone
    engine.generate(late, max_new_tokens=1)
    turns |= run(engine, late)
    assert engine.counters.computed_tokens == len(SYSTEM) + 1 + 2 * 2 + 1
    assert engine.counters.prompt_tokens == 5 * len(SYSTEM) + 6
    for stream, end in zip([*streams, late], (*ends, [4]), strict=True):
        expected = reference(llama(), SYSTEM + end + list(turns[stream].ids))[-1:]
        assert turns[stream].logprobs == pytest.approx(expected.tolist(), abs=1e-5)


def test_a_prompt_given_in_two_parts_is_still_the_same_dialogue() -> None:
    engine = sampler(llama(), slots=6, stop_ids=())
    streams = [engine.open([*SYSTEM, 4, 5], seed=0), engine.open(SYSTEM[:18], seed=1), engine.open(SYSTEM[:9], seed=2)]
    streams.append(engine.open([*SYSTEM, 9], seed=3))
    engine.extend(streams[1], [*SYSTEM[18:], 4, 5])
    engine.extend(streams[2], [*SYSTEM[9:], 4, 5])
    for stream in streams:
        engine.generate(stream, max_new_tokens=1)
    turns = run(engine, *streams)
    for stream, end in zip(streams, ([4, 5], [4, 5], [4, 5], [9]), strict=True):
        expected = reference(llama(), SYSTEM + end + list(turns[stream].ids))[-1:]
        assert turns[stream].logprobs == pytest.approx(expected.tolist(), abs=1e-5)
