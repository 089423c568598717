"""The sampler with vLLM's own engine and the embedded model, where vLLM is installed."""

from __future__ import annotations

import importlib.util
import math
from collections.abc import Iterator
from typing import Any

import pytest
import torch

from trajgym.errors import ConfigError, TrainingError, UnknownNameError
from trajgym.policies import tiny_path
from trajgym.policies.base import SampledTurn
from trajgym.policies.vllm import VLLMSampler
from trajgym.policies.vllm_options import VLLMOptions
from trajgym.policies.vllm_weights import checkpoint_weights, gap
from trajgym.trainers.models import add_lora, load_model

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(importlib.util.find_spec("vllm") is None, reason="vLLM is not installed"),
    pytest.mark.filterwarnings("ignore"),  # its own
]

TEMPERATURE, STOP, BLOCK = 0.7, 2, 32
CLOSE = 1e-4  # nats per token, in float32
SIZE: dict[str, Any] = {"slots": 8, "max_length": 512, "stop_ids": [STOP], "temperature": TEMPERATURE}
OPTIONS = {"enforce_eager": True, "kv_cache_gib": 0.1}


@pytest.fixture(scope="module")
def shared() -> Iterator[VLLMSampler]:
    """One engine for all tests, since making one takes most of a minute."""
    generator = torch.get_rng_state()
    ours = VLLMSampler(str(tiny_path()), options=VLLMOptions.model_validate(OPTIONS), **SIZE)
    assert torch.equal(torch.get_rng_state(), generator)  # which vLLM seeds by itself
    yield ours
    ours.close_engine()


@pytest.fixture
def model() -> Any:
    return load_model("tiny")[0]


@pytest.fixture
def ours(shared: VLLMSampler, model: Any) -> VLLMSampler:
    shared.reset()
    shared._engine.load(checkpoint_weights(model))
    return shared


@pytest.fixture
def prompt() -> list[int]:
    return [(37 * k) % 900 + 10 for k in range(90)]


def run(ours: VLLMSampler, *streams: int) -> list[SampledTurn]:
    turns: dict[int, SampledTurn] = {}
    for _ in range(2000):
        turns |= {turn.stream: turn for turn in ours.step()}
        if set(streams) <= set(turns):
            return [turns[stream] for stream in streams]
    raise AssertionError("turns never came out")


def moved(model: Any, by: float, seed: int = 0) -> Any:
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for p in model.parameters():
            if p.requires_grad:
                p.add_(torch.randn(p.shape, generator=generator), alpha=by)
    return model


def test_a_dialogue_has_the_models_own_logprobs(ours: VLLMSampler, model: Any, prompt: list[int]) -> None:
    stream, ids, finishes = ours.open(prompt, seed=3), list(prompt), set()
    for observation, budget in (([], 5), ([8, 9], 60), ([10] * 40, 7), ([11], 60)):
        ours.extend(stream, observation)
        ids += observation
        ours.generate(stream, max_new_tokens=budget)
        (turn,) = run(ours, stream)
        assert len(turn.ids) == len(turn.logprobs) <= budget
        assert (turn.finish == "stop") == (turn.ids[-1] == STOP)
        assert STOP not in turn.ids[:-1]
        assert turn.finish == "stop" or len(turn.ids) == budget
        assert gap(model, ids, turn.ids, turn.logprobs, TEMPERATURE) < CLOSE
        assert gap(model, ids, turn.ids, turn.logprobs, 1.0) > 100 * CLOSE  # and not those of another temperature
        finishes.add(turn.finish)
        ids += turn.ids
    assert finishes == {"stop", "length"}


def test_a_stream_may_fill_the_whole_length(ours: VLLMSampler, prompt: list[int]) -> None:
    ids = [5] * 500
    for seed in range(20):
        stream = ours.open(ids, seed=seed)
        ours.generate(stream, max_new_tokens=12)
        (turn,) = run(ours, stream)
        ours.close(stream)
        if len(turn.ids) == 12:
            return
    raise AssertionError("no turn was as long as it may be")


