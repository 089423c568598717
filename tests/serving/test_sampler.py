"""The engine with settings per stream."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from trajgym.policies.hf import HFSampler
from trajgym.serving.sampler import Sampling, ServedSampler, Token

PROMPT = [5, 300, 301, 17, 42]


def sampler(tiny: tuple[Any, Any], slots: int = 4) -> ServedSampler:
    return ServedSampler(tiny[0], slots=slots, max_length=128, stop_ids=[2])


def turns(engine: ServedSampler, streams: list[int]) -> tuple[dict[int, Any], list[Token]]:
    out: dict[int, Any] = {}
    tokens = []
    while len(out) < len(streams):
        for turn in engine.step():
            out[turn.stream] = turn
        tokens += engine.fresh()
    return out, tokens


def ask(engine: ServedSampler, how: Sampling, ids: list[int] = PROMPT, most: int = 12) -> int:
    stream = engine.open(ids, seed=0)
    engine.answer(stream, how, max_new_tokens=most)
    return stream


def test_temperature_0_takes_the_most_probable_tokens(tiny: tuple[Any, Any]) -> None:
    plain = HFSampler(tiny[0], slots=1, max_length=128, stop_ids=[2], temperature=0.0)
    stream = plain.open(PROMPT, seed=0)
    plain.generate(stream, max_new_tokens=12)
    expected: list[Any] = []
    while not expected:
        expected = plain.step()
    engine = sampler(tiny)
    own = ask(engine, Sampling(temperature=0.0))
    found, _ = turns(engine, [own])
    assert found[own].ids == expected[0].ids
    assert found[own].logprobs == pytest.approx(expected[0].logprobs, abs=1e-5)


def test_each_stream_has_its_own_settings(tiny: tuple[Any, Any]) -> None:
    """What a stream writes does not depend on the settings of its neighbours."""
    hows = [Sampling(temperature=0.0), Sampling(temperature=1.0, seed=3), Sampling(temperature=2.0, seed=4, top_p=0.5)]
    alone = []
    for how in hows:
        engine = sampler(tiny)
        stream = ask(engine, how)
        alone.append(turns(engine, [stream])[0][stream].ids)
    engine = sampler(tiny)
    streams = [ask(engine, how) for how in hows]
    found, _ = turns(engine, streams)
    assert [found[stream].ids for stream in streams] == alone
    assert len(set(alone)) == 3


@pytest.mark.parametrize("temperature", [0.0, 0.5, 1.0, 3.0])
def test_logprobs_are_the_models_own_whatever_the_temperature(tiny: tuple[Any, Any], temperature: float) -> None:
    engine = sampler(tiny)
    stream = ask(engine, Sampling(temperature=temperature, seed=1))
    turn = turns(engine, [stream])[0][stream]
    with torch.inference_mode():
        logits = tiny[0](input_ids=torch.tensor([[*PROMPT, *turn.ids]])).logits[0]
    expected = torch.log_softmax(logits.float(), -1)[len(PROMPT) - 1 : -1]
    assert turn.logprobs == pytest.approx([float(row[i]) for row, i in zip(expected, turn.ids, strict=True)], abs=1e-4)


def test_draws_follow_the_tempered_distribution(tiny: tuple[Any, Any]) -> None:
    """Of many first tokens at temperature 2, each frequent one comes about as often as it should."""
    engine = sampler(tiny, slots=512)
    streams = [ask(engine, Sampling(temperature=2.0, seed=7919 * k), most=1) for k in range(512)]
    found, _ = turns(engine, streams)
    with torch.inference_mode():
        logits = tiny[0](input_ids=torch.tensor([PROMPT])).logits[0, -1].float()
    chances = torch.softmax(logits / 2.0, -1)
    for token in chances.topk(5).indices.tolist():
        chance = float(chances[token])
        count = sum(found[stream].ids[0] == token for stream in streams)
        assert abs(count - 512 * chance) < 4.5 * math.sqrt(512 * chance * (1 - chance)) + 1


def test_top_p_keeps_the_nucleus_alone(tiny: tuple[Any, Any]) -> None:
    with torch.inference_mode():
        logits = tiny[0](input_ids=torch.tensor([PROMPT])).logits[0, -1].float()
    chances, order = torch.softmax(logits / 6.0, -1).sort(descending=True)
    nucleus = set(order[: int((chances.cumsum(-1) < 0.6).sum()) + 1].tolist())
    engine = sampler(tiny, slots=128)
    streams = [ask(engine, Sampling(temperature=6.0, top_p=0.6, seed=31 * k), most=1) for k in range(128)]
    found, _ = turns(engine, streams)
    seen = {found[stream].ids[0] for stream in streams}
    assert 1 < len(nucleus) < len(chances)
    assert seen <= nucleus
    assert len(seen) > 1


def test_watched_streams_report_each_token(tiny: tuple[Any, Any]) -> None:
    engine = sampler(tiny)
    quiet = ask(engine, Sampling(seed=1))
    watched = ask(engine, Sampling(seed=2, watched=True, alternatives=3))
    found, tokens = turns(engine, [quiet, watched])
    assert [token.id for token in tokens] == list(found[watched].ids)
    assert [token.logprob for token in tokens] == pytest.approx(found[watched].logprobs)
    for token in tokens:
        assert len(token.top) == 3
        assert token.top == tuple(sorted(token.top, key=lambda pair: -pair[1]))
        assert token.logprob <= token.top[0][1] + 1e-5


def test_settings_move_with_their_streams(tiny: tuple[Any, Any]) -> None:
    """Streams that end early make others change rows; the greedy one stays greedy."""
    engine = sampler(tiny, slots=6)
    alone = sampler(tiny)
    own = ask(alone, Sampling(temperature=0.0), most=24)
    expected = turns(alone, [own])[0][own].ids
    short = [ask(engine, Sampling(temperature=5.0, seed=k), most=1 + k) for k in range(5)]
    greedy = ask(engine, Sampling(temperature=0.0), most=24)
    found, _ = turns(engine, [*short, greedy])
    assert found[greedy].ids == expected
