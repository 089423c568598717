from __future__ import annotations

import math
import random
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn.functional import scaled_dot_product_attention
from transformers import LlamaConfig, LlamaForCausalLM

from trajgym.policies import hf
from trajgym.policies.hf import HFSampler
from trajgym.policies.kv import Pass, RowCache
from trajgym.policies.prefix import CommonPrefix, common_prefix

CPU = torch.device("cpu")
A, B = (1,) * 100 + (2,) * 100, (1,) * 100 + (3,) * 60


def sets(plan: CommonPrefix | None) -> list[set[int]] | None:
    return None if plan is None else [set(rows.tolist()) for rows in plan.members]


def test_equal_prompts_are_a_set_and_the_shortest_one_says_how_much_is_shared() -> None:
    plan = common_prefix([B, A, A, B, A], 250, CPU)
    assert plan is not None
    assert plan.length == 160
    assert sets(plan) == [{1, 2, 4}, {0, 3}]
    assert plan.members.flatten()[plan.place].tolist() == [0, 1, 2, 3, 4]


def test_one_beginning_for_all_where_that_saves_more() -> None:
    prompts = [(7,) * 200 + (i,) * 20 for i in range(6)]
    plan = common_prefix(prompts, 240, CPU)
    assert plan is not None
    assert (plan.length, sets(plan)) == (200, [set(range(6))])


@pytest.mark.parametrize(
    ("prompts", "width"),
    [
        pytest.param([A], 250, id="nobody to share with"),
        pytest.param([(1,) * 100, (1,) * 100], 120, id="too short"),
        pytest.param([A, A], 2000, id="little of what is read"),
        pytest.param([A, (5,) * 200], 250, id="nothing in common"),
    ],
)
def test_what_would_not_pay_is_left_alone(prompts: list[tuple[int, ...]], width: int) -> None:
    assert common_prefix(prompts, width, CPU) is None


def test_other_devices_keep_their_own_kernels() -> None:
    assert common_prefix([A, A, A], 210, torch.device("meta")) is None


def test_what_is_held_stays_as_long_as_the_same_is_shared() -> None:
    first = common_prefix([A, A, B, B], 210, CPU)
    assert first is not None
    first.held[0] = (torch.zeros(1), torch.ones(1))
    same = common_prefix([B, B, A, A, A], 210, CPU, first)
    other = common_prefix([A, A, A], 210, CPU, first)
    assert same is not None
    assert other is not None
    assert same.held == first.held
    assert not other.held


@settings(max_examples=40, deadline=None)
@given(
    seed=st.integers(0, 10**6),
    groups=st.lists(st.integers(1, 5), min_size=1, max_size=4),
    each=st.sampled_from([1, 3]),
    kind=st.sampled_from([torch.float32, torch.float64, torch.bfloat16]),
)
def test_attention_in_two_parts_is_attention(seed: int, groups: list[int], each: int, kind: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(seed)
    rows, heads, size, shared = sum(groups), 2, 8, 11
    keys, values = (torch.randn(rows, heads, 20, size, generator=generator, dtype=torch.float64) for _ in range(2))
    owner = [g for g, members in enumerate(groups) for _ in range(members)]
    for row, g in enumerate(owner):
        for states in (keys, values):
            states[row, :, :shared] = states[owner.index(g), :, :shared]
    order = torch.randperm(rows, generator=generator).tolist()
    keys, values = keys[order].to(kind), values[order].to(kind)
    cache = RowCache(rows, 20)
    everything = torch.arange(20).expand(rows, 20)
    cache.begin(Pass(torch.arange(rows), everything, torch.ones_like(everything, dtype=torch.bool), 0), 20)
    cache.update(keys, values, 0)
    queries = torch.randn(rows, heads, each, size, generator=generator, dtype=torch.float64).to(kind)
    last = torch.randint(shared, 20, (rows, 1, 1, 1), generator=generator)
    mask = torch.zeros((), dtype=kind).where(torch.arange(20) <= last, -torch.inf)

    members = [[row for row in range(rows) if owner[order[row]] == g] for g in range(len(groups))]
    most = max(map(len, members))
    place = {row: g * most + k for g, found in enumerate(members) for k, row in enumerate(found)}
    plan = CommonPrefix(
        shared,
        torch.tensor([found + found[:1] * (most - len(found)) for found in members]),
        torch.tensor([place[row] for row in range(rows)]),
        key=(),
    )
    found = plan.attend(queries, keys, values, mask, scale=0.3, cache=cache, layer=0)
    expected = scaled_dot_product_attention(queries, keys, values, attn_mask=mask, scale=0.3)
    close = {torch.float32: 1e-5, torch.float64: 1e-12, torch.bfloat16: 0.03}[kind]
    torch.testing.assert_close(found, expected, rtol=close, atol=close)


def model() -> Any:
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=37,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=256,
        initializer_range=0.2,
    )
    return LlamaForCausalLM(config).eval()


def test_an_engine_that_shares_samples_what_the_model_says(monkeypatch: pytest.MonkeyPatch) -> None:
    """Streams of two prompts end, go on after observations, and make room for others, all while they share."""
    decoder, shared = model(), 0

    def counting(*args: Any) -> CommonPrefix | None:
        nonlocal shared
        plan = common_prefix(*args)
        shared += plan is not None
        return plan

    monkeypatch.setattr(hf, "common_prefix", counting)
    rng = random.Random(3)
    prompts = [[rng.randrange(3, 37) for _ in range(length)] for length in (150, 140)]
    engine = HFSampler(decoder, slots=6, max_length=250, stop_ids=(1, 2))
    whole: dict[int, list[int]] = {}
    sampled: dict[int, dict[int, float]] = {}
    waiting = [(k, prompts[k % 2]) for k in range(9)]
    turns = 0
    while waiting or whole.keys() - sampled.keys() or engine._streams:
        while waiting and len(engine._streams) < 6:
            seed, prompt = waiting.pop(0)
            stream = engine.open(prompt, seed=seed)
            whole[stream], sampled[stream] = list(prompt), {}
            engine.generate(stream, max_new_tokens=12)
        for turn in engine.step():
            turns += 1
            start = len(whole[turn.stream])
            whole[turn.stream] += turn.ids
            sampled[turn.stream] |= {start + k: p for k, p in enumerate(turn.logprobs)}
            if len(whole[turn.stream]) > 190:
                engine.close(turn.stream)
                continue
            answer = [rng.randrange(3, 37) for _ in range(rng.randrange(1, 9))]
            engine.extend(turn.stream, answer)
            whole[turn.stream] += answer
            engine.generate(turn.stream, max_new_tokens=rng.randrange(3, 15))
    assert turns > 20
    assert shared > 5
    for stream, ids in whole.items():
        with torch.no_grad():
            logprobs = torch.log_softmax(decoder(input_ids=torch.tensor([ids])).logits[0], dim=-1)
        for place, found in sampled[stream].items():
            assert math.isclose(found, logprobs[place - 1, ids[place]].item(), abs_tol=1e-4)
