"""Which engine samples for a run, and that its weights follow the run's."""

from __future__ import annotations

import copy
import importlib.util
import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from trajgym.errors import ConfigError, UnknownNameError
from trajgym.policies import vllm
from trajgym.policies.hf import HFSampler
from trajgym.policies.turns import Order
from trajgym.policies.vllm import VLLMSampler
from trajgym.policies.vllm_engine import Written
from trajgym.trainers.config import load_config
from trajgym.trainers.grpo import GRPOTrainer, train
from trajgym.trainers.models import load_model, make_policy

ON = {"sampler_correction": True}
FEW = {**ON, "groups_per_update": 3, "slots": 24}


class PlainEngine:
    """Computes every token from the whole stream, with a copy of the model in a folder."""

    made: list[PlainEngine] = []  # noqa: RUF012  cleared by every test

    def __init__(
        self,
        source: str,
        *,
        slots: int,
        max_length: int,
        stop_ids: Iterable[int],
        temperature: float,
        arguments: dict[str, Any],
    ) -> None:
        self.model, self.stops, self.temperature = load_model(source)[0], set(stop_ids), temperature
        self.vocabulary = int(self.model.config.vocab_size)
        self.live: dict[int, tuple[Order, list[int], list[float], torch.Generator]] = {}
        self.weights: list[Tensor] = []  # of one layer, as they were at each update
        self.deaf = False
        self.made.append(self)

    def add(self, order: Order) -> None:
        self.live[order.stream] = (order, [], [], torch.Generator().manual_seed(order.seed))

    def step(self) -> list[Written]:
        done = []
        for stream, (order, ids, logprobs, generator) in list(self.live.items()):
            with torch.no_grad():
                logits = self.model(torch.tensor([[*order.ids, *ids]])).logits[0, -1].float() / self.temperature
            token = int(torch.multinomial(logits.softmax(-1), 1, generator=generator))
            ids.append(token)
            logprobs.append(float(logits.log_softmax(-1)[token]))
            if token in self.stops or len(ids) == order.max_new_tokens:
                del self.live[stream]
                done.append(Written(stream, tuple(ids), tuple(logprobs), 0))
        return done

    def abort(self, streams: Sequence[int]) -> None:
        for stream in streams:
            del self.live[stream]

    def load(self, weights: Iterable[tuple[str, Tensor]]) -> None:
        named = dict(weights)
        if not self.deaf:
            self.model.load_state_dict(named)
        self.weights.append(copy.deepcopy(self.model.model.layers[0].self_attn.q_proj.weight.detach()))

    def forget(self) -> None:
        assert not self.live

    def finite(self) -> bool:
        return True

    def close(self) -> None:
        return


@pytest.fixture
def plain(monkeypatch: pytest.MonkeyPatch) -> list[PlainEngine]:
    PlainEngine.made.clear()
    monkeypatch.setattr(vllm, "VLLMEngine", PlainEngine)
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    return PlainEngine.made