def test_draws_do_not_depend_on_what_runs_beside(ours: VLLMSampler, prompt: list[int]) -> None:
    def turns(seed: int, crowd: int) -> list[tuple[int, ...]]:
        ours.reset()
        for other in range(crowd):
            ours.generate(ours.open(prompt[other:], seed=other), max_new_tokens=200)
        stream, out = ours.open(prompt, seed=seed), []
        for _ in range(2):
            ours.generate(stream, max_new_tokens=20)
            out.append(run(ours, stream)[0].ids)
        return out

    state = torch.get_rng_state()
    alone = turns(1, 0)
    assert alone == turns(1, 5)
    assert alone != turns(2, 0)
    assert alone[0] != alone[1]
    assert torch.equal(torch.get_rng_state(), state)


def test_turns_come_out_as_they_finish_and_may_be_dropped(ours: VLLMSampler, prompt: list[int]) -> None:
    long, short, dropped = (ours.open(prompt, seed=seed) for seed in range(3))
    for stream, budget in ((long, 300), (short, 1), (dropped, 300)):
        ours.generate(stream, max_new_tokens=budget)
    assert [turn.stream for turn in ours.step()] == [short]
    ours.close(dropped)
    (turn,) = run(ours, long)
    assert turn.stream == long


def test_prefixes_are_computed_once(ours: VLLMSampler, prompt: list[int]) -> None:
    before = ours.computed_tokens
    streams = [ours.open(prompt, seed=seed) for seed in range(4)]
    for stream in streams:
        ours.generate(stream, max_new_tokens=4)
    turns = run(ours, *streams)
    whole = len(prompt) // BLOCK * BLOCK
    fresh = sum(len(turn.ids) - 1 for turn in turns)
    assert ours.computed_tokens - before == len(prompt) + 3 * (len(prompt) - whole) + fresh

    before, length = ours.computed_tokens, len(prompt) + len(turns[0].ids) + 50
    ours.extend(streams[0], [7] * 50)
    ours.generate(streams[0], max_new_tokens=1)
    run(ours, streams[0])
    assert ours.computed_tokens - before <= length - whole < length


def test_weights_follow_training_and_back(ours: VLLMSampler, model: Any, prompt: list[int]) -> None:
    def turn() -> SampledTurn:
        stream = ours.open(prompt, seed=1)
        ours.generate(stream, max_new_tokens=20)
        (out,) = run(ours, stream)
        ours.close(stream)
        return out

    first = turn()
    ours.update_weights(moved(load_model("tiny")[0], 0.02))
    assert ours.gap < CLOSE
    second = turn()
    assert gap(model, prompt, second.ids, second.logprobs, TEMPERATURE) > 100 * CLOSE
    ours.update_weights(model)
    assert ours.gap < CLOSE
    assert turn() == SampledTurn(first.stream + 4, first.ids, first.logprobs, first.finish)  # bit for bit


def test_adapters_follow_training(ours: VLLMSampler, model: Any) -> None:
    adapted = add_lora(model, rank=4, alpha=16, targets=("q_proj", "v_proj", "down_proj"), seed=0)
    for seed in range(2):
        ours.update_weights(moved(adapted, 0.1, seed))
        assert ours.gap < CLOSE


def test_weights_that_have_diverged(ours: VLLMSampler, model: Any, prompt: list[int]) -> None:
    with torch.no_grad():
        model.model.norm.weight.fill_(math.nan)
    ours._engine.load(checkpoint_weights(model))
    stream = ours.open(prompt, seed=0)
    ours.generate(stream, max_new_tokens=5)
    with pytest.raises(TrainingError, match="diverged"):
        run(ours, stream)


def test_what_the_engine_refuses(tmp_path: Any) -> None:
    def made(source: str = str(tiny_path()), **engine: Any) -> VLLMSampler:
        return VLLMSampler(source, options=VLLMOptions.model_validate({**OPTIONS, "engine": engine}), **SIZE)

    with pytest.raises(UnknownNameError, match="Did you mean 'kv_cache_dtype'"):
        made(kv_cache_dtipe="fp8")
    with pytest.raises(ConfigError, match="max_model_len follows from"):
        made(max_model_len=8)
    with pytest.raises(ConfigError, match="vLLM cannot serve the model"):
        made(str(tmp_path))