def metrics(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


@pytest.mark.parametrize("lora", [False, True])
def test_the_engine_has_the_weights_of_each_update(
    identity_options: dict[str, Any], plain: list[PlainEngine], lora: bool
) -> None:
    some = {"use_lora": True, "lora_rank": 4, "lora_targets": ["q_proj", "down_proj"]} if lora else {}
    options = {**identity_options, **FEW, "updates": 3, "sampler": "vllm", "learning_rate": 0.01, **some}
    trainer = GRPOTrainer(load_config(options))
    folder = trainer.run()
    (engine,) = plain
    assert len(engine.weights) == 3  # one for each rollout
    assert all((a - b).abs().max() > 1e-3 for a, b in zip(engine.weights, engine.weights[1:], strict=False))
    assert all(m["sampler_gap"] < 1e-5 for m in metrics(folder))
    assert trainer.policy.sampler.computed_tokens > 0
    trainer.policy.sampler.update_weights(trainer.learner.model)
    assert isinstance(trainer.policy.sampler, VLLMSampler)
    assert trainer.policy.sampler.gap < 1e-5


def test_an_engine_left_behind_shows_in_the_gap(identity_options: dict[str, Any], plain: list[PlainEngine]) -> None:
    options = {**identity_options, **FEW, "updates": 3, "sampler": "vllm", "learning_rate": 0.01}
    trainer = GRPOTrainer(load_config(options))
    plain[0].deaf = True
    assert metrics(trainer.run())[-1]["sampler_gap"] > 1e-3


def test_it_learns_and_a_resumed_run_is_the_uninterrupted_one(
    identity_options: dict[str, Any], plain: list[PlainEngine]
) -> None:
    own = {**identity_options, **FEW, "sampler": "vllm", "save_every": 2, "updates": 4}
    whole = train(load_config({**own, "name": "whole"}))
    train(load_config({**own, "name": "parts", "updates": 2}))
    parts = train(load_config({**own, "name": "parts", "resume": True}))
    clock = ("time/", "efficiency/", "memory/")
    told = [[{k: v for k, v in m.items() if not k.startswith(clock)} for m in metrics(f)] for f in (whole, parts)]
    assert told[0][2:] == told[1][2:]


def test_played_ahead_it_samples_with_the_weights_of_one_update_ago(
    identity_options: dict[str, Any], plain: list[PlainEngine]
) -> None:
    options = {**identity_options, **FEW, "updates": 3, "sampler": "vllm", "rollout_ahead": 1, "save_every": 3}
    trainer = GRPOTrainer(load_config({**options, "learning_rate": 0.01}))
    folder = trainer.run()
    first, second, third = plain[0].weights
    assert torch.equal(first, second)  # the second update is played while the first one is learned
    assert (second - third).abs().max() > 1e-3
    assert metrics(folder)[0]["sampler_gap"] < 1e-5 < 1e-4 < metrics(folder)[1]["sampler_gap"]


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"sampler": "vllm"}, "set sampler_correction: true"),
        ({"sampler": "vllm_server", "sampler_options": {"url": "http://x"}}, "set sampler_correction: true"),
        ({"sampler": "vllm_server", **ON}, "url: Field required"),
        ({"sampler": "vllm", **ON, "sampler_options": {"enforce": True}}, "Did you mean 'enforce_eager'"),
        ({"sampler": "vllm", **ON, "use_lora": True, "quantization": "8bit"}, "cannot follow a model in 8bit"),
        ({"sampler_options": {"url": "http://x"}}, "mean nothing to sampler hf"),
        ({"sampler": "sglang"}, "sampler"),
    ],
)
def test_what_does_not_go_together(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        load_config({"updates": 1, **changes})


def test_options_can_be_given_on_the_command_line() -> None:
    args = ["--sampler", "vllm", "--sampler-correction", "--sampler-options", '{"kv_cache_gib": 2}']
    config = load_config({"updates": 1}, args)
    assert config.sampler_options == {"kv_cache_gib": 2}
    with pytest.raises(UnknownNameError, match="Did you mean 'sampler'"):
        load_config({"updates": 1, "sampeler": "vllm"})


def test_what_measures_samples_from_the_model_itself(plain: list[PlainEngine]) -> None:
    config = load_config({"updates": 1, "sampler": "vllm", **ON, "max_episode_tokens": 1000})
    model, tokenizer = load_model("tiny")
    assert isinstance(make_policy(model, tokenizer, config).sampler, HFSampler)
    assert not plain
    assert isinstance(make_policy(model, tokenizer, config, training=True).sampler, VLLMSampler)


def test_what_an_engine_cannot_be_had_for(plain: list[PlainEngine], monkeypatch: pytest.MonkeyPatch) -> None:
    model, tokenizer = load_model("tiny")
    config = load_config({"updates": 1, "sampler": "vllm", **ON, "max_episode_tokens": 1025})
    with pytest.raises(ConfigError, match="max_position_embeddings=1024"):
        make_policy(model, tokenizer, config, training=True)
    monkeypatch.setenv("WORLD_SIZE", "2")
    for sampler, options in (("vllm", {}), ("vllm_server", {"url": "http://127.0.0.1:9"})):
        changed = config.model_copy(update={"sampler": sampler, "sampler_options": options})
        with pytest.raises(ConfigError, match="needs one process, and this launch has 2"):
            make_policy(model, tokenizer, changed, training=True)


@pytest.mark.skipif(importlib.util.find_spec("vllm") is not None, reason="vLLM is installed")
def test_without_vllm_the_run_says_how_to_get_it(tmp_path: Path) -> None:
    options = {"updates": 1, "sampler": "vllm", **ON, "output_dir": tmp_path, "max_episode_tokens": 500}
    with pytest.raises(ConfigError, match=r"trajgym\[vllm\]"):
        train(load_config(options))
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("vllm") is None, reason="vLLM is not installed")
@pytest.mark.filterwarnings("ignore")  # vLLM's own
@pytest.mark.parametrize(("lora", "ahead"), [(False, 0), (True, 0), (False, 1)])
def test_two_updates_with_vllm_itself(tmp_path: Path, lora: bool, ahead: int, monkeypatch: pytest.MonkeyPatch) -> None:
    options = {
        "updates": 2,
        "env": "ArithmeticTool-v0",
        "env_kwargs": {"reward": "hybrid"},
        "groups_per_update": 4,
        "num_generations": 4,
        "max_turn_tokens": 60,
        "max_episode_tokens": 600,
        "learning_rate": 1e-3,
        "sampler": "vllm",
        "sampler_options": {"enforce_eager": True, "kv_cache_gib": 0.2},
        "output_dir": tmp_path,
        "monitors": (),
        "use_lora": lora,
        "rollout_ahead": ahead,
        **ON,
    }
    trainer = GRPOTrainer(load_config(options))
    sampler = trainer.policy.sampler
    assert isinstance(sampler, VLLMSampler)
    before = copy.deepcopy(trainer.learner.model)
    with monkeypatch.context() as kept:  # a run closes its engine, and here it is looked at afterwards
        kept.setattr(VLLMSampler, "close_engine", lambda self: None)
        folder = trainer.run()
    assert [m["groups"] for m in metrics(folder)] == [4.0, 4.0]
    # The second rollout has the first update's weights, or those of one update ago.
    assert [m["sampler_gap"] < 1e-4 for m in metrics(folder)] == [True, not ahead]
    sampler.update_weights(trainer.learner.model)
    assert sampler.gap < 1e-4
    after = [p for p in trainer.learner.model.parameters() if p.requires_grad]
    trained = [p for p in before.parameters() if p.requires_grad]
    assert max(float((a - b).abs().max()) for a, b in zip(after, trained, strict=True)) > 1e-3
    sampler.close_engine()
